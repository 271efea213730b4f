"""Look words up by words: keys and values of several tokens, among spaces."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb, perm
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource

Store = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Keys, values (each a number whose digits are its tokens), spaces before each pair, and the pairs that are asked."""


@dataclass(frozen=True, kw_only=True)
class Mqmtar(Task):
    """`_ 12 7 : 3 3 _ 5 1 : 0 9 _ _ ? 5 1 ? 12 7` → `? 0 9 ? 3 3`

    Multi-query multi-token associative recall. `length` is the number of tokens before the first query; pairs of a key
    and a value, each `width` tokens of an alphabet of `letters`, fill the share `share` of them, and spaces the rest.
    Keys are distinct; values are uniform. `queries` keys are asked, each uniform, so that one may be asked twice. As in
    the ASEntmax study, but for its spaces, which are spread more evenly there, its dictionary of 10,000 words, and its
    values, which are distinct there.
    """

    letters: int = 256
    width: int = 2
    queries: int = 4
    share: float = 0.8
    longest: int = 64

    paper: ClassVar[str] = "Vasylenko et al. 2025, arXiv:2506.16640"
    unit: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        if self.letters < 2 or self.width < 1 or self.queries < 1 or not 0.001 <= self.share <= 1:
            raise SpecError(
                "mqmtar needs at least two letters, words of one token, one query and a share from .001 to 1, not "
                f"letters={self.letters}, width={self.width}, queries={self.queries}, share={self.share}"
            )
        super().__post_init__()

    @property
    def words(self) -> int:
        """The number of different keys, and of different values."""
        return self.letters**self.width

    def pairs(self, length: int) -> int:
        """The number of pairs among `length` tokens."""
        return min(int(length * self.share) // (2 * self.width + 2), self.words)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.letters)), ":", "_", "?")

    @property
    def lengths(self) -> range:
        return range(self._shortest, 1_000_001)

    @cached_property
    def _shortest(self) -> int:
        """The shortest length with a pair; rounding may move it by one from the pair's tokens divided by the share."""
        about = int((2 * self.width + 2) / self.share)
        return next(length for length in range(max(about - 1, 1), about + 3) if self.pairs(length))

    def draw(self, rng: RandomSource, length: int) -> Store:
        count, below = self.pairs(length), rng.below
        keys: dict[int, None] = {}
        while len(keys) < count:
            keys[below(self.words)] = None
        values = tuple(below(self.words) for _ in range(count))
        # A uniform way to put the spaces before, between and after the pairs: which of all items are pairs.
        spaces = length - count * (2 * self.width + 2)
        chosen = sorted(rng.shuffle(range(spaces + count), count))
        gaps = tuple(at - before - 1 for before, at in zip((-1, *chosen), chosen, strict=False))
        return tuple(keys), values, (*gaps, spaces - sum(gaps)), tuple(below(count) for _ in range(self.queries))

    def _word(self, number: int) -> list[str]:
        found = []
        for _ in range(self.width):
            number, letter = divmod(number, self.letters)
            found.append(str(letter))
        return found[::-1]

    def to_example(self, instance: Store) -> Example:
        keys, values, gaps, asked = instance
        prompt: list[str] = []
        for key, value, gap in zip(keys, values, gaps, strict=False):
            prompt += ["_"] * gap + self._word(key) + [":"] + self._word(value) + ["_"]
        prompt += ["_"] * gaps[-1]
        for at in asked:
            prompt += ["?", *self._word(keys[at])]
        return Example(tuple(prompt), tuple(word for at in asked for word in ("?", *self._word(values[at]))))

    def check(self, instance: Store, output: Sequence[str]) -> bool:
        """Check with a dictionary read from the text of the prompt."""
        text = " ".join(self.to_example(instance).prompt)
        stored, *asked = text.split(" ? ")
        known = {}
        for part in stored.split("_"):
            if ":" in part:
                key, value = part.split(":")
                known[key.strip()] = value.strip()
        return " ".join(output) == " ".join(f"? {known[key.strip()]}" for key in asked)

    def longest_answer_instance(self, length: int) -> Store:
        count = self.pairs(length)
        spaces = length - count * (2 * self.width + 2)
        return tuple(range(count)), (0,) * count, (*(0,) * count, spaces), (0,) * self.queries

    def space(self, length: int) -> int:
        count = self.pairs(length)
        spaces = length - count * (2 * self.width + 2)
        return perm(self.words, count) * self.words**count * comb(spaces + count, count) * count**self.queries

    def chance(self, length: int) -> float:
        """Return the probability that all asked pairs have one value, which the guesser says for each query."""
        count, total = self.pairs(length), Fraction(0)
        for different in range(1, min(self.queries, count) + 1):
            total += Fraction(_onto(self.queries, different) * comb(count, different), self.words**different)
        return float(total / count**self.queries)


def _onto(queries: int, keys: int) -> int:
    """In how many ways the queries can ask for exactly these keys, each at least once."""
    return sum((-1) ** left * comb(keys, left) * (keys - left) ** queries for left in range(keys + 1))
