"""Figures and tables of `lengthwise theory variance` and `order`, made from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.reporting.drawing import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

# Each quantity has the same colour in every panel.
MEASURED, PUBLISHED, CORRECTED, EXACT, OTHER = "#0072B2", "#D55E00", "#8a6d00", "#009E73", "#AA4499"
LINES = {
    "as_published": ("as published", PUBLISHED, (0, (5, 2))),
    "corrected": ("corrected", CORRECTED, (0, (1, 1))),
    "exact": ("exact law", EXACT, "-"),
}


def variance_drawing(rows: Rows) -> Drawing:
    """Draw four panels: the variance by position, its floor, logits by number of heads, and where Property 1 fails."""
    import polars as pl

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, grid = plt.subplots(2, 2, figsize=(width, width * 0.8), layout="constrained")
        _decay(grid[0][0], rows)
        _floor(grid[0][1], rows)
        _heads(grid[1][0], rows)
        _property(grid[1][1], rows)
        shown = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown), fontsize="small")
        return figure

    alt = (
        "The variance of attention's output falls as 1/m under a causal mask, with a floor, and is flat under a "
        "bidirectional one; the variance of a scaled logit does not depend on the number of heads; for large σ only "
        "the exact law follows the measurement."
    )
    return Drawing("theory-variance", alt, pl.DataFrame(list(rows), infer_schema_length=None), paint, panels=True)


def _of(rows: Rows, part: str, mask: str = "causal") -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part and row["mask"] == mask]


def _points(axes: Axes, x: list[Any], rows: Rows, label: str, colour: str, by: Sequence[float] | None = None) -> None:
    by = [1.0] * len(rows) if by is None else by
    middle = [row["measured"] * f for row, f in zip(rows, by, strict=True)]
    ends = [[(row["measured"] - row["low"]) * f for row, f in zip(rows, by, strict=True)]] * 2
    axes.errorbar(x, middle, ends, fmt="o", markersize=3.5, color=colour, linewidth=1.2, label=label, zorder=3)


def _line(axes: Axes, x: list[Any], rows: Rows, form: str, by: Sequence[float] | None = None) -> None:
    label, colour, dash = LINES[form]
    by = [1.0] * len(rows) if by is None else by
    axes.plot(x, [r[form] * f for r, f in zip(rows, by, strict=True)], color=colour, linestyle=dash, label=label)


def _decay(axes: Axes, rows: Rows) -> None:
    causal, both = _of(rows, "lemma 3"), _of(rows, "lemma 3", "bidirectional")
    for form in LINES:
        _line(axes, [row["m"] for row in causal], causal, form)
    _points(axes, [row["m"] for row in causal], causal, "measured, 99 % band", MEASURED)
    _points(axes, [row["m"] for row in both], both, "measured, bidirectional", OTHER)
    axes.set(xscale="log", yscale="log", xlabel="position m", ylabel="variance of attention's output")
    axes.set_title(f"Lemma 3: {_setting(causal)}", loc="left", fontsize="medium")


def _floor(axes: Axes, rows: Rows) -> None:
    found = _of(rows, "floor")
    m = [row["m"] for row in found]
    times = [row["m"] / row["spread"] for row in found]
    for form in LINES:
        _line(axes, m, found, form, times)
    _points(axes, m, found, "measured, 99 % band", MEASURED, times)
    axes.set(xscale="log", yscale="log", xlabel="position m", ylabel="variance · m / d²σ⁴")
    axes.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_title(f"Its floor: {_setting(found)}", loc="left", fontsize="medium")


def _heads(axes: Axes, rows: Rows) -> None:
    found = _of(rows, "heads")
    heads = [row["heads"] for row in found]
    for form in ("as_published", "corrected"):
        _line(axes, heads, found, form)
    _points(axes, heads, found, "measured, 99 % band", MEASURED)
    axes.set(xscale="log", yscale="log", xlabel="heads H", ylabel="variance of a scaled logit", ylim=(0.01, 1))
    axes.set_xticks(heads, [str(number) for number in heads])
    axes.minorticks_off()
    axes.set_title(f"Lemma 2: {_setting(found, 'heads')}", loc="left", fontsize="medium")


def _property(axes: Axes, rows: Rows) -> None:
    found = _of(rows, "property 1")
    sizes = [row["spread"] for row in found]
    times = [1 / row["as_published"] for row in found]
    for form in LINES:
        _line(axes, sizes, found, form, times)
    _points(axes, sizes, found, "measured, 99 % band", MEASURED, times)
    top = max(row["high"] * f for row, f in zip(found, times, strict=True))
    axes.set(xscale="log", yscale="log", ylim=(0.6, 6 * top))
    axes.set(xlabel="d²σ⁴, the variance of a scaled logit", ylabel="variance / published")
    title = f"Property 1 fails: {_setting(found, 'sigma')}, m={found[0]['m']}" if found else ""
    axes.set_title(title, loc="left", fontsize="medium")


def _setting(rows: Rows, but: str = "") -> str:
    if not rows:
        return ""
    parts = {"width": "d={width}", "heads": "H={heads}", "sigma": "σ={sigma:.3g}"}
    return ", ".join(text.format(**rows[0]) for name, text in parts.items() if name != but)


def order_effect_drawing(rows: Rows) -> Drawing:
    """Draw the largest change of a logit for each check, on a log axis: rounding error, or as large as the logits."""
    import polars as pl

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(width, 0.6 + 0.3 * len(rows)), layout="constrained")
        for place, row in enumerate(rows):
            colour = EXACT if row["expected"] == "no change" else PUBLISHED
            if not row["change"]:
                axes.annotate("exactly 0", (2e-18, place), color=colour, va="center", fontsize="small")
                continue
            axes.plot([1e-18, row["change"]], [place, place], color=colour, linewidth=1.2)
            axes.plot(row["change"], place, "o", color=colour, markersize=5)
        names = [f"{row['check']}\n{row['mask']}, {row['encoding']}, layers: {row['layers']}" for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize="x-small")
        axes.invert_yaxis()
        axes.set(xscale="log", xlim=(1e-18, 100), xlabel="largest change of a logit / their standard deviation")
        return figure

    alt = "Where order cannot be known the change is rounding, about 1e-15; where it can, it is as large as the logits."
    return Drawing("theory-order", alt, pl.DataFrame(list(rows)), paint, panels=True)


def trained_accuracy_drawing(rows: Rows) -> Drawing:
    """Draw exact match by length of the trained models, and the score of guessing from the multiset of tokens."""
    import polars as pl

    def paint(width: float) -> Figure:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(width, width * 0.45), layout="constrained")
        looks = {
            ("sort", "prefix"): (EXACT, "-", "s"),
            ("copy", "causal"): (MEASURED, "-", "o"),
            ("copy", "prefix"): (PUBLISHED, "-", "v"),
        }
        for (task, mask), (colour, dash, mark) in looks.items():
            own = [row for row in rows if (row["task"], row["mask"]) == (task, mask) and row["seen"]]
            share = [row["correct"] / row["examples"] for row in own]
            label = f"{task}, {mask} mask"
            axes.plot([r["length"] for r in own], share, color=colour, linestyle=dash, marker=mark, label=label)
        guess = {row["length"]: row["guess"] for row in rows if row["guess"] is not None and row["seen"]}
        axes.plot(list(guess), list(guess.values()), color="#555555", linestyle=":", label="copy by its multiset")
        axes.set(xlabel="length (all trained)", ylabel="exact match", ylim=(-0.03, 1.05))
        axes.legend(fontsize="small")
        return figure

    alt = "Without positions a prefix-mask model learns to sort and cannot copy; a causal one copies."
    return Drawing("theory-order-trained", alt, pl.DataFrame(list(rows), infer_schema_length=None), paint)


def lemma_table(rows: Rows, tokens: int) -> list[dict[str, object]]:
    """The rows of the lemmas that a terminal shows: at some positions, with measured over predicted."""
    return [_lemma_line(row) for row in rows if _shown(row, tokens)]


def _shown(row: Mapping[str, Any], tokens: int) -> bool:
    """Whether a terminal shows a row of a lemma; the file has all rows."""
    return {
        "lemma 3": row["m"] in {1, 8, 64, tokens} and row["mask"] == "causal",
        "lemma 4": row["m"] == 16,
        "heads": row["heads"] in {1, 16},
        "floor": row["m"] == 4096,
        "property 1": row["sigma"] in {0.02, 0.05, 0.08, 0.11},
    }.get(row["part"], True)


def _lemma_line(row: Mapping[str, Any]) -> dict[str, object]:
    """The numbers of a row, and measured over predicted."""
    measured = row["measured"]

    def ratio(form: str) -> str:
        value = row[form]
        if value is None or abs(value) < 1e-9:
            return "-"
        return f"{measured / value:.3f}" if abs(measured / value) < 100 else f"{measured / value:.0f}"

    part = f"{row['part']} ({row['form'].replace('_', ' ')})" if "form" in row else row["part"]
    weights = "" if row["weights"] == "normal" else f", {row['weights']}"
    return {
        "of": part,
        "d, H, σ": f"{row['width']}, {row['heads']}, {row['sigma']:.3g}{weights}",
        "mask": row["mask"],
        "m": "-" if row["m"] is None else row["m"],
        "measured": f"{measured:.4g}",
        "99 % band": f"{row['low']:.4g} to {row['high']:.4g}",
        "/ as published": ratio("as_published"),
        "/ corrected": ratio("corrected"),
        "/ exact": ratio("exact"),
    }


def order_table(rows: Rows) -> list[dict[str, object]]:
    """Exact match of trained models without positions, one column for each seen length."""
    seen = [row for row in rows if row["seen"]]
    table: list[dict[str, object]] = []
    for task, mask in dict.fromkeys((row["task"], row["mask"]) for row in seen):
        own = [row for row in seen if (row["task"], row["mask"]) == (task, mask)]
        table.append(
            {
                "exact match": f"{task}, {mask} mask",
                **{str(row["length"]): f"{row['correct'] / row['examples']:.3f}" for row in own},
                "loss by another order": f"{max(abs(row['shuffled'] or 0) for row in own):.2g} at most",
            }
        )
    guess: dict[str, object] = {str(row["length"]): f"{row['guess']:.3f}" for row in seen if row["guess"] is not None}
    return [*table, {"exact match": "copy, by its multiset", **guess, "loss by another order": ""}]
