"""Exact match by length, mean of three seeds: the data of Figures 3 and E.2 to E.4."""

from __future__ import annotations

from lengthwise.publication import CODE, ENCODINGS, PAPER, read_published_csv

SOURCE = (
    f"{PAPER}, Figures 3 and E.2-E.4; {CODE}: copy, reverse, SCAN and PCFG from results/*.jsonl, the seven of maths "
    "from the vector figure appendix_showcase_1.pdf"
)
DEFECTS = (
    "Seen lengths are validation, which repeats training rows: up to all of them for parity, whose lengths are few.",
    "Copy variant 3: one of 100 symbols is lost in decoding, so no model can be above .99 to the power of the length.",
    "A length of addition and LEGO is the plain mean of its cells (a-by-b digits, the variable asked for).",
)

_LINES = read_published_csv("curves")
CURVES: dict[str, dict[str, dict[int, float]]] = {
    task: {
        encoding: {
            int(line["length"]): float(line[encoding]) for line in _LINES if line["task"] == task and line[encoding]
        }
        for encoding in ENCODINGS
    }
    for task in dict.fromkeys(line["task"] for line in _LINES)
}
"""Task → encoding → length → exact match, to three digits."""
