"""Which position each token has: the axis orthogonal to the encoding.

Positions are computed outside the model, once per example, by a pure function. It may look at the whole prompt; inside
the answer only at tokens up to its own, so `places(p, a[:k])` is the beginning of `places(p, a)` for every k, and
training, one-pass evaluation and cached decoding give a token the same position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from lengthwise.spec import SpecError


class Positions:
    """A kind of positions; this base class counts 0, 1, 2, ...

    `places` is the whole contract. `key` is the example's own number, from which everything random comes; `budget` is
    how many tokens the sequence may get, known before the answer is. `limit` is the first position it never gives.
    """

    paper: ClassVar[str] = ""
    version: ClassVar[int] = 1
    limit: int | None = None

    def places(self, prompt: Sequence[int], answer: Sequence[int], key: int, budget: int) -> list[int]:
        """The position of each token of prompt + answer."""
        self._fits(len(prompt) + len(answer), budget)
        return list(range(len(prompt) + len(answer)))

    def at_test(self) -> Positions:
        """The kind to use in evaluation: what is random in training need not be random there."""
        return self

    def _fits(self, tokens: int, budget: int) -> None:
        if tokens > budget:
            raise SpecError(f"{tokens} tokens do not fit a budget of {budget}; raise the budget, nothing is cut")


def _room(kind: str, limit: int | None, budget: int) -> int:
    """The number of positions there are, at least as many as the budget."""
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
        # The `budget` smallest of `limit` random words are a uniform subset; raw words are the same in every NumPy.
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
