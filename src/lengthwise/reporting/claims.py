"""Test the claims of the publications on our rows, by rules that were fixed in advance."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lengthwise.reporting.words import format_estimate
from lengthwise.spec import Spec, SpecError, first_mistake, one_line
from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.ranks import QUARTER, mean_reciprocal_ranks
from lengthwise.study.reading import load_yaml, shipped_file_path

if TYPE_CHECKING:
    import polars as pl

    from lengthwise.reporting.findings import Findings
    from lengthwise.reporting.numbers import Numbers

Measured = Mapping[str, list[tuple[str, Estimate]]]
"""Id of each claim that needs no study → the named estimates that decide it."""
Word = Literal["holds", "does not hold", "not settled", "not tested here"]
_COLUMN = {"mean_unseen": "unseen", "seen": "seen"}


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
        """Return 1 if the whole interval satisfies the rule, −1 if all of it violates the rule, else 0."""
        if estimate.low is None or estimate.high is None:
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
    measure: Literal["mean_unseen", "mrr", "reach", "seen", "analysis"]
    quantity: str | None = None
    encodings: list[str]
    against: list[str]
    tasks: Literal["all"] | list[str]
    rule: Rule

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

    def line(self) -> dict[str, Any]:
        """Return the verdict as a line of a table."""
        one = self.claim
        return {"id": one.id, "claim": one.claim, "published": one.published, "ours": self.ours, "verdict": self.word}


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
    recipe = "t" if row["level"] else "the largest"
    values = (row[key] for key in ("value", "low", "high", "level", "n", "unit"))
    return Estimate(*values, recipe=recipe, words=f"other {row['unit']}")


def judge_claim(
    claim: Claim,
    findings: Findings | None,
    numbers: Numbers | None,
    theory_estimates: Measured | None = None,
) -> ClaimVerdict:
    """Decide a claim by our rows or by the measurements of theory; without them it is not tested."""
    if claim.rule.not_tested is not None:
        return ClaimVerdict(claim, "not tested here", claim.rule.not_tested)
    if claim.measure == "analysis":
        estimates = (theory_estimates or {}).get(claim.id) or claim.quantity or "another command measures it"
    elif findings is None or numbers is None:
        estimates = f"no rows of the study {claim.study!r} are here"
    else:
        estimates = _estimates(claim, findings, numbers)
    if isinstance(estimates, str):
        return ClaimVerdict(claim, "not tested here", estimates)
    sides = [claim.rule.interval_verdict(one) for _, one in estimates]
    word: Word = "not settled"
    if all(interval_verdict == 1 for interval_verdict in sides):
        word = "holds"
    elif -1 in sides:
        word = "does not hold"
    return ClaimVerdict(claim, word, "; ".join(f"{name} {_said(one)}" for name, one in estimates))


def _said(one: Estimate) -> str:
    """Format an estimate; a deterministic value is shown without an interval, and small ones in scientific notation."""
    if one.value is not None and one.level is None and one.low == one.high:
        return f"{one.value:.1e}" if 0 < abs(one.value) < 1e-3 else f"{one.value:.3g}"
    return format_estimate(one, 3)


def _estimates(claim: Claim, found: Findings, here: Numbers) -> list[tuple[str, Estimate]] | str:
    """Return the estimates that decide the claim, or the reason why there are none."""
    import polars as pl

    missing = [name for name in (*claim.encodings, *claim.against) if name not in found.encodings]
    if missing:
        return f"the study has no {missing[0]}"
    tasks = [task for task in found.tasks if claim.about(task)]
    meant = [task for task in found.study.tasks if claim.about(task)]
    if not tasks:
        return "the study has none of its tasks"
    if len(tasks) < len(meant):
        return f"only {len(tasks)} of its {len(meant)} tasks are there"
    table = here.scores.filter(pl.col("task").is_in(tasks))
    if claim.measure == "reach":
        return "reach has no mean, and so no interval over tasks"
    if claim.measure == "mrr":
        return _by_rank(claim, table)
    column = _COLUMN[claim.measure]
    if claim.rule.order:
        pairs = list(zip(claim.encodings, claim.encodings[1:], strict=False))
    else:
        pairs = [(one, other) for one in claim.encodings for other in claim.against]
    if pairs:
        made = encoding_differences(table, column, pairs=pairs)
        return [(f"{one.one} − {one.other}", one.seeds) for one in made]
    means = mean_scores_over_tasks(table, column, claim.encodings)
    return [(name, means[name].seeds) for name in claim.encodings]


def _by_rank(claim: Claim, table: pl.DataFrame) -> list[tuple[str, Estimate]] | str:
    made = mean_reciprocal_ranks(table, QUARTER)
    if made.missing:
        return f"the study has no {made.missing[0]}, and ranks are over exactly the five"
    if not made.means:
        return "no task and seed has all five encodings yet"
    named = {spec: name for name, spec in QUARTER.items()}
    if claim.rule.order:
        pairs = list(zip(claim.encodings, claim.encodings[1:], strict=False))
    else:
        pairs = [(one, other) for one in claim.encodings for other in claim.against]
    if not pairs:
        return [(name, made.means[named[name]].seeds) for name in claim.encodings]
    both = {frozenset((one.one, one.other)): one for one in made.differences}
    found = []
    for one, other in pairs:
        pair = both[frozenset((named[one], named[other]))]
        found.append((f"{one} − {other}", pair.seeds if pair.one == named[one] else pair.seeds.negated()))
    return found


_CHECKOUT = Path(__file__).resolve().parents[3]
"""The folder of the checkout, if lengthwise is not installed."""


def last_commit_date(path: Path) -> str | None:
    """Return the day on which a file of lengthwise's own checkout was last committed; None for any other file.

    git is not started in another folder: the configuration of a foreign repository can name programs to run.
    """
    if not path.exists() or not path.resolve().is_relative_to(_CHECKOUT):
        return None
    try:
        done = subprocess.run(
            ["git", "-c", "log.showSignature=false", "log", "-1", "--format=%cs", "--", path.name],
            cwd=path.resolve().parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
