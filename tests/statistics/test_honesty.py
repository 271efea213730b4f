"""What the public interface does not have: a best seed, a p for a single task, a condition on having learned."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest

import lengthwise.statistics
from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks
from lengthwise.statistics.cells import score_cells
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.ranks import mean_reciprocal_ranks, rank_statistics
from lengthwise.statistics.table import score_table
from tests.statistics.planted import made, named

MODULES = [
    importlib.import_module(f"lengthwise.statistics.{one.name}")
    for one in pkgutil.iter_modules(lengthwise.statistics.__path__)
]
BEST = re.compile(r"best|top_|maximum|max_|winner|luckiest|highest", re.IGNORECASE)


def public(module):
    """Names of functions, classes, fields and parameters that anybody may use."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", module.__name__) != module.__name__:
            continue
        yield name
        if dataclasses.is_dataclass(thing):
            yield from (field.name for field in dataclasses.fields(thing))
        if inspect.isfunction(thing):
            yield from inspect.signature(thing).parameters


def test_there_is_no_best_of_seeds():
    names = [name for module in MODULES for name in public(module)]
    assert len(names) > 150 and not [name for name in names if BEST.search(name)]
    assert BEST.search("best_seed") and BEST.search("max_over_seeds")  # it would be found


def test_no_summary_of_a_cell_is_its_best_seed():
    """The luckiest seed moves by a lot: no value moves with it, but for the end of an interval that says min–max."""
    usual, lucky = [0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.3, 0.4, 1.0]
    one, other = (
        score_cells(score_table(made(planted), named(planted)))["copy", "nope"]
        for planted in ({("copy", "nope", seed): value for seed, value in enumerate(own)} for own in (usual, lucky))
    )
    assert one.median.value == other.median.value and other.mean.value < 1.0


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_nothing_conditions_on_runs_that_learned(module):
    names = list(public(module))
    assert not [name for name in names if re.search(r"only_learned|if_learned|given_learned|successful", name)]


def numbers(thing):
    """Every Estimate inside."""
    if isinstance(thing, Estimate):
        yield thing
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            yield from numbers(getattr(thing, field.name))
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from numbers(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from numbers(value)


def test_every_number_says_of_how_many_of_what_and_by_which_recipe():
    dice = np.random.default_rng(0)
    names = ("nope", "t5", "alibi", "rope", "sinusoidal")
    planted = {(t, e, s): float(dice.random()) for t in ("copy", "sort") for e in names for s in range(3)}
    table = score_table(made(planted), named(planted))
    found = list(
        numbers(
            [
                mean_scores_over_tasks(table),
                encoding_differences(table),
                score_cells(table),
                mean_reciprocal_ranks(table),
                rank_statistics(table),
            ]
        )
    )
    assert len(found) > 60
    for one in found:
        assert one.n > 0 and one.unit and one.recipe and one.words and one.measure
        assert (one.low is None) == (one.high is None)
        assert one.level is not None or one.low is None or "its level is not known" in one.words
        assert one.low is None or one.low <= one.value <= one.high
        assert one.plain()["recipe"] == one.recipe and str(one)


def test_one_seed_never_has_a_seed_interval():
    planted = {(t, e, 0): 0.5 for t in ("copy", "sort") for e in ("nope", "rope")}
    table = score_table(made(planted), named(planted))
    told = [
        *(one.seeds for one in mean_scores_over_tasks(table).values()),
        *(one.seeds for one in encoding_differences(table)),
    ]
    told += [one.median for one in score_cells(table).values()]
    assert all(one.low is None and "no seed interval" in one.words for one in told)
