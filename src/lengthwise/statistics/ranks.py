"""Ranks: mean reciprocal rank by our recipe and by the paper's, mean rank, win matrix, interquartile mean.

A query is a (task, seed); in each, encodings are ranked by their accuracy at unseen lengths. Ours: scores are rounded
to .005, those not above chance are set to chance, and encodings that tie share the mean of the reciprocal ranks they
take together, so that the five of a query always add up to 1 + 1/2 + 1/3 + 1/4 + 1/5 = 2.2833.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.statistics.aggregates import Aggregate, Difference, encoding_differences, mean_scores_over_tasks
from lengthwise.statistics.estimate import Estimate

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

STEP = 0.005
"""Scores are rounded to this step, so that close scores tie."""
ABOVE = 0.01
"""A score is above chance if guessing gets at least as many right with at most this probability."""
FIVE = {"NoPE": "nope", "T5": "t5", "ALiBi": "alibi", "Rotary": "rope", "APE": "sinusoidal"}
"""The five published encodings by the paper's names, for heads of 16.

The paper's Rotary turns 16 of 64 coordinates of a head; `rope` in heads of 16 has the same eight frequencies, and a
quarter of 16 would have only two.
"""
QUARTER = {**FIVE, "Rotary": "rope:fraction=0.25"}
"""The same five with Rotary on a quarter of each head: the published one in heads of 64."""
DIVERGED = -1.0
"""The score that ranks a diverged run below all others."""
ROW_ORDER = ("Rotary", "ALiBi", "T5", "APE", "NoPE")
"""The paper's row order, which breaks its ties."""
OURS = "MRR: unseen mean rounded to .005, not above chance is chance, ties share"
PAPERS = "MRR of the original: all examples of unseen lengths together, ties by row order"


@dataclass(frozen=True)
class TaskSeedScores:
    """Scores of the encodings in every query for which all of them have a score, sorted."""

    encodings: tuple[str, ...]
    queries: tuple[tuple[str, int], ...]
    """(task, seed)."""
    scores_QE: NDArray[np.float64]
    dropped: tuple[tuple[str, int], ...]
    """Queries left out because an encoding has no score."""


def task_seed_scores(
    scores: pl.DataFrame, encodings: Iterable[str] | None = None, measure: str = "unseen", unrounded: bool = False
) -> TaskSeedScores:
    """Return the queries of these encodings by our recipe: scores are rounded, and set to chance if not above it.

    `scores` is from `table.score_table`; without its columns `examples, correct, chance` nothing is set to chance.
    `unrounded` keeps scores as they are. A diverged run ranks last; a missing run drops its query.
    """
    counted = [name for name in ("examples", "correct", "chance") if name in scores.columns and not unrounded]
    lost = ["diverged"] if "diverged" in scores.columns else []
    needed = ["task", "encoding", "seed", measure, *counted, *lost]
    names = tuple(sorted(set(scores["encoding"].to_list()) if encodings is None else set(encodings)))
    there: dict[tuple[str, int], dict[str, float]] = {}
    for line in scores.select(needed).iter_rows(named=True):
        own = there.setdefault((line["task"], line["seed"]), {})
        if line["encoding"] in own:
            raise SpecError(f"{line['task']}, {line['encoding']}, seed {line['seed']} has more than one score")
        if line["encoding"] not in names:
            continue
        if line.get("diverged") is not None:
            own[line["encoding"]] = DIVERGED
        elif line[measure] is not None:
            own[line["encoding"]] = line[measure] if unrounded else _told(line, measure)
    whole = sorted(key for key, own in there.items() if len(own) == len(names))
    table = np.array([[there[key][name] for name in names] for key in whole], dtype=np.float64)
    return TaskSeedScores(
        names, tuple(whole), table.reshape(len(whole), len(names)), tuple(sorted(set(there) - set(whole)))
    )


def above_chance(correct: int, examples: int, chance: float) -> bool:
    """Return whether guessing gets this many right with probability at most 1 %: 148 of 256 coin flips, but not 147."""
    from scipy.special import bdtrc

    if correct == 0:
        return False
    return chance <= 0 or bool(bdtrc(correct - 1, examples, min(chance, 1.0)) <= ABOVE)


def round_score(score: float) -> float:
    """Round the score to steps of .005, halves up: .0024 becomes 0, .0025 becomes .005."""
    return math.floor(round(score / STEP, 6) + 0.5) * STEP  # the inner round removes rounding errors of sums


def _told(line: Mapping[str, float], measure: str) -> float:
    """Return a score by our recipe; it is set to chance only if chance is known."""
    chance, score = line.get("chance"), line[measure]
    if chance is not None and not above_chance(int(line["correct"]), int(line["examples"]), chance):
        score = chance
    return round_score(score)


