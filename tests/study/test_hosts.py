"""Two hosts, as far as one machine has two: Ray nodes in network namespaces with their own addresses, a link to cut.

The namespaces share host name, boot id, process ids and disk. So the lease's rule of the dead process works across them
(two real machines wait six beats instead), and on a disk both still see the store when the link is cut. With the store
on S3, served in the head's namespace, the host that is cut off has lost its store too: it is a real zombie.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lengthwise.run.lease import read_lease
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from lengthwise.study.store import Store

pytestmark = [pytest.mark.evidence, pytest.mark.timeout(900)]

HEAD, WORKER, OUTSIDE, INSIDE = "10.213.7.1", "10.213.7.2", "10.213.8.1", "10.213.8.2"
PORT, S3 = 6391, 5391
RAY = Path(sys.executable).parent / "ray"
STUDY = """
name: hosts
question: Does a study end when a host is lost?
base:
  task: copy:variant=same:longest=4
  model: laptop:width=32:heads=2:feed_forward_width=64
  training: laptop:steps=400:batch_size=32:validations=2
vary:
  encoding: [nope, t5, alibi, rope]
seeds: 3
checkpoint_every: 100
"""


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True, timeout=20).stdout


@pytest.fixture
def hosts():
    """Two namespaces with a link between them; whatever still runs in them ends with them, by its number."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2's ip")
    names = [f"lw{os.getpid()}{end}" for end in "ab"]
    links = [f"{name}v" for name in names]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
        for name, link, address in zip(names, links, (HEAD, WORKER), strict=True):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "route", "add", "default", "dev", link)  # Ray asks which address leads out
        yield names, links
    finally:
        for name in names:
            until = time.monotonic() + 20
            while (left := inside(name)) and time.monotonic() < until:
                for process in left:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                time.sleep(0.2)
            ip("netns", "delete", name, check=False)


def inside(name):
    """The processes of a namespace."""
    return {int(line) for line in ip("netns", "pids", name, check=False).split()}


