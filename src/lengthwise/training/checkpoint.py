"""Checkpoints, valid only if complete: the manifest, written last, has the size and checksum of every file.

A checkpoint is one safetensors file; of a sharded team, one for each process, with the part of every tensor that the
process holds. The manifest has the shape of each tensor and where each part begins, so any number of processes can read
it. Nothing is pickled: a checkpoint from anybody is only data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthwise.checksums import Damaged, checksum, read_sealed, sealed
from lengthwise.device import HOST
from lengthwise.folder import Folder, Missing
from lengthwise.spec import SpecError
from lengthwise.training.parallel import ALONE, DistributedProcesses, local_shard

MANIFEST, STATE = "manifest.json", "state.safetensors"
KEPT = 2
"""The number of checkpoints that an attempt keeps: the newest, and the one before in case the newest is incomplete."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, its step and the notes stored with it."""

    folder: Folder
    step: int
    notes: dict[str, Any]

    shards: dict[str, dict[str, Any]] | None = None
    """Of a sharded checkpoint: file → tensor → its whole shape, and the row at which this part of it begins."""

    def tensors(self) -> dict[str, Tensor]:
        """Load its tensors, whole."""
        if self.shards is None:
            if not self.folder.exists(STATE):
                raise SpecError(
                    f"{self.folder} is a sharded checkpoint of an earlier version, which is pickled: reading it could "
                    "run code; train the run again into another store"
                )
            return unpack(self.folder.read(STATE))
        found: dict[str, Tensor] = {}
        for file, parts in self.shards.items():
            for name, tensor in unpack(self.folder.read(file)).items():
                if not tensor.shape:
                    found[name] = tensor
                    continue
                shape, begin = parts[name]["shape"], parts[name]["begin"]
                whole = found.setdefault(name, torch.zeros(shape, dtype=tensor.dtype))
                if tensor.shape[1:] != whole.shape[1:] or begin < 0 or begin + len(tensor) > len(whole):
                    raise SpecError(f"{self.folder}/{file}: {name} does not fit into its shape {shape}")
                whole[begin : begin + len(tensor)] = tensor
        return found


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    from safetensors.torch import save

    return save({name: value.detach().to(HOST).contiguous().clone() for name, value in tensors.items()})


def unpack(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:  # the library raises its own type, which it does not export everywhere
        raise SpecError(f"the weights are damaged: {error}") from error


def save_checkpoint(
    folder: Folder,
    step: int,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    processes: DistributedProcesses = ALONE,
) -> None:
    """Write the checkpoint of a step below `folder`; once it is complete, delete all but the newest two."""
    name = f"{step:09d}"
    here = folder / name
    file = f"state-{processes.rank:05d}.safetensors" if processes.shard else STATE
    written = None
    if processes.shard or processes.first:
        held = {key: local_shard(value) for key, value in tensors.items()}
        data = pack(held)
        here.write(file, data)
        written = (
            file,
            checksum(data),
            {key: _part(value) for key, value in tensors.items()} if processes.shard else None,
        )
    every = [one for one in processes.gather(written) if one is not None]
    if processes.first:
        manifest: dict[str, Any] = {"version": 2, "step": step, "files": {name: seal for name, seal, _ in every}}
        if processes.shard:
            manifest["shards"] = {name: parts for name, _, parts in every}
        manifest["notes"] = dict(metadata)
        here.write(MANIFEST, json.dumps(sealed(manifest), indent=1))
        for old in sorted(name for name in folder.names() if name.isdecimal())[:-KEPT]:
            folder.remove(old)
    processes.wait()


def newest_checkpoint(
    folders: Sequence[Folder], usable: Callable[[Checkpoint], bool] = lambda checkpoint: True
) -> tuple[Checkpoint | None, list[str]]:
    """The complete and usable checkpoint with the most steps in any of these folders, and the others after it."""
    torn: list[str] = []
    there = [(int(name), place / name) for place in folders for name in place.names() if name.isdecimal()]
    for step, folder in sorted(there, key=lambda pair: pair[0], reverse=True):
        manifest = _complete(folder)
        if manifest is not None:
            found = Checkpoint(folder, step, manifest["notes"], manifest.get("shards"))
            if usable(found):
                return found, torn
        torn.append(str(folder))
    return None, torn


def is_complete(folder: Folder) -> bool:
    """Whether all files of a checkpoint are what its manifest says."""
    return _complete(folder) is not None


def _complete(folder: Folder) -> dict[str, Any] | None:
    """The manifest of a checkpoint whose files are what it says; None otherwise."""
    try:
        manifest = read_sealed(folder, MANIFEST)
        if manifest["step"] != int(folder.leaf):
            return None
        for name, recorded in manifest["files"].items():
            data = folder.read(name)
            if recorded not in (checksum(data), _checksum_of_version_1(data)):
                return None
        return manifest if isinstance(manifest["notes"], dict) else None
    except (Damaged, Missing, KeyError, TypeError, AttributeError):
        return None
    except SpecError:
        raise  # it could not be read, or is of a later version, which does not mean that it is damaged
    except ValueError:
        return None


def _checksum_of_version_1(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}


def _part(value: Tensor) -> dict[str, Any]:
    """The whole shape of a tensor, and the row at which the part that this process holds begins."""
    if not hasattr(value, "placements"):
        return {"shape": list(value.shape), "begin": 0}
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    (placement,) = value.placements  # pyrefly: ignore
    assert isinstance(placement, Shard) and placement.dim == 0, "FSDP2 shards rows"
    _, begin = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)  # pyrefly: ignore
    return {"shape": list(value.shape), "begin": int(begin[0])}
