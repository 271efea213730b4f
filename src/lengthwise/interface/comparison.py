"""Compare runs on one task, with the same report as a study."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.folder import Folder
from lengthwise.interface.study import Named, Study
from lengthwise.interface.summary import disagreement_sentence
from lengthwise.progress import Say
from lengthwise.reporting.findings import Findings, run_label_table
from lengthwise.reporting.page import Page
from lengthwise.run.lease import STORE
from lengthwise.spec import Spec, SpecError, Value, parse_specs, suggests
from lengthwise.study.bundle import attempt_record, outcome_kinds, sample_wrong_answers
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import GridPoint, Item
from lengthwise.study.proof import check_only_encoding_differs
from lengthwise.study.store import Store
from lengthwise.training.settings import Dtype

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from lengthwise.encoding.base import Encoding
    from lengthwise.encoding.positions import Positions
    from lengthwise.run import Run
    from lengthwise.task.base import Task


@dataclass(frozen=True, repr=False)
class Comparison(Display):
    """A comparison of runs on one task: `print(c.verdict, c.table)`, `c.plot()`, `c.draw("figures")`."""

    page: Page

    @property
    def verdict(self) -> str:
        """The result and its uncertainty, in a few sentences."""
        return self.page.verdict

    @property
    def table(self) -> pl.DataFrame:
        """A line for each encoding: seeds, learned, seen and unseen accuracy and reach of the median seed."""
        import polars as pl

        found, numbers, (task,) = self.page.found, self.page.numbers, self.page.found.tasks
        lines = []
        for name in self.page.encodings_best_first():
            key = (task, name)
            reached, unseen, seen = numbers.reach[key], numbers.cells[key], numbers.seen[key]
            lines.append(
                {
                    "encoding": found.label(name),
                    "spec": name,
                    "seeds": reached.n,
                    "learned": reached.learned_seed_count,
                    "seen": seen.median.value,
                    "unseen": unseen.median.value,
                    "reach": reached.median.length,
                    "at_least": reached.median.beyond,
                }
            )
        return pl.DataFrame(lines)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict, the curves and the table; then runs that diverged, and answers that could not be trusted."""
        from lengthwise.training.health import Diverged

        yield from self.page.short_parts(width)
        for key, told in self.page.found.diverged.items():
            yield Part(str(Diverged.read(told, key)), "bold red")
        for key, record in self.page.found.records.items():
            for label, checks in record["ends"].get("checks", {}).items():
                if checks["differences"]:
                    yield Part(disagreement_sentence(key, label, checks), "bold red")

    def plain(self) -> dict[str, Any]:
        """All numbers of the page, and the curves."""
        return {**self.page.plain(), "curves": self.curves()}

    def plot(self) -> Figure:
        """Accuracy against length as a matplotlib figure."""
        return self.page.main_figure().figure()

    def draw(self, to: str | Path, name: str = "") -> list[Path]:
        """Write the figure (SVG, PNG, CSV), the page (HTML) and its numbers (JSON) into a folder.

        Their names begin with `name`, or else with `compare-` and the task.
        """
        name = name or f"compare-{self.page.found.items[0].plan.task.name}"
        paths = replace(self.page.main_figure(), name=name).write(to, ("svg", "png"))
        folder = Folder(to)
        folder.write(f"{name}.html", self.page.html())
        folder.write(f"{name}.json", json.dumps(self.plain(), indent=1))
        return [*paths, Path(to) / f"{name}.html", Path(to) / f"{name}.json"]

    def curves(self) -> dict[str, list[dict[int, float]]]:
        """Spec → length → accuracy, for each seed."""
        parts = self.page.found.cells.partition_by("encoding", "seed", as_dict=True, maintain_order=True)
        curves: dict[str, list[dict[int, float]]] = {}
        for (name, _), own in parts.items():
            curves.setdefault(str(name), []).append(dict(own.select("length", "accuracy").iter_rows()))
        return curves