def begin(name, command, environment, log):
    with open(log, "wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", name, *map(str, command)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def until(holds, seconds, what):
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"{what}: not in {seconds} s"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The study, done in this process."""
    home = tmp_path_factory.mktemp("alone")
    file = home / "hosts.yaml"
    file.write_text(STUDY)
    store = Store(home / "store")
    assert len(Driver(Planned(StudyFile.read(str(file))), store, InProcess()).run().done) == 12
    return file, store


class Seen:
    """Which host has held which attempt, looked at while it goes on."""

    def __init__(self, store, names):
        self.store, self.names, self.owner, self.steps = store, names, {}, {}

    def look(self):
        there = {process: name for name in self.names for process in inside(name)}
        for key in (self.store.folder / "leases").names():
            home = self.store.folder / "leases" / key
            for number in (int(name) for name in home.names()):
                content = read_lease(home, number)
                if content.get("process") in there:
                    self.owner[key, number] = there[content["process"]]
                self.steps[key, number] = content.get("progress", {}).get("step", 0)

    def at_work(self, name, step):
        """Whether this host is in the middle of a run."""
        self.look()
        done = self.store.done()
        return any(
            self.owner[key, number] == name and key not in done and self.steps[key, number] >= step
            for key, number in self.owner
        )

    def counts(self):
        return [sum(owner == name for owner in self.owner.values()) for name in self.names]


@pytest.mark.parametrize("kind", ["disk", "s3"])
@pytest.mark.parametrize("back", [False, True], ids=["stays away", "comes back after 20 s"])
def test_a_study_ends_although_the_link_to_a_host_is_cut(hosts, alone, tmp_path, monkeypatch, figure, back, kind):
    (file, local), (names, links) = alone, hosts
    short = Path(tempfile.mkdtemp(prefix="lw", dir="/tmp"))  # Ray's sockets have short names
    environment = {
        **os.environ,
        "HOME": str(short),
        "LENGTHWISE_BEAT": "0.5",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(24).hex(),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A node is dead for Ray after some seconds, not after a minute.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "5",
    }
    where, node = str(tmp_path / "store"), ["--num-cpus=1", "--object-store-memory=100000000", "--block"]
    try:
        if kind == "s3":
            where = _serve(names[0], environment, monkeypatch, tmp_path)
        store = Store(where)
        head = [RAY, "start", "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", f"--temp-dir={short}/h"]
        begin(names[0], [*head, "--include-dashboard=false", *node], environment, tmp_path / "head.log")
        until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), 60, "the head")
        worker = [RAY, "start", f"--address={HEAD}:{PORT}", f"--node-ip-address={WORKER}", f"--temp-dir={short}/w"]
        begin(names[1], [*worker, *node], environment, tmp_path / "worker.log")
        until(lambda: "Ray runtime started" in (tmp_path / "worker.log").read_text(), 60, "the worker")
        made = [sys.executable, "-m", "lengthwise", "study", "run", file, "--address", f"{HEAD}:{PORT}", "--json"]
        made += ["--store", where, "--to", tmp_path, "--quiet"]
        driver = begin(names[0], made, environment, tmp_path / "driver.log")
        seen = Seen(store, names)
        until(lambda: seen.at_work(names[0], 1) and seen.at_work(names[1], 50), 120, "both hosts at work")
        then = len(store.done())
        assert then < 12
        ip("-n", names[1], "link", "set", links[1], "down")
        cut = time.monotonic()
        while driver.poll() is None:
            assert time.monotonic() - cut < 180, (tmp_path / "driver.log").read_text()[-3000:]
            if back and time.monotonic() - cut > 20:
                ip("-n", names[1], "link", "set", links[1], "up")
                ip("-n", names[1], "route", "replace", "default", "dev", links[1])
                back = None
            seen.look()
            time.sleep(0.2)
        said = (tmp_path / "driver.log").read_text()
        assert driver.returncode == 0, said[-3000:]
        seconds = time.monotonic() - cut
        told = [json.loads((store.folder / "done").read(key)) for key in sorted(store.done())]
        assert store.done() == local.done() and len(told) == 12
        for key in sorted(local.done()):
            assert _left(store, key) == _left(local, key), key
        counts, taken = seen.counts(), sum(one["attempt"] > 1 for one in told)
        assert min(counts) > 0
    finally:
        for name in names:
            for process in inside(name):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        shutil.rmtree(short, ignore_errors=True)
    variant = "never came back" if back is False else "came back after 20 s" if back is None else "ended before 20 s"
    figure(
        f"two namespaces, store on {kind}, link cut with {then} of 12 done, {variant}: complete {seconds:.0f} s later; "
        f"attempts seen on head and worker {counts}, {taken} runs ended by a later attempt; rows bit-equal"
    )


def _left(store, key):
    attempt = store.folder / "runs" / key / str(json.loads((store.folder / "done").read(key))["attempt"])
    return [attempt.read(name) for name in ("model.safetensors", "rows.parquet", "predictions.parquet")]


def _serve(name, environment, monkeypatch, tmp_path):
    """An S3 server in the head's namespace, which this process reaches by a link of its own; where the store is."""
    import s3fs

    from tests.study.server import BUCKET, variables

    ip("link", "add", f"{name}o", "type", "veth", "peer", "name", f"{name}i", "netns", name)
    ip("address", "add", f"{OUTSIDE}/30", "dev", f"{name}o")
    ip("link", "set", f"{name}o", "up")
    ip("-n", name, "address", "add", f"{INSIDE}/30", "dev", f"{name}i")
    ip("-n", name, "link", "set", f"{name}i", "up")
    root = {**environment, "PYTHONPATH": f"{Path(__file__).parents[2]}:{environment.get('PYTHONPATH', '')}"}
    begin(name, [sys.executable, "-m", "tests.study.server", "0.0.0.0", S3], root, tmp_path / "s3.log")
    until(lambda: "serving" in (tmp_path / "s3.log").read_text(), 60, "the S3 server")
    environment |= variables(f"http://{HEAD}:{S3}")
    for key, value in variables(f"http://{INSIDE}:{S3}").items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return f"s3://{BUCKET}/hosts"
