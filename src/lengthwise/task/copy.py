"""Write the input again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from lengthwise.spec import SpecError
from lengthwise.task.alphabet import ASCII, letters
from lengthwise.task.base import Example, Published, Task
from lengthwise.task.random_source import RandomSource

SEP, NEXT = "[SEP]", "[NEXT]"
Variant = Literal["same", "same2", "replace", "random", "random2"]
# Alphabet sizes. `same` has many symbols because an instance is a single symbol, and the test set needs enough of them.
OURS = {"same": 500, "same2": 500, "replace": 78, "random": 100, "random2": 100}
# ⌊115,000 / 19 lengths⌋ tokens; all ordered pairs of 78; the first 100.
PAPER = {"same": 6052, "same2": 6052, "replace": 78, "random": 100, "random2": 100}


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """`a b c [SEP]` → `a b c`

    `length` is the number of symbols in the input. Variants: `same` repeats one symbol n times, `same2` answers it 2n
    times; `replace` answers another symbol: `a b [NEXT] a a [SEP]` → `b b`; `random` is a sequence, `random2`
    answers it twice: `a b [SEP]` → `a b [NEXT] a b`.
    """

    variant: Variant = "random"
    alphabet: int | None = None
    longest: int = 20

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "symbols"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_bad_alphabet_size(self.protocol, self.alphabet)

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The symbols that are copied."""
        size = self.alphabet or (PAPER if self.protocol == "paper" else OURS)[self.variant]
        return letters(self, size)

    @property
    def symbols(self) -> tuple[str, ...]:
        words = {"ours": (), "paper": ("Copy:", "Replace", "with", "in")}[self.protocol]
        return (*self.letters, SEP, NEXT, *words)

    def draw(self, rng: RandomSource, length: int) -> tuple:
        size = len(self.letters)
        if self.variant in {"random", "random2"}:
            return tuple(rng.choice(self.letters, length))
        # The original lists each symbol, or each pair, once per length.
        one = rng.index if self.protocol == "paper" else rng.below(self.space(length))
        if self.variant == "replace":
            old, new = divmod(one, size - 1)
            return (self.letters[old], self.letters[new + (new >= old)], length)
        return (self.letters[one], length)

    @property
    def paper_lists(self) -> int | None:
        return None if self.variant in {"random", "random2"} else self.space(1)

    def paper_rows(self, length: int, split: str, per_bin: int) -> int:
        return min(per_bin, self.paper_lists or per_bin)

    def to_example(self, instance: tuple) -> Example:
        paper, end = self.protocol == "paper", (SEP,)
        if self.variant == "replace":
            old, new, length = instance
            head = ("Replace", old, "with", new, "in") if paper else (old, new, NEXT)
            return Example((*head, *(old,) * length, *end), (new,) * length)
        head = ("Copy:",) if paper else ()
        if self.variant in {"same", "same2"}:
            one, length = instance
            return Example((*head, *(one,) * length, *end), (one,) * (length * (1 + (self.variant == "same2"))))
        answer = instance if self.variant == "random" else (*instance, NEXT, *instance)
        return Example((*head, *instance, *end), answer)

    def check(self, instance: tuple, output: Sequence[str]) -> bool:
        if self.variant in {"same", "same2", "replace"}:
            times = instance[-1] * (2 if self.variant == "same2" else 1)
            return len(output) == times and set(output) == {instance[-2]}
        if self.variant == "random":
            return len(output) == len(instance) and all(a == b for a, b in zip(output, instance, strict=True))
        middle = len(instance)
        return len(output) == 2 * middle + 1 and all(
            output[at] == (NEXT if at == middle else instance[at % (middle + 1)]) for at in range(len(output))
        )

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, tuple] | None:
        words = tuple(word for word in prompt if word in set(self.letters))
        length = len(words)
        if self.variant in {"random", "random2"}:
            return (length, words) if words else None
        if self.variant == "replace":
            told = length > 2 and len(set(words[2:])) == 1 and words[2] == words[0] != words[1]
            return (length - 2, (words[0], words[1], length - 2)) if told else None
        return (length, (words[0], length)) if len(set(words)) == 1 else None

    def longest_answer_instance(self, length: int) -> tuple:
        one = self.letters[0]
        return {"same": (one, length), "same2": (one, length), "replace": (one, one, length)}.get(
            self.variant, (one,) * length
        )

    def space(self, length: int) -> int:
        size = len(self.letters)
        if self.variant in {"same", "same2"}:
            return size
        return size * (size - 1) if self.variant == "replace" else size**length

    def chance(self, length: int) -> float:
        many = self.variant in {"random", "random2"}
        return len(self.letters) ** -float(length if many else 1)

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """Each symbol of the input and its copy share a group."""
        begin = 0
        for at, symbol in enumerate(prompt[:-1]):
            if symbol == NEXT or (symbol in {"Copy:", "in"} and at < 6):
                begin = at + 1
        length = len(prompt) - 1 - begin
        times = 2 if self.variant == "same2" else 1
        return [0] * begin + list(range(1, length + 1)) + [0] + copied_symbol_groups(answer, length, {NEXT, SEP}, times)

    @property
    def published(self) -> Published:
        return Published(f"s2s_copy {RSC[self.variant]}_tr20_ts40", (2, 20), (21, 40), DEVIATIONS.get(self.variant, ()))


RSC = {"same": "rsc", "same2": "rsc2x", "replace": "rdc", "random": "cmc", "random2": "cmc2x"}
VOCABULARY = (
    f"symbols beyond the {len(ASCII)} ASCII ones are numbered words (w78, w79, ...), as many as the original takes "
    "from T5's vocabulary, which is not shipped; tokenizer=DIR, with T5's files in DIR, gives the original's"
)
DEVIATIONS = {
    "same": (VOCABULARY,),
    "same2": (VOCABULARY,),
    "random": (
        VOCABULARY,
        "off: one of the original's 100 tokens does not survive decoding, so its text accuracy is at most 0.99^n "
        "(0.897 on seen lengths, about 0.737 on unseen ones) for every encoding; ranks do not change",
    ),
    "random2": (VOCABULARY,),
}


def copied_symbol_groups(answer: Sequence[str], length: int, separators: set[str], copies: int = 1) -> list[int]:
    """Return the groups of an answer: 1, ..., length, repeated `copies` times, starting again at 1 after each mark.

    A mark, and symbols beyond `copies` copies, have no group (0).
    """
    groups, count = [], 0
    for symbol in answer:
        count = 0 if symbol in separators else count + 1
        groups.append((count - 1) % length + 1 if 0 < count <= copies * length else 0)
    return groups


def refuse_bad_alphabet_size(protocol: str, size: int | None) -> None:
    """Raise a `SpecError` if an alphabet size is given under `paper`, or is below 2."""
    if size is not None and protocol == "paper":
        raise SpecError("the original's alphabet is fixed; leave out alphabet")
    if size is not None and size < 2:
        raise SpecError(f"an alphabet has at least 2 symbols, not {size}")
