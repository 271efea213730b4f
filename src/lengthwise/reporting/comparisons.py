"""Tables that compare encodings: pairs, ranks, task categories, and sensitivity of the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lengthwise.publication import CATEGORIES, ENCODINGS, TASKS, published_task
from lengthwise.publication.mrr import MRR as PUBLISHED_MRR
from lengthwise.reporting import figures
from lengthwise.reporting.agreement import published_ranks
from lengthwise.reporting.findings import Findings
from lengthwise.reporting.numbers import compute_numbers
from lengthwise.reporting.words import format_estimate, format_number, more_seeds_sentence
from lengthwise.statistics.aggregates import Difference, TaskDifference, mean_scores_over_tasks

Line = dict[str, Any]
PAIRS = 7
"""With more encodings than this, only pairs with an encoding in `focus`, or with the leader, are listed."""


class Comparisons:
    """Tables that compare the encodings of a study."""

    def __init__(self, found: Findings) -> None:
        self.found, self.numbers = found, compute_numbers(found)

    @property
    def single_task(self) -> bool:
        """Whether there is only one task, so that there is no mean over tasks and no test."""
        return len(self.found.tasks) == 1

    def encodings_best_first(self) -> list[str]:
        """The encodings, best first."""
        return self.numbers.encodings_best_first(self.found)

    def _levels(self) -> str:
        """Return the level of the cells' intervals, or its range if cells have different numbers of seeds."""
        levels = {one.median.level for one in self.numbers.cells.values() if one.median.level is not None}
        return (
            f"{' to '.join(f'{100 * level:.4g}' for level in sorted({min(levels), max(levels)}))} %" if levels else ""
        )

    def difference_table(self, all_pairs: bool = False) -> list[Line]:
        """Return a line for each pair; on a single task it has the interval of the median difference and no p.

        With many encodings, unless `all_pairs` is set, only those in `focus`, or else the leader, are compared.
        """
        found, here = self.found, self.numbers
        wanted = (
            None if all_pairs or len(found.encodings) <= PAIRS else set(found.focus or self.encodings_best_first()[:1])
        )
        if self.single_task:
            shown = [one for one in here.pairwise_differences(found) if wanted is None or {one.one, one.other} & wanted]
            return [
                {
                    "pair": self._pair(one),
                    "median difference of seeds": format_estimate(one.median),
                    "verdict": one.verdict_text,
                }
                for one in shown
            ]
        listed = sorted(here.differences, key=lambda one: -(one.seeds.value or 0.0))
        return [
            {
                "pair": self._pair(one),
                "these tasks, other seeds": format_estimate(one.seeds),
                "other tasks like these": format_estimate(one.tasks) if one.tasks.low is not None else "–",
                "p (Holm)": "–" if one.corrected is None else f"{one.corrected:.3g}",
                "verdict": _settled(one),
            }
            for one in listed
            if wanted is None or {one.one, one.other} & wanted
        ]

    def _pair(self, one: Difference | TaskDifference) -> str:
        return f"{self.found.label(one.one)} − {self.found.label(one.other)}"

    def difference_table_caption(self) -> str:
        """Explain the table of pairs, and where to find pairs that it leaves out."""
        if self.single_task:
            level = f", level {self._levels()}" if self._levels() else ""
            parts = [
                f"Paired by seed{level}.",
                more_seeds_sentence(self.found),
                "A single task has an interval, never a p.",
            ]
            told = " ".join(part for part in parts if part)
        else:
            told = (
                "Paired by (task, seed). p: sign flips over (task, seed), Holm over all pairs. Settled: the interval "
                "leaves out 0 and so does the test; a single task has an interval, never a p."
            )
        many = len(self.found.encodings)
        if many > PAIRS:
            told += f" The map shows all {many * (many - 1) // 2} pairs, report.json has their numbers."
        return told

    def mrr_table(self) -> list[Line]:
        """Return mean reciprocal ranks of exactly the five published encodings, by both recipes and as published."""
        lines: list[Line] = []
        if self.single_task:  # there is no mean over tasks
            return lines
        for words, one in self.numbers.mrr.items():
            told = {name: format_estimate(got.seeds, 3) for name, got in one.means.items()}
            lines.append({"recipe": words, **told, "queries": one.queries})
        if lines:
            lines += published_ranks(self.found, self.numbers)
            theirs = {ENCODINGS[name]: format_number(value) for name, value in PUBLISHED_MRR["overall"].items()}
            lines.append({"recipe": "published, 17 task variants", **theirs, "queries": 51})
        return lines

    def wins_table(self) -> list[Line]:
        """Return the share of (task, seed) queries in which the row's encoding is strictly ahead of the column's."""
        here = self.numbers.rank_statistics
        if len(here.encodings) > figures.MANY or self.single_task or not here.queries:
            return []
        label = self.found.label
        return [
            {
                "ahead": label(one),
                **{
                    label(other): "" if one == other else format_number(here.wins[one, other], 2)
                    for other in here.encodings
                },
            }
            for one in here.encodings
        ]

    def category_table(self) -> list[Line]:
        """Return mean unseen accuracy by the paper's task categories, with the interval for other seeds."""
        import polars as pl

        lines: list[Line] = []
        for category, words in CATEGORIES.items():
            tasks = [
                task
                for task in self.found.tasks
                if (known := published_task(task)) and TASKS[known].category == category
            ]
            if not tasks or self.single_task:
                continue
            table = self.numbers.scores.filter(pl.col("task").is_in(tasks))
            made = mean_scores_over_tasks(table, "unseen", self.found.encodings)
            told = {
                self.found.label(name): format_estimate(made[name].seeds, 2) for name in self.encodings_best_first()
            }
            lines.append({"category": f"{words} ({len(tasks)})", **told})
        return lines

    def sensitivity_table(self) -> list[Line]:
        """Return the order under each changed choice; leaving out a task is listed only if the leader changes."""
        shown = [one for one in self.numbers.variants if not one.name.startswith("without ") or one.leader_changed]
        lines = [
            {
                "choice": one.name,
                "tasks": one.tasks,
                "order by mean": self._ordered(one.order),
                "": "leader changes" if one.leader_changed else "order changes" if one.changed else "",
            }
            for one in shown[:20]
        ]
        kept = sum(one.name.startswith("without ") and not one.leader_changed for one in self.numbers.variants)
        if kept and len(self.found.tasks) > 1:
            lines.append(
                {
                    "choice": "leaving out any one other task",
                    "tasks": "",
                    "order by mean": "the leader stays",
                    "": "",
                }
            )
        return lines

    def _ordered(self, order: Sequence[Sequence[str]]) -> str:
        told = " > ".join(" = ".join(map(self.found.label, group)) for group in order[:8])
        return told + (" > ..." if len(order) > 8 else "") or "nothing to order"


def _settled(one: Difference) -> str:
    if one.seeds.value is None or one.diverged:
        return one.verdict_text
    if not one.settled:
        return "not settled"
    return "settled, also beyond these tasks" if one.settled_beyond else "settled for these tasks"
