"""Sign flips: is a difference over many (task, seed) pairs more than luck? And Holm, who asks it of many pairs.

Only for aggregates: of a single task the few seeds give an interval, and no p.
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
"""Up to this many pairs all sign patterns are tried: 16,384."""
DRAWN = 19_999
"""Patterns that are drawn where there are more; the one that was seen is the twenty-thousandth."""
_VALUES = 4_000_000
"""Signs that are in memory at once: 32 MB."""
_TOGETHER = 64
"""Differences whose sums are in memory at once."""
RECIPE = "sign flips over (task, seed)"


@dataclass(frozen=True)
class SignFlips:
    """A two-sided p of a mean difference over tasks."""

    p: float
    n: int
    """(task, seed) pairs."""
    patterns: int
    exact: bool
    """All patterns were tried."""
    unit: str = "(task, seed) pairs"
    recipe: str = RECIPE


def sign_flips(differences: Mapping[str, Sequence[float]]) -> SignFlips:
    """The share of sign patterns whose mean over tasks is at least as far from 0: task → a difference for each seed.

    e.g. two tasks with three seeds each, all positive, give 2/64. A single task is refused.
    """
    return sign_flips_of_each([differences])[0]


def sign_flips_of_each(many: Sequence[Mapping[str, Sequence[float]]]) -> list[SignFlips]:
    """The same of many differences, those with as many (task, seed) pairs together."""
    weighted = [_weighted(one) for one in many]
    found: dict[int, SignFlips] = {}
    for n in sorted({len(one) for one in weighted}):
        alike = [number for number, one in enumerate(weighted) if len(one) == n]
        # All signs are flipped anyway: sizes in order of size, so that neither listing order nor who is first is seen.
        sizes_ND = np.array([sorted(map(abs, weighted[number])) for number in alike]).T
        # Sums in another order differ in the last bits; a pattern that equals what was seen must count.
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
    return [found[number] for number in range(len(many))]


def _weighted(differences: Mapping[str, Sequence[float]]) -> list[float]:
    """What each pair adds to the sum over tasks of the mean over seeds."""
    names = sorted(name for name in differences if differences[name])
    if len(names) < 2:
        raise SpecError("a test needs at least two tasks; a single task has an interval, and settled or not")
    return [value / len(differences[name]) for name in names for value in differences[name]]


@lru_cache(maxsize=4)
def _signs(n: int, start: int, rows: int) -> NDArray[np.float64]:
    """Patterns of signs: all there are, or a keyed sample that depends on their number alone."""
    if n <= EXACT:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    else:
        raw = np.random.Philox(key=digest("sign flips", n, start)).random_raw(-(-rows * n // 64))
        bits = np.unpackbits(np.asarray(raw).astype("<u8").view(np.uint8))[: rows * n].reshape(rows, n)
    return 1 - 2 * bits.astype(np.float64)


def holm(ps: Sequence[float]) -> list[float]:
    """Each p corrected for all of them: the smallest times their number, the next times one less, never falling.

    `holm([.01, .04, .03])` is [.03, .06, .06].
    """
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    corrected, before = [0.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        before = max(before, min(1.0, ps[at] * (len(ps) - rank)))
        corrected[at] = before
    return corrected
