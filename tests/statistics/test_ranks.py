"""Ranks: ties share, chance is chance, five always add up to 2.2833, and who is listed first is never ahead."""

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lengthwise.spec import SpecError
from lengthwise.statistics.ranks import (
    FIVE,
    QUARTER,
    ROW_ORDER,
    above_chance,
    interquartile_mean,
    mean_reciprocal_ranks,
    paper_mean_reciprocal_ranks,
    rank_encodings,
    rank_statistics,
    round_score,
    task_seed_scores,
)
from lengthwise.statistics.table import score_table
from tests.statistics.planted import made, named

HARMONIC = 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5
NAMES = list(FIVE.values())


def told(planted, **options) -> pl.DataFrame:
    return score_table(made(planted, **options), named(planted))


def study(values: dict[str, list[float]], task: str = "copy") -> dict:
    """Encoding → a score for each seed."""
    return {(task, name, seed): value for name, own in values.items() for seed, value in enumerate(own)}


# --- the parts -------------------------------------------------------------------------------------------------------


def test_ties_share_what_they_take_together():
    rank, reciprocal = rank_encodings(np.array([[0.9, 0.5, 0.5]]))
    assert rank.tolist() == [[1, 2.5, 2.5]] and reciprocal[0] == pytest.approx([1, 5 / 12, 5 / 12])
    _, first = rank_encodings(np.array([[0.9, 0.5, 0.5]]), tie_rule="first")
    assert first[0] == pytest.approx([1, 1 / 2, 1 / 3])


def test_ties_share_the_expected_reciprocal_rank():
    """The mean over all ways to break the ties."""
    for values in itertools.product((0.0, 0.5, 1.0), repeat=4):
        broken = [
            rank_encodings(np.array([values])[:, list(order)], "first")[1][0][np.argsort(order)]
            for order in itertools.permutations(range(4))
        ]
        assert rank_encodings(np.array([values]))[1][0] == pytest.approx(np.mean(broken, axis=0))


def test_a_task_where_all_tie_gives_everybody_the_average():
    found = mean_reciprocal_ranks(told(study({name: [0.0, 0.0, 0.0] for name in NAMES})))
    assert list(found.values.values()) == pytest.approx([HARMONIC / 5] * 5)
    assert [
        one.value for one in rank_statistics(told(study({name: [1.0] * 3 for name in NAMES}))).mean_rank.values()
    ] == [3.0] * 5


def test_scores_are_rounded_to_half_a_percent():
    assert [round_score(one) for one in (0.0024, 0.0025, 0.0074, 0.998)] == pytest.approx([0, 0.005, 0.005, 1.0])
    assert round_score(0.1 + 0.2) == round_score(0.3) and round_score(0.0625) == round_score(0.0625 - 1e-16)
    near = dict(zip(NAMES, ([0.501], [0.5], [0.499], [0.4], [0.3]), strict=True))
    found = mean_reciprocal_ranks(told(study(near), examples=1000)).values
    assert found["NoPE"] == found["T5"] == found["ALiBi"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_above_chance_is_the_binomial_tail():
    for examples, chance in ((256, 0.5), (2048, 0.1), (1000, 0.003)):
        for correct in range(0, examples, 7):
            wanted = correct > 0 and stats.binom.sf(correct - 1, examples, chance) <= 0.01
            assert above_chance(correct, examples, chance) == wanted
    assert above_chance(148, 256, 0.5) and not above_chance(147, 256, 0.5)
    assert above_chance(1, 256, 0.0) and not above_chance(0, 256, 0.0)


def test_what_is_not_above_chance_is_chance():
    """.51 of 800 coins is luck, 0 is as good as that, .6 is not luck: only the last is ahead."""
    values = dict(zip(NAMES, ([0.51], [0.6], [0.0], [0.49], [0.5]), strict=True))
    asked = task_seed_scores(told(study(values, "parity"), chance=0.5))
    scored = dict(zip(asked.encodings, asked.scores_QE[0], strict=True))
    assert scored["t5"] == pytest.approx(0.6) and {scored[name] for name in NAMES if name != "t5"} == {0.5}
    assert mean_reciprocal_ranks(told(study(values, "parity"), chance=0.5)).values["T5"] == 1.0
    plain = task_seed_scores(told(study(values, "parity"), chance=0.5), unrounded=True)
    assert 0.0 in plain.scores_QE


# --- the mean reciprocal rank ----------------------------------------------------------------------------------------

SCORES = st.fixed_dictionaries(
    {
        (task, name, seed): st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.floats(0, 1))
        for task in ("copy", "sort", "parity")
        for name in NAMES
        for seed in range(2)
    }
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SCORES, st.integers(0, 1000))
def test_the_five_add_up_and_the_listing_changes_nothing(planted, seed):
    chance = {"copy": 0.0, "sort": 0.01, "parity": 0.5}
    rows, labels = made(planted, chance=chance), named(planted)
    one = score_table(rows, labels)
    other = score_table(
        rows.sample(fraction=1, shuffle=True, seed=seed), labels.sample(fraction=1, shuffle=True, seed=seed)
    )
    for recipe in (mean_reciprocal_ranks, paper_mean_reciprocal_ranks):
        found = recipe(one)
        assert sum(found.values.values()) == pytest.approx(HARMONIC) and found.queries == 6
        assert found == recipe(other.sample(fraction=1, shuffle=True, seed=seed))
    assert rank_statistics(one) == rank_statistics(other)
    renamed = {"nope": "sinusoidal", "sinusoidal": "nope"}
    swapped = one.with_columns(pl.col("encoding").replace(renamed))
    assert mean_reciprocal_ranks(swapped).values["NoPE"] == pytest.approx(
        mean_reciprocal_ranks(one).values["APE"]
    )  # who is called what changes nothing


