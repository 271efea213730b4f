"""Evaluate an expression modulo 5."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource

OPERATORS = "+-*"


@dataclass(frozen=True, kw_only=True)
class Modular(Task):
    """`1 + 2 * 4 - 3 =` → `1`, which is 6 modulo 5

    `length` is the number of numbers, each 0, ..., `modulus` − 1; `*` binds before `+` and `-`. There are no brackets.
    """

    modulus: int = 5

    paper: ClassVar[str] = "Delétang et al. 2023, arXiv:2207.02098"
    unit: ClassVar[str] = "numbers"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.modulus <= 10:
            raise SpecError(f"the modulus is 2 to 10, not {self.modulus}")

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.modulus)), *OPERATORS, "=")

    def draw(self, rng: RandomSource, length: int) -> str:
        numbers = rng.integers(0, self.modulus, length)
        operators = rng.choice(OPERATORS, length - 1)
        return "".join(f"{a}{b}" for a, b in zip(map(str, numbers), [*operators, ""], strict=True))

    def to_example(self, instance: str) -> Example:
        total, sign, factor = 0, 1, 1
        for symbol in instance:
            if symbol == "*":
                continue
            if symbol in "+-":
                total, sign, factor = total + sign * factor, 1 if symbol == "+" else -1, 1
            else:
                factor = factor * int(symbol) % self.modulus
        return Example((*instance, "="), (str((total + sign * factor) % self.modulus),))

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check by splitting the text into a sum of products."""
        value = 0
        for part in instance.replace("-", "+-").split("+"):
            factor = -1 if part.startswith("-") else 1
            for one in part.removeprefix("-").split("*"):
                factor = factor * int(one) % self.modulus
            value += factor
        return list(output) == [str(value % self.modulus)]

    def longest_answer_instance(self, length: int) -> str:
        return "1" + "+1" * (length - 1)

    def space(self, length: int) -> int:
        return self.modulus**length * 3 ** (length - 1)

    def chance(self, length: int) -> float:
        """Return the exact probability of the likeliest value, by a Markov chain on (sum, signed product) so far."""
        size = self.modulus
        step = np.zeros((size * size, size * size))
        for total, factor, number in product(range(size), repeat=3):
            added = (total + factor) % size
            for after in ((total, factor * number % size), (added, number), (added, -number % size)):
                step[total * size + factor, after[0] * size + after[1]] += 1 / size / 3
        state = np.zeros(size * size)
        state[:size] = 1 / size
        state = state @ np.linalg.matrix_power(step, length - 1)
        values = [0.0] * size
        for total, factor in product(range(size), repeat=2):
            values[(total + factor) % size] += float(state[total * size + factor])
        return max(values)
