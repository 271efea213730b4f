"""The plan of a run: every option resolved and checked, and an id that is a hash of its content. Ids need no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from lengthwise.encoding import ENCODINGS, POSITIONS, build_positions
from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.encoding.signature import canonical_encoding, encoding_class
from lengthwise.evaluation.cases import seen_cases, splits_and_lengths
from lengthwise.loading import content, to_spec
from lengthwise.model.config import DecoderConfig, preset
from lengthwise.spec import Spec, SpecError, canonical, digest, options, parse_specs, resolve
from lengthwise.task import TASKS, build_task
from lengthwise.task.base import Task
from lengthwise.task.text import Text
from lengthwise.training.laptop import TaskOverrides, laptop_overrides
from lengthwise.training.settings import Seeds, Training, training_preset

if TYPE_CHECKING:
    from lengthwise.model import Decoder

Named = str | Mapping[str, object] | Spec | type
"""A task, an encoding or a kind of positions: a string such as `"rope:theta=500.0"`, a mapping, a spec or a class."""


@dataclass(frozen=True)
class Plan:
    """All options of a run: `Plan.of("copy:variant=same", "rope", seed=1)`."""

    task_spec: Spec
    encoding_specs: tuple[Spec, ...]
    """One spec for all layers, or one per layer."""
    positions_spec: Spec
    model: DecoderConfig
    training: Training
    seed: int
    streams: tuple[tuple[str, int], ...] = ()
    start: tuple[tuple[str, str], ...] = ()
    """The run whose weights this one starts from: its id, the checkpoint, a hash of the weights."""

    @classmethod
    def of(
        cls,
        task: Named,
        encoding: Named | Sequence[Named] = "nope",
        *,
        positions: Named = "consecutive",
        model: str | Mapping[str, object] | Spec = "laptop",
        training: str | Mapping[str, object] | Spec = "laptop",
        seed: int = 0,
        streams: Mapping[str, int] | None = None,
        start: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Plan:
        """Resolve names, presets and their settings per task; refuse what cannot be run.

        `check=False` skips the checks that build the model, which need torch.
        """
        if not isinstance(task, str | Mapping | Spec | type):
            raise SpecError(f"a task is given by its name or its class, e.g. 'copy' or 'my_task.py:Mine', not {task!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SpecError(f"a seed is a whole number from 0, not {seed!r}")
        Seeds.of(seed, **(streams or {}))
        known, config, trained = _settled(to_spec(task, TASKS), Spec.of(model), Spec.of(training))
        whole = cls(
            task_spec=known,
            encoding_specs=encodings_of(encoding, config.layers),
            positions_spec=_positions_spec(to_spec(positions, POSITIONS)),
            model=config,
            training=trained,
            seed=seed,
            streams=tuple(sorted((streams or {}).items())),
            start=tuple(sorted((start or {}).items())),
        )
        if check:
            whole.check()
        return whole

    @cached_property
    def task(self) -> Task:
        """The task."""
        return _built(self.task_spec)

    @cached_property
    def positions(self) -> Positions:
        """The kind of positions, for this task."""
        return build_positions(self.positions_spec).of(self.task)

    @property
    def seeds(self) -> Seeds:
        """The seed of each random stream."""
        return Seeds.of(self.seed, **dict(self.streams))

    @property
    def encodings(self) -> list[Spec]:
        """The spec of each layer's encoding; one given spec is for all layers."""
        listed = list(self.encoding_specs)
        return listed * self.model.layers if len(listed) == 1 else listed

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names of the task, the positions and the encodings, without their options."""
        return tuple(spec.name for spec in (self.task_spec, self.positions_spec, *self.encoding_specs))

    def decoder(self) -> Decoder:
        """Return the decoder at initialisation."""
        from lengthwise.model import Decoder

        return Decoder(self.model, self.encodings, seed=self.seeds.init)

    def longest_training_ids(self) -> list[int]:
        """Return the ids of (about) the longest sequence that is trained on."""
        example = self.task.to_example(self.task.longest_answer_instance(self.task.longest))
        ids, _ = self.task.vocabulary.sequence(example.prompt, example.target, self.task.starts)
        return ids

    def longest_budget(self) -> int:
        """Return the token budget of (about) the longest trained sequence in evaluation; scaling begins beyond it."""
        answer = len(self.task.to_example(self.task.longest_answer_instance(self.task.longest)).target) + 1
        prompt = len(self.longest_training_ids()) - answer
        return max([prompt + self.task.answer_limit(self.task.longest), *(c.budget for c in seen_cases(self.task))])

    @property
    def caution(self) -> str:
        """A warning if the task is known not to be learned at this default size, with an alternative; else empty."""
        setting = laptop_overrides(self.task) if self.task_spec.name in TASKS else TaskOverrides()
        if not setting.unlearned:
            return ""
        known, model, training = _settled(Spec(self.task_spec.name), Spec("laptop"), Spec("laptop"))
        if (self.task_spec, self.model, self.training) != (known, model, training):
            return ""
        return f"{self.task_spec.name} is not learned at this size, even at seen lengths; {setting.unlearned}"

    def check(self) -> None:
        """Refuse what would fail later: position tables that are too short, positions that do not fit."""
        self.check_position_limit(self.highest_training_position(), self.limit())

    def highest_training_position(self) -> int:
        """Return the highest position that training needs; refuse positions without room for the longest test."""
        if isinstance(self.task, Text):
            return self.task.last_position(self.positions_spec.name)
        self._check_tests()
        ids = self.longest_training_ids()
        if isinstance(self.positions, Consecutive):
            return len(ids) - 2
        target = self.task.to_example(self.task.longest_answer_instance(self.task.longest)).target
        prompt = ids[: -len(target) - 1]
        places = self.positions.places(prompt, ids[len(prompt) :], 0, len(ids))
        return max(places[:-1]) if self.positions.limit is None else self.positions.limit - 1

    def limit(self) -> int | None:
        """Return the first position that the encodings lack, or None; refuse what cannot be built.

        A decoder with one small layer per spec is built for it.
        """
        from lengthwise.evaluation.decoding import position_limit
        from lengthwise.model import Decoder

        small = {"vocabulary": 4, "feed_forward_width": 8, "layers": len(self.encoding_specs)}
        decoder = Decoder(self.model.model_copy(update=small), list(self.encoding_specs))
        decoder.effective()  # raise now for what could not be evaluated after training
        return position_limit(decoder)

    def check_position_limit(self, highest_training_position: int, limit: int | None) -> None:
        """Refuse an encoding whose limit is below the highest position of training."""
        if limit is not None and highest_training_position >= limit:
            name = ",".join(map(str, self.encoding_specs))
            found = {spec.name: set(options(encoding_class(spec.name))) for spec in self.encoding_specs}
            limited = [
                f"write {one}:limit={highest_training_position + 1} or more"
                for one, known in found.items()
                if "limit" in known
            ]
            based = [f"write {one} with a larger base" for one, known in found.items() if "base" in known]
            raise SpecError(
                f"'{name}' has positions up to {limit - 1}, {self.task.name} of length {self.task.longest} needs "
                f"{highest_training_position}; "
                f"{(limited or based or ['use another encoding, or shorter sequences'])[0]}"
            )

    def outside_classes(self) -> list[tuple[type, Spec]]:
        """Return the classes from outside the package, with their specs."""
        named = [("task", TASKS, self.task_spec), ("positions", POSITIONS, self.positions_spec)]
        named += [("encoding", ENCODINGS, spec) for spec in self.encoding_specs]
        named += self.model.outside_parts()
        return [(resolve(kind, table, spec.name), spec) for kind, table, spec in named if spec.name not in table]

    def _check_tests(self) -> None:
        """Refuse positions that have no room for the longest test sequence, prompt and answer."""
        length = max(length for _, length in splits_and_lengths(self.task))
        example = self.task.to_example(self.task.longest_answer_instance(length))
        ids, prompt = self.task.vocabulary.sequence(example.prompt, (), self.task.starts)
        self.positions.at_test().places(ids[:prompt], [], 0, prompt + self.task.answer_limit(length))

    # --- identity ----------------------------------------------------------------------------------------------------

    def with_seed(self, seed: int) -> Plan:
        """Return the same plan with another seed, without resolving its options again."""
        made = replace(self, seed=seed)
        if not self._depends_on_files() and not self.streams:
            made.__dict__["_fixed_identity"] = {**self._fixed_identity, "seed": seed}
        return made

    def identity(self) -> dict[str, Any]:
        """Return what the id is a hash of: non-default values, versions, and the source of code from outside."""
        # Code from outside may change while its name stays the same, so it is not cached.
        return self._identity() if self._depends_on_files() else dict(self._fixed_identity)

    @cached_property
    def _fixed_identity(self) -> dict[str, Any]:
        return self._identity()

    def _depends_on_files(self) -> bool:
        return _depends_on_files(self.task_spec, self.positions_spec, self.encoding_specs, self.model)

    def _identity(self) -> dict[str, Any]:
        outside = {kind: identity_part(kind, table, spec) for kind, table, spec in self.model.outside_parts()}
        found: dict[str, Any] = {
            "task": self._task_part(),
            "encoding": [identity_part("encoding", ENCODINGS, spec) for spec in self.encoding_specs],
            "model": {"version": DecoderConfig.version, **_chosen(self.model), **outside},
            "training": {"version": Training.version, **_chosen(self.training)},
            "seed": self.seed,
        }
        if self.positions_spec != Spec("consecutive"):
            if Spec.of(self.model.temperature).name in {"log-n", "llama4"}:
                found["temperature_version"] = 2  # it counted positions before, and counts tokens now
            found["positions"] = identity_part("positions", POSITIONS, self.positions_spec)
        if changed := {name: value for name, value in self.streams if value != self.seed}:
            found["streams"] = changed
        if self.start:
            found["start"] = dict(self.start)
        return found

    def _task_part(self) -> Mapping[str, Any]:
        """Return the task's part, with a hash of the files it reads instead of their paths."""
        found = identity_part("task", TASKS, self.task_spec)
        if self.task.content.strip():
            found = {key: value for key, value in found.items() if key not in {"path", "tokenizer"}}
            found["content"] = f"{digest(self.task.content, bits=64):016x}"
        return found

    @cached_property
    def id(self) -> str:
        """`task-encoding-sSEED-` and 16 hex digits of the hash of `identity`."""
        encodings = "+".join(dict.fromkeys(_short(spec.name) for spec in self.encoding_specs))
        return f"{_short(self.task_spec.name)}-{encodings}-s{self.seed}-{digest(self.identity(), bits=64):016x}"

    def options(self) -> dict[str, Any]:
        """Return the plan as it is written to `run.json`; `Plan.read` is the inverse."""
        return {
            "task": str(self.task_spec),
            "encoding": [str(spec) for spec in self.encoding_specs],
            "positions": str(self.positions_spec),
            "model": self.model.model_dump(),
            "training": self.training.model_dump(),
            "seed": self.seed,
            "streams": dict(self.streams),
            "start": dict(self.start),
        }

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Plan:
        """Return the plan that `options` describes."""
        return cls(
            task_spec=Spec.of(options["task"]),
            encoding_specs=tuple(Spec.of(spec) for spec in options["encoding"]),
            positions_spec=Spec.of(options["positions"]),
            model=DecoderConfig.model_validate(options["model"]),
            training=Training.model_validate(options["training"]),
            seed=options["seed"],
            streams=tuple(sorted(options["streams"].items())),
            start=tuple(sorted(options["start"].items())),
        )


