"""What the numbers say, in sentences: the verdict with its uncertainty, and the protocol of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lengthwise.statistics.aggregates import TaskDifference, task_difference

if TYPE_CHECKING:
    from lengthwise.report.findings import Findings
    from lengthwise.report.numbers import Numbers
    from lengthwise.statistics.estimate import Estimate


def span(one: Estimate, digits: int = 2) -> str:
    """`.54 [.50, .58]`, or the value alone."""
    if one.value is None:
        return "missing"
    told = _dot(one.value, digits)
    if one.low is None or one.high is None:
        return told
    return f"{told} [{_dot(one.low, digits)}, {_dot(one.high, digits)}]"


def _dot(value: float, digits: int) -> str:
    text = f"{round(value, digits) + 0.0:.{digits}f}"  # no −0
    return text.replace("0.", ".", 1).replace("-", "−") if abs(round(value, digits)) < 1 else text.replace("-", "−")


def verdict(found: Findings, numbers: Numbers) -> str:
    """One paragraph: who leads, by how much, and what is settled; never more than the intervals allow."""
    if len(found.encodings) < 2:
        return _alone(found, numbers)
    return _one_task(found, numbers) if len(found.tasks) == 1 else _many_tasks(found, numbers)


def _alone(found: Findings, numbers: Numbers) -> str:
    name = found.encodings[0]
    parts = [f"{found.short(task)}: reach {numbers.reach[task, name]}" for task in found.tasks[:6]]
    return f"Only {name} was run, so nothing is compared. {'; '.join(parts)}."


def _one_task(found: Findings, numbers: Numbers) -> str:
    task = found.tasks[0]
    trained, unit = found.trained[task]
    cells = numbers.cells
    there = [name for name in found.encodings if cells[task, name].median.value is not None]
    order = sorted(there, key=lambda name: -(cells[task, name].median.value or 0.0))
    if len(order) < 2:
        return "Not settled: fewer than two encodings have a run on this task."
    parts = []
    for name in order:
        reached = numbers.reach[task, name]
        if reached.median.length is None:
            parts.append(f"{name} did not learn the trained lengths")
        else:
            parts.append(f"{name} {reached.median} ({reached.median.length / trained:.1f} ×)")
    first = f"Trained on {found.short(task)} up to {trained} {unit}, the median seed of each encoding is right up to"
    told = f"{first} length: {'; '.join(parts)}."
    if all(numbers.reach[task, name].median.length is None for name in order):
        return (
            f"Nothing can be said about longer lengths: no encoding learned {found.short(task)} up to {trained} {unit}."
        )
    lead, other = order[0], order[1]
    if (cells[task, lead].median.value or 0.0) <= (cells[task, other].median.value or 0.0):
        return f"{told} At unseen lengths nobody leads: {lead} and {other} both have {_cell(numbers, task, lead)}."
    pair = _pair(task_difference(numbers.scores, task, lead, other))
    return f"{told} At unseen lengths {lead} leads with {_cell(numbers, task, lead)}. {pair}"


def _cell(numbers: Numbers, task: str, name: str) -> str:
    one = numbers.cells[task, name].median
    if one.level is None:
        return f"{span(one)} ({one.words})"
    return f"{span(one)} (median of {one.n} seeds, {100 * one.level:.4g} %)"


def _pair(one: TaskDifference) -> str:
    told = f"{one.one} − {one.other} = {span(one.median)}"
    if one.settled:
        return f"Its lead over {one.other} is settled on this task: {told}."
    return f"Its lead over {one.other} is {one.words} on this task: {told}."


def _many_tasks(found: Findings, numbers: Numbers) -> str:
    there = {name: one for name, one in numbers.means.items() if one.value is not None}
    if len(there) < 2:
        return "Not settled: there is no task on which two encodings can be compared yet."
    order = sorted(there, key=lambda name: -(there[name].value or 0.0))
    lead, second = there[order[0]], there[order[1]]
    n_tasks = len(lead.by_task)
    told = (
        f"Over {n_tasks} tasks and {_seeds(found)}, {order[0]} has the highest mean accuracy at unseen lengths, "
        f"{span(lead.seeds)}, before {order[1]} with {span(second.seeds)}. "
    )
    pair = next(one for one in numbers.differences if {one.one, one.other} == {order[0], order[1]})
    ahead = pair.one == order[0]  # a pair is turned by its own tasks, which may be more than those all share
    here, beyond = (one if ahead else one.turned() for one in (pair.seeds, pair.tasks))
    told += f"The difference, {span(here, 3)}, is {pair.words} ({span(beyond, 3)} over families of tasks). "
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
        key = (item.cell.task, found.names[item.key])
        counts[key] = counts.get(key, 0) + 1
    few, many = min(counts.values()), max(counts.values())
    return "one seed" if many == 1 else f"{few if few == many else f'{few} to {many}'} seeds"


def protocol(found: Findings) -> str:
    """How it was done, as a paper would say it."""
    item = found.items[0]
    plan = item.plan
    model, training = plan.model, plan.training
    layers = sorted({one.plan.model.layers for one in found.items})
    steps = sorted({one.plan.training.steps for one in found.items})
    rates = sorted({one.plan.training.rate for one in found.items})
    batches = sorted({one.plan.training.batch for one in found.items})
    widths = sorted({one.plan.model.width for one in found.items})
    heads = sorted({one.plan.model.heads for one in found.items})
    tested = {int(row) for row in found.cells["examples"].to_list()}
    told = (
        f"Decoder-only Transformers with {_range(layers)} layers of width {_range(widths)} ({_range(heads)} heads; "
        f"{model.norm} norm, {model.feed_forward}) were trained from scratch on {len(found.tasks)} tasks for "
        f"{_range(steps)} steps of {_range(batches)} sequences with AdamW (peak rate {_range(rates)}, "
        f"{training.schedule} schedule), with {_seeds(found)} each. All encodings of a seed begin with the same shared "
        "weights and see the same batches in the same order. "
    )
    if found.study.rate is not None:
        told += (
            f"The rate was chosen per encoding and group of tasks from {_range(sorted(found.study.rate.choose))} at "
            "seen lengths, with half the steps and a seed that no run uses. "
        )
    return told + (
        f"The score is exact match by greedy decoding of the last weights on up to {max(tested)} held-out examples of "
        "each length, the same for every run. Intervals: in a cell, order statistics of the seeds; over tasks, a t "
        "interval stratified by task, and one over families of tasks."
    )


def _range(values: Sequence[float]) -> str:
    words = [f"{value:g}" for value in values]
    return words[0] if len(words) == 1 else ", ".join(words) if len(words) <= 3 else f"{words[0]} to {words[-1]}"
