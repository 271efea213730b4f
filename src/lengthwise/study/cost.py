"""Estimate the cost of a run before it is launched: parameters, tokens, FLOPs, memory, disk, seconds.

Matrix products are counted exactly; the number of tokens comes from a keyed sample of the task's examples, batched by
the training loop's own code. Seconds are counts times prices: `calibrate` finds the prices by timing the real loop.
Counts do not depend on the seed and are cached, so 10,000 runs of 100 kinds take as long as 100. See docs/cost.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise import __version__
from lengthwise.folder import Folder
from lengthwise.run.machine import cpu_name
from lengthwise.spec import Spec, SpecError, digest
from lengthwise.study.counting import (
    HOOKED,
    UNSEEN,
    Body,
    Fed,
    Tested,
    body_of,
    decoded,
    fed_by,
    one_pass,
    placing,
    tested_by,
)
from lengthwise.study.machines import ACCELERATORS, PROBES, Accelerator, Machine, accelerator, calibrate

if TYPE_CHECKING:
    from lengthwise.model import DecoderConfig
    from lengthwise.run import Plan
    from lengthwise.training.settings import Training

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "Cost",
    "Machine",
    "Total",
    "accelerator",
    "calibrate",
    "calibrated",
    "cost_of",
    "expected_seconds",
    "total",
]

EXAMINED = 2
"""Full evaluations per run: of its last weights and of its best weights, which may be the same."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run, in bytes, seconds and counts."""

    parameters: int
    tokens: int
    """Input tokens of training, including padding."""
    counted_tokens: int
    """Input tokens of training without padding, as `train.jsonl` counts them."""
    flops: float
    """FLOPs of training, without validations."""
    evaluation_flops: float
    """FLOPs of validations and of the final evaluations."""
    memory: int
    """Peak memory of the training process."""
    disk: int
    """Size of the attempt's folder when the run has ended."""
    seconds: float
    """From the first step to the last: steps, validations, checkpoints, waiting for examples."""
    evaluation_seconds: float
    """Seconds of the final evaluations."""

    @property
    def hours(self) -> float:
        """Device hours."""
        return (self.seconds + self.evaluation_seconds) / 3600


@dataclass(frozen=True)
class Total:
    """The cost of several runs together."""

    runs: int
    tokens: int
    flops: float
    """Training and evaluation."""
    memory: int
    """The largest run's peak."""
    memory_together: int
    """The largest run's peak times the number of parallel runs."""
    disk: int
    hours: float
    """Device hours."""
    wall_hours: float
    """Wall-clock hours with the given number of parallel runs."""


def total(costs: Iterable[Cost], at_a_time: int = 1) -> Total:
    """Add up runs, `at_a_time` of them in parallel; the wall time is at least that of the longest run."""
    listed = list(costs)
    if at_a_time < 1:
        raise SpecError(f"at least one run at a time, not {at_a_time}")
    hours, memory = sum(one.hours for one in listed), max((one.memory for one in listed), default=0)
    return Total(
        runs=len(listed),
        tokens=sum(one.tokens for one in listed),
        flops=sum(one.flops + one.evaluation_flops for one in listed),
        memory=memory,
        memory_together=memory * min(at_a_time, len(listed)),
        disk=sum(one.disk for one in listed),
        hours=hours,
        wall_hours=max([hours / at_a_time, *(one.hours for one in listed)]),
    )


def calibrated(threads: int = 1, say: Callable[[str], None] | None = None) -> Machine:
    """Return this machine's calibration: from the cache if it is at most a week old, else measured now."""
    cache = Folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lengthwise")
    name = f"machine-{threads}-{digest(__version__, PROBES, cpu_name(), os.cpu_count(), bits=32):08x}.json"
    with suppress(SpecError, OSError, TypeError):
        local = cache.local
        if local is not None and time.time() - (local / name).stat().st_mtime < _WEEK:
            return Machine.of(cache.json(name))
    machine = calibrate(threads, say)
    with suppress(SpecError):  # go on if the cache folder is not writable
        cache.write(name, json.dumps(machine.record()))
    return machine


_WEEK = 7 * 24 * 3600.0


def expected_seconds(plans: Iterable[Plan], threads: int = 1) -> dict[str, float]:
    """Run → its expected seconds on this machine: its FLOPs, priced by timing a few steps of the first run."""
    listed = list(plans)
    if not listed:
        return {}
    device = next(iter(ACCELERATORS.values()))  # counts are the same on every device
    counts = {plan.id: cost_of(plan, device) for plan in listed}
    price = _seconds_per_step(listed[0], threads) / (counts[listed[0].id].flops / listed[0].training.steps)
    return {key: price * (one.flops + one.evaluation_flops) for key, one in counts.items()}


