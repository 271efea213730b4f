"""Of several who create one name, one wins: four processes, three hundred names, each asked for at the same moment."""

import json
import multiprocessing
import time
from collections import Counter

import pytest

from lengthwise.folder import Folder

RACERS = 4


def _racer(number, where, names, barrier, told, unguarded):
    folder = Folder(where)
    if unguarded:
        _let_both_through()
    folder.exists("nothing")  # the connection is there before the race begins
    won = []
    for name in range(names):
        barrier.wait(200)  # a busy machine imports slowly
        if folder.create(f"{name:03d}", json.dumps({"racer": number, "name": name})):
            won.append(name)
    told.put((number, won))


def _let_both_through():
    """What a filesystem without create-if-absent does: the later writer wins, and both are told so."""
    import os

    import fsspec
    from fsspec.spec import AbstractFileSystem

    real = AbstractFileSystem.open
    os.link = os.replace
    for kind in (AbstractFileSystem, fsspec.get_filesystem_class("s3")):
        kind.open = lambda self, path, mode="rb", **options: real(self, path, mode.replace("x", "w"), **options)


def race(where, names, unguarded=False):
    """How many won each name, whether what is there is the winner's, and the seconds that it took."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(RACERS), context.Queue()
    began = time.monotonic()
    racers = [
        context.Process(target=_racer, args=(number, str(where), names, barrier, told, unguarded), daemon=True)
        for number in range(RACERS)
    ]
    for racer in racers:
        racer.start()
    try:
        won = dict(told.get(timeout=200) for _ in racers)
    finally:
        for racer in racers:
            racer.join(10)
            racer.kill()
    winners = Counter(name for names_won in won.values() for name in names_won)
    folder = Folder(where)
    there = {name: json.loads(folder.read(f"{name:03d}")) for name in range(names)}
    own = all(there[name] == {"racer": number, "name": name} for number, names_won in won.items() for name in names_won)
    assert len(folder.names()) == names
    return winners, own, {number: len(names_won) for number, names_won in won.items()}, time.monotonic() - began


def holds(where, names, figure):
    """The race, with its assertions."""
    winners, own, shares, seconds = race(where, names)
    assert len(winners) == names and set(winners.values()) == {1}
    assert own
    # It was a race: nobody was always first.
    assert sum(share > 0 for share in shares.values()) > 1
    kind = str(where).partition("://")[0] if "://" in str(where) else "local disk"
    figure(f"{names} names, {RACERS} processes on {kind}: one winner each, {sorted(shares.values())}, {seconds:.1f} s")


@pytest.mark.slow
def test_one_of_four_processes_creates_each_name(tmp_path, figure):
    holds(tmp_path, 300, figure)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
def test_the_race_would_tell_a_filesystem_that_lets_both_through(tmp_path):
    winners, own, _, _ = race(tmp_path, 30, unguarded=True)
    assert max(winners.values()) > 1 and not own


def test_a_name_cannot_be_created_with_nothing(tmp_path):
    with pytest.raises(ValueError, match="is not empty"):
        Folder(tmp_path).create("name", "")
