"""Accuracy against length: the picture of the field, as a file and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from lengthwise.report.palette import colour

BARS = " ▁▂▃▄▅▆▇█"

Curves = Mapping[str, Sequence[Mapping[int, float]]]
"""Encoding → one mapping of length to accuracy for each seed."""


def middle(seeds: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The median over seeds at each length that every seed was tested at."""
    shared = set.intersection(*(set(seed) for seed in seeds))
    return {length: median(seed[length] for seed in seeds) for length in sorted(shared)}


def draw(
    curves: Curves, chance: Mapping[int, float], trained: int, unit: str, title: str, paths: Sequence[Path]
) -> None:
    """Draw every seed's line, thin, and the median, thick, with the training boundary and chance."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Words stay words, and the same rows give the same file.
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lengthwise", "font.size": 11}):
        figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
        axes.axvspan(0, trained, color="#f0f0f0", zorder=0)
        axes.axvline(trained, color="#888888", linewidth=1, linestyle="--", zorder=1)
        axes.text(trained, 1.05, f"trained up to {trained} ", ha="right", va="center", color="#666666", fontsize=9)
        if any(chance.values()):
            axes.plot(list(chance), list(chance.values()), color="#888888", linewidth=1, linestyle=":", zorder=1)
            axes.text(max(chance), chance[max(chance)], "chance ", ha="right", va="bottom", color="#666666", fontsize=9)
        for name, seeds in curves.items():
            tint = colour(name)
            for seed in seeds:
                axes.plot(list(seed), list(seed.values()), color=tint, linewidth=0.8, alpha=0.45, zorder=2)
            line = middle(seeds)
            axes.plot(list(line), list(line.values()), color=tint, linewidth=2.2, label=name, zorder=3)
        axes.set(xlabel=f"length ({unit})", ylabel="exact match", ylim=(-0.03, 1.1), xlim=(0, None))
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.95), title=_told(curves))
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            plain = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=plain)
        plt.close(figure)


def _told(curves: Curves) -> str:
    counts = {len(seeds) for seeds in curves.values()}
    if counts == {1}:
        return "one seed"
    return f"median and each of {'–'.join(map(str, sorted(counts)))} seeds"


def bars(curves: Curves, trained: int, width: int = 78) -> list[str]:
    """The medians as rows of blocks, one column per length, `|` where training ended."""
    lines, names = [], max(len(name) for name in curves)
    lengths = sorted({length for seeds in curves.values() for length in middle(seeds)})
    step = -(-len(lengths) // max(width - names - 4, 8))  # where there are too many lengths, every n-th
    shown = [length for place, length in enumerate(lengths) if place % step == 0 or length == lengths[-1]]
    for name, seeds in curves.items():
        line, blocks = middle(seeds), ""
        for before, length in zip([0, *shown], shown, strict=False):
            blocks += "|" if before <= trained < length else ""
            blocks += BARS[round(line[length] * (len(BARS) - 1))] if length in line else "?"
        lines.append(f"{name:>{names}} {blocks}")
    ends = f"{shown[0]}"
    lines.append(f"{'':>{names}} {ends}{f'{shown[-1]}':>{len(shown) + 1 - len(ends)}}")
    return lines
