"""The two intervals of a mean over tasks. They answer different questions, named in `Estimate.words`.

`these tasks, other seeds`: what would other seeds, and another test set of the same kind, have given on these tasks?
Stratified t: variance Σ_k s²_k/n_k / K² plus the test set's term, degrees of freedom by Welch and Satterthwaite.
`other tasks like these`: would it hold on other tasks? t over task families, since variants of copy are not
independent tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lengthwise.spec import Spec
from lengthwise.statistics.estimate import NO_SEEDS, OTHER_TASKS, THESE_TASKS, Estimate, Examples

LEVEL = 0.95
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
) -> Estimate:
    """Return the mean over tasks with the interval for other seeds; input: task → one value per seed.

    `test_set_variances` is each task's variance due to its test set. e.g. {a: [.4, .6], b: [.5, .7]} gives .55 with the
    variance (.02/2 + .02/2)/4 = .005 and 2 degrees of freedom. If a task has only one seed, there is no interval.
    """
    names = sorted(values)
    count = sum(len(values[name]) for name in names)
    unit = "(task, seed) pairs"
    if not names or any(not values[name] for name in names):
        lacks = next((name for name in names if not values[name]), None)
        words = "no task" if lacks is None else f"{lacks} has no seed"
        return Estimate(None, None, None, None, count, unit, STRATIFIED, words, measure)
    value = math.fsum(mean(values[name]) for name in names) / len(names)
    lone = [name for name in names if len(values[name]) == 1]
    if lone:
        words = NO_SEEDS if len(lone) == len(names) else f"no seed interval: {lone[0]} has one seed"
        return Estimate(value, None, None, None, count, unit, STRATIFIED, words, measure)
    terms = [(variance(values[name]) / len(values[name]), len(values[name]) - 1) for name in names]
    seeds = math.fsum(term for term, _ in terms)
    total = (
        seeds + math.fsum(max(test_set_variances[name], 0.0) for name in names)
        if test_set_variances is not None
        else seeds
    )
    squares = math.fsum(term**2 / free for term, free in terms)  # the test set's term has far more degrees of freedom
    words = THESE_TASKS
    if seeds == 0:
        words += "; all seeds of each task agree, which says less than it seems"
    df = total**2 / squares if squares > 0 else math.inf
    half = t_quantile(df, level) * math.sqrt(total) / len(names)
    return Estimate(
        *(value, value - half, value + half, level, count, unit, STRATIFIED, words, measure),
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
    if n == 1:
        words = "no interval over tasks: one task family"
        return Estimate(value, None, None, None, 1, unit, BY_FAMILY, words, measure)
    half = t_quantile(n - 1, level) * math.sqrt(variance(means) / n)
    return Estimate(value, value - half, value + half, level, n, unit, BY_FAMILY, OTHER_TASKS, measure, df=float(n - 1))


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
