"""The kinds of positions that tokens can have, independent of the encoding.

Positions are computed outside the model, once per example, by a pure function. A token's position may depend on the
whole prompt, but within the answer only on tokens up to its own. So `places(p, a[:k])` is a prefix of `places(p, a)`
for every k, and training, one-pass evaluation and cached decoding give a token the same position.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol, Self

import numpy as np

from lengthwise.spec import SpecError


class VocabularyLike(Protocol):
    """The part of a vocabulary that content-dependent positions need."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbol of each id."""
        ...

    def read(self, ids: Sequence[int]) -> list[str]:
        """The symbols of ids."""
        ...


class TaskLike(Protocol):
    """The part of a task that content-dependent positions need; `lengthwise.task.base.Task` implements it."""

    @property
    def name(self) -> str:
        """The task's name."""
        ...

    @property
    def vocabulary(self) -> VocabularyLike:
        """Symbols ↔ ids."""
        ...

    @property
    def max_answer_groups_beyond_prompt(self) -> int:
        """How many more groups a correct answer may have than its prompt."""
        ...

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """The group of each symbol, 0 for none."""
        ...

    def max_answer_digit_run(self, prompt: Sequence[str]) -> int | None:
        """The longest run of digits in a correct answer to the prompt, or None if the task does not know it."""
        ...


class Positions:
    """A kind of positions; this base class counts 0, 1, 2, ...

    Subclasses override `places`. `key` is the example's random key; `budget` is the maximum number of tokens of the
    sequence, known before the answer. All positions are below `limit`.
    """

    paper: ClassVar[str] = ""
    version: ClassVar[int] = 1
    limit: int | None = None

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        """The position of each token of prompt + answer."""
        self._fits(len(prompt) + len(answer), budget)
        return list(range(len(prompt) + len(answer)))

    def at_test(self) -> Positions:
        """The kind of positions for evaluation, which may be deterministic where training is random."""
        return self

    def of(self, task: TaskLike) -> Self:
        """Bind this kind to a task, which content-dependent positions need; other kinds return themselves."""
        return self

    def _fits(self, tokens: int, budget: int) -> None:
        if tokens > budget:
            raise SpecError(f"{tokens} tokens do not fit a budget of {budget}; raise the budget, nothing is cut")


def _room(kind: str, limit: int | None, budget: int) -> int:
    """Return `limit`, after a check that the budget does not exceed it."""
    assert limit is not None
    if budget > limit:
        raise SpecError(f"a budget of {budget} tokens needs more than {limit} positions; write {kind}:limit={budget}")
    return limit


class Consecutive(Positions):
    """0, 1, 2, ...: what every model does unless told otherwise."""


class Randomized(Positions):
    """A sorted random subset of 0, ..., limit − 1. Ruoss et al. 2023, arXiv:2305.16843.

    `budget` numbers are drawn and the first ones used, e.g. 3 17 240 for three tokens. In evaluation positions are
    random too, as in the paper's code, unless `test=consecutive`.
    """

    paper = "Ruoss et al. 2023, arXiv:2305.16843"

    def __init__(self, *, limit: int = 2048, test: Literal["random", "consecutive"] = "random") -> None:
        self.limit = limit
        self.test = test

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        tokens = len(prompt) + len(answer)
        self._fits(tokens, budget)
        limit = _room("randomized", self.limit, budget)
        # The indices of the `budget` smallest random words are a uniform subset; raw words are the same in every NumPy.
        words = np.random.Philox(key=key).random_raw(limit)
        chosen = np.sort(np.argsort(words, kind="stable")[:budget])
        return chosen[:tokens].tolist()

    def at_test(self) -> Positions:
        return self if self.test == "random" else Consecutive()


class Offset(Positions):
    """0, 1, 2, ... from a random start that leaves room for the budget below `limit`; from 0 in evaluation.

    With limit 100 and a budget of 10 the start is one of 0, ..., 90. `test=random` keeps it random in evaluation.
    Huang et al. 2025, arXiv:2410.02140.
    """

    paper = "Huang et al. 2025, arXiv:2410.02140"

    def __init__(self, *, limit: int = 2048, test: Literal["random", "zero"] = "zero") -> None:
        self.limit = limit
        self.test = test

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        tokens = len(prompt) + len(answer)
        self._fits(tokens, budget)
        limit = _room("offset", self.limit, budget)
        # 64 random bits modulo at most 2^32 starts: the bias is below 2^-32.
        start = int(np.random.Philox(key=key).random_raw()) % (limit - budget + 1)
        return list(range(start, start + tokens))

    def at_test(self) -> Positions:
        return self if self.test == "random" else Consecutive()


class Given(Positions):
    """Exactly the numbers given, e.g. `given:values=[0,1,5,9]`: time stamps, or somebody else's positions."""

    def __init__(self, *, values: tuple[int, ...]) -> None:
        if any(value < 0 for value in values):
            raise SpecError("positions are not negative; shift the values")
        self.values = values
        self.limit = max(values, default=-1) + 1

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        tokens = len(prompt) + len(answer)
        self._fits(tokens, budget)
        if tokens > len(self.values):
            raise SpecError(f"{tokens} tokens need {tokens} positions, but given:values has {len(self.values)}")
        return list(self.values[:tokens])


