"""The numbers of a report, each computed once: scores, cells, reaches, means over tasks, pairs, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from lengthwise.reporting.findings import Findings, run_label_table
from lengthwise.statistics.aggregates import (
    Aggregate,
    Difference,
    TaskDifference,
    encoding_differences,
    mean_scores_over_tasks,
    task_difference,
)
from lengthwise.statistics.cells import Cell, Reaches, reach_cells, score_cells
from lengthwise.statistics.outcomes import Outcomes, read_outcomes
from lengthwise.statistics.ranks import (
    FIVE,
    MRR,
    QUARTER,
    RankStatistics,
    mean_reciprocal_ranks,
    paper_mean_reciprocal_ranks,
    rank_statistics,
)
from lengthwise.statistics.reach import run_scores
from lengthwise.statistics.sensitivity import AlternativeRanking, alternative_rankings, saturated_tasks
from lengthwise.statistics.table import learned_cells, score_table, tasks_learned_by_all, trained_cells
from lengthwise.training.health import Diverged, is_on_plateau, loss_spikes

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Trouble:
    """A run whose training went wrong, and how. Kind `spike`: it learned, but its loss jumped up on the way."""

    task: str
    encoding: str
    seed: int
    kind: Literal["diverged", "plateau", "spike", "not learned"]
    detail: str


@dataclass(frozen=True)
class Numbers:
    """All numbers of a study's report."""

    named: pl.DataFrame
    scores: pl.DataFrame
    cells: Mapping[tuple[str, str], Cell]
    """(task, encoding) → the seeds' accuracy at unseen lengths."""
    seen: Mapping[tuple[str, str], Cell]
    trained: Mapping[tuple[str, str], float]
    """(task, encoding) → the median run's accuracy on examples that it was trained on; older runs have none."""
    reach: Mapping[tuple[str, str], Reaches]
    halfway: Mapping[tuple[str, str], Reaches]
    """Reach at the threshold .5."""
    means: Mapping[str, Aggregate]
    differences: list[Difference]
    """The difference of every pair of encodings, over all tasks."""
    mrr: dict[str, MRR]
    """Recipe and kind of Rotary → mean reciprocal ranks, if the study has all five encodings."""
    rank_statistics: RankStatistics
    variants: list[AlternativeRanking]
    learned: list[str]
    """Tasks that every encoding learned."""
    flat: Mapping[str, str]
    """Tasks that do not separate encodings: at ceiling or floor for all of them."""
    weak: Mapping[str, list[int]]
    """Task → seen lengths with few test examples."""
    health: list[Trouble]

    def value(self, task: str, encoding: str) -> float | None:
        """Return the median seed's accuracy at unseen lengths."""
        return self.cells[task, encoding].median.value if (task, encoding) in self.cells else None

    @cached_property
    def learned_by(self) -> dict[tuple[str, str], bool | None]:
        """(task, encoding) → whether enough of its runs learned the seen lengths; None if none was run."""
        cells = learned_cells(self.scores).select("task", "encoding", "learned")
        return {(task, name): learned for task, name, learned in cells.iter_rows()}

    def encodings_best_first(self, findings: Findings) -> list[str]:
        """Return the encodings, best first: by the mean over tasks; on one task, learned ones first, by accuracy."""
        if len(findings.tasks) > 1:
            there = {name: one.value for name, one in self.means.items()}
            return sorted(findings.encodings, key=lambda name: _last(there.get(name)))
        (task,) = findings.tasks
        return sorted(
            findings.encodings, key=lambda name: (not self._reached(task, name), _last(self.value(task, name)))
        )

    def _reached(self, task: str, name: str) -> bool:
        return (task, name) in self.reach and self.reach[task, name].median.length is not None

    def pairwise_differences(self, findings: Findings) -> list[TaskDifference]:
        """Return the difference of every pair of encodings on the only task, the better encoding first."""
        (task,), encodings_best_first = findings.tasks, self.encodings_best_first(findings)
        listed = [
            (one, other)
            for number, one in enumerate(encodings_best_first)
            for other in encodings_best_first[number + 1 :]
        ]
        return [task_difference(self.scores, task, one, other) for one, other in listed]


