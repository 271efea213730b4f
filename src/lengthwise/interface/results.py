"""The results of a study's methods: each can be printed, shown in a notebook, and turned into JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.folder import OUTPUT, publishable
from lengthwise.progress import Say, progress
from lengthwise.spec import Spec, SpecError
from lengthwise.study.add import RerunComparison, ResultsCheck
from lengthwise.study.drive import Tally, format_duration
from lengthwise.study.file import StudyFile
from lengthwise.study.proof import OnlyEncodingDiffersResult
from lengthwise.study.status import Status

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.interface.study import Study
    from lengthwise.reporting.contexts import ContextPage
    from lengthwise.reporting.findings import Findings
    from lengthwise.reporting.page import Page
    from lengthwise.study.cost import Cost, Total

_SHOWN = 20
"""How many runs are printed unless all are asked for."""


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return `90 runs and 20 tuning runs`."""
    parts = [f"{counts['runs']:,} runs"]
    if counts["tuning"]:
        parts.append(f"{counts['tuning']:,} tuning runs")
    if counts["evaluations"]:
        parts.append(f"{counts['evaluations']:,} evaluations")
    return " and ".join(parts)


def done_count_text(status: Status, store: str, results: Path | None) -> str:
    """Say how many are done, and where: in the store, or in the bundle that is counted."""
    if results is None:
        return f"{len(status.done):,} done in {store}"
    return f"{len(status.done) - status.given:,} done in {store}, {status.given:,} in {results}"


def failed_parts(failed: Mapping[str, str], waiting: int) -> Iterator[Part]:
    """List failed runs with the reason of each; those that diverged would diverge again and are not retried."""
    diverged = {key for key, why in failed.items() if why.startswith("diverged ") or " diverged at step " in why}
    for key, why in list(failed.items())[:_SHOWN]:
        yield Part(f"{'diverged' if key in diverged else 'failed'} {key}: {why}", "bold red", wrap=False)
    if len(failed) > _SHOWN:
        yield Part(f"... and {len(failed) - _SHOWN} more failed")
    if set(failed) - diverged:
        yield Part("lengthwise study retry tries the failed ones once more", "dim")
    if waiting:
        yield Part(f"{waiting} runs have no learning rate yet: a tuning run they need is not done")


def reproducing_commands(study: Study, store: str | None = None) -> str:
    """Return the commands that make a study's report from scratch; empty for a study without a file."""
    if not study.source:
        return ""
    dtype = None if study.dtype == "auto" else study.dtype
    given = {"--store": store or study.store, "--tasks": study.tasks, "--dtype": dtype, "--with": study.with_bundle}
    options = [(name, str(value)) for name, value in given.items() if value]
    more = [part for pair in (*options, *(("--add", name) for name in study.add)) for part in pair]
    verbs = (["lengthwise", "study", verb, study.source, *more] for verb in ("run", "report"))
    return "\n".join(shlex.join(map(publishable, verb)) for verb in verbs)


@dataclass(frozen=True, repr=False)
class StudyCheck(Display):
    """The mistakes of a study that can be found before training, and of a bundle it was compared with."""

    study: Study
    mistakes: list[str]
    against: ResultsCheck | None = None

    @property
    def errors(self) -> list[str]:
        """Every mistake; empty if there is none."""
        return self.mistakes + ([] if self.against is None else self.against.errors)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """That it is sound, or its mistakes."""
        yield from (Part(f"error: {error}", "bold red") for error in self.errors)
        if not self.errors:
            yield Part(f"{self.study.name} is sound: {counts_in_words(self.study.planned.item_counts())}")
        if self.against is not None:
            yield Part(str(self.against))

    def plain(self) -> dict[str, Any]:
        """The mistakes and the counts."""
        told: dict[str, Any] = {} if self.errors else self.study.planned.item_counts()
        told |= {} if self.against is None else self.against.plain()
        return {"study": self.study.name, "errors": self.errors, **told}


