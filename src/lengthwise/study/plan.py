"""Plan a study: list its runs in order, the tuning runs they depend on, and what differs between them.

No torch is imported: ten thousand runs are planned in about a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Any, Literal

from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.model.config import TEMPERATURES
from lengthwise.run.identity import Plan, identity_part
from lengthwise.spec import Spec, SpecError, digest, parse_specs
from lengthwise.study.file import AXES, ORDER, FurtherEvaluation, LaterStage, StudyFile
from lengthwise.task import TASKS
from lengthwise.task.sets import lengths_of

Kind = Literal["tuning", "run", "evaluation"]
TIE = 0.02
"""Exact matches within this of the best count as equal, and the rate nearest the middle is taken."""

WORST_LOSS = 100.0
"""The loss per token of a language model that diverged, for the choice of a learning rate."""


@dataclass(frozen=True)
class GridPoint:
    """A run of the study before its learning rate is known: its value on every axis, and its seed."""

    task: str
    encoding: str
    positions: str
    model: str
    training: str
    seed: int
    stage: int = 0
    """0 for a run that starts from random weights; 1 for the first entry of the study's `then`, and so on."""
    start: GridPoint | None = None
    """The run of an earlier stage whose weights this one starts from."""

    @property
    def chain(self) -> tuple[GridPoint, ...]:
        """The points of all stages up to this one, the first stage first."""
        return (self,) if self.start is None else (*self.start.chain, self)

    def labels(self) -> dict[str, str | int]:
        """Axis → value."""
        return {axis: getattr(self, axis) for axis in (*AXES, "seed", "stage")}


@dataclass(frozen=True)
class Item:
    """A piece of work: a run, a tuning run, or an evaluation of a run."""

    key: str
    """The run's id; for an evaluation, the run's id, `~` and a hash of the evaluation."""
    kind: Kind
    point: GridPoint
    plan: Plan
    evaluation: FurtherEvaluation | None = None
    start: Plan | None = None
    """The plan of the run whose weights this one starts from."""

    @property
    def run_id(self) -> str:
        """The id of the run, or of the run that is evaluated."""
        return self.plan.id

    @property
    def start_id(self) -> str | None:
        """The id of the run whose weights this one starts from."""
        return None if self.start is None else self.start.id

    @property
    def seen_lengths(self) -> list[int]:
        """The lengths that are trained on."""
        return list(lengths_of(self.plan.task, "train"))


