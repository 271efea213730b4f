"""Document lengths: from a stream of lengths to quantiles and a histogram."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lengthwise.spec import SpecError

PERCENTS = (5, 25, 50, 75, 90, 95, 99)

_CHUNK = 1 << 16
_NICE = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100)


def count_words(text: str) -> int:
    """Count the words of a text, separated by white space: 3 for "a b, c"."""
    return len(text.split())


@dataclass(frozen=True)
class Histogram:
    """How many lengths fall into each bin: `counts[i]` are longer than `edges[i]` and at most `edges[i + 1]`.

    With edges 0, 80, 160 a length of 80 is in the first bin, 81 in the second, 161 in `overflow` and 0 in `empty`.
    All counts, `empty` and `overflow` add up to all documents.
    """

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    empty: int
    """The number of documents of length 0, which would distort the first bin and may hint at a problem."""
    overflow: int
    """How many are longer than the last edge."""


@dataclass(frozen=True, eq=False)
class LengthStatistics:
    """The lengths of a corpus, e.g. of 1, 2, 2, 9: four documents, 14 in total, mean 3.5, median 2, maximum 9."""

    documents: int
    total: int
    mean: float
    min: int
    quantiles: dict[int, int]
    """By percent p: the smallest length that at least p percent of the documents do not exceed.

    It is exact, and always a length that occurs, as numpy's `inverted_cdf`. Of 1, 2, 3, 4 the 50th is 2, the 75th 3,
    the 99th 4.
    """
    max: int
    beyond: dict[int, float]
    """By training length: the share of documents longer than it, e.g. 0.25 of 1, 2, 2, 9 for 2."""
    unit: str
    """What was counted, `words` or `tokens`; empty if not given."""
    lengths_N: np.ndarray = field(repr=False)
    """The N distinct lengths, ascending; keeping only these, ten million documents take some kilobytes."""
    times_N: np.ndarray = field(repr=False)
    """The number of documents of each distinct length."""

    @property
    def median(self) -> int:
        """The 50 percent quantile: for an even number of documents the lower of the two in the middle."""
        return self.quantiles[50]

    def histogram(self, bins: int = 50, longest_shown: int | None = None) -> Histogram:
        """Return at most `bins` bins of equal integer width up to `longest_shown`, and the number of longer documents.

        Lengths are integers, so bins of width 2.4 would hold 2 or 3 of them and show a spurious comb pattern.
        The last edge is the first multiple of the width that reaches `longest_shown`: for 50 bins up to 4,000 the width
        is 80; up to 101 it is 3, and 34 bins end at 102. `longest_shown` is the 99 percent quantile rounded up (1,390
        to 1,500) unless given.
        """
        longest_shown = _nice(self.quantiles[99]) if longest_shown is None else longest_shown
        if bins < 1 or longest_shown < 1:
            raise SpecError(
                f"a histogram needs a bin and a length of 1 at least, not {bins} bins up to {longest_shown}"
            )
        width = -(-longest_shown // bins)
        edges = np.arange(0, longest_shown + width, width)
        # The number of documents up to each edge; at the first edge, 0, these are the empty ones.
        at_most = np.append(0, np.cumsum(self.times_N))[np.searchsorted(self.lengths_N, edges, side="right")]
        return Histogram(
            edges=tuple(edges.tolist()),
            counts=tuple(np.diff(at_most).tolist()),
            empty=int(at_most[0]),
            overflow=self.documents - int(at_most[-1]),
        )

    def to_json_dict(self, bins: int = 50, longest_shown: int | None = None) -> dict[str, object]:
        """Return plain data for JSON: {"documents": 4, ..., "quantiles": {"p50": 2, ...}, "histogram": {...}}."""
        shown = self.histogram(bins, longest_shown)
        return {
            "unit": self.unit or None,
            "documents": self.documents,
            "total": self.total,
            "mean": self.mean,
            "min": self.min,
            "quantiles": {f"p{percent}": length for percent, length in self.quantiles.items()},
            "max": self.max,
            "beyond": [{"trained": length, "share": share} for length, share in self.beyond.items()],
            "histogram": {
                "edges": list(shown.edges),
                "counts": list(shown.counts),
                "empty": shown.empty,
                "overflow": shown.overflow,
            },
        }


def measure_lengths(lengths: Iterable[int], training_lengths: Sequence[int] = (), unit: str = "") -> LengthStatistics:
    """Summarise a stream of lengths, with the share of documents longer than each training length.

    The stream is read once, in chunks, and only distinct lengths are kept.
    `measure_lengths([1, 2, 2, 9], training_lengths=[2])` has median 2 and beyond {2: 0.25}.
    """
    for length in training_lengths:
        if length < 1:
            raise SpecError(f"a training length is 1 or more, not {length}")
    lengths_N, times_N = _distinct(lengths)
    at_most_N = np.cumsum(times_N)
    documents, total = int(at_most_N[-1]), int(lengths_N @ times_N)

    def longer(length: int) -> float:
        return int(times_N[np.searchsorted(lengths_N, length, side="right") :].sum()) / documents

    def quantile(percent: int) -> int:
        rank = -(-documents * percent // 100)  # in integers: rounding of floats could give the next rank
        return int(lengths_N[np.searchsorted(at_most_N, rank)])

    return LengthStatistics(
        documents=documents,
        total=total,
        mean=total / documents,
        min=int(lengths_N[0]),
        quantiles={percent: quantile(percent) for percent in PERCENTS},
        max=int(lengths_N[-1]),
        beyond={length: longer(length) for length in sorted(training_lengths)},
        unit=unit,
        lengths_N=lengths_N,
        times_N=times_N,
    )


def _distinct(counts: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct lengths, ascending, and how often each occurs."""
    stream, parts = iter(counts), []
    while (chunk := np.fromiter(itertools.islice(stream, _CHUNK), dtype=np.int64)).size:
        parts.append(np.unique(chunk, return_counts=True))
    if not parts:
        raise SpecError("there are no documents to measure; is it the right file?")
    lengths_N, which = np.unique(np.concatenate([lengths for lengths, _ in parts]), return_inverse=True)
    if lengths_N[0] < 0:
        raise SpecError(f"a length cannot be negative, but one is {lengths_N[0]}")
    times_N = np.zeros_like(lengths_N)
    np.add.at(times_N, which, np.concatenate([times for _, times in parts]))
    return lengths_N, times_N


def _nice(length: int) -> int:
    """Round up to a number with one or two leading digits: 1,500 for 1,390; below ten, return the number itself."""
    if length < 10:
        return max(length, 1)
    scale = 10 ** (len(str(length)) - 2)
    return next(digits * scale for digits in _NICE if digits * scale >= length)
