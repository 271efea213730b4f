"""Estimate from the existing seeds how many more a comparison needs.

Few seeds give a poor estimate of their variance: the plain rule, which plugs in the sample variance, reaches the wanted
half-width only about half of the time. Here the variance is replaced by its upper 80 % limit, and the number of seeds
is such that the half-width, itself random, is at most δ in 80 % of cases. If all seeds agree, their variance says
nothing about rare failures; then no number is given, but the failure rate that they rule out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DELTA = 0.05
"""The wanted half-width."""
ASSURANCE = 0.8
"""The probability with which the wanted half-width is reached."""
LEVEL = 0.95
MOST = 100_000
"""The largest number of seeds that is considered."""
RECIPE = "upper 80 % limit of the variance, 80 % assurance of the half-width"


@dataclass(frozen=True)
class SeedsNeeded:
    """How many seeds are needed, or the failure rate that the existing seeds rule out."""

    total: int | None
    """Total number of seeds (of each task), including existing ones; None if it cannot be estimated."""
    more: int | None
    n: int
    """Existing seeds (of each task)."""
    delta: float
    words: str
    unit: str = "seeds"
    recipe: str = RECIPE
    rules_out: float | None = None
    """If all seeds agree: a failure rate above this would have shown in 95 % of cases."""


def ruled_out_failure_rate(n: int) -> float:
    """Return the failure rate that n agreeing seeds rule out at 95 %: 1 − .05^(1/n), i.e. .63 for 3 and .45 for 5."""
    return 1 - 0.05 ** (1 / n)


def seeds_needed(seed_values: Sequence[float], half_width: float = DELTA) -> SeedsNeeded:
    """Return the seeds needed for at most this half-width in one cell, or of paired differences on one task.

    The plan is for the t interval of the mean. Seeds agree if all are within δ of each other:
    `seeds_needed([1., 1., 1.])` says that 3 agreeing seeds leave open a failure rate of up to 63 %.
    """
    n = len(seed_values)
    if n < 2:
        return SeedsNeeded(
            None, None, n, half_width, "one seed says nothing about the spread of seeds: at least two are needed"
        )
    if max(seed_values) - min(seed_values) <= half_width + 1e-12:
        return _agree(n, half_width)
    return _told(smallest_seed_count(_variance(seed_values), n - 1, n, half_width), n, half_width)


def smallest_seed_count(variance: float, df: float, current_seeds: int, half_width: float) -> int | None:
    """Return the smallest number of seeds with at most this half-width with 80 % assurance; None above 100,000.

    `variance` is that of one seed, estimated with `df` degrees of freedom from `current_seeds` seeds; with n these
    become df (n − 1)/(current_seeds − 1). e.g. a variance of .01 from 5 seeds asks for 47 seeds for ± .05.
    """
    from scipy.special import chdtri, stdtrit

    upper = variance * df / float(chdtri(df, ASSURANCE))  # chdtri takes the upper tail: the lower 20 % point

    def wide(n: int) -> bool:
        free = df * (n - 1) / (current_seeds - 1)
        unlucky = upper * float(chdtri(free, 1 - ASSURANCE)) / free
        return float(stdtrit(free, (1 + LEVEL) / 2)) * math.sqrt(unlucky / n) > half_width

    if wide(MOST):
        return None
    low, high = 1, 2  # the half-width falls with n: double the upper bound, then bisect
    while wide(high):
        low, high = high, min(high * 2, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high


def _agree(n: int, delta: float, of: str = "") -> SeedsNeeded:
    rate = ruled_out_failure_rate(n)
    words = (
        f"all {n} seeds {of}agree within {delta:g}: that rules out a failure rate above {100 * rate:.0f} % "
        f"{'there' if of else 'here'}, and nothing about rarer failures"
    )
    return SeedsNeeded(None, None, n, delta, words, rules_out=rate)


def _told(total: int | None, n: int, delta: float) -> SeedsNeeded:
    if total is None:
        return SeedsNeeded(None, None, n, delta, f"more than {MOST:,} seeds for ± {delta:g}")
    if total <= n:
        return SeedsNeeded(total, 0, n, delta, f"{n} seeds suffice for ± {delta:g}")
    more = total - n
    return SeedsNeeded(total, more, n, delta, f"{more} more {'seed' if more == 1 else 'seeds'} for ± {delta:g}")


def _variance(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
