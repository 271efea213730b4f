"""The study file (YAML, data only): a question, a base run, what varies, what varies together, seeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lengthwise.evaluation.cases import parse_lengths
from lengthwise.spec import Spec, SpecError, did_you_mean, format_value, parse_specs
from lengthwise.study.reading import StudyFileMistakes, error_lines, load_yaml

AXES = ("task", "encoding", "positions", "model", "training")
"""The axes that can vary. Runs are listed in `ORDER`, slowest axis first, so that encodings are side by side."""
ORDER = ("task", "positions", "model", "training", "encoding")
TUNING_SEEDS = (1000, 1001)
RATES = (1e-3, 2e-3, 4e-3)
RUNS = 100_000
"""The maximal number of runs of a study."""


def _twice(values: Iterable[object]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def _named(value: object) -> str:
    """Return a name with options as text; YAML may write it as a mapping, or a list with one encoding per layer."""
    if isinstance(value, list):
        if not value or any(isinstance(one, list) for one in value):
            raise ValueError("a list of encodings has one name for each layer, e.g. [nope, rope]")
        return ",".join(_named(one) for one in value)
    if not isinstance(value, str | Mapping):
        raise ValueError(f"write a name, e.g. rope:fraction=0.25, not {format_value(value)!r:.80}")
    try:
        spec = Spec.of(value) if isinstance(value, Mapping) or "," not in value else None
        text = ",".join(map(str, parse_specs(str(value)))) if spec is None else str(spec)
        if not text or len(text) > 4000 or not text.isprintable():
            raise SpecError(f"a name is 1 to 4000 characters that can be printed, not {text!r:.80}")
        again = parse_specs(text)
    except SpecError as error:
        raise ValueError(str(error)) from None
    if isinstance(value, Mapping) and spec is not None and not (len(again) == 1 and _alike(again[0], spec)):
        raise ValueError(f"{text!r:.80} would be read as something else: leave out , : [ ] and quotes in its options")
    return text


def _alike(one: Spec, other: Spec) -> bool:
    """Return whether a mapping survives its conversion to text: a value with a colon would become two options."""
    return one.name == other.name and _shape(one.options) == _shape(other.options)


def _shape(value: object) -> object:
    return tuple(map(_shape, value)) if isinstance(value, tuple) else format_value(value)


def _seeded(value: object) -> object:
    """Validate seeds, a number or a list, with one error message for both."""
    if isinstance(value, list):
        sound = 1 <= len(value) <= 1000 and all(type(one) is int and 0 <= one < 2**31 for one in value)
    else:
        sound = type(value) is int and 1 <= value <= 1000
    if not sound:
        raise ValueError(
            f"write how many, 1 to 1000, or a list of up to 1000 whole numbers from 0, not {format_value(value)!r:.80}"
        )
    return value


_Spelled = str | dict[str, Any]
Named = Annotated[str, BeforeValidator(_named, json_schema_input_type=_Spelled | list[_Spelled])]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Part(BaseModel):
    """Base class of the parts of a study file: unknown keys are an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class BaseRunOptions(Part):
    """The run that every run of the study is, but for what varies."""

    task: Named | None = None
    """A task, e.g. `copy:variant=same`."""
    encoding: Named | None = None
    """An encoding, e.g. `rope:fraction=0.25`; a list has one for each layer."""
    positions: Named = "consecutive"
    """The kind of positions, e.g. `randomized:limit=256`."""
    model: Named = "laptop"
    """A model preset, e.g. `laptop:layers=3`."""
    training: Named = "laptop"
    """A training preset, e.g. `laptop:steps=500`."""


class LinkedOptions(Part):
    """Things that vary together: a task with its own training, say. What is left out is as in `base`."""

    task: Named | None = None
    """A task."""
    encoding: Named | None = None
    """An encoding."""
    positions: Named | None = None
    """The kind of positions."""
    model: Named | None = None
    """A model preset."""
    training: Named | None = None
    """A training preset."""
    seeds: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Fewer of the study's seeds for this one: the first so many."""


