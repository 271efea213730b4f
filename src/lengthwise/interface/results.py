"""The results of a study's methods, formatted for terminals and notebooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display
from lengthwise.study.add import Guard
from lengthwise.study.drive import Tally
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Proof
from lengthwise.study.status import Status

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.interface.study import Study
    from lengthwise.reporting.page import Page
    from lengthwise.study.cost import Cost, Total


@dataclass(frozen=True, repr=False)
class StudyPlan(Display):
    """The runs of a study, which of them are done, and the proof that only the encoding differs."""

    study: StudyFile
    runs: list[dict[str, Any]]
    """A line for each run: task, encoding, positions, model, training, seed, kind, run, done."""
    waiting: int
    """Runs whose learning rate is not chosen yet."""
    counts: dict[str, int]
    proof: Proof
    status: Status

    @property
    def table(self) -> pl.DataFrame:
        """The runs as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.runs)

    def __str__(self) -> str:
        done = sum(bool(line["done"]) for line in self.runs)
        told = f"{self.study.name}: {len(self.runs) + self.waiting} runs, {done} done"
        return f"{told}\n{self.table}\n{self.proof.sentence}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@dataclass(frozen=True, repr=False)
class StudyCost(Display):
    """The estimated cost of a study on a machine."""

    on: str
    at_a_time: int
    kinds: dict[tuple[str, str], list[Cost]]
    """Task and encoding → the cost of each run."""
    tuning: list[Cost]
    total: Total

    @property
    def table(self) -> pl.DataFrame:
        """A line for each task and encoding: runs, parameters, tokens, FLOPs, bytes and seconds of one run."""
        import polars as pl

        lines = []
        for (task, encoding), listed in self.kinds.items():
            one = listed[0]
            line = {"task": task, "encoding": encoding, "runs": len(listed), "parameters": one.parameters}
            line |= {"tokens": one.tokens, "flops": one.flops + one.evaluation_flops, "memory": one.memory}
            lines.append({**line, "disk": one.disk, "seconds": one.hours * 3600})
        return pl.DataFrame(lines)

    def __str__(self) -> str:
        hours = f"{self.total.wall_hours:.2g} hours with {self.at_a_time} runs at a time"
        return f"{self.table}\nin all: {self.total.flops:.3g} FLOPs, {hours}"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@dataclass(frozen=True, repr=False)
class StudyReport(Display):
    """Verdict, tables and page of a study."""

    page: Page
    path: Path | None = None
    """The path of the page, if it was written."""
    files: list[Path] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The result and its uncertainty, in a few sentences."""
        return self.page.verdict

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of the page: ranks, differences, and one for each task."""
        import polars as pl

        found = {"ranks": self.page.rank_table(), "differences": self.page.difference_table()}
        found |= {task: self.page.task_table(task) for task in self.page.found.tasks}
        return {name: pl.DataFrame(lines, infer_schema_length=None) for name, lines in found.items() if lines}

    def __str__(self) -> str:
        return f"{self.verdict}\npage: {self.path}" if self.path else self.verdict

    def _repr_html_(self) -> str:
        return self.page.html()


@dataclass(frozen=True, repr=False)
class StudyResult(Display):
    """What a call of `Study.run` came to."""

    study: Study
    store: str
    tally: Tally
    guard: Guard | None = None

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return len(self.tally.done) == self.tally.total

    def __str__(self) -> str:
        failed = f", {len(self.tally.failed)} failed" if self.tally.failed else ""
        return f"{len(self.tally.done)} of {self.tally.total} runs done in {self.store}{failed}"

    def report(self, to: str | Path | None = None) -> StudyReport:
        """The report of the study, as `Study.report` makes it."""
        found = self.study.findings(self.store, failed=self.tally.failed, guard=self.guard, use_committed=False)
        return self.study.written_report(found, to, self.store)
