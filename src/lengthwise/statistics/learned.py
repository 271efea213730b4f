"""The only definition of when a run has learned the seen lengths; every page that uses it prints `RULE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

MEAN = 0.95
"""A run that learned has at least this mean accuracy over the seen lengths, ..."""
EACH = 0.9
"""... and at no seen length significantly less than this."""
LEVEL = 0.05
"""The level of the one-sided exact binomial tests of all seen lengths together (Bonferroni)."""
FROM_CHANCE = 0.1
"""If chance exceeds this, accuracy is rescaled: 0 at chance, 1 if all answers are right."""
EXHAUSTED = 8
"""Seen lengths with fewer examples than this are ignored."""
WEAK = 50
"""Seen lengths with fewer examples than this say little; the report lists them."""
RULE = (
    "A run has learned the seen lengths if its mean accuracy over them is at least .95 and none is significantly below "
    ".9 (one-sided exact binomial test at .05 ÷ number of seen lengths; counted from chance where chance exceeds .1). "
    "An encoding has learned a task if all its runs have, or all but one of 3 to 9, or all but a fifth of 10 or more; "
    "a run that diverged has not."
)


def scored_rows_filter(checkpoint: str = "last", evaluation: str = "as trained") -> pl.Expr:
    """Return the filter for rows of the test and validation splits with one checkpoint and one evaluation."""
    import polars as pl

    split = pl.col("split").str.starts_with("test_") | (pl.col("split") == "validation")
    return (pl.col("checkpoint") == checkpoint) & (pl.col("evaluation") == evaluation) & split


def counts_by_length(rows: pl.DataFrame) -> pl.DataFrame:
    """Return counts per run and length: `run, length, seen, split, examples, correct, chance, accuracy, score`.

    `score` is the accuracy, rescaled from chance if chance exceeds .1. Subgroups of a length are added up.
    """
    import polars as pl

    counted = (
        rows.group_by("run", "length", "seen", "split", maintain_order=True)
        .agg(pl.col("examples").sum(), pl.col("correct").sum(), pl.col("chance").max())
        .filter(~(pl.col("seen") & (pl.col("examples") < EXHAUSTED)) & (pl.col("examples") > 0))
        .with_columns((pl.col("correct") / pl.col("examples")).alias("accuracy"))
    )
    return add_score_column(counted).sort("run", "length")


def add_score_column(length_counts: pl.DataFrame) -> pl.DataFrame:
    """Add the column `score`: the accuracy, rescaled from chance if chance exceeds .1."""
    import polars as pl

    counts = (pl.col("chance") > FROM_CHANCE) & (pl.col("chance") < 1)  # with a chance of 1 there is nothing to rescale
    chance = pl.when(counts).then(pl.col("chance")).otherwise(0.0)
    return length_counts.with_columns(((pl.col("accuracy") - chance) / (1 - chance)).alias("score"))


def learned_runs(length_counts: pl.DataFrame) -> pl.DataFrame:
    """Return `run, learned, weak`: whether each run learned, and its seen lengths with few examples.

    `length_counts` is the result of `counts_by_length`. Runs that were tested at no seen length are left out.
    """
    import polars as pl
    from scipy.special import bdtr

    seen = length_counts.filter("seen")
    chance = (seen["chance"] * (seen["chance"] > FROM_CHANCE) * (seen["chance"] < 1)).to_numpy()
    tail = bdtr(seen["correct"].to_numpy(), seen["examples"].to_numpy(), chance + EACH * (1 - chance))
    return (
        seen.with_columns(pl.Series("tail", tail, dtype=pl.Float64))
        .group_by("run", maintain_order=True)
        .agg(
            (
                (pl.col("score").mean() >= MEAN - 1e-12)
                & (pl.col("tail") >= LEVEL / pl.len()).all()
            ).alias("learned"),
            pl.col("length").filter(pl.col("examples") < WEAK).alias("weak"),
        )
    )  # fmt: skip


def enough_runs_learned(learned: int, runs: int) -> bool:
    """Return whether enough runs of a cell learned: at least 2 of 3, 4 of 5, 8 of 10, and all of one or two."""
    failures = 0 if runs < 3 else max(1, runs // 5)
    return runs > 0 and learned >= runs - failures
