"""The estimates that decide claims with the measure `analysis`: of attention and of scratchpads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.evaluation.rows import frame_from_parquet
from lengthwise.reporting.claims import FLOOR, Claim, StudyResults
from lengthwise.reporting.divergences import divergence_by_seed_pair, mean_over_lengths, tasks_of
from lengthwise.spec import Spec
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.pairs import difference_over_pairs

if TYPE_CHECKING:
    import polars as pl

FAR, NEAR = 0.875, 0.125
"""A key is far if it lies at least this share of the way back to the first token, and near if less than the second."""


def scratchpad_estimates(results: StudyResults, claims: Sequence[Claim]) -> dict[str, list[tuple[str, Estimate]]]:
    """Return the estimates of C5 and C5-others: accuracy at unseen lengths with a full scratchpad minus with none.

    A claim whose tasks are at the floor has an empty list; one without two seeds of both is left out.
    """
    import polars as pl

    values: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    above: dict[tuple[str, str, str], list[float]] = {}
    scores = results.numbers.scores.select(
        *("task", "encoding", "seed", "unseen"), pl.coalesce("corrected", "unseen").alias("above")
    )
    for task, name, seed, value, beyond in scores.iter_rows():
        pad = str(dict(Spec.of(task).options).get("scratchpad", "none"))
        if value is not None:
            values.setdefault((Spec.of(task).name, pad, name), {})[seed, seed] = value
            above.setdefault((Spec.of(task).name, pad, name), []).append(beyond)
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for claim in claims:
        if claim.id not in {"C5", "C5-others"} or not isinstance(claim.tasks, list):
            continue
        sides = [
            (f"{task}: {name}, full − none", values.get((task, "full", name), {}), values.get((task, "none", name), {}))
            for task in claim.tasks
            for name in claim.encodings
        ]
        if not all(len(set(full) & set(none)) > 1 for _, full, none in sides):
            continue
        cells = [own for (task, _, name), own in above.items() if task in claim.tasks and name in claim.encodings]
        found[claim.id] = []
        if max(sum(own) / len(own) for own in cells) > FLOOR:
            found[claim.id] = [(told, difference_over_pairs(full, none, "unseen")) for told, full, none in sides]
    return found


def attention_estimates(folder: Path, claims: Sequence[Claim]) -> dict[str, list[tuple[str, Estimate]]]:
    """Return the estimates of C4, C6 and C6-alibi, on each of their tasks that was analyzed."""
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for claim in claims:
        if claim.id == "C4" and (folder / "divergence.parquet").exists():
            found[claim.id] = _divergences(folder / "divergence.parquet", claim)
        elif claim.id in {"C6", "C6-alibi"} and (folder / "distances.parquet").exists():
            found[claim.id] = _shares(folder / "distances.parquet", claim)
    return {name: made for name, made in found.items() if made}


def _divergences(path: Path, claim: Claim) -> list[tuple[str, Estimate]]:
    """Differences of the true divergence from NoPE, heads matched, at seen lengths, over pairs of different seeds."""
    rows = mean_over_lengths(frame_from_parquet(path.read_bytes(), str(path)).to_dicts(), seen_only=True)
    measure, found = "true matching", []
    for task in filter(claim.about, tasks_of(rows)):
        for one, other in claim.pairs:
            first, second = (divergence_by_seed_pair(rows, task, "record", name, measure) for name in (one, other))
            found.append((f"{task}: {one} − {other}", difference_over_pairs(first, second, measure)))
    return found


def _shares(path: Path, claim: Claim) -> list[tuple[str, Estimate]]:
    """Differences of the share of queries whose largest weight is far (C6) or near (C6-alibi), paired by seed."""
    table = frame_from_parquet(path.read_bytes(), str(path)).filter("trained")
    wanted = table["distance"] < NEAR - 1e-9 if claim.id == "C6-alibi" else table["distance"] >= FAR - 1e-9
    keys = ("task", "encoding", "seed")
    whole, part = (_sums(frame, keys) for frame in (table, table.filter(wanted)))
    share = {key: part.get(key, 0.0) / count for key, count in whole.items() if count}
    found = []
    for task in filter(claim.about, sorted({task for task, _, _ in share})):
        for one, other in claim.pairs:
            first, second = (
                {(seed, seed): value for (where, name, seed), value in share.items() if (where, name) == (task, side)}
                for side in (one, other)
            )
            found.append((f"{task}: {one} − {other}", difference_over_pairs(first, second, "share")))
    return found


def _sums(table: pl.DataFrame, keys: Sequence[str]) -> Mapping[tuple[str, str, int], float]:
    import polars as pl

    counted = table.group_by(*keys).agg(pl.col("argmax").sum())
    return {(task, name, seed): total for task, name, seed, total in counted.iter_rows()}
