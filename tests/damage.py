"""Damage to stores and bundles, by accident or on purpose."""

import json
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lengthwise.checksums import checksum, sealed


def reseal(store: Path) -> None:
    """Compute all checksums of a store anew, as somebody would who has changed its files on purpose."""
    for manifest in store.glob("runs/*/*/checkpoints/*/manifest.json"):
        with suppress(ValueError, TypeError, AttributeError, OSError, RecursionError):
            record = json.loads(manifest.read_text())
            there = [name for name in record["files"] if (manifest.parent / name).is_file()]
            files = {name: checksum((manifest.parent / name).read_bytes()) for name in there}
            manifest.write_text(_resealed({**record, "files": files}))
    for declared in filter(Path.is_file, store.glob("done/*")):
        with suppress(ValueError, TypeError, AttributeError, OSError, RecursionError, KeyError):
            record = json.loads(declared.read_text())
            home = store / "runs" / declared.name
            ends = home / str(record["attempt"]) / "done"
            files = {path: checksum((home / path).read_bytes()) for path in record["files"] if (home / path).is_file()}
            if ends.is_file():
                own = f"{record['attempt']}/done"
                files.pop(own, None)
                with suppress(ValueError, TypeError, RecursionError):
                    ends.write_text(_resealed({**json.loads(ends.read_text()), "files": files}))
                files[own] = checksum(ends.read_bytes())
            declared.write_text(_resealed({**record, "files": files}))


def _resealed(record: dict) -> str:
    return json.dumps(sealed({key: value for key, value in record.items() if key not in {"seal", "format"}}))


def reseal_bundle(bundle: Path) -> None:
    """Compute the checksums of a bundle, or of a Hugging Face folder, anew."""
    name = "bundle.json" if (bundle / "bundle.json").exists() else "checksums.json"
    with suppress(ValueError, TypeError, AttributeError, OSError, RecursionError, KeyError):
        record = json.loads((bundle / name).read_text() if (bundle / name).is_file() else "")
        files = {one: checksum((bundle / one).read_bytes()) for one in record["files"] if (bundle / one).is_file()}
        (bundle / name).write_text(_resealed({**record, "files": files}))


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


