"""Reach: the largest tested length up to which a model is right, there and at every shorter tested length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

THRESHOLD = 0.9
FROM_CHANCE = 0.1
"""Where guessing gets more than this, accuracy is counted from chance: 0 at chance, 1 where all is right."""
EXHAUSTED = 8
"""A seen length with fewer examples than this does not count."""


@dataclass(frozen=True)
class Reach:
    """How far a run reaches: `length` is None where the seen lengths were not learned."""

    length: int | None
    beyond: bool = False
    """The longest tested length still holds: the reach is at least `length`."""

    def __str__(self) -> str:
        return "not learned" if self.length is None else f"≥ {self.length}" if self.beyond else str(self.length)


def accuracies(rows: pl.DataFrame) -> pl.DataFrame:
    """Accuracy at each length of one run's one checkpoint: `length, seen, split, examples, accuracy, chance`."""
    import polars as pl

    return (
        rows.group_by("length", "seen", "split", maintain_order=True)
        .agg(pl.col("examples").sum(), pl.col("correct").sum(), pl.col("chance").max())
        .filter(~(pl.col("seen") & (pl.col("examples") < EXHAUSTED)) & (pl.col("examples") > 0))
        .with_columns((pl.col("correct") / pl.col("examples")).alias("accuracy"))
        .sort("length")
    )


def reach(rows: pl.DataFrame, threshold: float = THRESHOLD) -> Reach:
    """The reach of one run's one checkpoint, e.g. 24 where 24 and all below hold and 25 does not."""
    there = accuracies(rows).to_dicts()
    held: int | None = None
    for one in there:
        chance = one["chance"] if one["chance"] > FROM_CHANCE else 0.0
        if one["accuracy"] - chance < threshold * (1 - chance) - 1e-9:  # 19 of 20 is 0.9 from a chance of 0.5
            return Reach(None) if one["seen"] else Reach(held)
        held = one["length"]
    return Reach(held, beyond=held is not None)
