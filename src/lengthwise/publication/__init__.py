"""The published numbers of the original study, Kazemnejad et al. 2023, with their sources. Needs no torch.

Encodings and tasks have our names, so that published numbers and ours have the same keys. Known defects of a number are
listed in its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from csv import DictReader
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.resources import files

from lengthwise.display import Display, Part
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
    """The name in the publication."""
    split: str
    """The name in the publication's code."""
    category: str
    """Primitive, maths or classic."""
    trained: int
    tested: int
    """The longest length trained and tested."""
    unit: str
    chance: float = 0.0


def read_published_csv(name: str) -> list[dict[str, str]]:
    """Return the lines of a file of published numbers, `data/NAME.csv`."""
    text = files(__name__).joinpath("data", f"{name}.csv").read_text("utf-8")
    return list(DictReader(text.splitlines()))


def numbers_by_encoding(line: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of a line that has a column for each encoding."""
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
    for line in read_published_csv("tasks")
}
CATEGORIES = {
    "primitive": "Primitive tasks",
    "maths": "Mathematical & reasoning tasks",
    "classic": "Classic length generalization",
}


@dataclass(frozen=True, repr=False)
class Table(Display):
    """Published numbers that belong together."""

    name: str
    what: str
    unit: str
    source: str
    rows: list[dict[str, object]]
    defects: tuple[str, ...] = ()
    """Known defects of these numbers."""
    digits: int = 4
    """The number of digits that the source has."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The numbers, their source and their known defects."""
        yield Part(f"{self.what} ({self.unit})", "bold")
        yield Part([{ENCODINGS.get(key, key): _said(key, row[key], self.digits) for key in row} for row in self.rows])
        yield Part(f"source: {self.source}")
        yield from (Part(f"  ! {defect}", "yellow") for defect in self.defects)

    def plain(self) -> dict[str, object]:
        """All fields."""
        return asdict(self)


def _said(key: str, value: object, digits: int) -> object:
    """Format shares without their zero, all of one width, and an encoding's name as it was published."""
    if isinstance(value, float):
        return f"{value:.{digits}f}".removeprefix("0") if value < 2 else f"{value:#.4g}"
    if isinstance(value, tuple):
        return " ".join(str(_said(key, part, digits)) for part in value)
    if value is None:
        return "-"
    return ENCODINGS.get(str(value), value) if key == "encoding" else value


TOPICS = {
    "accuracy": "exact match per task variant and encoding, at unseen and seen lengths",
    "mrr": "mean reciprocal rank of the encodings: overall, by category, by other recipes",
    "scratchpads": "exact match and mean reciprocal rank of the scratchpad formats",
    "attention": "how far NoPE's attention is from the others', and how far each looks back",
    "lengths": "how long the texts of two sets of instructions are",
    "perplexity": "language models with and without positions, of 0.1 to 1.3 billion parameters",
}


def tables(topic: str) -> list[Table]:
    """Return the published tables of a topic, e.g. `accuracy`."""
    if topic not in TOPICS:
        raise SpecError(f"nothing is published under {topic!r}.{did_you_mean(topic, TOPICS)}")
    return import_module(f"lengthwise.publication.{topic}").tables()


_VARIANTS = {"copy": "random", "reverse": "once", "sort": "single"}
"""The default variants of tasks."""


def published_task(spec: str | Spec) -> str | None:
    """Return the published variant of one of our tasks, whatever its lengths; None for scratchpads and new tasks."""
    spec = Spec.of(spec)
    options = dict(spec.options)
    if options.get("scratchpad") not in (None, "none"):
        return None
    if spec.name in _VARIANTS:
        return key if (key := f"{spec.name}:variant={options.get('variant', _VARIANTS[spec.name])}") in TASKS else None
    return spec.name if spec.name in TASKS else None


def published_encoding(spec: str | Spec, head_width: int = 16) -> str | None:
    """Return the published encoding that equals one of ours, or None.

    Rotary turns 16 coordinates of a head: all of a head of 16, as in the laptop preset, or a quarter of one of 64.
    """
    spec = Spec.of(spec)
    options = dict(spec.options)
    if spec.name == "rope":
        options.pop("interleaved", None)  # which dimensions form a pair only permutes the trained weights
        turned = options.pop("fraction", 1.0)
        same = not options and isinstance(turned, float | int) and round(turned * head_width) == 16
        return ROTARY if same else None
    return spec.name if spec.name in ENCODINGS and not options else None
