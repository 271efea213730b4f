"""Scratchpads: 32 combinations, the published names on top, extraction, and what is first wrong."""

from itertools import product

import pytest

from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.scratchpad import MARKERS, NAMED, Scratchpad
from lengthwise.task.sets import instance_factory

WITH_VARIABLES = ["addition", "polynomial", "summation", "parity"]
WITHOUT = ["sort:variant=single", "sort:variant=multi", "lego"]
BOTH = [f"{name}:protocol={protocol}" for name in WITH_VARIABLES + WITHOUT for protocol in ("ours", "paper")]


def test_eight_formats_are_published_and_seven_without_variables():
    eight = ("none", "full", "minimal", *(f"full-{name}" for name in MARKERS))
    for name in WITH_VARIABLES:
        assert build_task(name).formats() == eight
    for name in WITHOUT:
        assert build_task(name).formats() == tuple(one for one in eight if one != "full-variables")


def test_the_published_names_are_the_published_codes():
    codes = {name: str(scratchpad_format) for name, scratchpad_format in NAMED.items()}
    assert codes["full"] == "i1c1o1v1r1"
    assert codes["minimal"] == "i0c1o1v0r0"
    assert codes["full-computation"] == "i1c0o1v1r1"
    assert str(build_task("sort:scratchpad=full").scratchpad_format) == "i1c1o1v0r1"
    # The original's plots give this format of sort and LEGO the name of another.
    assert str(build_task("lego:scratchpad=full-computation").scratchpad_format) == "i1c0o1v0r1"


@pytest.mark.parametrize("name", BOTH)
def test_every_combination_is_written_read_and_right(name):
    codes = [
        "".join(f"{letter}{bit}" for letter, bit in zip("icovr", bits, strict=True)) for bits in product("01", repeat=5)
    ]
    for code in codes:
        if code[7] == "1" and not build_task(name).keeps:
            continue
        task = build_task(f"{name}:scratchpad={code}")
        instance = instance_factory(task, "train", 4)(1)
        example = task.to_example(instance)
        read = task.scratchpad_format.read(example.target)
        steps = task.steps(instance)
        assert len(read) == len(steps)
        for here, step in zip(read, steps, strict=True):
            assert here == {one: getattr(step, one) for one in task.scratchpad_format.enabled_components}
        assert task.check(instance, example.target)
        assert task.fault(instance, example.target) is None
        assert set(example.target) <= set(task.symbols)


@pytest.mark.parametrize("name", BOTH)
def test_the_same_index_shows_the_same_instance_in_every_format(name):
    task = build_task(name)
    instances = [instance_factory(build_task(f"{name}:scratchpad={one}"), "train", 5)(7) for one in task.formats()]
    assert len(set(instances)) == 1


@pytest.mark.parametrize("name", BOTH)
def test_the_first_wrong_component_of_the_first_wrong_step_is_named(name):
    task = build_task(f"{name}:scratchpad=full")
    instance = instance_factory(task, "train", 4)(2)
    target = list(task.to_example(instance).target)
    markers = list(MARKERS.values())
    step = 1
    planted = set()
    for at, symbol in enumerate(target[:-1]):
        if symbol == "#":
            step += 1
        if symbol == "Thus,":
            break
        component = next((key for key in task.scratchpad_format.enabled_components if MARKERS[key] == symbol), None)
        inside = target[at + 1]
        if component is None or inside in {*markers, "]", "#", "Thus,", "."} or (step, component) in planted:
            continue
        wrong = [*target[: at + 1], "Thinking", *target[at + 2 :]]
        fault = task.fault(instance, wrong)
        assert (fault.step, fault.component) == (step, component)
        assert "Thinking" in fault.said
        planted.add((step, component))
    assert len(planted) > 6


def test_a_missing_step_and_a_wrong_answer_are_told_apart():
    task = build_task("addition:scratchpad=full")
    instance = ("964", "58")
    target = list(task.to_example(instance).target)
    last = len(target) - 1 - target[::-1].index("#")
    short = target[:last] + target[target.index("Thus,") :]
    assert task.fault(instance, short)[:2] == (4, "missing")
    assert task.fault(instance, [*target[:-1], "9"])[:2] == (None, "answer")
    at = target.index("out") + 1
    damaged = [*target[:at], "9", *target[at + 1 :]]
    assert task.fault(instance, damaged)[1] == "output"
    assert task.check(instance, damaged)  # only the answer is scored


def test_the_answer_is_what_follows_the_first_thus():
    task = build_task("addition:protocol=paper:scratchpad=minimal")
    instance = ("1", "2")
    said = "Thus, The answer is 3 ##."
    assert task.check(instance, said.split())
    assert task.check(instance, ["The", "answer", "is", "3", "##."])  # all of it, where there is no Thus
    assert not task.check(instance, ["Thus,", "The", "answer", "is", "3"])
    assert not task.check(instance, f"{said} {said}".split())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("addition:scratchpad=ful", "Did you mean 'full'"),
        ("sort:scratchpad=full-variables", "already without them"),
        ("lego:scratchpad=i1c1o1v1r1", "write v0"),
        ("copy:scratchpad=full", "has no option 'scratchpad'"),
    ],
)
def test_an_unknown_format_is_refused(spec, said):
    with pytest.raises(SpecError, match=said):
        build_task(spec)


def test_five_booleans_are_thirty_two_scratchpads():
    assert len({str(Scratchpad(*bits)) for bits in product((False, True), repeat=5)}) == 32
