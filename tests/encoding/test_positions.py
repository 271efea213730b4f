"""Kinds of positions: pure functions of the example."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.encoding import POSITIONS, build_positions
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.sets import instance_factory

KINDS = [
    "consecutive",
    "randomized:limit=64",
    "offset:limit=64",
    f"given:values={[3 * i % 61 for i in range(60)]}",
]


OF_TASKS = [
    ("coupled:limit=64", "addition:reversed=answer"),
    ("coupled:limit=64", "addition:reversed=all:hints=16:spaces=0.3"),
    ("coupled:limit=64", "addition:padded=true:protocol=paper"),
    ("coupled:limit=64", "multiplication:reversed=answer"),
    ("coupled:limit=64", "multiplication:padded=true:hints=16"),
    *(("coupled:limit=64", f"copy:variant={variant}") for variant in ("same", "same2", "replace", "random", "random2")),
    *(("coupled:limit=64", f"reverse:variant={variant}") for variant in ("once", "twice", "back")),
    ("coupled:limit=64", "reverse:variant=back:protocol=paper"),
    ("coupled:limit=64", "copy:variant=replace:protocol=paper"),
    ("abacus", "addition:reversed=all"),
    ("abacus:limit=30:starts=8", "addition:protocol=paper"),
    ("abacus", "modular"),
]


def test_every_kind_is_covered_here():
    named = {kind.partition(":")[0] for kind in (*KINDS, *(kind for kind, _ in OF_TASKS))}
    assert named == set(POSITIONS)


@pytest.mark.parametrize(("kind", "name"), OF_TASKS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_positions_that_look_at_content_keep_the_contract(kind, name, data):
    """The same contract: real prompts; right, wrong and over-long answers, of any tokens."""
    task = build_task(name)
    positions = build_positions(kind).of(task)
    if data.draw(st.booleans()):
        positions = positions.at_test()
    length = data.draw(st.integers(1, 8))
    example = task.to_example(instance_factory(task, "train", max(length, 3))(data.draw(st.integers(0, 50))))
    ids, asked = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    prompt, right = ids[:asked], ids[asked:]
    answer = right[: data.draw(st.integers(0, len(right)))]
    answer = answer + data.draw(st.lists(st.integers(0, len(task.vocabulary) - 1), max_size=30))
    key, budget = data.draw(st.integers(0, 2**128 - 1)), len(prompt) + len(answer)
    whole = positions.places(prompt, answer, key, budget)
    assert len(whole) == budget
    assert all(0 <= place < positions.limit for place in whole)
    for k in range(len(answer) + 1):
        assert positions.places(prompt, answer[:k], key, budget) == whole[: len(prompt) + k]


def placed(kind, name, instance, key=0):
    """Each symbol of an example with its position in evaluation."""
    task = build_task(name)
    example = task.to_example(instance)
    ids, asked = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    places = build_positions(kind).of(task).at_test().places(ids[:asked], ids[asked:], key, len(ids))
    return " ".join(f"{s}{p}" for s, p in zip(task.vocabulary.read(ids), places, strict=True))


@pytest.mark.parametrize(
    ("kind", "name", "instance", "wanted"),
    [
        ("coupled", "addition:reversed=answer", ("65", "8"), "<bos>0 63 52 +1 82 =1 32 73 <eos>0"),
        ("coupled", "addition:padded=true", ("65", "8"), "<bos>0 63 52 +1 03 82 =1 04 73 32 <eos>0"),
        (
            "coupled",
            "addition:longest=2:reversed=all:hints=3:spaces=0.5",
            ("65", "8"),
            "<bos>0 h02 52 h13 63 _0 +1 h02 82 =1 h02 32 h13 73 <eos>0",
        ),
        ("coupled", "copy", ("a", "b"), "<bos>0 a1 b2 [SEP]0 a1 b2 <eos>0"),
        ("coupled", "copy:variant=random2", ("a", "b"), "<bos>0 a1 b2 [SEP]0 a1 b2 [NEXT]0 a1 b2 <eos>0"),
        ("coupled", "copy:variant=same2", ("a", 2), "<bos>0 a1 a2 [SEP]0 a1 a2 a1 a2 <eos>0"),
        ("coupled", "copy:variant=replace", ("a", "b", 2), "<bos>0 a0 b0 [NEXT]0 a1 a2 [SEP]0 b1 b2 <eos>0"),
        ("coupled", "reverse", ("a", "b"), "<bos>0 a1 b2 [SEP]0 b2 a1 <eos>0"),
        ("coupled", "reverse:variant=back", ("a", "b"), "<bos>0 a1 b2 [SEP]0 b2 a1 [NEXT]0 a1 b2 <eos>0"),
        ("abacus", "addition:reversed=all", ("65", "8"), "<bos>0 51 62 +0 81 =0 31 72 <eos>0"),
    ],
)
def test_what_belongs_together_has_one_position(kind, name, instance, wanted):
    assert placed(kind, name, instance) == wanted


def test_what_a_copy_has_too_much_has_no_group():
    task = build_task("copy:variant=same2")
    assert task.places(("a", "a", "[SEP]"), ("a",) * 6) == [1, 2, 0, 1, 2, 1, 2, 0, 0]
    task = build_task("copy:variant=same")
    assert task.places(("a", "a", "[SEP]"), ("a",) * 4) == [1, 2, 0, 1, 2, 0, 0]


def test_starts_are_random_in_training_and_leave_room():
    task = build_task("addition:reversed=answer")
    ids, asked = task.vocabulary.sequence(*task.to_example(("65", "8"))[:2], True)
    kind = build_positions("coupled:limit=10").of(task)
    starts = {kind.places(ids[:asked], ids[asked:], key, 20)[1] for key in range(300)}
    # The prompt's highest group is 3, the sum may have one more, and the last position is 9.
    assert starts == set(range(3, 9))
    abacus = build_positions("abacus:starts=5").of(build_task("addition"))
    assert {abacus.places(ids[:asked], [], key, 20)[1] for key in range(200)} == set(range(1, 6))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("coupled", "addition", "write addition:reversed=answer"),
        ("coupled", "parity", "says nothing of which symbols belong together"),
        ("coupled", "addition:reversed=answer:scratchpad=full", "leave out the scratchpad"),
        ("coupled:limit=4", "addition:reversed=answer", "write coupled:limit="),
        ("abacus:limit=100", "addition", "write abacus:limit="),
    ],
)
def test_what_cannot_be_coupled_says_what_to_type(kind, name, said):
    task = build_task(name)
    example = task.to_example(instance_factory(task, "train", 3)(0))
    ids, asked = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    with pytest.raises(SpecError, match=said):
        build_positions(kind).of(task).places(ids[:asked], ids[asked:], 0, len(ids))


@pytest.mark.parametrize("option", ["hints=16", "spaces=0.3"])
@pytest.mark.parametrize("name", ["addition:reversed=all", "multiplication"])
def test_abacus_refuses_what_parts_the_digits_of_a_number(name, option):
    with pytest.raises(SpecError, match="leave out hints and spaces"):
        build_positions("abacus").of(build_task(f"{name}:{option}"))


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("count", ("a" * 12, "a")),
        ("copy:variant=same2:alphabet=10", ("7", 6)),
        ("copy:variant=replace:alphabet=12", ("a", "7", 6)),
        ("sort:alphabet=12", (1, 11, 2, 10, 3)),
        ("addition", ("99", "9")),
        ("multiplication", ("99", "99")),
        ("parity:scratchpad=full", (1, 0, 1, 1, 0)),
    ],
)
def test_no_right_answer_reaches_the_last_abacus_position_twice(name, instance):
    task = build_task(name)
    example = task.to_example(instance)
    ids, asked = task.vocabulary.sequence(example.prompt, example.target, task.starts)

    def places(limit):
        kind = build_positions(f"abacus:starts=5:limit={limit}").of(task)
        return [kind.places(ids[:asked], ids[asked:], key, len(ids)) for key in range(20)]

    wanted, refused = places(1024), 0
    for limit in range(5, 60):
        try:
            assert places(limit) == wanted
        except SpecError:
            refused += 1
    assert 0 < refused < 50


def test_a_task_without_digits_has_no_abacus_and_positions_without_a_task_say_so():
    with pytest.raises(SpecError, match="has no digits"):
        build_positions("abacus").of(build_task("dyck"))
    with pytest.raises(SpecError, match="need a task"):
        build_positions("coupled").places([1], [2], 0, 2)


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
