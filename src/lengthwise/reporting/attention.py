"""Attention figures: divergence between models, attended distance, and statistics against length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from lengthwise.encoding.labels import label_of
from lengthwise.publication import attention as published
from lengthwise.publication import published_encoding
from lengthwise.reporting.divergences import (
    SHOWN,
    Rows,
    all_divergence_estimates,
    encodings_of,
    estimate_divergence,
    published_divergence,
)
from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.figures import legend_column_count, task_file_name
from lengthwise.reporting.palette import FAINT, SEEN, colour, dash

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

GROWTH = {
    "relative_entropy": "entropy / ln(t + 1)",
    "sink": "weight on the first token",
    "relative_distance": "distance / (t + 1)",
    "distance": "distance (tokens)",
}
"""The statistics drawn against length, and their labels."""


def divergence_drawing(rows: Rows, task: str, short_task_name: str) -> Drawing:
    """Draw the divergence from NoPE's attention over pairs of different seeds, the published number and the floor."""
    import polars as pl

    names = encodings_of(rows, task)
    own = [row for row in rows if row["task"] == task]
    data = pl.DataFrame(
        [row for row in all_divergence_estimates(own) if row["measure"] in SHOWN and row["layer"] is None],
        infer_schema_length=None,
    )

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(
            1, len(SHOWN), figsize=(width, 0.34 * len(names) + 1.35), layout="constrained", sharey=True, squeeze=False
        )
        for axes, (measure, title) in zip(grid[0], SHOWN.items(), strict=True):
            for place, name in enumerate(names):
                made = estimate_divergence(own, task, "record", name, measure)
                if made.value is not None and math.isfinite(made.value):
                    if made.low is not None and made.high is not None:
                        axes.plot([max(made.low, 0), made.high], [place] * 2, color=colour(name), linewidth=2)
                    axes.plot(made.value, place, "o", color=colour(name), markersize=5)
                for pairing, mark, size in (("published", "s", 3.5), ("floor", "|", 9), ("change", "x", 4.5)):
                    other = estimate_divergence(own, task, pairing, name, measure)
                    if other.value is not None and math.isfinite(other.value):
                        shift = 0.22 if pairing != "floor" else 0
                        fill = "none" if mark == "s" else "full"
                        axes.plot(other.value, place + shift, mark, color="#555555", markersize=size, fillstyle=fill)
                number = published_divergence(name)
                if measure.startswith("as_published") and number is not None:
                    axes.plot(number, place - 0.25, "*", color="#555555", markersize=6)
            axes.set_title(title, fontsize="small", loc="left")
            axes.set(xlim=(0, None), ylim=(len(names) - 0.5, -0.6))
            if measure.startswith("true"):
                axes.axvline(math.log(2), color=FAINT, linewidth=0.8, linestyle=":")
            axes.locator_params(axis="x", nbins=4)
            axes.tick_params(labelsize="small")
        shown = [f"{label_of(name)}′" if name == "nope" else label_of(name) for name in names]
        grid[0][0].set_yticks(range(len(names)), shown)
        figure.supxlabel("divergence from NoPE's attention (nats)", fontsize="medium")
        marks = [
            plt.Line2D(
                [],
                [],
                color="#555555",
                marker=mark,
                linestyle="",
                markersize=5,
                label=words,
                fillstyle="none" if mark == "s" else "full",
            )
            for mark, words in {
                "o": "another seed, 95 %",
                "s": "paired as published",
                "|": "untrained",
                "x": "own first weights",
                "*": "published (SCAN)",
            }.items()
        ]
        figure.legend(handles=marks, loc="outside upper center", ncols=5 if width > 5 else 2, fontsize="x-small")
        return figure

    return Drawing(
        f"attention-divergence-{task_file_name(short_task_name)}",
        f"Divergence of attention from NoPE's on {short_task_name}, by the published and the true definition.",
        data,
        paint,
        True,
    )