def _positions_spec(spec: Spec) -> Spec:
    return _positions_once(spec) if spec.name in POSITIONS else _canonical_positions(spec)


_canonical_positions = partial(canonical, "positions", POSITIONS)
_positions_once = lru_cache(maxsize=256)(_canonical_positions)
_IN_FILES = {"path", "tokenizer"}  # options that name files, whose content may change


def _built(spec: Spec) -> Task:
    """Build the task of a spec; tasks that read no files are cached and shared by all runs."""
    if spec.name in TASKS and not _IN_FILES & {key for key, _ in spec.options}:
        return _built_once(spec)
    return build_task(spec)


@lru_cache(maxsize=256)
def _built_once(spec: Spec) -> Task:
    return build_task(spec)


def _settled(spec: Spec, model: Spec, training: Spec) -> tuple[Spec, DecoderConfig, Training]:
    """Return the task's canonical spec, the model and the training, with the presets' settings for this task.

    Options that the user gives take precedence.
    """
    if spec.name in TASKS and not _IN_FILES & {key for key, _ in spec.options}:
        return _settled_once(spec, model, training)
    return _settle(spec, model, training)


def _settle(spec: Spec, model: Spec, training: Spec) -> tuple[Spec, DecoderConfig, Training]:
    setting = laptop_overrides(_built(spec)) if spec.name in TASKS else TaskOverrides()
    laptops = "laptop" in {training.name, model.name}
    given, protocol = dict(spec.options), dict(spec.options).get("protocol")
    if laptops and setting.longest is not None and "longest" not in given and protocol != "paper":
        # The preset's easier format applies only if no option but `variant` is given: others may choose a format.
        form = setting.task if set(given) <= {"variant"} else {}
        spec = Spec(spec.name, (*spec.options, *form.items(), ("longest", setting.longest)))
    built, known = _built(spec), canonical("task", TASKS, spec)
    if setting.longest is not None and "longest" not in dict(known.options) and protocol != "paper" and laptops:
        # Keep `longest` in the spec even if it is the task's default: without it, `laptop` would set another value.
        known = Spec(known.name, (*known.options, ("longest", built.longest)))
    if "vocabulary" in dict(model.options):
        raise SpecError("the task decides the vocabulary of a run's model; leave out vocabulary")
    masked = isinstance(built, Text) and built.objective == "masked"
    own = {"mask": "bidirectional"} if masked else setting.model if model.name == "laptop" else {}
    config = preset(model, **_unless(model, own), vocabulary=len(built.vocabulary))
    if (config.mask == "bidirectional") != masked or (isinstance(built, Text) and config.mask == "prefix"):
        why = "sees the tokens it must predict; leave mask out" if not masked else "is for objective=causal"
        raise SpecError(f"a model with mask={config.mask} {why}")
    return known, config, training_preset(training, setting.training if training.name == "laptop" else {})


