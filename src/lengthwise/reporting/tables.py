"""The tables of a report as lists of rows, used by the page, the terminal and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.folder import publishable, without_paths
from lengthwise.publication import published_encoding, published_task
from lengthwise.publication.accuracy import UNSEEN
from lengthwise.reporting import figures
from lengthwise.reporting.comparisons import Comparisons, Line
from lengthwise.reporting.words import format_estimate, format_number
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.learned import RULE, WEAK
from lengthwise.statistics.reach import WORDS as REACH
from lengthwise.statistics.seeds import seeds_needed
from lengthwise.study.add import sets_version

ANSWERS = 6
"""The number of wrong answers shown for each task."""
_LONG = 240

BY_HEART = 0.05
"""A gap between trained and other examples of the same lengths that is larger than this is reported."""


class Tables(Comparisons):
    """The tables of a study's findings."""

    def warnings(self) -> list[str]:
        """Return the warnings that a reader must see before the numbers."""
        found, told = self.found, []
        if missing := found.planned - len(found.ended_runs):
            told.append(f"{missing} of {found.planned} runs are not done; they are missing, not 0.")
        if len(versions := {sets_version(record) for record in found.records.values()}) > 1:
            told.append(
                f"The runs were tested on different test sets (versions {', '.join(map(str, sorted(versions)))}): "
                "their numbers at unseen lengths are not of the same examples."
            )
        if len(ways := {computed_how(record) for record in found.records.values()}) > 1:
            told.append(
                f"The runs were computed in different ways, which rounds differently: {'; '.join(sorted(ways))}."
            )
        if found.failed:
            told.append(f"{len(found.failed)} runs failed: {next(iter(found.failed.values()))}")
        if found.diverged:
            told.append(
                f"{len(found.diverged)} runs diverged; they rank below all others and are in no mean: {self._lost()}."
            )
        for task, lengths in self.numbers.weak.items():
            few = f"{self.found.short(task)} {_ranges(lengths)}"
            told.append(f"Seen lengths with fewer than {WEAK} test examples, which say little: {few}.")
        if learned_by_heart := self._learned_by_heart():
            told.append(
                "Partly learned by heart (accuracy on examples that were trained on, and on others of the same "
                f"lengths): {learned_by_heart}."
            )
        if found.seeds == 1:
            told.append("There is one seed: no seed interval.")
        edge = [choice for choice in found.choices if choice.lr is not None and choice.lr_at_edge]
        if edge:
            told.append(f"{len(edge)} of {len(found.choices)} learning rates lie at the edge of what was tried.")
        left = sorted({task for one in self.numbers.means.values() for task in one.left_out})
        if left and not self.single_task:
            told.append(f"In no mean, because an encoding has no run there: {', '.join(map(self.found.short, left))}.")
        for kind in ("ceiling", "floor"):
            flat = [self.found.short(task) for task, where in self.numbers.flat.items() if where == kind]
            if flat:
                told.append(f"At the {kind} for every encoding, and so telling nothing: {', '.join(flat)}.")
        return told

    def _learned_by_heart(self) -> str:
        """List where examples that were trained on are answered better than others: `T5 on copy same .86 and .73`."""
        parts = []
        for (task, name), trained in self.numbers.trained.items():
            seen = self.numbers.seen[task, name].median.value if (task, name) in self.numbers.seen else None
            if seen is not None and trained - seen > BY_HEART and trained > 0.5:  # else nothing was learned in any way
                where = f"{self.found.label(name)} on {self.found.short(task)}"
                parts.append(f"{where} {format_number(trained, 2)} and {format_number(seen, 2)}")
        return ", ".join(sorted(parts)[:8]) + (", ..." if len(parts) > 8 else "")

    def _lost(self) -> str:
        """List the diverged runs by encoding and task: `Mine on copy same (2 of 3 seeds)`."""
        parts = []
        for (task, name), cell in self.numbers.cells.items():
            if cell.diverged:
                many = f"{len(cell.diverged)} of {len(cell.diverged) + len(cell.seeds) + cell.missing}"
                parts.append(f"{self.found.label(name)} on {self.found.short(task)} ({many} seeds)")
        return ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")

    def training_problem_table(self) -> list[Line]:
        """Return the runs whose training went wrong, and how; learning without extrapolating is not listed here."""
        order = ("diverged", "plateau", "not learned")
        listed = sorted(
            (run for run in self.numbers.health if run.kind in order), key=lambda run: order.index(run.kind)
        )
        return [
            {
                "encoding": self.found.label(run.encoding),
                "task": self.found.short(run.task),
                "seed": run.seed,
                "what happened": run.detail,
            }
            for run in listed
        ]

    def spike_text(self) -> str:
        """How many of the runs that learned had loss spikes; empty if none had."""
        spiked = sum(run.kind == "spike" for run in self.numbers.health)
        learned = len(self.found.ended_runs) - (len(self.numbers.health) - spiked)
        return f"In {spiked} of {learned} runs that learned, the loss spiked at least once." if spiked else ""

    def name_table(self) -> list[Line]:
        """Return the spec of each label in the figures and tables; empty if they are all equal."""
        lines = [{"name": self.found.label(name), "spec": without_paths(name)} for name in self.found.encodings]
        return lines if any(line["name"] != line["spec"] for line in lines) else []

    def rank_table(self) -> list[Line]:
        """Return a line for each encoding, best first."""
        if self.single_task:
            return self._one_task()
        found, here = self.found, self.numbers
        planned: dict[str, set[str]] = {}
        for item in found.wanted or found.items:
            planned.setdefault(found.names[item.key], set()).add(item.point.task)
        lines = []
        for name in self.encodings_best_first():
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
            learned = sum(bool(here.learned_by.get((task, name))) for task in found.tasks)
            told = "not learned" if middle < 0 else f"{'≥ ' if beyond else ''}{middle:.2f}"
            rank = here.rank_statistics.mean_rank.get(name)
            line: Line = {
                "encoding": found.label(name),
                "unseen": format_estimate(one.seeds),
                "families equal": format_estimate(one.families),
                "other tasks": format_estimate(one.tasks) if one.tasks.low is not None else "–",
                "mean rank": format_number(None if rank is None else rank.value, 2),
                "middle half": _value(here.rank_statistics.interquartile.get(name)),
                "seen": format_number(sum(known) / len(known) if known else None),
                "reach ÷ L": told,
                "learned": f"{learned} of {len(planned[name])}",
            }
            if any(mean.missing for mean in here.means.values()):
                line["missing"] = len(one.missing)
            if found.diverged:
                line["diverged"] = len(one.diverged)
            ours = next((five for words, five in here.mrr.items() if words.startswith("ours")), None)
            if ours is not None:  # only the first ranking; `mrr_table` has the others
                which = next((key for key, spec in _five(ours.rotary).items() if spec == name), None)
                line["MRR"] = format_number(None if which is None else ours.values.get(which))
            lines.append(line)
        return lines

    def _one_task(self) -> list[Line]:
        """Return `rank_table` for one task, with medians and order statistics: a t interval would be overconfident."""
        here, (task,) = self.numbers, self.found.tasks
        lines = []
        for name in self.encodings_best_first():
            if (task, name) not in here.reach:
                continue
            unseen, reached = here.cells[task, name].median, here.reach[task, name]
            line: Line = {
                "encoding": self.found.label(name),
                "reach": f"{reached.median}{_ends(reached)}",
                "unseen, median seed": format_estimate(unseen),
                "seen": format_number(here.seen[task, name].median.value),
                "learned": f"{reached.learned_seed_count} of {reached.n}",
            }
            if self.found.diverged:
                line["diverged"] = len(here.cells[task, name].diverged)
            lines.append(line)
        return lines

    def rank_table_caption(self) -> str:
        """Explain the columns of `rank_table` and how they are computed."""
        here = self.numbers
        if self.single_task:
            level = f" (level {self._levels()})" if self._levels() else ""
            return (
                f"Median seed with its order-statistic interval{level}, exact for any distribution of seeds. unseen: "
                f"mean accuracy over lengths L+1..2L; {REACH}. {RULE}"
            )
        one = here.means[self.encodings_best_first()[0]]
        noise = {"crossed": "each example's outcomes", "binomial": "p(1 − p)/m", "not counted": "not counted"}
        return (
            f"unseen: mean accuracy over lengths L+1..2L, then over tasks, with the {_level(one.seeds)}interval "
            f"“{one.seeds.words}” "
            f"(n = {one.seeds.n} {one.seeds.unit}; test-set noise by {noise[one.seeds.examples]}); families equal: the "
            "same with equal weights for families of tasks; other tasks: "
            f"“{one.tasks.words}”, over families (n = {one.tasks.n}). Mean rank over "
            f"{here.rank_statistics.queries} (task, seed) queries, ties shared; middle half: their interquartile mean. "
            "MRR is over exactly the five published encodings, scores rounded to .005, those not above chance set to "
            "chance. reach ÷ L: median over tasks of "
            f"the median seed's reach at .9. {RULE}"
        )

    def task_summary_table(self, task: str) -> list[Line]:
        """Return a line for each encoding on one task."""
        here, lines = self.numbers, []
        for name in self.found.encodings:
            if (task, name) not in here.cells or (task, name) not in here.reach:
                continue
            unseen, seen = here.cells[task, name], here.seen[task, name]
            told = [format_number(value, 2) for value in unseen.seeds] + [
                f"diverged ({step:,})" for step in unseen.diverged
            ]
            by_heart = {"trained on": format_number(here.trained[task, name])} if (task, name) in here.trained else {}
            lines.append(
                {
                    "encoding": self.found.label(name),
                    **by_heart,
                    "seen": format_number(seen.median.value),
                    "unseen, median": format_estimate(unseen.median),
                    "every seed": ", ".join(told),
                    "test-set noise": "–" if unseen.noise.value is None else f"± {format_number(unseen.noise.value)}",
                    "reach at .9": str(here.reach[task, name].median) + _ends(here.reach[task, name]),
                    "at .5": str(here.halfway[task, name].median),
                    "more seeds for ± .05": _more(unseen.seeds),
                }
            )
        return lines

    def published_table(self) -> list[Line]:
        """Return our mean accuracy at unseen lengths beside the published one, if there is one."""
        lines = []
        for task in self.found.tasks:
            theirs = UNSEEN.get(published_task(task) or "", {})
            line: Line = {"task": self.found.short(task)}
            for name in (name for name in self.found.encodings if (task, name) in self.numbers.cells):
                known = published_encoding(name, self.found.head_width(task, name))
                if known is not None and known in theirs:
                    ours = self.numbers.cells[task, name].mean.value
                    line[self.found.label(name)] = f"{format_number(theirs[known], 2)} / {format_number(ours, 2)}"
            if len(line) > 1:
                lines.append(line)
        names = list(dict.fromkeys(key for line in lines for key in line))
        return [{name: line.get(name, "–") for name in names} for line in lines]

    def wrong_answer_examples(self, task: str) -> list[Line]:
        """Return a wrong answer of each encoding at its first unseen length with one, with the right answer."""
        import polars as pl

        if self.found.wrong is None:
            return []
        keys = {item.key: item for item in self.found.items if item.point.task == task}
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
                    "encoding": self.found.label(name),
                    "length": line["length"],
                    "seed": keys[line["run"]].point.seed,
                    "kind": words,
                    **texts,
                }
        return list(shown.values())

    def learning_rate_table(self) -> list[Line]:
        """Return the chosen learning rates."""
        several = len({one.rest[:2] for one in self.found.choices}) > 1
        return [
            {
                "encoding": self.found.label(one.encoding),
                "chosen on": ", ".join([self.found.short(one.group), *(one.rest if several else ())]),
                "lr": "waits" if one.lr is None else f"{one.lr:g}",
                "exact match of each": ", ".join(
                    f"{rate:g}: {'missing' if score is None else format_number(score)}"
                    for rate, score in zip(one.rates, one.scores, strict=True)
                ),
                "": "at the edge" if one.lr is not None and one.lr_at_edge else "",
            }
            for one in self.found.choices
        ]

    def costs(self) -> list[Line]:
        """Return the number of runs, core hours, machines and versions."""
        found, records = self.found, self.found.records.values()
        recorded = [one["run"].get("recorded", {}) for one in records]
        known = [
            one["done"].get("cpu_seconds") or one["done"]["seconds"] * how.get("threads", 1) * how.get("processes", 1)
            for one, how in zip(records, recorded, strict=True)
            if one["done"].get("seconds") is not None
        ]

        def all_of(name: str) -> str:
            values = sorted({str(one.get(name)) for one in recorded if one.get(name) is not None})
            return ", ".join(values[:4]) + (", ..." if len(values) > 4 else "") or "not recorded"

        many = len(found.sources) > 1  # then it matters which runs are one's own
        sources = [
            f"{publishable(name)} ({runs} runs)" if many else publishable(name) for name, runs in found.sources.items()
        ]
        lines = [
            {"what": "runs", "value": f"{len(found.items)} of {found.planned}"},
            {
                "what": f"core hours of {len(known)} runs, without tuning",
                "value": f"{sum(known) / 3600:.2f}" if known else "not recorded",
            },
            {"what": "processor", "value": all_of("cpu")},
            {
                "what": "computed on",
                "value": "; ".join(sorted({computed_how(one) for one in records})) or "not recorded",
            },
            {"what": "threads of a run", "value": all_of("threads")},
            {"what": "lengthwise", "value": all_of("lengthwise")},
            {"what": "commit", "value": all_of("git")},
            {"what": "torch", "value": all_of("torch")},
            {"what": "rows", "value": f"{found.rows.height:,} from {' and '.join(sources)}"},
        ]
        return lines


