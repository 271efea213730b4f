"""The original study's numbers, with their source: Kazemnejad et al. 2023. Plain tables; no torch.

Encodings and tasks have our names, so that a number of ours and theirs meet under one key. Where a number is known to
carry a defect, its table says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

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


TASKS = {
    "copy:variant=same": Task("Copy variant 1", "rsc_tr20_ts40", "primitive", 20, 40, "symbols"),
    "copy:variant=same2": Task("Copy variant 1 (2x)", "rsc2x_tr20_ts40", "primitive", 20, 40, "symbols"),
    "copy:variant=replace": Task("Copy variant 2", "rdc_tr20_ts40", "primitive", 20, 40, "symbols"),
    "copy:variant=random": Task("Copy variant 3", "cmc_tr20_ts40", "primitive", 20, 40, "symbols"),
    "copy:variant=random2": Task("Copy variant 3 (2x)", "cmc2x_tr20_ts40", "primitive", 20, 40, "symbols"),
    "reverse:variant=once": Task("Reverse variant 1", "mc_tr20_ts40", "primitive", 20, 40, "symbols"),
    "reverse:variant=twice": Task("Reverse variant 1 (2x)", "mc2x_tr20_ts40", "primitive", 20, 40, "symbols"),
    "reverse:variant=back": Task("Reverse variant 2", "mcrv_tr20_ts40", "primitive", 20, 40, "symbols"),
    "addition": Task("Addition", "len_tr8_ts16", "maths", 8, 16, "digits"),
    "polynomial": Task("Polynomial Evaluation", "n_terms_tr8_ts16", "maths", 8, 16, "terms", 0.1),
    "sort:variant=single": Task("Sorting (single token)", "len_sngd_tr8_ts16", "maths", 8, 16, "items"),
    "sort:variant=multi": Task("Sorting (multi digit)", "len_mltd_tr8_ts16", "maths", 8, 16, "items"),
    "summation": Task("Summation", "len_tr8_ts16", "maths", 8, 16, "addends", 0.1),
    "parity": Task("Parity", "len_tr8_ts16", "maths", 8, 16, "bits", 0.5),
    "lego": Task("LEGO", "len_tr8_ts16", "maths", 8, 16, "variables", 0.5),
    "scan": Task("SCAN", "mdlen_tr25_ts48", "classic", 25, 48, "actions"),
    "pcfg": Task("PCFG", "md_productivity", "classic", 8, 35, "functions"),
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


def numbers(text: str) -> list[float | None]:
    """The numbers of a line, where `-` is none and `0x3` is three zeros."""
    found: list[float | None] = []
    for word in text.split():
        value, times, count = word.partition("x")
        found += [None if value == "-" else float(value)] * (int(count) if times else 1)
    return found


def by_encoding(text: str) -> dict[str, float]:
    """Five numbers, by encoding."""
    return {name: value for name, value in zip(ENCODINGS, numbers(text), strict=True) if value is not None}
