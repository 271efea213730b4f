"""The conformance kit: checks that an encoding does what it claims.

`verify("rope")` runs every check and returns a report; `assert_conforms(MyEncoding)` is one line for your own tests.
Each check measures its cases from the smallest up and stops at the first failure, which is the smallest failing case.

Legend of shape suffixes: `lengthwise.encoding` and `lengthwise.model`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from lengthwise.conformance import (  # noqa: F401 - importing them registers their checks
    claims,
    mathematics,
    normalisers,
    placement,
    published,
    rotation,
    state,
    trained,
)
from lengthwise.conformance.check import CHECKS, Check, Report, Result, run_check
from lengthwise.conformance.cures import CURES, explaining_failures
from lengthwise.conformance.subject import Subject
from lengthwise.encoding.base import Encoding
from lengthwise.spec import Spec, SpecError, did_you_mean, suggests

__all__ = ["CHECKS", "Check", "Report", "Result", "assert_conforms", "checks", "refuse_nonconforming", "verify"]


def checks() -> dict[str, str]:
    """The id and the sentence of every check."""
    return {check.id: check.sentence for check in CHECKS}


@suggests
def verify(
    encoding: str | Mapping[str, object] | Spec | type[Encoding],
    *,
    positions: str | Mapping[str, object] | Spec = "consecutive",
    normaliser: str = "softmax",
    temperature: str = "constant",
    only: Collection[str] | None = None,
) -> Report:
    """Run the checks (all, or those whose ids are in `only`) on an encoding under a kind of positions.

    The models that are checked have this normaliser and this attention temperature.

    >>> verify("rope", only=["T05", "T12"]).failed
    []
    """
    subject = Subject(encoding, positions, normaliser, temperature)
    wanted = None if only is None else {_known(id) for id in only}
    chosen = [check for check in CHECKS if wanted is None or check.id in wanted]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are too small to gain from more threads
    try:
        results = [run_check(check, subject) for check in chosen]
    finally:
        torch.set_num_threads(threads)
    results.sort(key=lambda result: (result.id[0] != "T", result.id))
    return Report(subject.name, str(subject.positions_spec), _explained(_once(results)), len(CHECKS))


def _known(id: str) -> str:
    """Normalise the id of a check (`t7` → `T07`); an id that another check covers becomes that check's."""
    held = {"T14": "T12", "T16": "T15", "T26": "T05"}
    known = [check.id for check in CHECKS]
    asked = re.sub(r"^([TCSFN])(\d)$", r"\g<1>0\2", id.strip().upper())
    asked = held.get(asked, asked)
    if asked not in known:
        raise SpecError(f"there is no check {id!r}.{did_you_mean(asked, known)}")
    return asked


def _once(results: list[Result]) -> list[Result]:
    """If one error fails several checks, report it in full at the first one only; the others refer to it."""
    first: dict[str, str] = {}
    told = []
    for result in results:
        if result.status == "fail" and first.setdefault(result.detail, result.id) != result.id:
            result = replace(result, detail=f"the same as {first[result.detail]}")
        told.append(result)
    return told


def _explained(results: list[Result]) -> list[Result]:
    """Add to each failure and warning the usual fix and the failed check that probably explains it."""
    why = explaining_failures({result.id for result in results if result.status == "fail"})
    return [
        replace(result, cure=CURES[result.id], because=why.get(result.id, ""))
        if result.status in {"fail", "warn"}
        else result
        for result in results
    ]


@suggests
def assert_conforms(
    encoding: str | Mapping[str, object] | Spec | type[Encoding],
    *,
    positions: str | Mapping[str, object] | Spec = "consecutive",
    normaliser: str = "softmax",
    temperature: str = "constant",
) -> None:
    """Raise an AssertionError that lists every failed check with its smallest failing case; for a test of your own.

    >>> assert_conforms("rope")
    """
    report = verify(encoding, positions=positions, normaliser=normaliser, temperature=temperature)
    if report.failed:
        count = f"{len(report.failed)} check{'' if len(report.failed) == 1 else 's'}"
        raise AssertionError(f"{report.encoding} fails {count}\n{report}")


def refuse_nonconforming(spec: Spec, on_progress: Callable[[str], None], cure: str = "") -> None:
    """Raise if an encoding fails a check, before anything is trained with it; `cure` says what else to do."""
    on_progress(f"verifying {spec}")
    if (found := verify(spec)).failed:
        raise SpecError(f"{spec} does not conform, so it is not trained:\n{found}{cure}")
