"""Rows of results: counts per (checkpoint, split, length, subgroup). They are what evaluation passes to reports.

A missing value is null, never 0. `examples` = `correct` + `early` + `late` + `wrong` + `cut`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING

from lengthwise.checksums import Damaged

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


KEYS = ("run", "evaluation", "checkpoint", "split", "length", "subgroup")
"""What a row is of; there is one for each."""


def rows_to_frame(rows: Iterable[Mapping[str, object]]) -> pl.DataFrame:
    """Rows as a table with the types above."""
    import polars as pl

    return pl.DataFrame(list(rows), schema={name: getattr(pl, kind) for name, kind in COLUMNS.items()})


def frame_to_parquet(table: pl.DataFrame) -> bytes:
    """The bytes of a parquet file: the same bytes for the same table."""
    data = BytesIO()
    table.write_parquet(data, compression="zstd")
    return data.getvalue()


def frame_from_parquet(data: bytes, source: str = "a table") -> pl.DataFrame:
    """The table in a parquet file; raises for bytes that are none."""
    import polars as pl

    try:
        return pl.read_parquet(BytesIO(data))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Damaged(
            f"{source} is damaged: it is no parquet file that can be read ({type(error).__name__})"
        ) from error


def read_rows(data: bytes, source: str) -> pl.DataFrame:
    """The rows in a parquet file, after the checks of `validate`."""
    return validate(frame_from_parquet(data, source), source)


def validate(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the rows, with only the columns above; raises for rows that no evaluation can have written."""
    import polars as pl

    wrong = [name for name, kind in COLUMNS.items() if rows.schema.get(name) not in (getattr(pl, kind), pl.Null)]
    if wrong:
        raise Damaged(f"{source} has no rows of results: column {wrong[0]!r} is missing or of another type")
    rows = rows.select(*COLUMNS, *(name for name in ("key",) if name in rows.columns))
    outcomes = ("correct", "early", "late", "wrong", "cut")
    counts, further = ("examples", *outcomes), ("correct_content", "tokens", "targets")
    broken = {
        "a count is missing or negative": pl.any_horizontal(
            *((pl.col(name).fill_null(-1) < 0) for name in counts),
            *((pl.col(name).fill_null(0) < 0) for name in further),  # not known of every model
        ),
        "the outcomes do not add up to the examples": pl.sum_horizontal(*outcomes) != pl.col("examples"),
        "there are more correct contents than examples": pl.col("correct_content") > pl.col("examples"),
        "a length is not from 0 to a million": ~pl.col("length").is_between(0, 1_000_000).fill_null(False),
        "`seen` is missing": pl.col("seen").is_null(),
        "chance is no probability": ~pl.col("chance").is_between(0, 1).fill_null(True),
        "a loss is no number from 0": ~((pl.col("loss") >= 0) & pl.col("loss").is_finite()).fill_null(True),
    }
    for why, mask in broken.items():
        if (found := rows.filter(mask)).height:
            first = found.row(0, named=True)
            raise Damaged(
                f"{source} has rows that no evaluation writes: {why} (run {first['run']}, length {first['length']})"
            )
    if rows.select(*KEYS).is_duplicated().any():
        raise Damaged(f"{source} has rows that no evaluation writes: one is there twice")
    return rows
