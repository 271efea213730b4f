"""Checks, their results and the report."""

from __future__ import annotations

import inspect
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from lengthwise.conformance.subject import Subject
from lengthwise.display import Display, Part, Table
from lengthwise.spec import SpecError, did_you_mean


class NotApplicable(Exception):
    """Raised by a check that does not apply to this encoding; the message is the reason."""


@dataclass(frozen=True)
class CheckCase:
    """One case of a check: a description, the measured error and the tolerance."""

    case: str
    error: float
    tolerance: float
    told: str = ""
    """A remark for the report, although the case passed."""
    warning: bool = False
    """Whether a failure is only a warning, not a breach of the contract."""

    @property
    def failed(self) -> bool:
        """Whether the error is above the tolerance or NaN."""
        return not self.error <= self.tolerance


@dataclass(frozen=True)
class Check:
    """A statement that must hold, and a function that measures it case by case."""

    id: str
    sentence: str
    run: Callable[[Subject], Iterator[CheckCase]]


CHECKS: list[Check] = []
"""Every check, in the order in which they are run."""


def check(id: str, sentence: str) -> Callable[[Callable[[Subject], Iterator[CheckCase]]], Check]:
    """Register a function as a check."""

    def enter(run: Callable[[Subject], Iterator[CheckCase]]) -> Check:
        made = Check(id, sentence, run)
        CHECKS.append(made)
        return made

    return enter


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    id: str
    sentence: str
    status: Literal["pass", "warn", "fail", "not applicable"]
    detail: str
    """Passed: the largest error measured. Failed: the smallest failing case. Not applicable: the reason."""
    error: float | None = None
    cure: str = ""
    """The usual fix, if the check failed or warned."""
    because: str = ""
    """The failed check that probably explains this one."""


@dataclass(frozen=True, repr=False)
class Report(Display):
    """The results of all checks of one encoding."""

    encoding: str
    positions: str
    results: list[Result]
    available: int
    """How many checks there are; fewer results were asked for by `only`."""

    @property
    def failed(self) -> list[Result]:
        """The checks that failed, root causes before their consequences."""
        found = [result for result in self.results if result.status == "fail"]
        return sorted(found, key=lambda result: bool(result.because))

    @property
    def warned(self) -> list[Result]:
        """The checks that only warn."""
        return [result for result in self.results if result.status == "warn"]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    def result(self, id: str) -> Result:
        """The result of one check."""
        found = {result.id: result for result in self.results}
        if id not in found:
            raise KeyError(f"no check {id!r} was run.{did_you_mean(id, found)}")
        return found[id]

    @property
    def table(self) -> Table:
        """Every check: what must hold, and what was found."""
        return Table(
            {
                "check": one.id,
                "result": "n/a" if one.status == "not applicable" else one.status,
                "what must hold": one.sentence,
                "found": one.detail,
            }
            for one in self.results
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Failures first, each with its fix, root causes before consequences; then the counts."""
        for one in (*self.failed, *self.warned):
            style = "bold red" if one.status == "fail" else "yellow"
            yield Part(f"{one.id} {one.status} {one.sentence}", style)
            yield Part(f"  found: {one.detail}")
            if one.because:
                yield Part(f"  probably a consequence of {one.because}", "dim")
            else:
                yield Part(f"  mend:  {one.cure}")
        counts = Counter(one.status for one in self.results)
        partial = len(self.results) < self.available
        verdict = "does NOT conform" if self.failed else "passes" if partial else "conforms"
        warned = f", {counts['warn']} warned" if counts["warn"] else ""
        asked = f" (of {self.available} checks, {len(self.results)} asked for)" if partial else ""
        yield Part(
            f"{self.encoding} {verdict}: {counts['pass']} passed{warned}, {counts['fail']} failed, "
            f"{counts['not applicable']} not applicable{asked}",
            wrap=False,
        )

    def plain(self) -> dict[str, object]:
        """The report as plain data."""
        rows = [asdict(result) for result in self.results]
        for row in rows:
            if row["error"] is not None and not math.isfinite(row["error"]):
                row["error"] = None  # JSON has no infinity
        return {"encoding": self.encoding, "positions": self.positions, "passed": self.passed, "results": rows}


def run_check(check: Check, subject: Subject) -> Result:
    """Measure a check's cases until one fails."""
    worst, cases, told = CheckCase("", 0.0, 1.0), 0, list[str]()
    warning: Result | None = None
    try:
        for measure in check.run(subject):
            cases += 1
            if measure.failed:
                detail = measure.case
                if measure.tolerance:
                    detail += f": off by {measure.error:.3g}, allowed {measure.tolerance:.3g}"
                if measure.warning:
                    warning = warning or Result(check.id, check.sentence, "warn", detail, measure.error)
                    continue
                return Result(check.id, check.sentence, "fail", detail, measure.error)
            if measure.told:
                told.append(measure.told)
            if _share(measure) > _share(worst):
                worst = measure
    except NotApplicable as reason:
        return Result(check.id, check.sentence, "not applicable", f"because {reason}")
    except SpecError as error:
        return Result(check.id, check.sentence, "fail", str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the encoding under test raises is a finding, not our crash
        place = _place(error, inspect.getsourcefile(type(subject.encoding)))
        return Result(check.id, check.sentence, "fail", f"{type(error).__name__}: {error}{place}")
    if warning is not None:
        return warning
    if not cases:
        return Result(check.id, check.sentence, "not applicable", "because no case of it applies here")
    counted = f"{cases} case{'' if cases == 1 else 's'}"
    detail = f"{counted}, largest error {worst.error:.1e} ({worst.case})" if worst.error else counted
    detail = "; ".join([detail, *told])
    return Result(check.id, check.sentence, "pass", detail, worst.error)


def _share(measure: CheckCase) -> float:
    return measure.error / measure.tolerance if measure.tolerance else math.inf if measure.error else 0.0


def _place(error: BaseException, file: str | None) -> str:
    """The innermost traceback line in the encoding's own file, or else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f" (line {own[-1].lineno} of {own[-1].filename.rpartition('/')[2]})" if own else ""
