"""The results of a study, gathered for its report: labelled rows, logs, wrong answers, costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from lengthwise.checksums import Damaged
from lengthwise.encoding.labels import unique_labels
from lengthwise.spec import Spec, SpecError, format_value
from lengthwise.statistics.learned import scored_rows_filter
from lengthwise.statistics.table import score_table
from lengthwise.study.bundle import Bundle
from lengthwise.study.plan import GridPoint, Item, LearningRateChoice, Planned, failed_before
from lengthwise.study.proof import OnlyEncodingDiffersResult, check_only_encoding_differs
from lengthwise.study.status import refuse_if_blind
from lengthwise.study.store import Store
from lengthwise.training.health import Diverged

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.study.file import StudyFile

_MANY = 1500
"""With more runs than this, logs and single answers are not read, because reading them takes minutes."""


@dataclass(frozen=True)
class Findings:
    """All data of a study's report."""

    study: StudyFile
    items: list[Item]
    """The runs of the study that are done."""
    planned: int
    """The number of runs of the complete study."""
    wanted: Sequence[Item] = field(kw_only=True, default=())
    """All runs of the study, including those that are not done."""
    rows: pl.DataFrame
    """The rows of the finished runs, with the columns `task, encoding, seed`."""
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Run → done record, run.json, some of the log."""
    wrong: pl.DataFrame | None = None
    kinds: pl.DataFrame | None = None
    choices: Sequence[LearningRateChoice] = ()
    proof: OnlyEncodingDiffersResult | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    """Run → why it failed; without diverged runs."""
    diverged: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Diverged run → `step`, `parameter`, `last_loss`. Divergence is a result: a rerun would diverge again."""
    focus: Sequence[str] = ()
    """Encodings of interest, e.g. from `--add`; they are compared with all others."""
    guard: str | None = None
    more: str = "write seeds: {seeds} in the study file"
    """The advice for getting more seeds."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """The store and the bundle from which the rows were read → how many runs each of them gave."""

    @cached_property
    def encodings(self) -> list[str]:
        """In the study's order."""
        return list(dict.fromkeys(self.names[item.key] for item in self.ended_runs))

    @cached_property
    def tasks(self) -> list[str]:
        """In the study's order."""
        return list(dict.fromkeys(item.point.task for item in self.ended_runs))

    @cached_property
    def ended_runs(self) -> list[Item]:
        """The runs that are done or diverged."""
        done = {item.key for item in self.items}
        return [item for item in self.wanted or self.items if item.key in done or item.key in self.diverged]

    @cached_property
    def names(self) -> dict[str, str]:
        """Run → its name in the report: its encoding, and what else varies within a task."""
        return encoding_label_by_run(self.wanted or self.items)

    @cached_property
    def trained(self) -> dict[str, tuple[int, str]]:
        """Task → the longest trained length, and its unit."""
        return {item.point.task: (item.plan.task.longest, item.plan.task.unit) for item in self.ended_runs}

    @cached_property
    def labels(self) -> dict[str, str]:
        """Name of a run in the report → the label that figures and tables print, e.g. NoPE, RoPE ¼."""
        known: dict[str, str] = {}
        for record in self.records.values():
            known |= record["run"].get("recorded", {}).get("labels", {})
        points = {self.names[item.key]: item.point for item in self.ended_runs}
        used = dict.fromkeys(encoding for point in points.values() for encoding in _encodings_by_stage(point))
        plain = unique_labels(list(used), known)
        return {
            name: _through_stages(point, plain) + name.removeprefix(_through_stages(point))
            for name, point in points.items()
        }

    def label(self, name: str) -> str:
        """Return the label of an encoding of the report."""
        return self.labels.get(name, name)

    def head_width(self, task: str, name: str) -> int:
        """Return the width of a head in the runs of an encoding of the report on a task."""
        return self._head_widths[task, name]

    @cached_property
    def _head_widths(self) -> dict[tuple[str, str], int]:
        runs = self.wanted or self.items
        return {(item.point.task, self.names[item.key]): item.plan.model.head_width for item in runs}

    def short(self, task: str) -> str:
        """Return a task's short name, or its full name if the short one is ambiguous: `copy same`, `sort multi`."""
        mine = short_task_name(task)
        return task if self._short_names[mine] > 1 else mine

    @cached_property
    def _short_names(self) -> Counter[str]:
        return Counter(map(short_task_name, self.tasks))

    @cached_property
    def cells(self) -> pl.DataFrame:
        """Counts with the last weights, for each task, encoding, seed and length."""
        import polars as pl

        kept = self.rows.filter(scored_rows_filter())
        counts = ("examples", "correct", "correct_content", "early", "late", "wrong", "cut")
        return (
            kept.group_by("task", "encoding", "seed", "split", "seen", "length", maintain_order=True)
            .agg(*(pl.col(name).sum() for name in counts), pl.col("chance").max())
            .filter(pl.col("examples") > 0)
            .with_columns((pl.col("correct") / pl.col("examples")).alias("accuracy"))
            .sort("task", "encoding", "seed", "length")
        )

    @property
    def seeds(self) -> int:
        """The number of different seeds among finished runs."""
        return len({item.point.seed for item in self.items})