class Pickled:
    """An object that runs code when it is unpickled: it makes the canary file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple:
        return Path.touch, (self.canary,)


def hostile(files: list[Path], rng: random.Random, canary: Path, victim: Path) -> str:
    """Change one file as somebody might who wants code to run, files outside to change, or a program to fall over."""
    path = rng.choice(files)
    kinds = ["link", "folder", "pickle", "deep", "value", "value", "value", "value", "value", "value"]
    kind = rng.choice(kinds)
    if kind == "link":
        target = rng.choice([victim / "precious", victim, Path("/dev/zero"), Path("/etc/passwd"), path.parent / "loop"])
        path.unlink(), path.symlink_to(target)
    elif kind == "folder":
        path.unlink(), path.mkdir()
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Pickled(canary), protocol=2))
        (path.parent / ".metadata").write_bytes(pickle.dumps(Pickled(canary)))
    elif kind == "deep":
        path.write_text(
            rng.choice(["[" * 200_000, '{"a":' * 200_000, "1" * 5_000, "\ud800".encode("utf-8", "ignore").decode()])
        )
    elif path.suffix == ".parquet":
        _change_table(path, rng)
    elif path.suffix == ".safetensors":
        _change_tensors(path, rng)
    else:
        kind = _change_json(path, rng, canary, victim)
    return f"{kind} {path}"


def _change_json(path: Path, rng: random.Random, canary: Path, victim: Path) -> str:
    """Put a nasty value, or another key, somewhere into a JSON file, or into one line of it."""
    code = f"{canary.parent / 'evil.py'}:Evil"
    values = [
        *(code, "evil:Evil", [code], {"name": code, "x": 1}, f"nope,{code}", f"file:path={victim}/precious"),
        *(f"../../{victim.name}/precious", str(victim / "precious"), "1/../../../x", "a\0b", "", "x" * 100_000, "²"),
        *(-1, 0, 2, 10**18, 10**400, 1e308, float("nan"), float("-inf"), True, None, [], {}, [[]], {"": None}, "NaN"),
    ]
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines)) if lines else 0
    try:
        content = json.loads(lines[number])
    except (ValueError, IndexError):
        path.write_text(json.dumps(rng.choice(values[:10])))
        return "no JSON"
    places = list(_places(content))
    if not places:
        path.write_text(json.dumps(rng.choice(values)))
        return "whole"
    inside, key = rng.choice(places)
    kind = rng.choice(["replace", "replace", "replace", "remove", "rename"])
    if kind == "replace":
        inside[key] = rng.choice(values)
    elif isinstance(inside, dict):
        kept = inside.pop(key)
        if kind == "rename":
            inside[rng.choice([code, f"../../{victim.name}", "7", ""])] = kept
    else:
        inside.append(rng.choice(values))
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n" * (path.suffix == ".jsonl"))
    return f"{kind} {key!r} by {str(inside[key])[:60] if kind == 'replace' else ''}"


def _places(content: object) -> Iterator[tuple[Any, Any]]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield content, key
        yield from _places(value)


def _change_table(path: Path, rng: random.Random) -> None:
    import polars as pl

    table = pl.read_parquet(path)
    name = rng.choice(table.columns)
    column = pl.col(name)
    numeric = table.schema[name].is_numeric()
    changes: list[Callable[[], pl.DataFrame]] = [
        lambda: table.drop(name),
        lambda: table.rename({name: "../x"}),
        lambda: table.with_columns(pl.lit(None).alias(name)),
        lambda: table.with_columns(pl.lit("evil.py:Evil").alias(name)),
        lambda: table.with_columns(pl.lit(b"\x80\x04.").alias(name)),
        lambda: table.with_columns(pl.concat_list(pl.lit(1), pl.lit(2)).alias(name)),
        lambda: table.head(0),
        lambda: pl.DataFrame(),
        lambda: table.vstack(table),
        lambda: pl.concat([table.head(1)] * 100_000),
        lambda: table.with_columns((column * (50 if numeric else 1)).alias(name)) if numeric else table.reverse(),
        lambda: table.with_columns((0 - column - 1).alias(name)) if numeric else table.head(1),
        lambda: table.with_columns(pl.lit(float("nan")).alias(name)),
        lambda: table.with_columns(pl.lit(2**62).alias(name)),
    ]
    rng.choice(changes)().write_parquet(path)


def _change_tensors(path: Path, rng: random.Random) -> None:
    import torch
    from safetensors.torch import load, save

    tensors = load(path.read_bytes())
    name = rng.choice(sorted(tensors))
    kind = rng.choice(["nan", "shape", "dtype", "drop", "rename", "header", "length", "empty"])
    if kind == "nan":
        tensors[name] = torch.full_like(tensors[name].float(), rng.choice([float("nan"), float("inf"), 3e38]))
    elif kind == "shape":
        tensors[name] = torch.zeros(rng.choice([(0,), (1,), (3, 5), (2, 2, 2)]))
    elif kind == "dtype":
        tensors[name] = tensors[name].to(rng.choice([torch.int64, torch.bool, torch.float64, torch.bfloat16]))
    elif kind == "drop":
        del tensors[name]
    elif kind == "rename":
        tensors["../../x"] = tensors.pop(name)
    data = b"" if kind == "empty" else save(tensors)
    if kind == "length":
        data = (2 ** rng.choice([20, 40, 63])).to_bytes(8, "little") + data[8:]
    elif kind == "header":
        data = data.replace(b'"shape":[', b'"shape":[' + rng.choice([b"-1,", b"99999999999,", b'"x",']), 1)
    path.write_bytes(data)


def raised_by_transformers(error: Exception) -> bool:
    """Whether a library that reads Hugging Face folders has refused something, and not our code."""
    frames = [
        frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    ours = max(number for number, name in enumerate(frames) if name in {"lengthwise", "tests"})
    return not {"transformers", "huggingface_hub", "safetensors", "tokenizers"}.isdisjoint(frames[ours:])