@suggests
def compare(
    runs_or_task: Sequence[Run] | Named | type[Task],
    encodings: str | Sequence[Named | type[Encoding]] = ("nope", "alibi", "rope"),
    *,
    seeds: int | Sequence[int] = 3,
    positions: Named | type[Positions] = "consecutive",
    model: str = "laptop",
    training: str = "laptop",
    store: str = STORE,
    workers: int | None = None,
    threads: int = 1,
    device: str = "auto",
    dtype: Dtype = "auto",
    say: Say | None = None,
) -> Comparison:
    """Compare runs on one task; given a task instead of runs, first train each encoding with each seed.

    Encodings are a list, or names separated by commas.

    >>> import lengthwise as lw
    >>> runs = [lw.train("parity:longest=4", name, steps=2, quiet=True) for name in ("nope", "rope")]
    >>> compare(runs).draw("figures")
    """
    if isinstance(runs_or_task, str | Mapping | Spec | type):
        study = Study(
            task=runs_or_task,
            encoding=_listed(encodings) if isinstance(encodings, str) else encodings,
            positions=positions,
            model=model,
            training=training,
            seeds=seeds,
            threads=threads,
            dtype=dtype,
            name="compare",
        )
        if caution := study.planned.plan(study.planned.points[0]).caution:
            warnings.warn(caution, stacklevel=2)
        return _trained(study, store, workers, device, say)
    if not runs_or_task:
        raise SpecError("there is nothing to compare: give at least one run")
    tasks = {str(run.plan.task_spec) for run in runs_or_task}
    if len(tasks) > 1:
        raise SpecError(f"only runs on one task can be compared, not on {' and '.join(sorted(tasks))}")
    listed = list({run.id: run for run in runs_or_task}.values())  # without duplicates
    items = _items(listed)
    study = Study(
        task=items[0].point.task,
        encoding=list(dict.fromkeys(item.point.encoding for item in items)),
        seeds=sorted({item.point.seed for item in items}),
        name="compare",
    )
    return Comparison(Page(_findings(study.file, items, listed)))


def _listed(encodings: str) -> list[Spec]:
    """The encodings of a comma-separated list; each is for all layers."""
    if mixed := re.search(r"(?:^|,)\s*([0-9]+\s*\*|\[)", encodings):
        raise SpecError(
            f"compare cannot take a mixture of layers, as {mixed[1]!r} begins one in {encodings!r}: a name is for all "
            "layers. A study can: write vary: {encoding: [nope, '3*rope,nope']} into its file"
        )
    named = parse_specs(encodings)
    if not named:
        raise SpecError("name encodings, e.g. --encodings nope,rope")
    if len(set(named)) < len(named):
        raise SpecError(f"{encodings!r} names an encoding twice; leave one out")
    return named


def _trained(study: Study, store: str, workers: int | None, device: str, say: Say | None) -> Comparison:
    """Train a study without a file, in this process or in worker processes, and compare its runs."""
    executor = "inline" if workers == 1 else "processes"
    ended = study.run(store, workers=workers, executor=executor, device=device, say=say)
    diverged = Store(store).diverged(list(ended.tally.failed))
    if wrong := [f"run {key} failed: {why}" for key, why in ended.tally.failed.items() if key not in diverged]:
        raise SpecError("\n".join(wrong))
    command = ["lengthwise", "compare", study.file.tasks[0], "--encodings", ",".join(study.file.encodings)]
    command += ["--seeds", str(len(study.file.seed_list))]
    changed = study.file.base.model_dump(include={"positions", "model", "training"}, exclude_defaults=True)
    command += [part for option, value in changed.items() for part in (f"--{option}", str(value))]
    return Comparison(Page(study.findings(store, more_seeds_advice="add --seeds {seeds}"), shlex.join(command)))


def _findings(study: StudyFile, items: list[Item], runs: Sequence[Run]) -> Findings:
    import polars as pl

    records: dict[str, Any] = {}
    for run in runs:
        records[run.id] = {"key": run.id, "done": run.ends, **attempt_record(run.folder, run.read)}
    said = pl.concat([run.predictions().with_columns(run=pl.lit(run.id)) for run in runs])
    return Findings(
        study=study,
        items=items,
        planned=len(items),
        rows=pl.concat([run.rows() for run in runs]).join(
            run_label_table(items).drop("diverged"), on="run", how="inner"
        ),
        records=records,
        wrong=sample_wrong_answers(said),
        kinds=outcome_kinds(said),
        proof=check_only_encoding_differs(items),
        more="train the missing seeds, up to {seeds} of each encoding",
        sources=Counter(str(run.folder.parent.parent) for run in runs),
    )


def _items(runs: Sequence[Run]) -> list[Item]:
    """Return the runs as items of a study; other differences than the encoding become part of their labels."""
    made = []
    for run in runs:
        plan = run.plan
        positions, model = str(plan.positions_spec), _differing(run, runs, "model")
        training = _differing(run, runs, "training", "start", "streams")
        encoding = ",".join(map(str, plan.encoding_specs))
        point = GridPoint(str(plan.task_spec), encoding, positions, model, training, plan.seed)
        made.append(Item(run.id, "run", point, plan))
    return made


def _differing(run: Run, runs: Sequence[Run], *parts: str) -> str:
    """Return the options of these parts in which a run differs from any other, e.g. `model:layers=3`."""
    found: dict[str, Value] = {}
    for part in parts:
        here, others = run.plan.options()[part], [other.plan.options()[part] for other in runs]
        found |= {key: value for key, value in here.items() if any(other.get(key) != value for other in others)}
    named = {key: (value,) if isinstance(value, str) and ":" in value else value for key, value in found.items()}
    return str(Spec(parts[0], tuple(named.items())))