def computed_how(record: Mapping[str, Any]) -> str:
    """Say where and how precisely a run was computed: `CUDA, bf16, compiled`; before it was recorded, on the CPU."""
    recorded, options = record["run"].get("recorded", {}), record["run"].get("options", {})
    mixed = isinstance(training := options.get("training"), Mapping) and training.get("autocast")
    parts = [str(recorded.get("device") or "CPU").upper(), "bf16" if mixed else "fp32"]
    return ", ".join([*parts, "compiled"] if recorded.get("compile") else parts)


def _level(estimate: Estimate) -> str:
    return "" if estimate.level is None else f"{100 * estimate.level:.4g} % "


def _more(seeds: Sequence[float]) -> str:
    """Say briefly how many more seeds are needed."""
    need = seeds_needed(seeds)
    if need.rules_out is not None:
        return f"agree: up to {100 * need.rules_out:.0f} % may fail"
    return f"{need.more}" if need.more is not None else "at least two" if need.n < 2 else need.words


def _value(one: Estimate | None) -> str:
    return format_number(None if one is None else one.value, 2)


def _five(rotary: str) -> dict[str, str]:
    return {"NoPE": "nope", "T5": "t5", "ALiBi": "alibi", "Rotary": rotary, "APE": "sinusoidal"}


def _ends(one: Any) -> str:  # noqa: ANN401
    ends = {str(one.low), str(one.high)}
    return "" if one.low is None or ends == {str(one.median)} else f" [{one.low}, {one.high}]"


def _cut(text: str | None) -> str:
    told = text or ""
    return told if len(told) <= _LONG else f"{told[: _LONG - 40]} … {told[-30:]}"


def _ranges(lengths: Sequence[int]) -> str:
    """Format lengths as ranges: 1, 2, 3 and 8 become `1–3, 8`."""
    parts: list[list[int]] = []
    for length in lengths:
        if parts and length == parts[-1][-1] + 1:
            parts[-1].append(length)
        else:
            parts.append([length])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


_NUMBER = re.compile(r"[−±≥–-]?\s?[\d,]*\.?\d*( ?%)?( \[.*\])?( of \d+)?|not learned|")


def is_numeric_column(lines: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return whether a column holds numbers, with or without intervals, so that it is right-aligned."""
    return all(_NUMBER.fullmatch(str(line.get(column, ""))) for line in lines)
