"""So many seeds give so narrow an interval: the promise is kept, and the plain rule does not keep it."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from lengthwise.statistics.seeds import MOST, ruled_out_failure_rate, seeds_needed, smallest_seed_count
from tests.statistics import simulated as sim


def plug_in(seeds, delta: float) -> int:
    """The plain rule: the sample variance taken for the true one."""
    spread, n = float(np.var(seeds, ddof=1)), 2
    while n < MOST and stdtrit(n - 1, 0.975) * math.sqrt(spread / n) > delta:
        n += 1 + n // 200
    return n


def narrow(values, delta: float) -> bool:
    return bool(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)) <= delta)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bell", "bimodal"])
def test_the_number_of_seeds_keeps_its_promise(kind, figure):
    """For ± .05, from pilots of 3, 5 and 10 seeds; in a new study of n seeds, and going on from the pilot."""
    dice, pilots = np.random.default_rng(6), 2000
    for n in (3, 5, 10):
        kept, went_on, plain, agree, asked = [], [], [], 0, []
        for _ in range(pilots):
            pilot = sim.accuracies(kind, dice, n)
            fresh = plug_in(pilot, 0.05)
            plain.append(narrow(sim.accuracies(kind, dice, fresh), 0.05))
            need = seeds_needed(pilot.tolist())
            if need.total is None:  # all agree: nothing is promised
                assert need.rules_out == ruled_out_failure_rate(n) and need.more is None
                agree += 1
                continue
            asked.append(need.total)
            kept.append(narrow(sim.accuracies(kind, dice, need.total), 0.05))
            more = sim.accuracies(kind, dice, need.more) if need.more else np.array([])
            went_on.append(narrow(np.concatenate([pilot, more]), 0.05))
        figure(
            f"± .05 from {n} {kind} seeds: kept {np.mean(kept):.3f} (going on from the pilot {np.mean(went_on):.3f}), "
            f"plain rule {np.mean(plain):.3f}; median {np.median(asked):.0f} seeds; {agree / pilots:.3f} agree"
        )
        assert np.mean(kept) >= 0.8 and np.mean(went_on) >= 0.8
        assert np.mean(plain) < 0.8


def test_agreeing_seeds_never_need_none():
    for n in range(2, 12):
        need = seeds_needed([1.0] * n)
        assert need.more is None and need.total is None and need.rules_out == pytest.approx(1 - 0.05 ** (1 / n))
        assert f"all {n} seeds agree" in need.words and f"{100 * need.rules_out:.0f} %" in need.words
    assert round(ruled_out_failure_rate(3), 2) == 0.63 and round(ruled_out_failure_rate(5), 2) == 0.45
    assert seeds_needed([0.98, 1.0, 0.97]).rules_out is not None  # within δ of each other


def test_one_seed_needs_at_least_a_second():
    assert seeds_needed([0.5]).total is None and "one seed" in seeds_needed([0.5]).words


def test_the_smallest_number_is_the_smallest():
    """Against a walk from below."""
    from scipy.special import chdtri

    for variance, there, delta in [(0.01, 5, 0.05), (0.15, 3, 0.1), (0.002, 10, 0.05), (0.04, 4, 0.02)]:
        df = there - 1
        upper = variance * df / chdtri(df, 0.8)
        n = 2
        while stdtrit(n - 1, 0.975) * math.sqrt(upper * chdtri(n - 1, 0.2) / (n - 1) / n) > delta:
            n += 1
        assert smallest_seed_count(variance, df, there, delta) == n
    assert smallest_seed_count(0.01, 4, 5, 0.05) == 47  # as its docstring says
