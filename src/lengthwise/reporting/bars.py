"""Text plot of accuracy against length for a terminal: one line of block characters per encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lengthwise.reporting.findings import Findings

BLOCKS = " ▁▂▃▄▅▆▇█"


def accuracy_bars(findings: Findings, task: str, width: int = 80) -> list[str]:
    """Return the lines of the plot: the median seed, one column per length, `|` after the longest trained length."""
    import polars as pl

    trained, _ = findings.trained[task]
    by = (
        findings.cells.filter(pl.col("task") == task)
        .group_by("encoding", "length")
        .agg(pl.col("accuracy").median())
    )  # fmt: skip
    middle = {(name, length): accuracy for name, length, accuracy in by.iter_rows()}
    lengths = sorted({length for _, length in middle})
    names = [name for name in findings.encodings if any((name, length) in middle for length in lengths)]
    wide = min(max(len(findings.label(name)) for name in names), width // 2)
    lines = []
    for name in names:
        own = {length: middle.get((name, length)) for length in lengths}
        lines.append(f"{findings.label(name)[:wide]:>{wide}} {accuracy_bar(own, trained, width - wide - 4)}")
    first, last = str(lengths[0]), str(lengths[-1])
    drawn = len(accuracy_bar(dict.fromkeys(lengths), trained, width - wide - 4))
    lines.append(f"{'':>{wide}} {first}{last:>{drawn - len(first)}}")
    return lines


def accuracy_bar(accuracy_by_length: Mapping[int, float | None], trained_length: int, width: int) -> str:
    """Return accuracy by length as blocks, `?` where it is missing; if there are too many lengths, every n-th."""
    lengths = sorted(accuracy_by_length)
    step = -(-len(lengths) // max(width, 8))
    shown = [length for place, length in enumerate(lengths) if place % step == 0 or length == lengths[-1]]
    blocks = ""
    for before, length in zip([0, *shown], shown, strict=False):
        blocks += "|" if before <= trained_length < length else ""
        there = accuracy_by_length[length]
        blocks += "?" if there is None else BLOCKS[round(there * (len(BLOCKS) - 1))]
    return blocks
