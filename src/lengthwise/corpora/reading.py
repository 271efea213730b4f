"""Read the documents of a file one by one: JSON lines, parquet, or text with a document per line.

A file is never held in memory as a whole. A line that cannot be read is an error that names it; only blank lines are
skipped.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from lengthwise.spec import SpecError, did_you_mean

USUAL = (
    ("text",),
    ("prompt", "steps", "answer"),  # our own exports
    ("prompt", "answer"),
    ("prompt", "completion"),
    ("input", "target"),
    ("inputs", "targets"),
    ("instruction", "input", "output"),
    ("question", "answer"),
    ("source", "target"),
    ("messages",),
)
"""The fields to read if none are named: the first of these combinations that is complete in the file."""

OnFields = Callable[[tuple[str, ...]], None] | None
"""An optional callback that gets the fields that are read."""

_ROWS = 8192  # rows of a parquet file read at once: half a gigabyte if a document has 10,000 words


def read_texts(path: Path, fields: Sequence[str] | None = None, on_fields: OnFields = None) -> Iterator[str]:
    """Yield the text of each document of a file.

    `.jsonl`, `.ndjson` and `.json` hold an object or a string per line, `.parquet` a document per row, anything else a
    document per line; `.gz` may follow. The texts of `fields` are joined by a space, e.g. "2 + 2 = 4" of
    {"prompt": "2 + 2 =", "answer": 4}; empty ones and null add nothing. A list becomes its items, a message its
    content, without role, tool calls or chat template. If `fields` is None, the first of `USUAL` that the first object
    has is used for the whole file; `on_fields` is called with the fields.
    """
    if not path.exists():
        raise SpecError(f"there is no file '{path}'; give its path from the current directory")
    if path.is_dir():
        raise SpecError(f"'{path}' is a directory; name one file in it")
    for index, name in enumerate(fields or ()):
        if name in (fields or ())[:index]:
            raise SpecError(f"field {name!r} is given twice; name each field once")
    if fields is not None and not fields:
        raise SpecError("no field is named; name at least one, e.g. prompt,answer")
    kind = path.name.lower().removesuffix(".gz")
    if kind.endswith(".parquet"):
        return _some(path, _parquet(path, fields, on_fields))
    if kind.endswith((".jsonl", ".ndjson", ".json")):
        return _some(path, _json(path, fields, on_fields))
    if fields:
        raise SpecError(f"'{path}' is read as text, a document per line, and has no fields; leave {fields[0]!r} out")
    return _some(path, (text for _, text in _lines(path)))


def _some(path: Path, found: Iterable[str]) -> Iterator[str]:
    """Yield what was found; raise if there are no documents."""
    none = True
    for text in found:
        none = False
        yield text
    if none:
        raise SpecError(f"'{path}' holds no documents; is it the right file?")


# --- the kinds of files ----------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each non-blank line, after a description of where it is."""
    packed = path.name.lower().endswith(".gz")
    number = 0
    try:
        with cast(BinaryIO, gzip.open(path)) if packed else path.open("rb") as file:
            # Read bytes, so that only a line feed ends a line, and the number of an undecodable line is known.
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text and not text.isspace():
                    yield f"'{path}', line {number}", text
    except UnicodeDecodeError as error:
        raise SpecError(f"'{path}', line {number} is not UTF-8 text: {error.reason}; convert the file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise SpecError(f"'{path}' cannot be read after line {number}: {error}") from error


def _json(path: Path, fields: Sequence[str] | None, on_fields: OnFields) -> Iterator[str]:
    chosen: tuple[str, ...] | None = None
    for where, line in _lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{where} is not JSON: {error}{_one_per_line(path, line)}") from error
        if isinstance(value, dict):
            if chosen is None:
                chosen = _choose(value, fields, where)
                if on_fields is not None:
                    on_fields(chosen)
            yield _join(value, chosen, where)
        elif isinstance(value, str) and not fields:
            yield value
        elif isinstance(value, str) and fields:
            raise SpecError(f"{where} is a string and has no field {fields[0]!r}; leave the fields out")
        else:
            raise SpecError(f"{where} is neither an object nor a string{_one_per_line(path, line)}")


def _one_per_line(path: Path, line: str) -> str:
    """Return a hint if the file looks like a single JSON value over many lines."""
    if line.lstrip().startswith("["):
        return f"; write an object per line: jq -c '.[]' {path.name} > lines.jsonl"
    return f"; write an object per line: jq -c . {path.name} > lines.jsonl" if line.strip() == "{" else ""


def _parquet(path: Path, fields: Sequence[str] | None, on_fields: OnFields) -> Iterator[str]:
    import polars as pl

    try:
        table = pl.scan_parquet(path, glob=False)
        names = table.collect_schema().names()
        chosen = _choose(names, fields, f"'{path}'")
        if on_fields is not None:
            on_fields(chosen)
        rows = table.select(chosen)
        for start in range(0, table.select(pl.len()).collect().item(), _ROWS):
            # Slices are as fast as `collect_batches`, which polars marks as unstable.
            part = rows.slice(start, _ROWS).collect()
            for index, row in enumerate(part.iter_rows(named=True), start=start + 1):
                yield _join(row, chosen, f"'{path}', row {index}")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SpecError(f"'{path}' cannot be read as parquet: {str(error).splitlines()[0]}") from error


# --- fields ----------------------------------------------------------------------------------------------------------


def _choose(there: Iterable[str], fields: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the fields to read: those named, or the first combination of `USUAL` that is complete."""
    there = set(there)
    if fields is None:
        for usual in USUAL:
            if there.issuperset(usual):
                return usual
        raise SpecError(
            f"{where} has no text, prompt and answer, or the like: name the fields.{did_you_mean('', there)}"
        )
    for name in fields:
        if name not in there:
            raise SpecError(f"{where} has no field {name!r}.{did_you_mean(name, there)}")
    return tuple(fields)


def _join(document: Mapping[str, object], fields: Sequence[str], where: str) -> str:
    for name in fields:
        if name not in document:
            hint = did_you_mean(name, document)
            raise SpecError(f"{where} has no field {name!r}, which counts in this file; write null for none.{hint}")
    return " ".join(filter(None, (_text(document[name], f"{where}, field {name!r}") for name in fields)))


def _text(value: object, where: str) -> str:
    """Return the text of a field: "2 4" for [2, null, {"role": "user", "content": "4"}]."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return " ".join(filter(None, (_item(item, where) for item in value)))
    raise SpecError(f"{where} holds {_a(value)}, not text; name a field with text, a number or a list of messages")


def _item(value: object, where: str) -> str:
    """Return the text of a list's item, which may also be a message or a part of one."""
    if isinstance(value, dict):
        for key in ("content", "text", "value"):
            if key in value:
                return _text(value[key], where)
        raise SpecError(f"{where} holds an object with neither 'content', 'text' nor 'value'; convert it to text")
    return _text(value, where)


def _a(value: object) -> str:
    return "an object" if isinstance(value, dict) else f"a value of type {type(value).__name__}"
