"""Look values up by their keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import perm
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Task
from lengthwise.task.copy import SEP
from lengthwise.task.random_source import RandomSource

Pairs = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """`k7 v3 k1 v0 k4 v3 [SEP] k1 k7` → `v0 v3`

    Multi-query associative recall. `length` is the number of pairs; keys are distinct, and `queries` of them are
    queried, each once. If there are fewer pairs, all are queried.
    """

    queries: int = 2
    keys: int = 256
    values: int = 64
    longest: int = 16

    paper: ClassVar[str] = "Arora et al. 2024 (MQAR), arXiv:2312.04927"
    unit: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.queries, self.keys) < 1 or self.values < 2:
            raise SpecError("recall needs at least one query, one key and two values")
        if self.queries > self.longest:
            raise SpecError(
                f"recall cannot ask {self.queries} of {self.longest} pairs, the most it trains on; "
                f"write queries={self.longest} or less, or longest={self.queries} or more"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*(f"k{key}" for key in range(self.keys)), *(f"v{value}" for value in range(self.values)), SEP)

    @property
    def lengths(self) -> range:
        return range(1, self.keys + 1)

    def draw(self, rng: RandomSource, length: int) -> Pairs:
        keys = rng.shuffle(range(self.keys), length)
        values = rng.integers(0, self.values, length)
        return tuple(keys), tuple(values), tuple(rng.shuffle(range(length), min(self.queries, length)))

    def to_example(self, instance: Pairs) -> Example:
        keys, values, asked = instance
        pairs = [word for key, value in zip(keys, values, strict=True) for word in (f"k{key}", f"v{value}")]
        return Example((*pairs, SEP, *(f"k{keys[at]}" for at in asked)), tuple(f"v{values[at]}" for at in asked))

    def check(self, instance: Pairs, output: Sequence[str]) -> bool:
        """Check with a dictionary parsed from the prompt."""
        prompt = self.to_example(instance).prompt
        end = prompt.index(SEP)
        known = dict(zip(prompt[:end:2], prompt[1:end:2], strict=True))
        return list(output) == [known[key] for key in prompt[end + 1 :]]

    def longest_answer_instance(self, length: int) -> Pairs:
        return tuple(range(length)), (0,) * length, tuple(range(min(self.queries, length)))

    def space(self, length: int) -> int:
        return perm(self.keys, length) * self.values**length * perm(length, min(self.queries, length))

    def chance(self, length: int) -> float:
        return self.values ** -float(min(self.queries, length))
