"""Kinds of positions: pure functions of the example."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.encodings import POSITIONS, build_positions
from lengthwise.spec import SpecError

KINDS = [
    "consecutive",
    "randomized:limit=64",
    "offset:limit=64",
    f"given:values={[3 * i % 61 for i in range(60)]}",
]


def test_every_kind_is_covered_here():
    assert {kind.partition(":")[0] for kind in KINDS} == set(POSITIONS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_longer_answer_moves_no_earlier_position(kind, data):
    """The contract: also for wrong and over-long answers, whatever their tokens are."""
    places = build_positions(kind).places
    prompt = data.draw(st.lists(st.integers(0, 9), max_size=20))
    answer = data.draw(st.lists(st.integers(0, 9), max_size=30))
    wrong = data.draw(st.lists(st.integers(0, 9), min_size=len(answer), max_size=len(answer)))
    key, budget = data.draw(st.integers(0, 2**128 - 1)), data.draw(st.integers(len(prompt) + len(answer), 60))
    whole = places(prompt, answer, key, budget)
    assert len(whole) == len(prompt) + len(answer)
    for k in range(len(answer) + 1):
        assert places(prompt, answer[:k], key, budget) == whole[: len(prompt) + k]
        mixed = answer[:k] + wrong[k:]
        assert places(prompt, mixed, key, budget)[: len(prompt) + k] == whole[: len(prompt) + k]


def test_randomized_positions_are_increasing_uniform_and_pinned():
    kind = build_positions("randomized:limit=10")
    assert build_positions("randomized").places([0] * 3, [0], 12345, 6) == PINNED
    counts = [0] * 10
    for key in range(2000):
        drawn = kind.places([0] * 3, [], key, 3)
        assert sorted(set(drawn)) == drawn
        for position in drawn:
            counts[position] += 1
    # 6,000 draws over ten places: 600 each, standard deviation 20.5.
    assert all(abs(count - 600) < 5 * 20.5 for count in counts)


PINNED = [45, 607, 1015, 1556]


def test_offset_leaves_room_and_reaches_both_ends():
    kind = build_positions("offset:limit=20")
    starts = {kind.places([0], [0], key, 12)[0] for key in range(500)}
    assert starts == set(range(9))


def test_what_is_random_at_test_time_is_an_option_whose_default_is_the_papers():
    assert build_positions("randomized").at_test().places([0], [0], 1, 2) != [0, 1]
    assert build_positions("randomized:test=consecutive").at_test().places([0], [0], 1, 2) == [0, 1]
    assert build_positions("offset").at_test().places([0], [0], 1, 2) == [0, 1]
    assert build_positions("offset:test=random").at_test().places([0], [0], 1, 2) != [0, 1]
    assert build_positions("consecutive").at_test().places([0], [0], 1, 2) == [0, 1]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("consecutive", "11 tokens do not fit a budget of 10"),
        ("randomized:limit=5", "write randomized:limit=10"),
        ("offset:limit=5", "write offset:limit=10"),
        ("given:values=[1,2]", "given:values has 2"),
    ],
)
def test_what_does_not_fit_is_an_error_and_nothing_is_cut(kind, said):
    tokens = 11 if kind == "consecutive" else 5
    with pytest.raises(SpecError) as error:
        build_positions(kind).places([0] * tokens, [], 0, 10)
    assert said in str(error.value)


def test_negative_positions_are_refused():
    with pytest.raises(SpecError, match="not negative"):
        build_positions("given:values=[0,-1]")
