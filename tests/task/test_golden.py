"""The examples of every task and protocol are pinned: a change of one needs a new version of its task."""

import json

import pytest

from lengthwise.task.random_source import RandomSource
from tests.golden.pin import FILE, NAMES, changed_without_a_version, pinned

PINNED = list(json.loads(FILE.read_text()))


def test_no_pin_is_lost():
    """A new task may wait for its pins; `python -m tests.golden.pin` makes them."""
    assert [name for name in NAMES if name in PINNED] == PINNED and len(PINNED) >= 47


@pytest.mark.parametrize("name", PINNED)
def test_the_examples_are_the_pinned_ones(name):
    told = "its examples changed: raise `version`, run python -m tests.golden.pin, and write a line in CHANGELOG.md"
    assert pinned(name) == json.loads(FILE.read_text())[name], told


def test_a_change_without_a_version_is_refused(monkeypatch):
    name = "parity:protocol=ours"
    before = {name: pinned(name)}
    honest = RandomSource.integers
    monkeypatch.setattr(RandomSource, "integers", lambda self, low, high, size: honest(self, low, high, size)[::-1])
    after = {name: pinned(name)}
    assert changed_without_a_version(before, after) == [name]
    after[name]["version"] += 1
    assert not changed_without_a_version(before, after)


def test_the_version_of_the_sets_excuses_a_change_of_evaluation_only():
    name = "parity:protocol=ours"
    before = {name: pinned(name)}
    for part, excused in (("evaluation", True), ("train", False), ("ids", False)):
        after = {name: {**before[name], part: "another"}}
        assert changed_without_a_version(before, after) == [name]
        after[name]["sets"] += 1
        assert changed_without_a_version(before, after) == ([] if excused else [name])
