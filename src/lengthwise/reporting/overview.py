"""The figures that show all tasks at once, with their data: reach, heat map, ranks, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.reporting.drawing import ON_DARK, ON_LIGHT, Drawing
from lengthwise.reporting.figures import MANY, legend_column_count, paint_map
from lengthwise.reporting.palette import colour
from lengthwise.statistics.cells import summarize_reaches as order_of
from lengthwise.statistics.learned import FROM_CHANCE
from lengthwise.statistics.reach import Reach, run_scores

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from lengthwise.reporting.findings import Findings


_NOT_LEARNED = 0.9
"""The x position of seeds that did not learn the seen lengths, left of all that did."""


def _thin(name: str) -> dict[str, Any]:
    return {"color": colour(name), "linewidth": 1, "alpha": 0.6}


def reach_drawing(findings: Findings) -> Drawing:
    """Draw the reach of each encoding on each task as a multiple of the trained length: all seeds and the median."""
    import polars as pl

    labels = findings.rows.select("run", "task", "encoding", "seed").unique(maintain_order=True)
    trained = pl.DataFrame(
        {"task": list(findings.trained), "trained": [length for length, _ in findings.trained.values()]}
    )
    data = (
        labels.join(run_scores(findings.rows), on="run", how="inner")
        .join(trained, on="task", how="left")
        .select(
            "task",
            "encoding",
            "seed",
            "reach",
            (pl.col("beyond") & pl.col("reach").is_not_null()).alias("at least"),
            (pl.col("reach") / pl.col("trained")).alias("factor"),
        )
    )

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        tasks, names = findings.tasks, findings.encodings
        gap = 0.8 / max(len(names), 1)
        rows = 1.2 * len(names) if len(tasks) == 1 else len(tasks) * max(2.5, len(names) * 0.5)
        figure, axes = plt.subplots(figsize=(width, max(1.6, 0.17 * rows + 0.9)), layout="constrained")
        axes.axvline(1, color="#222222", linewidth=1, linestyle="--")
        groups = {
            (str(task), str(name)): own
            for (task, name), own in data.partition_by("task", "encoding", as_dict=True).items()
        }
        for number, name in enumerate(names):
            # Plot all tasks of an encoding at once, so that a thousand cells take a few calls.
            ends: list[tuple[float, float, float]] = []
            dots: list[tuple[float, float]] = []
            marks: dict[str, list[tuple[float, float]]] = {"x": [], ">": [], "o": []}
            for row, task in enumerate(tasks):
                own = groups.get((task, name))
                if own is None:
                    continue
                place = row + (number - (len(names) - 1) / 2) * gap
                # A seed that did not learn is below every reach, so the median may be "not learned".
                order = sorted(_NOT_LEARNED if value is None else value for value in own["factor"].to_list())
                middle = order[(len(order) - 1) // 2]
                ends.append((place, order[0], order[-1]))
                dots += [(value, place) for value in order if value != _NOT_LEARNED]
                got = [Reach(length, bool(more)) for length, more in own.select("reach", "at least").iter_rows()]
                mark = "x" if middle == _NOT_LEARNED else ">" if order_of(got).median.beyond else "o"
                marks[mark].append((middle, place))
            if not ends:  # all runs of this encoding diverged
                continue
            axes.hlines(*zip(*ends, strict=True), **_thin(name))
            axes.plot([x for x, _ in dots], [y for _, y in dots], ".", color=colour(name), markersize=3, alpha=0.6)
            for mark, listed in marks.items():
                axes.plot([x for x, _ in listed], [y for _, y in listed], mark, color=colour(name), markersize=5)
        axes.set(
            yticks=range(len(tasks)),
            yticklabels=[findings.short(task) for task in tasks],
            xlim=(_NOT_LEARNED - 0.02, None),
        )
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.set_xlabel("reach ÷ trained length   (× not learned, ▸ longest tested length still holds)")
        if len(tasks) == 1:  # label the line of each encoding instead of drawing a legend
            places = [(n - (len(names) - 1) / 2) * gap for n in range(len(names))]
            axes.set_yticks(places, [findings.label(name) for name in names], fontsize="small")
            return figure
        handles = [
            plt.Line2D([], [], marker="o", linestyle="", color=colour(name), label=findings.label(name))
            for name in names
        ]
        columns = legend_column_count([findings.label(name) for name in names], width)
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize="small")
        return figure

    return Drawing(
        "reach",
        f"Reach of each encoding on {len(findings.tasks)} tasks, divided by the trained length.",
        data,
        paint,
        True,
    )


def accuracy_heat_map(findings: Findings, learned_cells: pl.DataFrame) -> Drawing:
    """Draw a heat map of median unseen accuracy, task by encoding; cells that were not learned are marked."""
    import polars as pl

    known = {(task, name): got for task, name, got in learned_cells.select("task", "encoding", "learned").iter_rows()}

    by = (
        findings.cells.filter(pl.col("split") == "test_unseen")
        .group_by("task", "encoding", "seed")
        .agg(pl.col("accuracy").mean())
        .group_by("task", "encoding")
        .agg(pl.col("accuracy").median().alias("unseen"), pl.len().alias("seeds"))
    )
    data = by.sort("task", "encoding")
    values = {(task, name): unseen for task, name, unseen, _ in data.iter_rows()}

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        tasks, names = findings.tasks, findings.encodings
        figure, axes = plt.subplots(figsize=(width, 0.27 * len(tasks) + 1.1), layout="constrained")
        grid = [[values.get((task, name), math.nan) for name in names] for task in tasks]
        axes.imshow(grid, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        few = len(names) <= MANY
        for row, task in enumerate(tasks):
            for column, name in enumerate(names):
                unseen = values.get((task, name))
                if unseen is None:
                    axes.text(column, row, "–", ha="center", va="center", fontsize="small")
                elif few:
                    mark = " *" if known.get((task, name)) is False else ""
                    tint = ON_DARK if unseen < 0.6 else ON_LIGHT
                    words = f"{unseen:.2f}{mark}"
                    axes.text(column, row, words, ha="center", va="center", fontsize="small", color=tint)
        axes.set(yticks=range(len(tasks)), yticklabels=[findings.short(task) for task in tasks])
        axes.set_xticks(
            range(len(names)),
            [findings.label(name) for name in names],
            rotation=0 if len(names) <= 6 else 35,
            ha="center" if len(names) <= 6 else "right",
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if few:
            axes.set_xlabel(
                "median seed's mean exact match over unseen lengths L+1..2L;  * seen lengths not learned",
                fontsize="small",
            )
        return figure

    return Drawing("heat", "Median accuracy at unseen lengths for each task and encoding.", data, paint, True)


def length_maps_drawing(findings: Findings, encodings_best_first: Sequence[str]) -> Drawing:
    """Draw a map of the median seed's exact match for each task, encoding by length, with a line at the trained one."""
    import polars as pl

    data = (
        findings.cells.group_by("task", "encoding", "length")
        .agg(pl.col("accuracy").median(), pl.col("chance").max(), pl.len().alias("seeds"))
        .sort("task", "encoding", "length")
    )
    maps = {str(task): own for (task,), own in data.partition_by("task", as_dict=True).items()}
    tasks = [task for task in findings.tasks if task in maps]

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        columns = 2 if len(tasks) in {2, 4} else 3
        rows, labels = math.ceil(len(tasks) / columns), {name: findings.label(name) for name in encodings_best_first}
        figure, panels = plt.subplots(
            rows,
            columns,
            figsize=(width, rows * (0.16 * len(labels) + 0.52) + 0.1),
            layout="constrained",
            squeeze=False,
            sharey=True,
        )
        for axes in panels.flat[len(tasks) :]:
            axes.set_visible(False)
        for axes, task in zip(panels.flat, tasks, strict=False):
            trained, _ = findings.trained[task]
            image, lengths = paint_map(axes, maps[task], labels, trained)
            chance = max((one for one in maps[task]["chance"].to_list() if one is not None), default=0.0)
            shown = {lengths[0], trained, 2 * trained, lengths[-1]}
            marks = [(at, length) for at, length in enumerate(lengths) if length in shown]
            axes.set_xticks([at for at, _ in marks], [str(length) for _, length in marks], fontsize="small")
            title = findings.short(task) + (f" (chance {chance:.2g})" if chance > FROM_CHANCE else "")
            axes.set_title(title, fontsize="small", loc="left", pad=2)
        figure.supxlabel("length; each cell is the median seed; the white line ends what was trained", fontsize="small")
        figure.colorbar(image, ax=panels, label="exact match", fraction=0.02, pad=0.01)
        return figure

    leader = findings.label(encodings_best_first[0])
    words = f"Exact match on {len(tasks)} tasks, encoding by length; {leader} has the highest mean at unseen lengths."
    return Drawing("lengths", words, data, paint, True)


