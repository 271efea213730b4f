"""Mean over pairs of seeds. Pairs share seeds and are not independent, so the sample size is the number of seeds.

Delete-one jackknife: m₋ₛ is the mean without seed s, on either side of a pair; the variance is
(n − 1)/n · Σ (m₋ₛ − m̄)², and the interval is t with n − 1 degrees of freedom. Arvesen 1969.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lengthwise.statistics.estimate import NO_SEEDS, Estimate
from lengthwise.statistics.intervals import LEVEL, mean, t_quantile

JACKKNIFE = "delete-one-seed jackknife, t"
OTHER_SEEDS = "other seeds"


def mean_over_seed_pairs(values: Mapping[tuple[int, int], float], measure: str = "", level: float = LEVEL) -> Estimate:
    """Return the mean over pairs of seeds (s, s′) with its interval for other seeds.

    e.g. {(0, 1): 1, (1, 2): 2, (2, 0): 3} gives 2, and the means without seeds 0, 1 and 2 are 2, 3 and 1. For pairs
    (s, s) it is the t interval of the mean.
    """
    unit = "seeds"
    seeds = sorted({seed for pair in values for seed in pair})
    if not values:
        return Estimate(None, None, None, None, 0, unit, JACKKNIFE, "no pair", measure)
    value = mean(list(values.values()))
    without = [[one for pair, one in values.items() if seed not in pair] for seed in seeds]
    if not math.isfinite(value):
        return Estimate(value, None, None, None, len(seeds), unit, JACKKNIFE, "no interval: infinite", measure)
    if len(seeds) < 2 or not all(without):
        words = NO_SEEDS if len(seeds) < 2 else "no seed interval: too few seeds"
        return Estimate(value, None, None, None, len(seeds), unit, JACKKNIFE, words, measure)
    means, n = [mean(kept) for kept in without], len(seeds)
    middle = mean(means)
    spread = (n - 1) / n * math.fsum((one - middle) ** 2 for one in means)
    half = t_quantile(n - 1, level) * math.sqrt(spread)
    return Estimate(value, value - half, value + half, level, n, unit, JACKKNIFE, OTHER_SEEDS, measure, df=float(n - 1))


def difference_over_pairs(
    first_values: Mapping[tuple[int, int], float], second_values: Mapping[tuple[int, int], float], measure: str = ""
) -> Estimate:
    """Return the mean of first minus second over shared pairs; the jackknife drops a seed from both at once."""
    shared = [pair for pair in first_values if pair in second_values]
    if not all(math.isfinite(side[pair]) for pair in shared for side in (first_values, second_values)):
        seeds = {seed for pair in shared for seed in pair}
        return Estimate(None, None, None, None, len(seeds), "seeds", JACKKNIFE, "no difference: infinite", measure)
    return mean_over_seed_pairs({pair: first_values[pair] - second_values[pair] for pair in shared}, measure)
