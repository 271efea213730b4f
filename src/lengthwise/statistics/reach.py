"""Reach: the largest tested length up to which accuracy holds, there and at every shorter tested length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError
from lengthwise.statistics.learned import FROM_CHANCE, counts_by_length, learned_runs, scored_rows_filter

if TYPE_CHECKING:
    import polars as pl

THRESHOLD = 0.9
TEST_LEVEL = 0.05
"""The level of the tests whether accuracy at a length lies above or below the threshold."""
WORDS = (
    "reach: the largest tested length up to which at least .9 are right (counted from chance where chance exceeds .1), "
    "there and at every shorter unseen length; not learned where the seen lengths are not"
)


@dataclass(frozen=True)
class Reach:
    """The reach of a run: `length` is None if the seen lengths were not learned."""

    length: int | None
    beyond: bool = False
    """Whether accuracy still holds at the longest tested length, so that the reach is at least `length`."""
    diverged: int | None = None
    """The step at which training diverged; such a run has learned nothing."""

    def __str__(self) -> str:
        if self.diverged is not None:
            return "diverged"
        return "not learned" if self.length is None else f"≥ {self.length}" if self.beyond else str(self.length)


def reach(rows: pl.DataFrame, threshold: float = THRESHOLD) -> Reach:
    """Return the reach from the rows of one run, e.g. 24 if all unseen lengths to 24 hold but not 25.

    Of several checkpoints and evaluations it is that of the last weights, evaluated as trained.

    >>> import lengthwise as lw
    >>> print(reach(lw.load_run("copy-rope-s0").rows()))
    """
    import polars as pl

    for name, wanted in (("checkpoint", "last"), ("evaluation", "as trained")):
        if name in rows.columns and rows[name].n_unique() > 1:
            rows = rows.filter(pl.col(name) == wanted)
    if "run" in rows.columns and rows["run"].n_unique() > 1:
        raise SpecError(f"reach takes the rows of one run, and these are of {rows['run'].n_unique()}")
    tested = rows.filter(pl.col("split") != "train").with_columns(pl.lit("").alias("run"))
    (line,) = _reaches(counts_by_length(tested), threshold).to_dicts()
    return Reach(line["reach"], bool(line["beyond"]) and line["reach"] is not None)


def run_scores(
    rows: pl.DataFrame,
    checkpoint: str = "last",
    evaluation: str = "as trained",
    threshold: float = THRESHOLD,
) -> pl.DataFrame:
    """Return a line per run: `run, seen, unseen, learned, weak, reach, beyond, ...`; a million rows take a second.

    `seen` and `unseen` are mean accuracies over lengths; `reach` is null if the seen lengths were not learned; `beyond`
    says that accuracy still holds at the longest tested length. `reach_low` and `reach_high` (with `beyond_low` and
    `beyond_high`) are what another test set may give: up to which length accuracy is significantly above the threshold
    everywhere, and up to which it is nowhere significantly below, by one-sided exact binomial tests at .05.
    """
    return _reaches(counts_by_length(rows.filter(scored_rows_filter(checkpoint, evaluation))), threshold)


def _reaches(lengths: pl.DataFrame, threshold: float) -> pl.DataFrame:
    import polars as pl
    from scipy.special import bdtr, bdtrc

    learned = pl.col("learned").fill_null(True)  # assume learned if no seen length was tested
    chance = (lengths["chance"] * (lengths["chance"] > FROM_CHANCE) * (lengths["chance"] < 1)).fill_null(0).to_numpy()
    bound, right, many = (
        chance + threshold * (1 - chance),
        lengths["correct"].to_numpy(),
        lengths["examples"].to_numpy(),
    )
    holds = {
        "reached": pl.col("score") >= threshold - 1e-9,
        "surely": pl.Series(bdtrc(right - 1, many, bound) <= TEST_LEVEL) & (lengths["score"] >= threshold - 1e-9),
        "perhaps": pl.Series(bdtr(right, many, bound) > TEST_LEVEL) | (lengths["score"] >= threshold - 1e-9),
    }
    lengths = lengths.with_columns(mask.alias(name) for name, mask in holds.items())
    ends = {"reach": "reached", "reach_low": "surely", "reach_high": "perhaps"}
    return (
        lengths.join(learned_runs(lengths), on="run", how="left", maintain_order="left")
        .with_columns((pl.col(name) | (pl.col("seen") & learned)).alias(name) for name in holds)
        .with_columns(pl.col(name).cum_min().over("run") for name in holds)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("accuracy").filter(pl.col("seen")).mean().alias("seen"),
            pl.col("accuracy").filter(pl.col("split") == "test_unseen").mean().alias("unseen"),
            pl.col("learned").first(),
            pl.col("weak").first(),
            *(
                pl.when(learned.first()).then(pl.col("length").filter(name).max()).alias(end)
                for end, name in ends.items()
            ),
            *(pl.col(name).all().alias(end.replace("reach", "beyond")) for end, name in ends.items()),
        )
        .sort("run")
    )
