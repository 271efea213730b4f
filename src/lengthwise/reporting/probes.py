"""Figures of position probes: error by layer, the effect of √m, and variance of attention's output by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.encoding.labels import label_of
from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.palette import FAINT, INK, colour, dash, marker

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
BASELINES = {"random": ("random guess", ":"), "constant": ("best constant", "--"), "token": ("token alone", "-.")}
WORDS = {"seen": "seen lengths", "unseen": "unseen lengths", "beyond": "positions beyond training"}
CHANGES: dict[str, dict[str, str]] = {"none": {}, "root_m": {"fill": "white"}, "one_size": {"marker": "x"}}
MODELS = {"trained": "trained", "untrained": "untrained"}


def medians_over_seeds(rows: Rows, group_columns: Sequence[str], value_column: str) -> pl.DataFrame:
    """Return the median, least and greatest value over seeds."""
    import polars as pl

    keys = [*group_columns]
    return (
        pl.DataFrame(list(rows), infer_schema_length=None)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col(value_column).median().alias("median"),
            pl.col(value_column).min().alias("least"),
            pl.col(value_column).max().alias("greatest"),
            pl.len().alias("seeds"),
        )
    )


def probe_error_drawing(rows: Rows, probe_kind: str = "mlp", file_name: str = "probe-mlp") -> Drawing:
    """Draw the probe's mean absolute error of the position by layer: columns are tasks and models, rows test sets."""
    import polars as pl

    own = [row for row in rows if row["change"] == "none" and row["control"] == "none" and _of(row, probe_kind)]
    by = ["task", "documents", "model", "tested", "encoding", "layer"]
    data = medians_over_seeds([row for row in own if row["model"] in MODELS], by, "mae")
    tasks = list(dict.fromkeys((row["task"], row["documents"]) for row in own))
    sets = [one for one in WORDS if any(row["tested"] == one for row in own)]

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        shape = (len(sets), len(tasks) * len(MODELS))
        figure, grid = plt.subplots(
            *shape, figsize=(width, 0.9 + 1.75 * len(sets)), layout="constrained", sharey="row", squeeze=False
        )
        for row, tested in enumerate(sets):
            for column, (task, documents) in enumerate(tasks):
                for further, model in enumerate(MODELS):
                    axes = grid[row][column * len(MODELS) + further]
                    here = data.filter(
                        (pl.col("task") == task)
                        & (pl.col("documents") == documents)
                        & (pl.col("model") == model)
                        & (pl.col("tested") == tested)
                    )
                    _lines(axes, here)
                    like = [one for one in own if one["task"] == task and one["tested"] == tested]
                    _levels(axes, [one for one in like if one["documents"] == documents])
                    axes.set_ylim(bottom=0)
                    axes.xaxis.get_major_locator().set_params(integer=True)
                    if row == 0:
                        axes.set_title(f"{_short(task, documents)}\n{model}", fontsize="small", color=INK)
                    if row == len(sets) - 1:
                        axes.set_xlabel("layer")
            grid[row][0].set_ylabel(f"{WORDS[tested]}\nmean error (tokens)", fontsize="small")
        _legend(figure, grid)
        return figure

    models = "for each encoding, trained and untrained"
    alt = f"Mean absolute error of a {probe_kind} probe of the position, by layer, {models}."
    return Drawing(file_name, alt, data, paint, panels=True)


def _of(row: Mapping[str, Any], kind: str) -> bool:
    """Return whether a figure of this kind of probe shows the row; the constructed state has only a linear probe."""
    return row["probe"] == kind or row["model"] == "constructed"


def _lines(axes: Axes, data: pl.DataFrame) -> None:
    import polars as pl

    names = list(dict.fromkeys(data["encoding"].to_list()))
    for place, encoding in enumerate(names):
        line = data.filter(pl.col("encoding") == encoding).sort("layer")
        beside = line["layer"] + _beside(place, len(names))  # shifted, so that equal errors stay visible
        axes.vlines(beside, line["least"], line["greatest"], color=colour(encoding), linewidth=0.8)
        axes.plot(
            beside,
            line["median"],
            color=colour(encoding),
            marker=marker(encoding),
            markersize=3.5,
            linestyle=dash(encoding),
            linewidth=1.4,
            label=label_of(encoding),
        )


def _beside(place: int, many: int) -> float:
    return (place - (many - 1) / 2) * 0.06


def _levels(axes: Axes, rows: Rows) -> None:
    """Draw the baselines, and the error of the state that Theorem 1 constructs."""
    there = [row for row in rows if row["model"] in MODELS]
    if not there:
        return
    for column, (words, style) in BASELINES.items():
        if there[0]["tested"] != "beyond" or column != "random":
            axes.axhline(there[0][column], color=FAINT, linewidth=0.9, linestyle=style, zorder=1, label=words)
    made = [row for row in rows if row["model"] == "constructed" and row["layer"] == 1]
    if made and made[0]["mae"] <= 2 * there[0]["random"]:
        axes.plot(
            [1],
            [made[0]["mae"]],
            marker="*",
            color="#222222",
            markersize=8,
            ls="none",
            clip_on=False,
            label="Theorem 1's state",
        )


def _legend(figure: Figure, grid: Any) -> None:  # noqa: ANN401
    found: dict[str, Any] = {}
    for axes in grid.flat:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=5, fontsize="small")


