"""Which symbol was there some steps ago?"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource


@dataclass(frozen=True, kw_only=True)
class Nback(Task):
    """`c a b f a =` → `b`

    The symbol `back` places before the last one. `length` is the number of symbols, of an alphabet of `letters`. The
    ASEntmax study labels every symbol with the one two places before it; here the last one is asked.
    """

    back: int = 2
    letters: int = 16
    longest: int = 16

    paper: ClassVar[str] = "Vasylenko et al. 2025, arXiv:2506.16640"
    unit: ClassVar[str] = "symbols"

    def __post_init__(self) -> None:
        if self.back < 0 or not 2 <= self.letters <= 26:
            raise SpecError(
                f"nback goes 0 or more places back among 2 to 26 letters, not {self.back} and {self.letters}"
            )
        super().__post_init__()

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*ascii_lowercase[: self.letters], "=")

    @property
    def lengths(self) -> range:
        return range(self.back + 1, 1_000_001)

    def draw(self, rng: RandomSource, length: int) -> str:
        return "".join(ascii_lowercase[index] for index in rng.integers(0, self.letters, length))

    def to_example(self, instance: str) -> Example:
        return Example((*instance, "="), (instance[-1 - self.back],))

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check by removing the last symbols one at a time."""
        for _ in range(self.back):
            instance = instance[:-1]
        return "".join(output) == instance[len(instance) - 1] and len(output) == 1

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, str] | None:
        letters = "".join(word for word in prompt if word != "=")
        return (len(letters), letters) if len(letters) > self.back and set(letters) <= set(self.symbols) else None

    def longest_answer_instance(self, length: int) -> str:
        return "a" * length

    def space(self, length: int) -> int:
        return self.letters**length

    def chance(self, length: int) -> float:
        return 1 / self.letters
