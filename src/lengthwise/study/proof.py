"""The proof that runs which are compared differ only in their encoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lengthwise.study.plan import Item


@dataclass(frozen=True)
class OnlyEncodingDiffersResult:
    """The differences between runs that should differ only in their encoding."""

    groups: int
    """Groups of runs whose labels are equal except for the encoding."""
    encodings: int
    differs: dict[str, list[str]]
    """Other fields that differ, e.g. `training.lr` → their values."""

    @property
    def holds(self) -> bool:
        """Whether nothing but the encoding differs."""
        return not self.differs

    @property
    def sentence(self) -> str:
        """The result in words."""
        if self.holds:
            among = f"in each of {self.groups} groups" if self.groups > 1 else "among the runs"
            return (
                f"proof: {among} of {self.encodings} encodings, everything but the encoding "
                "(task, model, training, seed, their versions) has one hash"
            )
        parts = [
            f"{key} ({'; '.join(values[:3])}{'; ...' if len(values) > 3 else ''})"
            for key, values in self.differs.items()
        ]
        return f"besides the encoding, this differs between runs that are compared: {', '.join(parts)}"


def check_only_encoding_differs(items: Iterable[Item]) -> OnlyEncodingDiffersResult:
    """Compare the identities of runs whose labels are equal except for the encoding."""
    groups: dict[tuple[object, ...], list[tuple[str, dict[str, Any]]]] = {}
    names: set[str] = set()
    for item in items:
        if item.kind == "run":
            labels = {key: value for key, value in item.point.labels().items() if key != "encoding"}
            identity = {key: value for key, value in item.plan.identity().items() if key not in {"encoding", "start"}}
            # The runs that it starts from differ by their encoding; nothing else of them may differ.
            before = item.point.chain[:-1]
            identity["start"] = [[one.stage, one.positions, one.model, one.training] for one in before]
            groups.setdefault(tuple(labels.values()), []).append((item.point.encoding, identity))
            names.add(item.point.encoding)
    differs: dict[str, list[str]] = {}
    for group in groups.values():
        if any(identity != group[0][1] for _, identity in group):
            for key, values in _differing(group).items():
                told = ", ".join(f"{name} {value}" for name, value in values)
                if told not in differs.setdefault(key, []):
                    differs[key].append(told)
    return OnlyEncodingDiffersResult(len(groups), len(names), differs)


def _differing(group: list[tuple[str, dict[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    flat = [
        (
            name,
            {
                f"{part}.{key}": value
                for part, fields in identity.items()
                for key, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
            },
        )
        for name, identity in group
    ]
    keys = sorted({key for _, fields in flat for key in fields})
    return {
        key.rstrip("."): [(name, fields.get(key)) for name, fields in flat]
        for key in keys
        if len({str(fields.get(key)) for _, fields in flat}) > 1
    }
