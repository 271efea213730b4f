"""The original study's numbers, with their source: Kazemnejad et al. 2023. Plain tables; no torch.

Encodings and tasks have our names, so that a number of ours and theirs meet under one key. Where a number is known to
carry a defect, its table says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from csv import DictReader
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files

from lengthwise.spec import Spec, SpecError, did_you_mean

PAPER = "Kazemnejad et al. 2023, arXiv:2305.19466"
CODE = "github.com/McGill-NLP/length-generalization at 40f8a44"

ROTARY = "rope:fraction=0.25:interleaved=true"
ENCODINGS = {"nope": "NoPE", "t5": "T5", "alibi": "ALiBi", ROTARY: "Rotary", "sinusoidal": "APE"}
"""Our name → the published one; every table has them in this order."""
SEEDS = (256788, 234054, 146317)


@dataclass(frozen=True)
class Task:
    """One of the 17 published task variants."""

    label: str
    """As the publication calls it."""
    split: str
    """As the publication's code calls it."""
    category: str
    """Primitive, maths or classic."""
    trained: int
    tested: int
    """The longest length trained and tested."""
    unit: str
    chance: float = 0.0


def read(name: str) -> list[dict[str, str]]:
    """The lines of a file of published numbers, `data/NAME.csv`."""
    text = files(__name__).joinpath("data", f"{name}.csv").read_text("utf-8")
    return list(DictReader(text.splitlines()))


def by_encoding(line: Mapping[str, str]) -> dict[str, float]:
    """The numbers of a line that has a column for each encoding."""
    return {name: float(line[name]) for name in ENCODINGS if line[name]}


TASKS = {
    line["task"]: Task(
        line["label"],
        line["split"],
        line["category"],
        int(line["trained"]),
        int(line["tested"]),
        line["unit"],
        float(line["chance"]),
    )
    for line in read("tasks")
}
CATEGORIES = {
    "primitive": "Primitive tasks",
    "maths": "Mathematical & reasoning tasks",
    "classic": "Classic length generalization",
}


@dataclass(frozen=True)
class Table:
    """Published numbers that belong together."""

    name: str
    what: str
    unit: str
    source: str
    rows: list[dict[str, object]]
    defects: tuple[str, ...] = ()
    """What is known to be wrong with them."""
    digits: int = 4
    """As many as the source has."""


TOPICS = {
    "accuracy": "exact match per task variant and encoding, at unseen and seen lengths",
    "mrr": "mean reciprocal rank of the encodings: overall, by category, by other recipes",
    "scratchpads": "exact match and mean reciprocal rank of the scratchpad formats",
    "attention": "how far NoPE's attention is from the others', and how far each looks back",
    "lengths": "how long the texts of two sets of instructions are",
    "perplexity": "language models with and without positions, of 0.1 to 1.3 billion parameters",
}


def tables(topic: str) -> list[Table]:
    """The published tables of a topic, e.g. `accuracy`."""
    if topic not in TOPICS:
        raise SpecError(f"nothing is published under {topic!r}.{did_you_mean(topic, TOPICS)}")
    return import_module(f"lengthwise.publication.{topic}").tables()


_VARIANTS = {"copy": "random", "reverse": "once", "sort": "single"}
"""What a task is where no variant is given."""


def published_task(spec: str | Spec) -> str | None:
    """The published variant that a task of ours, of whatever lengths, is; none for scratchpads and new tasks."""
    spec = Spec.of(spec)
    options = dict(spec.options)
    if options.get("scratchpad") not in (None, "none"):
        return None
    if spec.name in _VARIANTS:
        return key if (key := f"{spec.name}:variant={options.get('variant', _VARIANTS[spec.name])}") in TASKS else None
    return spec.name if spec.name in TASKS else None


def published_encoding(spec: str | Spec) -> str | None:
    """The published encoding that one of ours is: a quarter of rotary is Rotary, all of it is none of the five."""
    spec = Spec.of(spec)
    options = dict(spec.options)
    if spec.name == "rope":
        options.pop("interleaved", None)  # which dimensions form a pair is a matter of names for trained weights
        return ROTARY if options == {"fraction": 0.25} else None
    return spec.name if spec.name in ENCODINGS and not options else None
