"""A store on S3: the same study, killed, contested and badly served, ends with the same bits as on this disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

from lengthwise.folder import Folder
from lengthwise.run.lease import Lease
from lengthwise.spec import SpecError
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver, require_exclusive_create
from lengthwise.study.executors import InProcess
from lengthwise.study.plan import Planned
from lengthwise.study.store import Store
from tests.study.test_hosts import until
from tests.study.test_races import holds, race

for module in ("s3fs", "moto", "werkzeug"):
    pytest.importorskip(module)

from tests.study.server import BUCKET, served  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STUDY = """
name: {name}
question: Does the store hold?
base:
  task: copy:variant=same:longest=2
  model: laptop:width=32:heads=2:feed_forward_width=64
  training: laptop:steps=3:batch_size=8:validations=1
vary:
  encoding: [{encodings}]
seeds: {seeds}
"""
FIVE = 'nope, t5, alibi, "rope:fraction=0.25", sinusoidal'
LEFT = ("model.safetensors", "rows.parquet", "predictions.parquet")


@pytest.fixture(scope="module")
def door():
    with served() as door:
        yield door


@pytest.fixture
def bucket(door, request):
    """A place of the test's own."""
    return f"s3://{BUCKET}/{request.node.name}"


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The quickstart's grid with three steps each: its file, and what it leaves on this disk."""
    from lengthwise.study.file import StudyFile

    home = tmp_path_factory.mktemp("grid")
    file = home / "grid.yaml"
    file.write_text(STUDY.format(name="grid", encodings=FIVE, seeds=3))
    store = Store(home / "store")
    assert len(Driver(Planned(StudyFile.read(str(file))), store, InProcess()).run().done) == 15
    return file, store


def command(verb, *arguments):
    return [sys.executable, "-m", "lengthwise", "study", verb, *map(str, arguments)]


def start(verb, file, store, to):
    """A driver in a process of its own."""
    made = command(verb, file, "--inline", "--store", store, "--to", to, "--quiet")
    return subprocess.Popen(
        made, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "LENGTHWISE_BEAT": "0.5"}
    )


def ended(process, seconds=120):
    """Its exit code and what it said."""
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    finally:
        process.kill()


def left(store, key):
    """What a run that counts as done has left."""
    told = json.loads((store.folder / "done").read(key))
    attempt = store.folder / "runs" / key / str(told["attempt"])
    assert {"validations", "checkpoints"} <= set(attempt.json("done"))
    assert attempt.json("run.json")["id"] == key
    return {name: attempt.read(name) for name in LEFT}


def attempts(store):
    """How many attempts each run took."""
    return [len((store.folder / "leases" / key).names()) for key in (store.folder / "leases").names()]


# --- one primitive ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [60, pytest.param(300, marks=pytest.mark.evidence)])
def test_one_of_four_processes_creates_each_name_on_s3(bucket, names, figure):
    holds(bucket, names, figure)


def test_the_race_on_s3_would_tell_a_create_without_its_flag(bucket):
    winners, own, _, _ = race(bucket, 10, unguarded=True)
    assert max(winners.values()) > 1 and not own


@pytest.mark.parametrize("fault", ["refused", "lost", "late", "stray", "conflict"])
def test_a_create_that_is_badly_served_once_is_still_ours(door, bucket, fault):
    folder = Folder(bucket)
    with door.faulty(seconds=0.5, times=1, **{fault: 1.0}) as counts:
        assert folder.create("name", "ours")
    assert counts[fault] == 1 and folder.read("name") == b"ours"
    assert not folder.create("name", "theirs") and folder.read("name") == b"ours"


@pytest.mark.parametrize("fault", ["refused", "lost", "late", "stray", "conflict"])
def test_what_is_somebody_elses_is_not_taken_for_ours(door, bucket, fault):
    folder = Folder(bucket)
    assert folder.create("name", "theirs")
    with door.faulty(seconds=0.5, times=1, **{fault: 1.0}) as counts:
        assert not folder.create("name", "ours")
    assert counts[fault] == 1 and folder.read("name") == b"theirs"


def test_a_create_that_nobody_ever_answered_is_ours_if_it_is_there(door, bucket, monkeypatch):
    folder = Folder(bucket)
    monkeypatch.setattr(folder.fs, "retries", 1)
    with door.faulty(lost=1.0):
        assert folder.create("name", "ours")
    with door.faulty(refused=1.0), pytest.raises(SpecError, match=r"cannot write s3://.*internal error"):
        folder.create("other", "ours")
    assert folder.names() == ["name"]