def short_task_name(task: str) -> str:
    """Return a task's short name: `copy same`, `sort multi`, `addition`; for `my_task.py:Mine`, `Mine`."""
    spec = Spec.of(task)
    name = spec.name.rpartition(":")[2]
    return " ".join([name, *(format_value(value) for key, value in spec.options if key in {"variant", "scratchpad"})])


def encoding_label_by_run(items: Sequence[Item]) -> dict[str, str]:
    """Return run → its encoding, and what varies of positions, model and training within a task and stage.

    e.g. `nape normaliser=entmax` in a study whose models have two layers for one task and three for another.
    """
    varying = {axis: _what_varies(items, axis) for axis in ("positions", "model", "training")}
    names = {}
    for item in items:
        parts = [_through_stages(item.point)]
        for axis, (name, options) in varying.items():
            spec = Spec.of(getattr(item.point, axis))
            shown = Spec(spec.name, tuple(one for one in spec.options if one[0] in options))
            parts.append(str(shown) if name else str(shown).removeprefix(spec.name).removeprefix(":"))
        names[item.key] = " ".join(filter(None, parts))
    shared = Counter((item.point.task, item.point.seed, names[item.key]) for item in items)
    for item in items:  # stages that differ only in what they started from
        if shared[item.point.task, item.point.seed, names[item.key]] > 1 and item.point.start is not None:
            first = item.point.chain[0]
            names[item.key] += f" after {first.positions} {first.model} {first.training}"
    return names


def _what_varies(items: Sequence[Item], axis: str) -> tuple[bool, set[str]]:
    """Return whether the name of an axis varies within a task and stage, and which of its options do."""
    groups: dict[tuple[str, int], set[Spec]] = {}
    for item in items:
        groups.setdefault((item.point.task, item.point.stage), set()).add(Spec.of(getattr(item.point, axis)))
    name, options = False, set[str]()
    for specs in groups.values():
        name = name or len({spec.name for spec in specs}) > 1
        given = [set(spec.options) for spec in specs]
        options |= {key for key, _ in set.union(*given) - set.intersection(*given)}
    return name, options


def _encodings_by_stage(point: GridPoint) -> list[str]:
    """Return the encodings of a point and of the stages before it, first stage first, without repetitions."""
    return [encoding for encoding, _ in groupby(one.encoding for one in point.chain)]


def _through_stages(point: GridPoint, labels: Mapping[str, str] | None = None) -> str:
    """Return the encoding of a point, e.g. `nope stage 2`; `rope → nope stage 1` if an earlier stage had another."""
    used = " → ".join((labels or {}).get(one, one) for one in _encodings_by_stage(point))
    return used if point.start is None else f"{used} stage {point.stage}"


