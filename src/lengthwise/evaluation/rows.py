"""Rows of results: counts per (checkpoint, split, length, subgroup). They are what evaluation passes to reports.

A missing value is null, never 0. `examples` = `correct` + `early` + `late` + `wrong` + `cut`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

VERSION = 1

COLUMNS = {
    "run": "String",  # the run's id; null for a model that is no run
    "evaluation": "String",  # `as trained`, or what was changed at test time
    "checkpoint": "String",  # last, best, earliest_best, 25%, 50%, 75%
    "split": "String",
    "seen": "Boolean",  # whether the length was trained on
    "length": "Int64",  # in the task's unit
    "subgroup": "String",  # the task's finer unit, or null
    "tokens": "Int64",  # of the longest sequence
    "examples": "Int64",
    "correct": "Int64",
    "correct_content": "Int64",  # right if the model knew where to stop
    "early": "Int64",  # stopped early: a prefix of the answer
    "late": "Int64",  # stopped late: the answer, then more tokens
    "wrong": "Int64",
    "cut": "Int64",  # never stopped
    "chance": "Float64",
    "loss": "Float64",  # summed over targets, teacher-forced
    "targets": "Int64",
}


def rows_to_frame(rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Rows as a table with the types above."""
    import polars as pl

    return pl.DataFrame(list(rows), schema={name: getattr(pl, kind) for name, kind in COLUMNS.items()})


def frame_to_parquet(table: pl.DataFrame) -> bytes:
    """The bytes of a parquet file: the same bytes for the same table."""
    data = BytesIO()
    table.write_parquet(data, compression="zstd")
    return data.getvalue()


def frame_from_parquet(data: bytes) -> pl.DataFrame:
    """The table in a parquet file."""
    import polars as pl

    return pl.read_parquet(BytesIO(data))
