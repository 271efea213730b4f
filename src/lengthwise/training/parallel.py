"""Several processes that train one model, started by `torchrun`: DDP, or FSDP2 if the model is sharded.

Each of n processes takes every n-th row of a batch, so batches and, without dropout, gradients are those of a single
process, except for the order in which gradients are summed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lengthwise.device import HOST, collective_backend
from lengthwise.training.batches import Batch


@dataclass(frozen=True)
class DistributedProcesses:
    """The processes of a run; the first, rank 0, writes the files."""

    rank: int = 0
    size: int = 1
    shard: bool = False
    """Each process holds a part of every parameter (FSDP2)."""
    device: torch.device = HOST
    """Where this process computes."""

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wrap(self, decoder: nn.Module) -> nn.Module:
        """The module to call in training."""
        if self.shard:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in decoder.get_submodule("layers").children():
                fully_shard(layer, mesh=mesh)
            fully_shard(decoder, mesh=mesh)
            return decoder
        return nn.parallel.DistributedDataParallel(decoder) if self.size > 1 else decoder

    def local_batch(self, batch: Batch) -> Batch:
        """The rows of a batch that this process computes: every n-th, so that all processes get similar lengths."""
        if self.size == 1:
            return batch
        return batch.rows(np.arange(self.rank, len(batch.tokens_B), self.size))

    def gradient_sync_context(self, module: nn.Module, is_last_part: bool) -> Any:  # noqa: ANN401
        """A context in which gradients are exchanged only for the last part of a batch."""
        if isinstance(module, nn.parallel.DistributedDataParallel) and not is_last_part:
            return module.no_sync()
        return nullcontext()

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor in one piece: the norm of a sharded gradient is itself sharded."""
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyrefly: ignore[not-callable]

    def total_on_device(self, value: Tensor) -> Tensor:
        """The sum over the processes of a tensor on the device, without reading it."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def total(self, value: float) -> float:
        """The sum over the processes."""
        if self.size == 1:
            return value
        summed = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(summed)
        return float(summed)

    def min_over_ranks(self, value: int) -> int:
        """The smallest value of any process."""
        if self.size == 1:
            return value
        held = torch.tensor(value)
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.total(float(flag)) > 0

    def broadcast_from_first(self, value: Any) -> Any:  # noqa: ANN401
        """The first process's value, broadcast to all."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held)
        return held[0]

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        """The values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        held = [None] * self.size
        dist.all_gather_object(held, value)
        return held

    def wait(self) -> None:
        """Wait until all processes have reached this call."""
        if self.size > 1:
            dist.barrier()

    def full_state_dict(self, decoder: nn.Module) -> dict[str, Tensor]:
        """The unsharded weights; all processes must call this together."""
        return {name: self.whole(value).detach() for name, value in decoder.state_dict().items()}


def local_shard(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: all of it, unless the model is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyrefly: ignore[not-callable]


def parameters_of_first_rank(shapes: Iterable[Sequence[int]], ranks: int) -> int:
    """The number of parameters that the first of so many ranks holds: the rows of each are divided and rounded up.

    A matrix of 10 × 4 over 8 ranks is 2 rows, so 8 numbers, on the first five ranks and nothing on the others.
    """
    return sum(-(-shape[0] // ranks) * math.prod(shape[1:]) for shape in shapes)


def shard_like(sharded_tensor: Tensor, tensor: Tensor) -> Tensor:
    """Shard `tensor` like `sharded_tensor`, if `sharded_tensor` is sharded and `tensor` is not."""
    if hasattr(sharded_tensor, "placements") and not hasattr(tensor, "placements"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, sharded_tensor.device_mesh, sharded_tensor.placements)  # pyrefly: ignore
    return tensor


ALONE = DistributedProcesses()


@contextmanager
def distributed_processes(shard: bool = False, device: torch.device = HOST) -> Iterator[DistributedProcesses]:
    """The processes that torchrun started, or this one alone, each of which computes on `device`."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and not shard:
        yield DistributedProcesses(device=device)
        return
    if "RANK" not in os.environ:  # a single process may shard too, to try it out
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    # The timeout is long because the other processes wait while the first one evaluates.
    dist.init_process_group(collective_backend(device), timeout=timedelta(hours=24))
    try:
        yield DistributedProcesses(dist.get_rank(), dist.get_world_size(), shard, device)
    finally:
        dist.destroy_process_group()
