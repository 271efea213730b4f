"""The original paper's figures, redrawn from its numbers without training; the output is byte-reproducible."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lengthwise.publication import CATEGORIES, CODE, ENCODINGS, PAPER, TASKS
from lengthwise.reporting.palette import FAINT, INK, SEEN, colour, dash, marker
from lengthwise.spec import SpecError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows: TypeAlias = list[dict[str, object]]

_STYLE = {
    "svg.fonttype": "none",  # keep text as text, not as paths
    "svg.hashsalt": "lengthwise",
    "pdf.fonttype": 42,
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.7,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_FORMATS = (
    "#333333",
    *("#5F7D95",) * 2,
    *("#B4C6D4",) * 5,
)  # no scratchpad; full, minimal; full without a part: not the colours of encodings
WIDE = 7.0  # inches: the text width of a page
_FOOT, _LABEL = 0.14, 0.18  # heights in inches of the source line, and of a label under all panels


def _bars(axes: Axes, places: Sequence[float], values: Mapping[str, float], width: float, size: float = 8) -> None:
    for place, (name, value) in zip(places, values.items(), strict=True):
        axes.bar(place, value, width, color=colour(name), label=ENCODINGS[name])
        axes.text(place, value + 0.008, _short(value), ha="center", va="bottom", fontsize=size)


def _short(value: float) -> str:
    """Format a share without its leading zero: .69."""
    return f"{value:.2f}".removeprefix("0")


def _one(figure: Figure) -> Rows:
    from lengthwise.publication.mrr import MRR

    figure.set_size_inches(3.6, 2.5)
    axes = figure.subplots()
    _bars(axes, range(5), MRR["overall"], 0.72, 9)
    axes.set(ylim=(0, 0.8), yticks=(0, 0.2, 0.4, 0.6, 0.8), ylabel="mean reciprocal rank (↑)")
    axes.set_xticks(range(5), ENCODINGS.values())
    axes.tick_params(axis="x", length=0)
    return [{"encoding": name, "published as": ENCODINGS[name], "mrr": value} for name, value in MRR["overall"].items()]


def _two(figure: Figure) -> Rows:
    from lengthwise.publication.mrr import MRR

    figure.set_size_inches(WIDE, 2.5)
    axes = figure.subplots()
    rows: Rows = []
    for group, category in enumerate(CATEGORIES):
        _bars(axes, [group + (place - 2) * 0.165 for place in range(5)], MRR[category], 0.15)
        rows.extend({"category": category, "encoding": name, "mrr": value} for name, value in MRR[category].items())
    counts = (24, 21, 6)
    labels = [f"{words}\n{count} queries" for words, count in zip(CATEGORIES.values(), counts, strict=True)]
    axes.set(ylim=(0, 0.9), ylabel="mean reciprocal rank (↑)")
    axes.set_xticks(range(3), labels)
    axes.tick_params(axis="x", length=0)
    _legend(figure, axes)
    return rows


def _four(figure: Figure) -> Rows:
    from lengthwise.publication.attention import BY_LAYER, BY_LENGTH

    figure.set_size_inches(WIDE, 2.75)
    left, right = figure.subplots(1, 2, sharey=True)
    for name in ENCODINGS:
        look = {"color": colour(name), "linestyle": dash(name), "linewidth": 1.5, "markersize": 3.6}
        label = "NoPE′ (another seed)" if name == "nope" else ENCODINGS[name]
        left.plot(range(1, 13), BY_LAYER[name], marker=marker(name), label=label, **look)
        right.plot(list(BY_LENGTH[name]), list(BY_LENGTH[name].values()), marker=marker(name), **look)
    left.set(xlabel="layer", ylabel="distance from NoPE's attention (nats)", xticks=range(1, 13), ylim=(0, 1.4))
    right.set(xlabel="length (SCAN actions)", xlim=(0, 49.5), xticks=(0, 10, 20, 30, 40))
    right.axvspan(0, 25, color=SEEN, zorder=0, linewidth=0)
    right.text(24.5, 0.03, "trained", ha="right", va="bottom", color=FAINT, fontsize=7.5)
    left.set_title("each layer, mean over lengths", loc="left")
    right.set_title("each length, mean over layers", loc="left")
    for axes in (left, right):
        axes.axhline(0.6931, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    left.text(2.1, 0.68, "ln 2: a true\nJSD ends here", va="top", color=FAINT, fontsize=7)
    _legend(figure, left)
    rows: Rows = []
    for name in ENCODINGS:
        for layer, value in enumerate(BY_LAYER[name], 1):
            rows.append({"encoding": name, "layer": layer, "length": "mean", "distance": value})
        for length, value in BY_LENGTH[name].items():
            rows.append({"encoding": name, "layer": "mean", "length": length, "distance": value})
    return rows


def _ranks(figure: Figure, panels: Mapping[str, Mapping[str, float]], titles: Sequence[str], label: str) -> Rows:
    """Draw a panel for each task or encoding, with a bar for each scratchpad format."""
    from lengthwise.publication.scratchpads import FORMATS

    figure.set_size_inches(WIDE, 2.35)
    every = figure.subplots(1, len(panels), sharey=True, sharex=True)
    longest = max(value for values in panels.values() for value in values.values())
    for axes, values, title in zip(every, panels.values(), titles, strict=True):
        for place, (name, shade) in enumerate(zip(FORMATS, _FORMATS, strict=True)):
            if name not in values:
                axes.text(0.01 * longest, place, "–", va="center", color=FAINT)
                continue
            axes.barh(place, values[name], 0.74, color=shade)
            axes.text(values[name] + 0.02 * longest, place, _short(values[name]), va="center", fontsize=6.8)
        axes.set_title(title, loc="left", fontsize=8.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        ticks = (0, 0.5, 1) if longest > 0.4 else (0, 0.1, 0.2)
        axes.set_xticks(ticks, [f"{tick:g}".removeprefix("0") or "0" for tick in ticks])
    every[0].set_yticks(range(len(FORMATS)), FORMATS.values())
    every[0].set(xlim=(0, 1.24 * longest), ylim=(len(FORMATS) - 0.5, -0.5))
    _under(figure, label)
    return [
        {"panel": panel, "format": name, "value": value}
        for panel, values in panels.items()
        for name, value in values.items()
    ]


def _six(figure: Figure) -> Rows:
    from lengthwise.publication.scratchpads import BY_TASK

    titles = [{"sort:variant=multi": "Sorting (multi)"}.get(task, TASKS[task].label.split()[0]) for task in BY_TASK]
    return _ranks(figure, BY_TASK, titles, "mean reciprocal rank of the scratchpad format, over all encodings (↑)")


def _six_by_encoding(figure: Figure) -> Rows:
    from lengthwise.publication.scratchpads import BY_ENCODING

    words = "mean reciprocal rank of the scratchpad format, over all tasks (↑)"
    return _ranks(figure, BY_ENCODING, list(ENCODINGS.values()), words)


def _formats(task: str) -> Callable[[Figure], Rows]:
    def drawn(figure: Figure) -> Rows:
        from lengthwise.publication.scratchpads import ACCURACY

        panels = {
            encoding: {name: values[encoding] for name, values in ACCURACY[task].items()} for encoding in ENCODINGS
        }
        words = f"exact match at unseen lengths, {TASKS[task].label} (↑)"
        return _ranks(figure, panels, list(ENCODINGS.values()), words)

    return drawn


def _seven(figure: Figure) -> Rows:
    from lengthwise.publication.attention import FRACTIONS

    figure.set_size_inches(WIDE, 1.95)
    every = figure.subplots(1, 5, sharey=True, sharex=True)
    places = [number / 20 for number in range(21)]
    for axes, (name, shares) in zip(every, FRACTIONS.items(), strict=True):
        axes.bar(places, shares, 0.05, color=colour(name), linewidth=0)
        axes.set_title(ENCODINGS[name], loc="left")
        far = sum(shares[18:])
        axes.text(0.04, shares[0] + 0.012, f"{shares[0]:.0%}", ha="left", fontsize=7.5)
        axes.text(1.02, max(shares[18:]) + 0.02, f"{far:.0%}", ha="right", fontsize=7.5)
    every[0].set(ylabel="share of query tokens", ylim=(0, 0.72), xlim=(-0.06, 1.06), xticks=(0, 0.5, 1))
    every[0].set_xticklabels(["0", "½", "1"])
    _under(figure, "distance from a query to the key it attends most, as a share of the way back to the first token")
    return [
        {"encoding": name, "distance": place, "share": round(share, 5)}
        for name, shares in FRACTIONS.items()
        for place, share in zip(places, shares, strict=True)
    ]


def _instructions(figure: Figure) -> Rows:
    from lengthwise.publication.lengths import COUNTS, MEDIANS, WIDTH, edges

    figure.set_size_inches(WIDE, 2.3)
    every = figure.subplots(1, 2, sharex=True)
    lefts = edges()[:-1]
    rows: Rows = []
    for axes, (name, counts) in zip(every, COUNTS.items(), strict=True):
        axes.bar(lefts, [count / 1000 for count in counts], WIDTH, align="edge", color="#5F7D95", linewidth=0)
        axes.axvline(MEDIANS[name], color=INK, linewidth=1.1, linestyle=":")
        top = max(counts) / 1000
        axes.text(MEDIANS[name] + 50, 1.14 * top, f"median {MEDIANS[name]} tokens", va="top", fontsize=8)
        beyond = sum(count for left, count in zip(lefts, counts, strict=True) if left >= 2000) / sum(counts)
        axes.text(3950, 0.12 * top, f"{beyond:.2%} longer than 2,000", ha="right", fontsize=7.5, color=FAINT)
        axes.set_ylim(0, 1.15 * top)
        axes.set_title(name, loc="left")
        axes.set(xlim=(0, 4000), xlabel="tokens")
        rows.extend({"texts": name, "from": left, "count": count} for left, count in zip(lefts, counts, strict=True))
    every[0].set_ylabel("texts (thousands)")
    return rows


def _curves(category: str) -> Callable[[Figure], Rows]:
    def drawn(figure: Figure) -> Rows:
        from lengthwise.publication.curves import CURVES

        tasks = [task for task, about in TASKS.items() if about.category == category]
        columns = min(4, len(tasks))
        lines = -(-len(tasks) // columns)
        figure.set_size_inches(WIDE, 0.75 + 1.65 * lines)
        grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
        every = [axes for line in grid for axes in line]
        for axes in every[len(tasks) :]:
            axes.remove()
        rows: Rows = []
        for axes, task in zip(every, tasks, strict=False):
            about = TASKS[task]
            axes.axvspan(0, about.trained + 0.5, color=SEEN, zorder=0, linewidth=0)
            if about.chance:
                axes.axhline(about.chance, color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
            for place, (name, curve) in enumerate(CURVES[task].items()):
                axes.plot(
                    list(curve),
                    list(curve.values()),
                    zorder=3 - place / 10,  # the first on top
                    color=colour(name),
                    linestyle=dash(name),
                    linewidth=1.3,
                    marker=marker(name),
                    markersize=2.6,
                    markevery=(place % 3, 3) if len(curve) > 32 else None,
                    label=ENCODINGS[name],
                )
                rows.extend(
                    {"task": task, "encoding": name, "length": length, "exact match": value}
                    for length, value in curve.items()
                )
            axes.set_title(about.label, loc="left", fontsize=8.5)
            axes.set(xlim=(0, about.tested + 0.5), ylim=(-0.04, 1.06), xlabel=f"length ({about.unit})")
            axes.set_yticks((0, 0.5, 1))
        every[0].text(TASKS[tasks[0]].trained, 0.02, "trained ", ha="right", va="bottom", color=FAINT, fontsize=7)
        for line in grid:
            line[0].set_ylabel("exact match")
        _legend(figure, every[0])
        return rows

    return drawn


def _under(figure: Figure, words: str) -> None:
    """Add one label under all panels, above the source line."""
    figure.supxlabel(words, y=_FOOT / figure.get_figheight(), fontsize=8.5, color=INK)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        once.values(), once.keys(), loc="outside upper center", ncols=len(once), frameon=False, handlelength=1.6
    )


FIGURES: dict[str, tuple[str, Callable[[Figure], Rows]]] = {
    "1": ("Aggregate rank of the encodings, 17 task variants × 3 seeds", _one),
    "2": ("Rank of the encodings in three groups of tasks", _two),
    "4": ("Distance of NoPE's attention from the others', SCAN", _four),
    "6": ("Rank of scratchpad formats in each task", _six),
    "7": ("How far back attention looks: addition with a full scratchpad", _seven),
    "A.1": ("How long instructions are", _instructions),
    "E.2": ("Exact match by length, primitive tasks, mean of 3 seeds", _curves("primitive")),
    "E.3": ("Exact match by length, mathematical and reasoning tasks, mean of 3 seeds", _curves("maths")),
    "E.4": ("Exact match by length, SCAN and PCFG, mean of 3 seeds", _curves("classic")),
    "E.6": ("Rank of scratchpad formats for each encoding", _six_by_encoding),
    **{
        f"E.{number}": (f"Exact match of scratchpad formats, {TASKS[task].label}, mean of 3 seeds", _formats(task))
        for number, task in enumerate(
            (
                *("addition", "summation", "parity", "sort:variant=single", "sort:variant=multi"),
                *("polynomial", "lego"),
            ),
            7,
        )
    },
}
"""Number of a figure in the paper → its title, and the function that draws it."""
_MERGED = ("6", "E.6", "E.10", "E.11", "E.13")


def redraw_published_figure(figure_number: str, folder: Path) -> list[Path]:
    """Redraw a figure of the paper: SVG, PDF, and its data as CSV."""
    if figure_number not in FIGURES:
        known = {"3": "Figure 3 shows six panels of E.2, E.3 and E.4: draw those.", "5": "Figure 5 is an example."}
        known["E.5"] = "Figure E.5 is Figure 4 for each layer alone: draw 4."
        hint = f" {known[figure_number]}" if figure_number in known else did_you_mean(figure_number, FIGURES)
        raise SpecError(f"no figure {figure_number!r} of the original can be drawn.{hint}")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    title, drawn = FIGURES[figure_number]
    folder.mkdir(parents=True, exist_ok=True)
    base = f"published-figure-{figure_number.lower().replace('.', '')}"
    paths = [folder / f"{base}.{kind}" for kind in ("svg", "pdf", "csv")]
    with plt.rc_context(_STYLE):
        figure = plt.figure(layout="constrained")
        rows = drawn(figure)
        source = f"Redrawn from the numbers of {PAPER}, Figure {figure_number}."
        if figure_number in _MERGED:
            source = f"In sort and LEGO 'full − step input' is two formats under one label. {source}"
        foot = _FOOT / figure.get_figheight()
        taken = foot + bool(figure.get_supxlabel()) * _LABEL / figure.get_figheight()
        figure.get_layout_engine().set(rect=(0, taken, 1, 1 - taken))  # pyrefly: ignore[missing-attribute]
        figure.text(0.995, 0.1 * foot, source, ha="right", va="bottom", fontsize=6, color=FAINT)
        figure.savefig(paths[0], metadata={"Date": None, "Title": title, "Source": CODE})
        figure.savefig(paths[1], metadata={"CreationDate": None, "Title": title})
        plt.close(figure)
    with paths[2].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return paths
