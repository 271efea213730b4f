"""Test the claims of the publications on our rows, by rules that were fixed in advance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lengthwise.folder import shipped_file_path
from lengthwise.reporting.words import format_estimate
from lengthwise.spec import Spec, SpecError, first_mistake, one_line
from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.intervals import LEVEL, at_level
from lengthwise.statistics.ranks import FIVE, mean_reciprocal_ranks
from lengthwise.study.reading import load_yaml

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.reporting.findings import Findings
    from lengthwise.reporting.numbers import Numbers

Measured = Mapping[str, list[tuple[str, Estimate]]]
"""Id of each claim that another command measures → the named estimates that decide it."""
Word = Literal[
    "holds",
    "holds at this setting only",
    "depends on the weighting",
    "does not hold",
    "not settled",
    "at the floor",
    "not tested here",
]
OPPOSITE = 0.05
"""The mean difference at another setting that counts as a change of sign, if all seeds agree."""
FLOOR = 0.1
"""Where no mean over seeds at unseen lengths is further above chance than this, scratchpads cannot be compared."""
COMPUTED = "the largest"
"""The recipe of an estimate that is computed, so that other seeds would give the same."""
_COLUMN = {"mean_unseen": "unseen"}


class StudyResults(NamedTuple):
    """A study's findings and the numbers computed from them."""

    findings: Findings
    numbers: Numbers


class WeightedEstimates(NamedTuple):
    """An estimate with equal weights for tasks, and one with equal weights for families of tasks."""

    name: str
    tasks: Estimate
    families: Estimate


class Rule(BaseModel):
    """The rule that decides a claim; exactly one field is set."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    above: float | None = None
    below: float | None = None
    within: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    order: Literal[True] | None = None
    not_tested: str | None = Field(default=None, alias="not tested here")

    @model_validator(mode="after")
    def _one(self) -> Rule:
        if len([value for value in self.model_dump().values() if value is not None]) != 1:
            raise ValueError("a rule needs exactly one of: above, below, within, order, not tested here")
        return self

    def interval_verdict(self, estimate: Estimate) -> int:
        """Return 1 if the whole interval satisfies the rule, −1 if all of it violates the rule, else 0.

        An interval without a known level settles nothing, unless the value is computed and not sampled.
        """
        if estimate.low is None or estimate.high is None:
            return 0
        if estimate.level is None and estimate.recipe != COMPUTED:
            return 0
        low, high = self._bounds()
        if estimate.low > low and estimate.high < high:
            return 1
        return -1 if estimate.high < low or estimate.low > high else 0

    def _bounds(self) -> tuple[float, float]:
        if self.within is not None:
            return self.within[0], self.within[1]
        if self.below is not None:
            return -float("inf"), self.below
        return (0.0 if self.above is None else self.above), float("inf")


class Claim(BaseModel):
    """A claim, and the rule that decides it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    claim: str
    source: str
    published: str
    study: str | None
    measure: Literal["mean_unseen", "mrr", "reach", "learned", "analysis"]
    quantity: str | None = None
    main: bool = False
    """Whether it is one of the main claims; the others are secondary."""
    settings: list[str] = []
    """Studies that repeat some tasks at other initial scales or rates; a change of sign there is said."""
    encodings: list[str]
    against: list[str]
    tasks: Literal["all"] | list[str]
    rule: Rule

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of encodings whose differences decide the claim; none if values decide it."""
        if self.rule.order:
            return list(zip(self.encodings, self.encodings[1:], strict=False))
        return [(one, other) for one in self.encodings for other in self.against]

    def about(self, task: str) -> bool:
        """Return whether the claim covers a task of a study: `sort` covers both of its variants."""
        if self.tasks == "all":
            return True
        here = Spec.of(task)
        return any(
            named.name == here.name and set(named.options) <= set(here.options) for named in map(Spec.of, self.tasks)
        )


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim and its verdict on our rows."""

    claim: Claim
    word: Word
    ours: str
    """The intervals that decided it, or the reason why it was not tested."""
    more: list[str] = field(default_factory=list)
    """What is said beside it and decides nothing: learned tasks alone, other settings."""

    def line(self) -> dict[str, Any]:
        """Return the verdict as a line of a table."""
        one, ours = self.claim, "; ".join([self.ours, *self.more])
        name = f"{one.id} (main)" if one.main else one.id
        return {"id": name, "claim": one.claim, "published": one.published, "ours": ours, "verdict": self.word}


