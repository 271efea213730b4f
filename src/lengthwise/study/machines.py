"""Machines for cost estimates: this one, by timing a few training steps, or an accelerator by its published peaks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError, did_you_mean
from lengthwise.study.counting import Workload, decoder_cost_model, training_step_size

if TYPE_CHECKING:
    from lengthwise.run import Plan

STEPS = 8
"""Training steps that are timed; their median counts."""
LARGE = 1e10
"""FLOPs of the largest step that is timed: larger runs are timed with fewer layers and rows."""


class ThisMachine:
    """This machine: seconds per FLOP of each kind of model, by timing a few steps of a run that has it."""

    def __init__(self, threads: int = 1, say: Callable[[str], None] | None = None) -> None:
        if threads < 1:
            raise SpecError(f"a run has at least one thread, not {threads}")
        self.threads = threads
        self._say = say or (lambda words: None)
        self._prices: dict[object, float] = {}

    @property
    def base(self) -> int:
        """Bytes of an idle process that has imported everything a run imports."""
        return _idle_bytes()

    def seconds_per_flop(self, plan: Plan) -> float:
        """Return seconds per FLOP, measured once for each encoding, model, batch size and precision."""
        model = plan.model.model_dump(exclude={"vocabulary"})
        key = (plan.encoding_specs, str(model), plan.training.batch_size, plan.training.autocast)
        if key not in self._prices:
            self._say(f"timing a step of {', '.join(map(str, plan.encoding_specs))}")
            timed = _small_enough(plan)
            self._prices[key] = _seconds_per_step(timed, self.threads) / _step_flops(timed)
        return self._prices[key]

    def training_seconds(self, plan: Plan, workload: Workload, flops: float) -> float:
        """Seconds of training steps."""
        return flops * self.seconds_per_flop(plan)

    def forward_seconds(self, plan: Plan, workload: Workload, flops: float, cases: float) -> float:
        """Seconds of forward passes and decoding, at the price of a training step's FLOPs."""
        return flops * self.seconds_per_flop(plan)


def _step_flops(plan: Plan) -> float:
    step = training_step_size(plan.task_spec, plan.training).step
    return decoder_cost_model(plan.model, plan.encoding_specs).flops(step, training=True)


def _small_enough(plan: Plan) -> Plan:
    """Return the plan with fewer layers and then fewer rows, if a step of it would take too long to be timed."""
    if _step_flops(plan) > LARGE:
        layers = max(1, int(plan.model.layers * LARGE / _step_flops(plan)))
        model = plan.model.model_copy(update={"layers": layers})
        plan = replace(plan, model=model, encoding_specs=plan.encoding_specs[:layers])
        rows = max(1, int(plan.training.batch_size * min(1, LARGE / _step_flops(plan))))
        plan = replace(plan, training=plan.training.model_copy(update={"batch_size": rows, "accumulation": 1}))
    return plan


def _seconds_per_step(plan: Plan, threads: int) -> float:
    import torch

    from lengthwise.training.loop import Loop
    from lengthwise.training.text import examples_on_demand

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    supply = examples_on_demand(plan.task, plan.seeds)
    loop = iter(Loop(plan.decoder(), supply, plan.training, plan.positions, plan.seeds))
    times = []
    try:
        for _ in range(min(STEPS, plan.training.steps)):
            began = time.perf_counter()
            next(loop)
            times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return sorted(times)[len(times) // 2]


@dataclass(frozen=True)
class Accelerator:
    """A device by its published peaks (dense FLOP/s) and assumptions; nothing was measured."""

    name: str
    bf16: float
    """Peak under `autocast`; the fp32 peak if the device has no bf16."""
    fp32: float
    """Peak without tf32, which PyTorch does not use by default."""
    bytes: int
    utilisation: float = 0.4
    """Share of the peak that large matrix products reach."""
    call: float = 3e-3
    """Fixed seconds of a step outside its layers; it keeps small steps far below the peak."""
    layer: float = 1e-3
    """Seconds of kernel launches per layer, forward and backward."""
    base: int = 500 * 2**20
    case: float = 2e-4
    """Host seconds per evaluated example."""

    @property
    def assumptions(self) -> str:
        """What the seconds rest on, in a sentence."""
        bf16 = f", {self.bf16 / 1e12:g} in bf16" if self.bf16 != self.fp32 else "; it has no bf16"
        return (
            f"{self.name}: {self.utilisation:.0%} of its published peak ({self.fp32 / 1e12:g} TFLOP/s in fp32 without "
            f"TF32{bf16}), {1000 * self.call:g} ms a step and {1000 * self.layer:g} ms a layer "
            f"for launching kernels, {1000 * self.case:g} ms for each evaluated example"
        )

    def _launches(self, plan: Plan, work: Workload) -> float:
        return work.calls * (self.call + plan.model.layers * self.layer)

    def training_seconds(self, plan: Plan, workload: Workload, flops: float) -> float:
        """Seconds of training steps."""
        peak = self.bf16 if plan.training.autocast else self.fp32
        return self._launches(plan, workload) + flops / (peak * self.utilisation)

    def forward_seconds(self, plan: Plan, workload: Workload, flops: float, cases: float) -> float:
        """Seconds of forward passes, which launch a third of a step's kernels; evaluation runs in fp32."""
        return self._launches(plan, workload) / 3 + flops / (self.fp32 * self.utilisation) + cases * self.case


def gpu_share(runs: int) -> float:
    """Return the fraction for `resources: {gpus: ...}` that places this many runs on one GPU."""
    return floor(1000 / runs) / 1000


ACCELERATORS = {
    "a100": Accelerator("NVIDIA A100 SXM 80 GB", 312e12, 19.5e12, 80 * 2**30),
    "h100": Accelerator("NVIDIA H100 SXM 80 GB", 989e12, 67e12, 80 * 2**30),
    "l4": Accelerator("NVIDIA L4", 121e12, 30.3e12, 24 * 2**30),
    "rtx4090": Accelerator("NVIDIA RTX 4090", 165e12, 82.6e12, 24 * 2**30),
    "t4": Accelerator("NVIDIA T4", 8.1e12, 8.1e12, 16 * 2**30),
    "v100": Accelerator("NVIDIA V100 SXM2 32 GB", 15.7e12, 15.7e12, 32 * 2**30),
}


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of this name."""
    if name not in ACCELERATORS:
        raise SpecError(f"unknown accelerator {name!r}.{did_you_mean(name, ACCELERATORS)}")
    return ACCELERATORS[name]


_IDLE = (
    "import torch, lengthwise.run, polars, safetensors.torch;"
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


@lru_cache(maxsize=1)
def _idle_bytes() -> int:
    """Return the peak bytes of a fresh process that has imported what a run imports."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _IDLE], capture_output=True, text=True, check=True, timeout=60
        )
        return 1024 * int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 250 * 2**20  # e.g. on systems without /proc
