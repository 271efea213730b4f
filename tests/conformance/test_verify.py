"""The kit as an outsider uses it."""

import inspect
import json

import pytest
import torch

from lengthwise.conformance import CHECKS, assert_conforms, checks, verify
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, attention, preset
from lengthwise.run.identity import Plan
from lengthwise.spec import SpecError

FIRST = ("nope", "sinusoidal", "learned", "t5", "alibi", "rope")
NAMES = [
    *FIRST,
    "rope:fraction=0.25:interleaved=true",
    "rope:fraction=0.5:theta=500.0",
    "sinusoidal:interleaved=true:amplitude=0.5",
    "learned:limit=64",
    "t5:buckets=5:distance=6",
    "t5:bidirectional=true",
    "alibi:slopes=text",
]
FURTHER = [
    *(name for name in ENCODINGS if name not in FIRST),
    "kerple:kernel=power",
    "fire:width=8:threshold=100.0:shared=true",
    "hard_alibi:fraction=1.0",
    "shaw:distance=2:values=false",
    "transformer_xl:clamp=5",
    "xpos:interleaved=false:gamma=0.2",
    "cope:counts=4",
    "forgetting:start=5.0",
    "stick_breaking:remainder=true",
]
POSITIONS = [
    "consecutive",
    "randomized:limit=64",
    "offset:limit=64",
    "given:values=[" + ",".join(str(2 * i + i % 3) for i in range(48)) + "]",
    "given:values=[" + ",".join(str(i * 7 % 48) for i in range(48)) + "]",
]


def _slowly(name: str, positions: str) -> object:
    """By default the first six, and one of them under another kind of positions.

    CI's slow stage has all encodings with consecutive positions, and an eighth of them under each other kind; all under
    every kind are evidence, run by hand.
    """
    quick = name in FIRST and (positions == "consecutive" or (name == "rope" and positions == POSITIONS[1]))
    turn = [*NAMES, *FURTHER].index(name) % 8 == POSITIONS.index(positions)
    later = pytest.mark.slow if positions == "consecutive" or turn else pytest.mark.evidence
    return pytest.param(name, positions, marks=() if quick else later, id=f"{name}-{positions[:16]}{positions[-4:]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "positions"),
    [
        *(_slowly(name, positions) for name in NAMES for positions in POSITIONS),
        *(_slowly(name, positions) for name in FURTHER for positions in (*POSITIONS[:3], POSITIONS[4])),
    ],
)
def test_every_encoding_conforms_under_every_kind_of_positions(name, positions):
    if name == "learned:limit=64" and positions.endswith("96]"):
        with pytest.raises(SpecError, match="gives positions up to 96, but learned:limit=64 ends at 63"):
            verify(name, positions=positions)
        return
    report = verify(name, positions=positions)
    assert report.passed, str(report)
    assert {result.id for result in report.results} == set(checks())


@pytest.mark.slow
def test_alibi_conforms_on_its_columns_too(monkeypatch):
    monkeypatch.setattr(attention, "COLUMNS_FROM", 0)
    assert_conforms("alibi")
    assert_conforms("alibi", positions=POSITIONS[1])


def test_bf16_errors_are_stated(figure):
    for name in NAMES[:7]:
        result = verify(name, only=["T13"]).result("T13")
        figure(f"bf16 {name}: {result.detail}")
        assert result.status == "pass"


@pytest.mark.parametrize("name", ["rope:p=0.1", "hard_alibi:fraction=0.1"])
def test_what_a_larger_model_would_take_is_told(name):
    with pytest.raises(SpecError, match=r"verify's model \(4 heads of width 8\) is too small for this encoding"):
        verify(name)


@pytest.mark.parametrize("name", ["rope:p=1.5", "rop", "rope:q=1", "hard_alibi:fraction=2.0"])
def test_what_no_model_would_take_is_told_as_it_is(name):
    with pytest.raises(SpecError) as error:
        verify(name)
    assert "too small" not in str(error.value)


def test_parameters_without_initial_values_do_not_blame_the_model(monkeypatch):
    monkeypatch.delattr(Learned, "initialize")
    with pytest.raises(SpecError, match=r"^Learned has parameters, so it must define initialize"):
        verify(Learned)


