"""Make tidy tables from rows: accuracy at each length, and a line of scores for each (task, encoding, seed).

A run that is not done, or was tested at fewer lengths than the others of its task, has null scores and never counts as
0 in a mean. Sums are taken in order of length, so that results are bit-equal for any order of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError
from lengthwise.statistics.learned import (
    EXHAUSTED,
    add_score_column,
    enough_runs_learned,
    learned_runs,
    scored_rows_filter,
)

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.study.plan import GridPoint, Item

MEASURES = {
    "unseen": "mean accuracy at unseen lengths, L+1 to 2L",
    "corrected": "mean of (accuracy − chance) / (1 − chance) at unseen lengths",
    "area": "area under accuracy against length over (L, 2L], as a share of its width",
    "content": "mean accuracy at unseen lengths if the model were told where to stop",
    "micro": "right answers among all examples of unseen lengths, as the original study counts",
    "seen": "mean accuracy at seen lengths",
}
"""The measures of a run, which are columns of `score_table`, and their descriptions."""
AXES = ("task", "encoding", "seed")


def label_runs(items: Iterable[Item], waiting: Iterable[GridPoint] = ()) -> pl.DataFrame:
    """Return the labels of each run of a study: `run, task, encoding, positions, model, training, seed, stage`.

    Use `label_runs(*Planned(study).items(summaries))`. Points that wait for their learning rate have no run.
    """
    import polars as pl

    found = [{"run": item.run_id, **item.point.labels()} for item in items if item.kind == "run"]
    found += [{"run": None, **cell.labels()} for cell in waiting]
    words = dict.fromkeys(("run", "task", "encoding", "positions", "model", "training"), pl.String)
    return pl.DataFrame(found, schema={**words, "seed": pl.Int64, "stage": pl.Int64}).unique(maintain_order=True)


def join_axis_labels(run_labels: pl.DataFrame, axes: Sequence[str]) -> pl.DataFrame:
    """Join axes into one label, to compare more than encodings: ["encoding", "positions"] gives `rope, randomized`."""
    import polars as pl

    unknown = [axis for axis in axes if axis not in run_labels.columns]
    if unknown:
        raise SpecError(f"there is no axis {unknown[0]!r}; there are {', '.join(run_labels.columns)}")
    return run_labels.with_columns(pl.concat_str([pl.col(axis) for axis in axes], separator=", ").alias("encoding"))


def accuracy_table(
    rows: pl.DataFrame, run_labels: pl.DataFrame, checkpoint: str = "last", evaluation: str = "as trained"
) -> pl.DataFrame:
    """Return accuracy per length: `task, encoding, seed, run, split, seen, length, examples, correct, ..., accuracy`.

    `content` is the accuracy if the model were told where to stop, null if unknown. Subgroups of a length are added up;
    seen lengths with fewer than 8 examples are left out. e.g. 250 of 256 right gives .977.
    """
    import polars as pl

    _one_run_each(run_labels)
    kept = rows.filter(scored_rows_filter(checkpoint, evaluation))
    content = pl.col("correct_content")
    return (
        kept.group_by("run", "split", "seen", "length")
        .agg(
            pl.col("examples").sum(),
            pl.col("correct").sum(),
            pl.when(content.is_null().any()).then(None).otherwise(content.sum()).alias("correct_content"),
            pl.col("chance").max(),
        )
        .filter(~(pl.col("seen") & (pl.col("examples") < EXHAUSTED)) & (pl.col("examples") > 0))
        .with_columns(
            (pl.col("correct") / pl.col("examples")).alias("accuracy"),
            (pl.col("correct_content") / pl.col("examples")).alias("content"),
        )
        .join(run_labels.select("run", *AXES), on="run", how="inner")
        .select(*AXES, "run", "split", "seen", "length", "examples", "correct", "chance", "accuracy", "content")
        .sort(*AXES, "split", "length")
    )


def score_table(
    rows: pl.DataFrame, run_labels: pl.DataFrame, checkpoint: str = "last", evaluation: str = "as trained"
) -> pl.DataFrame:
    """Return a line for each (task, encoding, seed): the measures above, and their variances due to the test set.

    Further columns: whether the run `learned` the seen lengths, the step at which it `diverged` (if `run_labels` has
    that column), `examples, correct, chance` over the unseen lengths, `lengths`, and for each measure
    `noise_<measure>`, its conservative variance due to the examples, Σ w² p(1 − p)/m with the weight w of a length in
    the measure: .5 at one length of 256 examples gives .25/256. The seen score uses `test_seen`, or
    `validation` for tasks without it.
    """
    import polars as pl

    table = accuracy_table(rows, run_labels, checkpoint, evaluation)
    wanted = table.filter(pl.col("split") == "test_unseen")
    trained = table.filter(pl.col("seen")).group_by("task").agg(pl.col("length").max().alias("trained"))
    # All runs of a task are tested at the same lengths; a run that lacks some has no score.
    asked = wanted.group_by("task").agg(pl.col("length").n_unique().alias("asked"))
    p, m, chance, content = pl.col("accuracy"), pl.col("examples"), pl.col("chance"), pl.col("content")
    width, noise = pl.col("width"), p * (1 - p) / m
    before = pl.col("length").shift(1).over("run", order_by="length").fill_null(pl.col("trained"))
    unseen = (
        wanted.join(trained, on="task", how="left")
        .with_columns((pl.col("length") - before).alias("width"), (chance * m).alias("guessed"))
        .sort("run", "length")
        .group_by("run", maintain_order=True)
        .agg(
            pl.len().alias("lengths"),
            p.mean().alias("unseen"),
            _known(((p - chance) / (1 - chance)).mean(), chance).alias("corrected"),
            _known((p * width).sum() / width.sum(), width).alias("area"),
            _known(content.mean(), content).alias("content"),
            (pl.col("correct").sum() / m.sum()).alias("micro"),
            (noise.sum() / pl.len() ** 2).alias("noise_unseen"),
            _known((noise / (1 - chance) ** 2).sum() / pl.len() ** 2, chance).alias("noise_corrected"),
            _known((noise * width**2).sum() / width.sum() ** 2, width).alias("noise_area"),
            _known((content * (1 - content) / m).sum() / pl.len() ** 2, content).alias("noise_content"),
            ((noise * m**2).sum() / m.sum() ** 2).alias("noise_micro"),
            m.sum(),
            pl.col("correct").sum(),
            _known(pl.col("guessed").sum() / m.sum(), chance).alias("chance"),
        )
    )
    given = (
        run_labels
        if "diverged" in run_labels.columns
        else run_labels.with_columns(pl.lit(None, pl.Int64).alias("diverged"))
    )
    found = (
        given.select(*AXES, "run", "diverged")
        .join(unseen, on="run", how="left")
        .join(_seen(table), on="run", how="left")
        .join(asked, on="task", how="left")
    )
    whole = pl.col("lengths") == pl.col("asked")
    noises = [f"noise_{name}" for name in MEASURES]
    told = [
        name for name in (*MEASURES, *noises, "examples", "correct", "chance") if name not in {"seen", "noise_seen"}
    ]
    return (
        found.with_columns([pl.when(whole).then(pl.col(name)).otherwise(None).alias(name) for name in told])
        .with_columns(
            pl.when(pl.col("diverged").is_not_null()).then(False).otherwise(pl.col("learned")).alias("learned")
        )
        .select(*AXES, "run", *MEASURES, "learned", "diverged", "lengths", "examples", "correct", "chance", *noises)
        .sort(*AXES)
    )


def trained_cells(rows: pl.DataFrame, run_labels: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Return (task, encoding) → the median run's mean accuracy on examples that it was trained on.

    Above the accuracy at seen lengths, it shows how much was learned by heart. Rows without such examples give nothing.
    """
    import polars as pl

    here = (pl.col("checkpoint") == "last") & (pl.col("evaluation") == "as trained") & (pl.col("split") == "train")
    return {
        (task, encoding): value
        for task, encoding, value in rows.filter(here)
        .group_by("run", "length")
        .agg((pl.col("correct").sum() / pl.col("examples").sum()).alias("accuracy"))
        .group_by("run")
        .agg(pl.col("accuracy").mean())
        .join(run_labels.select("run", *AXES), on="run", how="inner")
        .group_by("task", "encoding")
        .agg(pl.col("accuracy").median())
        .iter_rows()
    }


