"""What decides the claims that need no study: measured small here, and at the size they name in `results/theory`."""

import json

import numpy as np
import pytest

from lengthwise.reporting.claims import claim_estimates, judge_claim, read_claims, read_theory_estimates
from lengthwise.spec import SpecError
from lengthwise.study.add import find_committed_file
from lengthwise.theory import claims
from lengthwise.theory.claims import measure_claims
from lengthwise.theory.order import untrained_decoder

CLAIMS = {one.id: one for one in read_claims()}
WORDS = {"C3": "holds", "H2": "holds", "V1": "holds", "V2": "does not hold", "V3": "does not hold", "V4": "holds"}


@pytest.fixture(scope="module")
def small():
    return measure_claims(tokens=32, sequences=4, draws=3, inputs_per_variance=256)


def test_every_claim_that_needs_no_study_and_is_tested_is_measured(small):
    alone = {one.id for one in CLAIMS.values() if one.study is None and one.rule.not_tested is None}
    assert set(small) == alone == set(WORDS)


def test_a_small_measurement_already_tells_the_factor_and_the_theorems(small, tmp_path):
    (tmp_path / "claims.json").write_text(json.dumps({"claims": small}))
    values = read_theory_estimates(tmp_path / "claims.json")
    assert values == claim_estimates(small)
    words = {name: judge_claim(CLAIMS[name], None, values).word for name in ("C3", "H2", "V2")}
    assert words == {name: WORDS[name] for name in words}
    assert values["V2"][0][1].value == pytest.approx(12, rel=0.1)
    assert small["V4"][0]["value"] < 0.8  # of the noise, with so few inputs


def test_a_broken_construction_loses_its_claim(monkeypatch):
    monkeypatch.setattr(
        claims, "untrained_decoder", lambda mask, *rest, **more: untrained_decoder("causal", *rest, **more)
    )
    apart = claims._masks(0)
    assert apart > 1e-3
    found = {"H2": [claims._exact("masks apart", apart, 4, "sequences")]}
    made = judge_claim(CLAIMS["H2"], None, claim_estimates(found))
    assert made.word == "does not hold"


def test_an_interval_across_the_bound_settles_nothing():
    found = {"V3": [claims._mean("measured / published", np.array([0.9, 1.0, 1.1]))]}
    made = judge_claim(CLAIMS["V3"], None, claim_estimates(found))
    assert made.word == "not settled" and "[" in made.ours


def test_what_is_committed_decides_as_the_docs_say():
    there = find_committed_file("theory/claims.json")
    assert there is not None
    values = read_theory_estimates(there)
    assert {name: judge_claim(CLAIMS[name], None, values).word for name in values} == WORDS


def test_another_file_is_told(tmp_path):
    (tmp_path / "claims.json").write_text("[]")
    with pytest.raises(SpecError, match="lengthwise theory claims --to"):
        read_theory_estimates(tmp_path / "claims.json")
