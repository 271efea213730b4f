"""Mean reciprocal rank of the five encodings: Figures 1 and 2, and the results of other ranking recipes."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, numbers_by_encoding, read_published_csv

_LINES = read_published_csv("mrr")
MRR = {line["recipe"]: numbers_by_encoding(line) for line in _LINES}
"""Recipe → encoding → mean reciprocal rank."""


def tables() -> list[Table]:
    """Return the ranks by recipe."""
    rows: list[dict[str, object]] = [
        {"recipe": line["recipe"], "queries": int(line["queries"]), **numbers_by_encoding(line), "what": line["what"]}
        for line in _LINES
    ]
    return [
        Table(
            "mrr",
            "Mean reciprocal rank by exact match at unseen lengths",
            "mean of 1/rank over queries; 1 is best; the five sum to 2.2833",
            f"{PAPER}, Figures 1 and 2; {CODE}: notebooks/plot_aggregate_final.ipynb, recomputed from results/*.jsonl",
            rows,
            (
                "Ties are broken by the order of rows (Rotary, ALiBi, T5, APE, NoPE): Rotary is given rank 4 and APE "
                "rank 5 where both have 0, in 7 of the 30 queries that can be seen.",
                "Ranks of differences far below the noise of a seed count in full (addition, PCFG).",
                "PCFG's budgets differ (see accuracy); with its equal budgets it would be .68/.53/.49/.35/.23.",
                "'Across all tasks and scenarios' is without scratchpads; with them NoPE leads T5 by .03.",
            ),
        )
    ]
