"""The lengths of instructions: Figure A.1, which motivates length generalization."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, read_published_csv

WIDTH = 4000 / 49
"""The width of a bin in tokens; the first bin begins at half a width."""
MEDIANS = {"FLAN (CoT)": 454, "Super-NaturalInstructions": 141}
_LINES = read_published_csv("instruction_lengths")
COUNTS: dict[str, list[int]] = {name: [int(line[name]) for line in _LINES] for name in MEDIANS}
"""Set of instructions → texts per bin."""


def edges() -> list[float]:
    """Return the left edges of the bins, and the right edge of the last one."""
    return [round(WIDTH * (number + 0.5), 1) for number in range(len(COUNTS["FLAN (CoT)"]) + 1)]


def tables() -> list[Table]:
    """Return medians, and the share of long texts."""
    rows: list[dict[str, object]] = []
    for name, counts in COUNTS.items():
        beyond = [place for place, edge in enumerate(edges()[:-1]) if edge > 1000]
        share = sum(counts[place] for place in beyond) / sum(counts)
        rows.append(
            {"texts": name, "counted": sum(counts), "median": MEDIANS[name], "beyond 1,020 tokens": round(share, 4)}
        )
    return [
        Table(
            "lengths",
            "Tokens of an instruction with its answer",
            "texts; tokens of T5's vocabulary",
            f"{PAPER}, Figure A.1; read from its vector figure in {CODE}, medians from its data",
            rows,
            (
                "No script that makes the counts is published; the second set is a sample of 180,000.",
                "The figure ends at 4,000 tokens; the longest text of FLAN (CoT) has 5,808.",
            ),
        )
    ]
