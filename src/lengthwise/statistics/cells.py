"""The seeds of one cell (task, encoding, length): their median with its order-statistic interval.

The interval from the k-th smallest to the k-th largest of n seeds contains the true median unless fewer than k of the n
fall on one side of it: level 1 − 2 P(Binomial(n, ½) < k), exact for any distribution, also for bimodal ones, where
means and t intervals mislead. It covers other seeds on the same test set; `noise` is the test set's contribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from lengthwise.statistics.estimate import NO_SEEDS, Estimate
from lengthwise.statistics.reach import Reach

if TYPE_CHECKING:
    import polars as pl

LEVEL = 0.9375
"""The level of min–max with five seeds; with more seeds, the interval narrows as long as it keeps this level."""
MEDIAN = "median seed, order-statistic interval"
MEAN = "mean over seeds"
NOISE = "binomial standard error of the test set"


@lru_cache(maxsize=1024)
def median_interval_rank(n: int) -> tuple[int, float]:
    """Return (k, level) of the narrowest k-th smallest to k-th largest interval of at least 93.75 %, else of min–max.

    e.g. 3 seeds (1, .75), 5 seeds (1, .9375), 8 seeds (1, .992), 9 seeds (2, .961), 10 seeds (2, .979), 12 (3, .961).
    """
    if n < 2:
        raise ValueError("an interval needs at least two seeds")

    def level(k: int) -> float:
        return 1 - 2 * sum(math.comb(n, j) for j in range(k)) / 2**n

    k = 1
    while k < n // 2 and level(k + 1) >= LEVEL:
        k += 1
    return k, level(k)


@dataclass(frozen=True)
class Cell:
    """The seeds of one cell: every value, the median with its interval, the mean and the test set's noise."""

    seeds: tuple[float, ...]
    """The values of all seeds that have one, smallest first."""
    missing: int
    """The number of planned seeds without a value."""
    median: Estimate
    mean: Estimate
    """The mean over seeds, without an interval."""
    noise: Estimate
    """The standard error due to the finite test set, at most √(p(1 − p)/m)."""
    diverged: tuple[int, ...] = ()
    """The steps at which other seeds diverged; these rank below every seed with a value, and are in no mean."""

    @property
    def warning(self) -> str:
        """Which seeds diverged and are in no mean, e.g. `2 of 3 seeds; 1 diverged at step 430`; empty if none did."""
        return _warning(len(self.seeds), self.diverged)


def _warning(there: int, diverged: Sequence[int]) -> str:
    if not diverged:
        return ""
    steps = ", ".join(f"{step:,}" for step in sorted(diverged))
    return f"{there} of {there + len(diverged)} seeds; {len(diverged)} diverged at step {steps}"


def summarize_seeds(
    seed_values: Iterable[float | None],
    examples: int | None = None,
    measure: str = "accuracy",
    diverged_steps: Sequence[int] = (),
) -> Cell:
    """Return the cell of these seeds; None is a missing seed, `diverged_steps` those at which other seeds diverged.

    `summarize_seeds([.2, .9, .8])` has the median .8 from .2 to .9 at 75 %, and with 100 examples the noise
    √(.63 × .37 / 100) = .048, at the mean.
    """
    given = list(seed_values)
    there = tuple(sorted(float(one) for one in given if one is not None))
    median = median_seed(there, measure, diverged_steps)
    n = len(there)
    mean = None if not there else math.fsum(there) / n
    noise = None
    if mean is not None and examples:
        noise = math.sqrt(max(mean * (1 - mean), 0.0) / examples)
    return Cell(
        there,
        len(given) - n,
        median,
        Estimate(mean, None, None, None, n, "seeds", MEAN, "no interval: the seeds may have two humps", measure),
        Estimate(noise, None, None, None, examples or 0, "examples", NOISE, "noise of the test set", measure),
        tuple(sorted(diverged_steps)),
    )


