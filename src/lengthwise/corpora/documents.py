"""The documents of a corpus: where they are, in a fixed order, in parts that one worker reads.

A source is a folder or a glob of files on any fsspec path, a list of files that `python_code.py` wrote, or a Hugging
Face dataset. A text or source file is one document; a file of JSON lines or parquet has one per row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lengthwise.folder import readable_errors
from lengthwise.spec import SpecError, digest

DATASET = "dataset:"
"""`dataset:FOLDER` and `dataset:NAME:SPLIT` are Hugging Face datasets."""
SPLITS = ("train", "validation", "test")
_ROWS = 10_000
"""Rows of a dataset in a part."""
_TABLES = (".jsonl", ".ndjson", ".json", ".parquet", ".jsonl.gz", ".ndjson.gz")


class Document(NamedTuple):
    """A document and its key, which is unique in its corpus and decides the order."""

    key: str
    text: str


@dataclass(frozen=True)
class Part:
    """What one worker reads: a file, or rows of a dataset."""

    key: str
    """Its path below the source, e.g. `package/module.py`."""
    url: str
    size: int
    """Bytes, or rows of a dataset."""
    version: str = ""
    """Changes if the content does: a sha256, or what the file system knows (size and time, ETag)."""
    rows: tuple[int, int] | None = None
    split: str = ""
    """The split of all its documents, where a list of files says so; otherwise each document's key decides."""

    def documents(self, fields: Sequence[str] | None = None) -> Iterator[Document]:
        """Read the documents; a file that is not UTF-8, or not the one of the list, is named."""
        if self.rows is not None:
            yield from self._dataset_rows(fields)
        elif self.key.lower().endswith(_TABLES):
            from lengthwise.corpora.reading import read_texts

            if "://" in self.url:
                raise SpecError(f"{self.url} has a document per row, which is read from a local file; copy it here")
            for number, text in enumerate(read_texts(Path(self.url), fields)):
                yield Document(f"{self.key}#{number:09d}", text)
        else:
            yield Document(self.key, self._text())

    def _text(self) -> str:
        import fsspec

        with readable_errors("read", self.url), fsspec.open(self.url, "rb") as file:
            data: bytes = file.read()  # pyrefly: ignore[missing-attribute]
        if self.version.startswith("sha256:") and f"sha256:{hashlib.sha256(data).hexdigest()}" != self.version:
            raise SpecError(f"{self.url} is not the file that the list names: its content has changed")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(f"{self.url} is not UTF-8 text ({error.reason} at byte {error.start})") from None

    def _dataset_rows(self, fields: Sequence[str] | None) -> Iterator[Document]:
        assert self.rows is not None
        for number, row in enumerate(_dataset(self.url).select(range(*self.rows)), self.rows[0]):
            texts = [str(row[name]) for name in fields or ("text",) if row.get(name) is not None]
            yield Document(f"{number:012d}", " ".join(texts))


def find_parts(source: str, suffixes: Sequence[str] = ()) -> list[Part]:
    """List the parts of a folder, a glob, a list of files or a dataset, sorted by key: `find_parts("src/**/*.py")`."""
    if source.startswith(DATASET):
        data = _dataset(source)
        ranges = [(start, min(start + _ROWS, len(data))) for start in range(0, len(data), _ROWS)]
        return [Part(f"{a:012d}", source, b - a, data._fingerprint, (a, b)) for a, b in ranges]
    if source.endswith(".parquet") and (listed := _listed(source)):
        return listed
    import fsspec

    with readable_errors("read", source):
        fs, path = fsspec.core.url_to_fs(source)
        is_glob = any(sign in path for sign in "*?[")
        found = fs.glob(path, detail=True) if is_glob else fs.find(path, detail=True)
        root = _above(path) if is_glob else path.rstrip("/")
        parts = [
            Part(
                name.removeprefix(root).lstrip("/") or name.rpartition("/")[2],
                fs.unstrip_protocol(name).removeprefix("file://"),
                info["size"],
                fs.ukey(name),
            )
            for name, info in found.items()
            if info["type"] == "file" and (not suffixes or name.endswith(tuple(suffixes)))
        ]
    if not parts:
        wanted = f" that end in {', '.join(suffixes)}" if suffixes else ""
        raise SpecError(f"there are no files{wanted} in {source!r}; give a folder, or a glob such as 'src/**/*.py'")
    return sorted(parts, key=lambda part: part.key)


def _listed(source: str) -> list[Part]:
    """The parts of a list of files as `python_code.py` writes it; none for another parquet file."""
    import polars as pl

    from lengthwise.corpora.python_code import COLUMNS, locate

    if not Path(source).is_file() or set(pl.read_parquet_schema(source)) != set(COLUMNS):
        return []
    table = pl.read_parquet(source).sort("package", "path")
    found = locate(dict(table.select("package", "version").unique().sort("package").iter_rows()))
    return [
        Part(
            f"{row['package']}/{row['path']}",
            str(found[row["package"]] / row["path"]),
            row["bytes"],
            f"sha256:{row['sha256']}",
            split=row["split"],
        )
        for row in table.iter_rows(named=True)
    ]


def _above(pattern: str) -> str:
    """The folder above the first wildcard of a glob."""
    fixed = pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)]
    return fixed.rpartition("/")[0]


def _dataset(source: str) -> Any:  # noqa: ANN401
    """Open a dataset: a folder written by `save_to_disk`, or a name with its split."""
    try:
        import datasets
    except ImportError:
        raise SpecError("a Hugging Face dataset needs an extra: pip install 'lengthwise[hf]'") from None
    name = source.removeprefix(DATASET)
    try:
        if Path(name).is_dir():
            found = datasets.load_from_disk(name)
        else:
            name, _, split = name.partition(":")
            found = datasets.load_dataset(name, split=split or "train")
    except (FileNotFoundError, ValueError, ConnectionError) as error:
        raise SpecError(f"the dataset {name!r} cannot be opened: {str(error).splitlines()[0]}") from None
    if not isinstance(found, datasets.Dataset):
        raise SpecError(f"{name!r} has the splits {', '.join(map(str, found))}; name one, e.g. dataset:{name}:train")
    return found


def split_of(key: str, validation: float, test: float, split_by_folder: bool) -> str:
    """Return the split of a document, from its key alone, or from the first folder of it."""
    place = digest("split", key.partition("/")[0] if split_by_folder else key, bits=32) / 2**32
    return "test" if place < test else "validation" if place < test + validation else "train"


def grouped(parts: Sequence[Part], size: int) -> list[list[Part]]:
    """Cut a list of parts, in its order, into groups of at least this size each, except for the last."""
    groups, total = list[list[Part]](), size
    for part in parts:
        if total >= size:
            groups.append([])
            total = 0
        groups[-1].append(part)
        total += part.size
    return groups
