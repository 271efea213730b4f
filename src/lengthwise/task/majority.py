"""Which bit is more frequent?"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar

from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource


@dataclass(frozen=True, kw_only=True)
class Majority(Task):
    """`1 0 1 1 =` → `1`

    `length` is the number of bits, which are uniform. If both are equally frequent, the answer is `tie`. The longer the
    sequence, the smaller the share by which one bit wins, so attention must average more precisely.
    """

    longest: int = 15

    paper: ClassVar[str] = "Zhou et al. 2024, arXiv:2310.16028"
    unit: ClassVar[str] = "bits"

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("0", "1", "=", "tie")

    def draw(self, rng: RandomSource, length: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, 2, length))

    def to_example(self, instance: tuple[int, ...]) -> Example:
        ones = sum(instance)
        zeros = len(instance) - ones
        answer = "tie" if ones == zeros else "1" if ones > zeros else "0"
        return Example((*map(str, instance), "="), (answer,))

    def check(self, instance: tuple[int, ...], output: Sequence[str]) -> bool:
        """Check by cancelling a zero against a one until only one kind is left."""
        left: list[int] = []
        for bit in instance:
            if left and left[-1] != bit:
                left.pop()
            else:
                left.append(bit)
        return list(output) == [str(left[0]) if left else "tie"]

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[int, ...]] | None:
        bits = tuple(int(word) for word in prompt if word in {"0", "1"})
        return (len(bits), bits) if bits else None

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        return (1,) * length

    def space(self, length: int) -> int:
        return 2**length

    def chance(self, length: int) -> float:
        tie = 0.0 if length % 2 else comb(length, length // 2) / 2**length
        return max(tie, (1 - tie) / 2)