def run_label_table(items: Sequence[Item], diverged: Mapping[str, Mapping[str, Any]] | None = None) -> pl.DataFrame:
    """Return the labels of each run in the report: `run, task, encoding, seed`, and the step at which it `diverged`."""
    import polars as pl

    names = encoding_label_by_run(items)
    steps = {key: told["step"] for key, told in (diverged or {}).items()}
    lines = [(item.key, item.point.task, names[item.key], item.point.seed, steps.get(item.key)) for item in items]
    kinds = {"run": pl.String, "task": pl.String, "encoding": pl.String, "seed": pl.Int64, "diverged": pl.Int64}
    return pl.DataFrame(lines, schema=kinds, orient="row")


def collect_findings(
    planned: Planned,
    store: Store | None,
    bundle: Bundle | None = None,
    *,
    failed: Mapping[str, str] | None = None,
    encodings_of_interest: Sequence[str] = (),
    rerun_sentence: str | None = None,
    more_seeds_advice: str | None = None,
    on_progress: Callable[[str], None] = lambda words: None,
) -> Findings:
    """Read the finished runs of a study from its store, and those that the store lacks from a bundle."""
    import polars as pl

    given = {} if bundle is None else bundle.summaries
    tuned = [item.key for tried in planned.tuning.values() for item in tried]
    summaries = {
        **({} if bundle is None else bundle.ended_records),
        **({} if store is None else store.ended_records(tuned)),
        **given,
    }
    everything, waiting = planned.items(summaries)
    runs = [item for item in everything if item.kind == "run"]
    tables, records, wrong, kinds = [], dict[str, Any](), [], []
    there = frozenset[str]() if store is None else store.done()
    few = sum(item.key in there or item.key in given for item in runs) <= _MANY
    if store is not None:
        tables.append(store.rows([item.key for item in everything if item.kind != "tuning"], on_progress))
        if few:
            on_progress("reading logs and answers")
            own = [item.key for item in runs if item.key in there]
            records, parts = store.records(own), store.wrong_answers_and_outcomes(own)
            wrong.append(parts[0]), kinds.append(parts[1])
    here = there - store.damaged.keys() if store is not None else there  # without what was found damaged while reading
    mine = [item.key for item in runs if item.key in here]
    theirs = [item.key for item in runs if item.key not in here and item.key in given]
    keys = [item.key for item in runs]
    diverged = _diverged(keys, store, bundle)
    ended = {*mine, *theirs, *diverged, *failed_before(runs, dict.fromkeys(diverged, "diverged"))}
    left = len(runs) + len(waiting) - len(ended)
    refuse_if_blind(planned.study, left)
    if not mine and not theirs:
        if diverged:
            first = Diverged.read(next(iter(diverged.values())))
            raise SpecError(
                f"every run of {planned.study.name} that ended diverged ({len(diverged)}); the first {first}"
            )
        raise SpecError(f"nothing of {planned.study.name} is done yet; lengthwise study run does it")
    tables = [_of(table, mine) for table in tables]
    if bundle is not None and theirs:
        tables.append(bundle.rows.filter(pl.col("run").is_in(theirs)))
    finished = {*mine, *theirs}
    items = [item for item in runs if item.key in finished]
    wanted = [*runs, *planned.runs_at_preset_lr(waiting)]
    records = {key: record for key, record in records.items() if key in here}
    records |= {} if bundle is None else {key: bundle.records[key] for key in theirs}
    wrong, kinds = [_of(table, mine) for table in wrong], [_of(table, mine) for table in kinds]
    if few and bundle is not None and theirs:
        parts = bundle.wrong_answers_and_outcomes()
        wrong.append(_of(parts[0], theirs)), kinds.append(_of(parts[1], theirs))
    return Findings(
        study=planned.study,
        items=items,
        planned=len(wanted),
        wanted=wanted,
        rows=_with_labels(pl.concat(tables), wanted, {item.key for item in items}),
        records=records,
        wrong=_together(wrong),
        kinds=_together(kinds),
        choices=list(planned.learning_rate_choices(summaries).values()),
        proof=check_only_encoding_differs(
            planned.runs_at_preset_lr(planned.points) if planned.study.lr is not None else runs
        ),
        failed={key: why for key, why in (failed or {}).items() if key not in diverged},
        diverged=diverged,
        focus=[name for name in encodings_of_interest if name in {item.point.encoding for item in runs}],
        guard=rerun_sentence,
        **({} if more_seeds_advice is None else {"more": more_seeds_advice}),
        sources={str(one): len(own) for one, own in ((store, mine), (bundle and bundle.folder, theirs)) if own},
    )


