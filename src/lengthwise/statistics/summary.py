"""Every run in one line: seen and unseen accuracy and reach, for a million rows in a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lengthwise.statistics.reach import EXHAUSTED, FROM_CHANCE, THRESHOLD

if TYPE_CHECKING:
    import polars as pl


def summarise(
    rows: pl.DataFrame,
    checkpoint: str = "last",
    evaluation: str = "as trained",
    threshold: float = THRESHOLD,
) -> pl.DataFrame:
    """`run, seen, unseen, reach, beyond`: mean accuracies over lengths, and what `reach` says of each run.

    `reach` is null where the seen lengths were not learned; `beyond` says that the longest tested length still holds.
    """
    import polars as pl

    tested = pl.col("split").str.starts_with("test_") | (pl.col("split") == "validation")
    kept = rows.filter((pl.col("checkpoint") == checkpoint) & (pl.col("evaluation") == evaluation) & tested)
    chance = pl.when(pl.col("chance") > FROM_CHANCE).then(pl.col("chance")).otherwise(0.0)
    cells = (
        kept.group_by("run", "length", "seen", "split")
        .agg(pl.col("examples").sum(), pl.col("correct").sum(), pl.col("chance").max())
        .filter(~(pl.col("seen") & (pl.col("examples") < EXHAUSTED)) & (pl.col("examples") > 0))
        .with_columns((pl.col("correct") / pl.col("examples")).alias("accuracy"), chance.alias("chance"))
        .with_columns(
            (pl.col("accuracy") - pl.col("chance") >= threshold * (1 - pl.col("chance")) - 1e-9).alias("holds")
        )
        .sort("run", "length")
        .with_columns(pl.col("holds").cum_min().over("run").alias("reached"))
    )
    return (
        cells.group_by("run", maintain_order=True)
        .agg(
            pl.col("accuracy").filter(pl.col("seen")).mean().alias("seen"),
            pl.col("accuracy").filter(pl.col("split") == "test_unseen").mean().alias("unseen"),
            pl.when((pl.col("seen") & ~pl.col("reached")).any())
            .then(None)
            .otherwise(pl.col("length").filter(pl.col("reached")).max())
            .alias("reach"),
            pl.col("reached").all().alias("beyond"),
        )
        .sort("run")
    )
