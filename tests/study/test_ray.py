"""A real local Ray: workers, the driver and the node are killed, and no run is lost or done twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

from lengthwise.folder import Folder
from lengthwise.run.lease import read_lease
from lengthwise.run.owner import owner_is_dead
from lengthwise.spec import SpecError
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess, Processes
from lengthwise.study.file import RunResources
from lengthwise.study.launch import executor_of
from lengthwise.study.plan import Planned
from lengthwise.study.ray_executor import RayExecutor, _own_signals
from lengthwise.study.store import Store
from lengthwise.study.work import Job, Outcome, job_of
from tests.study.conftest import TINY, lengthwise, tiny

ORDER = ["run", "evaluation", "checkpoint", "split", "length", "subgroup"]
ray = pytest.importorskip("ray")


def children(process: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    found, parents = [], {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    waiting = [process]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def command_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return ""


def test_ray_starts_without_changing_our_signals():
    """Its servers survive a closed terminal, and its handler of SIGTERM, which exits with 15, does not stay."""
    before = signal.getsignal(signal.SIGTERM)
    show = "print(next(line for line in open('/proc/self/status') if line.startswith('SigBlk')))"
    with _own_signals():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        server = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert signal.getsignal(signal.SIGTERM) is before
    assert int(server.stdout.split()[1], 16) & 1 << (signal.SIGHUP - 1)
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_where_ray_does_not_start_processes_do_the_work(monkeypatch):
    import ray

    def too_slow(*more, **options):
        raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", too_slow)
    with pytest.warns(UserWarning, match="did not start.*timed out.*going on with worker processes"):
        assert isinstance(executor_of("auto", RunResources(), workers=1), Processes)
    with pytest.raises(SpecError, match="--no-ray"):
        executor_of("ray", RunResources())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gpus_are_shared_as_asked_and_an_absent_one_is_not_replaced_by_the_cpu(monkeypatch, tmp_path):
    """Two GPUs are declared that do not exist."""
    real = ray.init
    monkeypatch.setattr(ray, "init", lambda *more, **named: real(*more, **{**named, "num_gpus": 2}))

    def where(job):
        time.sleep(5)
        return Outcome(job.key, "done", os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    study = tiny(seeds=4, resources={"gpus": 0.25, "cpus": 0.1})
    jobs = [job_of(item, study, Folder(tmp_path)) for item in Planned(study).items({})[0]]
    assert len(jobs) == 8

    def outcomes(executor: RayExecutor, jobs: list[Job]) -> list[Outcome]:
        found: list[Outcome] = []
        for job in jobs:
            executor.submit(job)
        while len(found) < len(jobs):
            found += executor.wait(5)
        executor.close()
        return found

    placed = outcomes(RayExecutor(study.resources, workers=8, do=where), jobs)
    assert sorted(one.why for one in placed) == ["0"] * 4 + ["1"] * 4
    (refused,) = outcomes(RayExecutor(study.resources, workers=1), jobs[:1])
    assert refused.state == "failed" and "was given a GPU, but torch finds none" in refused.why


@pytest.mark.evidence
@pytest.mark.timeout(600)
def test_a_study_goes_on_when_a_machine_with_gpus_leaves(monkeypatch, tmp_path, figure):
    """Two machines with a GPU each that does not exist; runs are placed by GPU and computed on the CPU."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("LENGTHWISE_BEAT", "1")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    planned, store = Planned(tiny(seeds=4, resources={"gpus": 0.5, "cpus": 0.1})), Store(tmp_path / "parts")
    (tmp_path / "parts").mkdir()
    size = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **size})
    machines = [cluster.add_node(num_cpus=1, num_gpus=1, **size) for _ in range(2)]

    def slowly(job: Job) -> Outcome:
        from lengthwise.study.work import do_job

        Path(job.store, f"seen-{job.key}-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
        time.sleep(3)
        return do_job(job)

    def leave(words: str) -> None:
        if len(machines) == 2 and not words.startswith("0 of"):
            cluster.remove_node(machines.pop(), allow_graceful=False)

    try:
        executor = RayExecutor(planned.study.resources, address=cluster.address, do=slowly)
        assert executor.slots == 4
        tally = Driver(planned, store, executor, device="cpu", tell=leave).run()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(machines) == 1 and len(tally.done) == 8 and not tally.failed, tally
    figure(f"a machine with GPUs left: {tally.again} jobs started again, 8 of 8 runs done")
    assert tally.again > 0 and len(list(Path(tmp_path / "parts").glob("seen-*-0"))) == 8
    apart = Store(tmp_path / "whole")
    Driver(planned, apart, InProcess(), device="cpu").run()
    keys = [item.key for item in planned.items({})[0]]
    assert store.rows(keys).sort(ORDER).equals(apart.rows(keys).sort(ORDER))


class Command:
    """`lengthwise study run` as a process that can be killed, with everything it has started."""

    def __init__(self, path: Path, store: Path, *more: str) -> None:
        command = [
            sys.executable,
            "-m",
            "lengthwise",
            "study",
            "run",
            str(path),
            "--store",
            str(store),
            *more,
            "--quiet",
        ]
        self.process = subprocess.Popen(
            [*command, "--to", str(store)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LENGTHWISE_BEAT": "1"},
        )
        self.seen: set[int] = set()

    def look(self) -> None:
        self.seen |= set(children(self.process.pid))

    def raylet(self) -> int | None:
        self.look()
        return next((one for one in children(self.process.pid) if "/raylet/raylet" in command_of(one)[:400]), None)

    def kill(self) -> None:
        """Kill the driver alone, and see that what it started goes by itself, or is made to."""
        self.look()
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.wait(timeout=120)
        until = time.monotonic() + 20
        while (left := [one for one in self.seen if command_of(one)]) and time.monotonic() < until:
            time.sleep(0.2)
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


def holders(store: Path, spared: dict[str, int]) -> list[tuple[str, int]]:
    """Who is at work: run and process. A run that died once before a checkpoint is spared until it has one."""
    found, done = [], set(os.listdir(store / "done")) if (store / "done").exists() else set()
    for home in (store / "leases").glob("*"):
        if home.name in done:
            continue
        numbers = sorted(int(path.name) for path in home.iterdir() if path.name.isdigit())
        if not numbers:
            continue
        content = read_lease(Folder(home), numbers[-1])
        if content.get("state") != "held" or owner_is_dead(content):
            continue
        advanced = any((store / "runs" / home.name).glob(f"{numbers[-1]}/checkpoints/*/manifest.json"))
        if advanced or home.name not in spared:
            found.append((home.name, content["process"]))
    return found


def chaos(tmp_path: Path, record, runs: int, workers: int, kills: int, drivers: int) -> None:
    study = tiny(seeds=runs // 2)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps({**TINY, "seeds": runs // 2}))
    planned, quiet = Planned(study), Store(tmp_path / "quiet")
    Driver(planned, quiet, InProcess()).run()
    store, dice = tmp_path / "store", random.Random(0)
    keys = [item.key for item in planned.items({})[0]]
    killed = {"workers": 0, "drivers": 0, "nodes": 0}
    # When, in runs that are done: workers all along, the driver twice, the node once.
    events = [(int(runs * (n + 1) / (kills + 1) * 0.9), "workers") for n in range(kills)]
    events += [(int(runs * (n + 1) / (drivers + 2)), "drivers") for n in range(drivers)]
    events += [(int(runs * (drivers + 1) / (drivers + 2)), "nodes")]
    events.sort()
    spared: dict[str, int] = {}
    command, started, until = Command(path, store, "--workers", str(workers)), 1, time.monotonic() + 1500
    try:
        while True:
            assert time.monotonic() < until, "it takes too long"
            done = len(os.listdir(store / "done")) if (store / "done").exists() else 0
            if command.process.poll() is not None:
                if command.process.returncode == 0:
                    break
                command.end()
                command, started = Command(path, store, "--workers", str(workers)), started + 1
            if events and done >= events[0][0]:
                _, what = events[0]
                if what == "workers" and (there := holders(store, spared)):
                    run, process = dice.choice(there)
                    command.look()
                    if process != command.process.pid and command_of(process):
                        os.kill(process, signal.SIGKILL)
                        spared[run] = process
                        killed["workers"] += 1
                        events.pop(0)
                elif what == "drivers" and command.raylet() is not None:
                    spared |= dict(holders(store, {}))
                    command.kill()
                    killed["drivers"] += 1
                    events.pop(0)
                elif what == "nodes" and (raylet := command.raylet()) is not None:
                    spared |= dict(holders(store, {}))
                    os.kill(raylet, signal.SIGKILL)
                    killed["nodes"] += 1
                    events.pop(0)
                    with suppress(subprocess.TimeoutExpired):
                        command.process.wait(timeout=60)  # a driver does not outlive its node
                    if command.process.poll() is None:
                        command.kill()
                    else:
                        command.end()
            time.sleep(0.02)
    finally:
        command.look()
        if command.process.poll() is None:
            command.process.kill()
        command.end()
    assert killed == {"workers": kills, "drivers": drivers, "nodes": 1}
    there = Store(store).done()
    attempts = {key: len(list((store / "leases" / key).iterdir())) for key in keys}
    lost, retried = len(set(keys) - there), sum(number > 1 for number in attempts.values())
    ends = {key: len(list((store / "runs" / key).glob("*/done"))) for key in keys}
    duplicated = sum(number > 1 for number in ends.values())
    ours, theirs = Store(store).rows(keys).sort(ORDER), quiet.rows(keys).sort(ORDER)
    record(
        f"chaos on Ray: {runs} runs, {workers} workers; "
        f"killed {killed['workers']} workers, {killed['drivers']} drivers, "
        f"{killed['nodes']} node; command started {started} times; retried {retried}, lost {lost}, "
        f"duplicated {duplicated}; rows bit-equal: {ours.equals(theirs)}"
    )
    assert there == set(keys) and lost == 0 and duplicated == 0
    assert not (store / "failed").exists() or not os.listdir(store / "failed")
    assert ours.equals(theirs)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_small(tmp_path, figure):
    chaos(tmp_path, figure, runs=10, workers=2, kills=2, drivers=1)


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_chaos_200_runs(tmp_path, figure):
    chaos(tmp_path, figure, runs=200, workers=3, kills=20, drivers=2)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_stopped_driver_saves_what_is_running(tmp_path, sent):
    base = {**TINY["base"], "training": "laptop:steps=20000:batch_size=4"}
    path, store = tmp_path / "tiny.yaml", tmp_path / "store"
    path.write_text(json.dumps({**TINY, "base": base, "seeds": 1}))
    command = Command(path, store, "--workers", "2")
    try:
        until = time.monotonic() + 90
        while len({path.parents[3] for path in store.glob("runs/*/1/checkpoints/*/manifest.json")}) < 2:  # of two runs
            assert time.monotonic() < until and command.process.poll() is None
            time.sleep(0.1)
        command.look()
        command.process.send_signal(sent)
        _, words = command.process.communicate(timeout=90)
        assert command.process.returncode == 75, words
        assert "the same command goes on" in words and "Traceback" not in words
        states = {json.loads(path.read_text())["state"] for path in store.glob("leases/*/1")}
        assert states == {"stopped"}
    finally:
        command.process.kill()
        command.end()


@pytest.mark.evidence  # test_chaos_small compares the same rows
def test_a_study_on_ray_has_the_rows_of_one_without(tmp_path, written):
    path = written(resources={"cpus": 0.5, "threads": 1})
    planned, apart = Planned(tiny()), Store(tmp_path / "inline")
    Driver(planned, apart, InProcess()).run()
    ended = lengthwise("study", "run", path, "--workers", 2, "--store", tmp_path / "s", "--to", tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    keys = [item.key for item in planned.items({})[0]]
    assert Store(tmp_path / "s").rows(keys).sort(ORDER).equals(apart.rows(keys).sort(ORDER))
    assert isinstance(pl.read_parquet(next((tmp_path / "s").glob("runs/*/1/rows.parquet"))), pl.DataFrame)


@pytest.mark.slow
def test_what_no_node_can_give_is_refused_before_anything_waits_for_ever(tmp_path, written):
    path = written(resources={"custom": {"a100": 0.25}})
    ended = lengthwise("study", "run", path, "--workers", 1, "--store", tmp_path / "s", "--to", tmp_path)
    assert ended.returncode == 2 and "a100 0.25 (there is 0)" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_cluster_that_is_not_local_is_used_with_a_token(tmp_path, written):
    path = written()
    command = ["study", "run", path, "--address", "10.255.255.1:6379", "--store", tmp_path / "s"]
    ended = lengthwise(*command, HOME=str(tmp_path), RAY_AUTH_MODE="token")
    assert ended.returncode == 2 and "ray get-auth-token --generate" in ended.stderr


def test_fractions_and_memory_are_asked_of_ray():
    assert RunResources(memory="1.5 GiB").bytes == 3 * 2**29 and RunResources(memory="200MB").bytes == 200_000_000
