"""Runs side by side: a figure, a table with reach, and one sentence that says what was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lengthwise.report.curve import Curves, bars, draw
from lengthwise.spec import SpecError, digest
from lengthwise.statistics.cells import reaches
from lengthwise.statistics.reach import Reach, accuracies, reach

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.run import Plan, Run
    from lengthwise.study.plan import Item


@dataclass(frozen=True)
class Comparison:
    """What a set of runs on one task shows."""

    task: str
    trained: int
    unit: str
    curves: Curves
    chance: dict[int, float]
    reaches: dict[str, list[Reach]]
    table: list[dict[str, Any]]

    @property
    def sentence(self) -> str:
        """What was seen, best reach first."""
        parts = []
        middles = {name: reaches(found).median for name, found in self.reaches.items()}
        for name, told in sorted(middles.items(), key=lambda pair: -(pair[1].length or -1)):
            if told.length is None:
                parts.append(f"{name} did not learn the seen lengths")
            else:
                parts.append(f"{name} reaches {told} ({told.length / self.trained:.1f} ×)")
        seeds = sorted({len(found) for found in self.reaches.values()})
        many = "one seed each, so no seed interval" if seeds == [1] else f"median of {'–'.join(map(str, seeds))} seeds"
        return f"Trained on {self.task} up to {self.trained} {self.unit}, {'; '.join(parts)} ({many})."

    def bars(self, width: int = 78) -> list[str]:
        """The picture for a terminal."""
        return bars(self.curves, self.trained, width)

    def draw(self, to: str | Path, name: str = "compare") -> list[Path]:
        """Write the figure as SVG and PNG, and what it shows as JSON."""
        folder = Path(to)
        paths = [folder / f"{name}.svg", folder / f"{name}.png"]
        try:
            draw(self.curves, self.chance, self.trained, self.unit, self.task, paths)
            told = {"sentence": self.sentence, "table": self.table, "chance": self.chance, "curves": self.curves}
            (folder / f"{name}.json").write_text(json.dumps(told, indent=1, default=list))
        except OSError as error:
            raise SpecError(f"the figure cannot be written to {folder}: {error.strerror or error}") from error
        return [*paths, folder / f"{name}.json"]


def compared(
    task: str, trained: int, unit: str, groups: Mapping[str, Sequence[pl.DataFrame]], checkpoint: str = "last"
) -> Comparison:
    """Rows of runs on one task side by side: for each name, the rows of each seed."""
    import polars as pl

    curves, found_reach, table, chance = {}, {}, [], {}
    for name, group in groups.items():
        tested = pl.col("split").str.starts_with("test_") | (pl.col("split") == "validation")
        kept = (pl.col("checkpoint") == checkpoint) & (pl.col("evaluation") == "as trained") & tested
        tables = [rows.filter(kept) for rows in group]
        found = [accuracies(rows) for rows in tables]
        curves[name] = [dict(zip(one["length"].to_list(), one["accuracy"].to_list(), strict=True)) for one in found]
        for one in found:
            chance |= dict(zip(one["length"].to_list(), one["chance"].to_list(), strict=True))
        found_reach[name] = [reach(rows) for rows in tables]
        table.append(
            {
                "encoding": name,
                "seeds": len(group),
                "seen": _spread([_share(rows.filter(pl.col("seen"))) for rows in tables]),
                "unseen": _spread([_share(rows.filter(pl.col("split") == "test_unseen")) for rows in tables]),
                "reach of each seed": ", ".join(map(str, found_reach[name])),
                "median reach": str(reaches(found_reach[name])),
            }
        )
    return Comparison(task, trained, unit, curves, dict(sorted(chance.items())), found_reach, table)


def compare(runs: Sequence[Run], checkpoint: str = "last") -> Comparison:
    """Put runs on one task side by side, grouped by what varies: the encoding, or what else differs.

    `compare([train("copy", name, seed=seed) for name in ("nope", "rope") for seed in range(3)]).draw("figures")`
    """
    if not runs:
        raise SpecError("there is nothing to compare: give at least one run")
    tasks = {str(run.plan.task_spec) for run in runs}
    if len(tasks) > 1:
        raise SpecError(f"only runs on one task can be compared, not on {' and '.join(sorted(tasks))}")
    task = runs[0].plan.task
    runs = list({run.id: run for run in runs}.values())  # one run given twice is one run
    groups = {name: [run.rows() for run in group] for name, group in _groups(runs).items()}
    return compared(str(runs[0].plan.task_spec), task.longest, task.unit, groups, checkpoint)


def compare_study(items: Iterable[Item], rows: pl.DataFrame) -> dict[str, Comparison]:
    """A comparison for each task of a study, of the runs whose rows are there."""
    by_run = {str(key[0]): table for key, table in rows.partition_by("run", as_dict=True).items()}
    tasks: dict[str, dict[str, list[pl.DataFrame]]] = {}
    plans: dict[str, Plan] = {}
    listed = [item for item in items if item.kind == "run" and item.key in by_run]
    for item in listed:
        plans[item.cell.task] = item.plan
    axes = {
        task: [
            axis
            for axis in ("positions", "model", "training")
            if len({getattr(item.cell, axis) for item in listed if item.cell.task == task}) > 1
        ]
        for task in plans
    }
    for item in listed:
        name = " ".join([item.cell.encoding, *(getattr(item.cell, axis) for axis in axes[item.cell.task])])
        tasks.setdefault(item.cell.task, {}).setdefault(name, []).append(by_run[item.key])
    return {
        task: compared(str(plans[task].task_spec), plans[task].task.longest, plans[task].task.unit, groups)
        for task, groups in tasks.items()
    }


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs that differ in their seed alone, under the shortest name that tells them from the others."""
    alike: dict[int, list[Run]] = {}
    for run in runs:
        alike.setdefault(
            digest({key: value for key, value in run.record["identity"].items() if key != "seed"}), []
        ).append(run)
    groups: dict[str, list[Run]] = {}
    for key, group in alike.items():
        name = _name(group[0], runs)
        groups[name if name not in groups else f"{name} #{key % 16**4:04x}"] = group
    return groups


def _name(run: Run, runs: Sequence[Run]) -> str:
    """The encoding, and whatever else tells it from the others."""
    name = ",".join(map(str, run.plan.encoding_specs))
    if len({str(other.plan.positions_spec) for other in runs}) > 1:
        name += f" {run.plan.positions_spec}"
    for part in ("model", "training", "start", "streams"):
        here = run.plan.options()[part]
        others = [other.plan.options()[part] for other in runs]
        if any(other != here for other in others):
            differs = {key: value for key, value in here.items() if any(other.get(key) != value for other in others)}
            name += "".join(f" {key}={value}" for key, value in differs.items())
    return name


def _share(rows: Any) -> float | None:  # noqa: ANN401
    """The mean over lengths of the accuracy."""
    found = accuracies(rows)["accuracy"].to_list()
    return sum(found) / len(found) if found else None


def _spread(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "none"
    if len(there) == 1:
        return f"{there[0]:.3f}"
    return f"{median(there):.3f} [{min(there):.3f}–{max(there):.3f}]"
