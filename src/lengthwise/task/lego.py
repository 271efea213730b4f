"""Follow a chain of signs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import perm
from string import ascii_lowercase, ascii_uppercase
from typing import ClassVar

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Published
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise, join_with_separator

VALUES = {1: "+1", -1: "-1"}
Chain = tuple[tuple[str, ...], tuple[int, ...], int]


@dataclass(frozen=True, kw_only=True)
class Lego(Stepwise):
    """`f = -1 , b = - f , q = + b , z = - q ; q =` → `+1`

    `length` is the number of variables; their names are random. The queried one is in the second half of the chain:
    its index, counted from 0, is uniform over ⌈length / 2⌉, ..., length − 1, and is the `subgroup`.
    """

    names: int = 32

    paper: ClassVar[str] = "Zhang et al. 2022, arXiv:2206.04301; Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "variables"
    keeps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 2 <= self.names <= 1000:
            raise SpecError(f"there are 2 to 1000 names, not {self.names}")
        if self.protocol == "paper" and self.names != type(self).names:
            raise SpecError("the original's names are a to z; leave out names")
        super().__post_init__()

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The names of variables."""
        if self.protocol == "paper":
            return tuple(ascii_lowercase)
        more = (f"v{number}" for number in range(52, self.names))
        return (*(ascii_lowercase + ascii_uppercase)[: self.names], *more)

    @property
    def symbols(self) -> tuple[str, ...]:
        if self.protocol == "paper":
            frame = (
                *("If", "=", "-1", "+1", "-", "+", "##,", "##.", "Then,", "what", "is", "the", "value", "of", "##?"),
                *("The", "answer"),
            )
        else:
            frame = ("=", "-1", "+1", "-", "+", ",", ";")
        steps = () if self.scratchpad_format is None else (*MARKS, "##,", "=")
        return tuple(dict.fromkeys((*self.letters, *frame, *steps)))

    @property
    def lengths(self) -> range:
        return range(2, len(self.letters) + 1)

    def draw(self, rng: RandomSource, length: int) -> Chain:
        first, many = -(-length // 2), length // 2
        if self.protocol == "paper":
            # The original has one row for each chain and each variable of its second half.
            chain, query = divmod(rng.index, many)
            rng.seek(chain)
        else:
            query = rng.below(many)
        values = tuple(2 * bit - 1 for bit in rng.integers(0, 2, length))
        return tuple(rng.shuffle(self.letters, length)), values, first + query

    def to_example(self, instance: Chain) -> Example:
        names, values, query = instance
        clauses = self._clauses(names, values)
        if self.protocol == "paper":
            ask = ("##.", "Then,", "what", "is", "the", "value", "of", names[query], "##?")
            return self.make_example(
                instance, ("If", *join_with_separator("##,", clauses), *ask), (VALUES[values[query]],)
            )
        return self.make_example(
            instance, (*join_with_separator(",", clauses), ";", names[query], "="), (VALUES[values[query]],)
        )

    def is_correct(self, instance: Chain, answer: tuple[str, ...]) -> bool:
        """Check by parsing the clauses of the prompt and multiplying the signs from the query back to the start."""
        prompt = [symbol.removeprefix("##") for symbol in self.to_example(instance).prompt]
        defined, at = {}, 0
        while at + 2 < len(prompt):
            if prompt[at + 1] == "=" and prompt[at + 2] in {"+", "-"}:
                defined[prompt[at]] = (prompt[at + 2], prompt[at + 3])
            elif prompt[at + 1] == "=" and prompt[at + 2] in VALUES.values():
                defined[prompt[at]] = (prompt[at + 2][0], None)
            at += 1
        asked, sign = instance[0][instance[2]], 1
        while asked is not None:
            word, asked = defined[asked]
            sign *= 1 if word == "+" else -1
        return answer == ("+1" if sign > 0 else "-1",)

    def steps(self, instance: Chain) -> list[Step]:
        names, values, query = instance
        clauses, steps = self._clauses(names, values), []
        for place in range(query + 1):
            computation: tuple[str, ...] = ()
            if place:
                sign = clauses[place][2]
                computation = (sign, names[place - 1], "=", sign, VALUES[values[place - 1]])
            rest = join_with_separator("##,", clauses[place + 1 :])
            steps.append(Step((names[place],), computation, (VALUES[values[place]],), None, rest))
        return steps

    def _clauses(self, names: Sequence[str], values: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the clauses: the first gives a value, each later one a sign times the previous variable."""
        clauses: list[tuple[str, ...]] = [(names[0], "=", VALUES[values[0]])]
        for place in range(1, len(names)):
            sign = "+" if values[place] == values[place - 1] else "-"
            clauses.append((names[place], "=", sign, names[place - 1]))
        return clauses

    def subgroup(self, instance: Chain) -> str:
        return f"query {instance[2]}"

    def longest_answer_instance(self, length: int) -> Chain:
        return self.letters[:length], (1,) * length, length - 1

    def space(self, length: int) -> int:
        return perm(len(self.letters), length) * 2**length * (length // 2)

    def chance(self, length: int) -> float:
        return 0.5

    def paper_rows(self, length: int, split: str, per_bin: int) -> int:
        return per_bin // (length // 2) * (length // 2)

    @property
    def published(self) -> Published:
        return Published("s2s_lego len_tr8_ts16", (4, 8), (9, 16))
