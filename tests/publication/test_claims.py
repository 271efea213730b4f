"""The claims are written in one small schema, and speak of rows their study has."""

from pathlib import Path

import pytest
import yaml

from lengthwise.spec import Spec
from lengthwise.study.file import StudyFile
from lengthwise.study.reading import shipped_studies

CLAIMS = yaml.safe_load((Path(__file__).parents[2] / "studies" / "claims.yaml").read_text())["claims"]
FIELDS = ["id", "claim", "source", "published", "study", "measure", "encodings", "against", "tasks", "rule"]
OPTIONAL = {"main", "quantity", "settings"}
RULES = {"above", "below", "within", "order", "not tested here"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["id"])
def test_a_claim_has_the_fields_of_the_schema(claim):
    told = claim["measure"] == "analysis"
    assert [field for field in claim if field not in OPTIONAL] == FIELDS
    assert all(name in shipped_studies() for name in claim.get("settings", []))
    assert ("quantity" in claim) == told
    assert claim["measure"] in {"mean_unseen", "mrr", "reach", "learned", "analysis"}
    ((kind, value),) = claim["rule"].items()
    assert kind in RULES
    if kind in {"above", "below"}:
        assert isinstance(value, int | float)
    if kind == "within":
        low, high = value
        assert low < high
    if kind == "order":
        assert value is True and len(claim["encodings"]) > 1 and not claim["against"]
    assert not set(claim["encodings"]) & set(claim["against"])
    assert told or claim["study"]


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim["study"]], ids=lambda claim: claim["id"])
def test_a_claim_speaks_of_rows_its_study_has(claim):
    study = StudyFile.read(claim["study"])
    assert {*claim["encodings"], *claim["against"]} <= set(study.encodings)
    if claim["tasks"] != "all":
        there = [Spec.of(task) for task in study.tasks]
        for name in claim["tasks"]:
            spec = Spec.of(name)
            assert any(spec.name == task.name and set(spec.options) <= set(task.options) for task in there), name


def test_every_claim_of_the_seeds_is_there_once():
    ids = [claim["id"] for claim in CLAIMS]
    assert len(ids) == len(set(ids))
    assert {*(f"C{number}" for number in range(1, 8)), "H1", "H2", "V1", "V2", "V3", "V4"} <= set(ids)


def test_the_main_claims_are_two_and_were_named_before():
    assert [claim["id"] for claim in CLAIMS if claim.get("main")] == ["C1", "C1-accuracy"]


def test_claims_are_no_recipe():
    assert "claims" not in shipped_studies() and "laptop" in shipped_studies()
