"""One cell: the median seed, its exact interval, and reaches that are only known to be at least so much."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.statistics.cells import (
    LEVEL,
    accuracy_cells,
    median_interval_rank,
    median_seed,
    reach_cells,
    score_cells,
    summarize_reaches,
    summarize_seeds,
)
from lengthwise.statistics.reach import Reach, run_scores
from lengthwise.statistics.table import accuracy_table, score_table
from tests.statistics.planted import L, made, named


def test_the_levels_are_those_of_the_design():
    told = {3: (1, 0.75), 4: (1, 0.875), 5: (1, 0.9375), 6: (1, 0.96875), 7: (1, 63 / 64), 8: (1, 127 / 128)}
    told |= {2: (1, 0.5), 9: (2, 1 - 20 / 512), 10: (2, 1 - 22 / 1024), 12: (3, 1 - 2 * 79 / 4096)}
    assert {n: median_interval_rank(n) for n in told} == told


@pytest.mark.parametrize("n", range(2, 60))
def test_the_interval_is_the_innermost_that_keeps_the_level(n):
    k, level = median_interval_rank(n)
    assert level == pytest.approx(1 - 2 * sum(math.comb(n, j) for j in range(k)) / 2**n)
    assert k == 1 or level >= LEVEL
    deeper = 1 - 2 * sum(math.comb(n, j) for j in range(k + 1)) / 2**n
    assert deeper < LEVEL  # one step further in would fall below it


@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_level_is_exact(n):
    """Each seed is above or below the median like a coin: count all outcomes where the interval holds it."""
    k, level = median_interval_rank(n)
    holds = sum(k <= sum(sides) <= n - k for sides in itertools.product((0, 1), repeat=n))
    assert holds / 2**n == level


def test_a_median_has_its_interval_and_one_seed_has_none():
    one = median_seed([0.9, 0.1, 0.6, 0.7, 0.5])
    assert (one.value, one.low, one.high, one.level, one.n, one.unit) == (0.6, 0.1, 0.9, 0.9375, 5, "seeds")
    alone = median_seed([0.4])
    assert alone.low is None and alone.high is None and alone.level is None and "no seed interval" in alone.words
    assert median_seed([]).value is None
    assert median_seed([0.2, 0.4]).value == pytest.approx(0.3)


def test_missing_seeds_are_missing():
    one = summarize_seeds([0.8, None, 0.2, 0.9], examples=100)
    assert one.seeds == (0.2, 0.8, 0.9) and one.missing == 1 and one.median.value == 0.8 and one.median.n == 3
    p = (0.8 + 0.2 + 0.9) / 3
    assert one.noise.value == pytest.approx(math.sqrt(p * (1 - p) / 100)) and one.noise.unit == "examples"
    assert one.mean.value == pytest.approx(p) and one.mean.low is None
    assert summarize_seeds([None, None]).median.value is None and summarize_seeds([None]).mean.value is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms())
def test_the_order_of_seeds_changes_nothing(values, dice):
    shuffled = values[:]
    dice.shuffle(shuffled)
    assert summarize_seeds(values, 100) == summarize_seeds(shuffled, 100)


# --- reach -----------------------------------------------------------------------------------------------------------


def test_censored_reaches_stay_at_least():
    found = summarize_reaches([Reach(48, True), Reach(20), Reach(24)])
    assert (str(found.median), str(found.low), str(found.high), found.level) == ("24", "20", "≥ 48", 0.75)
    found = summarize_reaches([Reach(48, True), Reach(48, True), Reach(20)])
    assert str(found.median) == "≥ 48" and str(found) == "≥ 48 [20, ≥ 48] (75 %; n = 3 seeds)"


def test_what_comes_after_a_censored_reach_is_at_least_so_much():
    """≥ 40 may be 70: the largest of ≥ 40, 50, 60 is at least 60, and so is only known to be at least that."""
    found = summarize_reaches([Reach(60), Reach(40, True), Reach(50)])
    assert str(found.low) == "≥ 40" and str(found.median) == "≥ 50" and str(found.high) == "≥ 60"


def test_a_seed_that_learned_nothing_is_below_all():
    found = summarize_reaches([Reach(None), Reach(30), Reach(None), Reach(50, True), Reach(20)])
    assert (
        found.learned_seed_count == 3 and str(found.median) == "20" and str(found.low) == "not learned" and found.n == 5
    )
    assert str(summarize_reaches([Reach(None)] * 3).median) == "not learned"
    assert summarize_reaches([Reach(12)]).low is None and "no seed interval" in summarize_reaches([Reach(12)]).words
    assert str(summarize_reaches([Reach(10), Reach(20)]).median) == "10"  # a length that was tested


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=10),
    st.randoms(use_true_random=False),
)
def test_at_least_is_always_true(pairs, dice):
    """Whatever the true reaches are: an order statistic that is told plain is exact, one told ≥ is a lower bound."""
    known = [Reach(min(true, tested), true >= tested) for true, tested in pairs]
    found, truth = summarize_reaches(known), sorted(true for true, _ in pairs)
    k, _ = median_interval_rank(len(pairs))
    for one, wanted in (
        (found.low, truth[k - 1]),
        (found.high, truth[-k]),
        (found.median, truth[(len(truth) - 1) // 2]),
    ):
        assert one.length <= wanted if one.beyond else one.length == wanted
    dice.shuffle(known)
    again = summarize_reaches(known)
    assert (again.median, again.low, again.high) == (found.median, found.low, found.high)


# --- from rows -------------------------------------------------------------------------------------------------------


def test_cells_of_a_study():
    planted = {("copy", "nope", seed): [1.0, 0.9, 0.5, value] for seed, value in enumerate((0.1, 0.3, 0.2))}
    planted["copy", "nope", 3] = None
    rows, labels = made(planted), named(planted)
    found = {(one["split"], one["length"]): one["cell"] for one in accuracy_cells(accuracy_table(rows, labels), labels)}
    assert len(found) == 2 * L
    last = found["test_unseen", 2 * L]
    assert last.seeds == (0.1, 0.2, 0.3) and last.median.value == 0.2 and last.missing == 1
    score = score_cells(score_table(rows, labels))["copy", "nope"]
    assert score.median.value == pytest.approx(0.65) and score.missing == 1 and score.noise.n == 800
    far = reach_cells(run_scores(rows), labels)["copy", "nope"]
    assert str(far.median) == str(L + 2)
    half = reach_cells(run_scores(rows, threshold=0.5), labels)["copy", "nope"]
    assert str(half.median) == str(L + 3)


def test_the_ends_of_a_reach_allow_for_the_test_set():
    """Of 200 examples, .92 and .88 may be .9: seeds agree on L + 2, another test set may give L + 1 to L + 3."""
    planted = {("copy", "nope", seed): [1.0, 0.92, 0.88, 0.5] for seed in range(5)}
    lines = run_scores(made(planted))
    assert set(lines["reach"]) == {L + 2} and set(lines["reach_low"]) == {L + 1} and set(lines["reach_high"]) == {L + 3}
    found = reach_cells(lines, named(planted))["copy", "nope"]
    assert (str(found.low), str(found.median), str(found.high)) == (str(L + 1), str(L + 2), str(L + 3))
    sure = {key: [1.0, 1.0, 0.5, 0.5] for key in planted}
    certain = reach_cells(run_scores(made(sure)), named(sure))["copy", "nope"]
    assert str(certain.low) == str(certain.median) == str(certain.high) == str(L + 2)


def test_the_order_of_rows_changes_no_cell():
    planted = {("copy", "nope", seed): random.Random(seed).random() for seed in range(5)}
    rows, labels = made(planted), named(planted)
    mixed = rows.sample(fraction=1, shuffle=True, seed=1), labels.sample(fraction=1, shuffle=True, seed=2)
    assert score_cells(score_table(rows, labels)) == score_cells(score_table(*mixed))
    assert accuracy_cells(accuracy_table(rows, labels)) == accuracy_cells(accuracy_table(*mixed))