def rank_encodings(
    scores_QE: NDArray[np.float64], tie_rule: str = "share"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rank and reciprocal rank of each encoding in each query; the highest score has rank 1.

    `share`: tied encodings get the mean of the ranks, and of the reciprocal ranks, that they occupy: .9, .5, .5 have
    the ranks 1, 2.5, 2.5 and the reciprocals 1, .417, .417. `first`: the earlier column wins a tie.
    """
    many = scores_QE.shape[1]
    order_QE = np.argsort(-scores_QE, axis=1, kind="stable")
    place_QE = np.empty_like(order_QE)
    np.put_along_axis(place_QE, order_QE, np.arange(1, many + 1)[None, :], axis=1)
    alone_QE = place_QE.astype(np.float64)
    if tie_rule == "first":
        return alone_QE, 1 / alone_QE
    same_QEE = scores_QE[:, :, None] == scores_QE[:, None, :]
    tied_QE = same_QEE.sum(axis=2)
    rank_QE = (same_QEE * alone_QE[:, None, :]).sum(axis=2) / tied_QE
    reciprocal_QE = (same_QEE / alone_QE[:, None, :]).sum(axis=2) / tied_QE
    return rank_QE, reciprocal_QE


# --- the mean reciprocal rank ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MRR:
    """Mean reciprocal ranks of the five published encodings."""

    recipe: str
    rotary: str
    """Which encoding is used as Rotary."""
    means: Mapping[str, Aggregate]
    """NoPE, T5, ALiBi, Rotary, APE → mean over tasks, with both intervals; empty if one of the five is missing."""
    differences: tuple[Difference, ...]
    queries: int
    dropped: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    """Encodings of the five that the study does not have."""

    @property
    def values(self) -> dict[str, float]:
        """Name → mean reciprocal rank."""
        return {name: one.value for name, one in self.means.items() if one.value is not None}


def mean_reciprocal_ranks(scores: pl.DataFrame, published_to_encoding: Mapping[str, str] = FIVE) -> MRR:
    """Return mean reciprocal ranks by our recipe, over exactly five encodings: `FIVE` or `QUARTER`."""
    return _mrr(scores, published_to_encoding, OURS, "unseen", "share")


def paper_mean_reciprocal_ranks(
    scores: pl.DataFrame, published_to_encoding: Mapping[str, str] = FIVE, measure: str = "micro"
) -> MRR:
    """Return mean reciprocal ranks by the paper's recipe: ties go to the first of Rotary, ALiBi, T5, APE, NoPE."""
    return _mrr(scores, published_to_encoding, PAPERS, measure, "first")


def _mrr(scores: pl.DataFrame, five: Mapping[str, str], recipe: str, measure: str, ties: str) -> MRR:
    import polars as pl

    if set(five) != set(ROW_ORDER):
        raise SpecError(f"the five are {', '.join(FIVE)}; not {', '.join(five)}")
    there = set(scores["encoding"].to_list())
    missing = tuple(five[name] for name in FIVE if five[name] not in there)
    if missing:
        return MRR(recipe, five["Rotary"], {}, (), 0, (), missing)
    asked = task_seed_scores(scores, five.values(), measure, unrounded=ties == "first")
    columns = [asked.encodings.index(five[name]) for name in ROW_ORDER]
    _, reciprocal_QE = rank_encodings(asked.scores_QE[:, columns], ties)
    lines = [
        {"task": task, "seed": seed, "encoding": name, "mrr": float(value)}
        for (task, seed), own in zip(asked.queries, reciprocal_QE, strict=True)
        for name, value in zip(ROW_ORDER, own, strict=True)
    ]
    if not lines:
        return MRR(recipe, five["Rotary"], {}, (), 0, asked.dropped, ())
    schema = {"task": pl.String, "seed": pl.Int64, "encoding": pl.String, "mrr": pl.Float64}
    table = pl.DataFrame(lines, schema=schema)
    found = mean_scores_over_tasks(table, "mrr")
    means = {name: found[name] for name in FIVE}
    return MRR(
        recipe, five["Rotary"], means, tuple(encoding_differences(table, "mrr")), len(asked.queries), asked.dropped, ()
    )


# --- all encodings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankStatistics:
    """The ranking of all encodings of a study over its queries."""

    encodings: tuple[str, ...]
    """Sorted by mean rank, then by name."""
    mean_rank: Mapping[str, Estimate]
    counts: Mapping[str, Mapping[float, int]]
    """Encoding → rank → in how many queries."""
    wins: Mapping[tuple[str, str], float]
    """(one, other) → the share of queries in which `one` is strictly ahead; the rest are ties or losses."""
    interquartile: Mapping[str, Estimate]
    queries: int
    dropped: tuple[tuple[str, int], ...]


def rank_statistics(scores: pl.DataFrame, encodings: Iterable[str] | None = None) -> RankStatistics:
    """Return mean ranks (ties share), win matrix and interquartile means of all encodings, by our recipe."""
    import polars as pl

    asked = task_seed_scores(scores, encodings)
    n, unit = len(asked.queries), "(task, seed) queries"
    if n == 0:
        return RankStatistics(asked.encodings, {}, {}, {}, {}, 0, asked.dropped)
    rank_QE, _ = rank_encodings(asked.scores_QE)
    lines = [
        {"task": task, "seed": seed, "encoding": name, "rank": float(rank_QE[q, e])}
        for q, (task, seed) in enumerate(asked.queries)
        for e, name in enumerate(asked.encodings)
    ]
    means = {name: one.seeds for name, one in mean_scores_over_tasks(pl.DataFrame(lines), "rank").items()}
    ordered = sorted(asked.encodings, key=lambda name: (round(means[name].value or 0.0, 12), name))
    column = {name: asked.scores_QE[:, e] for e, name in enumerate(asked.encodings)}
    there = {name: own[own != DIVERGED] for name, own in column.items()}
    counts = {}
    for e, name in enumerate(asked.encodings):
        values, many = np.unique(rank_QE[:, e], return_counts=True)
        counts[name] = dict(zip(values.tolist(), many.tolist(), strict=True))
    words = "no interval: a trimmed mean of (task, seed) scores"
    return RankStatistics(
        tuple(ordered),
        means,
        counts,
        {(a, b): float((column[a] > column[b]).mean()) for a in ordered for b in ordered if a != b},
        {
            name: Estimate(
                interquartile_mean(there[name]), None, None, None, n, unit, "interquartile mean", words, "unseen"
            )
            for name in ordered
            if len(there[name])
        },
        n,
        asked.dropped,
    )


def interquartile_mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the mean after cutting a quarter of the values, rounded down, at each end: of 0, .4, .6, 1 it is .5."""
    ordered = sorted(float(value) for value in values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return math.fsum(kept) / len(kept)
