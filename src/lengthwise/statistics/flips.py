"""The sign-flip test of a mean difference over (task, seed) pairs, and Holm's correction for many comparisons.

The test is only for several tasks: the few seeds of a single task give an interval and no p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.spec import SpecError, digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT = 14
"""Up to this many (task, seed) pairs all sign patterns are tried: 16,384."""
DRAWN = 19_999
"""Patterns drawn if there are more pairs; with the observed one they are 20,000."""
_VALUES = 4_000_000
"""Signs held in memory at once: 32 MB."""
_TOGETHER = 64
"""Differences whose sums are held in memory at once."""
RECIPE = "sign flips over (task, seed)"


@dataclass(frozen=True)
class SignFlips:
    """The two-sided p of a mean difference over tasks."""

    p: float
    n: int
    """The number of (task, seed) pairs."""
    patterns: int
    exact: bool
    """Whether all patterns were tried."""
    unit: str = "(task, seed) pairs"
    recipe: str = RECIPE


def sign_flip_tests(comparisons: Sequence[Mapping[str, Sequence[float]]]) -> list[SignFlips]:
    """Return the share of sign patterns whose mean over tasks is at least as far from 0, for each comparison.

    A comparison is task → a difference for each seed; e.g. two tasks with three seeds each, all positive, give 2/64.
    A single task is refused. Comparisons with equal numbers of (task, seed) pairs are computed together.
    """
    weighted = [_weighted(one) for one in comparisons]
    found: dict[int, SignFlips] = {}
    for n in sorted({len(one) for one in weighted}):
        alike = [number for number, one in enumerate(weighted) if len(one) == n]
        # All signs are flipped anyway, so sorted magnitudes suffice; p then depends on neither row order nor direction.
        sizes_ND = np.array([sorted(map(abs, weighted[number])) for number in alike]).T
        # Rounding differs with summation order; the tolerance makes patterns equal to the observed one count.
        near_D = np.array([abs(math.fsum(weighted[d])) - 1e-9 * math.fsum(map(abs, weighted[d])) for d in alike])
        exact = n <= EXACT
        patterns = 2**n if exact else DRAWN
        rows = patterns if exact else max(_VALUES // n, 1)
        hits_D = np.zeros(len(alike), dtype=np.int64)
        for start in range(0, patterns, rows):
            signs_PN = _signs(n, start, min(rows, patterns - start))
            for at in range(0, len(alike), _TOGETHER):
                sums_PD = np.abs(signs_PN @ sizes_ND[:, at : at + _TOGETHER])
                hits_D[at : at + _TOGETHER] += (sums_PD >= near_D[at : at + _TOGETHER]).sum(axis=0)
        for number, hits in zip(alike, hits_D.tolist(), strict=True):
            p = hits / patterns if exact else (hits + 1) / (patterns + 1)
            found[number] = SignFlips(p, n, patterns + (not exact), exact)
    return [found[number] for number in range(len(comparisons))]


def _weighted(differences: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the contribution of each pair to the sum over tasks of the mean over seeds."""
    names = sorted(name for name in differences if differences[name])
    if len(names) < 2:
        raise SpecError("a test needs at least two tasks; a single task has an interval, and settled or not")
    return [value / len(differences[name]) for name in names for value in differences[name]]


@lru_cache(maxsize=4)
def _signs(n: int, start: int, rows: int) -> NDArray[np.float64]:
    """Return sign patterns: all of them, or a keyed sample that depends only on `n` and `start`."""
    if n <= EXACT:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        raw = np.random.Philox(key=digest("sign flips", n, start)).random_raw(-(-rows * n // 64))
        bits = np.unpackbits(np.asarray(raw).astype("<u8").view(np.uint8))[: rows * n].reshape(rows, n)
    return 1 - 2 * bits.astype(np.float64)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction: the smallest p times their number, the next times one less, made nondecreasing.

    `holm_correction([.01, .04, .03])` is [.03, .06, .06].
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, before = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        before = max(before, min(1.0, p_values[at] * (len(p_values) - rank)))
        corrected[at] = before
    return corrected