_settled_once = lru_cache(maxsize=4096)(_settle)


def _unless(given: str | Mapping[str, object] | Spec, setting: Mapping[str, object]) -> dict[str, object]:
    """Return a preset's settings for a task, without those that the user gives."""
    said = dict(Spec.of(given).options)
    return {key: value for key, value in setting.items() if key not in said}


def encodings_of(encoding: Named | Sequence[Named], layers: int) -> tuple[Spec, ...]:
    """Return the canonical specs: one encoding for all layers, or one per layer."""
    if isinstance(encoding, str):
        listed: Sequence[Any] = parse_specs(encoding)
    else:
        listed = [encoding] if isinstance(encoding, Mapping | Spec | type) else list(encoding)
    if not listed:
        raise SpecError("name an encoding, e.g. rope")
    if len(listed) not in {1, layers}:
        raise SpecError(f"a list of encodings has one entry per layer: {layers} layers, but {len(listed)} entries")
    found = tuple(canonical_encoding(to_spec(one, ENCODINGS)) for one in listed)
    return found[:1] if len(set(found)) == 1 else found


def identity_part(kind: str, table: Mapping[str, str], spec: Spec) -> Mapping[str, Any]:
    """Return a task's, an encoding's or positions' part of an identity, cached for classes of the package."""
    return _part_once(kind, spec) if spec.name in table else _part(kind, table, spec)