class _OfTask(Positions):
    """Content-dependent positions, which need a task; their random start is 0 in evaluation unless `test=random`."""

    task: TaskLike | None = None
    starts: int

    def __init__(self, *, limit: int, test: Literal["random", "zero"]) -> None:
        self.limit = limit
        self.test = test
        self.random = True

    def of(self, task: TaskLike) -> Self:
        bound = copy.copy(self)
        bound.task = task
        return bound

    def at_test(self) -> Positions:
        fixed = copy.copy(self)
        fixed.random = self.test == "random"
        return fixed

    def _asked(self) -> TaskLike:
        if self.task is None:
            kind = type(self).__name__.lower()
            raise SpecError(
                f"{kind} positions look at what tokens mean, so they need a task: write .of(task), "
                "or give the numbers themselves, given:values=[...]"
            )
        return self.task

    def _start(self, key: int, starts: int) -> int:
        return int(np.random.Philox(key=key).random_raw()) % starts if self.random else 0

    def _within(self, places: list[int]) -> list[int]:
        """Clamp to the last position; only answers longer than any correct one get that far."""
        assert self.limit is not None
        last = self.limit - 1
        return [min(place, last) for place in places]


class Coupled(_OfTask):
    """One position for what belongs together, e.g. for digits of one significance. Cho et al. 2024, arXiv:2405.20671.

    `Task.places` defines the groups: a token of group g gets position start + g, a token of no group gets 0. For `6 5 +
    8 =` and `3 7`, reversed, the groups are `3 2 1 2 1` and `2 3`. In training the start is random, within the room
    that `limit` leaves; in evaluation it is 0.
    """

    paper = "Cho et al. 2024, arXiv:2405.20671"

    def __init__(self, *, limit: int = 256, test: Literal["random", "zero"] = "zero") -> None:
        super().__init__(limit=limit, test=test)

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        self._fits(len(prompt) + len(answer), budget)
        task = self._asked()
        asked, said = (task.vocabulary.read(part) for part in (prompt, answer))
        # <bos>, <eos> and <pad> belong to no group and are not passed to the task.
        real = [[symbol for symbol in part if symbol not in _SPECIAL] for part in (asked, said)]
        groups = iter(task.places(real[0], real[1]))
        given = [0 if symbol in _SPECIAL else next(groups) for symbol in (*asked, *said)]
        assert self.limit is not None
        free = self.limit - 1 - max(given[: len(prompt)], default=0) - task.max_answer_groups_beyond_prompt
        if free < 0:
            raise SpecError(
                f"{self.limit - free} positions are needed for this prompt; write coupled:limit={self.limit - free}"
            )
        start = self._start(key, free + 1)
        return self._within([start + group if group else 0 for group in given])


class Abacus(_OfTask):
    """A digit's index inside its number, 1, 2, ..., and 0 for what is no digit. McLeish et al. 2024, arXiv:2405.17399.

    `1 2 + 3 4 5 =` has `1 2 0 1 2 3 0`, plus one common start for all digits: random below `starts` in training, 0 in
    evaluation. Use it for numbers written from their last digit (`reversed=all`), where the index is the significance.
    """

    paper = "McLeish et al. 2024, arXiv:2405.17399"

    def __init__(self, *, limit: int = 1024, starts: int = 100, test: Literal["random", "zero"] = "zero") -> None:
        super().__init__(limit=limit, test=test)
        if starts < 1:
            raise SpecError(f"abacus positions have at least one start, not {starts}")
        self.starts = starts

    def of(self, task: TaskLike) -> Self:
        bound = super().of(task)
        if not _DIGITS & set(task.vocabulary.symbols):
            raise SpecError(f"{task.name} has no digits, so abacus positions would all be 0")
        task.max_answer_digit_run(
            ()
        )  # raises now, not at the first example, if the digits of this format cannot be counted
        return bound

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        self._fits(len(prompt) + len(answer), budget)
        task = self._asked()
        indices, inside = [], 0
        symbols = task.vocabulary.read([*prompt, *answer])
        for symbol in symbols:
            inside = inside + 1 if symbol in _DIGITS else 0
            indices.append(inside)
        assert self.limit is not None
        known, left = task.max_answer_digit_run(symbols[: len(prompt)]), budget - len(prompt)
        written = left if known is None else min(known, left)
        needed = self.starts + max(written, *indices[: len(prompt)], 0)
        if needed > self.limit:
            raise SpecError(f"{needed} positions are needed for this prompt; write abacus:limit={needed}")
        start = self._start(key, self.starts)
        return self._within([start + index if index else 0 for index in indices])


_SPECIAL = frozenset({"<pad>", "<bos>", "<eos>"})
_DIGITS = frozenset("0123456789")
