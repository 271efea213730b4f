"""What a model folder of Hugging Face could lose silently: each case raises an error."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from lengthwise.checksums import Damaged, check_seal, checksum, parsed, sealed
from lengthwise.encoding import ENCODINGS
from lengthwise.model import Decoder
from lengthwise.spec import SpecError, resolve

_INDEX = "model.safetensors.index.json"
CHECKSUMS = "checksums.json"
"""The file with the checksums of a saved model's files."""
_SAVED = re.compile(r"config\.json|generation_config\.json|model.*\.safetensors|model\.safetensors\.index\.json")


def refuse_nowhere(where: str | os.PathLike) -> None:
    """Raise for a missing folder; transformers would take it for a name on the hub and report a network error."""
    path = Path(where).expanduser()
    # A name on the hub is `owner/model`; if the folder `owner` exists, it is a path.
    hub = isinstance(where, str) and len(path.parts) == 2 and path.parts[0] not in {".", "..", "~", path.anchor}
    if path.is_dir() or (hub and where.count("/") == 1 and not path.parent.exists()):
        return
    found = "is not a folder" if path.exists() else "does not exist"
    raise SpecError(
        f"{str(where)!r} {found}: give the folder that save_pretrained wrote (a model on the hub is owner/name)"
    )


def record_checksums(folder: str | os.PathLike, *more: str) -> None:
    """Record checksums of config and weights in a saved model's folder, and of `more` files."""
    here = Path(folder)
    names = [path.name for path in here.iterdir() if _SAVED.fullmatch(path.name) or path.name in more]
    files = {name: checksum((here / name).read_bytes()) for name in sorted(names)}
    (here / CHECKSUMS).write_text(json.dumps(sealed({"files": files}), indent=1))


def refuse_damaged(folder: Path) -> None:
    """Raise for a file that is not what was saved: weights with a flipped bit would load silently."""
    if not folder.is_dir():
        return  # a name on the hub, which compares what it sends
    for file in folder.iterdir():
        if file.suffix in {".json", ".safetensors"} and not file.is_file():  # a device, e.g., can be read for ever
            raise Damaged(f"{file} is not a regular file")
    if (folder / _INDEX).is_file():
        shards = parsed((folder / _INDEX).read_bytes(), f"{folder / _INDEX}").get("weight_map")
        for name in shards.values() if isinstance(shards, dict) else ("",):
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.safetensors", name):
                raise Damaged(
                    f"{folder / _INDEX} names {str(name)[:80]!r}, which is no safetensors file of this folder"
                )
    if not (folder / CHECKSUMS).is_file():
        warnings.warn(f"{folder} has no {CHECKSUMS}, so damaged weights would not be found", stacklevel=4)
        return
    record = check_seal(parsed((folder / CHECKSUMS).read_bytes(), f"{folder / CHECKSUMS}"), f"{folder / CHECKSUMS}")
    files = record.get("files")
    for name, recorded in files.items() if isinstance(files, dict) else ():
        # Links are followed, because the files of the hub's cache are links; so only names without a folder are read.
        file = folder / Path(name).name
        if not file.is_file() or checksum(file.read_bytes()) != recorded:
            raise Damaged(
                f"{file} is not what was saved: it is damaged, or was edited or removed. If that was done on purpose, "
                f"remove {folder / CHECKSUMS}"
            )


def refuse_lost_buffers(decoder: Decoder) -> None:
    """Raise for non-persistent buffers, which `from_pretrained` silently replaces by uninitialised memory."""
    for name, module in decoder.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            if module._buffers.get(key) is not None:
                raise SpecError(
                    f"{name or 'the decoder'} ({type(module).__name__}) keeps {key!r} in a buffer with "
                    "persistent=False, which Hugging Face gives back as uninitialised memory; compute constants in the "
                    "hook instead of keeping them in a buffer"
                )


def refuse_mixed_dtypes(decoder: Decoder) -> None:
    """Raise for several dtypes: `from_pretrained` casts every tensor to the one dtype of the config."""
    dtype = decoder.embedding.weight.dtype
    for name, tensor in decoder.state_dict().items():
        if tensor.is_floating_point() and tensor.dtype != dtype:
            raise SpecError(
                f"{name} is {tensor.dtype}, but the embedding is {dtype}, and Hugging Face would load both as {dtype}; "
                "convert the model with .to(dtype) before saving it"
            )


def refuse_lost_classes(decoder: Decoder) -> None:
    """Raise if an encoding's name does not lead to its class: loading finds the class by that name alone."""
    for spec, which in zip(decoder.specs, decoder.which, strict=True):
        held = type(decoder.encodings[which])
        if held.__module__ == "__main__" or resolve("encoding", ENCODINGS, spec.name) is not held:
            raise SpecError(
                f"encoding '{spec}' would not be found again by that name, or would be another one; keep it in a file "
                "and name it so, e.g. my_pe.py:Mine (if the file has changed since, build the model again)"
            )


def refuse_gaps(where: str, found: dict[str, Any]) -> None:
    """Raise for weights that do not fit; transformers only warns and leaves missing ones uninitialised."""
    wrong = [
        *(f"{name} is missing" for name in sorted(found["missing_keys"])),
        *(f"{name} belongs to no part of the model" for name in sorted(found["unexpected_keys"])),
        *(f"{name} is {tuple(has)}, not {tuple(wants)}" for name, has, wants in sorted(found["mismatched_keys"])),
    ]
    if wrong:
        raise SpecError(f"the weights in {where} do not fit the model its config describes: {'; '.join(wrong)}")