@dataclass(frozen=True, repr=False)
class StudyPlan(Display):
    """The runs of a study, which of them are done, and the proof that only the encoding differs."""

    study: StudyFile
    runs: list[dict[str, Any]]
    """A line for each run: task, encoding, positions, model, training, seed, kind, run, done."""
    waiting: int
    """Runs whose learning rate is not chosen yet."""
    counts: dict[str, int]
    proof: OnlyEncodingDiffersResult
    done: str
    """How many are done, and where."""
    every: bool = False
    """Whether all runs are printed."""

    @property
    def table(self) -> pl.DataFrame:
        """The runs as a Polars frame."""
        import polars as pl

        return pl.DataFrame(self.runs)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The first runs, without columns that are equal in all, and the proof."""
        lines = self.runs
        yield Part(f"{self.study.name}: {self.study.question}", "bold")
        yield Part(f"{counts_in_words(self.counts)}; {self.done}", wrap=False)
        same = [axis for axis in ("positions", "model", "training") if len({line[axis] for line in lines}) == 1]
        if same and lines:
            yield Part("in all: " + ", ".join(f"{axis} {lines[0][axis]}" for axis in same), wrap=False)
        shown = lines if self.every else lines[:_SHOWN]
        if shown:
            yield Part([{key: value for key, value in line.items() if key not in same} for line in shown])
        if len(lines) > len(shown):
            yield Part(f"... and {len(lines) - len(shown):,} more; --all shows them", "dim")
        if self.waiting:
            yield Part(f"{self.waiting:,} more runs get their name when their learning rate is chosen")
        by_rule = "; the learning rate is set by the rule" if self.study.lr is not None else ""
        yield Part(self.proof.sentence + by_rule, "bold" if self.proof.holds else "bold yellow")

    def plain(self) -> dict[str, Any]:
        """All runs, and the proof."""
        told = {"study": self.study.name, "question": self.study.question, **self.counts, "runs": self.runs}
        told |= {"waiting": self.waiting, "proof": self.proof.sentence}
        return {**told, "only the encoding differs": self.proof.holds, "differs": self.proof.differs}


@dataclass(frozen=True, repr=False)
class StudyCost(Display):
    """The estimated cost of a study on a machine."""

    study: str
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

    def _lines(self) -> list[dict[str, Any]]:
        return [
            {
                "task": line["task"],
                "encoding": line["encoding"],
                "runs": line["runs"],
                "parameters": line["parameters"],
                "tokens": line["tokens"],
                "FLOPs": f"{line['flops']:.2e}",
                "memory": _size(line["memory"]),
                "disk": _size(line["disk"]),
                "one takes": format_duration(line["seconds"]),
            }
            for line in self.table.iter_rows(named=True)
        ]

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each task and encoding, and the sum."""
        whole, many, tuning = self.total, self.at_a_time, len(self.tuning)
        yield Part(self._lines())
        where = "this machine, calibrated" if self.on == "here" else f"{self.on}, by its published peak: not measured"
        runs, tuned = sum(map(len, self.kinds.values())), f" and {tuning:,} tuning runs" if tuning else ""
        yield Part(
            f"in all ({where}): {runs:,} runs{tuned}, {whole.tokens:.3g} tokens, {whole.flops:.3g} FLOPs, "
            f"{_size(whole.disk)} of disk, {whole.hours:,.1f} device hours; with {many} at a time "
            f"{format_duration(whole.wall_hours * 3600)} and {_size(whole.memory_together)} of memory"
        )
        if self.on != "here":
            from lengthwise.study.machines import accelerator, gpu_share

            device = accelerator(self.on)
            fit = int(device.bytes / max(whole.memory, 1))
            yield Part(f"assumed of {device.assumptions}; nothing was measured on one", "dim")
            if fit > 1:
                yield Part(
                    f"{fit} such runs fit into its {_size(device.bytes)}: resources: {{gpus: {gpu_share(fit):g}}}"
                )

    def plain(self) -> dict[str, Any]:
        """The lines and the sum."""
        told = {"study": self.study, "on": self.on, "at a time": self.at_a_time, "kinds": self._lines()}
        return {**told, "all": vars(self.total), "tuning runs": len(self.tuning)}


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


