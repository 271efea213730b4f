"""Compare encodings over tasks: means, and differences paired by (task, seed), each with both kinds of interval.

Significance tests are only done over several tasks; on a single task, the interval alone decides what is settled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError
from lengthwise.statistics.cells import LEVEL as CELL_LEVEL
from lengthwise.statistics.cells import median_seed
from lengthwise.statistics.estimate import Estimate, Examples
from lengthwise.statistics.flips import SignFlips, holm_correction, sign_flip_tests
from lengthwise.statistics.intervals import mean, mean_over_families, mean_over_tasks, task_family

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.statistics.outcomes import Outcomes

SETTLED = 0.05
"""A difference is settled if its interval excludes 0 and its p, corrected for all pairs, is at most this."""


@dataclass(frozen=True)
class Aggregate:
    """A mean over tasks of the mean over seeds."""

    encoding: str
    measure: str
    seeds: Estimate
    """Mean with the interval for the same tasks and other seeds."""
    families: Estimate
    """The same, but with equal weights for families of tasks in place of tasks."""
    tasks: Estimate
    """Mean over task families with the interval for other, similar tasks."""
    by_task: Mapping[str, float]
    missing: tuple[tuple[str, int], ...]
    """(task, seed) pairs without a value, which are in no mean."""
    left_out: tuple[str, ...]
    """Tasks that are in no mean because some encoding has no value for them."""
    diverged: tuple[tuple[str, int], ...] = ()
    """(task, seed) pairs that diverged, which are in no mean."""

    @property
    def value(self) -> float | None:
        """The mean over tasks."""
        return self.seeds.value


@dataclass(frozen=True)
class Difference:
    """`one` minus `other`, paired by (task, seed)."""

    one: str
    other: str
    measure: str
    seeds: Estimate
    families: Estimate
    tasks: Estimate
    by_task: Mapping[str, float]
    test: SignFlips | None
    """Sign-flip test over (task, seed) pairs, if there are at least two tasks."""
    corrected: float | None
    """The test's p after Holm's correction over all compared pairs."""
    missing: tuple[tuple[str, int], ...]
    diverged: int = 0
    """Diverged runs of the two encodings; the means leave them out, so the difference is never settled."""

    @property
    def settled(self) -> bool:
        """Settled for these tasks: the interval excludes 0, the corrected p is small enough, and no run diverged."""
        clear = self.seeds.excludes_zero and self.corrected is not None and self.corrected <= SETTLED
        return clear and not self.diverged

    @property
    def settled_beyond(self) -> bool:
        """Settled for other, similar tasks: the interval over families excludes 0 and no run diverged."""
        return self.tasks.excludes_zero and not self.diverged

    @property
    def verdict_text(self) -> str:
        """The verdict."""
        if self.seeds.value is None:
            return "nothing to compare"
        if self.diverged:
            return f"not settled: {self.diverged} run{'' if self.diverged == 1 else 's'} diverged"
        here, beyond = ("settled" if one else "not settled" for one in (self.settled, self.settled_beyond))
        return f"{here} for these tasks, {beyond} for other tasks like these"


@dataclass(frozen=True)
class TaskDifference:
    """`one` minus `other` on a single task: an interval and whether it is settled, without a significance test."""

    task: str
    one: str
    other: str
    measure: str
    median: Estimate
    """The median of the per-seed differences, with its order-statistic interval."""
    differences: tuple[float, ...] = ()
    """The difference of each seed that both encodings have, smallest first."""
    diverged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Encoding → the steps at which its seeds diverged."""

    @property
    def settled(self) -> bool:
        """Whether the interval excludes 0 at 93.75 % or more, which needs five seeds, and no seed diverged."""
        return self.median.excludes_zero and (self.median.level or 0) >= CELL_LEVEL and not self.diverged

    @property
    def seeds_agree(self) -> bool:
        """Whether there are at least two seeds and all differences have the same sign."""
        return len(self.differences) > 1 and (min(self.differences) > 0 or max(self.differences) < 0)

    @property
    def verdict_text(self) -> str:
        """The verdict: settled or not; if not, whether the seeds agree on the sign, and the smallest difference."""
        if self.diverged:
            parts = [f"{name} diverged in {len(steps)} seeds" for name, steps in self.diverged.items()]
            return f"not settled: {', '.join(parts).replace('in 1 seeds', 'in 1 seed')}"
        if self.median.level is None:
            return "not settled: there is one seed" if self.median.n == 1 else f"not settled: {self.median.words}"
        if self.settled:
            return f"settled: all {len(self.differences)} seeds agree" if self.seeds_agree else "settled"
        if self.differences and not any(self.differences):
            return "no difference in any seed"
        if not self.seeds_agree:
            return "not settled: the seeds disagree"
        smallest = min(abs(one) for one in self.differences)
        return f"all {len(self.differences)} seeds agree; the smallest difference is {smallest:.2f}".replace(
            "0.", ".", 1
        )


