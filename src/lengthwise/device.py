"""Where to compute. No other file of the package names a kind of device; a test holds them to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from lengthwise.spec import SpecError

Model = TypeVar("Model", bound=nn.Module)

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
    recompute: bool = False
    """Compute activations again in the backward pass in place of keeping them: less memory, a third more time."""

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


def say_once(sentence: str) -> None:
    """Print a sentence about this machine's devices, once for each process."""
    if sentence not in _SAID:
        _SAID.add(sentence)
        print(sentence, file=sys.stderr)  # noqa: T201


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


def place(model: Model, device: str | torch.device = "auto", bf16: bool = False) -> Model:
    """Return the model on a device; with `bf16` its forward passes are in mixed precision and its outputs in fp32."""
    if isinstance(device, torch.device):
        where = device
    else:
        chosen = choose_device(device)
        where = chosen.device
        if not is_host(where):
            say_once(str(chosen))
    if bf16:
        entered: list[AbstractContextManager[object]] = []

        def enter(*_: object) -> None:
            entered.append(bf16_autocast(where, enabled=True))
            entered[-1].__enter__()

        def leave(module: nn.Module, inputs: object, output: Tensor | None) -> Tensor | None:
            entered.pop().__exit__(None, None, None)
            return None if output is None else output.float()

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave, always_call=True)
    return model.to(where)


def wait_for(device: torch.device) -> None:
    """Wait until the device has computed all that it was given, as a measurement of time must."""
    if not is_host(device):
        torch.get_device_module(device.type).synchronize()


def free_bytes(device: torch.device) -> int | None:
    """Return the memory of an accelerator that is free now; None for the CPU, and where the driver does not say."""
    module = None if is_host(device) else torch.get_device_module(device.type)
    if module is not None and hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(device)[0])
    if module is not None and hasattr(module, "recommended_max_memory"):  # of mps
        return max(0, int(module.recommended_max_memory() - module.driver_allocated_memory()))
    return None


def gpu_bytes() -> int | None:
    """Return the memory of this machine's first GPU; None if there is none, or the driver does not say."""
    kind = next((one for one in PREFERRED if device_count(one)), None)
    module = None if kind is None else torch.get_device_module(kind)
    return int(module.mem_get_info()[1]) if module is not None and hasattr(module, "mem_get_info") else None


def restart_peak(device: torch.device) -> None:
    """Forget the most memory that tensors have had on an accelerator; `peak_bytes` measures from here."""
    if hasattr(module := torch.get_device_module(device.type), "reset_peak_memory_stats"):
        module.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the most memory that tensors have had on an accelerator; None where the driver does not say."""
    module = torch.get_device_module(device.type)
    return int(module.max_memory_allocated(device)) if hasattr(module, "max_memory_allocated") else None


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
