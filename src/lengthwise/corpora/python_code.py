"""Python source code of this machine as a corpus that needs no network: the standard library and installed packages.

The list of files (package, version, licence, path, sha256, split) is what is committed, not the files. Whoever has the
same versions installed prepares the same corpus from it. A package is in one split as a whole, together with every
package that shares files with it, so that test files come from unseen packages.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.spec import SpecError, digest

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("package", "version", "licence", "path", "bytes", "sha256", "split")
STANDARD = "python"
"""The name of the standard library in the list."""
LARGEST_SHARE = 0.15
"""No package has more than this share of the bytes."""
SHARED = 0.5
"""Two packages share a file if more than this part of its shingles is in files of the other."""
_SHINGLE = 5
"""Lines of a shingle."""
_SIZES = (256, 1_000_000)
"""Bytes of the smallest and the largest file that is taken."""
_VENDORED = re.compile(
    r"(^|/)(_?vendor(ed)?|third_?party|extern(als?)?|_internal/.*vendor|site-packages|node_modules)/"
)


_LICENCES = ("License-Expression", "Classifier", "License")
"""Where a package states its licence."""


def list_python_code(most_bytes: int | None = None, validation: float = 0.03, test: float = 0.1) -> pl.DataFrame:
    """List the Python files of the standard library and of installed packages, with the split of each.

    Vendored folders and exact copies are left out. With `most_bytes`, files are drawn by their hash until it is
    reached. `validation` and `test` are shares of the bytes.
    """
    import polars as pl

    rows, seen, where = list[dict[str, Any]](), set[str](), dict[str, Path]()
    for name, version, licence, root, paths in _packages():
        for path in sorted(paths):
            data = (root / path).read_bytes()
            sha = hashlib.sha256(data).hexdigest()
            if sha in seen or not _SIZES[0] <= len(data) <= _SIZES[1] or not _is_text(data):
                continue
            seen.add(sha)
            rows.append(
                {"package": name, "version": version, "licence": licence, "path": path}
                | {"bytes": len(data), "sha256": sha, "split": ""}
            )
            where[name] = root
    rows, shingles = _limited(rows, most_bytes), dict[str, list[frozenset[int]]]()
    for row in rows:
        data = (where[row["package"]] / row["path"]).read_bytes()
        shingles.setdefault(row["package"], []).append(_shingles(data))
    together = _sharing(shingles)
    sides = _sides(rows, together, validation, test)
    for row in rows:
        row["split"] = sides[together[row["package"]]]
    return pl.DataFrame(rows, schema={name: pl.Int64 if name == "bytes" else pl.String for name in COLUMNS})


def locate(versions: Mapping[str, str]) -> dict[str, Path]:
    """Return the folder that the paths of each package start from; raise unless all are installed in these versions."""
    there = {_name(found): (found.version, Path(str(found.locate_file("")))) for found in _distributions()}
    there[STANDARD] = (sysconfig.get_python_version(), Path(sysconfig.get_path("stdlib")))
    other = [
        f"{name} {version} ({f'{there[name][0]} is installed' if name in there else 'not installed'})"
        for name, version in versions.items()
        if name not in there or there[name][0] != version
    ]
    if other:
        wanted = " ".join(f"{one.split()[0]}=={one.split()[1]}" for one in other if not one.startswith(f"{STANDARD} "))
        cure = f"; in an environment of its own: pip install --no-deps {wanted}" if wanted else ""
        raise SpecError(f"the list has files of {', '.join(other)}{cure}")
    return {name: there[name][1] for name in versions}


def _distributions() -> list[Distribution]:
    """The installed packages by name; of two with one name, as on two folders of a path, the one that is imported."""
    first: dict[str, Distribution] = {}
    for found in distributions():
        first.setdefault(_name(found), found)
    return [found for _, found in sorted(first.items())]


def _name(found: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()


def _packages() -> Iterator[tuple[str, str, str, Path, list[str]]]:
    """Name, version, licence, folder and Python files of each package, in the order of the names."""
    standard = Path(sysconfig.get_path("stdlib"))
    files = [str(path.relative_to(standard)) for path in standard.rglob("*.py") if path.is_file()]
    yield STANDARD, sysconfig.get_python_version(), "PSF-2.0", standard, [f for f in files if not _VENDORED.search(f)]
    for found in _distributions():
        if _name(found) == "lengthwise":
            continue  # a model that is trained on its own laboratory
        root = Path(str(found.locate_file("")))
        paths = [str(path) for path in found.files or () if path.suffix == ".py"]
        paths = [path for path in paths if not path.startswith("..") and not _VENDORED.search(path)]
        there = [path for path in paths if (root / path).is_file()]
        yield _name(found), found.version, _licence(found), root, there


def _licence(found: Distribution) -> str:
    """The licence that a package states, in a few words."""
    said: dict[str, list[str]] = {key: found.metadata.get_all(key) or [] for key in _LICENCES}
    kinds = [one.rpartition(" :: ")[2] for one in said["Classifier"] if one.startswith("License ::")]
    told = next(filter(None, [said["License-Expression"], kinds, said["License"]]), ["not stated"])
    return " ".join(", ".join(told).split())[:80]


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode("utf-8").strip())
    except UnicodeDecodeError:
        return False


def _shingles(data: bytes) -> frozenset[int]:
    """Hashes of every five consecutive lines that say something."""
    lines = [line.strip() for line in data.split(b"\n")]
    lines = [line for line in lines if len(line) > 3 and not line.startswith(b"#")]
    return frozenset(hash(tuple(lines[n : n + _SHINGLE])) for n in range(max(len(lines) - _SHINGLE + 1, 0)))


def _sharing(shingles: dict[str, list[frozenset[int]]]) -> dict[str, str]:
    """Name the group of each package: those that share a file, directly or over others, are in one."""
    where: dict[int, set[str]] = defaultdict(set)
    for package, files in shingles.items():
        for file in files:
            for one in file:
                where[one].add(package)
    group = {package: package for package in shingles}

    def first(package: str) -> str:
        while group[package] != package:
            package = group[package]
        return package

    for package, files in shingles.items():
        for file in files:
            counts: dict[str, int] = defaultdict(int)
            for one in file:
                for other in where[one]:
                    counts[other] += 1
            for other, count in counts.items():
                if other != package and count > SHARED * len(file):
                    group[first(package)] = first(other)
    return {package: first(package) for package in shingles}


def _limited(rows: Sequence[dict[str, Any]], most_bytes: int | None) -> list[dict[str, Any]]:
    """Draw files by their hash, so that no package has more than its share, and all are at most so many bytes."""
    ordered = sorted(rows, key=lambda row: row["sha256"])
    room = sum(row["bytes"] for row in rows)
    room = room if most_bytes is None else min(room, most_bytes)
    while True:
        own, done, kept = defaultdict[str, int](int), 0, list[dict[str, Any]]()
        for row in ordered:
            size, package = row["bytes"], row["package"]
            if done + size <= room and own[package] + size <= LARGEST_SHARE * room:
                kept.append(row)
                own[package] += size
                done += size
        if max(own.values(), default=0) <= LARGEST_SHARE * done:
            return sorted(kept, key=lambda row: (row["package"], row["path"]))
        room = done  # what was left out makes the shares of the others larger


def _sides(rows: Sequence[dict[str, Any]], together: dict[str, str], validation: float, test: float) -> dict[str, str]:
    """Give whole groups to test and validation, in the order of their hash, until each has its share of the bytes."""
    size: dict[str, int] = defaultdict(int)
    for row in rows:
        size[together[row["package"]]] += row["bytes"]
    whole, sides, share = sum(size.values()), dict[str, str](), {"test": test, "validation": validation}
    filled: dict[str, int] = defaultdict(int)
    for group in sorted(size, key=lambda name: digest("side", name)):
        side = next((name for name in share if filled[name] + size[group] <= share[name] * whole), "train")
        sides[group] = side
        filled[side] += size[group]
    return sides
