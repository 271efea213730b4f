"""Damage to stores and bundles, by accident or on purpose."""

import json
import random
from pathlib import Path

from lengthwise.checksums import checksum, sealed


def reseal(store: Path) -> None:
    """Compute all checksums of a store anew, as somebody would who has changed its files on purpose."""
    for declared in (store / "done").iterdir():
        record = json.loads(declared.read_text())
        home = store / "runs" / declared.name
        ends = home / str(record["attempt"]) / "done"
        files = {path: checksum((home / path).read_bytes()) for path in record["files"] if (home / path).is_file()}
        if ends.is_file():
            own = f"{record['attempt']}/done"
            files.pop(own, None)
            ends.write_text(_resealed({**json.loads(ends.read_text()), "files": files}))
            files[own] = checksum(ends.read_bytes())
        declared.write_text(_resealed({**record, "files": files}))


def _resealed(record: dict) -> str:
    return json.dumps(sealed({key: value for key, value in record.items() if key not in {"seal", "format"}}))


def reseal_bundle(bundle: Path) -> None:
    """Compute the checksums of a bundle anew."""
    record = json.loads((bundle / "bundle.json").read_text())
    files = {name: checksum((bundle / name).read_bytes()) for name in record["files"] if (bundle / name).is_file()}
    (bundle / "bundle.json").write_text(_resealed({**record, "files": files}))


def accident(files: list[Path], rng: random.Random) -> str:
    """Damage one file as a disk or a person might, without touching any checksum; return what was done to which."""
    path = rng.choice(files)
    data = path.read_bytes()
    kinds = ["flip", "flip", "flip", "truncate", "delete", "empty", "zeros", "append", "swap"]
    kind = rng.choice(kinds)
    if kind == "flip" and data:
        place = rng.randrange(8 * len(data))
        path.write_bytes(data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :])
    elif kind == "truncate" and data:
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "delete":
        path.unlink()
    elif kind == "zeros" and data:
        begin = rng.randrange(len(data))
        path.write_bytes(data[:begin] + bytes(min(64, len(data) - begin)) + data[begin + 64 :])
    elif kind == "append":
        path.write_bytes(data + rng.randbytes(rng.randrange(1, 64)))
    elif kind == "swap" and (others := [one for one in files if one.name == path.name and one != path]):
        other = rng.choice(others)
        path.write_bytes(other.read_bytes()), other.write_bytes(data)
    else:
        path.write_bytes(b"")
    return f"{kind} {path}"
