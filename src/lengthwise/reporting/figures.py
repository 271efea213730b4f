"""The figures of each task, with their data: accuracy curves, kinds of failures, training loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.palette import colour, dash

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.transforms import Bbox

    from lengthwise.reporting.findings import Findings

CURVES = 7
"""With more encodings than this, a heat map replaces the curves, which would be hard to tell apart."""
MANY = 12
"""With more encodings than this, a figure shows only some of them, or omits its numbers."""
FEW = 6
"""The number of encodings whose failures are shown if there are more than `MANY`."""
KINDS = {
    "correct": ("right", "#2a9d5c"),
    "early": ("stopped early", "#e9c46a"),
    "late": ("stopped late", "#f4a261"),
    "wrong": ("wrong content", "#c1443c"),
    "cut": ("never stopped", "#6d597a"),
}


LADDER = 16
"""From this multiple of the trained length on, lengths are drawn on a logarithmic axis."""


def study_accuracy_curves(findings: Findings, task: str) -> Drawing:
    """Draw accuracy against length on one task of a study."""
    import polars as pl

    trained, unit = findings.trained[task]
    data = findings.cells.filter(pl.col("task") == task).select(
        "task", "encoding", "seed", "split", "length", "examples", "correct", "accuracy", "chance"
    )
    names = {name: findings.label(name) for name in findings.encodings}
    return accuracy_curves(f"curve-{task_file_name(task)}", findings.short(task), data, names, trained, unit)


def accuracy_curves(
    name: str, task: str, data: pl.DataFrame, labels: Mapping[str, str], trained: int, unit: str
) -> Drawing:
    """Draw accuracy against length: thin lines for seeds, thick for the median, chance; a heat map for many encodings.

    `data` has `encoding, seed, length, accuracy, chance`; `labels` are the encodings in order, with their labels.
    """
    import polars as pl

    there = set(data["encoding"].unique())
    present = [one for one in labels if one in there]

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        if len(present) > CURVES:
            return _map(data, labels, trained, unit, width)
        figure, axes = plt.subplots(figsize=(width, max(2.3, width * 0.46)), layout="constrained")
        _boundary(axes, trained)
        by_length = data.group_by("length").agg(pl.col("chance").max()).sort("length")
        chance: dict[int, float] = dict(by_length.iter_rows())
        if any(chance.values()):
            axes.plot(list(chance), list(chance.values()), color="#555555", linewidth=1, linestyle=":", zorder=1)
            axes.annotate("chance", (max(chance), chance[max(chance)]), fontsize="x-small", ha="right", va="bottom")
        for one in present:
            own = data.filter(pl.col("encoding") == one)
            by = own.group_by("length").agg(pl.col("accuracy").median().alias("middle")).sort("length")
            for _, seed in sorted(own.partition_by("seed", as_dict=True).items()):
                axes.plot(seed["length"], seed["accuracy"], color=colour(one), linewidth=0.7, alpha=0.4, clip_on=False)
            axes.plot(
                by["length"],
                by["middle"],
                color=colour(one),
                linewidth=2,
                linestyle=dash(one),  # pyrefly: ignore[bad-argument-type]
                label=labels[one],
                zorder=3,
                clip_on=False,
            )
        axes.set(xlabel=f"length ({unit})", ylabel="exact match", ylim=(0, 1.06))
        if max(chance) >= LADDER * trained:
            axes.set_xscale("log", base=2)
            axes.set_xlim(trained / 8, None)  # room for the words beside the line
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.set_xlim(0, None)
        _legend(figure, axes, width)
        return figure

    words = _said(data, {one: labels[one] for one in present})
    return Drawing(name, f"Exact match against length on {task}, trained up to {trained} {unit}. {words}", data, paint)


def use_heat_map(labels: Sequence[str]) -> bool:
    """Return whether these encodings are drawn as a heat map and not as curves."""
    return len(labels) > CURVES


def _map(data: pl.DataFrame, labels: Mapping[str, str], trained: int, unit: str, width: float) -> Figure:
    """Draw a heat map of the median seed's accuracy, encoding by length, best unseen accuracy on top."""
    import matplotlib.pyplot as plt
    import polars as pl

    by = data.group_by("encoding", "length").agg(pl.col("accuracy").median())
    beyond = by.filter(pl.col("length") > trained).group_by("encoding").agg(pl.col("accuracy").mean())
    names = beyond.sort("accuracy", "encoding", descending=[True, False])["encoding"].to_list()
    figure, axes = plt.subplots(figsize=(width, 0.2 * len(names) + 0.9), layout="constrained")
    image, lengths = paint_map(axes, by, {name: labels[name] for name in names}, trained)
    step = max(1, math.ceil(len(lengths) / 24))
    axes.set_xticks(range(0, len(lengths), step), [str(length) for length in lengths[::step]])
    axes.set_xlabel(f"length ({unit}); trained up to {trained}, the white line")
    figure.colorbar(image, ax=axes, label="exact match", fraction=0.03, pad=0.01)
    return _with_known_layout(figure, (width, *sorted(labels[name] for name in names)))


