"""A pretend accelerator: its tensors hold CPU memory, and mixing them with tensors of the CPU raises, as on a GPU.

    with Accelerator() as device:
        decoder.to("pretend")(ids.to("pretend")).sum().backward()
        assert device.syncs == 0

Three parts: a device type registered with torch, a tensor subclass on it that holds a CPU tensor, and two modes that
are active meanwhile, because factories such as `torch.zeros(device="pretend")` see no tensor to dispatch on. What would
make the host wait for a GPU is counted: reading a value, copying back, and results whose shape depends on values.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

KIND = "pretend"
if torch._C._get_privateuse1_backend_name() != KIND:
    backend_registration._setup_privateuseone_for_python_backend(KIND)
    # Once it is registered, torch asks it about mixed precision, also in tests that do not use it.
    torch.get_device_module(KIND).get_amp_supported_dtype = lambda: [torch.bfloat16]
    # It casts nothing under autocast, but does not fail either.
    AUTOCAST = torch.library.Library("_", "IMPL")
    AUTOCAST.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
DEVICE = torch.device(KIND, 0)

MAY_MIX = {"_to_copy", "copy_", "_copy_from", "_local_scalar_dense", "set_"}
"""Operations that take tensors of two devices on a GPU too; so do all kinds of indexing, with indices on the CPU."""
WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal"}
"""Operations for which the host waits until the device has computed everything before."""


class DeviceTensor(Tensor):
    """A tensor on the pretend device; `near` is the CPU tensor that holds its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
            requires_grad=False,
        )
        made.near = near
        return made

    def __repr__(self) -> str:
        return f"DeviceTensor({self.near})"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class Accelerator:
    """The pretend device, while it is switched on."""

    active: Accelerator | None = None

    def __init__(self, float64: bool = True, elements: int | None = None) -> None:
        self.float64 = float64
        """Whether it has float64; MPS has none."""
        self.elements = elements
        """The largest tensor that fits; a larger one raises out of memory."""
        self.syncs = 0
        """How often the host waited for the device."""
        self.operations = 0
        self.kernels: list[list[str]] = []
        """For each call of fused attention, the kernels of CUDA that could compute it, fastest first."""
        self.where: list[str] = []
        """The operation of each wait."""

    def __enter__(self) -> Accelerator:
        from lengthwise import device

        self._modes = (_Dispatch(), _Literals())
        self._known = KIND in device.NO_FLOAT64
        if not self.float64:
            device.NO_FLOAT64.add(KIND)
        Accelerator.active = self
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        from lengthwise import device

        for mode in reversed(self._modes):
            mode.__exit__(*error)
        Accelerator.active = None
        if not self._known:
            device.NO_FLOAT64.discard(KIND)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """What does not reach the dispatcher: `torch.tensor([...], device="pretend")` is made on the CPU and moved."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and _is_pretend(kwargs.get("device")):
            kwargs.pop("device")
            return function(*args, **kwargs).to(KIND)
        if function is Tensor.new_tensor and isinstance(args[0], DeviceTensor) and "device" not in kwargs:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(KIND)
        if function is F.scaled_dot_product_attention and isinstance(args[0], DeviceTensor):
            _as_on_a_gpu(*args, **kwargs)
        if function is Tensor.tolist and isinstance(args[0], DeviceTensor):  # not dispatched for subclasses
            return args[0].to("cpu").tolist()
        return function(*args, **kwargs)


def _as_on_a_gpu(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **_: Any) -> None:
    """Raise as CUDA's kernels do for a bias of another dtype, and record which fused kernels could be used."""
    if attn_mask is not None and attn_mask.dtype not in {torch.bool, q.dtype}:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    even = all(part.shape[-1] % 8 == 0 for part in (q, k, v))
    kernels = ["math"]
    if even:
        kernels.insert(0, "memory-efficient")
        if attn_mask is None and q.dtype in {torch.bfloat16, torch.float16} and q.shape[-1] <= 256:
            kernels.insert(0, "flash")
    if Accelerator.active is not None:
        Accelerator.active.kernels.append(kernels)


_lock = threading.RLock()  # the autograd engine calls from threads of its own


def _is_pretend(device: Any) -> bool:
    return device is not None and torch.device(device).type == KIND


def _near(leaf: Any) -> Any:
    if isinstance(leaf, DeviceTensor):
        return leaf.near
    return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == KIND else leaf


def _run(operation: Any, args: Any, kwargs: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    far = {id(one.near): one for one in tensors if isinstance(one, DeviceTensor)}
    name = operation.overloadpacket.__name__
    indexing = name.startswith(("index", "_index", "_unsafe_index"))
    if far and name not in MAY_MIX and not indexing:
        for one in tensors:
            if not isinstance(one, DeviceTensor) and one.dim():
                raise RuntimeError(f"{operation}: expected all tensors on {DEVICE}, but one is on {one.device}")
    asked = kwargs.get("device")
    stays = _is_pretend(asked) if asked is not None else bool(far)
    if name in {"copy_", "_copy_from"}:
        stays = isinstance(args[0], DeviceTensor)
    _count(name, args, kwargs, far, stays, indexing)
    with _lock:
        made = operation(*tree_map(_near, args), **tree_map(_near, kwargs))
    if not stays:
        return made
    return tree_map(lambda leaf: _wrapped(leaf, far) if isinstance(leaf, Tensor) else leaf, made)


def _wrapped(near: Tensor, far: dict[int, DeviceTensor]) -> Tensor:
    """The wrapper of a result; an operation in place gives back its own argument."""
    device = Accelerator.active
    if device is not None and id(near) not in far:
        if near.dtype == torch.float64 and not device.float64:
            raise TypeError(f"Cannot convert a tensor to float64: {DEVICE} has no float64")
        if device.elements is not None and near.numel() > device.elements:
            raise torch.OutOfMemoryError(f"{DEVICE} out of memory: tried to allocate {near.numel()} elements")
    return far[id(near)] if id(near) in far else DeviceTensor(near)


def _is_large(leaf: Any) -> bool:
    """Whether a leaf is a tensor of the CPU with more than one number; copying one number does not wait."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, DeviceTensor) and leaf.dim() > 0


def _count(name: str, args: Any, kwargs: Any, far: Any, stays: bool, indexing: bool) -> None:
    device = Accelerator.active
    if device is None or not (far or stays):
        return
    device.operations += 1
    leaves = tree_leaves(args[1:])
    by_mask = indexing and any(isinstance(one, DeviceTensor) and one.dtype == torch.bool for one in leaves)
    copies = name in {"_to_copy", "copy_", "_copy_from"}
    back = copies and far and not stays
    there = copies and stays and not kwargs.get("non_blocking") and any(_is_large(one) for one in tree_leaves(args))
    if name in WAITS or back or by_mask or there:
        device.syncs += 1
        device.where.append(name)
