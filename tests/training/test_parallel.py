"""Two processes train what one process trains, and any of them reads the others' checkpoints."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from lengthwise.folder import Folder
from lengthwise.run import Plan, Run
from lengthwise.training.batches import on_demand_blocks
from lengthwise.training.checkpoint import newest_checkpoint, unpack
from lengthwise.training.loop import Loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TASK, STEPS = "addition:longest=3", 50
MODEL = "laptop:width=32:heads=2:feed_forward_width=64"
TRAINING = f"laptop:steps={STEPS}:batch_size=16:warmup=5:validations=2:validation_examples=30"
WITHIN = 2e-4
"""Sums of gradients in another order: after 50 steps of AdamW weights differ by at most this."""


def launch(store, processes, *more, encoding="t5", training=TRAINING):
    arguments = [TASK, "--encoding", encoding, "--model", MODEL, "--training", training, "--store", str(store)]
    return launch_module(
        "lengthwise", processes, [*arguments, "--threads", "1", "--checkpoint-every", "20", "--quiet", *more]
    )


def launch_module(module, processes, arguments, environment=None):
    """Train in several processes; return the run, and what was printed."""
    store = arguments[arguments.index("--store") + 1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "-m", module, "train", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=90)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = Path(store).glob("runs/*")
    return Run.open(str(folder)), done


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("one"), 1)[0]


@pytest.mark.parametrize("more", [[], ["--shard"]], ids=["DDP", "FSDP2"])
def test_two_processes_train_what_one_trains(one, tmp_path, more, figure):
    two, done = launch(tmp_path, 2, *more)
    assert two.id == one.id and two.run_json["recorded"]["processes"] == 2
    assert done.stdout.count("folder: ") == 1  # one of them tells
    apart = max(float((a - two.weights()[name]).abs().max()) for name, a in one.weights().items())
    losses = [abs(a["loss"] - b["loss"]) for a, b in zip(one.log(), two.log(), strict=True) if "loss" in a]
    figure(f"2 processes, {more or 'DDP'}: weights within {apart:.1e}, losses within {max(losses):.1e} of one process")
    assert apart < WITHIN and max(losses) < 1e-4
    # A checkpoint of theirs is read by one process, and what it holds is what they ended with.
    checkpoint, torn = newest_checkpoint([two.folder / "checkpoints"])
    assert checkpoint.step == STEPS and not torn
    plan = Plan.read(two.run_json["options"])
    loop = Loop(plan.decoder(), on_demand_blocks(lambda *_: None), plan.training, plan.positions, plan.seeds)
    loop.load(checkpoint.tensors(), checkpoint.step)
    for name, value in two.weights().items():
        assert torch.equal(loop.decoder.state_dict()[name], value)
    moments = unpack((one.folder / "checkpoints" / f"{STEPS:09d}").read("state.safetensors"))
    for name, parameter in loop.decoder.named_parameters():
        assert torch.allclose(loop.optimizer.state[parameter]["exp_avg"], moments[f"exp_avg.{name}"], atol=1e-3)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((2, "--shard"), (1,)),
        ((1,), (2, "--shard")),
        pytest.param((2, "--shard"), (4, "--shard"), marks=pytest.mark.evidence),
    ],
    ids=["two shards→one", "one→two shards", "two shards→four"],
)
def test_a_run_goes_on_with_another_number_of_processes(one, tmp_path, first, then):
    """Stopped after 40 of 50 steps by taking away what came later."""
    run, _ = launch(tmp_path, *first)
    folder = Path(run.folder.path)
    for name in ("done", "model.safetensors", "rows.parquet", "predictions.parquet"):
        (folder / name).unlink()
    Folder(folder / "checkpoints").remove(f"{STEPS:09d}")
    (folder.parents[2] / "done" / run.id).unlink()
    again, _ = launch(tmp_path, *then)
    assert again.folder.leaf == "2" and again.log()[-1]["step"] == STEPS
    apart = max(float((a - again.weights()[name]).abs().max()) for name, a in one.weights().items())
    assert apart < WITHIN
