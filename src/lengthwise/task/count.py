"""Count how often a letter occurs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from string import ascii_lowercase
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.numbers import DIGITS, parse_digits
from lengthwise.task.random_source import RandomSource


@dataclass(frozen=True, kw_only=True)
class Count(Task):
    """`b a b b c : b =` → `3`

    `length` is the number of letters; they and the queried letter are uniform over the alphabet. It is the histogram
    task of Weiss et al. 2021, queried for one letter.
    """

    alphabet: int = 4

    paper: ClassVar[str] = "Weiss et al. 2021, arXiv:2106.06981"
    unit: ClassVar[str] = "letters"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.alphabet <= 26:
            raise SpecError(f"the alphabet has 2 to 26 letters, not {self.alphabet}")

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The letters that are counted."""
        return tuple(ascii_lowercase[: self.alphabet])

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.letters, *DIGITS, ":", "=")

    def draw(self, rng: RandomSource, length: int) -> tuple[str, str]:
        *letters, asked = rng.choice(self.letters, length + 1)
        return "".join(letters), asked

    def to_example(self, instance: tuple[str, str]) -> Example:
        letters, asked = instance
        return Example((*letters, ":", asked, "="), tuple(str(letters.count(asked))))

    def check(self, instance: tuple[str, str], output: Sequence[str]) -> bool:
        """Check by counting the letters that remain when the queried letter is removed."""
        letters, asked = instance
        if not output or not set(output) <= set(DIGITS) or (len(output) > 1 and output[0] == "0"):
            return False
        return parse_digits("".join(output)) == len(letters) - len([letter for letter in letters if letter != asked])

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[str, str]] | None:
        *letters, one = [word for word in prompt if word in self.letters] or [""]
        return (len(letters), ("".join(letters), one)) if letters else None

    def longest_answer_instance(self, length: int) -> tuple[str, str]:
        return self.letters[0] * length, self.letters[0]

    def space(self, length: int) -> int:
        return self.alphabet ** (length + 1)

    def chance(self, length: int) -> float:
        """Return the probability of the mode of a binomial distribution."""
        mode, other = (length + 1) // self.alphabet, self.alphabet - 1
        return comb(length, mode) * other ** (length - mode) / self.alphabet**length
