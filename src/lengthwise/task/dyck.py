"""Close the open brackets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.copy import SEP
from lengthwise.task.random_source import RandomSource

PAIRS = ("()", "[]", "{}", "<>")


@dataclass(frozen=True, kw_only=True)
class Dyck(Task):
    """`( [ ( ) [SEP]` → `] )`

    `length` is the number of brackets in the prompt, the beginning of a balanced string over `kinds` pairs. The first
    bracket stays open. If another bracket is open, the next one closes it or opens a new one, equally often; otherwise
    it opens.
    """

    kinds: int = 2
    longest: int = 20

    paper: ClassVar[str] = "Hewitt et al. 2020, arXiv:2010.07515"
    unit: ClassVar[str] = "brackets"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.kinds <= len(PAIRS):
            raise SpecError(f"there are 1 to {len(PAIRS)} kinds of brackets, not {self.kinds}")

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*"".join(PAIRS[: self.kinds]), SEP)

    def draw(self, rng: RandomSource, length: int) -> str:
        written, open_ = [], list[str]()
        for _ in range(length):
            if len(open_) > 1 and rng.below(2):
                written.append(open_.pop())
            else:
                opening, closing = PAIRS[rng.below(self.kinds)]
                written.append(opening)
                open_.append(closing)
        return "".join(written)

    def to_example(self, instance: str) -> Example:
        open_: list[str] = []
        for bracket in instance:
            if open_ and bracket == open_[-1]:
                open_.pop()
            else:
                open_.append(next(pair[1] for pair in PAIRS if pair[0] == bracket))
        return Example((*instance, SEP), tuple(reversed(open_)))

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check by removing adjacent pairs until nothing can be removed; nothing may remain."""
        if not set(output) <= {pair[1] for pair in PAIRS}:
            return False
        whole, before = instance + "".join(output), ""
        while whole != before:
            before = whole
            for pair in PAIRS:
                whole = whole.replace(pair, "")
        return not whole

    def longest_answer_instance(self, length: int) -> str:
        return PAIRS[0][0] * length

    def space(self, length: int) -> int:
        """Count by ballot numbers all walks of the brackets after the first that never close the first."""
        total, walks, before = 0, 1, 0
        for closing in range((length - 1) // 2 + 1):
            total += (walks - before) * self.kinds ** (length - closing)
            before, walks = walks, walks * (length - 1 - closing) // (closing + 1)
        return total

    def chance(self, length: int) -> float:
        """Return the maximum over depths of P(depth) / answers of that depth, which are all equally likely."""
        share = np.zeros(length + 2)
        share[1] = 1.0
        for _ in range(length - 1):
            closes = share / 2
            closes[:2] = 0.0
            opens = share - closes
            share = np.zeros_like(share)
            share[1:] += opens[:-1]
            share[:-1] += closes[1:]
        return float(max(share[1:] * float(self.kinds) ** -np.arange(1, length + 2)))
