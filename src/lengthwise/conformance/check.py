"""Checks, their results and the report."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from html import escape
from typing import Literal

from lengthwise.conformance.subject import Subject
from lengthwise.display import Display
from lengthwise.spec import SpecError, did_you_mean


class NotApplicable(Exception):
    """Raised by a check that does not apply to this encoding; the message is the reason."""


@dataclass(frozen=True)
class Measure:
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
    run: Callable[[Subject], Iterator[Measure]]


CHECKS: list[Check] = []
"""Every check, in the order in which they are run."""


def check(id: str, sentence: str) -> Callable[[Callable[[Subject], Iterator[Measure]]], Check]:
    """Register a function as a check."""

    def enter(run: Callable[[Subject], Iterator[Measure]]) -> Check:
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

    def text(self, results: list[Result] | None = None) -> str:
        """One line per result, and for a failure a second line with its fix or its cause."""
        chosen = self.results if results is None else results
        lines = []
        for item in chosen:
            lines.append(f"{item.id:4} {item.status:14} {item.sentence} {item.detail}")
            if item.because:
                lines.append(f"     probably a consequence of {item.because}")
            elif item.cure:
                lines.append(f"     {item.cure}")
        return "\n".join(lines)

    def __str__(self) -> str:
        told = f"{self.encoding} {'conforms' if self.passed else 'does NOT conform'}"
        counts = ", ".join(
            f"{sum(one.status == status for one in self.results)} {words}"
            for status, words in (("pass", "passed"), ("warn", "warned"), ("fail", "failed"))
        )
        return "\n".join([f"{told}: {counts}", self.text([*self.failed, *self.warned])]).rstrip()

    def _repr_html_(self) -> str:
        lines = [(one.id, one.status, one.sentence, one.detail, one.because or one.cure) for one in self.results]
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"<p>{escape(str(self).splitlines()[0])}</p><table>{rows}</table>"

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        rows = [asdict(result) for result in self.results]
        for row in rows:
            if row["error"] is not None and not math.isfinite(row["error"]):
                row["error"] = None  # JSON has no infinity
        return {"encoding": self.encoding, "positions": self.positions, "passed": self.passed, "results": rows}


def run_check(check: Check, subject: Subject) -> Result:
    """Measure a check's cases until one fails."""
    worst, cases, told = Measure("", 0.0, 1.0), 0, list[str]()
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


def _share(measure: Measure) -> float:
    return measure.error / measure.tolerance if measure.tolerance else math.inf if measure.error else 0.0


def _place(error: BaseException, file: str | None) -> str:
    """The innermost traceback line in the encoding's own file, or else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f" (line {own[-1].lineno} of {own[-1].filename.rpartition('/')[2]})" if own else ""
