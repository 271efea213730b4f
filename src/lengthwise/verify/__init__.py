"""The conformance kit: is this encoding what it says?

`verify("rope")` runs every check and returns a report; `assert_conforms(MyEncoding)` is one line of an outsider's own
tests. Each check measures cases from the smallest up and stops at the first that fails, so that a failure
names the smallest.

Legend of shape suffixes: `lengthwise.encodings` and `lengthwise.model`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from lengthwise.encodings.encoding import Encoding
from lengthwise.spec import Spec, SpecError, did_you_mean
from lengthwise.verify import claims, mathematics, placement, state  # noqa: F401 - they enter their checks
from lengthwise.verify.check import CHECKS, Check, Report, Result, run_check
from lengthwise.verify.subject import Subject

__all__ = ["CHECKS", "Check", "Report", "Result", "assert_conforms", "checks", "verify"]


def checks() -> dict[str, str]:
    """The id and the sentence of every check."""
    return {check.id: check.sentence for check in CHECKS}


def verify(
    encoding: str | Mapping[str, object] | Spec | type[Encoding],
    *,
    positions: str | Mapping[str, object] | Spec = "consecutive",
    only: Collection[str] | None = None,
) -> Report:
    """Run the checks (all, or those whose ids are in `only`) on an encoding under a kind of positions."""
    subject = Subject(encoding, positions)
    known = [check.id for check in CHECKS]
    for id in only or ():
        if id not in known:
            raise SpecError(f"there is no check {id!r}.{did_you_mean(id, known)}")
    chosen = [check for check in CHECKS if only is None or check.id in only]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny: a second thread only waits
    try:
        results = [run_check(check, subject) for check in chosen]
    finally:
        torch.set_num_threads(threads)
    return Report(
        subject.name, str(subject.positions_spec), sorted(results, key=lambda result: (result.id[0] != "T", result.id))
    )


def assert_conforms(
    encoding: str | Mapping[str, object] | Spec | type[Encoding],
    *,
    positions: str | Mapping[str, object] | Spec = "consecutive",
) -> None:
    """Raise an AssertionError that lists every failed check with its smallest failing case."""
    report = verify(encoding, positions=positions)
    if report.failed:
        raise AssertionError(f"{report.encoding} fails {len(report.failed)} checks\n{report.text(report.failed)}")
