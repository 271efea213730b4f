"""Figures of `lengthwise theory`: the two theorems, the precision horizon, the constructed heads of layer two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.palette import FAINT, SEEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_PRECISIONS = {"fp64": "#332288", "fp32": "#0072B2", "fp16": "#009E73", "bf16": "#D55E00"}
_DASHES = {"none": (0.0, ()), "rms": (0.0, (5.0, 1.5)), "layer": (0.0, (1.0, 1.0))}
_NORMS = {"none": "no norm", "rms": "RMSNorm", "layer": "LayerNorm"}


def theorem1_drawing(error_rows: Rows, position_rows: Rows) -> Drawing:
    """Draw, left, the recovered position within and beyond T; right, the error against the position."""

    def left(axes: Axes) -> None:
        cases = list(dict.fromkeys(row["case"] for row in position_rows))
        tokens = min(row["t"] for row in position_rows if row["case"] == "closed form") - 1
        end = max(row["t"] for row in position_rows)
        axes.axvspan(1, tokens + 1, color=SEEN, zorder=0, linewidth=0)
        axes.plot([1, end], [1, end], color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)))
        looks = {
            "as built": (_COLOURS[0], "-", 2.2),
            "closed form": ("#222222", (0, (1, 1.5)), 1.4),
            "without BOS": (_COLOURS[1], "-", 1.4),
            "without the causal mask": (_COLOURS[2], "-", 1.4),
        }
        for case in cases:
            rows = [row for row in position_rows if row["case"] == case]
            colour, dash, wide = looks[case]
            label = "1 + 2T − T(T+1)/n" if case == "closed form" else case
            axes.plot(*_columns(rows, "t", "says"), color=colour, linestyle=dash, linewidth=wide, label=label)
        axes.text(tokens, 2, f"built for T = {tokens}", ha="right", va="bottom", color=FAINT, fontsize="small")
        axes.set(xlabel="position", ylabel="position as the state says it", xlim=(1, end), ylim=(0, end * 1.34))
        axes.legend(fontsize="small", loc="upper left", ncols=2, columnspacing=1, handlelength=1.6)

    def right(axes: Axes) -> None:
        for norm in dict.fromkeys(row["norm"] for row in error_rows):
            for precision in dict.fromkeys(row["precision"] for row in error_rows):
                rows = [row for row in error_rows if row["norm"] == norm and row["precision"] == precision]
                if any(row["error"] for row in rows):
                    t, error = _columns([row for row in rows if row["error"]], "t", "error")
                    axes.plot(t, error, color=_PRECISIONS[precision], linestyle=_DASHES[norm], linewidth=1)
        axes.axhline(0.5, color=FAINT, linewidth=0.8)
        axes.text(1.1, 0.8, "½: rounds elsewhere", color=FAINT, fontsize="x-small", va="bottom")
        axes.set(xscale="log", yscale="log", xlabel="position", ylabel="largest error of t")
        _legend(
            axes,
            dict.fromkeys(row["precision"] for row in error_rows),
            dict.fromkeys(row["norm"] for row in error_rows),
        )

    alt = "Positions recovered by the constructed layer, within and beyond T, and their error in each precision."
    return _drawing("theorem1", alt, [*position_rows, *error_rows], (left, right))


def theorem2_drawing(imitation_rows: Rows, remark_rows: Rows) -> Drawing:
    """Draw, left, a second layer equal to ALiBi; middle, one equal to T5's bias; right, g(i) − g(t) for several g."""

    def bias(name: str) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            rows = [row for row in imitation_rows if row["imitates"] == name]
            for head in dict.fromkeys(row["head"] for row in rows):
                own = [row for row in rows if row["head"] == head]
                colour = _COLOURS[head - 1]
                line = _columns(own, "distance", "bias")
                steps = "steps-mid" if name == "t5" else "default"
                axes.plot(*line, color=colour, linewidth=1, drawstyle=steps, label=f"head {head}: wanted")
                dots = _columns(own[::4], "distance", "logit")
                axes.plot(*dots, ".", color=colour, markersize=4, label=f"head {head}: decoder")
            title = {"alibi": "ALiBi from t", "t5": "T5's bias from cos, sin"}[name]
            axes.set_title(title, loc="left", fontsize="medium")
            axes.set(xlabel="distance t − i", ylabel="added to the score" if name == "alibi" else None)
            if name == "alibi":  # one legend serves both panels
                axes.legend(fontsize="x-small")

        return paint

    def spread(axes: Axes) -> None:
        for name, colour in zip(dict.fromkeys(row["g"] for row in remark_rows), _COLOURS, strict=False):
            distance, low, high = _columns([row for row in remark_rows if row["g"] == name], "distance", "low", "high")
            axes.fill_between(distance, low, high, color=colour, alpha=0.25, linewidth=0)
            axes.plot(distance, low, color=colour, linewidth=1, label=f"g = {name}")
            axes.plot(distance, high, color=colour, linewidth=1)
        axes.set_title("g(i) − g(t): range over t", loc="left", fontsize="medium")
        axes.set(xlabel="distance t − i", ylabel="a band is not relative")
        axes.legend(fontsize="x-small")

    alt = "Second layers without an encoding that equal ALiBi and T5's bias; g(i) − g(t) is relative only for affine g."
    return _drawing("theorem2", alt, [*imitation_rows, *remark_rows], (bias("alibi"), bias("t5"), spread))


