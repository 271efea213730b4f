"""Write the input backwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from lengthwise.task.alphabet import letters
from lengthwise.task.base import Example, Published, Task
from lengthwise.task.copy import NEXT, SEP, VOCABULARY, copied_symbol_groups, refuse_bad_alphabet_size
from lengthwise.task.random_source import RandomSource

NAMES = {"once": "mc", "twice": "mc2x", "back": "mcrv"}


@dataclass(frozen=True, kw_only=True)
class Reverse(Task):
    """`a b c [SEP]` → `c b a`

    `length` is the number of symbols in the input. `twice` answers it twice, `c b a [NEXT] c b a`; `back` reverses it
    back: `c b a [NEXT] a b c`.
    """

    variant: Literal["once", "twice", "back"] = "once"
    alphabet: int | None = None
    longest: int = 20

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "symbols"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_bad_alphabet_size(self.protocol, self.alphabet)

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The symbols that are reversed."""
        return letters(self, self.alphabet or 100)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.letters, SEP, NEXT, *(("Reverse:",) if self.protocol == "paper" else ()))

    def draw(self, rng: RandomSource, length: int) -> tuple[str, ...]:
        return tuple(rng.choice(self.letters, length))

    def to_example(self, instance: tuple[str, ...]) -> Example:
        head = ("Reverse:",) if self.protocol == "paper" else ()
        turned = instance[::-1]
        more = {"once": (), "twice": (NEXT, *turned), "back": (NEXT, *instance)}[self.variant]
        return Example((*head, *instance, SEP), (*turned, *more))

    def check(self, instance: tuple[str, ...], output: Sequence[str]) -> bool:
        last = len(instance) - 1
        if self.variant == "once":
            return len(output) == last + 1 and all(output[at] == instance[last - at] for at in range(last + 1))
        if len(output) != 2 * len(instance) + 1 or output[last + 1] != NEXT:
            return False
        again = output[last + 2 :] if self.variant == "twice" else list(reversed(output[last + 2 :]))
        return all(output[at] == again[at] == instance[last - at] for at in range(last + 1))

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
        words = tuple(word for word in prompt if word in set(self.letters))
        return (len(words), words) if words else None

    def longest_answer_instance(self, length: int) -> tuple[str, ...]:
        return (self.letters[0],) * length

    def space(self, length: int) -> int:
        return len(self.letters) ** length

    def chance(self, length: int) -> float:
        return len(self.letters) ** -float(length)

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """Each symbol of the input and its places in the answer share a group."""
        begin = int(prompt[:1] == ("Reverse:",) or list(prompt[:1]) == ["Reverse:"])
        length = len(prompt) - 1 - begin
        counted = copied_symbol_groups(answer, length, {NEXT, SEP})
        turn = list(answer).index(NEXT) if self.variant == "back" and NEXT in answer else len(answer)
        turned = [length + 1 - group if group and at < turn else group for at, group in enumerate(counted)]
        return [0] * begin + list(range(1, length + 1)) + [0] + turned

    @property
    def published(self) -> Published:
        return Published(f"s2s_reverse {NAMES[self.variant]}_tr20_ts40", (2, 20), (21, 40), (VOCABULARY,))