def median_seed(
    seed_values: Sequence[float], measure: str = "accuracy", diverged_steps: Sequence[int] = ()
) -> Estimate:
    """Return the median with its interval: `median_seed([.1, .5, .6, .7, .9])` is .6 from .1 to .9; one seed has none.

    Diverged seeds rank below all others. If one of them is the median, there is no value. If any seed diverged, there
    is no interval, and `words` says so.
    """
    ordered: list[float | None] = [*([None] * len(diverged_steps)), *sorted(seed_values)]
    n = len(ordered)
    if n == 0:
        return Estimate(None, None, None, None, 0, "seeds", MEDIAN, "no seed", measure)
    below, above = ordered[(n - 1) // 2], ordered[n // 2]
    middle = None if below is None or above is None else (below + above) / 2
    if diverged_steps:
        return Estimate(
            middle, None, None, None, n, "seeds", MEDIAN, _warning(len(seed_values), diverged_steps), measure
        )
    if n == 1:
        return Estimate(middle, None, None, None, 1, "seed", MEDIAN, NO_SEEDS, measure)
    k, level = median_interval_rank(n)
    words = "median seed on this test set; " + ("smallest to largest" if k == 1 else f"{_th(k)} from each end")
    return Estimate(middle, ordered[k - 1], ordered[n - k], level, n, "seeds", MEDIAN, words, measure)


def accuracy_cells(accuracy_table: pl.DataFrame, run_labels: pl.DataFrame | None = None) -> list[dict[str, object]]:
    """Return every cell of an accuracy table: `task, encoding, split, seen, length, examples, chance` and `cell`.

    `accuracy_table` is from `lengthwise.statistics.table`; with labels, seeds without rows count as missing.
    """
    import polars as pl

    keys = ["task", "encoding", "split", "seen", "length"]
    grouped = accuracy_table.group_by(keys).agg(pl.col("accuracy"), pl.col("examples").max(), pl.col("chance").max())
    counted = [] if run_labels is None else run_labels.group_by("task", "encoding").len().iter_rows()
    planned = {(task, encoding): many for task, encoding, many in counted}
    found = []
    for line in grouped.sort("task", "encoding", "split", "length").iter_rows(named=True):
        lacking = [None] * (planned.get((line["task"], line["encoding"]), 0) - len(line["accuracy"]))
        one = summarize_seeds([*line["accuracy"], *lacking], line["examples"])
        found.append({key: line[key] for key in (*keys, "examples", "chance")} | {"cell": one})
    return found


def score_cells(scores: pl.DataFrame, measure: str = "unseen") -> dict[tuple[str, str], Cell]:
    """Return (task, encoding) → the cell of one measure of `score_table`, with counts of missing and diverged seeds."""
    import polars as pl

    found = {}
    known = f"noise_{measure}" in scores.columns
    noise = (pl.col(f"noise_{measure}").mean().sqrt() if known else pl.lit(None, pl.Float64)).alias("noise")
    many = pl.col("examples").max() if "examples" in scores.columns else pl.lit(None, pl.Int64).alias("examples")
    steps = pl.col("diverged") if "diverged" in scores.columns else pl.lit(None, pl.Int64).alias("diverged")
    lost = steps.is_not_null()
    grouped = scores.sort("seed").group_by("task", "encoding")
    grouped = grouped.agg(pl.col(measure).filter(~lost), noise, many, steps.filter(lost).alias("lost"))
    for line in grouped.sort("task", "encoding").iter_rows(named=True):
        one = summarize_seeds(line[measure], measure=measure, diverged_steps=line["lost"])
        noise_now = replace(one.noise, value=line["noise"], n=line["examples"] or 0)
        found[line["task"], line["encoding"]] = replace(one, noise=noise_now)
    return found


# --- reach -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reaches:
    """The reach of a cell: median and order statistics only, since censored values such as `≥ 48` have no mean."""

    seeds: tuple[Reach, ...]
    """The reach of every seed, shortest first; seeds that did not learn the seen lengths come first."""
    median: Reach
    low: Reach | None
    high: Reach | None
    level: float | None
    words: str
    unit: str = "seeds"
    recipe: str = "median reach, order-statistic interval"

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.seeds)

    @property
    def learned_seed_count(self) -> int:
        """How many seeds learned the seen lengths."""
        return sum(one.length is not None for one in self.seeds)

    def __str__(self) -> str:
        if self.low is None or self.high is None or self.level is None:
            return f"{self.median} ({self.words})"
        return f"{self.median} [{self.low}, {self.high}] ({100 * self.level:.4g} %; n = {self.n} seeds)"