@dataclass(frozen=True)
class LearningRateChoice:
    """A learning rate chosen by the rule, or still waiting for its tuning runs."""

    encoding: str
    group: str
    """The task on which the rate is chosen."""
    rest: tuple[str, ...]
    """Positions, model and training."""
    tried: tuple[Item, ...]
    rates: tuple[float, ...]
    scores: tuple[float | None, ...]
    """Mean exact match of each rate's tuning runs; None if one of them is not done."""

    @property
    def lr(self) -> float | None:
        """Of the rates within .02 of the best at seen lengths, the most central; None until all tuning runs are done.

        `.001: .985, .002: .97, .004: .99` gives .002.
        """
        there = [score for score in self.scores if score is not None]
        if len(there) < len(self.scores):
            return None
        near = [rate for score, rate in zip(there, self.rates, strict=True) if score > max(there) - TIE - 1e-12]
        middle = log(sorted(self.rates)[(len(self.rates) - 1) // 2])
        return min(near, key=lambda rate: (round(abs(log(rate) - middle), 9), rate))

    @property
    def lr_at_edge(self) -> bool:
        """Whether the best rate is the lowest or highest tried, so that a better one may lie outside the range."""
        return self.lr in {min(self.rates), max(self.rates)}


class Planned:
    """The runs of a study: `Planned(study).items({})`."""

    def __init__(
        self, study: StudyFile, tasks: Iterable[str] | None = None, encodings: Iterable[str] | None = None
    ) -> None:
        self.study = study
        self.tasks = None if tasks is None else set(tasks)
        self._encodings = None if encodings is None else set(encodings)
        """Plan only these encodings of the study; None means all."""
        self._plans: dict[tuple[GridPoint, tuple[tuple[str, object], ...]], Plan] = {}
        self._plans_without_seed: dict[tuple[object, ...], Plan] = {}

    @cached_property
    def points(self) -> list[GridPoint]:
        """All points, seed by seed, so that an unfinished study is a complete comparison with fewer seeds."""
        study, found = self.study, []
        crossed = {axis: listed for axis in ORDER if (listed := getattr(study.vary, axis)) is not None}
        for number, seed in enumerate(study.seed_list):
            for entry in study.linked or [None]:
                if entry is not None and entry.seeds is not None and number >= entry.seeds:
                    continue
                fixed: dict[str, Any] = {axis: getattr(study.base, axis) for axis in AXES}
                fixed |= {axis: value for axis in AXES if (value := getattr(entry, axis, None)) is not None}
                for values in itertools.product(*crossed.values()):
                    point = GridPoint(**{**fixed, **dict(zip(crossed, values, strict=True))}, seed=seed)
                    if self._wanted(point):
                        found += self._with_later_stages(point)
        twice = [point for point, count in _counted(found).items() if count > 1]
        if twice:
            raise SpecError(f"the study has a run twice: {twice[0].task}, {twice[0].encoding}, seed {twice[0].seed}")
        return found

    def _with_later_stages(self, point: GridPoint) -> list[GridPoint]:
        """Return a point and the stages that follow it, each of which starts from the one before."""
        found = [point]
        for stage, entry in enumerate(self.study.then, 1):
            if entry.after is None or entry.after == found[-1].encoding:
                changed = {axis: value for axis in AXES if (value := getattr(entry, axis, None)) is not None}
                found.append(replace(found[-1], **changed, stage=stage, start=found[-1]))
        return found

    def later_stage(self, point: GridPoint) -> LaterStage:
        """Return the entry of `then` that a point of a later stage is made by."""
        return self.study.then[point.stage - 1]

    def _wanted(self, point: GridPoint) -> bool:
        return (self.tasks is None or point.task in self.tasks) and (
            self._encodings is None or point.encoding in self._encodings
        )

    def plan(self, point: GridPoint, **training: object) -> Plan:
        """Return the plan of a point, with changes to its training; cached, and built once for all seeds."""
        if point.start is not None:
            assert not training, "only the first stage is tuned"
            return self._continued(point, self.plan(point.start))
        return self._planned(point, training)

    def _continued(self, point: GridPoint, before: Plan) -> Plan:
        """Return the plan of a later stage, which starts from the weights of the run `before`."""
        keeps = self.study.lr is not None and "lr" not in dict(Spec.of(point.training).options)
        made = self._planned(replace(point, stage=0, start=None), {"lr": before.training.lr} if keeps else {})
        return replace(made, start=(("checkpoint", self.later_stage(point).checkpoint), ("run", before.id)))

    def _planned(self, point: GridPoint, training: Mapping[str, object]) -> Plan:
        key = (point, tuple(training.items()))
        if key not in self._plans:
            like = (*(getattr(point, axis) for axis in AXES), key[1])
            if like not in self._plans_without_seed:
                self._plans_without_seed[like] = self._plan(point, training)
            self._plans[key] = self._plans_without_seed[like].with_seed(point.seed)
        return self._plans[key]

    def _plan(self, point: GridPoint, training: Mapping[str, object]) -> Plan:
        given = Spec.of(point.training)
        merged = Spec(given.name, tuple({**dict(given.options), **training}.items()))  # pyrefly: ignore
        return Plan.of(
            point.task,
            point.encoding,
            positions=point.positions,
            model=point.model,
            training=merged,
            seed=point.seed,
            check=False,
        )

    # --- the learning rate -------------------------------------------------------------------------------------------

    def _tuned_on(self, point: GridPoint) -> GridPoint:
        """Return the point whose tuning runs choose this point's rate: first task of its group, first tuning seed."""
        rule = self.study.lr
        assert rule is not None
        head = self._heads.get(point.task, point.task)
        first = point if head == point.task else self._first.get((head, self._alike(point)))
        if first is None:
            raise SpecError(
                f"lr.groups: the rate of {point.task!r} is chosen on {head!r}, which has no run with encoding "
                f"{point.encoding!r} and positions {point.positions!r}; put them into different groups"
            )
        return replace(first, seed=rule.seeds[0])

    @cached_property
    def _heads(self) -> dict[str, str]:
        """Task → the first task of its group."""
        groups = [] if self.study.lr is None else self.study.lr.groups
        return {task: group[0] for group in groups for task in group}

    def _alike(self, point: GridPoint) -> tuple[str, ...]:
        """Return the labels that a point shares with the point on which its rate is chosen."""
        same = [axis for axis in ORDER if axis != "task" and getattr(self.study.vary, axis) is not None]
        return tuple(getattr(point, axis) for axis in dict.fromkeys([*same, "encoding", "positions"]))

    @cached_property
    def _first(self) -> dict[tuple[str, tuple[str, ...]], GridPoint]:
        """(task, labels of `_alike`) → the first such point."""
        whole = self if self.tasks is None else Planned(self.study, None, self._encodings)
        found: dict[tuple[str, tuple[str, ...]], GridPoint] = {}
        for point in (one for one in whole.points if one.start is None):
            found.setdefault((point.task, self._alike(point)), point)
        return found

    @cached_property
    def tuning(self) -> dict[GridPoint, tuple[Item, ...]]:
        """For each tuned point, a run of half the steps per rate and tuning seed, rate by rate."""
        rule, found = self.study.lr, dict[GridPoint, tuple[Item, ...]]()
        if rule is None:
            return found
        for point in dict.fromkeys(self._tuned_on(point) for point in self.points if point.start is None):
            steps = max(1, self.plan(point).training.steps // 2)
            tried = [(replace(point, seed=seed), rate) for rate in rule.choose for seed in rule.seeds]
            plans = [(one, self.plan(one, steps=steps, lr=rate)) for one, rate in tried]
            found[point] = tuple(Item(plan.id, "tuning", one, plan) for one, plan in plans)
        return found

    def learning_rate_choices(self, summaries: Mapping[str, Mapping[str, Any]]) -> dict[GridPoint, LearningRateChoice]:
        """Return the choice for each tuned point, from the records of the tuning runs that ended."""
        rule = self.study.lr
        if rule is None:
            return {}
        return {
            point: LearningRateChoice(
                point.encoding,
                point.task,
                (point.positions, point.model, point.training),
                tried,
                tuple(rule.choose),
                tuple(
                    _mean([_score(summaries.get(item.key), item.plan.task_spec.name) for item in own])
                    for own in _in_groups(tried, len(rule.seeds))
                ),
            )
            for point, tried in self.tuning.items()
        }

    # --- the work ----------------------------------------------------------------------------------------------------

    def items(self, summaries: Mapping[str, Mapping[str, Any]]) -> tuple[list[Item], list[GridPoint]]:
        """Return the known items in order, and the points whose rate waits for tuning runs."""
        found, waiting = [item for tried in self.tuning.values() for item in tried], []
        learning_rate_choices, plans = self.learning_rate_choices(summaries), dict[GridPoint, Plan]()
        for point in self.points:
            changed: dict[str, object] = {}
            if point.start is not None and point.start not in plans:
                waiting.append(point)
                continue
            if self.study.lr is not None and point.start is None:
                rate = learning_rate_choices[self._tuned_on(point)].lr
                if rate is None:
                    waiting.append(point)
                    continue
                changed["lr"] = rate
            plan = plans[point] = (
                self.plan(point, **changed) if point.start is None else self._continued(point, plans[point.start])
            )
            found.append(Item(plan.id, "run", point, plan, start=plans[point.start] if point.start else None))
            for evaluation in self._evaluations(point):
                mark = _mark(evaluation)
                found.append(Item(f"{plan.id}~{mark:08x}", "evaluation", point, plan, evaluation))
        return found, waiting

    def runs_at_preset_lr(self, waiting: Iterable[GridPoint]) -> list[Item]:
        """Return the runs of waiting points with their training preset's rate; all but the rate is final."""
        plans = [(point, self.plan(point)) for point in waiting]
        return [
            Item(plan.id, "run", point, plan, start=self.plan(point.start) if point.start else None)
            for point, plan in plans
        ]

    def item_counts(self) -> dict[str, int]:
        """Return how many items of each kind the study will have."""
        runs = len(self.points)
        tuning = sum(len(tried) for tried in self.tuning.values())
        evaluations = sum(len(self._evaluations(point)) for point in self.points)
        return {"tuning": tuning, "runs": runs, "evaluations": evaluations}

    def _evaluations(self, point: GridPoint) -> list[FurtherEvaluation]:
        """Return the further evaluations of a point's run."""
        wanted = (None, point.encoding) if self.study.evaluations else ()
        return [one for one in self.study.evaluations if one.of in wanted]

    def outside_code_names(self) -> list[str]:
        """Return the names of code from outside the package, without importing it."""
        study, found = self.study, []
        points = self.points
        if study.lr is not None:  # a rate may be chosen on a task that is not selected
            points = [*points, *dict.fromkeys(self._tuned_on(point) for point in points if point.start is None)]
        axes = ("task", "positions", "encoding", "model")
        listed = [(axis, value) for axis in axes for value in dict.fromkeys(getattr(point, axis) for point in points)]
        listed += [("encoding", one.encoding) for one in study.evaluations if one.encoding is not None]
        listed += [("temperature", one.temperature) for one in study.evaluations if one.temperature is not None]
        tables: dict[str, Mapping[str, str]] = {"task": TASKS, "positions": POSITIONS, "encoding": ENCODINGS}
        for kind, text in dict.fromkeys(listed):
            for spec in parse_specs(text):
                names = [spec.name]
                if kind == "model":  # its options that name code
                    given = [value for key, value in spec.options if key in {"normaliser", "temperature"}]
                    names = [Spec.of(str(value[0] if isinstance(value, tuple) else value)).name for value in given]
                for name in names:
                    if name not in tables.get(kind, {}) and (":" in name or name.endswith(".py")):
                        found.append(name)
        return list(dict.fromkeys(found))


def runs_without_weights(items: Sequence[Item], done: Container[str], given: Container[str]) -> set[str]:
    """Return the runs of a bundle (`given`) that must be done again, because a later stage needs their weights."""
    found: set[str] = set()
    for item in reversed(items):
        there = item.key in done or (item.key in given and item.key not in found)
        if item.kind == "run" and item.start_id is not None and not there and item.start_id not in done:
            found.add(item.start_id)
    return found


def failed_before(items: Iterable[Item], failed: Mapping[str, str]) -> dict[str, str]:
    """Return the runs of later stages that cannot be done because a run of an earlier one has failed, and why."""
    found: dict[str, str] = {}
    for item in items:
        if item.kind == "run" and item.start_id is not None and (item.start_id in failed or item.start_id in found):
            found[item.key] = f"it starts from {item.start_id}, which has failed"
    return found


def _counted(points: Iterable[GridPoint]) -> dict[GridPoint, int]:
    counts: dict[GridPoint, int] = {}
    for point in points:
        counts[point] = counts.get(point, 0) + 1
    return counts


def _score(record: Mapping[str, Any] | None, task: str) -> float | None:
    """Return how good a tuning run's last validation is, None if it has not ended; a run that diverged is worst.

    That is exact match, and for a language model the loss per token in nats, negated.
    """
    if record is None:
        return None
    worst = -WORST_LOSS if task == "text" else 0.0
    if "diverged" in record:
        return worst
    told = record.get("validation")
    if task == "text" and told:
        return worst if told["loss"] is None else -told["loss"] / told["targets"]
    return told["correct"] / told["examples"] if told else None


def _in_groups(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if len(known) == len(scores) else None


def _mark(evaluation: FurtherEvaluation) -> int:
    """Hash an evaluation: its fields, and the version or source of its encoding and temperature."""
    encodings = parse_specs(evaluation.encoding or "")
    parts = [identity_part("encoding", ENCODINGS, canonical_encoding(spec)) for spec in encodings]
    if evaluation.temperature and (temperature := Spec.of(evaluation.temperature)).name not in TEMPERATURES:
        parts.append(identity_part("temperature", TEMPERATURES, temperature))
    return digest(evaluation.model_dump(exclude_defaults=True), *parts, bits=32)
