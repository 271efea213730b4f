"""The positional encoding of each layer of other people's models is found from behaviour alone."""

import json

import pytest
import torch
from typer.testing import CliRunner

import lengthwise as lw
from lengthwise.cli import app
from lengthwise.foreign.identify import LayerEncoding, identify
from lengthwise.foreign.recorder import attention_modules, record_attention
from lengthwise.spec import SpecError
from tests.foreign.zoo import ALIBI, VOCABULARY, ZOO, Layer, build

QUICK = {"llama", "bloom", "gpt2"}


def agrees(found: LayerEncoding, wanted: Layer) -> None:
    turned = found.rotation
    assert (turned is None) == (wanted.theta is None)
    if turned is not None:
        assert turned.theta == pytest.approx(wanted.theta, rel=0.02)
        assert turned.share == pytest.approx(wanted.share) and turned.layout == wanted.layout
        assert turned.scaling == wanted.scaling and turned.changes_with_length == wanted.changes_with_length
        assert turned.factor == (None if wanted.factor is None else pytest.approx(wanted.factor, rel=1e-3))
    assert found.bias == wanted.bias and found.slopes == pytest.approx(wanted.slopes, rel=1e-2)
    assert (found.window, found.chunk, found.sink) == (wanted.window, wanted.chunk, wanted.sink)
    assert found.temperature == (None if wanted.temperature is None else pytest.approx(wanted.temperature, rel=1e-3))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ZOO])
def test_every_layer_is_what_its_source_says(name, figure):
    _, _, embedding, layers = ZOO[name]
    found = identify(build(name))
    assert found.embedding == embedding
    assert len(found.layers) == len(layers)
    for one, wanted in zip(found.layers, layers, strict=True):
        agrees(one, wanted)
    figure(f"{name}: {', '.join(dict.fromkeys(one.name for one in found.layers))} found in every layer")


def test_neither_names_nor_configurations_are_believed():
    model = build("llama")
    for module in model.modules():
        type(module).__name__, type(module).__qualname__ = "Thing", "Thing"
    model.config.rope_parameters = {"rope_type": "linear", "rope_theta": 7.0, "factor": 100.0}
    model.config.sliding_window = 3
    for layer in identify(model).layers:
        agrees(layer, Layer(1e4))


@pytest.mark.slow
def test_rotation_where_there_should_be_none_is_seen():
    """Planted: the NoPE layer of SmolLM3 turns its keys after all (a public fault of several ports)."""
    model = build("smollm3")
    model.model.layers[3].self_attn.use_rope = 1
    assert [layer.name for layer in identify(model).layers] == ["rope"] * 4


@pytest.mark.slow
def test_falcon_with_alibi_adds_its_bias_twice_in_eager_attention(figure):
    """A deviation of transformers 5.23.0: eager adds ALiBi to the scores and to the mask; sdpa adds it once."""
    import transformers

    def falcon(attention: str):
        config = transformers.FalconConfig(
            **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"alibi": True, "new_decoder_architecture": False, "multi_query": False},
        )
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()

    eager, sdpa = falcon("eager"), falcon("sdpa")
    sdpa.load_state_dict(eager.state_dict())
    slopes = identify(eager).layers[0].slopes
    once = [2**-2 / 4, 2**-4 / 4, 2**-6 / 4, 2**-8 / 4]  # divided by √16, the root of the head's width
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        difference = float((eager(ids).logits - sdpa(ids).logits).abs().max())
    told = ", ".join(f"{one:.4f}" for one in slopes)
    figure(f"falcon with ALiBi, eager: slopes {told}; logits differ from sdpa by {difference:.1e}")
    assert slopes == pytest.approx([2 * one for one in once], rel=1e-2), "mended: enter falcon into the zoo"
    assert difference > 1e-4


def test_a_model_in_bf16_is_refused():
    with pytest.raises(SpecError, match=r"model in torch\.bfloat16: convert it first, model\.float\(\)"):
        identify(build("llama").bfloat16())


class Silent(torch.nn.Module):
    """A model without attention."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids_BT, use_cache=False):
        return ids_BT


def test_a_model_whose_attention_is_not_seen_is_told():
    with pytest.raises(SpecError, match="no attention was seen in this model"):
        identify(Silent())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama, yarn", "mistral", "smollm3", "gemma4", "llama4", "gpt-neox", "olmo3"])
def test_the_fused_attention_of_torch_shows_the_same(name):
    for one, wanted in zip(identify(build(name, "sdpa")).layers, ZOO[name][3], strict=True):
        agrees(one, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "wanted"),
    [
        ("nope", Layer()),
        ("rope:theta=500.0", Layer(500.0)),
        ("rope:fraction=0.5:interleaved=true", Layer(1e4, share=0.5, layout="interleaved")),
        ("alibi", ALIBI),
    ],
)
def test_our_own_models_are_what_they_are_called(encoding, wanted):
    from lengthwise.hf import LengthwiseForCausalLM
    from lengthwise.model import Decoder, preset

    model = LengthwiseForCausalLM.from_decoder(Decoder(preset("laptop", vocabulary=20, layers=2), encoding)).eval()
    for layer in identify(model).layers:
        agrees(layer, wanted)


def test_a_folder_is_measured_from_the_command_line(tmp_path):
    build("smollm3").bfloat16().save_pretrained(tmp_path / "model")  # as most models are stored
    told = CliRunner().invoke(app, ["measure", str(tmp_path / "model")], catch_exceptions=False)
    assert told.exit_code == 0 and "Found by probing the model" in told.stdout
    lines = [line.split() for line in told.stdout.splitlines()]
    assert ["0-2", "rope", "2e+06", "100%", "half", "none", "all"] in lines and ["3", "nope", "all"] in lines
    plain = json.loads(CliRunner().invoke(app, ["measure", str(tmp_path / "model"), "--json"]).stdout)
    assert plain["layers"][3]["rotation"] is None and len(plain["layers"][0]["rotation"]["frequencies"]) == 8
    with pytest.raises(SpecError, match=r"has no config\.json"):
        lw.measure(tmp_path)
    with pytest.raises(SpecError, match="attention is eager or sdpa, not 'flex'"):
        lw.measure(tmp_path / "model", attention="flex")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(SpecError, match="cannot be loaded"):
        lw.measure(tmp_path / "model")


def test_the_recorder_leaves_no_trace():
    model = build("llama")
    ids_BT = torch.randint(3, VOCABULARY, (2, 9))
    with torch.no_grad():
        before = model(ids_BT).logits
    calls = record_attention(model, ids_BT, torch.randn(2, 9, 64), attention_modules(model))
    assert [call.module for call in calls] == [f"model.layers.{n}.self_attn" for n in range(4)]
    with torch.no_grad():
        assert model(ids_BT).logits.equal(before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_recorded_scores_give_the_weights_of_the_model():
    model = build("qwen3")
    ids_BT = torch.randint(3, VOCABULARY, (2, 9))
    calls = record_attention(model, ids_BT)
    with torch.no_grad():
        weights = model(ids_BT, output_attentions=True).attentions
    for call, wanted_BHQK in zip(calls, weights, strict=True):
        assert torch.allclose(call.scores_BHQK.softmax(-1), wanted_BHQK, atol=1e-6)
