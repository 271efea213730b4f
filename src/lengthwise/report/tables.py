"""The tables of a report as lists of lines, for the page, the terminal and LaTeX alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lengthwise.published import CATEGORIES, ENCODINGS, TASKS, published_encoding, published_task
from lengthwise.published.accuracy import UNSEEN
from lengthwise.published.mrr import MRR as PUBLISHED_MRR
from lengthwise.report import figures
from lengthwise.report.findings import Findings
from lengthwise.report.numbers import numbers
from lengthwise.report.words import span
from lengthwise.statistics.aggregates import Difference, aggregates, task_difference
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.seeds import needed

Line = dict[str, Any]
ANSWERS = 6
"""Wrong answers shown for each task."""
_LONG = 240


class Tables:
    """The tables of a study's findings."""

    def __init__(self, found: Findings) -> None:
        self.found, self.numbers = found, numbers(found)

    def warnings(self) -> list[str]:
        """What a reader must know before the numbers."""
        found, told = self.found, []
        if len(found.items) < found.planned:
            told.append(
                f"{found.planned - len(found.items)} of {found.planned} runs are not done; they are missing, not 0."
            )
        if found.failed:
            told.append(f"{len(found.failed)} runs failed: {next(iter(found.failed.values()))}")
        if found.seeds == 1:
            told.append("There is one seed: no seed interval.")
        edge = [choice for choice in found.choices if choice.rate is not None and choice.edge]
        if edge:
            told.append(f"{len(edge)} of {len(found.choices)} learning rates lie at the edge of what was tried.")
        left = sorted({task for one in self.numbers.means.values() for task in one.left_out})
        if left and not self.alone:
            told.append(f"In no mean, because an encoding has no run there: {', '.join(map(self.found.short, left))}.")
        for kind in ("ceiling", "floor"):
            flat = [self.found.short(task) for task, where in self.numbers.flat.items() if where == kind]
            if flat:
                told.append(f"At the {kind} for every encoding, and so telling nothing: {', '.join(flat)}.")
        return told

    @property
    def alone(self) -> bool:
        """Whether there is one task: then there is no mean over tasks, and no test."""
        return len(self.found.tasks) == 1

    def rank_table(self) -> list[Line]:
        """A line for each encoding, best first."""
        if self.alone:
            return self._one_task()
        found, here = self.found, self.numbers
        lines = []
        for name in self.order():
            one = here.means[name]
            seen = [cell.median.value for (_, other), cell in here.seen.items() if other == name]
            known = [value for value in seen if value is not None]
            factors = sorted(
                (
                    -1.0 if reached.median.length is None else reached.median.length / found.trained[task][0],
                    reached.median.beyond,
                )
                for (task, other), reached in here.reach.items()
                if other == name
            )
            middle, beyond = factors[(len(factors) - 1) // 2] if factors else (-1.0, False)
            learned = sum(factor > 0 for factor, _ in factors)
            told = "not learned" if middle < 0 else f"{'≥ ' if beyond else ''}{middle:.2f}"
            line: Line = {
                "encoding": name,
                "unseen": span(one.seeds),
                "other tasks": span(one.tasks) if one.tasks.low is not None else "one family",
                "mean rank": f"{here.standing.mean_rank[name].value:.2f}" if name in here.standing.mean_rank else "–",
                "middle half": _value(here.standing.interquartile.get(name)),
                "seen": f"{sum(known) / len(known):.3f}" if known else "–",
                "reach ÷ L": f"{told} (learned {learned} of {len(found.tasks)})",
                "missing": len(one.missing) or "",
            }
            ours = next((five for words, five in here.mrr.items() if words.startswith("ours")), None)
            if ours is not None:  # one ranking: the table below has the others
                which = next((key for key, spec in _five(ours.rotary).items() if spec == name), None)
                line["MRR"] = "–" if which is None else f"{ours.values.get(which, float('nan')):.3f}"
            lines.append(line)
        return lines

    def _one_task(self) -> list[Line]:
        """Medians and order statistics: a t interval over the seeds of one task would promise too much."""
        here, (task,) = self.numbers, self.found.tasks
        lines = []
        for name in self.order():
            if (task, name) not in here.reach:
                continue
            unseen, reached = here.cells[task, name].median, here.reach[task, name]
            lines.append(
                {
                    "encoding": name,
                    "reach": f"{reached.median}{_ends(reached)}",
                    "unseen, median seed": span(unseen, 3),
                    "level": unseen.words if unseen.level is None else f"{100 * unseen.level:.4g} %",
                    "seen": "–" if (seen := here.seen[task, name].median.value) is None else f"{seen:.3f}",
                }
            )
        return lines

    def order(self) -> list[str]:
        """The encodings, highest mean first."""
        if self.alone:
            cells, task = self.numbers.cells, self.found.tasks[0]
            middle = {name: cells[task, name].median.value for name in self.found.encodings}
            return sorted(middle, key=lambda name: 1.0 if middle[name] is None else -(middle[name] or 0.0))
        means = self.numbers.means
        there = [name for name in self.found.encodings if means[name].value is not None]
        missing = [name for name in self.found.encodings if means[name].value is None]
        return sorted(there, key=lambda name: -(means[name].value or 0.0)) + missing

    def rank_words(self) -> str:
        """Whose numbers these are, and by which recipe."""
        here = self.numbers
        if self.alone:
            return (
                "Median seed with its order-statistic interval, exact for any distribution of seeds; its level is "
                "beside it. unseen: mean accuracy over lengths L+1..2L. reach: the largest tested length up to which "
                "at least .9 are right, there and at every shorter one."
            )
        one = here.means[self.order()[0]]
        noise = {"crossed": "each example's outcomes", "binomial": "p(1 − p)/m", "not counted": "not counted"}
        return (
            f"unseen: mean accuracy over lengths L+1..2L, then over tasks, with the 95 % interval “{one.seeds.words}” "
            f"(n = {one.seeds.n} {one.seeds.unit}; test-set noise by {noise[one.seeds.examples]}); other tasks: "
            f"“{one.tasks.words}”, over families (n = {one.tasks.n}). Mean rank over {here.standing.queries} (task, "
            "seed) queries, ties shared; middle half: their interquartile mean. MRR is over exactly the five published "
            "encodings, scores rounded to .005, "
            "those not above chance set to chance. reach ÷ L: median over tasks of the median seed's reach at .9."
        )

    def difference_table(self) -> list[Line]:
        """A line for each pair; on a single task an interval of the median difference, and never a p."""
        if self.alone:
            (task,), order = self.found.tasks, self.order()
            pairs = [(one, other) for number, one in enumerate(order) for other in order[number + 1 :]]
            made = [task_difference(self.numbers.scores, task, one, other) for one, other in pairs[:60]]
            return [
                {
                    "pair": f"{one.one} − {one.other}",
                    "median difference of seeds": span(one.median, 3),
                    "level": "–" if one.median.level is None else f"{100 * one.median.level:.4g} %",
                    "verdict": one.words,
                }
                for one in made
            ]
        order = sorted(self.numbers.differences, key=lambda one: -(one.seeds.value or 0.0))
        return [
            {
                "pair": f"{one.one} − {one.other}",
                "these tasks, other seeds": span(one.seeds, 3),
                "other tasks like these": span(one.tasks, 3) if one.tasks.low is not None else "–",
                "p (Holm)": "–" if one.corrected is None else f"{one.corrected:.3g}",
                "verdict": _settled(one),
            }
            for one in order[:60]
        ]

    def mrr_table(self) -> list[Line]:
        """Mean reciprocal ranks of exactly the five published encodings, by both recipes, and as published."""
        lines: list[Line] = []
        if self.alone:  # a rank on one task is no mean
            return lines
        for words, one in self.numbers.mrr.items():
            told = {name: span(got.seeds, 3) for name, got in one.means.items()}
            lines.append({"recipe": words, **told, "queries": one.queries})
        if lines:
            theirs = {ENCODINGS[name]: f"{value:.3f}" for name, value in PUBLISHED_MRR["overall"].items()}
            lines.append({"recipe": "published, the paper's recipe", **theirs, "queries": 51})
        return lines

    def wins_table(self) -> list[Line]:
        """The share of (task, seed) queries in which the row's encoding is strictly ahead of the column's."""
        here = self.numbers.standing
        if len(here.encodings) > figures.MANY or self.alone or not here.queries:
            return []
        return [
            {
                "ahead": one,
                **{other: "" if one == other else f"{here.wins[one, other]:.2f}" for other in here.encodings},
            }
            for one in here.encodings
        ]

    def category_table(self) -> list[Line]:
        """Mean unseen accuracy by category of the publication, with the interval over these tasks and other seeds."""
        import polars as pl

        lines: list[Line] = []
        for category, words in CATEGORIES.items():
            tasks = [
                task
                for task in self.found.tasks
                if (known := published_task(task)) and TASKS[known].category == category
            ]
            if not tasks or self.alone:
                continue
            table = self.numbers.scores.filter(pl.col("task").is_in(tasks))
            made = aggregates(table, "unseen", self.found.encodings)
            lines.append({"category": f"{words} ({len(tasks)})", **{n: span(made[n].seeds) for n in self.order()}})
        return lines

    def sensitivity_table(self) -> list[Line]:
        """The order of encodings when one choice is changed; tasks left out are told only where the order moves."""
        shown = [one for one in self.numbers.variants if not one.name.startswith("without ") or one.leader_changed]
        lines = [
            {
                "choice": one.name,
                "tasks": one.tasks,
                "order by mean": " > ".join(" = ".join(group) for group in one.order[:8]) or "nothing to order",
                "": "leader changes" if one.leader_changed else "order changes" if one.changed else "",
            }
            for one in shown[:20]
        ]
        kept = sum(one.name.startswith("without ") and not one.leader_changed for one in self.numbers.variants)
        if kept:
            lines.append(
                {
                    "choice": f"leaving out any one of {kept} other tasks",
                    "tasks": "",
                    "order by mean": "the leader stays",
                    "": "",
                }
            )
        return lines

    def task_table(self, task: str) -> list[Line]:
        """A line for each encoding on one task."""
        here, lines = self.numbers, []
        for name in self.found.encodings:
            if (task, name) not in here.cells or (task, name) not in here.reach:
                continue
            unseen, seen = here.cells[task, name], here.seen[task, name]
            level = f"{100 * unseen.median.level:.4g} %" if unseen.median.level is not None else unseen.median.words
            lines.append(
                {
                    "encoding": name,
                    "seen": "–" if seen.median.value is None else f"{seen.median.value:.3f}",
                    "unseen, median": span(unseen.median, 3),
                    "level": level,
                    "every seed": ", ".join(f"{value:.2f}" for value in unseen.seeds),
                    "test-set noise": "–" if unseen.noise.value is None else f"± {unseen.noise.value:.3f}",
                    "reach at .9": str(here.reach[task, name].median) + _ends(here.reach[task, name]),
                    "at .5": str(here.halfway[task, name].median),
                    "more seeds for ± .05": _more(unseen.seeds),
                }
            )
        return lines

    def published_table(self) -> list[Line]:
        """Ours beside the published mean accuracy at unseen lengths, where there is one."""
        lines = []
        for task in self.found.tasks:
            theirs = UNSEEN.get(published_task(task) or "", {})
            line: Line = {"task": self.found.short(task)}
            for name in self.found.encodings:
                known = published_encoding(name)
                if known is not None and known in theirs and (task, name) in self.numbers.cells:
                    ours = self.numbers.cells[task, name].mean.value
                    line[name] = f"{theirs[known]:.2f} / {'–' if ours is None else f'{ours:.2f}'}"
            if len(line) > 1:
                lines.append(line)
        names = list(dict.fromkeys(key for line in lines for key in line))
        return [{name: line.get(name, "–") for name in names} for line in lines]

    def answers(self, task: str) -> list[Line]:
        """Some wrong answers at the first lengths where each encoding fails, with the right ones."""
        import polars as pl

        if self.found.wrong is None:
            return []
        keys = {item.key: item for item in self.found.items if item.cell.task == task}
        own = self.found.wrong.filter(
            pl.col("run").is_in(list(keys)) & (pl.col("checkpoint") == "last") & (pl.col("split") != "validation")
        ).sort("length", "run", "first")
        shown: dict[str, Line] = {}
        for line in own.iter_rows(named=True):
            name = self.found.names[line["run"]]
            longer = line["length"] > self.found.trained[task][0]
            if longer and name not in shown and len(shown) < ANSWERS:
                words = figures.KINDS.get(line["kind"], (line["kind"], ""))[0]
                texts = {key: _cut(line[key]) for key in ("prompt", "answer", "said")}
                shown[name] = {
                    "encoding": name,
                    "length": line["length"],
                    "seed": keys[line["run"]].cell.seed,
                    "kind": words,
                    **texts,
                }
        return list(shown.values())

    def rates(self) -> list[Line]:
        """The chosen learning rates."""
        several = len({one.rest[:2] for one in self.found.choices}) > 1
        return [
            {
                "encoding": one.encoding,
                "chosen on": ", ".join([self.found.short(one.group), *(one.rest if several else ())]),
                "rate": "waits" if one.rate is None else f"{one.rate:g}",
                "exact match of each": ", ".join(
                    f"{rate:g}: {'missing' if score is None else f'{score[0]:.3f}'}"
                    for rate, score in zip(one.rates, one.scores, strict=True)
                ),
                "": "at the edge" if one.rate is not None and one.edge else "",
            }
            for one in self.found.choices
        ]

    def costs(self) -> list[Line]:
        """Runs, hours, machines, versions."""
        found, records = self.found, self.found.records.values()
        recorded = [one["run"].get("recorded", {}) for one in records]
        known = [
            one["done"]["seconds"] * how.get("threads", 1) * how.get("processes", 1)
            for one, how in zip(records, recorded, strict=True)
            if one["done"].get("seconds") is not None
        ]

        def all_of(name: str) -> str:
            values = sorted({str(one.get(name)) for one in recorded if one.get(name) is not None})
            return ", ".join(values[:4]) + (", ..." if len(values) > 4 else "") or "not recorded"

        lines = [
            {"what": "runs", "value": f"{len(found.items)} of {found.planned}"},
            {
                "what": f"core hours of {len(known)} runs, without tuning",
                "value": f"{sum(known) / 3600:.2f}" if known else "not recorded",
            },
            {"what": "processor", "value": all_of("cpu")},
            {"what": "threads of a run", "value": all_of("threads")},
            {"what": "lengthwise", "value": all_of("lengthwise")},
            {"what": "commit", "value": all_of("git")},
            {"what": "torch", "value": all_of("torch")},
            {"what": "rows", "value": f"{found.rows.height:,} from {found.source}"},
        ]
        return lines


def _settled(one: Difference) -> str:
    if one.seeds.value is None:
        return one.words
    if not one.settled:
        return "not settled"
    return "settled, also beyond these tasks" if one.settled_beyond else "settled for these tasks"


def _more(seeds: Sequence[float]) -> str:
    """How many more seeds, in few words."""
    need = needed(seeds)
    if need.rules_out is not None:
        return f"agree: up to {100 * need.rules_out:.0f} % may fail"
    return f"{need.more}" if need.more is not None else "at least two" if need.n < 2 else need.words


def _value(one: Estimate | None) -> str:
    return "–" if one is None or one.value is None else f"{one.value:.2f}"


def _five(rotary: str) -> dict[str, str]:
    return {"NoPE": "nope", "T5": "t5", "ALiBi": "alibi", "Rotary": rotary, "APE": "sinusoidal"}


def _ends(one: Any) -> str:  # noqa: ANN401
    ends = {str(one.low), str(one.high)}
    return "" if one.low is None or ends == {str(one.median)} else f" [{one.low}, {one.high}]"


def _cut(text: str | None) -> str:
    told = text or ""
    return told if len(told) <= _LONG else f"{told[: _LONG - 40]} … {told[-30:]}"