def test_ids_are_unique_and_sentences_end():
    assert len({check.id for check in CHECKS}) == len(CHECKS) == 37
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in checks().values())


class Mine(Encoding):
    """An outsider's encoding: a bias that falls with the root of the distance."""

    def __init__(self, geometry, *, alpha: float = 1.0):
        super().__init__(geometry)
        self.alpha = alpha

    def by_distance(self, distances_N):
        head_H = torch.arange(1, self.geometry.heads + 1, device=distances_N.device)
        return -self.alpha * distances_N.abs().sqrt() / head_H[:, None]


class Learned(Encoding):
    """A parameter has taken the name of the option that it starts with."""

    def __init__(self, geometry, *, alpha: float = 1.0):
        super().__init__(geometry)
        self.alpha = torch.nn.Parameter(torch.full((geometry.heads, 1), alpha))

    def initialize(self, stream):
        torch.nn.init.ones_(self.alpha)

    def by_distance(self, distances_N):
        return -self.alpha * distances_N.abs()


def test_a_parameter_under_the_name_of_an_option_is_told(tmp_path):
    found = verify(Learned, only=["T28"]).result("T28")
    assert found.status == "fail" and "keep the option there" in found.detail and "alpha_weight" in found.detail
    file = tmp_path / "mine.py"
    file.write_text("import torch\nfrom lengthwise.encoding.base import Encoding\n" + inspect.getsource(Learned))
    for spec in (f"{file}:Learned", f"{file}:Learned:alpha=2.0"):
        with pytest.raises(SpecError, match=r"option 'alpha' of .* cannot be read back: self.alpha is a tensor; keep"):
            Decoder(preset("laptop", vocabulary=17), spec).effective()
        with pytest.raises(SpecError, match="cannot be read back"):  # before it is trained
            Plan.of("copy", spec)


class Broken(Mine):
    """The same, with a constant that forgets the cache."""

    def bias(self, query_positions_BQ, key_positions_BK):
        count = torch.arange(query_positions_BQ.shape[1], device=query_positions_BQ.device)
        return super().bias(count[None].to(query_positions_BQ.dtype), key_positions_BK)


class Crashes(Mine):
    def by_distance(self, distances_N):
        raise RuntimeError("no bias today")


@pytest.mark.slow
def test_an_outsiders_class_conforms_in_one_line():
    assert_conforms(Mine)
    assert_conforms("tests.conformance.test_verify:Mine:alpha=2.0")


@pytest.mark.slow
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
    data = json.loads(json.dumps(report.plain()))
    assert [row["status"] for row in data["results"]] == ["pass", "not applicable"]
    assert data["results"][1]["detail"] == "because it does not claim to be alibi"


class UnknownFormula(Mine):
    formula = "Alibi"


class MisspeltHook(Encoding):
    def by_distances(self, distances_N):
        return -distances_N.expand(self.geometry.heads, -1)


class MisspeltClaim(Mine):
    relatve = False


class WrongClaim(Mine):
    limit = "2048"


class NoInitialize(Encoding):
    def __init__(self, geometry):
        super().__init__(geometry)
        self.slope = torch.nn.Parameter(torch.ones(geometry.heads))


MISTAKES = {
    UnknownFormula: "formula 'Alibi' of UnknownFormula is unknown. Did you mean 'alibi'?",
    MisspeltHook: "'by_distances' of MisspeltHook would be ignored. Did you mean 'by_distance'?",
    MisspeltClaim: "'relatve' of MisspeltClaim would be ignored. Did you mean 'relative'?",
    WrongClaim: "claim 'limit' of WrongClaim must be a whole number or None, not '2048'",
    NoInitialize: "NoInitialize has parameters, so it must define initialize(self, stream)",
}


class Nothing(Encoding):
    """Overrides no hook: NoPE by another name."""


class OneRow(Mine):
    def by_distance(self, distances_N):
        return -distances_N.abs()


class OnlyQueries(Encoding):
    def rotate(self, q_BHQE, k_BHKE, state):
        return q_BHQE


class KeptInAList(Mine):
    def __init__(self, geometry):
        super().__init__(geometry)
        self.kept = [torch.ones(3)]