class CrossedOptions(Part):
    """Each list is crossed with every other."""

    task: Annotated[list[Named], Field(min_length=1)] | None = None
    """Tasks."""
    encoding: Annotated[list[Named], Field(min_length=1)] | None = None
    """Encodings."""
    positions: Annotated[list[Named], Field(min_length=1)] | None = None
    """Kinds of positions."""
    model: Annotated[list[Named], Field(min_length=1)] | None = None
    """Model presets."""
    training: Annotated[list[Named], Field(min_length=1)] | None = None
    """Training presets."""

    @model_validator(mode="after")
    def _once(self) -> CrossedOptions:
        StudyFileMistakes.raise_if_any(
            f"{axis} {one!r} is listed twice" for axis in AXES for one in _twice(getattr(self, axis) or [])
        )
        return self


class LaterStage(Part):
    """A stage that follows: each run of it starts from the weights of a run of the stage before.

    What is left out is as in the stage before, also a learning rate chosen by rule, unless `training` has an `lr`.
    """

    after: Named | None = None
    """Only runs that have this encoding so far; all, unless given."""
    encoding: Named | None = None
    """An encoding."""
    positions: Named | None = None
    """The kind of positions."""
    model: Named | None = None
    """A model preset; its sizes must fit the weights."""
    training: Named | None = None
    """A training preset."""
    checkpoint: Literal["last", "best", "earliest_best", "25%", "50%", "75%"] = "last"
    """Which weights of the stage before."""
    allow: list[str] = []
    """Parameters that may be missing or left over."""


class LearningRateRule(Part):
    """The learning-rate rule: the same values and budget for every encoding, chosen on seen lengths alone.

    Per encoding and group of tasks: runs of half the steps with each value and with seeds that no other run uses. A
    value's score is the mean exact match of the last validations; a run that diverged counts as 0. Of the values within
    .02 of the best, the one nearest the middle of those tried is taken. A choice at the edge is flagged.
    """

    choose: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = list(RATES)
    """The values that are tried."""
    groups: list[Annotated[list[Named], Field(min_length=1)]] = []
    """Tasks that share one rate, which is chosen on the first of them; a task in no group has its own."""
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=100)] = list(TUNING_SEEDS)
    """The seeds of the tuning runs."""

    @model_validator(mode="after")
    def _sound(self) -> LearningRateRule:
        found = [f"{one} is listed twice in choose" for one in _twice(self.choose)]
        found += [f"{one} is listed twice in seeds" for one in _twice(self.seeds)]
        found += [f"task {one!r} is in groups twice" for one in _twice(task for group in self.groups for task in group)]
        StudyFileMistakes.raise_if_any(found)
        return self


class FurtherEvaluation(Part):
    """A further evaluation of every run's weights; it never trains anything again."""

    of: Named | None = None
    """Only runs with this encoding; all, unless given."""
    lengths: Text | None = None
    """Lengths, e.g. `8,16,32` or `17-40`; all that are tested, unless given."""
    encoding: Named | None = None
    """Another encoding at test time."""
    temperature: Named | None = None
    """An attention temperature at test time, e.g. `log-n`."""
    checkpoint: Literal["last", "best", "earliest_best", "25%", "50%", "75%"] = "last"
    """Which weights."""
    examples: Annotated[int, Field(ge=1)] | None = None
    """Examples of each length."""
    stop_after_zeros: Annotated[int, Field(ge=1)] | None = None
    """After so many lengths in a row without a right answer, record longer ones as 0 without evaluating them."""
    allow: list[str] = []
    """Parameters that may be missing or left over."""

    @model_validator(mode="after")
    def _something(self) -> FurtherEvaluation:
        if not self.model_dump(exclude_defaults=True, exclude={"stop_after_zeros", "of"}):
            raise ValueError("an evaluation that changes nothing is what every run does anyway")
        if self.lengths is not None:
            parse_lengths(self.lengths)
        return self


