"""Test whether the order of encodings depends on analysis choices, by changing one choice at a time.

Restricting to runs that learned is not offered, because which runs learn is itself an effect of the encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.statistics.aggregates import mean_scores_over_tasks
from lengthwise.statistics.intervals import mean
from lengthwise.statistics.ranks import above_chance
from lengthwise.statistics.table import score_table, tasks_learned_by_all

if TYPE_CHECKING:
    import polars as pl

CHECKPOINTS = ("last", "best", "earliest_best")
CEILING = 0.98
"""A task is at ceiling if the median seed of every encoding has at least this accuracy."""
FLOOR = 0.02
"""A task is at the floor if the median seed of every encoding has at most this accuracy or is not above chance."""


@dataclass(frozen=True)
class AlternativeRanking:
    """The order of encodings under one choice."""

    name: str
    """e.g. `as it is`, `without copy:variant=same`, `checkpoint best`."""
    order: tuple[tuple[str, ...], ...]
    """Best first; encodings with equal values are grouped."""
    values: Mapping[str, float]
    tasks: int
    """The number of tasks; 0 if no task is left."""
    changed: bool
    """Whether the order differs from that of `as it is`."""
    leader_changed: bool
    unit: str = "tasks"
    recipe: str = "mean over tasks of the mean over seeds"


def saturated_tasks(scores: pl.DataFrame) -> dict[str, str]:
    """Return task → `ceiling` or `floor`, for tasks that do not separate encodings; `scores` is a `score_table`."""
    import polars as pl

    found: dict[str, list[str]] = {}
    grouped = scores.filter(pl.col("unseen").is_not_null()).group_by("task", "encoding")
    for line in grouped.agg(
        pl.col("unseen").median(),
        pl.col("correct").median().floor().cast(pl.Int64),
        pl.col("examples").max(),
        pl.col("chance").max(),
    ).iter_rows(named=True):
        guess = line["chance"] is not None and not above_chance(line["correct"], line["examples"], line["chance"])
        kind = "ceiling" if line["unseen"] >= CEILING else "floor" if line["unseen"] <= FLOOR or guess else "between"
        found.setdefault(line["task"], []).append(kind)
    return {task: kinds[0] for task, kinds in sorted(found.items()) if set(kinds) in ({"ceiling"}, {"floor"})}


def alternative_rankings(
    rows: pl.DataFrame, run_labels: pl.DataFrame, other_run_labels: Mapping[str, pl.DataFrame] | None = None
) -> list[AlternativeRanking]:
    """Return the order as it is, then with one choice changed at a time; choices without rows are left out.

    Choices: the checkpoint, an oracle for where to stop, only tasks that every encoding learned, no tasks at ceiling or
    floor for all encodings, each task left out. `other_run_labels` are labels of the same study with another choice,
    e.g. {"rate 1e-3": labels of those runs}.
    """
    import polars as pl

    base = score_table(rows, run_labels)
    first = _variant("as it is", base, None)
    found = [first]
    stored = set(rows["checkpoint"].unique().to_list())
    for rule in CHECKPOINTS:
        if rule != "last" and rule in stored:
            found.append(_variant(f"checkpoint {rule}", score_table(rows, run_labels, checkpoint=rule), first))
    if base["content"].is_not_null().any():
        found.append(_variant("told where to stop", base, first, "content"))
    everybody = tasks_learned_by_all(base)
    found.append(_variant("tasks that every encoding learned", base.filter(pl.col("task").is_in(everybody)), first))
    flat = saturated_tasks(base)
    if flat:
        told = "without tasks at ceiling or floor for everybody"
        found.append(_variant(told, base.filter(~pl.col("task").is_in(list(flat))), first))
    for name, other in sorted((other_run_labels or {}).items()):
        found.append(_variant(name, score_table(rows, other), first))
    by_task = {encoding: one.by_task for encoding, one in mean_scores_over_tasks(base).items()}
    tasks = sorted({task for own in by_task.values() for task in own})
    if len(tasks) > 1:
        for left in tasks:
            rest = {name: {task: own[task] for task in own if task != left} for name, own in by_task.items()}
            found.append(_ordered(f"without {left}", rest, first))
    return found


def _variant(
    name: str, table: pl.DataFrame, first: AlternativeRanking | None, measure: str = "unseen"
) -> AlternativeRanking:
    return _ordered(name, {who: one.by_task for who, one in mean_scores_over_tasks(table, measure).items()}, first)


def _ordered(
    name: str, by_task: Mapping[str, Mapping[str, float]], first: AlternativeRanking | None
) -> AlternativeRanking:
    """Order encodings by their mean over tasks; `by_task` is encoding → task → value."""
    values = {encoding: mean(list(own.values())) for encoding, own in by_task.items() if own}
    groups: dict[float, list[str]] = {}
    for encoding, value in values.items():
        groups.setdefault(round(value, 9), []).append(encoding)
    order = tuple(tuple(sorted(groups[value])) for value in sorted(groups, reverse=True))
    tasks = max((len(own) for own in by_task.values()), default=0)
    if first is None or not order:
        return AlternativeRanking(name, order, values, tasks, False, False)
    return AlternativeRanking(name, order, values, tasks, order != first.order, order[0] != first.order[0])