def learned_cells(scores: pl.DataFrame) -> pl.DataFrame:
    """Return `task, encoding, seeds, learned`: whether enough runs of each cell learned the seen lengths.

    `scores` is the result of `score_table`. `learned` is null if no seed was tested; diverged runs have not learned.
    """
    import polars as pl

    runs = scores.group_by("task", "encoding").agg(
        pl.col("learned").count().alias("seeds"), pl.col("learned").sum().alias("runs")
    )
    told = [
        enough_runs_learned(runs, seeds) if seeds else None for seeds, runs in runs.select("seeds", "runs").iter_rows()
    ]
    return runs.with_columns(pl.Series("learned", told, dtype=pl.Boolean)).drop("runs").sort("task", "encoding")


def tasks_learned_by_all(scores: pl.DataFrame) -> list[str]:
    """Return the tasks that every encoding learned; a task is left out if this is unknown for some encoding."""
    import polars as pl

    all_of_it = learned_cells(scores).group_by("task").agg(pl.col("learned").fill_null(False).all())
    return sorted(all_of_it.filter(pl.col("learned"))["task"].to_list())


def _seen(table: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    own, p = pl.col("split") == "test_seen", pl.col("accuracy")
    noise = p * (1 - p) / pl.col("examples")
    apart = table.filter(pl.col("seen") & (own | ((pl.col("split") == "validation") & ~own.any().over("task"))))
    asked = apart.group_by("task").agg(pl.col("length").n_unique().alias("asked"))
    means = (
        apart.sort("run", "length")
        .group_by("run", "task", maintain_order=True)
        .agg(p.mean().alias("seen"), (noise.sum() / pl.len() ** 2).alias("noise_seen"), pl.len().alias("there"))
        .join(asked, on="task", how="left")
    )
    whole = pl.col("there") == pl.col("asked")
    told = [pl.when(whole).then(pl.col(name)).alias(name) for name in ("seen", "noise_seen", "learned")]
    return means.join(_learned(apart), on="run", how="left").select("run", *told)


def _learned(apart: pl.DataFrame) -> pl.DataFrame:
    return learned_runs(add_score_column(apart)).select("run", "learned")


def _known(value: pl.Expr, needed: pl.Expr) -> pl.Expr:
    """Return the value, or null if any of `needed` is null: a mean over the rest would be another measure."""
    import polars as pl

    return pl.when(needed.is_null().any()).then(None).otherwise(value)


def _one_run_each(named: pl.DataFrame) -> None:
    twice = named.filter(named.select(*AXES).is_duplicated())
    if twice.height:
        first = twice.sort(*AXES).row(0, named=True)
        raise SpecError(
            f"{first['task']}, {first['encoding']}, seed {first['seed']} has more than one run: "
            "keep one value of the other axes, or name them with join_axis_labels(labels, [axes])"
        )