class RunResources(Part):
    """What one run is given."""

    cpus: Annotated[float, Field(gt=0)] = 1.0
    """Cores; the engine starts so many runs at a time as there are cores for."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs; with .25, four runs share one."""
    memory: Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})? ?(MB|GB|MiB|GiB)$")] | None = None
    """Memory a run is promised, e.g. `2 GiB`."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of torch; part of what makes two executions bit-equal."""
    custom: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Ray's own resources by name, e.g. a kind of machine."""

    @model_validator(mode="after")
    def _whole_gpus(self) -> RunResources:
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus is a part of one, e.g. 0.25, or a whole number, not {self.gpus:g}")
        return self

    @property
    def bytes(self) -> int | None:
        """The memory in bytes."""
        if self.memory is None:
            return None
        number, unit = re.fullmatch(r"([0-9.]+) ?(\w+)", self.memory).groups()  # pyrefly: ignore
        return int(float(number) * {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}[unit])


class StudyFile(Part):
    """A question and a grid of runs: `StudyFile.read("quickstart")`, or made in Python with the same fields."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """A short word: lower-case letters, digits, - and _."""
    question: Text
    """The question it answers, in a sentence."""
    base: BaseRunOptions = BaseRunOptions()
    vary: CrossedOptions = CrossedOptions()
    linked: list[LinkedOptions] = []
    """Each entry is a set of things that go together; the entries are crossed with what varies."""
    then: Annotated[list[LaterStage], Field(max_length=100)] = []
    """Stages that follow every run, in this order: each starts from the weights that the one before ended with."""
    seeds: Annotated[
        Annotated[int, Field(ge=1, le=1000)] | Annotated[list[Seed], Field(min_length=1, max_length=1000)],
        BeforeValidator(_seeded),
    ] = 3
    """How many (0, 1, ...), or which."""
    lr: LearningRateRule | None = None
    """Choose the learning rate by rule; without it, the training's own."""
    evaluations: list[FurtherEvaluation] = []
    resources: RunResources = RunResources()
    checkpoint_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between checkpoints."""
    quick: list[Named] = []
    """The tasks of `--tasks quick`."""
    blind: bool = False
    """Nobody looks at unseen lengths before every run has ended: until then `report` and `rows` are refused."""
    deviations: list[Text] = []
    """Where it departs from the publication, in words; printed with the results."""

    @model_validator(mode="after")
    def _sound(self) -> StudyFile:
        StudyFileMistakes.raise_if_any(self._mistakes())
        return self

    def _mistakes(self) -> Iterable[str]:
        for axis in AXES:
            paired = [getattr(entry, axis) is not None for entry in self.linked]
            crossed, base = getattr(self.vary, axis) is not None, getattr(self.base, axis)
            if any(paired) and crossed:
                yield f"{axis} is in vary and in linked; it can be in one of them"
            elif crossed and base != BaseRunOptions.model_fields[axis].default:
                yield f"{axis} is in base and in vary, where base.{axis} would be ignored; leave it out of base"
            if any(paired) and not all(paired) and not (base or crossed):
                yield f"linked.{paired.index(False)} has no {axis}, and base has none"
            if not (any(paired) or crossed or base):
                yield f"no {axis} is named: put it into base, vary or linked"
        seeds, tasks = self.seed_list, {task for task in self.tasks if task}
        yield from (f"seeds: {one} is listed twice" for one in _twice(seeds))
        for number, entry in enumerate(self.linked):
            if entry.seeds is not None and entry.seeds > len(seeds):
                yield f"linked.{number}.seeds: the study has {len(seeds)} seeds, not {entry.seeds}; write fewer"
        for number, one in enumerate(self.evaluations):
            if one.of is not None and one.of not in self.encodings:
                yield f"evaluations.{number}.of: {one.of!r} is no encoding.{did_you_mean(one.of, self.encodings)}"
        marks = [(str(one.model_dump(exclude_defaults=True)), number) for number, one in enumerate(self.evaluations)]
        for mark in _twice(mark for mark, _ in marks):
            yield f"evaluations.{max(number for one, number in marks if one == mark)} is listed twice; leave it out"
        if self.lr is not None:
            for seed in sorted({*self.lr.seeds} & {*seeds}):
                yield f"seeds: {seed} is a tuning seed, which no run may use; change seeds or lr.seeds"
            for task in dict.fromkeys(task for group in self.lr.groups for task in group if task not in tasks):
                yield f"lr.groups: {task!r} is no task of the study.{did_you_mean(task, tasks)}"
            for text in self._values("training"):
                if any("lr" in dict(spec.options) for spec in parse_specs(text)):
                    yield f"training {text!r} has an lr, and lr chooses one; leave out one of them"
        known = list(self.encodings)
        for number, entry in enumerate(self.then):
            if entry.after is not None and entry.after not in known:
                hint = did_you_mean(entry.after, known)
                yield f"then.{number}.after: {entry.after!r} is no encoding of the study or of an earlier stage.{hint}"
            known += [entry.encoding] if entry.encoding is not None else []
        for task in dict.fromkeys(task for task in self.quick if task not in tasks):
            yield f"quick: {task!r} is no task of the study.{did_you_mean(task, tasks)}"
        yield from (f"quick: {task!r} is listed twice" for task in _twice(self.quick))
        if self.runs > RUNS:
            yield f"the study would have {self.runs:,} runs; {RUNS:,} are the most that one study can have"

    @property
    def runs(self) -> int:
        """The largest possible number of runs, computed without planning them."""
        many = len(self.seed_list)
        crossed = prod(len(getattr(self.vary, axis) or [None]) for axis in AXES)
        first = crossed * sum(min(entry.seeds or many, many) for entry in self.linked or [LinkedOptions()])
        return first * (1 + len(self.then))

    @property
    def seed_list(self) -> list[int]:
        """The seeds."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    @property
    def tasks(self) -> list[str]:
        """The tasks, as they are written."""
        return self._values("task")

    @property
    def encodings(self) -> list[str]:
        """The encodings, as they are written."""
        return self._values("encoding")

    @property
    def positions(self) -> list[str]:
        """The kinds of positions, as they are written."""
        return self._values("positions")

    def _values(self, axis: str) -> list[str]:
        listed = getattr(self.vary, axis) or [getattr(entry, axis) or getattr(self.base, axis) for entry in self.linked]
        return list(dict.fromkeys(listed or [getattr(self.base, axis)]))

    # --- reading -----------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path_or_name: str | Path) -> StudyFile:
        """Read a study from a YAML file, or a recipe by its name; all mistakes are reported at once."""
        return cls.of(load_yaml(path_or_name), str(path_or_name))

    @classmethod
    def of(cls, content: object, source: str = "the study") -> StudyFile:
        """Return the study that plain data describes."""
        if not isinstance(content, Mapping):
            there = "is empty" if content is None else "is no study"
            raise SpecError(f"{source} {there}: write a mapping with name, question, base, vary, ...")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise SpecError("\n".join(f"{source}: {line}" for line in error_lines(error, _fields))) from None
        except RecursionError:
            raise SpecError(f"{source} is no study: it is nested too deeply") from None


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """Return the valid field names at a place."""
    parts: dict[str, type[Part]] = {"base": BaseRunOptions, "vary": CrossedOptions, "linked": LinkedOptions}
    parts |= {"then": LaterStage, "lr": LearningRateRule, "evaluations": FurtherEvaluation, "resources": RunResources}
    return list(parts.get(str(place[0]), StudyFile).model_fields if len(place) > 1 else StudyFile.model_fields)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a study file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **StudyFile.model_json_schema()}