def read_claims(path: str | Path | None = None) -> list[Claim]:
    """Read the claims that ship with the project, or those of a file."""
    path = shipped_file_path("claims.yaml") if path is None else Path(path)
    content = load_yaml(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("claims"), list):
        raise SpecError(f"{path} has no list of claims")
    try:
        return [Claim.model_validate(one) for one in content["claims"]]
    except ValidationError as error:
        field, _, reason = first_mistake(error)
        raise SpecError(f"{path}: {field}: {one_line(reason)}") from None


def read_theory_estimates(path: Path) -> Measured:
    """Read the file that `lengthwise theory claims` wrote."""
    try:
        return claim_estimates(json.loads(path.read_text())["claims"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{path} is not what `lengthwise theory claims --to {path.parent}` writes: {one_line(str(error))}"
        ) from None


def claim_estimates(claim_rows: Mapping[str, list[dict[str, Any]]]) -> Measured:
    """Convert the rows of `lengthwise.theory.claims.measure_claims` to estimates with intervals."""
    return {claim: [(row["name"], _estimate(row)) for row in rows] for claim, rows in claim_rows.items()}


def _estimate(row: Mapping[str, Any]) -> Estimate:
    recipe = "t" if row["level"] else COMPUTED
    values = (row[key] for key in ("value", "low", "high", "level", "n", "unit"))
    return Estimate(*values, recipe=recipe, words=f"other {row['unit']}")


def judge_claim(
    claim: Claim, studies: Mapping[str, StudyResults] | None = None, measured_estimates: Measured | None = None
) -> ClaimVerdict:
    """Decide a claim by our rows, or by what other commands measured; without them it is not tested.

    `studies` has the results of the claim's study and of those that vary its settings, by name.
    """
    if claim.rule.not_tested is not None:
        return ClaimVerdict(claim, "not tested here", claim.rule.not_tested)
    if claim.measure == "analysis":
        known = (measured_estimates or {}).get(claim.id)
        if known == []:
            return ClaimVerdict(claim, "at the floor", f"no mean at unseen lengths is more than {FLOOR:g} above chance")
        if known is None:
            return ClaimVerdict(claim, "not tested here", claim.quantity or "another command measures it")
        made = [WeightedEstimates(name, one, one) for name, one in known]
        return ClaimVerdict(claim, _word(claim.rule, made), _said_all(made))
    here = (studies or {}).get(claim.study or "")
    if here is None:
        return ClaimVerdict(claim, "not tested here", f"no rows of the study {claim.study!r} are here")
    tasks = _tasks(claim, here.findings)
    if isinstance(tasks, str):
        return ClaimVerdict(claim, "not tested here", tasks)
    if claim.measure == "learned":
        return _judge_learned(claim, here, tasks)
    if lost := _diverged(claim, here, tasks):
        return ClaimVerdict(claim, "not settled", f"{lost} of its runs diverged, and the means leave them out")
    estimates = _estimates(claim, here, tasks)
    if isinstance(estimates, str):
        return ClaimVerdict(claim, "not tested here", estimates)
    word, more = _word(claim.rule, estimates), [_on_learned_tasks(claim, here, tasks)]
    for name in claim.settings:
        other = (studies or {}).get(name)
        compared, changes = (0, []) if other is None else sign_changes(claim, here, other)
        if changes and word == "holds":
            word = "holds at this setting only"
        found = "; ".join(changes) or "no sign changes" if compared else "nothing to compare"
        found = "not judged on this page; type lengthwise claims" if other is None else found
        more.append(f"other settings ({name}): {found}")
    return ClaimVerdict(claim, word, _said_all(estimates), more)


def _word(rule: Rule, estimates: Sequence[WeightedEstimates]) -> Word:
    """Decide by both weightings; if they disagree, the verdict depends on the weighting."""
    by_task, by_family = (
        decide(rule, ends) for ends in ([one.tasks for one in estimates], [one.families for one in estimates])
    )
    return by_task if by_task == by_family else "depends on the weighting"


def decide(rule: Rule, estimates: Sequence[Estimate]) -> Word:
    """Decide a rule by several estimates: it holds if all satisfy it, and not if one violates it after Holm."""
    if all(rule.interval_verdict(one) == 1 for one in estimates):
        return "holds"
    # Holm's first step: one of several pairs refutes the claim if it does at the level divided by their number.
    level = 1 - (1 - LEVEL) / len(estimates)
    refuted = any(rule.interval_verdict(at_level(one, level)) == -1 for one in estimates)
    return "does not hold" if refuted else "not settled"


def _said_all(estimates: Sequence[WeightedEstimates]) -> str:
    return "; ".join(
        f"{one.name} {_said(one.tasks)}"
        + ("" if one.families == one.tasks else f" (families equal {_said(one.families)})")
        for one in estimates
    )


def _said(one: Estimate) -> str:
    """Format an estimate; a deterministic value is shown without an interval, and small ones in scientific notation."""
    if one.value is not None and one.level is None and one.low == one.high:
        return f"{one.value:.1e}" if 0 < abs(one.value) < 1e-3 else f"{one.value:.3g}"
    return format_estimate(one, 3)


def _tasks(claim: Claim, found: Findings) -> list[str] | str:
    """Return the tasks of the study that the claim is about, or the reason why it cannot be judged."""
    missing = [name for name in (*claim.encodings, *claim.against) if name not in found.encodings]
    if missing:
        return f"the study has no {missing[0]}"
    tasks = [task for task in found.tasks if claim.about(task)]
    meant = [task for task in found.study.tasks if claim.about(task)]
    if not tasks:
        return "the study has none of its tasks"
    if len(tasks) < len(meant):
        return f"only {len(tasks)} of its {len(meant)} tasks are there"
    return tasks


def _judge_learned(claim: Claim, here: StudyResults, tasks: Sequence[str]) -> ClaimVerdict:
    """Decide task by task whether every encoding learned the seen lengths."""
    found, cells = here.findings, {place: got for place, got in _learned(claim, here).items() if place[0] in tasks}
    if unknown := [f"{found.label(name)} on {found.short(task)}" for (task, name), got in cells.items() if got is None]:
        return ClaimVerdict(claim, "not tested here", f"not run: {', '.join(unknown)}")
    failed = [f"{found.label(name)} on {found.short(task)}" for (task, name), got in cells.items() if not got]
    many = len(cells)
    if failed:
        return ClaimVerdict(claim, "does not hold", f"not learned in {len(failed)} of {many}: {', '.join(failed)}")
    return ClaimVerdict(claim, "holds", f"learned in {many} of {many} pairs of task and encoding")


def _learned(claim: Claim, here: StudyResults) -> dict[tuple[str, str], bool | None]:
    """(task, encoding) → whether enough runs learned it, None if none was run, for the encodings of the claim."""
    about = {*claim.encodings, *claim.against}
    return {place: learned for place, learned in here.numbers.learned_by.items() if place[1] in about}


def _diverged(claim: Claim, here: StudyResults, tasks: Sequence[str]) -> int:
    """Count the diverged runs that means of the claim leave out; ranks do not, there they are last."""
    if claim.measure != "mean_unseen":
        return 0
    scores = here.numbers.scores
    about = scores["task"].is_in(list(tasks)) & scores["encoding"].is_in([*claim.encodings, *claim.against])
    return int(scores.filter(about)["diverged"].count())


def _on_learned_tasks(claim: Claim, here: StudyResults, tasks: Sequence[str]) -> str:
    """Judge the claim again on the tasks that all encodings it is about learned; this decides nothing."""
    lacking = {task for (task, _), got in _learned(claim, here).items() if not got}
    learned = [task for task in tasks if task not in lacking]
    if len(learned) == len(tasks):
        return "every encoding learned every task"
    estimates = _estimates(claim, here, learned) if learned else "no task was learned by all"
    word = estimates if isinstance(estimates, str) else _word(claim.rule, estimates)
    return f"on the {len(learned)} of {len(tasks)} tasks that all of them learned: {word}"


def _estimates(claim: Claim, here: StudyResults, tasks: Sequence[str]) -> list[WeightedEstimates] | str:
    """Return the estimates that decide the claim, or the reason why there are none."""
    table = here.numbers.scores.filter(here.numbers.scores["task"].is_in(list(tasks)))
    if claim.measure == "reach":
        return "reach has no mean, and so no interval over tasks"
    if claim.measure == "mrr":
        return _by_rank(claim, table)
    column, pairs = _COLUMN[claim.measure], claim.pairs
    if pairs:
        made = encoding_differences(table, column, pairs=pairs)
        for pair in made:
            if lacking := sorted(set(tasks) - set(pair.by_task)):
                return f"{pair.one} and {pair.other} have no runs to compare on {here.findings.short(lacking[0])}"
        return [WeightedEstimates(f"{one.one} − {one.other}", one.seeds, one.families) for one in made]
    means = mean_scores_over_tasks(table, column, claim.encodings)
    if left_out := next(iter(means.values())).left_out:
        return f"some encoding has no runs on {here.findings.short(left_out[0])}"
    return [WeightedEstimates(name, means[name].seeds, means[name].families) for name in claim.encodings]


def _by_rank(claim: Claim, table: pl.DataFrame) -> list[WeightedEstimates] | str:
    made = mean_reciprocal_ranks(table)
    if made.missing:
        return f"the study has no {made.missing[0]}, and ranks are over exactly the five"
    if not made.means:
        return "no task and seed has all five encodings yet"
    named = {spec: name for name, spec in FIVE.items()}
    if not claim.pairs:
        means = {name: made.means[named[name]] for name in claim.encodings}
        return [WeightedEstimates(name, one.seeds, one.families) for name, one in means.items()]
    both = {frozenset((one.one, one.other)): one for one in made.differences}
    found = []
    for one, other in claim.pairs:
        pair = both[frozenset((named[one], named[other]))]
        ends = (pair.seeds, pair.families)
        turned = ends if pair.one == named[one] else tuple(end.negated() for end in ends)
        found.append(WeightedEstimates(f"{one} − {other}", *turned))
    return found


_Values = Mapping[tuple[str, int], tuple[str, float]]
"""(Encoding, seed) → the run and its mean accuracy at unseen lengths."""


def sign_changes(claim: Claim, main: StudyResults, other: StudyResults) -> tuple[int, list[str]]:
    """Return how many differences were compared, and a sentence for each that has the opposite sign at another setting.

    It has if on a task the main study has the claim's sign, and at another model or training of the other study every
    planned seed has the opposite sign and the mean difference is at least .05. Runs of both are no other setting.
    """
    sign = -1 if claim.rule.below is not None else 1
    ours, compared, found = _by_setting(main), 0, list[str]()
    many = len({item.point.seed for item in other.findings.wanted or other.findings.items})
    for (task, model, training), values in _by_setting(other).items():
        reference = next((own for (name, *_), own in ours.items() if name == task), {})
        for one, ahead in claim.pairs if claim.about(task) else ():
            pair = {key: told for key, told in values.items() if key[0] in {one, ahead}}
            if pair.items() <= reference.items():
                continue
            before, gaps = _gaps(reference, one, ahead, sign), _gaps(values, one, ahead, sign)
            compared += bool(before and gaps)
            opposite = len(gaps) == many and max(gaps) < 0 and sum(gaps) / len(gaps) <= -OPPOSITE
            if opposite and sum(before) > 0:
                mean = f"{sign * sum(gaps) / len(gaps):+.2f}"
                found.append(f"{one} − {ahead} is {mean} on {other.findings.short(task)} with {model}, {training}")
    return compared, found


def _by_setting(here: StudyResults) -> Mapping[tuple[str, str, str], _Values]:
    """(task, model, training) → the runs there."""
    points = {item.key: item.point for item in here.findings.items}
    found: dict[tuple[str, str, str], dict[tuple[str, int], tuple[str, float]]] = {}
    for run, value in here.numbers.scores.select("run", "unseen").iter_rows():
        if run in points and value is not None and points[run].start is None:
            point = points[run]
            found.setdefault((point.task, point.model, point.training), {})[point.encoding, point.seed] = run, value
    return found


def _gaps(values: _Values, one: str, other: str, sign: int) -> list[float]:
    seeds = sorted({seed for name, seed in values if name == one} & {seed for name, seed in values if name == other})
    return [sign * (values[one, seed][1] - values[other, seed][1]) for seed in seeds]
