"""Multiply a long number by a short one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Example
from lengthwise.task.numbers import DIGITS, Numbers, parse_digits
from lengthwise.task.random_source import RandomSource

Pair = tuple[str, str]
_COUNTED = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Multiplication(Numbers):
    """`9 6 4 * 5 8 =` → `5 5 9 1 2`

    `length` is the number of digits of the first factor; the second has 1, ..., `by` digits. No factor is 0.
    """

    by: int = 2

    paper: ClassVar[str] = "Cho et al. 2024, arXiv:2405.20671"
    unit: ClassVar[str] = "digits"

    def __post_init__(self) -> None:
        if self.by < 1:
            raise SpecError(f"the second factor has at least one digit, not {self.by}")
        super().__post_init__()

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*DIGITS, "*", "=", *self.format_symbols)

    def draw(self, rng: RandomSource, length: int) -> Pair:
        sizes = length, 1 + rng.below(self.by)
        a, b = ("".join(map(str, (1 + rng.below(9), *rng.integers(0, 10, size - 1)))) for size in sizes)
        return a, b

    def operands(self, instance: Pair) -> tuple[str, ...]:
        return instance

    def max_answer_digits(self, length: int) -> int:
        return max(length, self.by) + self.by

    def padded_digit_count(self, operands: tuple[str, ...]) -> int:
        return max(len(operands[0]), self.by)

    @property
    def max_answer_groups_beyond_prompt(self) -> int:
        return self.by

    def to_example(self, instance: Pair) -> Example:
        (a, b), answer = self.format_operands_and_answer(instance, _product(*instance))
        return Example((*a, "*", *b, "="), answer)

    def check(self, instance: Pair, output: Sequence[str]) -> bool:
        """Check with Python's integers."""
        digits = self.parse_answer(instance, output)
        if digits is None or digits[0] == "0":
            return False
        return parse_digits(digits) == parse_digits(instance[0]) * parse_digits(instance[1])

    def subgroup(self, instance: Pair) -> str:
        return f"{len(instance[0])}-by-{len(instance[1])}"

    def longest_answer_instance(self, length: int) -> Pair:
        return "9" * length, "9" * self.by

    def space(self, length: int) -> int:
        return 9 * 10 ** (length - 1) * (10**self.by - 1)

    def chance(self, length: int) -> float:
        """Return the probability of the likeliest product, by counting where there are few products.

        Beyond, return an upper bound: a product and the second factor determine the first factor.
        """
        return _likeliest(length, self.by) if self.space(length) <= _COUNTED else 10.0 ** (1 - length) / 9


@lru_cache(maxsize=64)
def _likeliest(length: int, by: int) -> float:
    """Return the probability of the likeliest product."""
    share, a_N = np.zeros(10 ** (length + by)), np.arange(10 ** (length - 1), 10**length)
    for digits in range(1, by + 1):
        b_N = np.arange(10 ** (digits - 1), 10**digits)
        share += np.bincount(np.outer(a_N, b_N).ravel(), minlength=len(share)) / (len(a_N) * len(b_N) * by)
    return float(share.max())


def _product(a: str, b: str) -> str:
    """Multiply by column sums from the right, with carries to the left."""
    sums = [0] * (len(a) + len(b))
    for i, x in enumerate(reversed(a)):
        for j, y in enumerate(reversed(b)):
            sums[i + j] += int(x) * int(y)
    digits, carry = [], 0
    for column in sums:
        carry, digit = divmod(column + carry, 10)
        digits.append(str(digit))
    return "".join(reversed(digits)).lstrip("0")
