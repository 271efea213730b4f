"""Checkpoints, valid only if complete: the manifest, written last, has the size and checksum of every file.

Without sharding, a checkpoint is one safetensors file; a sharded team writes with `torch.distributed.checkpoint`. Both
formats use the same tensor names, so a run of either kind can read both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthwise.folder import Folder
from lengthwise.spec import SpecError
from lengthwise.training.parallel import ALONE, DistributedProcesses

MANIFEST, STATE = "manifest.json", "state.safetensors"
KEPT = 2
"""The number of checkpoints that an attempt keeps: the newest, and the one before in case the newest is incomplete."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, its step and the notes stored with it."""

    folder: Folder
    step: int
    notes: dict[str, Any]

    def tensors(self, template_tensors: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Load its tensors; a sharded checkpoint needs `template_tensors`, which returns tensors of these shapes."""
        if self.folder.exists(STATE):
            return unpack(self.folder.read(STATE))
        import torch.distributed.checkpoint as dcp

        found = template_tensors()
        dcp.load(found, storage_reader=_reader(self.folder), no_dist=not torch.distributed.is_initialized())
        return found


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    from safetensors.torch import save

    return save({name: value.detach().contiguous().clone() for name, value in tensors.items()})


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
    if processes.shard:
        import torch.distributed.checkpoint as dcp

        if processes.first:
            folder.remove(name)
            here.write("begun", b"")
        processes.wait()
        dcp.save(dict(tensors), storage_writer=_writer(here))
    if processes.first:
        if processes.shard:
            files = {file: _seal(here.read(file)) for file in here.names() if file != MANIFEST}
        else:
            data = pack(tensors)
            here.write(STATE, data)
            files = {STATE: _seal(data)}
        manifest = {"version": 1, "step": step, "files": files, "notes": dict(metadata)}
        here.write(MANIFEST, json.dumps(manifest, indent=1))
        for old in sorted(name for name in folder.names() if name.isdigit())[:-KEPT]:
            folder.remove(old)
    processes.wait()


def newest_checkpoint(folders: Sequence[Folder]) -> tuple[Checkpoint | None, list[str]]:
    """The complete checkpoint with the most steps in any of these folders, and the incomplete ones after it."""
    torn: list[str] = []
    there = [(int(name), place / name) for place in folders for name in place.names() if name.isdigit()]
    for step, folder in sorted(there, key=lambda pair: pair[0], reverse=True):
        notes = _complete(folder)
        if notes is not None:
            return Checkpoint(folder, step, notes), torn
        torn.append(str(folder))
    return None, torn


def _complete(folder: Folder) -> dict[str, Any] | None:
    try:
        manifest = json.loads(folder.read(MANIFEST))
        if any(_seal(folder.read(name)) != seal for name, seal in manifest["files"].items()):
            return None
        return manifest["notes"]
    except (SpecError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _seal(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}


def _writer(folder: Folder) -> Any:  # noqa: ANN401
    if folder.local is not None:
        from torch.distributed.checkpoint import FileSystemWriter

        return FileSystemWriter(folder.local, single_file_per_rank=True)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    return FsspecWriter(folder.fs.unstrip_protocol(folder.path))


def _reader(folder: Folder) -> Any:  # noqa: ANN401
    if folder.local is not None:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(folder.local)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(folder.fs.unstrip_protocol(folder.path))
