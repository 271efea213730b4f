"""Our training loop against a bare PyTorch loop on the same model and batches, and against the naive loop.

    python benchmarks/loop.py [--tasks addition,scan] [--steps 640] [--rounds 5]

*ours* is the real thing: examples made by the supplying process, loss, clipping, schedule, log, checkpoints, progress.
*bare* is a hand-written loop over the same batches, made beforehand: forward, loss where there is loss, backward, clip,
AdamW. *naive* pads mixed batches to their longest and computes all logits. Interleaved in one process, one thread;
ratios are medians over rounds of bare's (or naive's) seconds over ours: more than 1 means that ours is quicker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from lengthwise.folder import Folder
from lengthwise.run import Plan
from lengthwise.run.attempt import Attempt
from lengthwise.run.lease import Lease
from lengthwise.run.validation import validate_decoder
from lengthwise.task.block import training_block
from lengthwise.training.batches import Batch, on_demand_blocks, training_batches
from lengthwise.training.loggers import Loggers, Progress
from lengthwise.training.loop import Loop
from lengthwise.training.parallel import ALONE

CHECKPOINT = 100
"""Steps between checkpoints: those of a run of 2,000 steps."""


def plan_of(task: str, steps: int, batching: str) -> Plan:
    """The laptop's run on a task, for so many steps; validations are evaluation, which is timed elsewhere."""
    return Plan.of(task, "rope", training=f"laptop:steps={steps}:batching={batching}:validations=1")


def feeds_of(plan: Plan) -> list[Batch]:
    """All batches of a run, made beforehand."""
    supply = on_demand_blocks(lambda start, stop: training_block(plan.task, start, stop, plan.seeds.data))
    return list(training_batches(supply, plan.training, plan.positions, plan.seeds))


def ours(plan: Plan) -> float:
    """Seconds of the real loop: data, loss, log, checkpoints."""
    with tempfile.TemporaryDirectory() as there:
        lease = Lease(Folder(there), plan.id, 1, {})
        attempt = Attempt(plan, lease, ALONE, CHECKPOINT, Progress("", plan.training.steps, True), Loggers())
        decoder = plan.decoder()
        with attempt._supply(0) as supply:
            loop = Loop(decoder, supply, plan.training, plan.positions, plan.seeds)
            assert callable(supply)  # no corpus
            supply(
                0, min(plan.training.window_steps, plan.training.steps) * plan.training.batch_size
            )  # as bare has its batches
            start = time.perf_counter()
            attempt._train(loop)
            whole = time.perf_counter() - start
            start = time.perf_counter()
            validate_decoder(plan, decoder, 0)  # the one validation is evaluation, not training
            return whole - (time.perf_counter() - start)


def bare(plan: Plan, feeds: list[Batch]) -> float:
    """Seconds of the shortest loop that does the same."""
    decoder, training = plan.decoder(), plan.training
    optimizer = torch.optim.AdamW(
        decoder.parameters(), training.lr, (training.beta1, training.beta2), training.eps, 0.0, fused=True
    )
    start = time.perf_counter()
    for step, feed in enumerate(feeds):
        for group in optimizer.param_groups:
            group["lr"] = training.lr_at(step)
        optimizer.zero_grad()
        logits = decoder(feed.ids_BT[:, :-1], lengths=(feed.tokens_B - 1).tolist(), only_BT=feed.loss_BT[:, 1:])
        loss = F.cross_entropy(logits, feed.ids_BT[feed.loss_BT])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        loss.item()
    return time.perf_counter() - start


def naive(plan: Plan, feeds: list[Batch]) -> float:
    """Seconds of the usual loop: mixed batches, all logits, prompt and padding masked with −100."""
    decoder, training = plan.decoder(), plan.training
    optimizer = torch.optim.AdamW(decoder.parameters(), training.lr, fused=True)
    start = time.perf_counter()
    for step, feed in enumerate(feeds):
        for group in optimizer.param_groups:
            group["lr"] = training.lr_at(step)
        optimizer.zero_grad()
        logits = decoder(feed.ids_BT[:, :-1], lengths=(feed.tokens_B - 1).tolist())
        targets = torch.where(feed.loss_BT, feed.ids_BT, -100)[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        loss.item()
    return time.perf_counter() - start


def main() -> None:
    """Print a table and, last, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="addition,scan")
    parser.add_argument("--steps", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    told = {}
    print(f"{'task':<24}{'ours steps/s':>14}{'of bare':>10}{'of naive':>10}")
    for task in options.tasks.split(","):
        plan, mixed = plan_of(task, options.steps, "length"), plan_of(task, options.steps, "mixed")
        feeds, mixed_feeds = feeds_of(plan), feeds_of(mixed)
        timed: dict[str, list[float]] = {"ours": [], "bare": [], "naive": []}
        ways: dict[str, Callable[[], float]] = {
            "ours": partial(ours, plan),
            "bare": partial(bare, plan, feeds),
            "naive": partial(naive, mixed, mixed_feeds),
        }
        for turn in range(options.rounds):
            names = list(ways) if turn % 2 == 0 else list(ways)[::-1]
            for name in names:
                timed[name].append(ways[name]())
        ratios = {
            name: statistics.median(other / own for other, own in zip(timed[name], timed["ours"], strict=True))
            for name in ("bare", "naive")
        }
        speed = options.steps / statistics.median(timed["ours"])
        print(f"{task:<24}{speed:>14.1f}{ratios['bare']:>10.2f}{ratios['naive']:>10.2f}", flush=True)
        told[task] = {"steps_per_second": round(speed, 1), **{name: round(value, 3) for name, value in ratios.items()}}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
