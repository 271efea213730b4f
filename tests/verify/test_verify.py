"""The kit as an outsider uses it."""

import json

import pytest
import torch

from lengthwise.encodings import ENCODINGS
from lengthwise.encodings.encoding import Encoding
from lengthwise.model import attention
from lengthwise.spec import SpecError
from lengthwise.verify import CHECKS, assert_conforms, checks, verify

NAMES = [
    *ENCODINGS,
    "rope:fraction=0.25:interleaved=true",
    "rope:fraction=0.5:theta=500.0",
    "sinusoidal:interleaved=true:amplitude=0.5",
    "learned:limit=64",
    "t5:buckets=5:distance=6",
    "t5:bidirectional=true",
    "alibi:slopes=text",
]
POSITIONS = [
    "consecutive",
    "randomized:limit=64",
    "offset:limit=64",
    "given:values=[" + ",".join(str(2 * i + i % 3) for i in range(48)) + "]",
    "given:values=[" + ",".join(str(i * 7 % 48) for i in range(48)) + "]",
]


@pytest.mark.parametrize("positions", POSITIONS, ids=lambda text: text[:16] + text[-4:])
@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_conforms_under_every_kind_of_positions(name, positions):
    if name == "learned:limit=64" and positions.endswith("96]"):
        with pytest.raises(SpecError, match="gives positions up to 96, but learned:limit=64 ends at 63"):
            verify(name, positions=positions)
        return
    report = verify(name, positions=positions)
    assert report.passed, report.text(report.failed)
    assert {result.id for result in report.results} == set(checks())


def test_alibi_conforms_on_its_columns_too(monkeypatch):
    monkeypatch.setattr(attention, "COLUMNS_FROM", 0)
    assert_conforms("alibi")
    assert_conforms("alibi", positions=POSITIONS[1])


def test_bf16_errors_are_stated(figure):
    for name in NAMES[:7]:
        result = verify(name, only=["T13"]).result("T13")
        figure(f"bf16 {name}: {result.detail}")
        assert result.status == "pass"


def test_ids_are_unique_and_sentences_end():
    assert len({check.id for check in CHECKS}) == len(CHECKS) == 32
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in checks().values())


class Mine(Encoding):
    """An outsider's encoding: a bias that falls with the root of the distance."""

    def __init__(self, geometry, *, alpha: float = 1.0):
        super().__init__(geometry)
        self.alpha = alpha

    def by_distance(self, distances_N):
        head_H = torch.arange(1, self.geometry.heads + 1, device=distances_N.device)
        return -self.alpha * distances_N.abs().sqrt() / head_H[:, None]


class Broken(Mine):
    """The same, with a constant that forgets the cache."""

    def bias(self, query_positions_BQ, key_positions_BK):
        count = torch.arange(query_positions_BQ.shape[1], device=query_positions_BQ.device)
        return super().bias(count[None].to(query_positions_BQ.dtype), key_positions_BK)


class Crashes(Mine):
    def by_distance(self, distances_N):
        raise RuntimeError("no bias today")


def test_an_outsiders_class_conforms_in_one_line():
    assert_conforms(Mine)
    assert_conforms("tests.verify.test_verify:Mine:alpha=2.0")


def test_a_broken_one_fails_with_its_smallest_case():
    with pytest.raises(AssertionError, match=r"Broken fails \d+ checks") as error:
        assert_conforms(Broken)
    assert "T05" in str(error.value)
    result = verify(Broken).result("T06")
    assert result.status == "fail"
    assert result.detail.startswith("the last of 2 tokens")


def test_a_crash_of_the_encoding_is_a_finding_with_its_line():
    result = verify(Crashes, only=["T05"]).result("T05")
    assert result.status == "fail"
    assert "RuntimeError: no bias today (line" in result.detail
    assert "test_verify.py" in result.detail


def test_the_report_is_plain_data():
    report = verify("rope", only=["T12", "T15"])
    data = json.loads(json.dumps(report.to_json()))
    assert [row["status"] for row in data["results"]] == ["pass", "not applicable"]
    assert data["results"][1]["detail"] == "because it does not claim to be alibi"


def test_mistakes_are_told():
    with pytest.raises(SpecError, match="there is no check 'T99'"):
        verify("rope", only=["T99"])
    with pytest.raises(SpecError, match=r"e.g. randomized:limit=64"):
        verify("learned:limit=64", positions="randomized:limit=2048")