def rank_share_drawing(findings: Findings, rank_shares: Mapping[str, Sequence[float]]) -> Drawing:
    """Draw how often each encoding had rank 1, 2, ...: shares of (task, seed) queries, ties shared."""
    import polars as pl

    lines = [
        {"encoding": name, "rank": place + 1, "share": share}
        for name, listed in rank_shares.items()
        for place, share in enumerate(listed)
    ]
    data = pl.DataFrame(lines, schema={"encoding": pl.String, "rank": pl.Int64, "share": pl.Float64})

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        names = list(rank_shares)
        figure, axes = plt.subplots(figsize=(width, 0.3 * len(names) + 0.8), layout="constrained")
        ranks = max((len(listed) for listed in rank_shares.values()), default=1)
        greys = plt.get_cmap("viridis_r")
        for row, name in enumerate(names):
            left = 0.0
            for place, share in enumerate(rank_shares[name]):
                tint = greys(place / max(ranks - 1, 1))
                axes.barh(row, share, left=left, color=tint, height=0.72)
                if share > 0.07:
                    dark = sum(tint[:3]) < 1.6
                    axes.text(
                        left + share / 2,
                        row,
                        f"{place + 1}",
                        ha="center",
                        va="center",
                        fontsize="small",
                        color=ON_DARK if dark else ON_LIGHT,
                    )
                left += share
        axes.set(yticks=range(len(names)), yticklabels=[findings.label(name) for name in names])
        axes.set(xlim=(0, 1), xlabel="share of (task, seed) with this rank")
        axes.set_ylim(len(names) - 0.5, -0.5)
        return figure

    return Drawing("ranks", "How often each encoding had each rank.", data, paint)


