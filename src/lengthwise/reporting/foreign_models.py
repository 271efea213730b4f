"""The figure of how far somebody else's model works: perplexity, recall, a moved passage and the loss by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.reporting.drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
"""Okabe and Ito's colours, with a marker each, so that no line is told by its colour alone."""
RECALL = {"copy": (BLUE, "o"), "induction": (ORANGE, "s"), "retrieval": (GREEN, "^")}
MOVED = {
    "moved passage by positions, change": ("by position ids", BLUE, "o"),
    "moved passage behind text, change": ("behind other tokens", ORANGE, "s"),
}


def reach_drawing(rows: Rows, trained_length: int | None = None, file_name: str = "reach") -> Drawing:
    """Draw the rows of a model's reach as four panels; bars and bands are 95 % intervals."""
    import polars as pl

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(2, 2, figsize=(width, max(3.6, width * 0.62)), layout="constrained")
        context, recall, moved, position = grid.flat
        _line(context, _of(rows, "perplexity"), "", BLUE, "o")
        context.set_yscale("log")
        _plain_ticks(context)
        context.set(xlabel="context (tokens)", ylabel="perplexity, same targets")
        for name, (colour, marker) in RECALL.items():
            _line(recall, _of(rows, name), name, colour, marker)
        recall.set(xlabel="context (tokens)", ylabel="accuracy", ylim=(-0.03, 1.06))
        for name, (words, colour, marker) in MOVED.items():
            _line(moved, _of(rows, name), words, colour, marker)
        moved.axhline(0, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
        moved.set(xlabel="offset of the passage (tokens)", ylabel="change of its loss (nats)")
        _band(position, _of(rows, "loss by position"))
        position.set(xlabel="position in the longest context", ylabel="loss (nats)")
        for axes, measure in ((context, "perplexity"), (recall, "copy"), (moved, "moved passage behind text")):
            _doubling(axes, _of(rows, measure))
        for axes in grid.flat:
            axes.tick_params(labelsize="small")
            axes.xaxis.label.set_size("small")
            axes.yaxis.label.set_size("small")
            _trained(axes, trained_length)
        for axes in (recall, moved):
            if names := axes.get_legend_handles_labels()[1]:
                above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0.2}
                axes.legend(fontsize="x-small", ncols=len(names), columnspacing=1.0, handlelength=1.6, **above)
        return figure

    data = pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)
    return Drawing(file_name, _alternative_text(rows, trained_length), data, paint, panels=True)


def change_drawing(rows: Rows, trained_length: int | None = None, file_name: str = "changes") -> Drawing:
    """Draw perplexity and retrieval by context for each change of a model; rows have `change` besides."""
    import polars as pl

    from lengthwise.reporting.palette import colour, marker

    names = list(dict.fromkeys(str(row["change"]) for row in rows))

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, (context, recall) = plt.subplots(1, 2, figsize=(width, max(2.3, width * 0.4)), layout="constrained")
        for axes, measure in ((context, "perplexity"), (recall, "retrieval")):
            for number, name in enumerate(names):
                own = [row for row in _of(rows, measure) if row["change"] == name]
                look = ("#222222", "o") if name == "none" else (colour(name), marker(name))
                _line(axes, own, name if axes is context else "", *look, beside=1 + 0.02 * number)
            _doubling(axes, [row for row in _of(rows, measure) if row["change"] == names[0]])
            axes.tick_params(labelsize="small")
            axes.set(xlabel="context (tokens)")
            _trained(axes, trained_length)
        context.set_yscale("log")
        _plain_ticks(context)
        context.set(ylabel="perplexity, same targets")
        recall.set(ylabel="retrieval", ylim=(-0.03, 1.06))
        figure.legend(loc="outside upper center", ncols=min(5, len(names)), fontsize="small")
        return figure

    data = pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)
    alt = f"Perplexity and retrieval by context, unchanged and with {', '.join(n for n in names if n != 'none')}."
    return Drawing(file_name, alt, data, paint, panels=True)


def _of(rows: Rows, measure: str) -> list[Mapping[str, Any]]:
    return sorted((row for row in rows if row["measure"] == measure), key=lambda row: row["length"])


def _line(axes: Axes, rows: Rows, label: str, colour: str, marker: str, beside: float = 1.0) -> None:
    """Draw a line with bars; `beside` moves it along a logarithmic axis, so that equal values stay visible."""
    if not rows:
        return
    places = [row["length"] * beside for row in rows]
    bars = [(place, row) for place, row in zip(places, rows, strict=True) if row["low"] is not None]
    axes.vlines(
        [place for place, _ in bars],
        [row["low"] for _, row in bars],
        [row["high"] for _, row in bars],
        color=colour,
        linewidth=0.9,
        alpha=0.6,
    )
    values = [row["value"] for row in rows]
    shown = label or "_nolegend_"
    axes.plot(places, values, color=colour, marker=marker, markersize=3.5, linewidth=1.5, label=shown)


def _band(axes: Axes, rows: Rows) -> None:
    places = [row["length"] for row in rows]
    sure = [row for row in rows if row["low"] is not None]
    axes.fill_between(
        [row["length"] for row in sure],
        [row["low"] for row in sure],
        [row["high"] for row in sure],
        color=BLUE,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(places, [row["value"] for row in rows], color=BLUE, linewidth=1.5)
    axes.set_xlim(0, None)


def _doubling(axes: Axes, rows: Rows) -> None:
    """Make the axis of lengths logarithmic; 0, where a passage was not moved, has its place beside the first."""
    axes.set_xscale("symlog", base=2, linthresh=16)
    places = [row["length"] for row in rows]
    shown = places[:: -max(1, -(-len(places) // 6))]  # at most six, the longest among them
    axes.set_xticks(shown, [f"{place:,}" for place in shown])
    axes.minorticks_off()
    axes.set_xlim(right=1.15 * max(places, default=1))
    if 0 in places:
        axes.set_xlim(left=-3)


def _plain_ticks(axes: Axes) -> None:
    """Write perplexities as 20 or 1,000, not as powers of ten; also between them, where the axis has no whole power."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _trained(axes: Axes, trained_length: int | None) -> None:
    if trained_length is None:
        return
    left, right = axes.get_xlim()
    if trained_length < right:
        axes.axvline(trained_length, color="#222222", linewidth=1, linestyle="--", zorder=1)
    axes.axvspan(left, min(trained_length, right), color="#f2f2f2", zorder=0, linewidth=0)
    axes.set_xlim(left, right)


def _alternative_text(rows: Rows, trained_length: int | None) -> str:
    told = []
    for measure in ("perplexity", *RECALL):
        own = _of(rows, measure)
        if own:
            told.append(
                f"{measure} is {own[0]['value']:.3g} with {own[0]['length']} tokens and {own[-1]['value']:.3g} with "
                f"{own[-1]['length']}"
            )
    trained = "" if trained_length is None else f" The dashed line is the trained length, {trained_length}."
    return f"How far a model works: {'; '.join(told)}.{trained}"
