"""Is the number of ones even?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lengthwise.task.base import Example, Published
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise, join_with_separator


@dataclass(frozen=True, kw_only=True)
class Parity(Stepwise):
    """`1 0 1 1 =` → `odd`

    `length` is the number of bits. (The even-pairs task, which counts unequal neighbours, is a different one.)
    """

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "bits"

    @property
    def symbols(self) -> tuple[str, ...]:
        if self.protocol == "paper":
            frame = (
                *("Is", "the", "number", "of", "1's", "even", "in", "sequence", "[", "##,", "]", "?"),
                *("The", "answer", "is", "Yes", "No", "##."),
            )
        else:
            frame = ("=", "even", "odd")
        steps = () if self.scratchpad_format is None else (*MARKS, "##,", "**", "par", "par:", "=")
        return tuple(dict.fromkeys(("0", "1", *frame, *steps)))

    def draw(self, rng: RandomSource, length: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, 2, length))

    def to_example(self, instance: tuple[int, ...]) -> Example:
        odd = sum(instance) % 2
        if self.protocol == "paper":
            head = ("Is", "the", "number", "of", "1's", "even", "in", "the", "sequence")
            return self.make_example(instance, (*head, *_listed(instance), "?"), ("No" if odd else "Yes",))
        return self.make_example(instance, (*map(str, instance), "="), ("odd" if odd else "even",))

    def is_correct(self, instance: tuple[int, ...], answer: tuple[str, ...]) -> bool:
        """Check by flipping a boolean at each 1."""
        even = True
        for bit in instance:
            if bit == 1:
                even = not even
        yes, no = ("Yes", "No") if self.protocol == "paper" else ("even", "odd")
        return answer == (yes if even else no,)

    def steps(self, instance: tuple[int, ...]) -> list[Step]:
        steps, parity = [], 0
        for place, bit in enumerate(instance):
            before, parity = parity, parity ^ bit
            steps.append(
                Step(
                    (str(bit),),
                    (str(bit), "**", "par", "=", str(bit), "**", str(before)),
                    (str(parity),),
                    ("par:", str(parity)),
                    _listed(instance[place + 1 :]),
                )
            )
        return steps

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[int, ...]] | None:
        bits = tuple(int(word) for word in prompt if word in {"0", "1"})
        return (len(bits), bits) if bits else None

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        return (1,) * length

    def space(self, length: int) -> int:
        return 2**length

    def chance(self, length: int) -> float:
        return 0.5

    @property
    def published(self) -> Published:
        return Published(
            "s2s_parity len_tr8_ts16",
            (3, 8),
            (9, 16),
            ("the original's shortest length is recorded nowhere: its script's default is 3, its figure begins at 4",),
        )


def _listed(bits: tuple[int, ...]) -> tuple[str, ...]:
    return ("[", *join_with_separator("##,", [(str(bit),) for bit in bits]), "]")
