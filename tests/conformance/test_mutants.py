"""For each check there is a planted bug that it catches, and no planted bug survives."""

import pytest

from lengthwise.conformance import checks, verify
from tests.conformance.mutants import MUTANTS, Mutant


def failed_checks(mutant: Mutant, only: set[str] | None) -> set[str]:
    """Plant a bug, and return the checks that fail."""
    with pytest.MonkeyPatch.context() as patch:
        if mutant.patch is not None:
            mutant.patch(patch)
        given = {"positions": mutant.positions, "normaliser": mutant.normaliser, "temperature": mutant.temperature}
        report = verify(mutant.encoding, **given, only=only)
    return {result.id for result in report.results if result.status == "fail"}


def test_every_check_has_a_planted_bug():
    idle = checks().keys() - set().union(*(mutant.caught_by for mutant in MUTANTS))
    assert not idle, f"no planted bug makes these checks fail: {sorted(idle)}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught_by_the_checks_named_for_it(mutant):
    assert failed_checks(mutant, mutant.caught_by) == mutant.caught_by


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_all_checks_on_all_planted_bugs(figure):
    caught = {mutant.name: failed_checks(mutant, None) for mutant in MUTANTS}
    ids = sorted(checks())
    figure(f"{'mutant × check (x: caught)':46}" + " ".join(f"{id:3}" for id in ids))
    for name, found in caught.items():
        figure(f"{name:46}" + " ".join(f"{'x' if id in found else '.':3}" for id in ids))
    assert not [mutant.name for mutant in MUTANTS if mutant.caught_by - caught[mutant.name]]
