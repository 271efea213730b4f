"""The `Study` class: a question as a grid of runs. The command line calls its methods and prints the results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.consent import require_consent
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.folder import OUTPUT
from lengthwise.interface.results import (
    StudyCheck,
    StudyCost,
    StudyPlan,
    StudyReport,
    StudyResult,
    StudyStatus,
    done_count_text,
    page_of,
    reproducing_commands,
    written_page,
)
from lengthwise.loading import names_of
from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import Spec, SpecError, parse_specs
from lengthwise.study.add import (
    GUARDS,
    RerunComparison,
    ResultsCheck,
    bundle_with_done_runs,
    canonical_encoding_text,
    choose_runs_to_rerun,
    chosen_tasks,
    committed_results_folder,
    find_bundle_mistakes,
    rerun_store,
    with_added_encodings,
    with_dtype,
)
from lengthwise.study.bundle import Bundle
from lengthwise.study.check import check
from lengthwise.study.file import StudyFile
from lengthwise.study.launch import ExecutorName, PlanSubset, drive, rerun_some
from lengthwise.study.plan import Item, Planned
from lengthwise.study.proof import check_only_encoding_differs
from lengthwise.study.status import Status, refuse_if_blind, status
from lengthwise.study.store import Store
from lengthwise.task import TASKS
from lengthwise.training.settings import Dtype

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.encoding.base import Encoding
    from lengthwise.encoding.positions import Positions
    from lengthwise.reporting.findings import Findings
    from lengthwise.task.base import Task

Named = str | Mapping[str, object] | Spec


class Study:
    """A grid of runs that answers a question: every task with every encoding and every seed.

    >>> study = Study(task="copy:variant=same", encoding=["nope", "rope"], seeds=2, training="laptop:steps=20")
    >>> study.plan().counts["runs"]
    4
    """

    def __init__(
        self,
        *,
        task: Named | type[Task] | Sequence[Named | type[Task]],
        encoding: Named | type[Encoding] | Sequence[Named | type[Encoding]],
        positions: Named | type[Positions] | Sequence[Named | type[Positions]] = "consecutive",
        model: str | Sequence[str] = "laptop",
        training: str | Sequence[str] = "laptop",
        seeds: int | Sequence[int] = 3,
        lr: Sequence[float] | None = None,
        blind: bool = False,
        name: str = "study",
        question: str = "",
        threads: int = 1,
        dtype: Dtype = "auto",
    ) -> None:
        """Each of task, encoding, positions, model and training is one value or a list of values to vary.

        Of the learning rates `lr` one is chosen for each encoding and task, at seen lengths; without them training has
        its own. A `blind` study shows unseen lengths only after its last run.
        """
        axes: dict[str, list[str]] = {
            "task": names_of(task, TASKS),
            "encoding": names_of(encoding, ENCODINGS),
            "positions": names_of(positions, POSITIONS),
            "model": [model] if isinstance(model, str) else list(model),
            "training": [training] if isinstance(training, str) else list(training),
        }
        # Even a single encoding goes into `vary`, so that others can be added.
        varied = {axis: values for axis, values in axes.items() if len(values) > 1 or axis == "encoding"}
        carried = axes["task"][0] if len(axes["task"]) == 1 else "each task"
        content: dict[str, Any] = {
            "name": name,
            "question": question or f"How far beyond its training length does each encoding carry {carried}?",
            "base": {axis: values[0] for axis, values in axes.items() if axis not in varied and values},
            "vary": varied,
            "seeds": seeds if isinstance(seeds, int) else list(seeds),
            "resources": {"threads": threads},
            "blind": blind,
        }
        if lr is not None:
            content["lr"] = {"choose": list(lr)}
        self.planned = self.before_adding = Planned(with_dtype(StudyFile.of(content, "the study"), dtype))
        self.source = ""
        """The file or recipe from which the study was read."""
        self.add: list[str] = []
        self.tasks: str | None = None
        self.with_bundle: Path | None = None
        self.dtype: Dtype = dtype
        self.store = STORE
        """The default store of its methods: that of the last `run`."""

    @classmethod
    def read(
        cls,
        where: str | Path | Study,
        *,
        add: Sequence[Named | type[Encoding]] = (),
        tasks: str | None = None,
        with_bundle: str | Path | None = None,
        dtype: Dtype = "auto",
        allow_code: bool = False,
    ) -> Study:
        """Read a study from a YAML file, or a recipe that ships with lengthwise, e.g. `Study.read("quickstart")`.

        `add` are additional encodings, `tasks` selects tasks (`copy,sort`, or `quick`), `with_bundle` is a bundle whose
        runs count as done, and `dtype` changes the precision of all runs. A file that names code from outside the
        package needs `allow_code=True`.
        """
        made = cls.__new__(cls)
        more = names_of(add, ENCODINGS) if add else []
        if isinstance(where, Study):
            vars(made).update(vars(where))
            made.add, made.tasks = [*where.add, *more], where.tasks if tasks is None else tasks
        else:
            made.source, made.add, made.tasks, made.with_bundle, made.store = str(where), more, tasks, None, STORE
            made.dtype = dtype
            made.before_adding = Planned(StudyFile.read(made.source))
        if with_bundle is not None:
            made.with_bundle = Path(with_bundle)
        made.dtype = made.dtype if dtype == "auto" else dtype
        plain = with_dtype(made.before_adding.study, dtype)
        file = with_added_encodings(plain, made.add) if made.add else plain
        chosen = None if made.tasks is None else chosen_tasks(file, made.tasks)
        made.before_adding, made.planned = Planned(plain, chosen), Planned(file, chosen)
        own = {spec.name for text in made.add for spec in parse_specs(text)}  # the user gave these names
        require_consent(set(made.planned.outside_code_names()) - own, "the study", allow_code)
        return made

    @property
    def file(self) -> StudyFile:
        """The study file."""
        return self.planned.study

    @property
    def name(self) -> str:
        """The study's name."""
        return self.file.name

    def __repr__(self) -> str:
        counts = ", ".join(f"{many} {what}" for what, many in self.planned.item_counts().items() if many)
        return f"Study({self.name!r}: {counts})"

    # --- before it is run --------------------------------------------------------------------------------------------

    def check(
        self,
        against: str | Path | None = None,
        *,
        rerun: int = 0,
        store: str | None = None,
        workers: int | None = None,
        executor: ExecutorName = "auto",
        say: Say | None = None,
    ) -> StudyCheck:
        """Find every mistake before training.

        With a bundle `against`, the id of each of its runs is recomputed from its options; `rerun` executes that many
        of them again and compares their rows bit for bit.
        """
        if rerun and against is None:
            raise SpecError("--rerun executes runs of a bundle again; name the bundle with --against results/NAME")
        errors = check(self.planned)
        if errors or against is None:
            return StudyCheck(self, errors)
        bundle, again = Bundle(against), None
        wrong = find_bundle_mistakes(self.before_adding, bundle)
        if rerun and not wrong:
            with progress(say) as tell:
                how: dict[str, Any] = {"executor": executor, "workers": workers, "on_progress": tell}
                again = rerun_some(self.before_adding, bundle, rerun, Store(store or self.store), **how)
        return StudyCheck(self, [], ResultsCheck(str(against), len(bundle.records), wrong, again))

    def plan(self, store: str | None = None, every: bool = False) -> StudyPlan:
        """Return the runs, which of them are done in a store, and the proof that only the encoding differs.

        `every` prints all runs instead of the first twenty.
        """
        found = self._status(store)
        items = found.items
        done = {item.key for item in found.done}
        runs = [{**item.point.labels(), "kind": item.kind, "run": item.key, "done": item.key in done} for item in items]
        if not self.file.then:
            runs = [{key: value for key, value in line.items() if key != "stage"} for line in runs]
        compared = self.planned.runs_at_preset_lr(self.planned.points) if self.file.lr is not None else items
        there = done_count_text(found, store or self.store, self.counted())
        proof, counts = check_only_encoding_differs(compared), self.planned.item_counts()
        return StudyPlan(self.file, runs, found.waiting, counts, proof, there, every)

    def cost(self, on: str = "here", workers: int | None = None, say: Say | None = None) -> StudyCost:
        """Estimate the cost: FLOPs, tokens, memory, disk and hours, on this machine or e.g. an `a100`."""
        from lengthwise.study.cost import ThisMachine, accelerator, study_costs, total_cost

        with progress(say) as tell:
            machine = ThisMachine(self.file.resources.threads, tell) if on == "here" else accelerator(on)
            kinds, tuning = study_costs(self.planned, machine, tell)
        many = workers or ((os.cpu_count() or 1) if on == "here" else 1)
        runs = [one for listed in kinds.values() for one in listed]
        return StudyCost(self.name, on, many, kinds, tuning, total_cost([*tuning, *runs], many))

    # --- running it --------------------------------------------------------------------------------------------------

    def run(
        self,
        store: str | None = None,
        *,
        workers: int | None = None,
        executor: ExecutorName = "auto",
        address: str | None = None,
        device: str = "auto",
        retry: bool = False,
        accept_differences: bool = False,
        verify: bool = True,
        say: Say | None = None,
    ) -> StudyResult:
        """Do all missing runs, on Ray if it is installed, else in worker processes.

        Called again, it resumes; `retry` tries failed runs once more. Added encodings from outside the package must
        pass `verify`. If any encodings are added to committed results, three committed runs are rerun first as a check,
        which must give the same rows unless `accept_differences` is set.
        """
        self.store = store or self.store
        if errors := self.check().errors:
            raise SpecError("\n".join(errors))
        kept, bundle, planned, guard = Store(self.store), self._bundle(), self.planned, None
        with progress(say) as tell:
            if verify:
                self._verify_added(tell)
            how: dict[str, Any] = {"workers": workers, "address": address, "device": device, "on_progress": tell}
            if self.add and bundle is not None:
                planned = Planned(self.file, self.planned.tasks, map(canonical_encoding_text, self.add))
                guard = rerun_some(self.before_adding, bundle, GUARDS, kept, executor=executor, **how)
                guard.refuse_if_different(accept_differences)
            given = None if bundle is None else bundle.ended_records
            tally = drive(planned, kept, executor=executor, bundle_records=given, retry=retry, **how)
        return StudyResult(self, self.store, tally, guard)

    def _verify_added(self, tell: Say) -> None:
        """Raise if an added encoding from outside the package fails the conformance tests."""
        added = (spec for text in self.add for spec in parse_specs(text))
        for spec in dict.fromkeys(spec for spec in added if spec.name not in ENCODINGS):
            from lengthwise.conformance import refuse_nonconforming  # a second to import, and most studies add none

            refuse_nonconforming(spec, tell, "\nmend it, or skip the check (verify=False, --skip-verify)")

    def _guard_status(self, store: str | None) -> Status | None:
        """Return the status of the committed runs that are rerun as a check; None if there are none to rerun."""
        bundle = self._bundle()
        if not self.add or bundle is None:
            return None
        again = PlanSubset(self.before_adding, choose_runs_to_rerun(self.before_adding, bundle))
        return status(again, rerun_store(Store(store or self.store)), None)

    # --- what is there -----------------------------------------------------------------------------------------------

    def _bundle(self, use_committed: bool = False) -> Bundle | None:
        where = self.counted()
        if where is None and use_committed and self.source:
            where = committed_results_folder(self.file)
        return None if where is None else Bundle(where)

    def counted(self) -> Path | None:
        """Return the bundle whose runs count as done, if there is one."""
        return bundle_with_done_runs(self.file, self.with_bundle, self.add)

    def items(self, store: str | None = None) -> list[Item]:
        """Return all known items; runs whose learning rate waits for tuning runs are not known yet."""
        return self._status(store).items

    def status(self, store: str | None = None, learned: bool = False) -> StudyStatus:
        """Return which runs are done, running, failed or missing; with `learned`, also how well at seen lengths."""
        where, found, lines = store or self.store, self._status(store), list[dict[str, str]]()
        if learned:
            from lengthwise.reporting.findings import learned_table  # reads rows, which a status does not need

            lines = learned_table(found.ended_items, Store(where), self._bundle())
        return StudyStatus(self.name, where, found, self.counted(), self._guard_status(store), lines)

    def _status(self, store: str | None) -> Status:
        bundle = self._bundle()
        return status(self.planned, Store(store or self.store), None if bundle is None else bundle.ended_records)

    def finished_runs(
        self, store: str | None = None, encodings: str | None = None, say: Say | None = None
    ) -> list[str]:
        """Return the ids of the runs that are finished in a store; `encodings` selects some, e.g. `nope,t5`."""
        self._refuse_if_blind(store)  # they are asked for to be analyzed or probed, at unseen lengths too
        found = self._status(store)
        only = None if encodings is None else {str(canonical_encoding(spec)) for spec in parse_specs(encodings)}
        done = {item.key for item in found.done}
        wanted = [item for item in found.items if item.kind == "run" and (only is None or item.point.encoding in only)]
        there = [item.key for item in wanted if item.key in done]
        if not there:
            raise self._nothing_done(store)
        if say is not None and len(there) < len(wanted):
            say(f"{len(there)} of {len(wanted)} runs of {self.name} are done; only these are used")
        return there

    def rows(self, store: str | None = None, say: Say | None = None) -> pl.DataFrame:
        """Return the rows of all finished runs and evaluations, in the store and in the bundle."""
        from lengthwise.reporting.findings import rows_of

        self._refuse_if_blind(store)
        items = [item for item in self.items(store) if item.kind != "tuning"]
        found = rows_of(items, Store(store or self.store), self._bundle(), say)
        if not found.height:
            raise self._nothing_done(store)
        return found

    def _refuse_if_blind(self, store: str | None) -> None:
        """Refuse a blind study, or a part of one, while runs are left; added encodings need not do other tasks."""
        bundle = self._bundle(use_committed=True)
        given = None if bundle is None else bundle.ended_records
        for planned in (self.planned, Planned(self.before_adding.study)) if self.file.blind else ():
            refuse_if_blind(self.file, status(planned, Store(store or self.store), given).left)

    def _nothing_done(self, store: str | None) -> SpecError:
        again = f"lengthwise study run {self.source}" if self.source else "run() on it"
        return SpecError(f"nothing of {self.name} is done in {store or self.store}; {again} does it")

    def report(
        self,
        to: str | Path | None = None,
        *,
        store: str | None = None,
        pdf: bool = False,
        latex: bool = False,
        write: bool = True,
        say: Say | None = None,
    ) -> StudyReport:
        """Report verdict, tables and figures, as one self-contained page in the folder `to`.

        Runs that are not in the store are taken from the committed results of this study, if there are any.
        """
        with progress(say) as tell:
            found = self.findings(store, say=tell)
            tell("computing intervals and drawing")
            page = page_of(found, reproducing_commands(self, store))
            return written_page(page, to or OUTPUT / f"report-{self.name}", pdf, latex) if write else StudyReport(page)

    def findings(
        self,
        store: str | None = None,
        failed: Mapping[str, str] | None = None,
        rerun_comparison: RerunComparison | None = None,
        say: Say | None = None,
        more_seeds_advice: str | None = None,
        use_committed: bool = True,
    ) -> Findings:
        """Gather all results for a report; `more_seeds_advice` is the advice it prints for getting more seeds."""
        from lengthwise.reporting.findings import collect_findings

        self._refuse_if_blind(store)
        return collect_findings(
            self.planned,
            Store(store or self.store),
            self._bundle(use_committed),
            failed=self._status(store).failed if failed is None else failed,
            encodings_of_interest=[canonical_encoding_text(name) for name in self.add],
            rerun_sentence=None if rerun_comparison is None else rerun_comparison.sentence,
            more_seeds_advice=more_seeds_advice,
            on_progress=say or (lambda words: None),
        )
