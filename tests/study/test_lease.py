"""One owner at a time: stale leases are taken over, zombies can neither overwrite nor finish, deaths are counted."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lengthwise.folder import Folder
from lengthwise.run.lease import (
    BEATS,
    DEATHS,
    Failed,
    Held,
    Lease,
    LeaseLost,
    StaleLeaseDetector,
    done_record,
    read_lease,
)
from lengthwise.run.owner import owner_is_dead
from lengthwise.spec import SpecError

RUN = "copy-nope-s0-0123456789abcdef"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_BEAT", "0.1")
    return Folder(tmp_path)


def elsewhere(store: Folder, number: int = 1, **changes: object) -> dict:
    """The lease of an owner on another machine."""
    content = {"state": "held", "beats": 3, "host": "far", "boot": "x", "process": 1, "began": "1", "token": "theirs"}
    content |= changes
    (store / "leases" / RUN).create(str(number), json.dumps(content))
    return content


def test_a_lease_is_taken_once_and_a_done_run_never(store):
    lease = Lease.take(store, RUN)
    with pytest.raises(Held, match=f"process {os.getpid()} on this machine"):
        Lease.take(store, RUN)
    lease.finish({"seconds": 1.0}, {})
    assert done_record(store, RUN)["attempt"] == 1
    assert Lease.take(store, RUN) is None


def test_a_lease_that_was_let_go_is_free_at_once(store):
    Lease.take(store, RUN).release("stopped")
    assert Lease.take(store, RUN).number == 2


def test_a_dead_owner_on_this_machine_is_known_at_once(store):
    code = "from lengthwise.folder import Folder; from lengthwise.run.lease import Lease\n"
    code += f"Lease.take(Folder({store.path!r}), {RUN!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    content = read_lease(store / "leases" / RUN, 1)
    assert content["state"] == "held" and owner_is_dead(content)
    assert Lease.take(store, RUN).number == 2


def test_a_lease_of_this_process_that_nobody_holds_is_dead(store):
    lease = Lease.take(store, RUN)
    with lease:
        pass  # left without an end, as by an exception that nobody caught
    assert Lease.take(store, RUN).number == 2


def test_a_still_counter_is_stale_by_the_observers_clock_alone(store):
    elsewhere(store)
    watch, began = StaleLeaseDetector(), time.monotonic()
    while True:
        try:
            lease = Lease.take(store, RUN, watch)
            break
        except Held:
            time.sleep(0.02)
    assert lease.number == 2
    assert BEATS * 0.1 < time.monotonic() - began < BEATS * 0.1 + 1


def test_a_file_that_only_looks_like_a_number_is_no_attempt(store):
    for place in ("leases", "runs"):
        (store / place / RUN).write("²", "left by somebody")
    assert Lease.take(store, RUN).number == 1


@pytest.mark.slow
def test_a_counter_that_moves_is_never_stale(store):
    content = elsewhere(store)
    watch, until = StaleLeaseDetector(), time.monotonic() + 3 * BEATS * 0.1
    while time.monotonic() < until:
        content["beats"] += 1
        (store / "leases" / RUN).write("1", json.dumps(content))
        with pytest.raises(Held):
            Lease.take(store, RUN, watch)
        time.sleep(0.1)


def test_an_owner_keeps_its_lease_alive_and_says_how_far_it_is(store):
    with Lease.take(store, RUN) as lease:
        lease.set_progress(step=3, steps=9)
        time.sleep(0.5)
        content = read_lease(store / "leases" / RUN, 1)
    assert content["beats"] >= 2 and content["progress"] == {"step": 3, "steps": 9}


def test_a_lease_that_cannot_be_read_is_not_free_before_it_has_stood_still(store):
    (store / "leases" / RUN).write("1", "")
    watch = StaleLeaseDetector()
    with pytest.raises(Held):
        Lease.take(store, RUN, watch)
    time.sleep(BEATS * 0.1 + 0.1)
    assert Lease.take(store, RUN, watch).number == 2


def test_a_zombie_can_neither_finish_nor_be_counted_twice(store):
    zombie = Lease.take(store, RUN)
    zombie.release("stopped")  # to others it looks dead; it does not know
    second = Lease.take(store, RUN)
    with pytest.raises(LeaseLost, match="taken over"):
        zombie.finish({}, {})
    assert done_record(store, RUN) is None
    second.finish({"seconds": 2.0}, {})
    assert done_record(store, RUN)["attempt"] == 2
    with pytest.raises(LeaseLost):
        zombie.finish({}, {})
    assert done_record(store, RUN)["attempt"] == 2


def test_an_owner_that_slept_learns_that_it_lost_its_lease(store):
    with Lease.take(store, RUN) as lease:
        elsewhere(store, 2)
        lease._content["beats"] += 0
        assert not lease.lost
        with pytest.raises(LeaseLost):
            lease.raise_if_lost()
        assert lease.lost


@pytest.mark.slow
def test_two_deaths_without_a_checkpoint_fail_a_run_and_progress_does_not(store):
    def dies(number: int) -> None:
        elsewhere(store, number, host=None, token=f"{number}", beats=0)

    for number in range(1, DEATHS + 1):
        dies(number)
    (store / "runs" / RUN / "2" / "checkpoints" / "000000010").write("manifest.json", "{}")
    watch = StaleLeaseDetector()
    with pytest.raises(Held):
        Lease.take(store, RUN, watch)
    time.sleep(BEATS * 0.1 + 0.1)
    lease = Lease.take(store, RUN, watch)  # the second got on
    assert lease.number == 3
    lease.release("held")
    dies(4)
    with pytest.raises(Held):
        Lease.take(store, RUN, watch)
    time.sleep(BEATS * 0.1 + 0.1)
    with pytest.raises(Failed, match="died 2 times in a row"):
        Lease.take(store, RUN, watch)
    with pytest.raises(Failed):  # and stays so
        Lease.take(store, RUN, watch)
    assert Lease.take(store, RUN, watch, retry_failed=True).number == 5


def test_a_failed_run_is_not_started_again_by_itself(store):
    Lease.take(store, RUN).fail("ValueError: no\nsecond line")
    with pytest.raises(Failed, match="ValueError: no second line"):
        Lease.take(store, RUN)
    assert Lease.take(store, RUN, retry_failed=True).number == 2


def test_the_beat_must_be_a_number(store, monkeypatch):
    monkeypatch.setenv("LENGTHWISE_BEAT", "often")
    with pytest.raises(SpecError, match="LENGTHWISE_BEAT"):
        Lease.take(store, RUN)


SLEEPER = """
import os, sys, time, signal
from lengthwise.run import Plan, train
from lengthwise.training.loop import Loop
step = Loop.tensors
def slow(self):
    found = step(self)
    if os.environ.get("SLEEPS") and not os.path.exists(sys.argv[1] + "/slept"):
        open(sys.argv[1] + "/slept", "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return found
Loop.tensors = slow
train("copy:variant=same:longest=4", "nope", model="laptop:width=16:heads=2:head_width=8",
      training="laptop:steps=8:batch_size=8", store=sys.argv[1], quiet=True, threads=1, checkpoint_every=2)
"""


@pytest.mark.slow
def test_a_real_zombie_wakes_up_after_the_takeover(tmp_path):
    """A training is stopped by SIGSTOP in the middle, taken over as stale, and continued: it changes nothing."""
    environment = {**os.environ, "LENGTHWISE_BEAT": "0.2"}
    command = [sys.executable, "-c", SLEEPER, str(tmp_path)]
    zombie = subprocess.Popen(command, env={**environment, "SLEEPS": "1"}, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "slept").exists():
            assert time.monotonic() < until and zombie.poll() is None
            time.sleep(0.05)
        # As if it were on another machine: its host cannot be asked whether it lives.
        (lease,) = (tmp_path / "leases").glob("*/1")
        lease.write_text(json.dumps({**json.loads(lease.read_text()), "host": "far"}))
        subprocess.run(command, env=environment, check=True, timeout=60)
        (done,) = (tmp_path / "done").iterdir()
        before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("2/*") if path.is_file()}
        assert json.loads(done.read_text())["attempt"] == 2
        told = done.read_bytes()
        os.kill(zombie.pid, signal.SIGCONT)
        _, words = zombie.communicate(timeout=60)
        assert zombie.returncode != 0 and "taken over by somebody else" in words
        assert done.read_bytes() == told
        assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("2/*") if path.is_file()} == before
        assert not list((tmp_path / "runs").glob("*/1/done"))
    finally:
        if zombie.poll() is None:
            zombie.kill()
        zombie.wait()