def interval_drawing(
    name: str,
    title: str,
    alt: str,
    interval_rows: Sequence[Mapping[str, Any]],
    published_values: Mapping[str, float] | None = None,
    label: Callable[[str], str] = str,
) -> Drawing:
    """Draw one value per encoding with its intervals: thick for these tasks and other seeds, thin for other tasks."""
    import polars as pl

    data = pl.DataFrame(list(interval_rows))

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(width, 0.36 * len(interval_rows) + 0.95), layout="constrained")
        for row, one in enumerate(interval_rows):
            tint = colour(str(one["encoding"]))
            for low, high, thick in (("tasks low", "tasks high", 1.2), ("low", "high", 4.0)):
                if one.get(low) is not None and one.get(high) is not None:
                    axes.plot(
                        [one[low], one[high]],
                        [row, row],
                        color=tint,
                        linewidth=thick,
                        alpha=0.55,
                        solid_capstyle="butt",
                    )
            axes.plot(one["value"], row, "o", color=tint, markersize=6)
            if published_values and one["encoding"] in published_values:
                axes.plot(
                    published_values[str(one["encoding"])],
                    row,
                    marker="D",
                    markersize=5,
                    color="#222222",
                    fillstyle="none",
                )
        axes.set(
            yticks=range(len(interval_rows)),
            yticklabels=[label(str(one["encoding"])) for one in interval_rows],
            xlabel=title,
        )
        axes.set_ylim(len(interval_rows) - 0.5, -0.5)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.05), min(high, 1.05))
        return figure

    return Drawing(name, alt, data, paint)


def pair_difference_drawing(
    findings: Findings, encoding_order: Sequence[str], pair_differences: Mapping[tuple[str, str], tuple[float, bool]]
) -> Drawing:
    """Draw the difference of every pair of encodings at unseen lengths, row minus column, with dots on sure ones.

    `pair_differences` maps (one, other) → the difference and whether it is sure: all seeds agree, or, with many tasks,
    it is settled.
    """
    import polars as pl

    lines = [
        {"one": one, "other": other, "difference": gap, "sure": sure}
        for (one, other), (gap, sure) in pair_differences.items()
    ]
    data = pl.DataFrame(
        lines, schema={"one": pl.String, "other": pl.String, "difference": pl.Float64, "sure": pl.Boolean}
    )
    sure_is = "all seeds agree" if len(findings.tasks) == 1 else "settled"

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        many = len(encoding_order)
        grid = [[math.nan] * many for _ in encoding_order]
        dots: list[tuple[int, int]] = []
        for (one, other), (gap, sure) in pair_differences.items():
            row, column = encoding_order.index(one), encoding_order.index(other)
            grid[row][column], grid[column][row] = gap, -gap
            dots += [(row, column), (column, row)] if sure else []
        figure, axes = plt.subplots(figsize=(width, 0.22 * many + 1.5), layout="constrained")
        image = axes.imshow(grid, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes.plot([x for _, x in dots], [y for y, _ in dots], ".", color="#222222", markersize=2.5)
        names = [findings.label(name) for name in encoding_order]
        axes.set_yticks(range(many), names, fontsize="small")
        axes.set_xticks(range(many), names, fontsize="small", rotation=60, ha="right", rotation_mode="anchor")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label=f"row − column  (dot: {sure_is})", fraction=0.03, pad=0.01)
        return figure

    alt = f"Differences at unseen lengths between all {len(pair_differences)} pairs of {len(encoding_order)} encodings."
    return Drawing("pairs", alt, data, paint, True)