def test_a_server_that_is_away_and_a_bucket_that_is_not_there_are_told_in_one_line(door, bucket, monkeypatch):
    folder = Folder(bucket)
    monkeypatch.setattr(folder.fs, "retries", 1)
    with door.faulty(methods=("GET", "HEAD"), lost=1.0), pytest.raises(SpecError, match=r"cannot read s3://[^\n]*$"):
        folder.read("name")
    with pytest.raises(SpecError, match=r"cannot write s3://lengthwise-none/x: there is no such bucket"):
        Folder("s3://lengthwise-none").write("x", "y")
    assert not folder.fs.exists("lengthwise-none")  # a name with a slip makes no bucket
    assert str((folder / "a").parent) == bucket


def test_a_run_whose_record_cannot_be_written_has_failed_and_is_held_by_nobody(door, bucket, grid, monkeypatch):
    from lengthwise.run.owner import OURS
    from lengthwise.study.work import do_job, job_of

    item = Planned(_read(grid[0])).items({})[0][0]
    real = Folder.create

    def away(self, name, data):
        if name == "run.json":
            raise SpecError("away")
        return real(self, name, data)

    monkeypatch.setattr(Folder, "create", away)
    store = Store(bucket)
    held = set(OURS)  # a test before this one may hold a lease on purpose
    outcome = do_job(job_of(item, _read(grid[0]), store.folder))
    assert (outcome.state, outcome.why) == ("failed", "away") and held >= OURS
    state = store.state()
    assert state.failed == {item.key: 1} and not state.leases
    assert store.reasons(state.failed) == {item.key: "away"}


def _read(file):
    from lengthwise.study.file import StudyFile

    return StudyFile.read(str(file))


# --- a study ---------------------------------------------------------------------------------------------------------


def test_a_study_on_s3_is_killed_goes_on_and_ends_with_the_bits_of_the_local_one(door, bucket, grid, tmp_path, figure):
    from typer.testing import CliRunner

    from lengthwise.cli import main  # noqa: F401
    from lengthwise.cli.terminal import app

    file, local = grid
    store = Store(bucket)
    began = time.monotonic()
    process = start("run", file, bucket, tmp_path)
    try:
        while len(store.done()) < 5 or (store.folder / "leases").names() == sorted(store.done()):
            assert process.poll() is None and time.monotonic() - began < 100
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=10)
    then = len(store.done())
    assert 5 <= then < 15
    assert ended(start("run", file, bucket, tmp_path))[0] == 0
    assert store.done() == local.done() and len(store.done()) == 15
    for key in local.done():
        assert left(store, key) == left(local, key), key

    def cli(*arguments):
        said = CliRunner().invoke(app, ["study", *map(str, arguments)], catch_exceptions=False)
        assert said.exit_code == 0, said.output
        return said.stdout

    stands = json.loads(cli("status", file, "--store", bucket, "--json"))
    assert (stands["done"], stands["missing"], stands["failed"], stands["running"]) == (15, 0, {}, [])
    cli("rows", file, "--store", bucket, "--to", tmp_path / "rows.parquet")
    wanted = local.rows(sorted(local.done()))
    keys = ["run", "checkpoint", "split", "length"]
    assert pl.read_parquet(tmp_path / "rows.parquet").sort(keys).equals(wanted.sort(keys))
    cli("export", bucket, "--to", tmp_path / "bundle")
    assert Bundle(tmp_path / "bundle").rows.sort(keys).equals(wanted.sort(keys))
    assert set(Bundle(tmp_path / "bundle").summaries) == local.done()
    figure(f"quickstart's grid on S3, killed −9 with {then} of 15 done, {sum(attempts(store))} attempts: bit-equal")