def summarize_reaches(
    run_reaches: Iterable[Reach],
    low_reaches: Sequence[Reach] | None = None,
    high_reaches: Sequence[Reach] | None = None,
) -> Reaches:
    """Return median and interval of censored reaches: 20, 24 and ≥ 48 have the median 24, from 20 to ≥ 48, at 75 %.

    For an even number of seeds the median is the lower of the middle two, so that it is a tested length. If a seed is
    only known to reach at least x, then all later order statistics are lower bounds too. `low_reaches` and
    `high_reaches` are what each run may reach on another test set: the ends of the interval are of these.
    """
    ordered = _ordered(run_reaches)
    n = len(ordered)
    if n == 0:
        return Reaches((), Reach(None), None, None, None, "no seed")
    median = _order_statistic(ordered, (n + 1) // 2)
    if n == 1:
        return Reaches(tuple(ordered), median, None, None, None, NO_SEEDS)
    k, level = median_interval_rank(n)
    low = _order_statistic(ordered if low_reaches is None else _ordered(low_reaches), k)
    high = _order_statistic(ordered if high_reaches is None else _ordered(high_reaches), n + 1 - k)
    words = "median seed on this test set" if low_reaches is None else "median seed, on other test sets too"
    return Reaches(tuple(ordered), median, low, high, level, words)


def _ordered(reaches: Iterable[Reach]) -> list[Reach]:
    return sorted(reaches, key=lambda one: (-1 if one.length is None else one.length, one.beyond))


def _order_statistic(ordered: Sequence[Reach], k: int) -> Reach:
    one = ordered[k - 1]
    return replace(one, beyond=one.length is not None and any(other.beyond for other in ordered[:k]))


def reach_cells(run_score_rows: pl.DataFrame, run_labels: pl.DataFrame) -> Mapping[tuple[str, str], Reaches]:
    """Return (task, encoding) → its reaches, from `run_scores(rows, threshold=...)` and labels.

    Runs without rows are left out, except diverged ones (`run_labels` has the step), which count as not learned.
    """
    joined = run_score_rows.join(run_labels.select("run", "task", "encoding", "seed"), on="run", how="inner")
    found: dict[tuple[str, str], list[tuple[Reach, Reach, Reach]]] = {}
    for line in joined.sort("task", "encoding", "seed").iter_rows(named=True):
        own = [
            Reach(line[f"reach{end}"], bool(line[f"beyond{end}"]) and line[f"reach{end}"] is not None)
            for end in ("", "_low", "_high")
        ]
        found.setdefault((line["task"], line["encoding"]), []).append((own[0], own[1], own[2]))
    lost = (
        run_labels.filter(run_labels["diverged"].is_not_null())
        if "diverged" in run_labels.columns
        else run_labels.clear()
    )
    for line in lost.iter_rows(named=True):
        none = Reach(None, diverged=line["diverged"])
        found.setdefault((line["task"], line["encoding"]), []).append((none, none, none))
    return {key: summarize_reaches(*map(list, zip(*own, strict=True))) for key, own in sorted(found.items())}


def _th(k: int) -> str:
    return {2: "second", 3: "third"}.get(k, f"{k}th")
