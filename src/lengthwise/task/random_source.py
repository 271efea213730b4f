"""Counter-based random values: any worker makes any example, in any order, with any version of NumPy.

NumPy keeps the raw words of a bit generator stable across versions, but not the values that its `Generator` derives
from them; so values are derived here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
_AHEAD = 32
_DEEPEST = 100_000
_53_BITS = 2**53 - 1


class RandomSource:
    """The random values of one set of examples, at the position of one example: `RandomSource(key).seek(index=7)`.

    There is one Philox generator per key; example i, attempt a, starts at counter (0, i, a, 0). A value below n is a
    64-bit word modulo n, so its bias is less than n / 2^64.
    """

    def __init__(self, key: int) -> None:
        self._philox = np.random.Philox(key=key)
        self._state = self._philox.state
        self._counter = self._state["state"]["counter"]
        self.index = 0
        self._words: list[int] = []
        self._next = 0

    def seek(self, index: int, attempt: int = 0) -> RandomSource:
        """Start at example `index`, attempt `attempt`; earlier draws have no influence."""
        self._counter[:] = (0, index, attempt, 0)
        self._state["buffer_pos"] = 4  # mark the generator's buffer of four words as used up
        self._philox.state = self._state
        self.index = index
        self._words, self._next = self._philox.random_raw(_AHEAD).tolist(), 0
        return self

    def below(self, n: int) -> int:
        """Draw a number in 0, ..., n − 1."""
        if self._next == len(self._words):
            self._words, self._next = self._philox.random_raw(_AHEAD).tolist(), 0
        self._next += 1
        return self._words[self._next - 1] % n

    def integers(self, low: int, high: int, size: int) -> list[int]:
        """Draw `size` numbers in low, ..., high − 1, the same as drawing them one by one."""
        span = high - low
        return [low + word % span for word in self._take(size)]

    def each(self, upper_bounds: Sequence[int]) -> list[int]:
        """Draw a number below each of the bounds."""
        return [word % bound for word, bound in zip(self._take(len(upper_bounds)), upper_bounds, strict=True)]

    def _take(self, size: int) -> list[int]:
        missing = size - (len(self._words) - self._next)
        if missing > 0:
            # Fetch a multiple of four words, so that values do not depend on how many are drawn at once.
            more = -(-missing // _AHEAD) * _AHEAD
            self._words, self._next = self._words[self._next :] + self._philox.random_raw(more).tolist(), 0
        self._next += size
        return self._words[self._next - size : self._next]

    def choice(self, items: Sequence[Item], size: int) -> list[Item]:
        """`size` of the items, drawn with replacement."""
        return [items[index] for index in self.integers(0, len(items), size)]

    def shuffle(self, items: Sequence[Item], size: int | None = None) -> list[Item]:
        """The items in random order, or the first `size` of them."""
        many = len(items)
        size = many if size is None else size
        moved: dict[int, int] = {}  # only the items that were swapped, so that drawing a few of many is cheap
        chosen = []
        for place, further in enumerate(self.each(range(many, many - size, -1))):
            other = place + further
            chosen.append(items[moved.get(other, other)])
            moved[other] = moved.get(place, place)
        return chosen

    def weighted(self, cumulative_weights: Sequence[float]) -> int:
        """Draw an index in proportion to weights, given as their running sums: `[8, 9, 10]` for 8 : 1 : 1."""
        if self._next == len(self._words):
            self._words, self._next = self._philox.random_raw(_AHEAD).tolist(), 0
        self._next += 1  # not by `below`, because a call costs more than the rest
        return bisect_right(
            cumulative_weights, (self._words[self._next - 1] & _53_BITS) / 2**53 * cumulative_weights[-1]
        )


class TooManyChoices(Exception):
    """A draw meets more sequences of choices than it may, or one without an end."""


class _Tree(RandomSource):
    """Walks the tree of all choices instead of drawing one."""

    def __init__(self) -> None:
        self.path: list[tuple[int, int]] = []  # (chosen, out of), from the root
        self.depth = 0
        self.index = 0

    def seek(self, index: int, attempt: int = 0) -> RandomSource:
        """Do nothing: all choices are enumerated whatever the index is."""
        return self

    def below(self, n: int) -> int:
        if self.depth == len(self.path):
            self.path.append((0, n))
            if self.depth > _DEEPEST:  # rejection sampling would get the same choice forever
                raise TooManyChoices
        self.depth += 1
        return self.path[self.depth - 1][0]

    def integers(self, low: int, high: int, size: int) -> list[int]:
        return [low + self.below(high - low) for _ in range(size)]

    def each(self, upper_bounds: Sequence[int]) -> list[int]:
        return [self.below(bound) for bound in upper_bounds]

    def weighted(self, cumulative_weights: Sequence[float]) -> int:
        possible = [
            at for at, bound in enumerate(cumulative_weights) if bound > (cumulative_weights[at - 1] if at else 0)
        ]
        return possible[self.below(len(possible))]


def enumerate_draws(draw: Callable[[RandomSource], Item], max_draws: int | None = None) -> Iterator[Item]:
    """Yield what `draw` returns for every possible sequence of choices; raise `TooManyChoices` beyond `max_draws`.

    `list(enumerate_draws(lambda words: tuple(words.integers(0, 2, 2))))` is `[(0, 0), (0, 1), (1, 0), (1, 1)]`.
    """
    tree, met = _Tree(), 0
    while True:
        if met == max_draws:
            raise TooManyChoices
        tree.depth, met = 0, met + 1
        yield draw(tree)
        while tree.path and tree.path[-1][0] + 1 == tree.path[-1][1]:
            tree.path.pop()
        if not tree.path:
            return
        chosen, out_of = tree.path[-1]
        tree.path[-1] = (chosen + 1, out_of)
