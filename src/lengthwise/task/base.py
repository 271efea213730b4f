"""The task contract: draw an instance of a given length, show it, check an answer independently.

An example is a pure function of (task, split, length, index, seed), so any worker can make any example in any order,
and a resumed run needs no random state. Splits are disjoint by content, see `sets.py`.
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
from lengthwise.task.vocabulary import Vocabulary, join_symbols

Instance = Any
"""The values of an example before rendering: numbers, strings or tuples of them, which JSON can encode."""

ENDLESS = range(1, 1_000_001)
_canonical = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Example(NamedTuple):
    """One example as symbols: the model reads `prompt` and writes `target`, which is `steps` and then `answer`."""

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    steps: tuple[str, ...] = ()

    @property
    def target(self) -> tuple[str, ...]:
        """Everything that the model writes before the end token."""
        return self.steps + self.answer

    @property
    def text(self) -> str:
        """Prompt and target as readable text."""
        return join_symbols((*self.prompt, *self.target))


class Published(NamedTuple):
    """What the original study did with a task: its name there, its lengths, its rows."""

    name: str
    train: tuple[int, int]
    test: tuple[int, int]
    deviations: tuple[str, ...] = ()
    """How `protocol=paper` differs from the original; `off:` marks a limitation of the original that is left out."""


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
    """A hash of the files the task reads, so that tasks built before and after a file changes are not equal."""

    version: ClassVar[int] = 1
    paper: ClassVar[str] = ""
    unit: ClassVar[str] = "items"
    """The unit in which a length counts."""
    shown: ClassVar[tuple[str, ...]] = ("bos", "tokenizer", "longest")
    """Options that change how an instance is rendered or which split a length is in, but not what `draw` returns."""
    content_at_several_lengths: ClassVar[bool] = False
    """Whether a prompt may have several lengths; then it is in one split at all of them, see `bucket`."""

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

    # --- what a subclass implements or overrides ---------------------------------------------------------------------

    @property
    def symbols(self) -> tuple[str, ...]:
        """All symbols of prompts and answers, in a fixed order."""
        raise NotImplementedError

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths the task can make, ascending."""
        return ENDLESS

    def draw(self, rng: RandomSource, length: int) -> Instance:
        """Draw the values of an instance of `length`; all randomness must come from `rng`."""
        raise NotImplementedError

    def to_example(self, instance: Instance) -> Example:
        """Return the instance as symbols, according to protocol, format and scratchpad."""
        raise NotImplementedError

    def check(self, instance: Instance, output: Sequence[str]) -> bool:
        """Whether `output`, a whole target, is a correct answer; computed by another method than in `to_example`."""
        raise NotImplementedError

    def parse_prompt(self, prompt: Sequence[str]) -> tuple[int, Instance] | None:
        """Parse a user's prompt, with or without its fixed words, into length and instance; None if not possible."""
        return None

    def longest_answer_instance(self, length: int) -> Instance:
        """Return an instance whose answer is (nearly) as long as any answer of `length`."""
        raise NotImplementedError

    def chance(self, length: int) -> float:
        """Return the accuracy of a guesser that knows the length and always gives its most likely answer."""
        raise NotImplementedError

    def space(self, length: int) -> int:
        """The number of distinct instances of `length`."""
        raise NotImplementedError

    def subgroup(self, instance: Instance) -> str | None:
        """Return a finer group than the length for metrics, e.g. `3-by-2` digits, or None."""
        return None

    def listed(self, length: int) -> Sequence[Instance] | None:
        """Return all instances of `length` if the task is a finite list; None if it draws them."""
        return None

    def weight(self, length: int) -> float:
        """Return the relative frequency of `length` in training: uniform, unless the task has a histogram."""
        return 1.0

    def facts(self) -> dict[str, object]:
        """Return further facts for the audit, e.g. counts of the SCAN corpus."""
        return {}

    @property
    def content(self) -> str:
        """A hash of the files the task reads, empty if it reads none; each file is read once."""
        return "" if self.hf_tokenizer is None else self.hf_tokenizer.content

    @property
    def far(self) -> Sequence[int]:
        """The lengths of `test_far`; those up to 2L, and those the task cannot make, are dropped."""
        return (5 * self.longest // 2, 3 * self.longest, 4 * self.longest)

    @property
    def judged(self) -> bool:
        """Whether correctness is decided by `check` instead of an exact match with the rendered target."""
        return False

    @property
    def published(self) -> Published | None:
        """The task's name, lengths and deviations in the original study; None if it is not there."""
        return None

    def paper_rows(self, length: int, split: str, per_bin: int) -> int:
        """Return how many rows of `length` the original's pool (or test set) has, with `per_bin` rows per bin."""
        return per_bin * self.paper_bins(length, split)

    def paper_bins(self, length: int, split: str) -> int:
        """Return how many bins of equal size the original divides `length` into; one, if the length is the bin."""
        return 1

    @property
    def paper_lists(self) -> int | None:
        """How many rows per length the original enumerates, each once; None if it draws them."""
        return None

    def paper_pool_by_length(self, split: str) -> tuple[dict[int, int], int] | None:
        """Return rows per length of the original's pool and its number of training rows; None if it is no corpus."""
        return None

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def max_answer_groups_beyond_prompt(self) -> int:
        """How many groups of coupled positions a correct answer may have beyond those of its prompt."""
        return 0

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """Return the group of each symbol for coupled positions: related symbols share 1, 2, ...; 0 means no group.

        The group of an answer symbol may depend only on symbols up to it. Cho et al. 2024, arXiv:2405.20671.
        """
        raise SpecError(f"{self.name} says nothing of which symbols belong together, so positions cannot be coupled")

    def max_answer_digit_run(self, prompt: Sequence[str]) -> int | None:
        """Return the longest run of digits in a correct answer to the prompt, for abacus positions, or None."""
        return None

    # --- what every task inherits ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, as in `TASKS`."""
        return type(self).__name__.lower()

    @property
    def starts(self) -> bool:
        """Whether a sequence starts with a beginning token; in the original study it does not."""
        return self.protocol == "ours" if self.bos is None else self.bos

    @cached_property
    def vocabulary(self) -> Vocabulary | HuggingFaceTokenizer:
        """Symbols ↔ ids."""
        return Vocabulary(self.symbols) if self.hf_tokenizer is None else self.hf_tokenizer

    @cached_property
    def hf_tokenizer(self) -> HuggingFaceTokenizer | None:
        """The Hugging Face tokenizer to use, if one is named."""
        return None if self.tokenizer is None else HuggingFaceTokenizer(self.tokenizer)

    def answer_limit(self, length: int) -> int:
        """Return the number of tokens after which generation is cut.

        It is the longest correct answer with its end token, plus a quarter of that (at least 4 tokens), so that an
        answer that is somewhat too long can still reach its end token.
        """
        listed = None if self.hf_tokenizer is None else self.listed(length)
        if listed is None:
            return self.limited(len(self.to_example(self.longest_answer_instance(length)).target))
        right = self._longest.get(length)
        if right is None:
            right = self._longest[length] = max(map(self._written, listed))
        return right + max(4, right // 4)

    def limited(self, answer_symbols: int) -> int:
        """Return the limit for correct answers of up to `answer_symbols`, each of the most tokens a symbol has."""
        right = answer_symbols * self._most_pieces + 1
        return right + max(4, right // 4)

    @cached_property
    def _most_pieces(self) -> int:
        return 1 if self.hf_tokenizer is None else self.hf_tokenizer.max_tokens_per_symbol(self.symbols)

    @cached_property
    def _longest(self) -> dict[int, int]:
        return {}

    def _written(self, instance: Instance) -> int:
        """Return how many tokens of the instance's sequence come after the prompt."""
        example = self.to_example(instance)
        ids, prompt = self.vocabulary.sequence(example.prompt, example.target, self.starts)
        return len(ids) - prompt

    def key(self, *more: object, seed: int = 0) -> int:
        """Return the random key of everything drawn for (task, version, options that change `draw`, ..., seed)."""
        drawn = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.init and option.name not in self.shown and getattr(self, option.name) != option.default
        }
        if self.hf_tokenizer is not None and self.protocol == "paper":  # the original takes its alphabet from it
            drawn["pieces"] = self.hf_tokenizer.digest
        return digest("task", self.name, self.version, drawn, *more, seed)

    def bucket(self, length: int, instance: Instance) -> int:
        """Hash the instance's content to a number below 100, which decides the split it belongs to."""
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

    def require_length(self, length: int) -> None:
        """Raise a `SpecError` for a length that the task cannot make."""
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