class BloomAlibi(Encoding):
    """BLOOM's form, slope · key, in fp32 constants: equal after softmax, so it conforms."""

    formula = "alibi"

    def bias(self, query_positions_BQ, key_positions_BK):
        heads = self.geometry.heads
        below = 2 ** (heads.bit_length() - 1)
        slopes = [2 ** (-8 * (h + 1) / below) for h in range(below)]
        slopes += [2 ** (-4 * (2 * h + 1) / below) for h in range(heads - below)]
        slope_H = torch.tensor(slopes).to(key_positions_BK)
        bias = slope_H[None, :, None, None] * key_positions_BK[:, None, None, :]
        return bias.expand(-1, -1, query_positions_BQ.shape[1], -1)


class LlamaRope(Encoding):
    """A port with fp32 frequencies and no attributes but the formula's name."""

    formula = "rope"

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return query_positions_BQ, key_positions_BK

    def rotate(self, q_BHQE, k_BHKE, state):
        return self.turn(q_BHQE, state[0]), self.turn(k_BHKE, state[1])

    def turn(self, x, positions):
        half = x.shape[-1] // 2
        frequency = 10000.0 ** -(torch.arange(half).float() / half)
        angle = torch.cat([positions[..., None].float() * frequency] * 2, -1)[:, None]
        other = torch.cat([-x[..., half:], x[..., :half]], -1)
        return (x * angle.cos() + other * angle.sin()).to(x.dtype)


def test_what_would_pass_in_silence_does_not():
    for cls, id, said in (
        (Nothing, "T08", "it overrides none of"),
        (OneRow, "T05", "by_distance of OneRow returned (4,), it must return (heads, distances) = (4, 4); end it with"),
        (OnlyQueries, "T05", "rotate of OnlyQueries must return (q, k), both turned"),
        (KeptInAList, "S01", "tensors kept as attributes when built: kept"),
    ):
        result = verify(cls, only=[id]).result(id)
        assert result.status == "fail"
        assert said in result.detail


@pytest.mark.slow
def test_a_right_port_conforms_in_its_own_form():
    for cls in (BloomAlibi, LlamaRope):
        report = verify(cls, only=["T12", "T15", "T05", "T07"])
        assert report.passed, str(report)


def test_mistakes_are_told():
    for cls, said in MISTAKES.items():
        with pytest.raises(SpecError) as error:
            verify(cls)
        assert said in str(error.value)
    with pytest.raises(SpecError, match="verify needs at least 9 positions, here there are 3"):
        verify("rope", positions="given:values=[0,1,5]")
    with pytest.raises(SpecError, match="dict is not an encoding"):
        assert_conforms(dict)
    with pytest.raises(SpecError, match="there is no check 'T99'"):
        verify("rope", only=["T99"])
    with pytest.raises(SpecError, match=r"e.g. randomized:limit=64"):
        verify("learned:limit=64", positions="randomized:limit=2048")


ATTENTION = [
    ("nope", "sink", "constant"),
    ("alibi", "sink", "constant"),
    ("rope", "entmax", "constant"),
    ("alibi", "stick_breaking:remainder=true", "constant"),
    ("nape", "entmax", "asentmax"),
    ("inkling", "softmax", "inkling:floor=4"),
    ("nope", "off-by-one", "ssmax"),
]
FURTHER_ATTENTION = [
    ("t5", "softmax", "inkling:floor=4"),
    ("rope", "entmax:alpha=1.3", "ministral:floor=3"),
    ("nope", "softmax", "beam:floor=3"),
    ("pope", "sink", "log-n:trained=4"),
    ("path", "entmax", "ssmax"),
    ("selective_rope", "off-by-one", "yarn:factor=4"),
    ("wall", "stick_breaking", "llama4:floor=2:layers=all"),
]


@pytest.mark.parametrize(
    ("encoding", "normaliser", "temperature"),
    [
        *(pytest.param(*given, marks=pytest.mark.slow) for given in ATTENTION),
        *(pytest.param(*given, marks=pytest.mark.evidence) for given in FURTHER_ATTENTION),
    ],
)
def test_every_normaliser_and_temperature_conforms(encoding, normaliser, temperature):
    report = verify(encoding, normaliser=normaliser, temperature=temperature)
    assert report.passed, str(report)
