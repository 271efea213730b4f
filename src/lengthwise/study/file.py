"""A study as it is written: a question, a base run, what varies, what goes together, seeds. YAML, data only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lengthwise.spec import Spec, SpecError, did_you_mean, one_line, show, specs

AXES = ("task", "encoding", "positions", "model", "training")
"""What can vary, slowest first: encodings stand side by side."""
ORDER = ("task", "positions", "model", "training", "encoding")
TUNING_SEED = 1000
RATES = (1e-3, 2e-3, 4e-3)


def _named(value: object) -> str:
    """A name with options, as text: YAML may write it as a mapping, and an encoding per layer as a list."""
    if isinstance(value, list):
        if not value:
            raise ValueError("a list of encodings, one for each layer, cannot be empty")
        return ",".join(_named(one) for one in value)
    if not isinstance(value, str | Mapping):
        raise ValueError(f"write a name, e.g. rope:fraction=0.25, not {value!r}")
    try:
        if isinstance(value, str) and "," in value:
            return ",".join(map(str, specs(value)))
        return str(Spec.of(value))
    except SpecError as error:
        raise ValueError(str(error)) from None


Named = Annotated[str, BeforeValidator(_named)]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Part(BaseModel):
    """What all parts of a study file have in common: nothing unknown is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Base(Part):
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


class Together(Part):
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


class Vary(Part):
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
    def _once(self) -> Vary:
        for axis in AXES:
            values = getattr(self, axis) or []
            twice = [value for value in values if values.count(value) > 1]
            if twice:
                raise ValueError(f"{axis} {twice[0]!r} is listed twice")
        return self


class Rate(Part):
    """The learning-rate rule: the same values and budget for every encoding, chosen on seen lengths alone.

    Per encoding and group of tasks: a run of half the steps with each value and a seed that no run uses; the highest
    exact match of the last validation wins, within .005 the lowest loss. A choice at the edge is flagged.
    """

    choose: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)] = list(RATES)
    """The values that are tried."""
    groups: list[Annotated[list[Named], Field(min_length=1)]] = []
    """Tasks that share one rate, which is chosen on the first of them; a task in no group has its own."""
    seed: Seed = TUNING_SEED
    """The seed of the tuning runs."""

    @model_validator(mode="after")
    def _sound(self) -> Rate:
        if sorted(set(self.choose)) != sorted(self.choose):
            raise ValueError("a value is listed twice in choose")
        listed = [task for group in self.groups for task in group]
        twice = [task for task in listed if listed.count(task) > 1]
        if twice:
            raise ValueError(f"task {twice[0]!r} is in two groups")
        return self


class Evaluation(Part):
    """A further evaluation of every run's weights; it never trains anything again."""

    lengths: str | None = None
    """Lengths, e.g. `8,16,32` or `17-40`; all that are tested, unless given."""
    encoding: Named | None = None
    """Another encoding at test time."""
    scale: Named | None = None
    """An attention temperature at test time, e.g. `log-n`."""
    checkpoint: Literal["last", "best", "earliest_best", "25%", "50%", "75%"] = "last"
    """Which weights."""
    examples: Annotated[int, Field(ge=1)] | None = None
    """Examples of each length."""
    allow: list[str] = []
    """Parameters that may be missing or left over."""

    @model_validator(mode="after")
    def _something(self) -> Evaluation:
        if not self.model_dump(exclude_defaults=True):
            raise ValueError("an evaluation that changes nothing is what every run does anyway")
        if self.lengths is not None:
            lengths_of(self.lengths)
        return self


class Resources(Part):
    """What one run is given."""

    cpus: Annotated[float, Field(gt=0)] = 1.0
    """Cores; the engine starts so many runs at a time as there are cores for."""
    gpus: Annotated[float, Field(ge=0)] = 0.0
    """Accelerators; 0.25 lets four runs share one."""
    memory: Annotated[str, Field(pattern=r"^\d+(\.\d+)? ?(MB|GB|MiB|GiB)$")] | None = None
    """Memory a run is promised, e.g. `2 GiB`."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of torch; part of what makes two executions bit-equal."""
    custom: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Ray's own resources by name, e.g. a kind of machine."""

    @property
    def bytes(self) -> int | None:
        """The memory as a number."""
        if self.memory is None:
            return None
        number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", self.memory).groups()  # pyrefly: ignore
        return int(float(number) * {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}[unit])


