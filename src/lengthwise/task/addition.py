"""Add two numbers, digit by digit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lengthwise.task.base import Example, Published
from lengthwise.task.numbers import DIGITS, Numbers
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Addition(Numbers, Stepwise):
    """`9 6 4 + 5 8 =` → `1 0 2 2`

    `length` is the number of digits of the longer operand; the other has 1, ..., length digits, equally often.
    """

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "digits"
    shown: ClassVar[tuple[str, ...]] = (*Numbers.shown, "scratchpad")

    @property
    def symbols(self) -> tuple[str, ...]:
        frame = {"ours": ("+", "="), "paper": ("Compute", "+", "?", "The", "answer", "is", "##.")}[self.protocol]
        steps = (
            () if self.scratchpad_format is None else (*MARKS, "##,", "carry", "carry:", "=", *map(str, range(10, 20)))
        )
        return tuple(dict.fromkeys((*DIGITS, *frame, *self.format_symbols, *steps)))

    def draw(self, rng: RandomSource, length: int) -> Pair:
        if self.protocol == "paper":
            # Equally many rows of each of the cells n-by-1, ..., n-by-n, ..., 1-by-n.
            cell = rng.index % (2 * length - 1)
            sizes = (length, cell + 1) if cell < length else (cell - length + 1, length)
            return _number(rng, sizes[0]), _number(rng, sizes[1])
        other = 1 + rng.below(length)
        long, short = _number(rng, length), _number(rng, other)
        return (short, long) if rng.below(2) else (long, short)

    def operands(self, instance: Pair) -> tuple[str, ...]:
        return instance

    def max_answer_digits(self, length: int) -> int:
        return length + 1

    @property
    def max_answer_groups_beyond_prompt(self) -> int:
        return 1

    def to_example(self, instance: Pair) -> Example:
        (a, b), answer = self.format_operands_and_answer(instance, _sum(instance))
        prompt = ("Compute", *a, "+", *b, "?") if self.protocol == "paper" else (*a, "+", *b, "=")
        return self.make_example(instance, prompt, answer)

    def is_correct(self, instance: Pair, answer: tuple[str, ...]) -> bool:
        """Check by subtraction: the answer minus one operand, borrowing from the left, must be the other operand."""
        digits = self.parse_answer(instance, answer)
        if digits is None or (len(digits) > 1 and digits[0] == "0"):
            return False
        a, b = instance
        width, borrow = max(len(digits), len(a), len(b)), 0
        for d, x, y in zip(*(part.zfill(width)[::-1] for part in (digits, a, b)), strict=True):
            left = int(d) - int(y) - borrow
            borrow = int(left < 0)
            if left + 10 * borrow != int(x):
                return False
        return not borrow

    def steps(self, instance: Pair) -> list[Step]:
        columns = list(_columns(*instance))
        steps = []
        for place, (x, y, carry, total) in enumerate(columns):
            a, b = (_rest(number, max(map(len, instance)), place) for number in instance)
            steps.append(
                Step(
                    (str(x), "##,", str(y)),
                    (str(x), "+", str(y), "+", "carry", "=", str(x + y), "+", str(carry), "=", str(total)),
                    (str(total % 10),),
                    ("carry:", str(total // 10)),
                    (*a, "+", *b),
                )
            )
        return steps

    def subgroup(self, instance: Pair) -> str:
        return f"{len(instance[0])}-by-{len(instance[1])}"

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, Pair] | None:
        plain = not (self.hints or self.spaces or self.padded) and self.reversed in {"none", "answer"}
        numbers = "".join(word if word in DIGITS else " " for word in prompt).split()
        sound = len(numbers) == 2 and all(one == "0" or one[0] != "0" for one in numbers)
        return (max(map(len, numbers)), (numbers[0], numbers[1])) if plain and sound else None

    def longest_answer_instance(self, length: int) -> Pair:
        return "9" * length, "9" * length

    def space(self, length: int) -> int:
        return 100**length - (100 ** (length - 1) if length > 1 else 0)

    def chance(self, length: int) -> float:
        """Return the probability of the likeliest sum: at one digit 9, one in ten; beyond, an upper bound.

        The bound holds because a sum and the shorter operand determine the longer one.
        """
        return 0.1 if length == 1 else 10.0 ** (1 - length) / 9

    def paper_bins(self, length: int, split: str) -> int:
        return 2 * length - 1

    @property
    def published(self) -> Published:
        return Published(
            "s2s_addition len_tr8_ts16",
            (1, 8),
            (9, 16),
            ("off: with a scratchpad the original generates at most 1,500 tokens, prompt included",),
        )


def _number(rng: RandomSource, digits: int) -> str:
    if digits == 1:
        return str(rng.below(10))
    return "".join(map(str, (1 + rng.below(9), *rng.integers(0, 10, digits - 1))))


def _columns(a: str, b: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the two digits, the carry and their sum of each column, right to left, and a last column for a carry."""
    width, carry = max(len(a), len(b)), 0
    for x, y in zip(reversed(a.zfill(width)), reversed(b.zfill(width)), strict=True):
        total = int(x) + int(y) + carry
        yield int(x), int(y), carry, total
        carry = total // 10
    if carry:
        yield 0, 0, carry, carry


def _sum(instance: Pair) -> str:
    a, b = instance
    if max(len(a), len(b)) < 4000:  # Python reads and writes integers up to 4,300 digits
        return str(int(a) + int(b))
    return "".join(str(total % 10) for *_, total in _columns(*instance))[::-1]


def _rest(number: str, width: int, place: int) -> str:
    """Return the digits not yet added, without leading zeros; zeros only become one zero, no digits stay empty."""
    left = number.zfill(width)[: max(width - 1 - place, 0)]
    return left.lstrip("0") or left[:1]
