"""An entry: a folder with a card, the results of one encoding on the leaderboard's study, and the encoding's file.

NAME/card.yaml      who made it, which encoding, what it costs
NAME/encoding.py    the encoding, unless it is one of the package
NAME/bundle.json    with rows.parquet, runs.jsonl, ...: the results, as `lengthwise study export` writes them
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lengthwise.encoding import ENCODINGS
from lengthwise.loading import source_digest
from lengthwise.run.identity import Plan
from lengthwise.spec import Spec, SpecError, did_you_mean, first_mistake
from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import GridPoint, Planned

STUDY = "leaderboard"
"""The study that every entry runs."""
ENCODING_FILE = "encoding.py"
BUNDLE_FILES = ("bundle.json", "rows.parquet", "runs.jsonl", "wrong.parquet", "kinds.parquet")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_CARD_LIMIT = 20_000


class Card(BaseModel):
    """What the author of an entry says about it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str = Field(min_length=1, max_length=80)
    """The name that the table shows."""
    encoding: str = Field(min_length=1, max_length=200)
    """An encoding of the package, e.g. `rope:theta=500.0`, or `encoding.py:Class` with its options."""
    authors: str = Field(min_length=1, max_length=200)
    date: datetime.date
    link: str = Field("", max_length=300)
    """A paper or a repository."""
    description: str = Field("", max_length=500)
    variants_tried: int = Field(ge=1, le=100_000)
    """How many variants of the encoding the author trained before this one, this one included. It cannot be checked."""
    looked_at_unseen: bool = False
    """Whether results at unseen lengths of these tasks were looked at while the encoding was developed."""
    extra_parameters: int = Field(0, ge=0)
    """Parameters beyond those of NoPE, in the largest model of the study."""
    training_time: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    """Time of a training step relative to NoPE's, at 256 tokens on the author's machine."""

    @field_validator("link")
    @classmethod
    def _is_an_address(cls, link: str) -> str:
        if link and not re.fullmatch(r"https?://[^\s<>\"]+", link):
            raise ValueError("a link begins with https://")
        return link

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card; a mistake is named with its field."""
        if not path.is_file():
            raise SpecError(f"there is no {path}; lengthwise leaderboard submit writes it")
        data = path.read_bytes()
        if len(data) > _CARD_LIMIT:
            raise SpecError(f"{path} has {len(data):,} bytes; a card has at most {_CARD_LIMIT:,}")
        try:
            return cls.of(yaml.safe_load(data), str(path))
        except yaml.YAMLError as error:
            raise SpecError(f"{path} is no YAML: {error}") from error

    @classmethod
    def of(cls, content: object, source: str) -> Card:
        """Return the card that plain data describes."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            where, given, reason = first_mistake(error)
            hint = did_you_mean(where, cls.model_fields) if "Extra" in reason else ""
            raise SpecError(f"{source}: {where or 'the card'}: {reason}, not {given!r}.{hint}") from error

    def text(self) -> str:
        """The card as YAML."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=110)


@dataclass(frozen=True)
class Entry:
    """An entry of the leaderboard. Reading it executes none of its code."""

    folder: Path
    study: StudyFile

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def unfinished(self) -> bool:
        """Whether its runs were begun and have no results yet."""
        return not (self.folder / "bundle.json").exists()

    @cached_property
    def card(self) -> Card:
        """Its card."""
        return Card.read(self.folder / "card.yaml")

    @cached_property
    def bundle(self) -> Bundle:
        """Its results."""
        return Bundle(self.folder)

    @cached_property
    def spec(self) -> Spec:
        """Its encoding as the card names it."""
        return Spec.of(self.card.encoding)

    @property
    def has_code(self) -> bool:
        """Whether its encoding is from outside the package."""
        return self.spec.name not in ENCODINGS

    @property
    def class_name(self) -> str:
        """The class in its file; raises if the card names any other file."""
        file, _, name = self.spec.name.rpartition(":")
        if file != ENCODING_FILE:
            raise SpecError(
                f"{self.folder}/card.yaml: encoding: it must be an encoding of the package or "
                f"{ENCODING_FILE}:Class, not {self.card.encoding!r}"
            )
        return name

    @property
    def spec_here(self) -> Spec:
        """Its encoding with the path of its file, to be built here."""
        return replace(self.spec, name=f"{self.folder}/{self.spec.name}") if self.has_code else self.spec

    def planned(self) -> Planned:
        """Return the runs that this entry must have; its code is read, not executed."""
        if not self.has_code:
            return Planned(with_only_encoding(self.study, str(self.spec)))
        return _EntryPlanned(with_only_encoding(self.study, "nope"), self.spec, self._encoding_identity())

    def planned_with_code(self) -> Planned:
        """Return the runs that this entry must have, by executing its code."""
        return Planned(with_only_encoding(self.study, str(self.spec_here)))

    def _encoding_identity(self) -> dict[str, Any]:
        """Return the encoding's part of a run's identity, as `identity_part` computes it by importing the class."""
        source = source_digest(f"{self.folder / ENCODING_FILE}:{self.class_name}", digest_size=8)
        recorded = [line["run"].get("identity", {}).get("encoding") for line in self.bundle.lines.values()]
        first = recorded[0][0] if recorded and isinstance(recorded[0], list) and recorded[0] else {}
        version = first.get("version", 1) if isinstance(first, Mapping) else 1
        return {**self.spec.mapping(), "name": self.class_name, "version": version, "source": source}


def with_only_encoding(study: StudyFile, encoding: str) -> StudyFile:
    """Return the study with this encoding alone."""
    content = study.model_dump()
    content["vary"]["encoding"] = [encoding]
    return StudyFile.of(content, study.name)


@dataclass(frozen=True)
class _EntryPlan(Plan):
    """The plan of a run whose encoding is known by the identity that its source gives."""

    encoding_identity: str = "{}"

    def _depends_on_files(self) -> bool:
        return False

    def _identity(self) -> dict[str, Any]:
        found = Plan._identity(replace(self, encoding_specs=(Spec("nope"),)))
        return {**found, "encoding": [json.loads(self.encoding_identity)]}


class _EntryPlanned(Planned):
    """The study with the encoding of an entry in place of NoPE, planned without importing it."""

    def __init__(self, study: StudyFile, spec: Spec, identity: Mapping[str, Any]) -> None:
        super().__init__(study)
        self._spec, self._identity = spec, json.dumps(identity)

    def _plan(self, point: GridPoint, training: Mapping[str, object]) -> Plan:
        made = super()._plan(point, training)
        values: dict[str, Any] = {field.name: getattr(made, field.name) for field in fields(made)}
        values |= {"encoding_specs": (self._spec,), "encoding_identity": self._identity}
        return _EntryPlan(**values)


def read_entries(root: Path) -> list[Entry]:
    """Return the entries in a folder, by name; without those whose runs are not finished."""
    study = StudyFile.read(STUDY)
    found = [Entry(one, study) for one in sorted(root.iterdir()) if (one / "card.yaml").is_file()]
    return [entry for entry in found if not entry.unfinished]
