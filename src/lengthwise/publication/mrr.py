"""Mean reciprocal rank of the five encodings: Figures 1 and 2, and what other recipes give."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, by_encoding

MRR: dict[str, dict[str, float]] = {
    "overall": by_encoding(".686928 .549020 .502288 .329739 .215359"),
    "primitive": by_encoding(".798611 .597222 .434028 .243056 .210417"),
    "maths": by_encoding(".612698 .448413 .592857 .403968 .225397"),
    "classic": by_encoding(".500000 .708333 .458333 .416667 .200000"),
    "with scratchpads": by_encoding(".630250 .603950 .551252 .269750 .228131"),
    "seed means": by_encoding(".696078 .573529 .475490 .323529 .217647"),
}
"""Recipe → encoding → mean reciprocal rank."""
PRINTED = by_encoding(".69 .55 .50 .33 .22")
"""As Figure 1 prints them."""

_ABOUT = {
    "overall": (51, "Figure 1: 17 task variants without scratchpad x 3 seeds, each seed a query"),
    "primitive": (24, "Figure 2: copy and reverse"),
    "maths": (21, "Figure 2: what 51 x overall leaves after the other two"),
    "classic": (6, "Figure 2: SCAN and PCFG"),
    "with scratchpads": (173, "not published as a figure: every scratchpad format a query of its own"),
    "seed means": (17, "not published: ranks of means over seeds; a tie has the better rank twice"),
}


def tables() -> list[Table]:
    """The ranks by recipe."""
    rows: list[dict[str, object]] = []
    for recipe, values in MRR.items():
        queries, about = _ABOUT[recipe]
        rows.append({"recipe": recipe, "queries": queries, **values, "what": about})
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
