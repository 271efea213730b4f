"""Does one table of scores predict another? Our small models beside the published large ones, task by task.

Kendall's τ-b within each task compares orders of encodings, averaged over tasks, with an interval over families. Pooled
over all tasks, a correlation would be high for any two tables in which some tasks are easy and some encodings are good;
so the pooled Spearman stands beside that of task and encoding means alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.intervals import mean_over_families

CLEAR = 0.1
"""Published differences above this count as clear; whether ours have the same sign is asked of these alone."""
Scores = Mapping[str, Mapping[str, float]]
"""Task → encoding → score."""


@dataclass(frozen=True)
class Agreement:
    """How far our scores have the order of the published ones."""

    taus: Mapping[str, float]
    """Task → Kendall's τ-b; tasks in which one side has no order are left out."""
    without_order: tuple[str, ...]
    tau: Estimate
    """The mean over tasks, families weighing equally, with its interval over families."""
    clear_pairs: int
    """Pairs of encodings in one task whose published scores differ clearly."""
    same_sign: int
    """Those that differ in the same direction here."""
    pooled: float | None
    """Spearman's ρ over all (task, encoding)."""
    by_means: float | None
    """Spearman's ρ of the published scores with the sum of our task means and encoding means."""


def agreement(ours: Scores, published: Scores) -> Agreement:
    """Compare our scores with published ones, on the tasks and encodings that both have."""
    common = {task: [name for name in published[task] if name in ours[task]] for task in ours if task in published}
    common = {task: names for task, names in common.items() if len(names) > 1}
    taus, flat, clear, same = dict[str, float](), list[str](), 0, 0
    for task, names in common.items():
        mine, theirs = [ours[task][name] for name in names], [published[task][name] for name in names]
        if len(set(mine)) == 1 or len(set(theirs)) == 1:
            flat.append(task)
        else:
            taus[task] = kendall(mine, theirs)
        for one, other in combinations(names, 2):
            gap = published[task][one] - published[task][other]
            if abs(gap) > CLEAR:
                clear += 1
                same += (ours[task][one] - ours[task][other]) * gap > 0
    pooled = by_means = None
    if len(common) > 1:
        pairs = [(task, name) for task, names in common.items() for name in names]
        values = [ours[task][name] for task, name in pairs]
        by_task = {task: np.mean([ours[task][name] for name in names]) for task, names in common.items()}
        names = {name for _, name in pairs}
        by_name = {name: np.mean([ours[task][own] for task, own in pairs if own == name]) for name in names}
        theirs = [published[task][name] for task, name in pairs]
        pooled = spearman(values, theirs)
        by_means = spearman([float(by_task[task] + by_name[name]) for task, name in pairs], theirs)
    tau = mean_over_families(taus, measure="Kendall's τ-b")
    return Agreement(taus, tuple(flat), tau, clear, same, pooled, by_means)


# scipy.stats has both, and takes two seconds to import, as long as all the rest of a report.
def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Kendall's τ-b of two lists; 1 if they have the same order."""
    first, second = _signs(one), _signs(other)
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's ρ: the correlation of the ranks, where equal values share the mean of theirs."""
    return float(np.corrcoef(_signs(one).sum(1), _signs(other).sum(1))[0, 1])


def _signs(values: Sequence[float]) -> np.ndarray:
    """Return for each pair of values whether the first is larger (1), equal (0) or smaller (−1)."""
    return np.sign(np.subtract.outer(values, values))
