"""The two intervals of a mean over tasks. They answer different questions, named in `Estimate.words`.

`these tasks, other seeds`: what would other seeds, and another test set of the same kind, have given on these tasks?
Stratified t: variance Σ_k w²_k (s²_k/n_k + the test set's term), degrees of freedom by Welch and Satterthwaite. The
weights w_k are equal for all tasks, or equal for all families. Below six tasks it has no level: with cells that rarely
fail, its coverage on two tasks is .50.
`other tasks like these`: would it hold on other tasks? t over task families, since variants of copy are not
independent tasks; below five families there is none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lengthwise.spec import Spec
from lengthwise.statistics.estimate import NO_SEEDS, OTHER_TASKS, THESE_TASKS, Estimate, Examples

LEVEL = 0.95
FEWEST_TASKS, FEWEST_FAMILIES = 6, 5
"""Below so many tasks the first interval has no level; below so many families there is no second one."""
FEW_TASKS = f"{THESE_TASKS}; fewer than {FEWEST_TASKS} tasks, so its level is not known"
STRATIFIED = "t stratified by task, Welch–Satterthwaite"
BY_FAMILY = "t over task families"


def task_family(task: str) -> str:
    """Return the family of a task: its name without options, e.g. `copy` for `copy:variant=random`."""
    return Spec.of(task).name


def mean_over_tasks(
    values: Mapping[str, Sequence[float]],
    test_set_variances: Mapping[str, float] | None = None,
    examples: Examples = "not counted",
    measure: str = "",
    level: float = LEVEL,
    family_of: Callable[[str], str] | None = None,
) -> Estimate:
    """Return the mean over tasks with the interval for other seeds; input: task → one value per seed.

    `test_set_variances` is each task's variance due to its test set. e.g. {a: [.4, .6], b: [.5, .7]} gives .55 with the
    variance (.02/2 + .02/2)/4 = .005 and 2 degrees of freedom. If a task has only one seed, there is no interval.
    With `family_of`, families have equal weights, and within a family its tasks.
    """
    names = sorted(values)
    count = sum(len(values[name]) for name in names)
    unit = "(task, seed) pairs"
    if not names or any(not values[name] for name in names):
        lacks = next((name for name in names if not values[name]), None)
        words = "no task" if lacks is None else f"{lacks} has no seed"
        return Estimate(None, None, None, None, count, unit, STRATIFIED, words, measure)
    weights = _weights(names, family_of)
    value = math.fsum(weights[name] * mean(values[name]) for name in names)
    lone = [name for name in names if len(values[name]) == 1]
    if lone:
        words = NO_SEEDS if len(lone) == len(names) else f"no seed interval: {lone[0]} has one seed"
        return Estimate(value, None, None, None, count, unit, STRATIFIED, words, measure)
    terms = [(weights[name] ** 2 * variance(values[name]) / len(values[name]), len(values[name]) - 1) for name in names]
    seeds = math.fsum(term for term, _ in terms)
    total = (
        seeds + math.fsum(weights[name] ** 2 * max(test_set_variances[name], 0.0) for name in names)
        if test_set_variances is not None
        else seeds
    )
    squares = math.fsum(term**2 / free for term, free in terms)  # the test set's term has far more degrees of freedom
    few = len(names) < FEWEST_TASKS
    words = FEW_TASKS if few else THESE_TASKS
    if seeds == 0:
        words += "; all seeds of each task agree, which says less than it seems"
    df = total**2 / squares if squares > 0 else math.inf
    half = t_quantile(df, level) * math.sqrt(total)
    return Estimate(
        *(value, value - half, value + half, None if few else level, count, unit, STRATIFIED, words, measure),
        examples="not counted" if test_set_variances is None else examples,
        df=None if math.isinf(df) else df,
    )


def mean_over_families(
    values: Mapping[str, float], family_of: Callable[[str], str] = task_family, measure: str = "", level: float = LEVEL
) -> Estimate:
    """Return the mean over families of the mean over their tasks, with the interval for other families.

    `values` maps task → value. `family_of=str` makes each task its own family, as for a table of variants.
    """
    groups: dict[str, list[float]] = {}
    for name in sorted(values):
        groups.setdefault(family_of(name), []).append(values[name])
    means = [mean(group) for group in groups.values()]
    unit, n = "task families", len(means)
    if not means:
        return Estimate(None, None, None, None, 0, unit, BY_FAMILY, "no task", measure)
    value = mean(means)
    if n < FEWEST_FAMILIES:
        words = f"no interval over tasks: fewer than {FEWEST_FAMILIES} task families"
        return Estimate(value, None, None, None, n, unit, BY_FAMILY, words, measure)
    half = t_quantile(n - 1, level) * math.sqrt(variance(means) / n)
    return Estimate(value, value - half, value + half, level, n, unit, BY_FAMILY, OTHER_TASKS, measure, df=float(n - 1))


def at_level(estimate: Estimate, level: float) -> Estimate:
    """Return a t interval at another level: 95 % with half a width of .02 has .0264 at 99 %, for many degrees."""
    if estimate.value is None or estimate.half is None or estimate.level is None:
        return estimate
    df = math.inf if estimate.df is None else estimate.df
    half = estimate.half * t_quantile(df, level) / t_quantile(df, estimate.level)
    return replace(estimate, low=estimate.value - half, high=estimate.value + half, level=level)


def _weights(tasks: Sequence[str], family_of: Callable[[str], str] | None) -> dict[str, float]:
    """Return the weight of each task: equal, or equal for families and within them."""
    if family_of is None:
        return dict.fromkeys(tasks, 1 / len(tasks))
    sizes = Counter(family_of(task) for task in tasks)
    return {task: 1 / (len(sizes) * sizes[family_of(task)]) for task in tasks}


def mean(values: Sequence[float]) -> float:
    """Return the mean, bit-equal for any order of the values."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance, with n − 1."""
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


def t_quantile(df: float, level: float) -> float:
    """Return the t quantile: the half-width of the interval in standard errors."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri((1 + level) / 2) if math.isinf(df) else stdtrit(df, (1 + level) / 2))