def rows_of(
    items: Sequence[Item], store: Store, bundle: Bundle | None, on_progress: Callable[[str], None] | None = None
) -> pl.DataFrame:
    """Return the rows of finished runs and evaluations: those of the store, and what it lacks from the bundle."""
    import polars as pl

    found = store.rows([item.key for item in items], on_progress)
    if bundle is None:
        return found
    wanted = {item.run_id for item in items} - set(found["run"].to_list())
    return pl.concat([found, bundle.rows.filter(pl.col("run").is_in(list(wanted)))])


def learned_table(items: Sequence[Item], store: Store, bundle: Bundle | None) -> list[dict[str, str]]:
    """Return a line per task: each encoding's mean accuracy at seen lengths, and how many of its runs learned.

    `items` are those that ended: a run that diverged has not learned. Unseen lengths are not looked at.
    e.g. `{"task": "sort", "nope": ".998, 3 of 3 learned"}`.
    """
    import polars as pl

    runs = [item for item in items if item.kind == "run"]
    diverged = _diverged([item.key for item in runs], store, bundle)
    scores = score_table(rows_of(runs, store, bundle).filter("seen"), run_label_table(runs, diverged))
    cells = scores.group_by("task", "encoding", maintain_order=True).agg(
        pl.col("seen").mean(), pl.col("learned").sum().alias("runs"), pl.col("learned").count().alias("all")
    )
    lines: dict[str, dict[str, str]] = {item.point.task: {"task": item.point.task} for item in runs}
    for task, encoding, mean, learned, many in cells.iter_rows():
        score = "diverged" if mean is None else f"{mean:.3f}"
        lines[task][encoding] = f"{score}, {learned} of {many} learned" if many else "-"
    return list(lines.values())


def _diverged(keys: Sequence[str], store: Store | None, bundle: Bundle | None) -> dict[str, Mapping[str, Any]]:
    """Return the runs of `keys` that diverged in the store or the bundle, and what was recorded of each."""
    of_bundle = {} if bundle is None else bundle.diverged
    of_store = {} if store is None else store.diverged(keys)
    return {**{key: of_bundle[key] for key in keys if key in of_bundle}, **of_store}


def _with_labels(rows: pl.DataFrame, items: Sequence[Item], finished: set[str]) -> pl.DataFrame:
    """Add task, encoding and seed to rows; raises if a run has none, or `seen` is not what its task was trained on."""
    import polars as pl

    lacking = finished - set(rows.filter(scored_rows_filter())["run"])
    if lacking:
        raise Damaged(f"run {min(lacking)} counts as done, but has no rows of its last weights")
    rows = rows.join(run_label_table(items).drop("diverged"), on="run", how="inner")
    runs_of_task: dict[str, list[Item]] = {}
    for item in items:  # the same name may have other lengths with another model or training
        runs_of_task.setdefault(str(item.plan.task_spec), []).append(item)
    for task, own in runs_of_task.items():
        seen = pl.col("length").is_in(own[0].seen_lengths)
        wrong = rows.filter(pl.col("run").is_in([item.key for item in own]) & (pl.col("seen") != seen))
        if wrong.height:
            first = wrong.row(0, named=True)
            raise Damaged(
                f"run {first['run']} has rows that no evaluation writes: length {first['length']} of {task} is "
                f"called {'seen' if first['seen'] else 'unseen'}"
            )
    return rows


def _of(table: pl.DataFrame, runs: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    return table.filter(pl.col("run").is_in(list(runs))) if table.height else table


def _together(tables: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    import polars as pl

    there = [table for table in tables if table.height]
    return pl.concat(there, how="diagonal") if there else None
