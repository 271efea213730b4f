"""The task contract: draw an instance of a given length, show it, check an answer independently.

An example is a pure function of (task, split, length, index, seed): any worker makes any example, resume needs no
random state, no order matters. Splits are disjoint by content, see `sets.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from lengthwise.spec import SpecError, digest
from lengthwise.task.random_source import RandomSource
from lengthwise.task.tokenizer import HuggingFaceTokenizer
from lengthwise.task.vocabulary import Vocabulary, text

Instance = Any
"""The values of an example, before they are shown: numbers, words, tuples of such; JSON can write it."""

ENDLESS = range(1, 1_000_001)
_canonical = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Example(NamedTuple):
    """One example as symbols: the model reads `prompt` and writes `target`, which is `steps` and then `answer`."""

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    steps: tuple[str, ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        """All that the model writes before the end token."""
        return self.steps + self.answer

    @property
    def text(self) -> str:
        """The whole as a person reads it."""
        return text((*self.prompt, *self.target))


class Published(NamedTuple):
    """What the original study did with a task: its name there, its lengths, its rows."""

    name: str
    train: tuple[int, int]
    test: tuple[int, int]
    deviations: tuple[str, ...] = ()
    """What differs here from the original under `protocol=paper`, and what of it is switched off."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned. A subclass states its options as fields and implements the methods below.

    `protocol=paper` has the texts, distributions, lengths and counts of the original study; `ours` has short texts, a
    beginning token and splits disjoint by content. `longest` is L, the longest length trained on. `tokenizer` is a
    folder with a Hugging Face tokenizer to use in place of the word-level vocabulary.
    """

    protocol: Literal["ours", "paper"] = "ours"
    bos: bool | None = None
    tokenizer: str | None = None
    longest: int = 8
    _content: str = field(default="", init=False, repr=False)
    """A hash of the files it was made of, so that a task of a changed file equals no task of the old one."""

    version: ClassVar[int] = 1
    paper: ClassVar[str] = ""
    unit: ClassVar[str] = "items"
    """What a length counts."""
    shown: ClassVar[tuple[str, ...]] = ("bos", "tokenizer", "longest")
    """Options that change how an instance is shown or which split a length is in, but not what is drawn."""

    def __post_init__(self) -> None:
        if self.protocol == "paper":
            there = self.published
            if there is None:
                raise SpecError(f"{self.name} is not in the original study; leave out protocol=paper")
            if self.longest not in (type(self).longest, there.train[1]):
                raise SpecError(f"the original trains {self.name} up to {there.train[1]}; leave out longest")
            object.__setattr__(self, "longest", there.train[1])
        if self.longest not in self.lengths:
            raise SpecError(self._no_such(self.longest, "longest"))
        object.__setattr__(self, "_content", self.content)

    # --- what a subclass says ----------------------------------------------------------------------------------------

    @property
    def symbols(self) -> tuple[str, ...]:
        """All symbols of prompts and answers, in a fixed order."""
        raise NotImplementedError

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths it can make, ascending."""
        return ENDLESS

    def draw(self, rng: RandomSource, length: int) -> Instance:
        """An instance of `length`: values only, from `rng` alone."""
        raise NotImplementedError

    def render(self, instance: Instance) -> Example:
        """The instance as symbols, under protocol, format and scratchpad."""
        raise NotImplementedError

    def check(self, instance: Instance, said: Sequence[str]) -> bool:
        """Whether `said`, a whole target, answers the instance; found another way than `render` finds it."""
        raise NotImplementedError

    def asked(self, prompt: Sequence[str]) -> tuple[int, Instance] | None:
        """The length and instance that a person's prompt states, with or without its frame; None if it cannot tell."""
        return None

    def worst(self, length: int) -> Instance:
        """An instance whose answer is as long as answers of `length` get, or nearly."""
        raise NotImplementedError

    def chance(self, length: int) -> float:
        """The share of right answers of one who knows the length and always gives the likeliest answer."""
        raise NotImplementedError

    def space(self, length: int) -> int:
        """The number of distinct instances of `length`."""
        raise NotImplementedError

    def subgroup(self, instance: Instance) -> str | None:
        """The finer unit an instance is counted in beside its length, e.g. `3-by-2` digits, or None."""
        return None

    def listed(self, length: int) -> Sequence[Instance] | None:
        """All instances of `length`, where the task is a list; None where it draws."""
        return None

    def weight(self, length: int) -> float:
        """How often `length` is trained on, relative to the others: equally often, unless the task has a histogram."""
        return 1.0

    def facts(self) -> dict[str, object]:
        """What else an audit should count, e.g. the corpus of SCAN."""
        return {}

    @property
    def content(self) -> str:
        """A hash of the files it reads, or nothing; each file is read once."""
        return "" if self.pieces is None else self.pieces.content

    @property
    def far(self) -> Sequence[int]:
        """The lengths of `test_far`, beyond twice those trained on, as far as it can make them."""
        return (5 * self.longest // 2, 3 * self.longest, 4 * self.longest)

    @property
    def judged(self) -> bool:
        """Whether `check` decides what is right, and not being the very symbols of the rendered target."""
        return False

    @property
    def published(self) -> Published | None:
        """Its place in the original study, if it has one."""
        return None

    def paper_rows(self, length: int, split: str, per_bin: int) -> int:
        """How many rows of `length` the original's pool (or test set) has, at `per_bin` rows a bin."""
        return per_bin * self.paper_bins(length, split)

    def paper_bins(self, length: int, split: str) -> int:
        """How many bins of equal count `length` is in the original: one, where the bin is the length."""
        return 1

    @property
    def paper_lists(self) -> int | None:
        """How many rows of a length the original lists, each once, where it does not draw them."""
        return None

    def paper_pool(self, split: str) -> tuple[dict[int, int], int] | None:
        """Rows per length of the original's pool and how many of them are train, where it is a corpus of its own."""
        return None

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def overhang(self) -> int:
        """How many groups of coupled positions a right answer may have beyond those of its prompt."""
        return 0

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """The group of each symbol, 1, 2, ...: what belongs together has one group; 0 is no group.

        Inside the answer it may look only at symbols up to its own. Cho et al. 2024, arXiv:2405.20671.
        """
        raise SpecError(f"{self.name} says nothing of which symbols belong together, so positions cannot be coupled")

    def digit_run(self, prompt: Sequence[str]) -> int | None:
        """The most digits in a row that a right answer to the prompt has, or None: for abacus positions."""
        return None

    # --- what every task then has ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, as in the table."""
        return type(self).__name__.lower()

    @property
    def starts(self) -> bool:
        """Whether a sequence begins with a beginning token; the original's does not."""
        return self.protocol == "ours" if self.bos is None else self.bos

    @cached_property
    def vocabulary(self) -> Vocabulary | HuggingFaceTokenizer:
        """Symbols ↔ ids."""
        return Vocabulary(self.symbols) if self.pieces is None else self.pieces

    @cached_property
    def pieces(self) -> HuggingFaceTokenizer | None:
        """The Hugging Face tokenizer to use, if one is named."""
        return None if self.tokenizer is None else HuggingFaceTokenizer(self.tokenizer)

    def answer_limit(self, length: int) -> int:
        """The number of tokens an answer may take before it is cut.

        It is the longest right one, its end token, and a quarter more, at least 4: so that an answer which stops too
        late is seen to stop.
        """
        listed = None if self.pieces is None else self.listed(length)
        if listed is None:
            return self.limited(len(self.render(self.worst(length)).target))
        right = self._longest.get(length)
        if right is None:
            right = self._longest[length] = max(map(self._written, listed))
        return right + max(4, right // 4)

    def limited(self, symbols: int) -> int:
        """The limit where right answers have up to `symbols` symbols, each of as many tokens as any symbol has."""
        right = symbols * self._most_pieces + 1
        return right + max(4, right // 4)

    @cached_property
    def _most_pieces(self) -> int:
        return 1 if self.pieces is None else self.pieces.most(self.symbols)

    @cached_property
    def _longest(self) -> dict[int, int]:
        return {}

    def _written(self, instance: Instance) -> int:
        """How many tokens of the instance's sequence are not the prompt's."""
        example = self.render(instance)
        ids, prompt = self.vocabulary.sequence(example.prompt, example.target, self.starts)
        return len(ids) - prompt

    def key(self, *more: object, seed: int = 0) -> int:
        """The number that everything drawn for (task, version, options that change `draw`, ...) comes from."""
        drawn = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.init and option.name not in self.shown and getattr(self, option.name) != option.default
        }
        if self.pieces is not None and self.protocol == "paper":  # the original takes its alphabet from it
            drawn["pieces"] = self.pieces.digest
        return digest("task", self.name, self.version, drawn, *more, seed)

    def bucket(self, length: int, instance: Instance) -> int:
        """A number below 100 that the content decides: which split the instance belongs to."""
        prefix = self._prefixes.get(length)
        if prefix is None:
            prefix = hashlib.blake2b(
                _canonical([self.name, getattr(self, "variant", ""), length]).encode(), digest_size=8
            )
            self._prefixes[length] = prefix
        whole = prefix.copy()
        whole.update(_canonical(instance).encode())
        return int.from_bytes(whole.digest(), "big") % 100

    @cached_property
    def _prefixes(self) -> dict[int, Any]:
        return {}

    def needs(self, length: int) -> None:
        """Refuse a length it cannot make."""
        if length not in self.lengths:
            raise SpecError(self._no_such(length, "length"))

    def _no_such(self, length: int, what: str) -> str:
        if not self.lengths:
            return f"{self.name} has no lengths at all"
        nearest = min(self.lengths, key=lambda other: abs(other - length)) if len(self.lengths) < 10_000 else None
        if nearest is None:
            nearest = max(self.lengths[0], min(length, self.lengths[-1]))
        if what == "longest":
            return f"{self.name} has no length {length} ({self.unit}) to train up to; write longest={nearest}"
        return f"{self.name} has no length {length} ({self.unit}); the nearest is {nearest}"