def _last(value: float | None) -> float:
    return 1.0 if value is None else -value


def compute_numbers(findings: Findings) -> Numbers:
    """Compute all numbers of a report."""
    import polars as pl

    shown = pl.col("task").is_in(findings.tasks) & pl.col("encoding").is_in(findings.encodings)
    named = run_label_table(findings.wanted or findings.items, findings.diverged).filter(shown)
    table = score_table(findings.rows, named)
    each = _outcomes(findings)
    names = findings.encodings
    five: dict[str, MRR] = {}
    for words, kind in (("all of each head", FIVE), ("a quarter of each head", _quarter(names))):
        if kind is not None and set(kind.values()) <= set(names):
            five[f"ours, Rotary: {words}"] = mean_reciprocal_ranks(table, kind)
            five[f"the paper's recipe, Rotary: {words}"] = paper_mean_reciprocal_ranks(table, kind)
    lines, half = run_scores(findings.rows), run_scores(findings.rows, threshold=0.5)
    first = pl.col("checkpoint") == "last"
    weak = lines.join(named, on="run").explode("weak", empty_as_null=True, keep_nulls=True).drop_nulls("weak")
    return Numbers(
        named=named,
        scores=table,
        cells=score_cells(table, "unseen"),
        seen=score_cells(table, "seen"),
        trained=trained_cells(findings.rows, named),
        reach=reach_cells(lines, named),
        halfway=reach_cells(half, named),
        means=mean_scores_over_tasks(table, "unseen", names, each),
        differences=encoding_differences(table, "unseen", names, each) if len(names) > 1 else [],
        mrr=five,
        rank_statistics=rank_statistics(table, names),
        variants=alternative_rankings(findings.rows, named)
        if len(findings.tasks) <= 40
        else alternative_rankings(findings.rows.filter(first), named),
        learned=tasks_learned_by_all(table),
        flat=saturated_tasks(table),
        weak={task: sorted(own["weak"].unique()) for (task,), own in weak.partition_by("task", as_dict=True).items()},
        health=_health(findings, table),
    )


def _health(found: Findings, table: pl.DataFrame) -> list[Trouble]:
    """List the runs that diverged, stayed on a plateau or did not learn, and those that learned with loss spikes."""
    learned: dict[str, bool | None] = dict(table.select("run", "learned").iter_rows())
    told = []
    for item in found.ended_runs:
        where = (item.point.task, found.names[item.key], item.point.seed)
        if item.key in found.diverged:
            told.append(Trouble(*where, "diverged", str(Diverged.read(found.diverged[item.key]))))
            continue
        record = found.records.get(item.key, {})
        log = record.get("log") or []
        jumps = record.get("spikes", loss_spikes(log))
        steps = ", ".join(f"{step:,}" for step in jumps[:6]) + (", ..." if len(jumps) > 6 else "")
        spiked = f"the loss spiked at step {steps}" if jumps else ""
        if learned.get(item.key) is not False:
            if jumps:
                told.append(Trouble(*where, "spike", spiked))
            continue
        stuck = is_on_plateau(log)
        detail = "the loss never left its plateau" if stuck else "ended without having learned the seen lengths"
        detail += f" (last loss {log[-1][1]:.3g})" if log else ""
        told.append(Trouble(*where, "plateau" if stuck else "not learned", "; ".join(filter(None, (detail, spiked)))))
    return told


def _quarter(names: list[str]) -> dict[str, str] | None:
    """Return the five published encodings with either layout of the rotated pairs, or None without quarter RoPE."""
    for rotary in ("rope:fraction=0.25", "rope:fraction=0.25:interleaved=true"):
        if rotary in names:
            return {**QUARTER, "Rotary": rotary}
    return None


def _outcomes(found: Findings) -> Outcomes | None:
    """Return each example's outcome, or None if the answers of some runs were not read."""
    import polars as pl

    if found.kinds is None or found.kinds["run"].n_unique() < len(found.items):
        return None
    whole = found.kinds.with_columns(pl.lit("last").alias("checkpoint"), pl.lit("as trained").alias("evaluation"))
    return read_outcomes(whole)