@lru_cache(maxsize=4096)
def _depends_on_files(task: Spec, positions: Spec, encodings: tuple[Spec, ...], model: DecoderConfig) -> bool:
    """Whether the class or the data of any of these comes from a file outside the package."""
    data = any(key in _IN_FILES for key, _ in task.options)
    known = task.name in TASKS and positions.name in POSITIONS and all(spec.name in ENCODINGS for spec in encodings)
    return data or not known or bool(model.outside_parts())


@lru_cache(maxsize=4096)
def _part_once(kind: str, spec: Spec) -> Mapping[str, Any]:
    return _part(kind, {"task": TASKS, "encoding": ENCODINGS, "positions": POSITIONS}[kind], spec)


def _part(kind: str, table: Mapping[str, str], spec: Spec) -> Mapping[str, Any]:
    cls = encoding_class(spec.name) if kind == "encoding" else resolve(kind, table, spec.name)
    found: dict[str, Any] = {**spec.mapping(), "version": getattr(cls, "version", 1)}
    if spec.name not in table:
        # The id must not depend on the path: it uses the class name and a hash of the source.
        found["name"] = cls.__qualname__
        found["source"] = hashlib.blake2b(content(cls), digest_size=8).hexdigest()
    return json.loads(json.dumps(found))


@lru_cache(maxsize=4096)
def _chosen(config: DecoderConfig | Training) -> dict[str, Any]:
    """Return the fields that differ from their default; a field without a default is always included."""
    fields = type(config).model_fields
    values = config.model_dump(exclude=set(getattr(config, "machinery", ())))
    return {name: value for name, value in values.items() if value != fields[name].default}


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    """Return a name that is safe in a path: `mine` for `my_pe.py:Mine`."""
    return re.sub(r"[^a-z0-9_]+", "-", name.rpartition(":")[2].lower()).strip("-")
