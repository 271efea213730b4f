"""Read the bit that was written last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource


@dataclass(frozen=True, kw_only=True)
class Flipflop(Task):
    """`w 1 i 0 r 1 i 0 r` → `1`

    `length` is the number of instructions: write, ignore, read, each with a bit. The first writes, the last reads;
    each one between is an ignore with probability `ignore`, otherwise a write or a read, equally often. A read in the
    prompt is followed by the correct bit.
    """

    ignore: float = 0.8
    longest: int = 20

    paper: ClassVar[str] = "Liu et al. 2023, arXiv:2306.00946"
    unit: ClassVar[str] = "instructions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ignore < 1:
            raise SpecError(f"ignore is a probability from 0 to below 1, not {self.ignore}")

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("w", "i", "r", "0", "1")

    @property
    def lengths(self) -> range:
        return range(2, 1_000_001)

    def draw(self, rng: RandomSource, length: int) -> str:
        weighted, below = rng.weighted, rng.below
        kept = "01"[below(2)]
        written, bounds = ["w", kept], (self.ignore, (1 + self.ignore) / 2, 1.0)
        for _ in range(length - 2):
            instruction = weighted(bounds)  # 0 ignores, 1 writes, 2 reads
            if instruction == 2:
                written.append("r" + kept)
            elif instruction:
                kept = "01"[below(2)]
                written.append("w" + kept)
            else:
                written.append("i0" if below(2) == 0 else "i1")
        return "".join(written)

    def to_example(self, instance: str) -> Example:
        last = instance.rindex("w")
        return Example((*instance, "r"), (instance[last + 1],))

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check by simulating the memory."""
        memory = ""
        for instruction, bit in zip(instance[::2], instance[1::2], strict=True):
            if instruction == "w":
                memory = bit
            elif instruction == "r" and bit != memory:
                return False
        return list(output) == [memory]

    def longest_answer_instance(self, length: int) -> str:
        return "w0" + "i0" * (length - 2)

    def space(self, length: int) -> int:
        """Count instances: write and ignore have two possible bits each, read has one."""
        middle = (4 if self.ignore else 2) + 1
        return 2 * middle ** (length - 2)

    def chance(self, length: int) -> float:
        return 0.5