def test_the_papers_recipe_breaks_ties_by_its_row_order():
    found = paper_mean_reciprocal_ranks(told(study({name: [0.0] for name in NAMES})))
    assert [found.values[name] for name in ROW_ORDER] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert found.recipe != mean_reciprocal_ranks(told(study({name: [0.0] for name in NAMES}))).recipe


def test_rotary_is_a_quarter_or_the_whole_and_never_both():
    values = dict(zip(NAMES, ([0.5], [0.4], [0.3], [0.2], [0.1]), strict=True))
    values |= {"rope:fraction=0.25": [0.9], "kerple": [1.0]}
    table = told(study(values))
    full, quarter = mean_reciprocal_ranks(table), mean_reciprocal_ranks(table, QUARTER)
    assert (quarter.rotary, full.rotary) == ("rope:fraction=0.25", "rope")
    assert full.values["Rotary"] == 1 / 4 and quarter.values["Rotary"] == 1.0 and set(quarter.values) == set(FIVE)
    assert sum(quarter.values.values()) == pytest.approx(HARMONIC)  # a sixth encoding is not ranked
    lacking = told({**study(values), ("copy", "kerple", 0): None})
    assert (
        mean_reciprocal_ranks(lacking).queries == 1 and mean_reciprocal_ranks(lacking).values == full.values
    )  # nor does it cost a query
    without = mean_reciprocal_ranks(table.filter(pl.col("encoding") != "rope"))
    assert without.missing == ("rope",) and without.values == {} and without.queries == 0
    with pytest.raises(SpecError, match="the five"):
        mean_reciprocal_ranks(table, {"NoPE": "nope"})


def test_a_query_that_lacks_an_encoding_is_dropped_and_listed():
    planted = study(dict(zip(NAMES, ([0.5, 0.1], [0.4, 0.2], [0.3, 0.3], [0.2, 0.4], [0.1, 0.5]), strict=True)))
    planted["copy", "t5", 1] = None
    found = mean_reciprocal_ranks(told(planted))
    assert found.queries == 1 and found.dropped == (("copy", 1),) and found.values["NoPE"] == 1.0
    every = rank_statistics(told(planted))
    assert every.queries == 1 and every.dropped == (("copy", 1),)
    nothing = mean_reciprocal_ranks(told({**planted, ("copy", "t5", 0): None}))
    assert nothing.values == {} and nothing.queries == 0 and len(nothing.dropped) == 2


def test_it_carries_both_intervals():
    dice = np.random.default_rng(0)
    planted = {(t, e, s): float(dice.random()) for t in ("copy", "sort", "lego") for e in NAMES for s in range(3)}
    found = mean_reciprocal_ranks(told(planted))
    nope = found.means["NoPE"]
    assert nope.seeds.n == 9 and nope.seeds.low < nope.value < nope.seeds.high and nope.tasks.n == 3
    assert len(found.differences) == 10 and nope.seeds.examples == "not counted"


# --- all encodings ---------------------------------------------------------------------------------------------------


def test_standing_by_hand():
    planted = study({"a": [0.9, 0.9, 0.2], "b": [0.5, 0.9, 0.4], "c": [0.1, 0.1, 0.1]})
    found = rank_statistics(told(planted))
    assert found.encodings == ("b", "a", "c") or found.encodings == ("a", "b", "c")
    assert found.mean_rank["a"].value == pytest.approx((1 + 1.5 + 2) / 3) and found.mean_rank["c"].value == 3
    assert found.wins["a", "b"] == found.wins["b", "a"] == pytest.approx(1 / 3) and found.wins["a", "c"] == 1.0
    assert found.counts["a"] == {1.0: 1, 1.5: 1, 2.0: 1}
    assert (found.interquartile["a"].n, found.interquartile["a"].unit) == (3, "(task, seed) queries")


def test_the_interquartile_mean():
    assert interquartile_mean([0, 0.4, 0.6, 1]) == pytest.approx(0.5) and interquartile_mean([0.3]) == 0.3
    values = np.random.default_rng(1).random(51)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))