def paint_map(axes: Axes, cells: pl.DataFrame, labels: Mapping[str, str], trained: int) -> tuple[AxesImage, list[int]]:
    """Paint `encoding, length, accuracy`: a row per label, a line at the trained length; return the lengths too."""
    values = {(name, at): accuracy for name, at, accuracy in cells.select("encoding", "length", "accuracy").iter_rows()}
    lengths = sorted({length for _, length in values})
    grid = [[values.get((name, length), math.nan) for length in lengths] for name in labels]
    image = axes.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.axvline(sum(length <= trained for length in lengths) - 0.5, color="white", linewidth=2)
    axes.set_yticks(range(len(labels)), list(labels.values()), fontsize="small")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image, lengths


_LAYOUTS: dict[tuple[object, ...], list[Bbox]] = {}


def _with_known_layout(figure: Figure, labels: tuple[object, ...]) -> Figure:
    """Lay out a map, or reuse the places of an earlier one with the same labels: layout is half of drawing it."""
    engine = figure.get_layout_engine()
    if labels in _LAYOUTS:
        for axes, place in zip(figure.axes, _LAYOUTS[labels], strict=True):
            axes.set_position(place)
    elif engine is not None:
        engine.execute(figure)
        _LAYOUTS[labels] = [axes.get_position() for axes in figure.axes]
    figure.set_layout_engine(None)
    return figure


def _said(data: pl.DataFrame, labels: Mapping[str, str]) -> str:
    """Describe the curves in words: where the median seed of each encoding first falls below one half."""
    import polars as pl

    by = data.group_by("encoding", "length").agg(pl.col("accuracy").median()).filter(pl.col("accuracy") < 0.5)
    below = dict(by.group_by("encoding").agg(pl.col("length").min()).iter_rows())
    parts = []
    for name, label in list(labels.items())[:MANY]:
        falls = f"{label} falls below one half at {below.get(name)}"
        parts.append(falls if name in below else f"{label} stays above one half")
    return "; ".join(parts) + "."


