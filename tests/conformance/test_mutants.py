"""For each check there is a planted bug that it catches, and no planted bug survives."""

import pytest

from lengthwise.conformance import checks, verify
from tests.conformance.mutants import MUTANTS, Mutant


def run(mutant: Mutant) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        if mutant.patch is not None:
            mutant.patch(patch)
        only = None if mutant.whole else mutant.caught_by
        given = {"positions": mutant.positions, "normaliser": mutant.normaliser, "temperature": mutant.temperature}
        report = verify(mutant.encoding, **given, only=only)
    return {result.id: result.status for result in report.results}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_mutant_survives_and_every_check_catches_one(figure):
    caught = {mutant.name: {id for id, status in run(mutant).items() if status == "fail"} for mutant in MUTANTS}
    ids = sorted(checks())
    figure(f"{'mutant × check (x: caught)':46}" + " ".join(f"{id:3}" for id in ids))
    for name, found in caught.items():
        figure(f"{name:46}" + " ".join(f"{'x' if id in found else '.':3}" for id in ids))
    missed = {mutant.name: mutant.caught_by - caught[mutant.name] for mutant in MUTANTS}
    assert not {name: ids for name, ids in missed.items() if ids}
    idle = set(ids) - set().union(*caught.values())
    assert not idle, f"no planted bug makes these checks fail: {sorted(idle)}"
