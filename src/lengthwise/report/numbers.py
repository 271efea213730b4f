"""The numbers of a report, each computed once: scores, cells, reaches, means over tasks, pairs, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.report.findings import Findings, labelled
from lengthwise.statistics.aggregates import Aggregate, Difference, aggregates, differences
from lengthwise.statistics.cells import Cell, Reaches, reach_cells, score_cells
from lengthwise.statistics.outcomes import Outcomes, outcomes
from lengthwise.statistics.ranks import FULL, MRR, QUARTER, Standing, mrr, paper_mrr, standing
from lengthwise.statistics.sensitivity import Variant, saturated, sensitivity
from lengthwise.statistics.summary import summarise
from lengthwise.statistics.table import learned_by_all, scores

if TYPE_CHECKING:
    import polars as pl

PAIRS = 12
"""Beyond so many encodings not every pair is compared: the leader with each other."""


@dataclass(frozen=True)
class Numbers:
    """All that is printed of a study."""

    named: pl.DataFrame
    scores: pl.DataFrame
    cells: Mapping[tuple[str, str], Cell]
    """(task, encoding) → unseen accuracy of the seeds."""
    seen: Mapping[tuple[str, str], Cell]
    reach: Mapping[tuple[str, str], Reaches]
    halfway: Mapping[tuple[str, str], Reaches]
    """Reach at the threshold .5."""
    means: Mapping[str, Aggregate]
    differences: list[Difference]
    mrr: dict[str, MRR]
    """Recipe and kind of Rotary → mean reciprocal ranks, where the five are there."""
    standing: Standing
    variants: list[Variant]
    learned: list[str]
    """Tasks that every encoding learned."""
    flat: Mapping[str, str]
    """Tasks that tell no encoding from another: at ceiling or floor for everybody."""


def numbers(found: Findings) -> Numbers:
    """Compute them all."""
    import polars as pl

    shown = pl.col("task").is_in(found.tasks) & pl.col("encoding").is_in(found.encodings)
    named = labelled(found.wanted or found.items).filter(shown)
    table = scores(found.rows, named)
    each = _outcomes(found)
    names = found.encodings
    means = aggregates(table, "unseen", names, each)
    pairs = None
    if len(names) > PAIRS:
        lead = max(names, key=lambda name: means[name].value or 0.0)
        pairs = [(lead, name) for name in names if name != lead]
    five: dict[str, MRR] = {}
    for words, kind in (("a quarter of each head, as published", _quarter(names)), ("full", FULL)):
        if kind is not None and set(kind.values()) <= set(names):
            five[f"ours, Rotary: {words}"] = mrr(table, kind)
            five[f"the paper's recipe, Rotary: {words}"] = paper_mrr(table, kind)
    lines, half = summarise(found.rows), summarise(found.rows, threshold=0.5)
    first = pl.col("checkpoint") == "last"
    return Numbers(
        named=named,
        scores=table,
        cells=score_cells(table, "unseen"),
        seen=score_cells(table, "seen"),
        reach=reach_cells(lines, named),
        halfway=reach_cells(half, named),
        means=means,
        differences=differences(table, "unseen", names, each, pairs) if len(names) > 1 else [],
        mrr=five,
        standing=standing(table, names),
        variants=sensitivity(found.rows, named)
        if len(found.tasks) <= 40
        else sensitivity(found.rows.filter(first), named),
        learned=learned_by_all(table),
        flat=saturated(table),
    )


def _quarter(names: list[str]) -> dict[str, str] | None:
    """The published five, whichever way the quarter's pairs lie."""
    for rotary in ("rope:fraction=0.25", "rope:fraction=0.25:interleaved=true"):
        if rotary in names:
            return {**QUARTER, "Rotary": rotary}
    return None


def _outcomes(found: Findings) -> Outcomes | None:
    """Each example's outcome, where the runs' own answers were read."""
    import polars as pl

    if found.kinds is None or found.kinds["run"].n_unique() < len(found.items):
        return None
    whole = found.kinds.with_columns(pl.lit("last").alias("checkpoint"), pl.lit("as trained").alias("evaluation"))
    return outcomes(whole)