def answer_kinds_drawing(findings: Findings, task: str) -> Drawing:
    """Draw the kinds of answers at each length, over all seeds: right, stopped early or late, wrong, never stopped."""
    import polars as pl

    trained, unit = findings.trained[task]
    own = findings.cells.filter(pl.col("task") == task)
    there = set(own["encoding"].unique())
    shown = [name for name in findings.encodings if name in there]
    shown = shown if len(shown) <= MANY else shown[:FEW]
    counts = ["examples", *KINDS]
    data = (
        own.filter(pl.col("encoding").is_in(shown))
        .group_by("encoding", "length")
        .agg(*(pl.col(name).sum() for name in counts))
        .sort("encoding", "length")
    )

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        columns = min(3, len(shown))
        lines = math.ceil(len(shown) / columns)
        figure, grid = plt.subplots(
            lines,
            columns,
            figsize=(width, 1.35 * lines + 0.75),
            layout="constrained",
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axes, name in zip(grid.flat, shown, strict=False):
            by = data.filter(pl.col("encoding") == name)
            shares = [(by[kind] / by["examples"]).to_list() for kind in KINDS]
            axes.stackplot(by["length"].to_list(), *shares, colors=[tint for _, tint in KINDS.values()], linewidth=0)
            axes.axvline(trained, color="#222222", linewidth=1, linestyle="--")
            axes.set(ylim=(0, 1), xlim=(by["length"].min(), by["length"].max()))
            axes.set_title(findings.label(name), fontsize="small", color=colour(name), loc="left")
        for axes in list(grid.flat)[len(shown) :]:
            axes.axis("off")
        figure.supxlabel(f"length ({unit})", fontsize="medium")
        patches = [plt.Rectangle((0, 0), 1, 1, color=tint) for _, tint in KINDS.values()]
        figure.legend(
            patches, [words for words, _ in KINDS.values()], loc="outside upper center", ncols=5, fontsize="small"
        )
        return figure

    most = data.filter(pl.col("length") > trained)
    causes = {kind: int(most[kind].sum()) for kind in KINDS if kind != "correct"}
    worst = max(causes, key=lambda kind: causes[kind]) if any(causes.values()) else None
    told = "no answer is wrong" if worst is None else f"the most frequent failure is: {KINDS[worst][0]}"
    return Drawing(
        f"anatomy-{task_file_name(task)}",
        f"How answers fail at each length on {findings.short(task)}; beyond the trained lengths {told}.",
        data,
        paint,
        True,
    )


def training_loss_drawing(findings: Findings) -> Drawing | None:
    """Draw the training loss against step: one panel for each task, the median seed of each encoding."""
    import polars as pl

    lines = []
    for item in findings.items:
        log = findings.records.get(item.key, {}).get("log") or []
        lines += [
            {
                "task": item.point.task,
                "encoding": findings.names[item.key],
                "seed": item.point.seed,
                "step": step,
                "loss": loss,
            }
            for step, loss in log
        ]
    if not lines:
        return None
    data = pl.DataFrame(lines)

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        tasks = findings.tasks
        columns = min(4, len(tasks))
        rows = math.ceil(len(tasks) / columns)
        figure, grid = plt.subplots(
            rows, columns, figsize=(width, 1.25 * rows + 0.8), layout="constrained", squeeze=False
        )
        for axes, task in zip(grid.flat, tasks, strict=False):
            for name in findings.encodings:
                own = data.filter((pl.col("task") == task) & (pl.col("encoding") == name))
                by = own.group_by("step").agg(pl.col("loss").median()).sort("step")
                axes.semilogy(by["step"], by["loss"].clip(1e-5), color=colour(name), linewidth=1.1)
            axes.set_title(findings.short(task), fontsize="small", loc="left")
            axes.tick_params(labelsize="x-small")
        for axes in list(grid.flat)[len(tasks) :]:
            axes.axis("off")
        figure.supxlabel("step", fontsize="medium")
        figure.supylabel("training loss", fontsize="medium")
        shown = findings.encodings if len(findings.encodings) <= MANY else []
        handles = [plt.Line2D([], [], color=colour(name), label=findings.label(name)) for name in shown]
        columns = legend_column_count([findings.label(name) for name in shown], width)
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize="small")
        return figure

    return Drawing("training", "Training loss against step for each task and encoding.", data, paint, True)


def task_file_name(task: str) -> str:
    """Return a task's name in a form that is valid in file names."""
    return "".join(letter if letter.isalnum() else "-" for letter in task)


def _boundary(axes: Axes, trained: int) -> None:
    axes.axvspan(0, trained, color="#f2f2f2", zorder=0, linewidth=0)
    axes.axvline(trained, color="#222222", linewidth=1, linestyle="--", zorder=1)
    words, beside = f"trained up to {trained}", {"xytext": (-4, 0), "textcoords": "offset points"}
    axes.annotate(words, (trained, 1.03), ha="right", va="center", fontsize="x-small", **beside)


def _legend(figure: Figure, axes: Axes, width: float) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=legend_column_count(names, width), fontsize="small")


def legend_column_count(names: Sequence[str], width: float) -> int:
    """Return the number of columns of a legend above a figure."""
    if sum(len(name) + 7 for name in names) <= 14.5 * width:
        return max(1, len(names))
    longest = max((len(name) for name in names), default=1)
    per_inch = 13 if width > 5 else 18  # letters per inch: the font is smaller in a paper's column
    return max(1, min(len(names), int(width * per_inch / (longest + 5))))
