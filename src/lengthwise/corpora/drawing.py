"""The histogram of lengths, drawn with characters for a terminal or as a figure for a page."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

from lengthwise.corpora.lengths import Histogram, LengthStatistics
from lengthwise.spec import SpecError

_ROWS = 20
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_LEAST_BAR = 8  # if notes leave fewer columns than this for a bar, all notes are dropped


def histogram_bars(length_statistics: LengthStatistics, width: int = 80, longest_shown: int | None = None) -> list[str]:
    """Return the histogram as rows of at most `width` characters: range of lengths, number of documents, bar, notes.

    There are at most twenty bins, a row for empty documents and one for longer ones. A bin with documents never looks
    empty; notes are dropped if they leave no room for bars. For lengths 1, 2, 2, 4, trained on 4, 54 wide:

        words  documents
            1          1  ████████████▌
            2          2  █████████████████████████ ← median 2
            3          0
            4          1  ████████████▌ ← trained 4
    """
    shown = length_statistics.histogram(_ROWS, longest_shown)
    notes = _notes(length_statistics, shown)
    rows = [("0", shown.empty, notes[0])]
    rows += [
        (_range(low, high), count, note)
        for low, high, count, note in zip(shown.edges, shown.edges[1:], shown.counts, notes[1:], strict=False)
    ]
    rows += [(f"> {shown.edges[-1]:,}", shown.overflow, notes[-1])]
    # The first and the last row are shown only if they have documents or notes.
    kept = [row for index, row in enumerate(rows) if 0 < index < len(rows) - 1 or row[1] or row[2]]
    ranges, counts = [row[0] for row in kept], [row[1] for row in kept]
    said = [f" ← {', '.join(note)}" if note else "" for _, _, note in kept]

    unit = length_statistics.unit or "length"
    first = max(map(len, [unit, *ranges]))
    second = max(len("documents"), len(f"{max(counts):,}"))
    room = width - first - second - 4
    if any(room - len(note) < _LEAST_BAR for note in said):
        said = [""] * len(counts)
    # Bars are as long as every row allows with its note: a long note beside a short bar need not shorten the others.
    scale = min((max(room - len(note), 1) / count for count, note in zip(counts, said, strict=True) if count))
    drawn = [f"{unit:>{first}}  {'documents':>{second}}"]
    for where, count, note in zip(ranges, counts, said, strict=True):
        eighths = max(int(count * scale * 8), 1) if count else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
        drawn.append(f"{where:>{first}}  {count:>{second},}  {(bar + note).lstrip()}".rstrip())
    return drawn


def _range(low: int, high: int) -> str:
    return f"{high:,}" if low + 1 == high else f"{low + 1:,}–{high:,}"


def _notes(lengths: LengthStatistics, shown: Histogram) -> list[list[str]]:
    """Return the notes at 0, in each bin, and beyond the last one: median, training lengths, longest."""
    notes: list[list[str]] = [[] for _ in range(len(shown.edges) + 1)]
    marks = [(lengths.median, "median"), *((length, "trained") for length in lengths.beyond)]
    if shown.overflow:
        marks.append((lengths.max, "longest"))
    for length, name in marks:
        notes[bisect_left(shown.edges, length)].append(f"{name} {length:,}")
    return notes


def write_histogram_figure(
    length_statistics: LengthStatistics, path: Path, title: str, bins: int = 50, longest_shown: int | None = None
) -> None:
    """Write the histogram as SVG or PNG, by the file's suffix, with the median and the training lengths marked.

    Documents that are empty or too long for the axis are counted below it. The same lengths give the same bytes.
    """
    if path.suffix.lower() not in {".svg", ".png"}:
        raise SpecError(f"a figure is .svg or .png, not '{path}'; write {path.with_suffix('.svg')}")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    shown = length_statistics.histogram(bins, longest_shown)
    end = shown.edges[-1]
    drawn = Figure(figsize=(7.2, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    axes.stairs(shown.counts, shown.edges, fill=True, color="#9db8d6")
    axes.stairs(shown.counts, shown.edges, color="#4a6f9c", linewidth=0.8)

    def named(name: str, length: int) -> str:
        return f"{name} {length:,}{' (right of the axis)' if length > end else ''}"

    axes.axvline(
        length_statistics.median, color="#222222", linewidth=1.4, label=named("median", length_statistics.median)
    )
    dashes = [(0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (9, 3)), (0, (3, 1, 1, 1, 1, 1))]
    for index, (length, share) in enumerate(length_statistics.beyond.items()):
        label = f"{named('trained', length)}: {format_percent(share)} longer"
        axes.axvline(length, color=f"C{index % 9 + 1}", linewidth=1.4, linestyle=dashes[index % 5], label=label)
    axes.set_xlim(0, end)
    axes.set_ylim(0, max(*shown.counts, 1) * 1.08)
    below = [f"length in {length_statistics.unit}" if length_statistics.unit else "length"]
    if shown.empty:
        below.append(
            f"not drawn: {shown.empty:,} ({format_percent(shown.empty / length_statistics.documents)}) that are empty"
        )
    if shown.overflow:
        share = format_percent(shown.overflow / length_statistics.documents)
        below.append(
            f"not drawn: {shown.overflow:,} ({share}) longer than {end:,}, the longest {length_statistics.max:,}"
        )
    axes.set_xlabel("\n".join(below), parse_math=False)
    axes.set_ylabel(f"documents (of {length_statistics.documents:,})")
    axes.set_title(title, loc="left", fontsize=11, parse_math=False, wrap=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    # The legend is outside the axes: inside, a line would run through its text.
    drawn.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    # Without this, an SVG would contain the date and random ids.
    with matplotlib.rc_context({"svg.hashsalt": "lengthwise"}):
        try:
            drawn.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise SpecError(f"the figure cannot be written to '{path}': {error.strerror or error}") from error


def format_percent(share: float) -> str:
    """Format a share as percent with one digit; it is never rounded to 0% or 100%, but to e.g. `under 0.1%`."""
    if 0 < share < 0.0005:
        return "under 0.1%"
    if 0.9995 < share < 1:
        return "over 99.9%"
    return f"{share:.0%}" if share in {0, 1} else f"{share:.1%}"
