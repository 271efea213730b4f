"""`selftest`: does this machine's device compute what the CPU computes in float64, and how fast is it?"""

from __future__ import annotations

import copy
import json
import math
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lengthwise.display import Display, Part
from lengthwise.encoding import ENCODINGS
from lengthwise.folder import OUTPUT, Folder
from lengthwise.progress import Say, progress

if TYPE_CHECKING:
    import torch

    from lengthwise.model import Decoder
    from lengthwise.training.loop import Loop
    from lengthwise.training.parallel import DistributedProcesses


class Size(NamedTuple):
    """A model and its batches."""

    layers: int
    width: int
    tokens: int
    batch_size: int


LIMITS = {"logits": 1e-4, "gradients": 1e-3, "cached": 1e-4, "bf16": 0.05, "two ranks": 1e-4}
"""The largest error of each kind, relative to the largest value; bf16 has 8 bits, and errors add up over layers."""
RANKS, RANK_STEPS, PATIENCE = 2, 6, 120.0
"""Processes that train together, their steps, and the seconds they have."""
SIZES = [Size(3, 64, 24, 64), Size(4, 256, 64, 32), Size(6, 512, 128, 8)]
"""The models whose steps are timed, those of benchmarks/step.py."""
FURTHER = ("rope:scaling=yarn:factor=4.0:trained=8", "rope:fraction=0.25:interleaved=true")
TOKENS, ROWS, VOCABULARY = 24, 4, 32


@dataclass(frozen=True, repr=False)
class SelfTest(Display):
    """The errors of each encoding on a device, whether resuming is bit-equal there, and steps per second."""

    device: str
    machine: dict[str, Any]
    errors: list[dict[str, Any]]
    """One row for each encoding: the largest relative errors."""
    resumes_bit_equal: bool
    steps: list[dict[str, Any]]
    """Steps per second at each size."""
    two_ranks: float | None = None
    """The largest relative error of the losses of two processes on two devices; None if there is only one device."""
    failed: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything is within its limit."""
        return not self.failed

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The tables, then what failed."""
        yield Part(f"{self.device}: errors relative to float64 on the CPU; cached is against one pass on the device")
        shown = [
            {key: f"{value:.1e}" if isinstance(value, float) else value for key, value in row.items()}
            for row in self.errors
        ]
        yield Part(shown)
        yield Part(f"a run that was stopped goes on bit-equal: {'yes' if self.resumes_bit_equal else 'NO'}")
        told = "there is only one device" if self.two_ranks is None else f"losses off by {self.two_ranks:.1e}"
        yield Part(f"two processes on two devices: {told}")
        yield Part(self.steps)
        for one in self.failed:
            yield Part(f"failed: {one}", "bold red")
        yield Part("passed" if self.passed else f"{len(self.failed)} failed", "bold")

    def plain(self) -> dict[str, Any]:
        """Everything, for a bug report."""
        return {**vars(self), "passed": self.passed, "limits": LIMITS}

    def write(self, to: str | Path = OUTPUT / "selftest.json") -> Path:
        """Write everything to a JSON file that can be attached to a bug report."""
        path = Path(to)
        Folder(path.parent).write(path.name, json.dumps(self.plain(), indent=1))
        return path


def selftest(device: str = "auto", *, encodings: Sequence[str] | None = None, say: Say | None = None) -> SelfTest:
    """Compare every encoding on a device with float64 on the CPU, resume a training there, and time steps.

    >>> selftest(encodings=["rope"]).passed
    True
    """
    from lengthwise.device import DEFAULT, choose_device, device_count
    from lengthwise.run.machine import machine_record
    from lengthwise.training.parallel import DistributedProcesses

    chosen = choose_device(device)
    names = [*ENCODINGS, *FURTHER] if encodings is None else list(encodings)
    with progress(say) as tell:
        tell(str(chosen))
        errors = list[dict[str, Any]]()
        for number, name in enumerate(names, 1):
            tell(f"{number} of {len(names)}: {name}")
            errors.append({"encoding": name, **encoding_errors(name, chosen.device)})
        tell("resuming")
        resumed = resumes_bit_equal(chosen.device)
        ranks = None
        if device_count(chosen.device.type) >= RANKS:
            tell("two processes")
            ranks = two_ranks_error(chosen.device.type)
        steps = []
        for size in SIZES:
            tell(f"timing {size.layers} layers of width {size.width}")
            steps.append({**size._asdict(), "steps per second": round(steps_per_second(size, chosen.device), 2)})
    failed = [
        f"{row['encoding']}: {kind} is off by {row[kind]:.1e}, allowed {limit:.0e}"
        for row in errors
        for kind, limit in LIMITS.items()
        if row.get(kind) is not None and not row[kind] <= limit
    ]
    if ranks is not None and not ranks <= LIMITS["two ranks"]:
        failed.append(f"two processes: the loss is off by {ranks:.1e}, allowed {LIMITS['two ranks']:.0e}")
    failed += [] if resumed else ["a training that was stopped does not go on bit-equal"]
    machine = machine_record(DistributedProcesses(device=chosen.device), DEFAULT)
    return SelfTest(str(chosen.device), machine, errors, resumed, steps, ranks, failed)


