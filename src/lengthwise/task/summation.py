"""Add single digits modulo 10."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lengthwise.task.base import Example, Published
from lengthwise.task.copy import SEP
from lengthwise.task.numbers import DIGITS, signed_digits
from lengthwise.task.polynomial import sum_residue_distribution
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise, join_with_separator


@dataclass(frozen=True, kw_only=True)
class Summation(Stepwise):
    """`7 + 8 + 9 =` → `4`, which is 24 modulo 10

    `length` is the number of addends, each 1, ..., 9.
    """

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "addends"

    @property
    def symbols(self) -> tuple[str, ...]:
        frame = {"ours": ("+", "="), "paper": ("Compute:", "+", ".", f"##{SEP}", "The", "answer", "is")}[self.protocol]
        steps = () if self.scratchpad_format is None else (*MARKS, "+", "=", "sum", "sum:")
        return tuple(dict.fromkeys((*DIGITS, *frame, *steps)))

    @property
    def lengths(self) -> range:
        return range(2, 1_000_001)

    @property
    def words_around_answer(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (("The", "answer", "is"), (".",)) if self.protocol == "paper" else ((), ())

    def draw(self, rng: RandomSource, length: int) -> tuple[int, ...]:
        return tuple(rng.integers(1, 10, length))

    def to_example(self, instance: tuple[int, ...]) -> Example:
        body = join_with_separator("+", [(str(addend),) for addend in instance])
        prompt = ("Compute:", *body, ".", f"##{SEP}") if self.protocol == "paper" else (*body, "=")
        return self.make_example(instance, prompt, (str(sum(instance) % 10),))

    def is_correct(self, instance: tuple[int, ...], answer: tuple[str, ...]) -> bool:
        """Check by adding one addend at a time and subtracting 10 when the sum reaches it."""
        place = 0
        for addend in instance:
            place += addend
            if place >= 10:
                place -= 10
        return answer == (DIGITS[place],)

    def steps(self, instance: tuple[int, ...]) -> list[Step]:
        steps, total = [], 0
        for place, addend in enumerate(instance):
            before, whole = total, total + addend
            total = whole % 10
            steps.append(
                Step(
                    (str(addend),),
                    (str(addend), "+", "sum", "=", str(addend), "+", str(before), "="),
                    signed_digits(whole),
                    ("sum:", *signed_digits(whole), "=", str(total)),
                    join_with_separator("+", [(str(later),) for later in instance[place + 1 :]]),
                )
            )
        return steps

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[int, ...]] | None:
        addends = tuple(int(word) for word in prompt if word in DIGITS)
        return (len(addends), addends) if len(addends) > 1 and 0 not in addends else None

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        return (9,) * length

    def space(self, length: int) -> int:
        return 9**length

    def chance(self, length: int) -> float:
        return max(sum_residue_distribution(Counter(range(1, 10)), length).values())

    @property
    def published(self) -> Published:
        return Published("s2s_sum len_tr8_ts16", (2, 8), (9, 16))