class Study(Part):
    """A question and a grid of runs: `Study.read("quickstart")`, or made in Python with the same fields."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """A short word: lower-case letters, digits, - and _."""
    question: Text
    """The question it answers, in a sentence."""
    base: Base = Base()
    vary: Vary = Vary()
    pair: list[Together] = []
    """Each entry is a set of things that go together; the entries are crossed with what varies."""
    seeds: Annotated[int, Field(ge=1, le=1000)] | Annotated[list[Seed], Field(min_length=1)] = 3
    """How many (0, 1, ...), or which."""
    rate: Rate | None = None
    """Choose the learning rate by rule; without it, the training's own."""
    evaluations: list[Evaluation] = []
    resources: Resources = Resources()
    checkpoint_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between checkpoints."""
    quick: list[Named] = []
    """The tasks of `--tasks quick`."""
    deviations: list[Text] = []
    """Where it departs from the publication, in words; printed with the results."""

    @model_validator(mode="after")
    def _sound(self) -> Study:
        for axis in AXES:
            paired = [getattr(entry, axis) is not None for entry in self.pair]
            crossed = getattr(self.vary, axis) is not None
            if any(paired) and crossed:
                raise ValueError(f"{axis} is in vary and in pair; it can be in one of them")
            if any(paired) and not all(paired) and axis in {"task", "encoding"} and getattr(self.base, axis) is None:
                raise ValueError(f"an entry of pair has no {axis}, and base has none")
            if axis in {"task", "encoding"} and not (any(paired) or crossed or getattr(self.base, axis)):
                raise ValueError(f"no {axis} is named: put it into base, vary or pair")
        seeds = self.seed_list
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice")
        if self.rate is not None and self.rate.seed in seeds:
            raise ValueError(f"seed {self.rate.seed} is the tuning seed, which no run may use")
        if self.rate is not None and (unknown := [t for g in self.rate.groups for t in g if t not in self.tasks]):
            raise ValueError(f"rate.groups names {unknown[0]!r}, which is no task of the study")
        if unknown := [task for task in self.quick if task not in self.tasks]:
            raise ValueError(f"quick names {unknown[0]!r}, which is no task of the study")
        return self

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
        listed = getattr(self.vary, axis) or [getattr(entry, axis) or getattr(self.base, axis) for entry in self.pair]
        return list(dict.fromkeys(listed or [getattr(self.base, axis)]))

    # --- reading -----------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, where: str | Path) -> Study:
        """The study in a YAML file, or a recipe by its name; every mistake is told at once."""
        return cls.of(load(where), str(where))

    @classmethod
    def of(cls, content: object, where: str = "the study") -> Study:
        """The study that plain data describes."""
        if not isinstance(content, Mapping):
            raise SpecError(f"{where} is no study: it must be a mapping with name, question, vary, ...")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise SpecError(f"{where}: " + "; ".join(told(error))) from None
        except RecursionError:
            raise SpecError(f"{where} is no study: it is nested too deeply") from None


def told(error: ValidationError) -> list[str]:
    """Each mistake with its place and what to write instead."""
    found = []
    for one in error.errors():
        place = ".".join(str(part) for part in one["loc"] if not str(part).startswith(("constrained", "list[", "int")))
        words = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            words = f"there is no such field.{did_you_mean(str(one['loc'][-1]), _fields(one['loc']))}"
        elif one["type"] == "missing":
            words = "is missing"
        elif not words.startswith(("write", "task", "seed")) and one["type"] != "value_error":
            words = f"{words[0].lower()}{words[1:]}, not {show(one['input'])!r:.80}"
        line = one_line(f"{place}: {words}" if place else words)
        if line not in found:
            found.append(line)
    return found


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The fields that could have been meant at a place."""
    parts: dict[str, type[Part]] = {"base": Base, "vary": Vary, "pair": Together, "rate": Rate}
    parts |= {"evaluations": Evaluation, "resources": Resources}
    return list(parts.get(str(place[0]), Study).model_fields if len(place) > 1 else Study.model_fields)


def load(where: str | Path) -> object:
    """The plain data in a YAML file; a name without a folder may be a recipe that ships with the project."""
    path = Path(where)
    if not path.exists() and path.suffix == "" and len(path.parts) == 1 and str(where) in recipes():
        path = recipes()[str(where)]
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = did_you_mean(str(where), recipes()) if path.suffix == "" else ""
        raise SpecError(f"there is no study {str(where)!r}; give the path of a YAML file.{hint}") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SpecError(f"{where} cannot be read: {one_line(str(error))}") from None
    try:
        return yaml.load(text, _Careful)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise SpecError(f"{where}{place}: no YAML: {one_line(getattr(error, 'problem', None) or str(error))}") from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise SpecError(f"{where}: no YAML: {one_line(str(error))}") from None


@lru_cache(maxsize=1)
def recipes() -> dict[str, Path]:
    """The studies that ship with the project, by name."""
    shipped, checkout = Path(__file__).parent / "recipes", Path(__file__).parents[3] / "studies"
    files = sorted((shipped if shipped.is_dir() else checkout).glob("*.yaml"))
    return {path.stem: path for path in files if path.stem != "claims"}  # claims are about studies


def lengths_of(text: str) -> list[int]:
    """The lengths of `8,16,32` or `17-40`."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise SpecError(f"lengths are written 8,16,32 or 17-40, not {text!r}")
        if int(last or first) > 10**6:
            raise SpecError(f"a length of {last or first} is beyond anything that can be tested")
        found += range(int(first), int(last or first) + 1)
    return found


def schema() -> dict[str, Any]:
    """The JSON schema of a study file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Study.model_json_schema()}


class _Careful(yaml.SafeLoader):
    """Data only; a key given twice and an alias, of which bombs are made, are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not used in studies", mark)
        return super().compose_node(parent, index)