def horizon_drawing(horizon_rows: Rows, unit_count_rows: Rows) -> Drawing:
    """Draw, left, up to which t each precision separates t from t + 1; right, the number of units against T."""

    def left(axes: Axes) -> None:
        kinds = ("from 1/t, decoder", "from t, decoder", "whole layer, apart", "whole layer, right")
        words = ("from 1/t", "from t", "whole layer: told apart", "whole layer: right integer")
        marks = {"from 1/t, decoder": "from 1/t, sure", "from t, decoder": "from t, predicted"}
        for place, row in enumerate(horizon_rows):
            for part, (kind, colour) in enumerate(zip(kinds, _COLOURS, strict=True)):
                y = place + (part - 1.5) * 0.19
                value = row[kind]
                if isinstance(value, int):
                    axes.barh(y, value, 0.17, color=colour, label=words[part] if not place else None)
                    axes.text(value * 1.15, y, f"{value:,}", va="center", fontsize="x-small")
                else:  # text instead of a number: the horizon was not reached
                    axes.text(1.2, y, f"{words[part]}: {value}", va="center", fontsize="x-small", color=FAINT)
                if kind in marks:
                    axes.plot([row[marks[kind]]] * 2, [y - 0.09, y + 0.09], color="#222222", linewidth=1.4)
        axes.set_yticks(range(len(horizon_rows)), [f"{row['precision']}\n{row['bits']} bits" for row in horizon_rows])
        axes.set(
            xscale="log",
            xlim=(1, 6e8),
            ylim=(len(horizon_rows) - 0.5, -0.5),
            xlabel="positions told apart (black: predicted)",
        )
        axes.legend(fontsize="x-small", loc="upper right")

    def right(axes: Axes) -> None:
        lengths, exact, rounded, root = _columns(unit_count_rows, "T", "units, exact", "units, rounded", "√T")
        axes.plot(lengths, exact, "o-", color=_COLOURS[0], linewidth=1.2, label="t exactly: T")
        axes.plot(lengths, rounded, "s", color=_COLOURS[1], label="within ½ of t, in the decoder")
        axes.plot(lengths, root, color=_COLOURS[1], linewidth=1, linestyle=(0, (2, 2)), label="√T")
        axes.set(xscale="log", yscale="log", xlabel="T", ylabel="units of the ReLU layer")
        axes.legend(fontsize="small")

    alt = "How many positions bf16, fp16 and fp32 tell apart, and how many ReLU units T positions take."
    return _drawing("horizon", alt, [*_as_text(horizon_rows), *unit_count_rows], (left, right))


def head_drawing(attention_map_rows: Rows) -> Drawing:
    """Draw the attention maps of the diagonal head and the previous-token head."""

    def head_panel(name: str, title: str) -> Callable[[Axes], None]:
        def paint(axes: Axes) -> None:
            import numpy as np

            rows = [row for row in attention_map_rows if row["head"] == name]
            n = max(row["query"] for row in rows)
            grid = np.full((n, n), np.nan)
            for row in rows:
                grid[row["query"] - 1, row["key"] - 1] = row["weight"]
            axes.imshow(grid, cmap="Blues", vmin=0, vmax=1, extent=(0.5, n + 0.5, n + 0.5, 0.5))
            axes.set_title(title, loc="left", fontsize="medium")
            axes.set(xlabel="key", ylabel="query", xticks=range(1, n + 1, 2), yticks=range(1, n + 1, 2))

        return paint

    alt = "Attention maps of two heads of a second layer without an encoding: the diagonal, and the token before."
    panels = (head_panel("diagonal", "diagonal head"), head_panel("previous", "previous-token head"))
    return _drawing("heads", alt, attention_map_rows, panels)


def _columns(rows: Rows, *names: str) -> tuple[list[Any], ...]:
    return tuple([row[name] for row in rows] for name in names)


def _as_text(rows: Rows) -> Rows:
    """Convert all cells to text, so that columns with numbers and words have one type."""
    return [{name: str(value) for name, value in row.items()} for row in rows]


def _legend(axes: Axes, precisions: Mapping[str, object], norms: Mapping[str, object]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=_PRECISIONS[name], label=name) for name in precisions]
    lines += [Line2D([], [], color=FAINT, linestyle=_DASHES[name], label=_NORMS[name]) for name in norms]
    axes.legend(handles=lines, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), handlelength=2.4)


def _drawing(name: str, alt: str, rows: Rows, panels: Sequence[Callable[[Axes], None]]) -> Drawing:
    import polars as pl

    names = list(dict.fromkeys(key for row in rows for key in row))
    data = pl.DataFrame([{key: row.get(key) for key in names} for row in rows], infer_schema_length=None)

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        height = width * (0.42 if len(panels) == 2 else 0.36)
        figure, places = plt.subplots(1, len(panels), figsize=(width, height), layout="constrained")
        for axes, panel in zip(places, panels, strict=True):
            panel(axes)
        return figure

    return Drawing(name, alt, data, paint, panels=True)
