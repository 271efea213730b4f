"""The table of the leaderboard: mean exact match at unseen lengths and ranks, with intervals, from committed rows."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.leaderboard.entry import Entry
from lengthwise.spec import SpecError
from lengthwise.statistics.aggregates import mean_scores_over_tasks
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.ranks import rank_statistics
from lengthwise.statistics.table import score_table

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Standing:
    """An entry's line."""

    entry: Entry
    unseen: Estimate
    mean_rank: Estimate
    by_task: dict[str, float]
    learned: str
    """How many of its runs learned the seen lengths, e.g. `19 of 20`."""

    def row(self) -> dict[str, Any]:
        """The line of the table."""
        card = self.entry.card
        return {
            "entry": self.entry.name,
            "unseen": _interval(self.unseen, 3),
            "mean rank": _interval(self.mean_rank, 1),
            **{task: f"{value:.3f}" for task, value in self.by_task.items()},
            "learned": self.learned,
            "parameters": f"+{card.extra_parameters:,}",
            "time": f"× {card.training_time:.2f}",
        }


@dataclass(frozen=True, repr=False)
class Standings(Display):
    """All entries, the highest mean exact match first."""

    lines: Sequence[Standing]

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table, and what its columns are."""
        yield Part([line.row() for line in self.lines])
        yield Part(_EXPLAINED, "dim")

    def plain(self) -> list[dict[str, Any]]:
        """Every number."""
        return [
            {
                "entry": line.entry.name,
                **line.entry.card.model_dump(mode="json"),
                "unseen": line.unseen.plain(),
                "mean_rank": line.mean_rank.plain(),
                "by_task": line.by_task,
                "learned": line.learned,
            }
            for line in self.lines
        ]

    def markdown(self) -> str:
        """The table as Markdown, small enough for a comment; what authors wrote is escaped."""
        rows = [line.row() for line in self.lines]
        heads = list(rows[0])
        told = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for line, row in zip(self.lines, rows, strict=True):
            title = html.escape(line.entry.card.title).replace("|", "\\|").replace("\n", " ")
            told.append("| " + " | ".join([title, *map(str, list(row.values())[1:])]) + " |")
        return "\n".join([*told, "", _EXPLAINED, ""])


_EXPLAINED = (
    "unseen: mean exact match over unseen lengths and tasks, with an interval for other seeds, whose level is not "
    "known below six tasks; mean rank: among these entries in each (task, seed), ties share; learned: runs that "
    "learned the seen lengths; parameters and time of a training step (256 tokens, the author's machine) are relative "
    "to NoPE."
)


def rank_entries(entries: Sequence[Entry]) -> Standings:
    """Rank entries by their mean exact match at unseen lengths."""
    import polars as pl

    if not entries:
        raise SpecError("the leaderboard has no entries yet; lengthwise leaderboard submit ENCODING makes one")
    scores = score_table(*_rows_and_labels(entries))
    # A run that diverged ranks last and scores 0: left out, it would be better than a run that learned nothing.
    lost = pl.col("diverged").is_not_null()
    as_zero = scores.with_columns(pl.when(lost).then(0.0).otherwise(pl.col("unseen", "noise_unseen")).name.keep())
    means = mean_scores_over_tasks(as_zero.with_columns(diverged=pl.lit(None, pl.Int64)), "unseen")
    ranks = rank_statistics(scores)
    found = []
    for entry in entries:
        own = scores.filter(scores["encoding"] == entry.name)
        learned = f"{int(own['learned'].fill_null(False).sum())} of {own.height}"
        one = means[entry.name]
        by_task = {task: one.by_task[task] for task in dict.fromkeys(own["task"].to_list()) if task in one.by_task}
        found.append(Standing(entry, one.seeds, ranks.mean_rank[entry.name], _short(by_task), learned))
    return Standings(sorted(found, key=lambda line: (-(line.unseen.value or 0.0), line.entry.name)))


def _short(by_task: dict[str, float]) -> dict[str, float]:
    """Name tasks by their family alone where that is unambiguous."""
    names = [task.partition(":")[0] for task in by_task]
    return {
        name if names.count(name) == 1 else task: value
        for (task, value), name in zip(by_task.items(), names, strict=True)
    }


def _interval(one: Estimate, digits: int) -> str:
    if one.value is None:
        return "-"
    if one.low is None or one.high is None:
        return f"{one.value:.{digits}f}"
    return f"{one.value:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def _rows_and_labels(entries: Sequence[Entry]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of all entries, and the labels of their runs with the entry's name as the encoding."""
    import polars as pl

    rows, labels, first = [], [], dict[str, str]()
    for entry in entries:
        bundle = entry.bundle
        for item in entry.planned().items(bundle.ended_records)[0]:
            if item.kind == "run" and item.key in bundle.lines:
                if first.setdefault(item.key, entry.name) != entry.name:
                    raise SpecError(f"{first[item.key]} and {entry.name} are entries of the same encoding; keep one")
                step = bundle.diverged.get(item.key, {}).get("step")
                labels.append((item.key, item.point.task, entry.name, item.point.seed, step))
        rows.append(bundle.rows)
    kinds = {"run": pl.String, "task": pl.String, "encoding": pl.String, "seed": pl.Int64, "diverged": pl.Int64}
    return pl.concat(rows), pl.DataFrame(labels, schema=kinds, orient="row")
