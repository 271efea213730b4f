"""Write the items in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, lgamma, log
from typing import ClassVar, Literal

from lengthwise.spec import SpecError
from lengthwise.task.alphabet import LETTERS, letters
from lengthwise.task.base import Example, Published
from lengthwise.task.copy import SEP
from lengthwise.task.numbers import DIGITS
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise, join_with_separator

MINIMUM = ("The", "minimum", "of", "the", "unsorted", "portion")


@dataclass(frozen=True, kw_only=True)
class Sort(Stepwise):
    """`M E 5 [SEP]` → `5 E M`

    `length` is the number of items. `single` draws them from the first `alphabet` symbols 0–9, a–z, A–Z, which is
    also their order; `multi` draws numbers from 10 to `largest`: `2 4 6 8 , 5 3 [SEP]` → `5 3 , 2 4 6 8`.
    """

    variant: Literal["single", "multi"] = "single"
    alphabet: int = 50
    largest: int = 9999

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "items"
    keeps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "single" and self.largest != 9999:
            raise SpecError("largest is for numbers; write sort:variant=multi")
        if self.variant == "multi" and self.alphabet != 50:
            raise SpecError("alphabet is for single symbols; write sort:variant=single")
        if self.protocol == "paper" and (self.alphabet, self.largest) != (50, 9999):
            raise SpecError("the original's items are fixed; leave out alphabet and largest")
        if self.alphabet < 2 or self.largest < 11:
            raise SpecError("items must differ: alphabet is at least 2, largest at least 11")

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The single symbols, in their order."""
        return letters(self, self.alphabet, LETTERS)

    @property
    def symbols(self) -> tuple[str, ...]:
        frame = {
            "ours": (SEP, *((",",) if self.variant == "multi" else ())),
            "paper": ("Sort", "the", "following", "list", "[", "##,", "]", "##.", "The", "sorted", "is"),
        }[self.protocol]
        steps = () if self.scratchpad_format is None else (*MARKS, "##,", *MINIMUM)
        items = self.letters if self.variant == "single" else DIGITS
        return tuple(dict.fromkeys((*items, *frame, *steps)))

    @property
    def lengths(self) -> range:
        return range(2, 1_000_001)

    @property
    def words_around_answer(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (("The", "sorted", "list", "is", "["), ("]", "##.")) if self.protocol == "paper" else ((), ())

    def draw(self, rng: RandomSource, length: int) -> tuple[int, ...]:
        low, high = (0, self.alphabet) if self.variant == "single" else (10, self.largest + 1)
        return tuple(rng.integers(low, high, length))

    def to_example(self, instance: tuple[int, ...]) -> Example:
        body, answer = self._row(instance), self._row(sorted(instance))
        if self.protocol == "paper":
            return self.make_example(instance, ("Sort", "the", "following", "list", "[", *body, "]", "##."), answer)
        return self.make_example(instance, (*body, SEP), answer)

    def is_correct(self, instance: tuple[int, ...], answer: tuple[str, ...]) -> bool:
        """Check the definition of sorted: no item is smaller than the one before, and the items are the same."""
        comma = "##," if self.protocol == "paper" else ","
        if self.variant == "single":
            parts = [[symbol] for symbol in (answer[::2] if self.protocol == "paper" else answer)]
            if self.protocol == "paper" and set(answer[1::2]) - {comma} | ({comma} & set(answer[-1:])):
                return False
        else:
            parts = [[]]
            for symbol in answer:
                if symbol == comma:
                    parts.append([])
                else:
                    parts[-1].append(symbol)
        left = {tuple(self._item(item)): 0 for item in instance}
        for item in instance:
            left[tuple(self._item(item))] += 1
        values = {tuple(self._item(item)): item for item in instance}
        last = -1
        for part in map(tuple, parts):
            if not left.get(part) or values[part] < last:
                return False
            left[part] -= 1
            last = values[part]
        return len(parts) == len(instance)

    def steps(self, instance: tuple[int, ...]) -> list[Step]:
        """Return the steps of selection sort: swap the smallest item of the unsorted part with its first item."""
        steps, items = [], list(instance)
        for place in range(len(items)):
            front = items[place]
            least = min(range(place, len(items)), key=items.__getitem__)
            items[place], items[least] = items[least], items[place]
            comma_row = join_with_separator("##,", [self._item(item) for item in items[place + 1 :]])
            steps.append(Step(self._item(front), MINIMUM, self._item(items[place]), None, ("[", *comma_row, "]")))
        return steps

    def _item(self, item: int) -> tuple[str, ...]:
        return (self.letters[item],) if self.variant == "single" else tuple(str(item))

    def _row(self, items: Sequence[int]) -> tuple[str, ...]:
        if self.protocol == "ours" and self.variant == "single":
            return tuple(self.letters[item] for item in items)
        return join_with_separator("##," if self.protocol == "paper" else ",", [self._item(item) for item in items])

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[int, ...]] | None:
        if self.variant == "single":
            items = tuple(self.letters.index(word) for word in prompt if word in self.letters)
        else:
            items = tuple(map(int, "".join(word if word in DIGITS else " " for word in prompt).split()))
        sound = len(items) > 1 and (self.variant == "single" or all(10 <= one <= self.largest for one in items))
        return (len(items), items) if sound else None

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        return ((0 if self.variant == "single" else self.largest),) * length

    def space(self, length: int) -> int:
        return self._values**length

    @property
    def _values(self) -> int:
        return self.alphabet if self.variant == "single" else self.largest - 9

    def chance(self, length: int) -> float:
        """Return the probability of the likeliest sorted list, whose items are as different as possible."""
        each, more = divmod(length, self._values)
        fixed = more * lgamma(each + 2) + (self._values - more) * lgamma(each + 1)
        return exp(lgamma(length + 1) - fixed - length * log(self._values))

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        raise SpecError("which item comes where is what sort has to find, so positions cannot be coupled")

    @property
    def published(self) -> Published:
        name = {"single": "sngd", "multi": "mltd"}[self.variant]
        said = ("the paper says U(0, 10000); its code, and this, draw from 10 to 9999",)
        return Published(f"s2s_sort len_{name}_tr8_ts16", (2, 8), (9, 16), said if self.variant == "multi" else ())
