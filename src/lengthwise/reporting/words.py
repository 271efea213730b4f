"""Text of the report: the verdict with its uncertainty, and the protocol of the runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lengthwise.statistics.aggregates import TaskDifference, task_difference
from lengthwise.study.drive import format_duration

if TYPE_CHECKING:
    from lengthwise.reporting.findings import Findings
    from lengthwise.reporting.numbers import Numbers
    from lengthwise.statistics.estimate import Estimate
    from lengthwise.study.plan import Item


SHOWN = 6
"""The number of encodings that the verdict names; the table has the others."""
SURE = 6
"""The number of agreeing seeds needed for a level of 95 %: 1 − 2 · ½^6 = 96.9 %."""


def format_number(value: float | None, digits: int = 3) -> str:
    """Format a number for tables: `0.866`, `−0.012`, `–` for None."""
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0 turns −0 into 0


def format_estimate(estimate: Estimate, digits: int = 3) -> str:
    """Format an estimate as `0.540 [0.500, 0.580]`, or its value if there is no interval."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return format_number(estimate.value, digits)
    value, low, high = (format_number(one, digits) for one in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def verdict(findings: Findings, numbers: Numbers) -> str:
    """Return the verdict as one paragraph: which encoding leads, by how much, and which differences are settled."""
    if len(findings.encodings) < 2:
        return _alone(findings, numbers)
    return _one_task(findings, numbers) if len(findings.tasks) == 1 else _many_tasks(findings, numbers)


def _alone(found: Findings, numbers: Numbers) -> str:
    name = found.encodings[0]
    parts = [f"{found.short(task)}: reach {numbers.reach[task, name]}" for task in found.tasks[:SHOWN]]
    return f"Only {found.label(name)} was run, so nothing is compared. {'; '.join(parts)}."


def _one_task(found: Findings, numbers: Numbers) -> str:
    task = found.tasks[0]
    trained, unit = found.trained[task]
    order = numbers.encodings_best_first(found)
    reached = [name for name in order if numbers.reach[task, name].median.length is not None]
    failed = [name for name in order if not numbers.learned_by.get((task, name))]
    if not reached:
        return (
            f"Nothing can be said about longer lengths: no encoding learned {found.short(task)} up to {trained} {unit} "
            f"({_failed(found, numbers, task, failed)})."
        )
    named = [name for name in reached if name in reached[:SHOWN] or name in found.focus]
    parts = [_reached(found, numbers, task, name, trained) for name in named]
    rest = len(reached) - len(named)
    more = f", and {rest} other{'' if rest == 1 else 's'} (table)" if rest else ""
    told = (
        f"Trained on {found.short(task)} up to {trained} {unit}, the median seed of each encoding reaches: "
        f"{', '.join(parts)}{more}. "
    )
    if failed:
        told += f"The trained lengths themselves were not learned by {_failed(found, numbers, task, failed)}. "
    lead, other = sorted(order, key=lambda name: -(numbers.value(task, name) or 0.0))[:2]
    if (numbers.value(task, lead) or 0.0) == (numbers.value(task, other) or 0.0):
        both = f"{found.label(lead)} and {found.label(other)} both have {_cell(numbers, task, lead)}"
        return f"{told}At unseen lengths nobody leads: {both}."
    pair = _pair(found, task_difference(numbers.scores, task, lead, other))
    return f"{told}At unseen lengths {found.label(lead)} leads with {_cell(numbers, task, lead)}. {pair}"


def _reached(found: Findings, numbers: Numbers, task: str, name: str, trained: int) -> str:
    one = numbers.reach[task, name]
    lost = sum(seed.diverged is not None for seed in one.seeds)
    told = f" ({one.n - lost} of {one.n} seeds; {lost} diverged)" if lost else ""
    return f"{found.label(name)} {one.median} ({(one.median.length or 0) / trained:.1f} ×){told}"


def _failed(found: Findings, numbers: Numbers, task: str, names: Sequence[str]) -> str:
    """List the encodings that did not learn, with counts of seeds that learned, diverged or stayed on a plateau."""
    parts = []
    for name in names[:SHOWN]:
        reached = numbers.reach[task, name]
        how = [f"{reached.learned_seed_count} of {reached.n} seeds learned"]
        lost = [one.diverged for one in reached.seeds if one.diverged is not None]
        if lost:
            how.append(f"{len(lost)} diverged at step {', '.join(f'{step:,}' for step in sorted(lost))}")
        flat = sum(run.kind == "plateau" for run in numbers.health if (run.task, run.encoding) == (task, name))
        if flat:
            how.append(f"{flat} never left the plateau")
        parts.append(f"{found.label(name)} ({'; '.join(how)})")
    rest = len(names) - len(parts)
    return ", ".join(parts) + (f" and {rest} others" if rest else "")


def _cell(numbers: Numbers, task: str, name: str) -> str:
    one = numbers.cells[task, name].median
    if one.level is None:
        return f"{format_number(one.value)} ({one.words})"
    return f"{format_estimate(one)} (median of {one.n} seeds, {100 * one.level:.4g} % interval)"


def _pair(found: Findings, one: TaskDifference) -> str:
    """Describe the difference between the leader and the next encoding, and how many seeds would settle it."""
    told = f"{found.label(one.one)} − {found.label(one.other)} = {format_estimate(one.median)}"
    if one.settled:
        return f"Its lead over {found.label(one.other)} is settled on this task: {told}."
    if not one.seeds_agree:
        return f"Its lead over {found.label(one.other)} is {one.verdict_text}: {told}."
    smallest = min(abs(gap) for gap in one.differences)
    least = format_number(smallest, 2)
    ahead = f"All {len(one.differences)} seeds put it ahead of {found.label(one.other)}, by at least {least}"
    return f"{ahead} ({told}). {more_seeds_sentence(found)}".strip()


def more_seeds_sentence(findings: Findings) -> str:
    """Say how many agreeing seeds 95 % needs, what to type for more seeds, and about how long they take."""
    if findings.seeds >= SURE or not findings.more:
        return ""
    known = [record["done"]["seconds"] for record in findings.records.values() if record["done"].get("seconds")]
    told = f"95 % needs {SURE} seeds; {findings.more.format(seeds=SURE)}"
    if not known or not findings.seeds:
        return f"{told}."
    cells = len(findings.wanted or findings.items) / findings.seeds
    cores = os.cpu_count() or 1
    seconds = sum(known) / len(known) * cells * (SURE - findings.seeds) / cores
    return f"{told} (about {format_duration(seconds)} more on {cores} cores)."


def _many_tasks(found: Findings, numbers: Numbers) -> str:
    there = {name: one for name, one in numbers.means.items() if one.value is not None}
    if len(there) < 2:
        return "Not settled: there is no task on which two encodings can be compared yet."
    if all(one.median.length is None for one in numbers.reach.values()):
        return f"Nothing can be said about longer lengths: no encoding learned any of the {len(found.tasks)} tasks."
    order = sorted(there, key=lambda name: -(there[name].value or 0.0))
    lead, second = there[order[0]], there[order[1]]
    n_tasks = len(lead.by_task)
    told = (
        f"Over {n_tasks} tasks and {_seeds(found)}, {found.label(order[0])} has the highest mean accuracy at unseen "
        f"lengths, {format_estimate(lead.seeds, 2)}, before {found.label(order[1])} with "
        f"{format_estimate(second.seeds, 2)}. "
    )
    pair = next(one for one in numbers.differences if {one.one, one.other} == {order[0], order[1]})
    ahead = pair.one == order[0]  # a pair is ordered by its own tasks, which may be more than the shared ones
    here, beyond = (one if ahead else one.negated() for one in (pair.seeds, pair.tasks))
    over_families = f"({format_estimate(beyond)} over families of tasks)"
    told += f"The difference, {format_estimate(here)}, is {pair.verdict_text} {over_families}. "
    settled = [one for one in numbers.differences if one.settled]
    told += f"Of {len(numbers.differences)} pairs of encodings {len(settled)} are settled for these tasks. "
    unlearned = [task for task in found.tasks if task not in numbers.learned]
    if unlearned:
        told += (
            f"{len(unlearned)} of {len(found.tasks)} tasks were not learned at seen lengths by every encoding "
            f"({', '.join(found.short(task) for task in unlearned[:4])}{', ...' if len(unlearned) > 4 else ''}): "
            "there, a low score beyond may be a failure to learn."
        )
    return told.strip()


def _seeds(found: Findings) -> str:
    counts: dict[tuple[str, str], int] = {}
    for item in found.items:
        key = (item.point.task, found.names[item.key])
        counts[key] = counts.get(key, 0) + 1
    few, many = min(counts.values()), max(counts.values())
    return "one seed" if many == 1 else f"{few if few == many else f'{few} to {many}'} seeds"


def describe_protocol(findings: Findings) -> str:
    """Describe the experimental protocol, as in a paper."""
    stages: dict[int, list[Item]] = {}
    for item in findings.items:
        stages.setdefault(item.point.stage, []).append(item)
    first = [item.plan for item in stages[min(stages)]]
    model, training = first[0].model, first[0].training
    layers = sorted({one.model.layers for one in first})
    steps = sorted({one.training.steps for one in first})
    rates = sorted({one.training.lr for one in first})
    batches = sorted({one.training.batch_size for one in first})
    widths = sorted({one.model.width for one in first})
    heads = sorted({one.model.heads for one in first})
    tested = {int(row) for row in findings.cells["examples"].to_list()}
    counted = "one task" if len(findings.tasks) == 1 else f"{len(findings.tasks)} tasks"
    told = (
        f"Decoder-only Transformers with {_range(layers)} layers of width {_range(widths)} ({_range(heads)} heads; "
        f"{model.norm} norm, {model.feed_forward}) were trained from scratch on {counted} for "
        f"{_range(steps)} steps of {_range(batches)} sequences with AdamW (peak rate {_range(rates)}, "
        f"{training.schedule} schedule), with {_seeds(findings)} each. All encodings of a seed begin with the same "
        "shared weights and see the same batches in the same order. "
    )
    for stage, after in sorted(stages.items())[1:]:
        told += (
            f"In stage {stage}, weights of the stage before were trained on for "
            f"{_range(sorted({one.plan.training.steps for one in after}))} steps "
            f"(peak rate {_range(sorted({one.plan.training.lr for one in after}))}). "
        )
    if findings.study.lr is not None:
        told += (
            f"The rate was chosen per encoding and group of tasks from {_range(sorted(findings.study.lr.choose))} at "
            "seen lengths, with half the steps and seeds that no compared run has. "
        )
    return told + (
        f"The score is exact match by greedy decoding of the last weights on up to {max(tested)} held-out examples of "
        "each length, the same for every run. Intervals: in a cell, order statistics of the seeds; over tasks, a t "
        "interval stratified by task, and one over families of tasks."
    )


def _range(values: Sequence[float]) -> str:
    words = [f"{value:g}" for value in values]
    return words[0] if len(words) == 1 else ", ".join(words) if len(words) <= 3 else f"{words[0]} to {words[-1]}"