@dataclass(frozen=True, repr=False)
class StudyStatus(Display):
    """Which runs are done, running, failed or missing."""

    name: str
    store: str
    runs: Status
    results: Path | None
    """The bundle whose runs count as done."""
    guard: Status | None = None
    """The committed runs that are rerun as a check, if encodings are added."""
    learned: list[dict[str, str]] = field(default_factory=list)
    """By task, each encoding's accuracy at seen lengths and how many of its runs learned them, if asked for."""

    @property
    def ended(self) -> bool:
        """Whether nothing runs or is missing."""
        return self.runs.ended

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Counts, a table by encoding, what is running and what failed."""
        yield from self._parts(self.runs, self.store, self.results)
        if self.learned:
            yield Part("accuracy at seen lengths, and how many runs learned them:")
            yield Part(self.learned)
        if self.guard is not None and not self.guard.all_done:
            yield Part("committed runs that are made again first, as a guard:")
            yield from self._parts(self.guard, f"{self.store}/guard", None)

    def _parts(self, found: Status, store: str, results: Path | None) -> Iterator[Part]:
        told = f"{len(found.done):,} of {found.total:,} done, {len(found.running)} running, {len(found.failed)} failed"
        told += "" if found.seconds_left is None else f", about {format_duration(found.seconds_left)} left"
        where = "" if results is None else f" ({done_count_text(found, store, results)})"
        yield Part(f"{self.name} in {store}: {told}{where}", "bold", wrap=False)
        yield Part(found.table)
        lines = [
            {
                "running": one["run"],
                "step": f"{one['step']:,} of {one['steps']:,}" if "step" in one else "beginning",
                "left": format_duration(one["left"]) if "left" in one else "",
                "by": one["who"],
            }
            for one in found.running[:_SHOWN]
        ]
        if lines:
            yield Part(lines)
        yield from failed_parts(found.failed, 0)

    def plain(self) -> dict[str, Any]:
        """Counts, running and failed runs, and the table."""
        found = self.runs
        told = {"study": self.name, **_counted(found), "missing": len(found.missing) + found.waiting}
        told |= {"seconds left": found.seconds_left, "encodings": found.table}
        told |= {"learned": self.learned} if self.learned else {}
        return told | ({} if self.guard is None else {"guard": _counted(self.guard)})


def _counted(found: Status) -> dict[str, Any]:
    return {"total": found.total, "done": len(found.done), "running": found.running, "failed": found.failed}


def page_of(found: Findings, command: str) -> Page | ContextPage:
    """Return the report page of a study: of language models, or of tasks with right answers."""
    from lengthwise.reporting.contexts import ContextPage
    from lengthwise.reporting.page import Page

    texts = {Spec.of(task).name == "text" for task in found.tasks}
    if len(texts) > 1:
        raise SpecError("a report is of language models or of other tasks; choose with --tasks")
    return ContextPage(found, command) if True in texts else Page(found, command)


@dataclass(frozen=True, repr=False)
class StudyReport(Display):
    """Verdict, tables and page of a study."""

    page: Page | ContextPage
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

        found = self.page.named_tables()
        return {name: pl.DataFrame(lines, infer_schema_length=None) for name, lines in found.items() if lines}

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict and the path of the page; or, if it was not written, all tables."""
        if self.path is None:
            yield from self.page.all_parts(width)
            return
        yield Part(self.verdict, "bold")
        yield Part(f"page: {self.path}; {len(self.files) - 1} other files beside it", wrap=False)

    def plain(self) -> dict[str, Any]:
        """All numbers of the page."""
        return self.page.plain()

    def _repr_html_(self) -> str:
        return self.page.html()


def written_page(page: Page | ContextPage, to: str | Path, pdf: bool = False, latex: bool = False) -> StudyReport:
    """Write a page with its figures to a folder, and return the report."""
    where = Path(to)
    files = page.write(where, pdf=pdf)
    if latex:
        from lengthwise.reporting.latex import write_latex_tables

        files += write_latex_tables(page, where)
    return StudyReport(page, where / "index.html", files)


@dataclass(frozen=True, repr=False)
class StudyResult(Display):
    """What a call of `Study.run` came to."""

    study: Study
    store: str
    tally: Tally
    guard: RerunComparison | None = None

    @property
    def all_done(self) -> bool:
        """Whether every run is done."""
        return len(self.tally.done) == self.tally.total

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """What failed, and how many are done."""
        if self.guard is not None:
            yield Part(self.guard.sentence)
        yield from (Part(f"deviation: {line}", "dim") for line in self.study.file.deviations)
        yield from failed_parts(self.tally.failed, self.tally.waiting)
        yield Part(f"{len(self.tally.done)} of {self.tally.total} runs done in {self.store}", wrap=False)

    def plain(self) -> dict[str, Any]:
        """Counts and failures."""
        told = {"study": self.study.name, "done": len(self.tally.done), "of": self.tally.total}
        guard = None if self.guard is None else self.guard.sentence
        return {**told, "failed": self.tally.failed, "waiting": self.tally.waiting, "guard": guard}

    def report(self, to: str | Path | None = None, say: Say | None = None) -> StudyReport:
        """The report of the study, as `Study.report` makes it."""
        with progress(say) as tell:
            tell("computing intervals and drawing")
            found = self.study.findings(
                self.store, failed=self.tally.failed, rerun_comparison=self.guard, use_committed=False
            )
            where = to or OUTPUT / f"report-{self.study.name}"
            return written_page(page_of(found, reproducing_commands(self.study, self.store)), where)
