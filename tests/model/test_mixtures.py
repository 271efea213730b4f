"""Layers that differ: lists that repeat, windows beside global layers, temperatures in some layers alone."""

import math

import pytest
import torch

from lengthwise.encoding.base import Geometry
from lengthwise.model import Decoder, preset
from lengthwise.model.decode import greedy
from lengthwise.model.taps import Recorder
from lengthwise.model.temperature import build_temperature
from lengthwise.run.identity import Plan, encodings_of
from lengthwise.spec import SpecError, parse_specs

FOUR = "3*local:window=4,nope"
GEOMETRY = Geometry(width=32, heads=2, head_width=8)


def model(encoding, layers=4, **changes) -> Decoder:
    config = preset("laptop", vocabulary=17, layers=layers, width=32, heads=2, head_width=8, sigma=0.3, **changes)
    return Decoder(config, parse_specs(encoding)).double().eval()


def ids(tokens: int, rows: int = 1) -> torch.Tensor:
    return torch.randint(17, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("3*rope,nope", "rope,rope,rope,nope"),
        ("2*[rope,nope]", "rope,nope,rope,nope"),
        ("2*[3*rope,nope]", "rope,rope,rope,nope,rope,rope,rope,nope"),
        ("2*rope:theta=500.0,2 * local:window=8", "rope:theta=500.0,rope:theta=500.0,local:window=8,local:window=8"),
        ("1*rope", "rope"),
        ("2*given:values=[1,2]", "given:values=[1,2],given:values=[1,2]"),
    ],
)
def test_a_list_may_repeat(short, long):
    if "given" not in short:
        config = preset("laptop", vocabulary=17, layers=len(parse_specs(long)), width=32, heads=2, head_width=8)
        assert Decoder(config, short).specs == Decoder(config, parse_specs(long)).specs
    assert parse_specs(short) == parse_specs(long) and ",".join(map(str, parse_specs(short))) == long


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[rope,nope]", "say how often a list is repeated"),
        ("0*rope", "1 to 999 times, not 0"),
        ("99999999999*rope", "1 to 999 times"),
        ("900*[900*rope]", "beyond anything that is meant"),
        ("3*", "has no name"),
    ],
)
def test_what_does_not_repeat_is_refused(text, words):
    with pytest.raises(SpecError, match=words):
        parse_specs(text)


def test_a_list_must_have_an_entry_for_each_layer_however_it_is_written():
    with pytest.raises(SpecError, match="4 layers, but 2 entries"):
        encodings_of("rope,nope", 4)
    spelled = [Plan.of("copy", text, model="laptop:layers=4").id for text in ("3*rope,nope", "rope,rope,rope,nope")]
    assert spelled[0] == spelled[1] and spelled[0].startswith("copy-rope+nope-s0-")
    assert len(model("3*rope,nope").encodings) == 2  # the three share one
    assert model("2*[rope,nope]").which == [0, 1, 0, 1]


@torch.no_grad()
def test_local_layers_beside_a_global_one_see_what_they_may_and_decode_the_same():
    decoder, seen = model(FOUR), Recorder()
    logits = decoder(ids(12), taps={"layers.*.weights": seen})
    distance = torch.arange(12)[:, None] - torch.arange(12)
    for layer in range(4):
        looked_at = seen[f"layers.{layer}.weights"][0] > 0
        allowed = (distance >= 0) & ((distance < 4) | (layer == 3))
        assert torch.equal(looked_at, allowed.expand_as(looked_at))
    cache = decoder.cache(12)
    one_by_one = torch.cat([decoder(ids(12)[:, t : t + 1], cache=cache) for t in range(12)], 1)
    assert torch.allclose(one_by_one, logits, atol=1e-9)
    assert decoder.effective() == [
        "layers 0, 1, 2: local window=4 theta=10000.0 fraction=1.0 interleaved=false",
        "layer 3: nope",
    ]


def test_an_option_that_did_not_arrive_is_an_error():
    decoder = model("rope:theta=500.0,nope", layers=2)
    assert decoder.effective()[0].startswith("layer 0: rope theta=500.0 ")
    decoder.encodings[0].theta = 10_000.0
    with pytest.raises(SpecError, match=r"asks for theta=500.0, but the module has theta=10000.0"):
        decoder.effective()


# --- temperatures ----------------------------------------------------------------------------------------------------


def test_yarn_and_llama4_have_the_published_values(figure):
    positions = torch.tensor([[0, 100, 8190, 8191, 16382, 16383, 100_000]], dtype=torch.float64)
    got = build_temperature("llama4", GEOMETRY).factor(positions + 1, positions).flatten()
    # As in transformers' Llama 4: log1p(floor((t + 1) / 8192)) · 0.1 + 1.
    wanted = torch.log1p(torch.floor((positions[0] + 1.0) / 8192)) * 0.1 + 1.0
    figure(f"llama4 at positions 8191 and 100,000: {float(got[3]):.4f}, {float(got[6]):.4f}")
    assert torch.allclose(got, wanted, atol=1e-12) and got[:3].tolist() == [1, 1, 1]
    assert float(got[3]) == pytest.approx(1 + 0.1 * math.log(2))
    small = build_temperature("llama4:scale=0.5:floor=4", GEOMETRY).factor(positions[:, :2] + 1, positions).flatten()
    assert small.tolist() == pytest.approx([1.0, 1 + 0.5 * math.log1p(25)])
    stretched, same = (build_temperature(f"yarn:factor={s}", GEOMETRY).factor(positions, positions) for s in (4, 1))
    assert stretched == pytest.approx((0.1 * math.log(4) + 1) ** 2) and same == 1.0


@torch.no_grad()
@pytest.mark.parametrize("temperature", ["llama4:floor=2:scale=1.0", "log-n:trained=4:layers=nope"])
def test_a_temperature_for_nope_layers_leaves_the_others_alone(temperature):
    plain, warm = model("rope,nope", layers=2), model("rope,nope", layers=2, temperature=temperature)
    a, b = Recorder(), Recorder()
    plain(ids(12), taps={"layers.*.weights": a})
    logits = warm(ids(12), taps={"layers.*.weights": b})
    assert torch.equal(a["layers.0.weights"], b["layers.0.weights"])
    assert not torch.allclose(a["layers.1.weights"], b["layers.1.weights"], atol=1e-3)
    everywhere = model("rope,nope", layers=2, temperature=temperature.removesuffix(":layers=nope") + ":layers=all")
    everywhere(ids(12), taps={"layers.*.weights": b})
    assert not torch.allclose(a["layers.0.weights"], b["layers.0.weights"], atol=1e-3)
    cache = warm.cache(12)
    assert torch.allclose(
        torch.cat([warm(ids(12)[:, t : t + 1], cache=cache) for t in range(12)], 1), logits, atol=1e-9
    )
    assert greedy(warm, ids(12), 3).shape == (1, 3)


@pytest.mark.parametrize(
    ("temperature", "words"),
    [
        ("llama4", "this model has none, so write it with layers=all"),
        ("log-n:trained=4:layers=nope", "this model has none"),
        ("yarn", "needs 'factor'"),
        ("yarn:factor=0.5", "at least 1, not 0.5"),
        ("llama4:floor=0:layers=all", "floor of at least 1"),
        ("llama4:layers=rope", "Input should be 'all', 'nope' or 'global'"),
    ],
)
def test_a_temperature_that_would_do_nothing_is_refused(temperature, words):
    with pytest.raises(SpecError, match=words):
        model("rope", layers=1, temperature=temperature)