# --- encodings -------------------------------------------------------------------------------------------------------


def mean_scores_over_tasks(
    scores: pl.DataFrame,
    measure: str = "unseen",
    encodings: Iterable[str] | None = None,
    outcomes: Outcomes | None = None,
    family_of: Callable[[str], str] = task_family,
) -> dict[str, Aggregate]:
    """Encoding → its mean over the tasks for which every encoding has a value.

    `scores` is from `table.score_table`, or any frame of `task, encoding, seed` and the measure (reciprocal ranks).
    """
    board = _Board(scores, measure, outcomes)
    names = sorted(board.encodings if encodings is None else set(encodings))
    common = board.common(names)
    out = tuple(sorted(board.tasks - set(common)))
    found = {}
    for name in names:
        values = {task: board.values(task, name) for task in common}
        noise, kind = board.noise({task: sorted(values[task]) for task in common}, name)
        means = {task: mean(list(own.values())) for task, own in values.items()}
        lists = {task: [own[seed] for seed in sorted(own)] for task, own in values.items()}
        found[name] = Aggregate(
            name,
            measure,
            mean_over_tasks(lists, noise, kind, measure),
            mean_over_tasks(lists, noise, kind, measure, family_of=family_of),
            mean_over_families(means, family_of, measure),
            means,
            board.missing(name),
            out,
            board.diverged(name),
        )
    return found


def encoding_differences(
    scores: pl.DataFrame,
    measure: str = "unseen",
    encodings: Iterable[str] | None = None,
    outcomes: Outcomes | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
    family_of: Callable[[str], str] = task_family,
) -> list[Difference]:
    """Compare all pairs of encodings (`one` has the higher mean), or the given pairs, with Holm over all of them.

    Tasks and seeds that one of the two lacks are left out of this pair only, and listed.
    """
    board = _Board(scores, measure, outcomes)
    names = sorted(board.encodings if encodings is None else set(encodings))
    chosen = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]] if pairs is None else list(pairs)
    paired = [_paired(board, one, other, turn=pairs is None) for one, other in chosen]
    several = [number for number, (_, _, values) in enumerate(paired) if len(values) > 1]
    tests = sign_flip_tests([_lists(paired[number][2]) for number in several])
    test = dict(zip(several, tests, strict=True))
    corrected = dict(zip(several, holm_correction([one.p for one in tests]), strict=True))
    found = []
    for number, (one, other, values) in enumerate(paired):
        lists = _lists(values)
        noise, kind = board.noise({task: list(own) for task, own in values.items()}, one, other)
        means = {task: mean(own) for task, own in lists.items()}
        missing = tuple(sorted({*board.missing(one), *board.missing(other)}))
        seeds = mean_over_tasks(lists, noise, kind, measure)
        families = mean_over_tasks(lists, noise, kind, measure, family_of=family_of)
        tasks = mean_over_families(means, family_of, measure)
        lost = len(board.diverged(one)) + len(board.diverged(other))
        said = (seeds, families, tasks, means, test.get(number), corrected.get(number), missing, lost)
        found.append(Difference(one, other, measure, *said))
    return found


def task_difference(
    scores: pl.DataFrame, task: str, one_encoding: str, other_encoding: str, measure: str = "unseen"
) -> TaskDifference:
    """Compare two encodings on one task by seed: `.9, .8, .7` and `.5, .5, .4` differ by .3 in the median, .3 to .4."""
    board = _Board(scores.filter(scores["task"] == task), measure, None)
    first, second = board.values(task, one_encoding), board.values(task, other_encoding)
    gaps = sorted(first[seed] - second[seed] for seed in set(first) & set(second))
    lost = {name: steps for name in (one_encoding, other_encoding) if (steps := board.steps(task, name))}
    return TaskDifference(task, one_encoding, other_encoding, measure, median_seed(gaps, measure), tuple(gaps), lost)


def _paired(board: _Board, one: str, other: str, turn: bool) -> tuple[str, str, dict[str, dict[int, float]]]:
    """Return task → seed → difference; with `turn`, the pair is swapped if its mean difference is negative."""
    values: dict[str, dict[int, float]] = {}
    for task in board.common([one, other]):
        first, second = board.values(task, one), board.values(task, other)
        shared = sorted(set(first) & set(second))
        if shared:
            values[task] = {seed: first[seed] - second[seed] for seed in shared}
    if turn and math.fsum(mean(list(own.values())) for own in values.values()) < 0:
        return other, one, {task: {seed: -gap for seed, gap in own.items()} for task, own in values.items()}
    return one, other, values


