"""Whether the owner of a lease lives, where there is no /proc: by a lock that the system gives back."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lengthwise.folder import Folder
from lengthwise.run import owner
from lengthwise.run.lease import Held, Lease, read_lease

RUN = "copy-nope-s0-0123456789abcdef"
HIDDEN = str(Path(__file__).parent.parent / "no_proc")
HOLDER = """
import sys, time
from lengthwise.folder import Folder
from lengthwise.run.lease import Lease
with Lease.take(Folder(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def without_proc(monkeypatch, tmp_path):
    """No /proc, and a temporary folder of its own, here and in child processes."""
    monkeypatch.setattr(owner, "boot_id", lambda: None)
    monkeypatch.setattr(owner, "process_start_time", lambda process: None)
    monkeypatch.setattr(os, "readlink", lambda path: (_ for _ in ()).throw(OSError(path)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return {**os.environ, "PYTHONPATH": HIDDEN, "TMPDIR": str(tmp_path)}


@pytest.fixture
def other(without_proc, tmp_path):
    """Another process that holds the lease, and the store."""
    store = tmp_path / "store"
    command = [sys.executable, "-c", HOLDER, str(store), RUN]
    process = subprocess.Popen(command, env=without_proc, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == "held"
    yield process, Folder(store)
    process.kill()
    process.wait()


def test_a_living_owner_is_respected_and_a_killed_one_replaced_at_once(other):
    process, store = other
    content = read_lease(store / "leases" / RUN, 1)
    assert content["boot"] is None and content["locked"] is True
    with pytest.raises(Held) as held:
        Lease.take(store, RUN)
    assert held.value.here
    process.send_signal(signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    lease = Lease.take(store, RUN)
    assert lease is not None and lease.number == 2 and time.monotonic() - began < 5
    lease.release("stopped")


def test_a_suspended_owner_is_not_called_dead(other):
    process, store = other
    process.send_signal(signal.SIGSTOP)
    assert not owner.owner_is_dead(read_lease(store / "leases" / RUN, 1))
    process.send_signal(signal.SIGCONT)


def test_our_own_lease_is_held_until_it_is_released(without_proc, tmp_path):
    lease = Lease.take(Folder(tmp_path / "store"), RUN)
    content = read_lease(lease.store / "leases" / RUN, 1)
    assert not owner.owner_is_dead(content)
    assert not owner.owner_is_dead(content)  # looking does not give the lock away
    lease.release("stopped")
    assert not list(tmp_path.glob("lengthwise-leases-*/*"))


def test_an_owner_whose_lock_is_not_here_is_not_called_dead(without_proc, tmp_path):
    store = Folder(tmp_path / "store")
    content = {"state": "held", "beats": 3, "token": "theirs", "locked": True, **owner.whoami()}
    (store / "leases" / RUN).create("1", json.dumps(content))
    assert not owner.owner_is_dead(read_lease(store / "leases" / RUN, 1))


def test_a_token_is_no_path(without_proc):
    assert owner._is_held("../../etc/passwd") is None and not owner.hold("../x")


def test_a_folder_of_somebody_else_is_not_used(without_proc, tmp_path, monkeypatch):
    (tmp_path / f"lengthwise-leases-{os.getuid() + 1}").mkdir()
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert not owner.hold("abc")


@pytest.mark.slow
def test_leases_and_runs_work_with_proc_hidden():
    """The tests of leases, attempts and studies, with every read of /proc by lengthwise failing."""
    files = ["tests/study/test_lease.py", "tests/study/test_drive.py", "tests/run/test_attempt.py"]
    environment = {**os.environ, "PYTHONPATH": HIDDEN}
    probe = (
        "from lengthwise.run.owner import whoami; me = whoami(); assert me['boot'] is me['pids'] is me['began'] is None"
    )
    subprocess.run([sys.executable, "-c", probe], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
