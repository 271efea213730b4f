"""How long instructions are: Figure A.1, why length generalization matters."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, numbers

WIDTH = 4000 / 49
"""Tokens in a bin; the first begins at half of it."""
MEDIANS = {"FLAN (CoT)": 454, "Super-NaturalInstructions": 141}
_COUNTS = {
    "FLAN (CoT)": "5 2803 26605 39223 21136 42497 22836 4673 4829 4961 3274 2130 1507 1306 1242 1025 830 543 342 209 "
    "142 97 70 33 10 4 1 0 0 1 0 0 0 1 1 1 0x6 1 1 0x4",
    "Super-NaturalInstructions": "71401 53776 22678 8801 6104 4255 2874 2674 1568 1186 582 384 273 208 195 361 210 121 "
    "193 247 78 66 83 43 40 33 29 19 39 19 18 17 17 12 8 11 8 15 11 12 11 7 11 6 6 5 5 5",
}
COUNTS: dict[str, list[int]] = {
    name: [int(count) for count in numbers(line) if count is not None] for name, line in _COUNTS.items()
}
"""Set of instructions → texts per bin."""


def edges() -> list[float]:
    """The left edges of the bins, and the last right one."""
    return [round(WIDTH * (number + 0.5), 1) for number in range(len(COUNTS["FLAN (CoT)"]) + 1)]


def tables() -> list[Table]:
    """Medians, and how many texts are long."""
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