def distance_drawing(rows: Rows, task: str, short_task_name: str) -> Drawing:
    """Draw the distribution of attention from the query (0) to the first token (1): all weights, and the largest."""
    import polars as pl

    own = [row for row in rows if row["task"] == task and row["trained"]]
    names = list(dict.fromkeys(row["encoding"] for row in own))
    data = (
        pl.DataFrame(own)
        .group_by("encoding", "distance", maintain_order=True)
        .agg(pl.col("argmax").sum(), pl.col("weight").sum())
        .with_columns(
            (pl.col("argmax") / pl.col("argmax").sum().over("encoding")),
            (pl.col("weight") / pl.col("weight").sum().over("encoding")),
        )
    )

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        columns = min(3, len(names))
        lines = math.ceil(len(names) / columns)
        figure, grid = plt.subplots(
            lines,
            columns,
            figsize=(width, 1.5 * lines + 0.8),
            layout="constrained",
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axes, name in zip(grid.flat, names, strict=False):
            here = data.filter(pl.col("encoding") == name)
            edges = [*here["distance"].to_list(), 1.0]
            for left, right in ((0, 0.125), (0.875, 1)):
                axes.axvspan(left, right, color=SEEN, zorder=0, linewidth=0)
            axes.stairs(here["weight"], edges, color=colour(name), fill=True, alpha=0.35)
            axes.stairs(here["argmax"], edges, color=colour(name), linewidth=1.3)
            source = published_encoding(name)
            if source is not None and source in published.FRACTIONS:
                # The published bins are twice as wide as ours, except the first and the last.
                shares = published.FRACTIONS[source]
                halves = [share / (1 if place in (0, 20) else 2) for place, share in enumerate(shares)]
                places = [0.0125, *(0.05 * place for place in range(1, 20)), 0.9875]
                axes.plot(places, halves, "*", color="#555555", markersize=3)
            modes = [float(here.filter(pl.col("distance") < 0.125)[how].sum()) for how in ("argmax", "weight")] + [
                float(here.filter(pl.col("distance") >= 0.875)[how].sum()) for how in ("argmax", "weight")
            ]
            axes.set_title(label_of(name), fontsize="small", color=colour(name), loc="left")
            said = f"near {modes[0]:.2f} | {modes[1]:.2f}\nfar {modes[2]:.2f} | {modes[3]:.2f}"
            axes.text(0.5, 0.95, said, transform=axes.transAxes, fontsize="x-small", ha="center", va="top")
            axes.set(yscale="symlog", xlim=(0, 1))
            axes.set_yscale("symlog", linthresh=0.02)
            axes.set_yticks([0, 0.01, 0.1, 0.5], ["0", ".01", ".1", ".5"])
            axes.minorticks_off()
            axes.tick_params(labelsize="x-small")
        for axes in list(grid.flat)[len(names) :]:
            axes.axis("off")
        figure.supxlabel("distance / (t + 1): 0 the query itself, 1 the first token", fontsize="medium")
        figure.supylabel("share", fontsize="medium")
        patches = [
            plt.Line2D([], [], color="#555555", linewidth=1.3, label="largest weight alone"),
            plt.Rectangle((0, 0), 1, 1, color="#555555", alpha=0.35, label="all weights"),
            plt.Line2D([], [], color="#555555", marker="*", linestyle="", markersize=5, label="published (addition)"),
        ]
        figure.legend(handles=patches, loc="outside upper center", ncols=3, fontsize="small")
        return figure

    return Drawing(
        f"attention-distance-{task_file_name(short_task_name)}",
        f"How far back attention looks on {short_task_name} for each encoding; near and far: largest | all.",
        data,
        paint,
        True,
    )


def attention_by_length_drawing(rows: Rows, task: str, short_task_name: str) -> Drawing:
    """Draw entropy, weight on the first token and distance against length: mean over layers and heads, median seed."""
    import polars as pl

    own = [row for row in rows if row["task"] == task and row["trained"]]
    names = list(dict.fromkeys(row["encoding"] for row in own))
    trained = max((row["length"] for row in own if row["seen"]), default=None)
    per_seed = (
        pl.DataFrame(own)
        .group_by("encoding", "seed", "length", maintain_order=True)
        .agg(pl.col(name).mean() for name in GROWTH)
    )

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(2, 2, figsize=(width, 4.3), layout="constrained", sharex=True)
        for axes, (measure, words) in zip(grid.flat, GROWTH.items(), strict=True):
            if trained is not None:
                axes.axvspan(0, trained, color=SEEN, zorder=0, linewidth=0)
            for name in names:
                here = per_seed.filter(pl.col("encoding") == name)
                by: dict[int, list[float]] = {}
                for length, value in here.select("length", measure).iter_rows():
                    by.setdefault(length, []).append(value)
                lengths = sorted(by)
                for _, seed in sorted(here.partition_by("seed", as_dict=True).items()):
                    thin = {"color": colour(name), "linewidth": 0.5, "alpha": 0.35, "clip_on": False}
                    axes.plot(seed["length"], seed[measure], **thin)
                style: Any = dash(name)
                middles = [median(by[length]) for length in lengths]
                axes.plot(
                    lengths,
                    middles,
                    color=colour(name),
                    linestyle=style,
                    linewidth=1.8,
                    label=label_of(name),
                    clip_on=False,
                )
            axes.set_title(words, fontsize="small", loc="left")
            axes.set(xlim=(0, None), ylim=(0, None))
            axes.tick_params(labelsize="small")
        figure.supxlabel("length" + ("" if trained is None else f" (trained up to {trained})"), fontsize="medium")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper center", ncols=legend_column_count(labels, width), fontsize="small"
        )
        return figure

    return Drawing(
        f"attention-length-{task_file_name(short_task_name)}",
        f"Entropy, weight on the first token and attended distance on {short_task_name} as length grows, "
        "for each encoding.",
        per_seed,
        paint,
        True,
    )