def test_whatever_a_server_does_to_what_is_written_no_half_a_run_counts_as_done(door, bucket, grid, tmp_path, figure):
    _, local = grid
    file = tmp_path / "few.yaml"
    file.write_text(STUDY.format(name="few", encodings="nope, t5", seeds=3))
    keys = {item.key for item in Planned(_read(file)).items({})[0]}
    assert len(keys) == 6 and keys <= local.done()
    store = Store(bucket)
    with door.faulty(refused=0.15, lost=0.07, late=0.02, stray=0.04, conflict=0.3) as faults:
        drivers = [start("run", file, bucket, tmp_path) for _ in range(2)]
        codes = [ended(driver) for driver in drivers]
    assert all(code in {0, 1} and "Traceback" not in said for code, said in codes), codes
    then, failed = store.done(), len((store.folder / "failed").names())
    for key in then:
        assert left(store, key) == left(local, key), key
    code, said = ended(start("retry", file, bucket, tmp_path))
    assert code == 0, said
    assert store.done() == keys
    for key in keys:
        assert left(store, key) == left(local, key), key
    kinds = ("refused", "lost", "late", "stray", "conflict")
    assert all(faults[kind] for kind in kinds), faults
    told = ", ".join(f"{faults[kind]} {kind}" for kind in kinds)
    told = f"two drivers, {faults['PUT']} PUTs ({told}): {len(then)} of 6 done, {failed} failures"
    figure(f"{told}; all done after retry, bit-equal")


def forwarding(port, behind):
    """A process between the driver and the server."""
    made = [sys.executable, "-m", "tests.study.server", "forward", str(port), str(behind)]
    process = subprocess.Popen(made, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None and process.stdout.readline() == "serving\n"
    return process


@pytest.mark.parametrize("outage", [pytest.param("stopped for 20 s", marks=pytest.mark.evidence), "killed for 20 s"])
def test_a_server_that_is_away_in_mid_study_costs_time_and_no_run(door, bucket, grid, tmp_path, outage, figure):
    file, local = grid
    bucket = f"s3://{BUCKET}/away-{outage[:6]}"
    store = Store(bucket)
    behind = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = forwarding(port, behind)
    with mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}):
        driver = start("run", file, bucket, tmp_path)
    try:
        until(lambda: len(store.done()) >= 4, 120, "four runs are done")
        then = len(store.done())
        line.send_signal(signal.SIGSTOP if outage.startswith("stopped") else signal.SIGKILL)
        time.sleep(20)
        if outage.startswith("stopped"):
            line.send_signal(signal.SIGCONT)
        else:
            line.wait(10)
            line = forwarding(port, behind)
        code, said = ended(driver, 200)
    finally:
        driver.kill()
        line.kill()
        line.wait()
    assert code == 0 and "Traceback" not in said, said
    assert store.done() == local.done() and not (store.folder / "failed").names(), said
    for key in local.done():
        assert left(store, key) == left(local, key), key
    figure(f"the S3 server {outage} with {then} of 15 done: exit code 0, {sum(attempts(store))} attempts, bit-equal")


# --- what a store must be able to do ---------------------------------------------------------------------------------


def test_both_stores_pass_the_probe(bucket, tmp_path):
    for store in (Store(bucket), Store(tmp_path)):
        assert store.supports_exclusive_create()
        require_exclusive_create(store, only_driver=False)
        assert (store.folder / "probes").names() == []


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_a_store_that_lets_both_through_is_refused_for_more_than_one_driver(bucket, tmp_path, monkeypatch, kind):
    store = Store(bucket if kind == "s3" else tmp_path)
    real = type(store.folder.fs).open
    monkeypatch.setattr(os, "link", os.replace)
    monkeypatch.setattr(
        type(store.folder.fs), "open", lambda self, path, mode, **more: real(self, path, mode.replace("x", "w"), **more)
    )
    assert not store.supports_exclusive_create()
    with pytest.raises(SpecError, match="lets two writers create the same file"):
        require_exclusive_create(store, only_driver=False)
    require_exclusive_create(store, only_driver=True)


def test_what_a_lease_and_its_end_cost(door, bucket, tmp_path, figure):
    for kind, where, many in (("local disk", tmp_path, 100), ("moto", bucket, 20)):
        store, before = Folder(where), sum(door.counts.values())
        began = time.monotonic()
        for number in range(many):
            with Lease.take(store, f"run-{number}") as lease:
                lease.finish({}, {})
        each = (time.monotonic() - began) / many
        requests = (sum(door.counts.values()) - before) / many
        told = f", {requests:.0f} requests" if requests else ""
        figure(f"a lease taken and a run that does nothing finished on {kind}: {each * 1000:.1f} ms{told}")
        assert len((store / "done").names()) == many
