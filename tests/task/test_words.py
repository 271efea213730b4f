"""Random values from raw words: pinned, in any order, the same whether drawn one by one or at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.task.random_source import RandomSource, TooManyChoices, enumerate_draws


def test_the_first_values_are_pinned():
    words = RandomSource(12345).seek(3)
    assert words.integers(0, 1000, 5) == PINNED
    assert RandomSource(12345).seek(3, attempt=1).integers(0, 1000, 5) != PINNED
    raw = np.random.Philox(key=12345, counter=[0, 3, 0, 0]).random_raw(5)
    assert (raw % 1000).tolist() == PINNED


PINNED = [169, 807, 213, 216, 694]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**128 - 1), st.integers(0, 2**40), st.lists(st.integers(1, 90), min_size=1, max_size=6))
def test_many_at_once_are_as_one_by_one(key, index, sizes):
    at_once, singly = RandomSource(key).seek(index), RandomSource(key).seek(index)
    for size in sizes:
        assert at_once.integers(5, 105, size) == [5 + singly.below(100) for _ in range(size)]


def test_what_was_drawn_before_does_not_matter():
    words = RandomSource(7)
    fresh = [RandomSource(7).seek(index).integers(0, 100, 50) for index in range(4)]
    for index in (2, 0, 3, 1, 2):
        words.seek(index).integers(0, 100, index + 1)
        assert words.seek(index).integers(0, 100, 50) == fresh[index]


def test_values_are_uniform():
    counts = np.bincount(RandomSource(1).seek(0).integers(0, 10, 100_000), minlength=10)
    # 10,000 each, standard deviation 95.
    assert (abs(counts - 10_000) < 5 * 95).all()


def test_orders_are_uniform():
    words, seen = RandomSource(2), {}
    for index in range(6000):
        order = tuple(words.seek(index).shuffle("abc"))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    # 1,000 each, standard deviation 29.
    assert all(abs(count - 1000) < 5 * 29 for count in seen.values())


def test_a_weighted_index_keeps_its_weights():
    words = RandomSource(3)
    drawn = [words.seek(index).weighted([8, 9, 10]) for index in range(10_000)]
    assert abs(drawn.count(0) - 8000) < 200
    assert abs(drawn.count(1) - 1000) < 150
    assert set(drawn) == {0, 1, 2}


def test_every_sequence_of_choices_is_met_once():
    assert list(enumerate_draws(lambda words: tuple(words.integers(0, 2, 2)))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(list(enumerate_draws(lambda words: tuple(words.shuffle("abcd"))))) == 24
    assert list(enumerate_draws(lambda words: words.weighted([1, 1, 2]))) == [0, 2]  # what has no weight is never met
    dependent = list(enumerate_draws(lambda words: (n := words.below(3), tuple(words.integers(0, 2, n)))))
    assert len(dependent) == len(set(dependent)) == 1 + 2 + 4


def test_a_draw_that_rejects_is_not_walked_for_ever():
    def two(words):
        a = b = words.below(3)
        while b == a:
            b = words.below(3)
        return a, b

    with pytest.raises(TooManyChoices):
        list(enumerate_draws(two))
    with pytest.raises(TooManyChoices):
        list(enumerate_draws(lambda words: words.integers(0, 2, 10), max_draws=1023))
    assert len(list(enumerate_draws(lambda words: words.integers(0, 2, 10), max_draws=1024))) == 1024


def test_a_constant_draw_has_one_outcome():
    assert list(enumerate_draws(lambda words: "a")) == ["a"]


@pytest.mark.parametrize("size", [1, 31, 32, 33, 10_000])
def test_no_size_is_too_long(size):
    assert len(RandomSource(5).seek(1).integers(0, 2, size)) == size