def attention_heat_maps(tokens: Sequence[str], prompt_length: int, weights_LHQK: np.ndarray, title: str) -> Drawing:
    """Draw the attention weights of one prompt: a panel for each layer (down) and head (across), tokens as labels.

    A row is a query, and its weights over the keys sum to 1; dotted lines mark the end of the prompt. The colour scale
    is the square root of the weight: .25 is half way.
    """
    import polars as pl

    layers, heads, many, _ = weights_LHQK.shape
    lines = [
        {
            "layer": layer,
            "head": head,
            "query": query,
            "key": key,
            "weight": float(weights_LHQK[layer, head, query, key]),
        }
        for layer in range(layers)
        for head in range(heads)
        for query in range(many)
        for key in range(query + 1)
    ]

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt
        import numpy as np
        from matplotlib.colors import PowerNorm

        shown_LHQK = np.where(weights_LHQK > 0, weights_LHQK, np.nan)  # masked keys have no colour
        side = width / heads
        figure, grid = plt.subplots(
            layers, heads, figsize=(width, side * layers * 1.08 + 0.5), layout="constrained", squeeze=False
        )
        step = max(1, math.ceil(many / 32))
        size = max(3.0, min(8.0, 60 * side / many))
        places = range(0, many, step)
        for layer, row in enumerate(grid):
            for head, axes in enumerate(row):
                axes.imshow(shown_LHQK[layer, head], cmap="viridis", norm=PowerNorm(0.5, 0, 1), aspect="equal")
                for line in (axes.axhline, axes.axvline):
                    line(prompt_length - 0.5, color="#555555", linewidth=0.7, linestyle=":")
                labels = [str(tokens[place]) for place in places]
                axes.set_xticks(places, labels if layer == layers - 1 else [], fontsize=size, rotation=90)
                axes.set_yticks(places, labels if head == 0 else [], fontsize=size)
                axes.tick_params(length=0, pad=1)
                axes.spines[:].set_visible(False)
                axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize="x-small", pad=2)
        figure.suptitle(title, fontsize="small")
        figure.supxlabel("key (what is looked at)", fontsize="small")
        figure.supylabel("query (who looks)", fontsize="small")
        return figure

    alt = f"Attention weights of {layers} layers and {heads} heads over {many} tokens: {title}."
    return Drawing("attention", alt, pl.DataFrame(lines), paint, True)


def lengths_shown_in_words(rows: Rows, task: str) -> str:
    """Return which lengths `attention_summary_table` uses: the unseen ones, if there are any."""
    own = [row for row in rows if row["task"] == task and row["trained"]]
    return "unseen lengths" if any(not row["seen"] for row in own) else "seen lengths"


def attention_summary_table(rows: Rows, task: str) -> list[dict[str, object]]:
    """Summarise attention at unseen lengths, or at seen ones: mean over layers and heads, median and range of seeds."""
    found: list[dict[str, object]] = []
    own = [row for row in rows if row["task"] == task and row["trained"]]
    further = [row for row in own if not row["seen"]] or own
    columns = {
        "relative_entropy": "entropy / ln(t+1)",
        "sink": "first token",
        "relative_distance": "distance / (t+1)",
        "near_argmax": "near (largest)",
        "far_argmax": "far (largest)",
        "near_weight": "near (all)",
        "far_weight": "far (all)",
    }
    for name in dict.fromkeys(row["encoding"] for row in further):
        line: dict[str, object] = {"encoding": label_of(name)}
        seeds = list(dict.fromkeys(row["seed"] for row in further if row["encoding"] == name))
        for column, words in columns.items():
            values = []
            for seed in seeds:
                mine = [row[column] for row in further if row["encoding"] == name and row["seed"] == seed]
                values.append(math.fsum(mine) / len(mine))
            spread = f" [{min(values):.2f}–{max(values):.2f}]" if len(values) > 1 else ""
            line[words] = f"{median(values):.2f}{spread}"
        found.append(line)
    return found


def attention_drawings(
    divergence_rows: Rows, head_rows: Rows, distance_rows: Rows, short_task_names: dict[str, str]
) -> list[Drawing]:
    """Return every figure of an attention analysis, from its rows."""
    found = []
    for task, name in short_task_names.items():
        if any(row["task"] == task and row["pairing"] == "record" for row in divergence_rows):
            found.append(divergence_drawing(divergence_rows, task, name))
        if any(row["task"] == task for row in distance_rows):
            found.append(distance_drawing(distance_rows, task, name))
            found.append(attention_by_length_drawing(head_rows, task, name))
    return found