def _lists(values: dict[str, dict[int, float]]) -> dict[str, list[float]]:
    return {task: list(own.values()) for task, own in values.items()}


class _Board:
    """Values by task, encoding and seed, and the test set's noise; sorted, so that row order does not matter."""

    def __init__(self, scores: pl.DataFrame, measure: str, outcomes: Outcomes | None) -> None:
        if measure not in scores.columns:
            raise SpecError(f"there is no measure {measure!r} in these scores")
        self.measure = measure
        self._noise_column = f"noise_{measure}" if f"noise_{measure}" in scores.columns else None
        self._outcomes = outcomes if measure == "unseen" else None  # the crossed variance is of the mean over lengths
        self._there: dict[tuple[str, str], dict[int, tuple[float, float | None, str | None]]] = {}
        self._missing: dict[str, list[tuple[str, int]]] = {}
        self._diverged: dict[str, dict[tuple[str, int], int]] = {}
        self.tasks: set[str] = set()
        self.encodings: set[str] = set()
        columns = ["task", "encoding", "seed", measure]
        more = [name for name in (self._noise_column, "run", "diverged") if name in scores.columns]
        for line in scores.select(*columns, *more).sort("task", "encoding", "seed").iter_rows(named=True):
            task, encoding, seed, value = (line[name] for name in columns)
            self.tasks.add(task)
            self.encodings.add(encoding)
            if line.get("diverged") is not None:
                self._diverged.setdefault(encoding, {})[task, seed] = line["diverged"]
                continue
            if value is None:
                self._missing.setdefault(encoding, []).append((task, seed))
                continue
            own = self._there.setdefault((task, encoding), {})
            if seed in own:
                raise SpecError(f"{task}, {encoding}, seed {seed} has more than one value")
            own[seed] = (value, line.get(self._noise_column or ""), line.get("run"))
            self._agrees(line.get("run"), value)

    def _agrees(self, run: str | None, value: float) -> None:
        """Raise if the outcomes come from another evaluation than the rows."""
        if self._outcomes is not None and run in self._outcomes.right and abs(self._outcomes.mean(run) - value) > 1e-9:
            told = self._outcomes.mean(run)
            raise SpecError(f"{run}: its outcomes give {told:.4f}, its rows {value:.4f}: two evaluations, not one")

    def common(self, names: Sequence[str]) -> list[str]:
        """Return the tasks for which each of these encodings has a value."""
        return sorted(task for task in self.tasks if all((task, name) in self._there for name in names))

    def values(self, task: str, encoding: str) -> dict[int, float]:
        """Seed → value."""
        return {seed: value for seed, (value, _, _) in self._there.get((task, encoding), {}).items()}

    def missing(self, encoding: str) -> tuple[tuple[str, int], ...]:
        """(task, seed) pairs without a value."""
        return tuple(self._missing.get(encoding, ()))

    def diverged(self, encoding: str) -> tuple[tuple[str, int], ...]:
        """(task, seed) pairs that diverged."""
        return tuple(self._diverged.get(encoding, ()))

    def steps(self, task: str, encoding: str) -> tuple[int, ...]:
        """The steps at which seeds of a task diverged."""
        return tuple(step for (where, _), step in self._diverged.get(encoding, {}).items() if where == task)

    def noise(
        self, seeds: Mapping[str, Sequence[int]], one: str, other: str | None = None
    ) -> tuple[dict[str, float] | None, Examples]:
        """Return each task's variance due to its test set: crossed if all outcomes are known, else binomial, else None.

        The binomial variance of a difference is the sum of the two, too large if the same examples are hard for both.
        """
        names = [one] if other is None else [one, other]
        if self._outcomes is not None:
            runs = {
                task: [[str(self._there[task, name][seed][2]) for seed in chosen] for name in names]
                for task, chosen in seeds.items()
            }
            found = {
                task: self._outcomes.test_set_variance(own[0], own[1] if other else ()) for task, own in runs.items()
            }
            crossed = {task: value for task, value in found.items() if value is not None}
            if len(crossed) == len(found):
                return crossed, "crossed"
        if self._noise_column is None:
            return None, "not counted"
        told: dict[str, float] = {}
        for task, chosen in seeds.items():
            parts = [[self._there[task, name][seed][1] for seed in chosen] for name in names]
            if any(part is None for own in parts for part in own):
                return None, "not counted"
            told[task] = math.fsum(mean([part for part in own if part is not None]) for own in parts)
        return told, "binomial"
