"""A line for each run says what `reach` says, for a million rows in under two seconds."""

import time

import numpy as np
import polars as pl
import pytest

from lengthwise.evaluation.rows import COLUMNS
from lengthwise.spec import SpecError
from lengthwise.statistics.learned import counts_by_length
from lengthwise.statistics.reach import reach, run_scores


def made(runs: int, lengths: int, labels: int, seed: int = 0) -> pl.DataFrame:
    """Rows of runs that fall off somewhere, some with chance, some exhausted, some that never learned."""
    dice, many = np.random.default_rng(seed), runs * lengths * labels
    run, length = (
        np.repeat(np.arange(runs), lengths * labels),
        np.tile(np.repeat(np.arange(1, lengths + 1), labels), runs),
    )
    trained = lengths // 3
    falls = np.repeat(dice.integers(1, lengths * 2, runs), lengths * labels)
    examples = np.where(dice.random(many) < 0.05, dice.integers(1, 8, many), 256)
    right = np.where(length < falls, dice.uniform(0.9, 1.0, many), dice.uniform(0.0, 0.95, many))
    split = np.where(length <= trained, "test_seen", np.where(length <= 2 * trained, "test_unseen", "test_far"))
    table = pl.DataFrame(
        {
            "run": [f"r{n}" for n in run],
            "evaluation": "as trained",
            "checkpoint": np.tile(np.array(["last", "best", "25%"])[:labels], runs * lengths),
            "split": split,
            "seen": length <= trained,
            "length": length,
            "examples": examples,
            "correct": np.round(examples * right).astype(np.int64),
            "chance": np.where(run % 3 == 0, 0.5, 0.01),
        }
    )
    blank = [pl.lit(None, getattr(pl, kind)).alias(name) for name, kind in COLUMNS.items() if name not in table.columns]
    return table.with_columns(blank).select(list(COLUMNS))


@pytest.mark.slow
def test_a_line_says_what_the_reach_of_the_run_is():
    rows = made(300, 24, 2)
    found = {line["run"]: line for line in run_scores(rows).to_dicts()}
    assert len(found) == 300
    kinds = set()
    for (run,), own in rows.filter(pl.col("checkpoint") == "last").partition_by("run", as_dict=True).items():
        wanted, line = reach(own), found[run]
        assert (line["reach"], line["beyond"] and line["reach"] is not None) == (wanted.length, wanted.beyond)
        seen = counts_by_length(own.filter(pl.col("seen")))["accuracy"].mean()
        assert line["seen"] == seen or abs(line["seen"] - seen) < 1e-12
        kinds.add((wanted.length is None, wanted.beyond))
    assert kinds == {(True, False), (False, False), (False, True)}


def test_the_reach_of_a_run_is_that_of_its_last_weights():
    right = (pl.col("length") <= 12) & (pl.col("checkpoint") != "25%")
    rows = made(1, 24, 3).with_columns(correct=pl.when(right).then("examples").otherwise(0))
    assert reach(rows).length == reach(rows.filter(pl.col("checkpoint") == "last")).length == 12
    with pytest.raises(SpecError, match="reach takes the rows of one run, and these are of 2"):
        reach(made(2, 24, 1))


@pytest.mark.slow
@pytest.mark.alone
def test_a_million_rows_are_summarised_in_two_seconds(figure):
    rows = made(10_000, 34, 3)
    assert rows.height > 1_000_000
    run_scores(rows.head(1000))
    began = time.perf_counter()
    found = run_scores(rows)
    took = time.perf_counter() - began
    figure(f"{rows.height:,} rows of {found.height:,} runs summarised in {took:.2f} s")
    assert found.height == 10_000 and took < 2
