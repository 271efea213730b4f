"""`lengthwise new`: a file to begin with, its test, and the command that compares it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.terminal import app, console, escape
from lengthwise.spec import SpecError, did_you_mean

ENCODING = '''"""{title}: a positional encoding. help(lengthwise.Encoding) has every hook and claim."""

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry


class {cls}(Encoding):
    """Adds −slope · log(1 + distance) to the score of a query and a key, with a slope per head that is learned.

    An option is a keyword argument with a type: `{file}:{cls}:slope=0.5`.
    """

    relative = True  # a common shift of all positions changes nothing; `verify` holds you to it

    def __init__(self, geometry: Geometry, *, slope: float = 1.0) -> None:
        super().__init__(geometry)
        self.slope = slope
        self.slopes_H = nn.Parameter(torch.empty(geometry.heads))  # filled by `initialize`, never here

    def initialize(self, stream) -> None:
        """Start every head at `slope`; `stream(name)` is a generator keyed by the seed, for what is random."""
        nn.init.constant_(self.slopes_H, self.slope)

    def by_distance(self, distances_N: Tensor) -> Tensor:
        """The bias (H, N) at each distance; distances come as floats in the working precision."""
        slopes_H1 = self.slopes_H.to(distances_N.dtype)[:, None]
        return -slopes_H1 * torch.log1p(distances_N.abs())

    # Other places to act (override what you need, delete the rest):
    # def embed(self, x_BTD, positions_BT): ...                 once, on the token embeddings
    # def prepare(self, query_BQ, key_BK, budget_B): ...        once per forward: what all layers share
    # def rotate(self, q_BHQE, k_BHKE, state): ...              queries and keys together
    # def bias(self, query_BQ, key_BK): ...                     an additive bias that is not one of distance alone
'''

ENCODING_TEST = '''"""The conformance kit: padding, caches, precision, gradients, claims."""

from {module} import {cls}

from lengthwise.conformance import assert_conforms


def test_it_is_what_it_says() -> None:
    assert_conforms({cls})
'''

TASK = '''"""{title}: a task. help(lengthwise.task.base.Task) has the whole contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar

from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource


@dataclass(frozen=True, kw_only=True)  # options are fields: {file}:{cls}:longest=12
class {cls}(Task):
    """`a b b =` → `b`: which of two letters is in the majority, of an odd number of them."""

    longest: int = 9  # the longest length trained on; tests go to twice and four times that

    unit: ClassVar[str] = "letters"

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every symbol of prompts and answers."""
        return ("a", "b", "=")

    @property
    def lengths(self) -> range:
        """The lengths there are."""
        return range(1, 1_000_001, 2)

    def draw(self, words: RandomSource, length: int) -> tuple[str, ...]:
        """An instance: values only, and random through `words` alone, so that anyone can draw it again."""
        return tuple(words.choice(("a", "b"), length))

    def render(self, instance: tuple[str, ...]) -> Example:
        """What the model reads, and what it should write."""
        return Example((*instance, "="), (max("ab", key=instance.count),))

    def check(self, instance: tuple[str, ...], said: Sequence[str]) -> bool:
        """Whether an answer is right, found another way than `render` finds it."""
        return tuple(said) == (sorted(instance)[len(instance) // 2],)

    def worst(self, length: int) -> tuple[str, ...]:
        """An instance with the longest answer of its length."""
        return ("a",) * length

    def space(self, length: int) -> int:
        """How many instances of a length there are."""
        return 2**length

    def chance(self, length: int) -> float:
        """What one gets who always gives the likeliest answer."""
        return sum(comb(length, ones) for ones in range(length // 2 + 1)) / 2**length
'''

TASK_TEST = '''"""What must hold of every task: answers are right, splits disjoint, examples the same for everyone."""

from lengthwise.task import build_task
from lengthwise.task.audit import audit
from lengthwise.task.block import training_block

TASK = "{file}:{cls}"


def test_the_audit_finds_nothing() -> None:
    assert audit(build_task(TASK), TASK).problems == []


def test_an_example_is_the_same_whoever_makes_it() -> None:
    one, other = (training_block(build_task(TASK), 0, 100) for _ in range(2))
    assert (one.ids == other.ids).all()
'''


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="encoding or task")],
    name: Annotated[str, typer.Argument(help="its name, e.g. mine")],
    to: Annotated[Path, typer.Option(help="the folder to write into")] = Path("."),
) -> None:
    """Write a template for a new encoding or task, with its test.

    It also prints the command that compares it with others.
    """
    kinds = {"encoding": (ENCODING, ENCODING_TEST), "task": (TASK, TASK_TEST)}
    if kind not in kinds:
        raise SpecError(f"there is no new {kind!r}.{did_you_mean(kind, kinds)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        fitting = re.sub(r"\W+", "_", name.lower()).lstrip("_0123456789") or f"my_{kind}"
        raise SpecError(f"a name is lower-case letters, digits and _, e.g. {fitting}, not {name!r}")
    cls = "".join(part.capitalize() for part in name.split("_"))
    file, test = to / f"{name}.py", to / f"test_{name}.py"
    for path in (file, test):
        if path.exists():
            raise SpecError(f"{path} is there already; choose another name, or move it away")
    words = {"title": cls, "cls": cls, "file": file.name, "module": name}
    try:
        to.mkdir(parents=True, exist_ok=True)
        for path, text in zip((file, test), kinds[kind], strict=True):
            path.write_text(re.sub(r"\{(title|cls|file|module)\}", lambda found: words[found[1]], text))
    except OSError as error:
        raise SpecError(f"cannot write to {to}: {error.strerror or error}") from error
    spec = f"{file}:{cls}"
    then = {
        "encoding": (f"lengthwise verify {spec}", f"lengthwise compare copy:variant=same --encodings {spec},nope,rope"),
        "task": (
            f"lengthwise show {spec}",
            f"lengthwise audit {spec}",
            f"lengthwise compare {spec} --encodings nope,rope",
        ),
    }[kind]
    screen = console()
    screen.print(f"written: {escape(str(file))}, {escape(str(test))}\nthen:")
    for line in (*then, f"pytest {test}"):
        screen.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
