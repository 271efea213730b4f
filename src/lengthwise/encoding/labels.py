"""Labels of encodings in figures and tables: `nope` is NoPE, `rope:fraction=0.25` is RoPE ¼. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.signature import encoding_stub
from lengthwise.folder import without_paths
from lengthwise.spec import Spec, SpecError, format_value, parse_specs

_SHARES = {0.25: "¼", 0.5: "½", 0.75: "¾"}


def label_of(encoding: str, class_labels: Mapping[str, str] | None = None) -> str:
    """The label of an encoding spec, or of a list with one spec per layer: `3*rope,nope` is 3×RoPE, NoPE.

    `class_labels` maps names of classes from outside the package to labels; without an entry, a class has its name.
    """
    try:
        listed = parse_specs(encoding)
    except SpecError:
        return encoding  # not a spec, so it is already a label
    counted = [(len(list(same)), name) for name, same in groupby(_one(spec, class_labels or {}) for spec in listed)]
    if len(counted) == 1:
        return counted[0][1]
    return ", ".join(name if many == 1 else f"{many}×{name}" for many, name in counted)


def label_of_class(cls: type) -> str:
    """The label that a class itself defines, or its name; a label inherited from its parent does not count."""
    return str(vars(cls).get("label") or cls.__name__)


def _one(spec: Spec, known: Mapping[str, str]) -> str:
    options = dict(spec.options)
    if spec.name in ENCODINGS:
        name = label_of_class(encoding_stub(spec.name))
        if spec.name == "rope" and (share := _SHARES.get(options.get("fraction"))):  # pyrefly: ignore
            name = f"{name} {share}"
            options = {key: value for key, value in options.items() if key not in {"fraction", "interleaved"}}
    else:
        name = known.get(without_paths(spec.name)) or spec.name.rpartition(":")[2].rpartition(".")[2]
    return " ".join([name, *(f"{key}={format_value(value)}" for key, value in options.items())])


def unique_labels(names: list[str], class_labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name → label; names that would share a label keep their own spelling."""
    made = {name: label_of(name, class_labels) for name in names}
    counts = {label: list(made.values()).count(label) for label in made.values()}
    return {name: label if counts[label] == 1 else name for name, label in made.items()}
