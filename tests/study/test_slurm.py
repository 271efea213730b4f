"""The files of scripts/slurm on a real SLURM of one node, and the file for Kubernetes against its schema."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
import yaml

import lengthwise as lw

SCRIPTS = Path(__file__).parents[2] / "scripts"
PACKAGES = ("slurmd", "slurmctld", "slurm-client", "munge")
STUDY = """
name: tiny
question: Does an element of an array that was killed change anything?
base: {model: "laptop:layers=1:width=32:heads=2", training: "laptop:steps=400:batch_size=16"}
vary: {task: ["sort:longest=4"], encoding: [nope, rope]}
seeds: 3
checkpoint_every: 50
"""


class Slurm:
    """A controller, a node and munge, with files of their own; two GPUs are declared that are links to /dev/null."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[subprocess.Popen[bytes]]()
        host, ports = socket.gethostname(), [_free_port() for _ in range(2)]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        for number in range(2):
            (folder / f"nvidia{number}").symlink_to("/dev/null")
        (folder / "munge.key").write_bytes(os.urandom(64))
        (folder / "munge.key").chmod(0o600)
        (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/nvidia[0-1] Flags=nvidia_gpu_env\n")
        (folder / "slurm.conf").write_text(f"""
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
ReturnToService=2
KillWait=5
GresTypes=gpu
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=main Nodes={host} Default=YES State=UP
""")
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LENGTHWISE_BEAT": "1",
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def start(self) -> None:
        munge = [f"--{name}={self.folder}/munge.{end}" for name, end in (("socket", "sock"), ("key-file", "key"))]
        munge += [f"--{name}={self.folder}/munge.{end}" for name, end in (("pid-file", "pid"), ("log-file", "log"))]
        munge.append(f"--seed-file={self.folder}/munge.seed")
        for command in (["munged", "--force", "--foreground", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            self.started.append(
                subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            time.sleep(2)
        _until(lambda: "idle" in self("sinfo", "-h", "-o", "%T"), 60)

    def stop(self) -> None:
        for one in reversed(self.started):
            one.terminate()
        for one in self.started:
            one.wait(30)

    def __call__(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, cwd=self.folder, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def states(self, job: str) -> dict[str, str]:
        """Element → its state; a job that has long ended is not listed."""
        listed = self("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return {name: state for name, _, state in (line.partition(" ") for line in listed) if name.startswith(job)}

    def wait(self, job: str, seconds: float = 400) -> dict[str, str]:
        going = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED"}
        _until(lambda: not going & set(self.states(job).values()), seconds)
        return self.states(job)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not after {seconds} s"
        time.sleep(0.5)


@pytest.fixture
def slurm(tmp_path) -> Iterator[Slurm]:
    if shutil.which("slurmctld") is None:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], check=True)
    folder = tmp_path / "slurm"
    folder.mkdir()
    made = Slurm(folder)
    made.start()
    try:
        (folder / "tiny.yaml").write_text(STUDY)
        yield made
    finally:
        made.stop()


def rows(store: Path) -> pl.DataFrame:
    study = lw.Study.read(store.parent / "tiny.yaml")
    found = study.status(str(store)).runs
    assert len(found.done) == 6 and not found.failed and not found.missing
    return study.rows(str(store)).sort("run", "split", "checkpoint", "length")


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_an_array_survives_the_death_of_its_elements(slurm, figure):
    """One element is killed and requeued, the other asked to stop, which requeues itself."""
    lw.Study.read(slurm.folder / "tiny.yaml").run(str(slurm.folder / "whole"), executor="inline")
    store = slurm.folder / "parts"
    submit = ["sbatch", "--parsable", "--array=1-2", "--cpus-per-task=1", "--gpus-per-task=0", "--output=%a.log"]
    job = slurm(*submit, str(SCRIPTS / "slurm" / "array.sbatch"), "tiny.yaml", str(store)).partition(";")[0]
    _until(lambda: len(list(store.glob("runs/*/1/checkpoints/*"))) >= 2, 200)
    done = len(list(store.glob("runs/*/done*")))
    slurm("scancel", "--full", "--signal=KILL", f"{job}_1")
    _until(lambda: slurm.states(job).get(f"{job}_1") not in {"RUNNING", "COMPLETING"}, 60)
    killed = slurm.states(job).get(f"{job}_1")
    if killed != "PENDING":  # it may have been requeued already, as after the death of its node
        slurm("scontrol", "requeue", f"{job}_1")
    slurm("scancel", "--batch", "--signal=TERM", f"{job}_2")
    ended = slurm.wait(job)
    log = "".join(path.read_text() for path in sorted(slurm.folder.glob("*.log")) if path.stem.isdecimal())
    assert set(ended.values()) <= {"COMPLETED"}, (ended, log)
    assert rows(store).equals(rows(slurm.folder / "whole"))
    attempts = len(list(store.glob("runs/*/[0-9]*")))
    figure(f"slurm array: killed ({killed}) with {done} of 6 done, {attempts} attempts for 6 runs, rows bit-equal")
    assert attempts > 6


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_ray_inside_an_allocation(slurm):
    subprocess.run(["ray", "get-auth-token", "--generate"], env=slurm.environment, check=True, capture_output=True)
    store = slurm.folder / "ray"
    submit = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=2", "--output=ray.log"]
    slurm.environment["PORT"] = str(_free_port())
    job = slurm(*submit, str(SCRIPTS / "slurm" / "ray.sbatch"), "tiny.yaml", str(store))
    ended = slurm.wait(job)
    assert set(ended.values()) <= {"COMPLETED"}, (slurm.folder / "ray.log").read_text()[-3000:]
    lw.Study.read(slurm.folder / "tiny.yaml").run(str(slurm.folder / "whole"), executor="inline")
    assert rows(store).equals(rows(slurm.folder / "whole"))


@pytest.mark.evidence
@pytest.mark.timeout(600)
def test_elements_see_their_own_gpu_and_say_that_it_does_not_exist(slurm):
    show = slurm.folder / "show.sh"
    show.write_text('#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES"\nsleep 5\n')
    each = ["sbatch", "--parsable", "--array=1-2", "--ntasks=1", "--cpus-per-task=1", "--gpus-per-task=1"]
    slurm.wait(slurm(*each, "--output=seen-%a.log", str(show)))
    assert {(slurm.folder / f"seen-{number}.log").read_text().strip() for number in (1, 2)} == {"0", "1"}
    (slurm.folder / "tiny.yaml").write_text(STUDY + "resources: {gpus: 1}\n")
    script = str(SCRIPTS / "slurm" / "array.sbatch")
    slurm.wait(slurm(*each, "--output=asked-%a.log", script, "tiny.yaml", str(slurm.folder / "gpus")))
    assert "asks for 1 GPU, and torch finds 0 here" in (slurm.folder / "asked-1.log").read_text()


# --- Kubernetes ------------------------------------------------------------------------------------------------------

POD = {
    "spec": {
        "containers": [
            {"name": str, "image": str, "resources": {"limits": {"*": str}}, "envFrom": [{"secretRef": {"name": str}}]}
        ]
    }
}
KUBERAY = {
    "apiVersion": {"ray.io/v1"},
    "kind": {"RayJob"},
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "backoffLimit": int,
        "rayClusterSpec": {
            "rayVersion": str,
            "authOptions": {"mode": {"disabled", "token"}},
            "headGroupSpec": {"rayStartParams": {"*": str}, "template": POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {"*": str},
                    "template": POD,
                }
            ],
        },
    },
}
"""The fields of KubeRay's custom resource (its generated CRD) that our file uses, with the type of each."""


def wrong_fields(given: object, schema: object, where: str = "") -> list[str]:
    if isinstance(schema, dict):
        if not isinstance(given, dict):
            return [f"{where} is not a mapping"]
        found = [f"{where}.{key} is not a field" for key in given if key not in schema and "*" not in schema]
        known = {key: value for key, value in given.items() if key in schema or "*" in schema}
        return found + [
            wrong
            for key, value in known.items()
            for wrong in wrong_fields(value, schema.get(key, schema.get("*")), f"{where}.{key}")
        ]
    if isinstance(schema, list):
        listed = given if isinstance(given, list) else []
        found = [] if listed else [f"{where} is not a list"]
        return found + [wrong for one in listed for wrong in wrong_fields(one, schema[0], f"{where}[]")]
    good = given in schema if isinstance(schema, set) else type(given) is schema
    return [] if good else [f"{where} is {given!r}"]


def test_the_kubernetes_file_has_only_fields_of_the_schema_with_their_types():
    text = (SCRIPTS / "kubernetes" / "study.yaml").read_text()
    given = yaml.safe_load(text)
    assert wrong_fields(given, KUBERAY) == []
    cluster = given["spec"]["rayClusterSpec"]
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52, 0)  # the first with tokens
    planted = yaml.safe_load(
        text.replace("minReplicas: 0", "minReplica: 0").replace('num-cpus: "0"', "num-cpus: 0").replace("token", "tokn")
    )
    assert [one.rpartition(".")[2] for one in wrong_fields(planted, KUBERAY)] == [
        "mode is 'tokn'",
        "num-cpus is 0",
        "minReplica is not a field",
    ]