def encoding_errors(encoding: str, device: torch.device) -> dict[str, float | None]:
    """Return the largest relative errors of logits, gradients, cached decoding and bf16 on a device."""
    import torch

    from lengthwise.conformance.subject import relative_error
    from lengthwise.device import HOST, bf16_autocast
    from lengthwise.model import Decoder, preset

    made = Decoder(preset("laptop", vocabulary=VOCABULARY), encoding, seed=0)
    ids_BT = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    lengths = [TOKENS, TOKENS - 5, 3, TOKENS]
    truth, gradients = _logits_and_gradients(copy.deepcopy(made).double(), ids_BT, lengths)
    there = made.to(device)
    logits, own = _logits_and_gradients(there, ids_BT.to(device), lengths)
    found: dict[str, float | None] = {
        "logits": relative_error(logits.to(HOST), truth),
        "gradients": max(relative_error(a.to(HOST), b) for a, b in zip(own, gradients, strict=True)),
        "cached": None,
    }
    with torch.no_grad():
        whole_BTV = there(ids_BT.to(device))
        if there.prefix_stable:
            cache, parts = there.cache(TOKENS), []
            for start, end in [(0, TOKENS - 4), *((at, at + 1) for at in range(TOKENS - 4, TOKENS))]:
                parts.append(there(ids_BT[:, start:end].to(device), cache=cache))
            found["cached"] = relative_error(torch.cat(parts, 1).to(HOST), whole_BTV.to(HOST))
        with bf16_autocast(device, enabled=True):
            short_BTV = there(ids_BT.to(device)).float()
        found["bf16"] = relative_error(short_BTV.to(HOST), whole_BTV.to(HOST))
    return found


def _logits_and_gradients(
    decoder: Decoder, ids_BT: torch.Tensor, lengths: Sequence[int]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    logits_BTV = decoder(ids_BT, lengths=lengths)
    logits_BTV.square().mean().backward()
    return logits_BTV.detach(), [p.grad for p in decoder.parameters() if p.grad is not None]


def resumes_bit_equal(device: torch.device) -> bool:
    """Return whether a training of 6 steps that is saved and loaded after 3 ends with the same bits."""
    import torch

    from lengthwise.training.checkpoint import pack, unpack

    whole, first, second = (_loop(device) for _ in range(3))
    for loop, steps in ((whole, 6), (first, 3)):
        going = iter(loop)
        for _ in range(steps):
            next(going)
    second.load(unpack(pack(first.tensors())), 3)
    going = iter(second)
    for _ in range(3):
        next(going)
    ends = [unpack(pack(loop.tensors())) for loop in (whole, second)]
    return all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def two_ranks_error(kind: str) -> float:
    """Return the largest relative error of the losses of two processes (DDP) on two devices, against those of one."""
    from lengthwise.device import choose_device

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-P", "-c", f"from lengthwise.interface.selftest import _rank; _rank({kind!r})"]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(RANKS)
    ]
    try:
        told = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    except subprocess.TimeoutExpired:
        return math.inf
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        warnings.warn(f"two processes failed: {told[0][1][-500:] or told[1][1][-500:]}", stacklevel=2)
        return math.inf
    together = json.loads(told[0][0].splitlines()[-1])
    alone = [one.loss for one in _loop(choose_device(kind).device, steps=RANK_STEPS)]
    return max(abs(one / other - 1) for one, other in zip(together, alone, strict=True) if other)


def _rank(kind: str) -> None:
    """Train as one of several processes; the first one prints the losses."""
    from lengthwise.device import choose_device
    from lengthwise.training.parallel import distributed_processes

    device = choose_device(kind).device
    with distributed_processes(device=device) as team:
        losses = [one.loss for one in _loop(device, steps=RANK_STEPS, team=team)]
        if team.first:
            print(json.dumps(losses), flush=True)  # noqa: T201
    os._exit(0)  # Gloo's threads outlive the group and may abort a usual end (compare PyTorch's issue 190489)


def steps_per_second(size: Size, device: torch.device, rounds: int = 3) -> float:
    """Return the training steps per second of a model with RoPE: the best of some rounds of about a second."""
    going, best = iter(_loop(device, size, steps=1_000_000)), 0.0
    next(going)
    for _ in range(rounds):
        began, many = time.perf_counter(), 0
        while time.perf_counter() - began < 1:
            next(going)  # it reads the loss, so it waits for the device
            many += 1
        best = max(best, many / (time.perf_counter() - began))
    return best


def _loop(
    device: torch.device, size: Size = SIZES[0], steps: int = 8, team: DistributedProcesses | None = None
) -> Loop:
    """Return a training of copying that is about `size.tokens` tokens long."""
    from lengthwise.encoding import build_positions
    from lengthwise.model import Decoder, preset
    from lengthwise.task import build_task
    from lengthwise.training.loop import Loop
    from lengthwise.training.parallel import DistributedProcesses
    from lengthwise.training.settings import Seeds, training_preset
    from lengthwise.training.text import examples_on_demand

    task, seeds = build_task(f"copy:variant=random:longest={size.tokens // 2 - 1}"), Seeds.of(0)
    head_width = 16 if size.width == 64 else 64
    shape = {"layers": size.layers, "width": size.width, "heads": size.width // head_width, "head_width": head_width}
    config = preset("laptop", vocabulary=len(task.vocabulary), feed_forward_width=3 * size.width, **shape)
    supply = examples_on_demand(task, seeds)
    training = training_preset("laptop", steps=steps, batch_size=size.batch_size, warmup=2)
    positions = build_positions("consecutive").of(task)
    decoder = Decoder(config, "rope", seed=0).to(device)
    return Loop(decoder, supply, training, positions, seeds, team=team or DistributedProcesses(device=device))
