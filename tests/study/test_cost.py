"""What a run was said to take is what it took."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.positions import Consecutive
from lengthwise.model import Decoder, attention, preset
from lengthwise.run import Plan, train
from lengthwise.spec import Spec, SpecError
from lengthwise.study.cost import ACCELERATORS, ThisMachine, accelerator, run_cost, total_cost
from lengthwise.study.counting import DecoderCostModel, Workload
from lengthwise.task.block import training_block
from lengthwise.training.batches import Batch, on_demand_blocks, training_batches
from lengthwise.training.loop import Loop
from lengthwise.training.settings import Seeds, training_preset

TASK = "copy:variant=same:alphabet=40:longest=6"
A100 = ACCELERATORS["a100"]


def near(predicted, measured, share):
    return abs(predicted - measured) <= share * measured


def plan(task=TASK, encoding="nope", **options):
    return Plan.of(task, encoding, **options)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["laptop", "modern", "paper"])
def test_parameters_are_those_of_the_real_decoder(name, encoding, monkeypatch):
    monkeypatch.setattr(Decoder, "initialize", lambda self, seed: None)  # so that 110M of them take no time
    config = preset(name, vocabulary=37)
    with torch.device("meta"):
        decoder = Decoder(config, encoding)
    assert DecoderCostModel.of(config, (Spec.of(encoding),)).parameters == decoder.parameter_count()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_attention_path_whose_memory_is_counted_is_the_one_that_is_taken(encoding, monkeypatch):
    config, written_out = preset("laptop", vocabulary=37), []
    real = attention.dense
    monkeypatch.setattr(attention, "dense", lambda *given, **more: written_out.append(1) or real(*given, **more))
    Decoder(config, encoding)(torch.zeros(1, 5, dtype=torch.long))
    assert (DecoderCostModel.of(config, (Spec.of(encoding),)).path in {"dense", "hooked"}) == bool(written_out)


@pytest.mark.parametrize(
    "changes",
    [{"biases": True}, {"biases": True, "norm": "layer"}, {"norm": "none"}, {"tied": True, "feed_forward": "gelu"}],
)
def test_parameters_follow_every_field(changes):
    config = preset("laptop:layers=3", vocabulary=37, **changes)
    specs = tuple(map(Spec.of, ("t5", "rope", "t5")))
    assert DecoderCostModel.of(config, specs).parameters == Decoder(config, list(specs)).parameter_count()


@pytest.mark.parametrize(
    ("encoding", "model"),
    [("nope", "laptop"), ("t5", "laptop:layers=3"), ("rope", "laptop:attention_dropout=0.1"), ("alibi", "laptop")],
)
def test_flops_are_those_pytorch_counts(encoding, model, figure):
    config, rows, tokens = preset(model, vocabulary=100), 8, 24
    loss_BT = torch.arange(tokens + 1).expand(rows, -1) > 12
    feed = Batch(
        torch.randint(1, 100, (rows, tokens + 1)), np.full(rows, tokens + 1), loss_BT, None, np.full(rows, tokens)
    )
    supply = on_demand_blocks(lambda start, stop: training_block(plan().task, start, stop))
    loop = Loop(Decoder(config, encoding), supply, training_preset("laptop"), Consecutive(), Seeds.of(0))
    # PyTorch does not count its fused attention on a CPU, so it is written out here.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loop.advance(feed)
    shape = Workload(1, rows * tokens, rows * tokens**2, int(loss_BT.sum()))
    flops = DecoderCostModel.of(config, (Spec.of(encoding),)).flops(shape, training=True)
    figure(f"flops of {encoding} {model}: {flops:.4g} predicted, {counter.get_total_flops():.4g} by PyTorch")
    assert flops == counter.get_total_flops()


@pytest.mark.parametrize(
    "training",
    [
        "laptop:steps=200",
        "laptop:steps=150:batching=mixed:accumulation=3",
        "laptop:steps=900:batch_size=16",
        "laptop:steps=20:batch_size=1024",
    ],
)
def test_tokens_are_those_that_are_fed(training):
    asked = plan("addition:longest=6", training=training, seed=3)
    supply = on_demand_blocks(lambda start, stop: training_block(asked.task, start, stop, asked.seeds.data))
    fed = counted = 0
    for feed in training_batches(supply, asked.training, asked.positions, asked.seeds):
        counted += int(feed.tokens_B.sum()) - len(feed.tokens_B)
        for rows in np.array_split(np.arange(len(feed.tokens_B)), asked.training.accumulation):
            fed += len(rows) * (int(feed.tokens_B[rows].max()) - 1)
    cost = run_cost(asked, A100)
    assert near(cost.tokens, fed, 0.02)
    assert near(cost.counted_tokens, counted, 0.02)


@pytest.mark.slow
def test_a_short_run_takes_the_tokens_and_the_disk_it_was_said_to(tmp_path, figure):
    options = {"training": "laptop:steps=200:validation_examples=64", "seed": 1}
    cost = run_cost(plan(**options), A100)
    run = train(TASK, "nope", store=str(tmp_path), threads=1, quiet=True, **options)
    counted = [line for line in run.log() if "tokens" in line][-1]["tokens"]
    there = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    figure(f"short run: {cost.counted_tokens} tokens predicted, {counted} counted; disk {cost.disk} and {there}")
    assert near(cost.counted_tokens, counted, 0.02)
    assert near(cost.disk, there, 0.25)


def test_more_of_anything_costs_more():
    base = run_cost(plan(), A100)
    for more in (
        {"model": "laptop:layers=4"},
        {"model": "laptop:width=128:heads=8"},
        {"training": "laptop:steps=4000"},
        {"training": "laptop:batch_size=256"},
    ):
        cost = run_cost(plan(**more), A100)
        assert cost.flops > base.flops and cost.seconds > base.seconds
        assert cost.memory >= base.memory and cost.disk >= base.disk
    longer = run_cost(plan(TASK.replace("longest=6", "longest=12")), A100)
    assert longer.flops > base.flops and longer.evaluation_flops > base.evaluation_flops
    assert run_cost(plan(positions="randomized:limit=512"), A100).seconds > base.seconds
    assert run_cost(plan(), ACCELERATORS["h100"]).seconds < base.seconds


def test_a_small_step_reaches_a_small_share_of_the_peak():
    shares = []
    for model in ("laptop", "modern"):
        cost = run_cost(plan(model=model), A100)
        shares.append(cost.flops / cost.seconds / A100.fp32)
    assert shares[0] < 0.02 < shares[1] < A100.utilisation


@pytest.mark.slow
@pytest.mark.alone
def test_ten_thousand_runs_are_costed_in_seconds():
    kinds = [
        plan(task, encoding, model=f"laptop:layers={layers}")
        for task in ("copy:variant=same", "addition", "sort", "parity", "scan")
        for encoding in ("nope", "rope", "alibi", "t5")
        for layers in (1, 2, 3, 4, 5)
    ]
    plans = [replace(kind, seed=seed) for kind in kinds for seed in range(100)]
    start = time.process_time()
    costs = [run_cost(one, A100) for one in plans]
    assert time.process_time() - start < 6
    assert costs[0] == costs[99] != costs[100]
    whole = total_cost(costs, parallel_runs=8)
    assert whole.runs == 10_000 and whole.hours == pytest.approx(8 * whole.wall_hours)
    assert whole.memory_together == 8 * whole.memory == 8 * max(cost.memory for cost in costs)


def test_a_run_is_never_shorter_for_having_company():
    cost = run_cost(plan(), A100)
    assert total_cost([cost], parallel_runs=8).wall_hours == cost.hours
    assert total_cost([], parallel_runs=8).runs == 0
    with pytest.raises(SpecError, match="at least one"):
        total_cost([cost], parallel_runs=0)


@pytest.mark.slow
def test_a_step_is_timed_once_for_each_encoding_and_model(monkeypatch):
    from lengthwise.study import machines

    timed = []
    monkeypatch.setattr(machines, "_seconds_per_step", lambda plan, threads: timed.append(plan.id) or 0.01)
    said = []
    machine = ThisMachine(1, said.append)
    first, again = (run_cost(plan(seed=seed), machine) for seed in (0, 1))
    assert first == again and len(timed) == len(said) == 1
    steps = plan().training.steps
    assert 0.01 * steps < first.seconds < 0.02 * steps and first.evaluation_seconds > 0
    longer = run_cost(plan(TASK.replace("longest=6", "longest=12")), machine)
    assert len(timed) == 1 and longer.seconds > first.seconds, "another task of the same model is priced by its FLOPs"
    run_cost(plan(encoding="t5"), machine)
    run_cost(plan(model="laptop:layers=3"), machine)
    assert len(timed) == 3
    with pytest.raises(SpecError, match="at least one thread"):
        ThisMachine(0)


def test_a_large_model_is_timed_with_fewer_layers_and_rows(monkeypatch):
    from lengthwise.study import machines

    timed = []
    monkeypatch.setattr(machines, "_seconds_per_step", lambda plan, threads: timed.append(plan) or 0.01)
    large = plan("addition:protocol=paper", model="paper", training="paper")
    run_cost(large, ThisMachine())
    assert machines._step_flops(large) > 100 * machines.LARGE >= machines._step_flops(timed[0])
    assert timed[0].model.layers < large.model.layers and timed[0].model.width == large.model.width
    small = plan()
    assert machines._small_enough(small) is small


def test_nobody_waits_for_torch_to_read_a_table():
    code = "import sys, lengthwise.study.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_accelerator_is_told():
    assert accelerator("a100") is A100
    with pytest.raises(SpecError, match="h100"):
        accelerator("h10")


RUN = """
import json, sys, time
import polars, torch
from lengthwise.run import train
began = time.monotonic()
run = train(sys.argv[1], sys.argv[2], training=sys.argv[3], store=sys.argv[4], threads=1, quiet=True)
whole = time.monotonic() - began
last = [line for line in run.log() if "tokens" in line][-1]
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": last["seconds"], "tokens": last["tokens"], "whole": whole, "memory": peak}))
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("task", "encoding", "steps", "factor"),
    [
        pytest.param("copy:variant=same", "nope", 100, 2, marks=[pytest.mark.slow, pytest.mark.alone]),
        *(
            pytest.param(task, encoding, 300, 1.25, marks=pytest.mark.evidence)
            for task, encoding in [
                ("copy:variant=same", "nope"), ("reverse:variant=once", "rope"), ("sort", "alibi"), ("sort", "cope")
            ]
        ),
    ],
)  # fmt: skip
def test_real_runs_take_what_was_said(task, encoding, steps, factor, tmp_path, figure):
    """Seconds by a run between two timed steps; while the sum of them is out, by up to five.

    The speed of a shared machine changes by the minute: one run in ten is a quarter off the price of that minute.
    """
    training = f"laptop:steps={steps}"
    asked, said, took = plan(task, encoding, training=training), 0.0, 0.0
    earlier = run_cost(asked, ThisMachine())
    for number in range(5):
        store = tmp_path / str(number)
        done = subprocess.run(
            [sys.executable, "-c", RUN, task, encoding, training, str(store)],
            capture_output=True,
            text=True,
            check=True,
        )
        measured, before, after = json.loads(done.stdout), earlier, run_cost(asked, ThisMachine())
        earlier = after
        there = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        seconds = (before.seconds + after.seconds) / 2
        evaluation = (before.evaluation_seconds + after.evaluation_seconds) / 2
        figure(
            f"{task} {encoding}: training {seconds:.2f} s ({before.seconds:.2f}, {after.seconds:.2f}) predicted, "
            f"{measured['seconds']:.2f} measured; evaluation {evaluation:.2f}, "
            f"{measured['whole'] - measured['seconds']:.2f}; tokens {before.counted_tokens}, {measured['tokens']}; "
            f"disk {before.disk}, {there}; memory {before.memory / 2**20:.0f}, {measured['memory'] / 2**20:.0f} MiB"
        )
        counts = before.counted_tokens / measured["tokens"], before.disk / there, before.memory / measured["memory"]
        assert all(0.75 <= ratio <= 1.25 for ratio in counts), counts
        said, took = said + seconds, took + measured["seconds"]
        if 1 / factor <= said / took <= factor:
            return
    pytest.fail(f"five runs took {took:.1f} s and not {said:.1f}")