def probe_change_drawing(
    rows: Rows, probe_kind: str = "mlp", test_set: str = "seen", file_name: str = "probe-changed"
) -> Drawing:
    """Draw the error as it is (filled), with attention's output times √m (hollow), and with one size of it (cross)."""
    import polars as pl

    own = [
        row
        for row in rows
        if row["probe"] == probe_kind
        and row["tested"] == test_set
        and row["control"] == "none"
        and row["model"] in MODELS
    ]
    data = medians_over_seeds(own, ["task", "documents", "model", "encoding", "layer", "change"], "mae")
    tasks = list(dict.fromkeys((row["task"], row["documents"]) for row in own))

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(
            len(tasks),
            len(MODELS),
            figsize=(width, 0.8 + 1.9 * len(tasks)),
            layout="constrained",
            sharey="row",
            squeeze=False,
        )
        for row, (task, documents) in enumerate(tasks):
            for column, model in enumerate(MODELS):
                axes = grid[row][column]
                here = data.filter(
                    (pl.col("task") == task) & (pl.col("documents") == documents) & (pl.col("model") == model)
                )
                names = list(dict.fromkeys(here["encoding"].to_list()))
                for place, encoding in enumerate(names):
                    mine = here.filter(pl.col("encoding") == encoding)
                    for layer in sorted(set(mine["layer"])):
                        at = {one["change"]: one["median"] for one in mine.filter(pl.col("layer") == layer).to_dicts()}
                        where, tint = [layer + 2 * _beside(place, len(names))], colour(encoding)
                        axes.plot(where * len(at), list(at.values()), color=tint, linewidth=1)
                        for change, look in CHANGES.items():
                            if change in at:
                                shape = look.get("marker", marker(encoding))
                                fill = look.get("fill", tint)
                                axes.plot(where, [at[change]], shape, color=tint, markerfacecolor=fill, markersize=4)
                    axes.plot([], [], marker(encoding), color=colour(encoding), label=label_of(encoding))
                _levels(axes, [one for one in own if one["task"] == task and one["documents"] == documents])
                axes.set_ylim(bottom=0)
                axes.xaxis.get_major_locator().set_params(integer=True)
                axes.set_title(f"{_short(task, documents)}, {model}", fontsize="small", color=INK)
                if row == len(tasks) - 1:
                    axes.set_xlabel("layer (filled: as it is; hollow: times √m; ×: one size)")
            grid[row][0].set_ylabel("mean error (tokens)", fontsize="small")
        _legend(figure, grid)
        return figure

    alt = (
        f"Error of a {probe_kind} probe as it is, with attention's output times the root of m, and with one size of it."
    )
    return Drawing(file_name, alt, data, paint, panels=True)


def variance_by_position_drawing(rows: Rows, document_kind: str, file_name: str = "probe-spread") -> Drawing:
    """Draw the variance of attention's output and of the normalised state by position: trained solid, start dotted."""
    import polars as pl

    own = [
        row
        for row in rows
        # If all documents have the same token, the variance is only rounding error.
        if row["documents"] == document_kind and row["variance"] > 1e-9 * row["power"]
    ]
    data = medians_over_seeds(own, ["task", "model", "quantity", "encoding", "layer", "m"], "variance")
    tasks = list(dict.fromkeys(row["task"] for row in own))
    quantities = sorted({row["quantity"] for row in own}, reverse=True)
    places = [(task, layer) for task in tasks for layer in sorted({r["layer"] for r in own if r["task"] == task})]

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt
        from matplotlib.ticker import NullFormatter

        figure, grid = plt.subplots(
            len(quantities),
            len(places),
            figsize=(width, 0.9 + 1.8 * len(quantities)),
            layout="constrained",
            sharey="row",
            squeeze=False,
        )
        for row, quantity in enumerate(quantities):
            for column, (task, layer) in enumerate(places):
                axes = grid[row][column]
                here = data.filter(
                    (pl.col("task") == task) & (pl.col("quantity") == quantity) & (pl.col("layer") == layer)
                )
                for encoding in dict.fromkeys(here["encoding"].to_list()):
                    for model in MODELS:
                        line = here.filter((pl.col("encoding") == encoding) & (pl.col("model") == model)).sort("m")
                        axes.plot(
                            line["m"],
                            line["median"],
                            color=colour(encoding),
                            linewidth=1.4 if model == "trained" else 0.9,
                            linestyle="-" if model == "trained" else ":",
                            label=label_of(encoding) if model == "trained" else None,
                        )
                axes.set(xscale="log", yscale="log")
                axes.xaxis.set_minor_formatter(NullFormatter())
                if row == 0:
                    axes.set_title(f"{_short(task, 'task')}\nlayer {layer}", fontsize="small", color=INK)
                if row == len(quantities) - 1:
                    axes.set_xlabel(f"m, {document_kind}", fontsize="small")
            grid[row][0].set_ylabel(f"{quantity}, variance\n(dotted: at the start)", fontsize="small")
        far = max(row["m"] for row in own)
        for axes in grid[0]:
            top = axes.get_ylim()[1]
            axes.plot([1, far], [top, top / far], color=FAINT, linewidth=0.9, linestyle="--", label="1/m")
        _legend(figure, grid)
        return figure

    alt = (
        "Variance of attention's output and of the normalised state against position, trained (solid), start (dotted)."
    )
    return Drawing(file_name, alt, data, paint, panels=True)


def _short(task: str, documents: str) -> str:
    name, *options = task.split(":")
    variant = [one.partition("=")[2] for one in options if one.startswith("variant=")]
    words = " ".join([name, *variant])
    return words if documents == "task" else f"{words}, {documents}"
