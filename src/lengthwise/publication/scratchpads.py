"""Scratchpad formats: exact match of each (Figures E.7 to E.13) and their mean reciprocal ranks (Figures 6 and E.6)."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, numbers_by_encoding, read_published_csv

FORMATS = {
    "none": "no scratchpad",
    "full": "full",
    "minimal": "minimal",
    "full-input": "full − step input",
    "full-computation": "full − computation",
    "full-output": "full − step output",
    "full-variables": "full − variables",
    "full-remaining": "full − remaining",
}
"""Our name of a format → its description."""
_LINES, _RANKS = read_published_csv("scratchpads"), read_published_csv("scratchpad_ranks")
ACCURACY: dict[str, dict[str, dict[str, float]]] = {
    task: {line["format"]: numbers_by_encoding(line) for line in _LINES if line["task"] == task}
    for task in dict.fromkeys(line["task"] for line in _LINES)
}
"""Task → format → encoding → exact match at unseen lengths, mean of three seeds."""


def _ranks(over: str) -> dict[str, dict[str, float]]:
    found = [line for line in _RANKS if line["over"] == over]
    return {line["of"]: {name: float(line[name]) for name in FORMATS if line[name]} for line in found}


BY_TASK = _ranks("encodings")
"""Task → format → mean reciprocal rank of the format over all encodings (Figure 6)."""
BY_ENCODING = _ranks("tasks")
"""Encoding → format → mean reciprocal rank of the format over all tasks (Figure E.6)."""

_MERGED = (
    "sort and LEGO: 'full − step input' is two formats under one label, full minus input and full minus computation "
    "(a wrong label in the plotting code): averaged in exact match; in ranks one overwrites the other."
)


def tables() -> list[Table]:
    """Return exact match by format, and the two rankings of formats."""
    accuracy: list[dict[str, object]] = [
        {"task": task, "format": name, **values}
        for task, formats in ACCURACY.items()
        for name, values in formats.items()
    ]
    by_task: list[dict[str, object]] = [{"task": task, **values} for task, values in BY_TASK.items()]
    full = sorted(by_task, key=lambda row: -len(row))[0]
    by_task = [{key: row.get(key) for key in full} for row in by_task]
    by_model: list[dict[str, object]] = [{"encoding": name, **values} for name, values in BY_ENCODING.items()]
    return [
        Table(
            "formats",
            "Exact match of scratchpad formats at unseen lengths (trained to 8, tested on 9-16)",
            "exact match of the answer, mean of 3 seeds",
            f"{PAPER}, Figures E.7-E.13; {CODE}: vector figures showcase_final/avg_acc_per_scrhConfig2__*.pdf",
            accuracy,
            (
                _MERGED,
                "polynomial: generation stops at 1,500 tokens with the prompt; full scratchpads of 15 terms and more "
                "need about 1,600 to 1,770 and can never be right.",
            ),
        ),
        Table(
            "by task",
            "Mean reciprocal rank of scratchpad formats per task, over all encodings",
            "mean of 1/rank of the format",
            f"{PAPER}, Figure 6; read from its vector figure in {CODE}",
            by_task,
            (_MERGED, "Sorting of single tokens is not in the figure."),
            digits=3,
        ),
        Table(
            "by encoding",
            "Mean reciprocal rank of scratchpad formats per encoding, over all tasks",
            "mean of 1/rank of the format",
            f"{PAPER}, Figure E.6; read from its vector figure in {CODE}",
            by_model,
            (_MERGED,),
            digits=3,
        ),
    ]
