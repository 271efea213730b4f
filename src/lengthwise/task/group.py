"""Multiply elements of a group: state tracking."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import ClassVar, Literal

from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource

POINTS = {"S3": 3, "S4": 4, "S5": 5, "A4": 4, "A5": 5}


@dataclass(frozen=True, kw_only=True)
class Group(Task):
    """`213 231 132 =` → `231`

    The word problem of a group of permutations. 213 moves the first of three points to place 2, the second to place 1
    and leaves the third; the product applies the elements from left to right. `of` is S3, S4, S5 (all permutations of
    3, 4 or 5 points), A4 or A5 (the even ones, 12 or 60). `length` is the number of elements. The word problem of A5 is
    complete for NC¹ (Barrington 1989), so a Transformer of fixed depth is not expected to solve it at every length.
    """

    of: Literal["S3", "S4", "S5", "A4", "A5"] = "S3"
    longest: int = 10

    paper: ClassVar[str] = "Merrill et al. 2024, arXiv:2404.08819"
    unit: ClassVar[str] = "elements"

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*elements(self.of), "=")

    def draw(self, rng: RandomSource, length: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, len(elements(self.of)), length))

    def to_example(self, instance: tuple[int, ...]) -> Example:
        known = elements(self.of)
        product = range(POINTS[self.of])
        for index in instance:
            product = [int(known[index][place]) - 1 for place in product]
        return Example((*(known[index] for index in instance), "="), ("".join(str(place + 1) for place in product),))

    def check(self, instance: tuple[int, ...], output: Sequence[str]) -> bool:
        """Check by following each point through the elements."""
        known, ends = elements(self.of), ""
        for point in range(1, POINTS[self.of] + 1):
            at = point
            for index in instance:
                at = int(known[index][at - 1])
            ends += str(at)
        return list(output) == [ends]

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[int, ...]] | None:
        known = elements(self.of)
        words = [word for word in prompt if word != "="]
        if not words or not all(word in known for word in words):
            return None
        return len(words), tuple(known.index(word) for word in words)

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        return (0,) * length

    def space(self, length: int) -> int:
        return len(elements(self.of)) ** length

    def chance(self, length: int) -> float:
        return 1 / len(elements(self.of))


@lru_cache(maxsize=8)
def elements(of: str) -> tuple[str, ...]:
    """The elements of a group as strings of the places that points 1, 2, ... go to, in alphabetical order."""
    found = permutations(range(1, POINTS[of] + 1))
    return tuple("".join(map(str, one)) for one in found if of.startswith("S") or _even(one))


def _even(places: tuple[int, ...]) -> bool:
    count = len(places)
    return sum(places[i] > places[j] for i in range(count) for j in range(i + 1, count)) % 2 == 0
