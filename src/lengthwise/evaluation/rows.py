"""Rows of results: counts per (checkpoint, split, length, subgroup). They are what evaluation passes to reports.

A missing value is null, never 0. `examples` = `correct` + `early` + `late` + `wrong` + `cut`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

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
    "tokens": "Int64",  # of the longest sequence; null where evaluation had stopped, see `stop_after_zeros`
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


PREDICTIONS = {
    **{"evaluation": "String", "checkpoint": "String", "split": "String", "length": "Int64"},
    **{"first": "Int64", "last": "Int64", "kind": "String"},
    **{"prompt": "String", "answer": "String", "said": "String", "first_wrong": "Int64"},
    **{"step": "Int64", "component": "String"},
}
"""The columns of predictions: one line per wrong answer; right ones are ranges of indices, first to last."""
OUTCOME_KINDS = {"run": "String", **{name: PREDICTIONS[name] for name in ("split", "length", "first", "last", "kind")}}
"""The columns of a bundle's outcomes, which have no texts."""
_MOST_EXAMPLES, _MOST_ROWS, _FEW_ROWS = 10_000_000, 20_000_000, 10_000

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
        few = min(_FEW_ROWS, _MOST_ROWS)
        table = pl.read_parquet(BytesIO(data), n_rows=few + 1)  # a small file can say that it has billions
        if table.height <= few:
            return table
        rows = pl.scan_parquet(BytesIO(data)).select(pl.len()).collect().item()  # from the metadata, without reading
        if rows > _MOST_ROWS:
            raise Damaged(f"{source} has {rows:,} lines, more than the {_MOST_ROWS:,} that are read")
        return pl.read_parquet(BytesIO(data))
    except Damaged:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Damaged(
            f"{source} is damaged: it is no parquet file that can be read ({type(error).__name__})"
        ) from error


def read_rows(data: bytes, source: str) -> pl.DataFrame:
    """The rows in a parquet file, after the checks of `validate`."""
    return validate(frame_from_parquet(data, source), source)


def read_predictions(data: bytes, source: str, columns: Mapping[str, str] = PREDICTIONS) -> pl.DataFrame:
    """The predictions in a parquet file; raises for ones that no evaluation can have written."""
    return _valid_predictions(_with_columns(frame_from_parquet(data, source), columns, source, "predictions"), source)


def validate_predictions(tables: Mapping[str, pl.DataFrame], source: str) -> pl.DataFrame:
    """Return the predictions of several runs, checked together, with the run's key in the column `run`."""
    return _valid_predictions(_stacked(tables, PREDICTIONS, "run", source, "predictions"), source)


def _valid_predictions(table: pl.DataFrame, source: str) -> pl.DataFrame:
    import polars as pl

    whole = [pl.col(name).is_not_null() for name in ("split", "length", "first", "last", "kind")]
    within = [pl.col("length").is_between(0, 1_000_000), pl.col("first") >= 0, pl.col("last") < _MOST_EXAMPLES]
    if table.filter(~pl.all_horizontal(*whole, *within, pl.col("first") <= pl.col("last"))).height:
        raise Damaged(f"{source} has predictions that no evaluation writes: a length or a range of examples is wrong")
    if (table["last"] - table["first"] + 1).sum() > 100 * _MOST_EXAMPLES:
        raise Damaged(f"{source} has predictions that no evaluation writes: ranges of too many examples")
    return table


def _with_columns(table: pl.DataFrame, columns: Mapping[str, str], source: str, of: str) -> pl.DataFrame:
    """The table with these columns alone; raises if one is missing or of another type."""
    import polars as pl

    wanted: dict[Any, Any] = {name: getattr(pl, kind) for name, kind in columns.items()}
    schema = table.schema
    if list(schema.items()) == list(wanted.items()):
        return table
    wrong = [name for name, kind in wanted.items() if schema.get(name) not in (kind, pl.Null)]
    if wrong:
        raise Damaged(f"{source} has no {of}: column {wrong[0]!r} is missing or of another type")
    return table.select(list(columns)).cast(wanted)


def _stacked(
    tables: Mapping[str, pl.DataFrame], columns: Mapping[str, str], name: str, source: str, of: str
) -> pl.DataFrame:
    """The tables below each other, with the key of each in the column `name`."""
    import polars as pl

    own = [pl.DataFrame(schema={name: getattr(pl, kind) for name, kind in columns.items()})]
    own += [_with_columns(table, columns, source, of) for table in tables.values()]
    keys = np.repeat(np.array(["", *tables], dtype=object), [table.height for table in own])
    return pl.concat(own).with_columns(pl.Series(name, keys, dtype=pl.String))


def validate_runs(tables: Mapping[str, pl.DataFrame], source: str) -> pl.DataFrame:
    """Return the rows of several runs, checked together, with the run's key in the column `key`.

    Raises for rows that no evaluation can have written, and for rows of another run.
    """
    import polars as pl

    rows = validate(_stacked(tables, COLUMNS, "key", source, "rows of results"), source)
    if rows.filter(pl.col("run").ne_missing(pl.col("key").str.extract("^([^~]*)"))).height:
        raise Damaged(f"{source} has rows of another run")
    return rows


def validate(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the rows, with only the columns above; raises for rows that no evaluation can have written."""
    import polars as pl

    keyed = {"key": "String"} if "key" in rows.columns else {}
    rows = _with_columns(rows, {**COLUMNS, **keyed}, source, "rows of results")
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
        "one is there twice": pl.struct(*KEYS, *keyed).is_duplicated(),
    }
    failed = rows.select(mask.any().alias(why) for why, mask in broken.items()).row(0, named=True)  # in one pass
    for why, mask in broken.items():
        if failed[why]:
            first = rows.filter(mask).row(0, named=True)
            raise Damaged(
                f"{source} has rows that no evaluation writes: {why} (run {first['run']}, length {first['length']})"
            )
    return rows
