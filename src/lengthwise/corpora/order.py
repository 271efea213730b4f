"""Which tokens are in which training row: a pure function of (corpora, context, seed, row), in any process.

The documents of a shard, end to end, are cut into rows of `context + 1` tokens that overlap by one, so that every
token but a shard's first is predicted once; less than a row at a shard's end is left out. Pages of neighbouring rows
are shuffled, and then the rows of each 32 pages. So a reader touches a few pages of a few shards at a time, and row 10
billion is found without the others.
Several corpora are mixed by weights: of every 1,000 rows each has its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from lengthwise.corpora.shards import Corpus, Shard
from lengthwise.spec import SpecError, digest

PAGE = 131_072
"""Tokens of a page, about one checked chunk of a shard."""
_PAGES = 32
"""Pages whose rows are shuffled together."""
_PERIOD = 1000
"""Rows over which the weights of a mixture hold exactly."""


@dataclass(frozen=True)
class Rows:
    """The rows of one split of one corpus, in shuffled order, epoch after epoch."""

    corpus: Corpus
    split: str
    context: int
    seed: int

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards of the split."""
        return self.corpus.shards(self.split)

    @cached_property
    def _pages(self) -> np.ndarray:
        """Shard, first row and number of rows of each page."""
        page = max(1, PAGE // self.context)
        found = []
        for number, shard in enumerate(self.shards):
            rows = max(shard.tokens - 1, 0) // self.context
            found += [(number, first, min(page, rows - first)) for first in range(0, rows, page)]
        return np.array(found, dtype=np.int64).reshape(-1, 3)

    @property
    def count(self) -> int:
        """Rows of one epoch."""
        return int(self._pages[:, 2].sum())

    def place(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a row and the token that it begins with; rows beyond the last are of later epochs."""
        epoch, index = divmod(index, self.count)
        ends = self._epoch(epoch)[1]
        group = int(np.searchsorted(ends, index, side="right"))
        first = int(ends[group - 1]) if group else 0
        shards, rows = self._group(epoch, group)
        where = int(_shuffled(int(ends[group]) - first, digest("rows", self.seed, epoch, group))[index - first])
        return self.shards[int(shards[where])], int(rows[where]) * self.context

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of the pages, and the rows up to the end of each group of pages."""
        if epoch not in self._epochs:
            self._epochs.clear()
            order = _shuffled(len(self._pages), digest("pages", self.seed, epoch))
            sizes = self._pages[order, 2]
            ends = np.cumsum(np.add.reduceat(sizes, np.arange(0, len(sizes), _PAGES)))
            self._epochs[epoch] = (order, ends)
        return self._epochs[epoch]

    @cached_property
    def _epochs(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _group(self, epoch: int, group: int) -> tuple[np.ndarray, np.ndarray]:
        """The shard and the number in it of each row of a group of pages, not shuffled yet."""
        if (epoch, group) not in self._groups:
            if len(self._groups) > 1:
                self._groups.pop(next(iter(self._groups)))
            pages = self._pages[self._epoch(epoch)[0][group * _PAGES : (group + 1) * _PAGES]]
            rows = np.concatenate([np.arange(first, first + count) for _, first, count in pages])
            self._groups[epoch, group] = (np.repeat(pages[:, 0], pages[:, 2]), rows)
        return self._groups[epoch, group]

    @cached_property
    def _groups(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        return {}


@lru_cache(maxsize=8)
def _shuffled(count: int, key: int) -> np.ndarray:
    """A permutation; ties of 64-bit words are broken by place, so it is the same on every machine."""
    return np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")


@dataclass(frozen=True)
class Mixture:
    """Rows of several corpora, each with its share of every 1,000 rows."""

    parts: Sequence[Rows]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.parts) or min(self.weights) <= 0:
            raise SpecError(f"{len(self.parts)} corpora have as many weights above 0, not {list(self.weights)}")
        if 0 in self.shares:
            raise SpecError(
                f"a corpus has less than one row of {_PERIOD:,}: its weight is too small ({list(self.weights)})"
            )

    @property
    def shares(self) -> list[int]:
        """Rows of each corpus among 1,000; what is left by rounding goes to the largest remainders."""
        exact = [weight / sum(self.weights) * _PERIOD for weight in self.weights]
        shares = [int(one) for one in exact]
        for number in sorted(range(len(exact)), key=lambda n: shares[n] - exact[n])[: _PERIOD - sum(shares)]:
            shares[number] += 1
        return shares

    @property
    def without_repetition(self) -> int:
        """How many rows, counted from the first, have no row twice; whole thousands where corpora are mixed."""
        if len(self.parts) == 1:
            return self.parts[0].count
        periods = min(part.count // share for part, share in zip(self.parts, self.shares, strict=True))
        return periods * _PERIOD or min(part.count for part in self.parts)

    def place(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a row and the token that it begins with."""
        if len(self.parts) == 1:
            return self.parts[0].place(index)
        period, within = divmod(index, _PERIOD)
        sources = np.repeat(np.arange(len(self.parts)), self.shares)
        sources = sources[_shuffled(_PERIOD, digest("mixture", self.parts[0].seed, period))]
        source = int(sources[within])
        before = int((sources[:within] == source).sum())
        return self.parts[source].place(period * self.shares[source] + before)


def cut_row(shard: Shard, start: int, context: int) -> tuple[np.ndarray, list[int]]:
    """Return the `context + 1` tokens of a row, and where in it documents begin (not at 0, where one goes on)."""
    ids = shard.read(start, start + context + 1)
    begins = shard.documents[1]
    low, high = np.searchsorted(begins, [start, start + context + 1], side="left")
    return ids, [int(place) - start for place in begins[low:high] if place > start]
