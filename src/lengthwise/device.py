"""Where to compute. No other file of the package names a kind of device; a test holds them to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from lengthwise.spec import SpecError

HOST = torch.device("cpu")
PREFERRED = ("cuda", "mps", "xpu")
"""The accelerators that `auto` looks for, in this order."""
NO_FLOAT64 = {"mps"}
"""Devices without float64; what would be float64 is fp32 there."""
PINS_MEMORY = {"cuda", "xpu"}
"""Devices to which batches are copied from pinned memory, while they compute."""
FLEX_COMPILES = {"cuda"}
"""Devices with a compiled FlexAttention. On a CPU, compiling takes 10 s or more per length and gains nothing here."""
FLEX_WITHOUT_BACKWARD = {"cpu", "mps"}
"""Devices on which PyTorch has no backward pass of FlexAttention."""
COLLECTIVES = {"cuda": "nccl", "xpu": "xccl"}
"""The library with which several processes exchange tensors on a device; on all others it is gloo."""


@dataclass(frozen=True)
class Compute:
    """How a run is computed. It is recorded with the run but does not change the run's id."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps` or `xpu`."""
    compile: bool = False
    """Compile the feed-forward layers; this takes some seconds before the first step."""
    device_batch: int | None = None
    """The most rows of a batch that are computed at once; None for all."""

    def __post_init__(self) -> None:
        if self.device_batch is not None and self.device_batch < 1:
            raise SpecError(f"the device batch is at least 1 row, not {self.device_batch}")


DEFAULT = Compute()


@dataclass(frozen=True)
class DeviceChoice:
    """The device that was chosen, and why."""

    device: torch.device
    reason: str

    def __str__(self) -> str:
        return f"device {self.device}: {self.reason}"


def choose_device(name: str = "auto") -> DeviceChoice:
    """Return the device of a name: `auto`, `cpu`, `cuda`, `cuda:1`, `mps` or `xpu`; one that is absent is an error.

    `auto` is the first of cuda, mps and xpu that this machine has, and otherwise the CPU; `accelerator` is the same
    without the CPU. Of several processes that `torchrun` started, each gets the device of its local rank.
    """
    if name == "accelerator":
        if (chosen := choose_device("auto")).device == HOST:
            raise SpecError(
                f"this run was given a GPU, but torch finds none of {', '.join(PREFERRED)} here; it may be a build of "
                "torch for the CPU alone"
            )
        return chosen
    if name == "auto":
        found = next((kind for kind in PREFERRED if device_count(kind)), None)
        if found is None:
            return DeviceChoice(HOST, f"auto found none of {', '.join(PREFERRED)}")
        return DeviceChoice(_ranked(torch.device(found)), "auto found it")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SpecError(f"a device is auto, cpu, cuda, cuda:1, mps or xpu, not {name!r}") from None
    if device.type == HOST.type:
        return DeviceChoice(HOST, "asked for")
    many = device_count(device.type)
    if many <= (device.index or 0):
        there = f"this machine has {many} of that kind" if many else "this machine has none of that kind"
        raise SpecError(f"there is no device {name}: {there}; use --device auto or --device cpu")
    return DeviceChoice(_ranked(device), "asked for")


def say_device_once(chosen: DeviceChoice) -> None:
    """Print the chosen device and why, once for each process."""
    if str(chosen) not in _SAID:
        _SAID.add(str(chosen))
        print(chosen, file=sys.stderr)  # noqa: T201


_SAID: set[str] = set()


def device_count(kind: str) -> int:
    """Return how many devices of a kind this machine has."""
    try:
        module = torch.get_device_module(kind)
        return module.device_count() if module.is_available() else 0
    except (RuntimeError, AttributeError):
        return 0


def visible_gpus() -> list[str]:
    """Return the names by which CUDA_VISIBLE_DEVICES selects each GPU of this process."""
    many = device_count("cuda")
    named = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return named[:many] if named else [str(number) for number in range(many)]


def _ranked(device: torch.device) -> torch.device:
    """The device with its index: the given one, or that of this process among those on its machine."""
    if device.index is not None:
        return device
    return torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")) % device_count(device.type))


def device_name(device: torch.device) -> str | None:
    """Return the name of an accelerator, e.g. `NVIDIA A100`; None for the CPU and where the driver has none."""
    read_name = None if is_host(device) else getattr(torch.get_device_module(device.type), "get_device_name", None)
    return None if read_name is None else str(read_name(device))


def is_host(where: Tensor | torch.device) -> bool:
    """Return whether a tensor or a device is on the CPU, where reading a value costs nothing."""
    return (where.device if isinstance(where, Tensor) else where).type == HOST.type


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or fp32 on a device that has none."""
    return torch.float32 if device.type in NO_FLOAT64 else torch.float64


def without_waiting(data: Tensor | Sequence[object], device: torch.device) -> Tensor:
    """Return the data on a device; the copy does not wait for what the device is computing."""
    tensor = data if isinstance(data, Tensor) else torch.tensor(data)
    if tensor.device == device:
        return tensor
    if device.type in PINS_MEMORY and is_host(tensor):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def bf16_autocast(device: torch.device, enabled: bool) -> AbstractContextManager[object]:
    """Return the context of mixed precision: matrix products in bf16, all else in fp32."""
    return torch.autocast(device.type, torch.bfloat16) if enabled else nullcontext()


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast, so that scores and whatever is computed from positions keep the working precision."""
    known = torch.amp.is_autocast_available(device.type)
    if not (known and torch.is_autocast_enabled(device.type)):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def collective_backend(device: torch.device) -> str:
    """Return what exchanges tensors between processes: gloo on the CPU, and the device's own library on it."""
    own = COLLECTIVES.get(device.type)
    return "gloo" if own is None else f"{HOST.type}:gloo,{device.type}:{own}"
