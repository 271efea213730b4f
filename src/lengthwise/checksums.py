"""Checksums: recorded when a run is done or a checkpoint is complete, and compared whenever a file is read.

They find accidents: a flipped bit, a torn file, files swapped between runs. Whoever may write to a store can compute
them anew, so they are no protection against a forgery.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

from lengthwise.folder import Folder, Missing
from lengthwise.spec import SpecError

FORMAT = 2
"""The version of stores and bundles; those of version 1 have no checksums."""
_WARNED: set[str] = set()


class Damaged(SpecError):
    """A file is not what was recorded of it."""


def checksum(data: bytes) -> str:
    """The size and a hash of a file's content."""
    return f"{len(data)}:{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Add the format and a hash of the record itself, so that a change of the record is found."""
    content = json.loads(json.dumps({**record, "format": FORMAT}))  # as it is read back, e.g. all keys are text
    return {**content, "seal": _seal(content)}


def check_seal(record: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a record if it is what was sealed; records of format 1 have no seal.

    A record of a later format is no damage, so that it is neither set aside nor written over.
    """
    rest = {key: value for key, value in record.items() if key != "seal"}
    if ("seal" in record or record.get("format", 1) != 1) and record.get("seal") != _seal(rest):
        raise Damaged(f"{source} is damaged: it is not what was recorded")
    if "seal" in record and type(record.get("format")) is not int:
        raise Damaged(f"{source} is damaged: it has no format")
    if "seal" in record and record["format"] > FORMAT:
        raise SpecError(
            f"{source} was written by a later version of lengthwise (format {record['format']}, this version reads "
            f"{FORMAT}); use that version, or another store"
        )
    return record


def read_sealed(folder: Folder, name: str) -> dict[str, Any]:
    """Read a record; raises `Damaged` if it is no JSON, or not what was sealed."""
    return check_seal(parsed(folder.read(name), f"{folder}/{name}"), f"{folder}/{name}")


def parsed(data: bytes | str, source: str) -> dict[str, Any]:
    """Return the JSON object in `data`; raises `Damaged` if there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{source} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{source} is damaged: it holds no record")
    return found


def read_checked(folder: Folder, name: str, files: Mapping[str, str] | None, store: str) -> bytes:
    """Read a file; raises `Damaged` unless it is what `files` records. Without a record, warn once for each store."""
    if files is None and store not in _WARNED:
        _WARNED.add(store)
        warnings.warn(
            f"{store} was written by an earlier version, without checksums, so damage would not be found; "
            f"lengthwise study fsck {store} --repair adds them",
            stacklevel=2,
        )
    try:
        return compare(folder.read(name), folder, name, files)
    except Missing as error:
        raise Damaged(str(error)) from error


def compare(data: bytes | None, folder: Folder, name: str, files: Mapping[str, str] | None) -> bytes:
    """Return the content of a file; raises `Damaged` if it is missing, or not what `files` records."""
    if data is None:
        raise Damaged(f"there is no {folder}/{name}")
    if files is not None and files.get(name) != checksum(data):
        raise Damaged(f"{folder}/{name} is damaged: it is not what was recorded when it was written")
    return data


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16).hexdigest()