def _seconds_per_step(plan: Plan, threads: int) -> float:
    import torch

    from lengthwise.task.block import training_block
    from lengthwise.training.batches import inline
    from lengthwise.training.loop import Loop

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    supply = inline(lambda start, stop: training_block(plan.task, start, stop, plan.seeds.data))
    loop = iter(Loop(plan.decoder(), supply, plan.training, plan.positions, plan.seeds))
    times = []
    try:
        for _ in range(min(6, plan.training.steps)):
            began = time.perf_counter()
            next(loop)
            times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return sorted(times)[len(times) // 2]


# --- a run -----------------------------------------------------------------------------------------------------------


def cost_of(plan: Plan, machine: Machine | Accelerator) -> Cost:
    """Return the cost of a run on this machine."""
    return _cost(plan.task_spec, plan.positions_spec, plan.encoding_specs, plan.model, plan.training, _Held(machine))


class _Held:
    """A hashable machine, to be a cache key: its prices are a mapping, which has no hash."""

    def __init__(self, machine: Machine | Accelerator) -> None:
        self.machine = machine
        self.key = json.dumps(asdict(machine), sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.key == other.key


@lru_cache(maxsize=65_536)
def _cost(
    task: Spec, positions: Spec, specs: tuple[Spec, ...], config: DecoderConfig, training: Training, held: _Held
) -> Cost:
    from lengthwise.run.attempt import PREFETCH_FROM, STAGE_EXAMPLES
    from lengthwise.task.sets import BLOCK

    machine, body = held.machine, body_of(config, specs)
    fed = fed_by(
        task,
        min(training.steps, ceil(BLOCK / training.batch_size)),
        training.batch_size,
        training.batching,
        training.window,
        training.accumulation,
    )
    tests = [one for one in tested_by(task) if one.split != "validated"]
    seen = [one for one in tested_by(task) if one.split == "validated"]
    amounts, flops = body.amounts(fed.step.times(training.steps), training=True)
    seconds = machine.stepping(amounts, flops, training.autocast)
    placed = placing(task, positions)
    seconds += training.steps * training.batch_size * placed
    # Examples are made in parallel with training, one window ahead; only the first window, or all examples of a short
    # run, are made before it.
    making = training.steps * training.batch_size * fed.example_seconds
    short = training.steps * training.batch_size < PREFETCH_FROM
    seconds = seconds + making if short else max(seconds, making) + making * training.span / training.steps
    weights = 4 * body.parameters
    saves = ceil(training.steps / training.saved_every)
    seconds += machine.saving(saves, saves * 3 * weights) + machine.saving(3 + len(training.validated), 0)
    shape, cases = one_pass(seen, ceil(training.validation_examples / max(len(seen), 1)))
    looked, validation = body.amounts(shape, training=False)
    one_validation = machine.looking(looked, validation, cases) + cases * placed
    examined, examining, wrong = 0.0, 0.0, 0.0
    everything, stages = max((one.cases for one in tests), default=0), len(set(training.stages.values()))
    for most, times, labels in ((everything, EXAMINED, 3), (STAGE_EXAMPLES, stages, 3)):
        shape, cases = one_pass(tests, most)
        shape += decoded(tests, most)
        looked, more = body.amounts(shape, training=False)
        examined += times * more
        examining += times * (machine.looking(looked, more, cases) + (cases + shape.said) * placed)
        wrong += labels * sum(min(one.cases, most) * one.text for one in tests if one.split in UNSEEN)
    # Two checkpoints with Adam's two moments; the weights of three stages, best, earliest best and last; predictions;
    # rows; the log and small files.
    size = 2 * 3 * weights + (5 + 1) * weights + 1.5 * wrong + 120 * len(tests) + 17 * training.steps + 10_000
    return Cost(
        parameters=body.parameters,
        tokens=round(fed.step.tokens * training.steps),
        counted_tokens=round(fed.counted * training.steps),
        flops=flops,
        evaluation_flops=examined + validation * len(training.validated),
        memory=round(machine.base + _peak(body, fed, tests)),
        disk=round(size),
        seconds=seconds + one_validation * (len(training.validated) - 1) + _drawing(seen),
        evaluation_seconds=examining + one_validation + _drawing(tests),
    )


def _drawing(tests: list[Tested]) -> float:
    """Return the seconds needed to draw the test examples once."""
    return sum(one.cases * one.seconds for one in tests)


def _peak(body: Body, fed: Fed, tests: list[Tested]) -> float:
    """Return the peak bytes above those of an idle process: in a training step, or in a later save or evaluation.

    glibc keeps about three quarters of the memory that a step has freed, so later phases come on top of that.
    """
    from lengthwise.evaluation.decoding import ROWS
    from lengthwise.evaluation.onepass import TOKENS
    from lengthwise.model.attention import AT_ONCE

    weights, config, held = 4.0 * body.parameters, body.config, body.held(*fed.most)
    saving = 6 * weights  # a copy of weights and two moments, as tensors and as bytes
    at_once = 4 * 1.15 * (2 * config.width + 3 * config.feed_forward_width)
    looked = min(TOKENS, sum(one.tokens * one.cases for one in tests))
    share = sum(one.answer for one in tests) / max(sum(one.tokens for one in tests), 1)
    looking = looked * (at_once + 4 * 3 * share * config.vocabulary)
    longest = max((one.tokens for one in tests), default=0)
    if body.path == "hooked":
        looking += 4 * HOOKED * min(AT_ONCE, looked * longest * config.heads)
    wrong = sum(one.cases for one in tests if one.split in UNSEEN)
    side_by_side = min(ROWS, wrong) * longest
    decoding = side_by_side * (at_once + 4 * 2 * config.heads * config.head_width * config.layers)  # with the KV cache
    cases = 5000 * sum(one.cases for one in tests)  # Python objects of each example
    return cases + 4 * weights + max(1.1 * held, 0.75 * held + max(saving, looking, decoding))
