"""`doctor`: healthy models are called healthy, and each planted fault is named."""

import pytest
import torch
from typer.testing import CliRunner

import lengthwise as lw
from lengthwise.cli import app
from lengthwise.foreign.calls import Probe
from lengthwise.foreign.doctor import first_difference
from lengthwise.foreign.identify import identify
from lengthwise.foreign.requested import compare_with_configuration
from lengthwise.foreign.toggles import NOT_OFFERED, RIGHT, WRONG, check_start_tokens, check_toggles
from lengthwise.spec import SpecError
from tests.foreign.faults import FAULTS
from tests.foreign.zoo import ZOO, build, marked

pytest.importorskip("transformers")
QUICK = {"gpt2"}
KNOWN = {"falcon": "attention backend"}
"""Deviations of transformers 5.23.0: Falcon adds ALiBi twice in eager attention, once in sdpa."""


@pytest.mark.parametrize("name", marked(ZOO, QUICK))
def test_a_healthy_model_is_called_healthy(name, figure):
    """No false alarm on any architecture, with the configuration compared too."""
    found = lw.doctor(build(name))
    figure(f"{name}: largest change {max(one.change or 0.0 for one in found.measurement.toggles):.1e}")
    if name in KNOWN:
        assert [one.name for one in found.measurement.toggles if one.answer == WRONG] == [KNOWN[name]]
        assert not found.measurement.mismatches
    else:
        assert found.healthy, str(found)
        assert "No fault was found" in str(found)


PLANTED = [
    pytest.param(fault, name, marks=() if name in QUICK else pytest.mark.evidence if number else pytest.mark.slow)
    for fault, (_, names, _) in FAULTS.items()
    for number, name in enumerate(names)
]
"""CI plants each fault in one architecture; the others are evidence."""


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_a_planted_fault_is_named(fault, name, figure):
    plant, _, says = FAULTS[fault]
    model, reference = plant(name)
    found = lw.doctor(model, against=reference)
    figure(f"{fault}, {name}: {found.parting.sentence() if found.parting else found.measurement.faults[0]}")
    assert not found.healthy
    if reference is None:
        assert found.measurement.faults[0].startswith(says)
    else:
        assert found.parting is not None
        assert found.parting.quantity == says


def test_every_fault_is_planted_into_three_architectures():
    assert all(len(names) >= 3 for _, names, _ in FAULTS.values())


def test_a_model_equals_itself():
    assert first_difference(build("llama"), build("llama")) is None
    assert lw.doctor(build("gpt2"), against=build("gpt2")).healthy


@pytest.mark.parametrize(
    ("change", "layer", "quantity", "position"),
    [
        (lambda model: model.model.embed_tokens.weight.data.mul_(1.1), None, "embeddings", 0),
        (lambda model: model.model.layers[2].self_attn.k_proj.weight.data.mul_(1.1), 2, "queries and keys", 0),
        (lambda model: model.model.layers[1].self_attn.v_proj.weight.data.mul_(1.1), 1, "output", 0),
        (lambda model: model.model.layers[3].mlp.up_proj.weight.data.mul_(1.1), 3, "outside attention", 0),
        (lambda model: model.model.rotary_emb.inv_freq[-1].mul_(4), 0, "angles", None),
        (lambda model: setattr(model.model.layers[3].self_attn, "use_rope", 1), 3, "angles", 1),
    ],
)
def test_the_first_difference_of_two_implementations_is_named(change, layer, quantity, position):
    port, reference = build("smollm3"), build("smollm3")
    with torch.no_grad():
        change(port)
    found = first_difference(port, reference)
    assert found is not None
    assert (found.layer, found.quantity) == (layer, quantity)
    assert position is None or found.position == position


def test_a_mask_and_a_bias_that_differ_are_named():
    wider = build("mistral", sliding_window=9)
    found = first_difference(wider, build("mistral"))
    assert found is not None
    assert (found.layer, found.quantity, found.position) == (0, "mask", 8)
    assert found.detail == "sees 9 keys, the reference 8"
    steeper = build("mpt")
    steeper.transformer.build_mpt_alibi_tensor = lambda *a, **k: (
        2 * build("mpt").transformer.build_mpt_alibi_tensor(*a, **k)
    )
    assert (first_difference(steeper, build("mpt")) or pytest.fail("no difference")).quantity == "bias"
    assert (first_difference(build("gpt-oss"), _without_sinks()) or pytest.fail("no difference")).quantity == "sink"


def _without_sinks():
    model = build("gpt-oss")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(3.0)
    return model


def test_two_different_models_are_refused():
    with pytest.raises(SpecError, match="4 and 6 attention layers"):
        first_difference(build("llama"), build("gemma3"))


@pytest.mark.slow
def test_temperatures_that_count_padding_are_found(figure):
    """Deviations of transformers 5.23.0: Inkling and Llama 4 count padding in their temperatures."""
    inkling = build("inkling", log_scaling_n_floor=4, log_scaling_alpha=0.5, layer_types=["hybrid"] * 2)
    for name, model in (("inkling", inkling), ("llama4", build("llama4", floor_scale=4, attn_scale=0.5))):
        found = {one.name: one for one in check_toggles(Probe.of(model))}
        figure(f"{name} with a low floor: {found['left padding'].sentence()}")
        assert found["left padding"].answer == WRONG, "mended: take this deviation out of docs/reference/measure.md"


def test_a_cast_of_all_buffers_is_a_mismatch():
    """`model.to(bfloat16).float()` leaves frequencies that were rounded."""
    model = build("llama").to(torch.bfloat16).float()
    found = compare_with_configuration(identify(model), model)
    assert [one.what for one in found] == ["frequencies"]


def test_what_a_model_does_not_offer_is_no_fault():
    found = {one.name: one for one in check_toggles(Probe.of(build("bloom")))}
    assert found["attention backend"].answer == found["packed documents"].answer == NOT_OFFERED
    assert "refuses sdpa" in found["attention backend"].case


def test_beginning_tokens_are_counted():
    class Tokenizer:
        bos_token_id, count = 1, 1

        def __call__(self, text: str, verbose: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [1] * self.count + [5, 6]}

    tokenizer = Tokenizer()
    assert check_start_tokens(tokenizer).answer == RIGHT
    tokenizer.count = 3
    assert check_start_tokens(tokenizer).sentence().startswith("start tokens: 3 beginning tokens before a text.")
    tokenizer.bos_token_id = None
    assert check_start_tokens(tokenizer).answer == NOT_OFFERED


def test_the_model_is_left_as_it_was():
    model = build("llama").train()
    ids = torch.arange(3, 20)[None]
    before, kind = model.eval()(ids).logits, model.config._attn_implementation
    model.train()
    lw.doctor(model)
    assert model.training
    assert model.config._attn_implementation == kind
    assert torch.equal(model.eval()(ids).logits, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Wrapper(torch.nn.Module):
    """A port in a module of its own."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, input_ids=None, **inputs):
        return self.inside(input_ids, **inputs)


class Bare(Wrapper):
    def forward(self, ids):
        return self.inside(ids).logits


class WithoutLogits(Wrapper):
    def forward(self, ids, use_cache=False):
        return self.inside(ids).logits


class Narrow(Wrapper):
    def forward(self, ids, use_cache=False):
        return self.inside(ids)


@pytest.mark.parametrize(("port", "says"), [(Bare, "has no use_cache"), (WithoutLogits, "without .logits")])
def test_a_port_that_is_called_otherwise_is_told_how_it_is_called(port, says):
    with pytest.raises(SpecError, match=f"{says}.*forward\\(input_ids, attention_mask"):
        lw.doctor(port(build("llama")))


def test_a_wrapper_is_checked_as_what_is_in_it_and_few_checks_are_no_clean_bill():
    whole = lw.doctor(Wrapper(build("llama")))
    answers = {one.name: one.answer for one in whole.measurement.toggles}
    assert {answers[name] for name in ("left padding", "cache", "packed documents", "shift")} == {RIGHT}
    narrow = str(lw.doctor(Narrow(build("llama"))))
    assert "No fault was found, but only" in narrow and "it is the model" not in narrow


def test_models_that_differ_in_their_configurations_alone_are_told_so():
    one = build("llama")
    config = type(one.config).from_dict(one.config.to_dict())
    config.rope_parameters = {**config.rope_parameters, "rope_theta": 500_000.0}
    other = type(one)(config).eval()
    other.load_state_dict(one.state_dict())
    found = lw.doctor(other, against=one)
    assert not found.healthy and "rope_parameters.rope_theta: 500000.0, in the reference" in str(found)
    assert "The code around this model is wrong" not in str(found)


def test_a_fault_in_memory_is_not_also_blamed_on_saving():
    (port := build("smollm3")).model.layers[3].self_attn.use_rope = 1
    told = [fault for fault in lw.doctor(port).measurement.faults if fault.startswith("save and reload")]
    assert len(told) == 1 and "follows from the line above" in told[0] and "48892" not in told[0]


@pytest.mark.slow
def test_doctor_from_the_command_line(tmp_path):
    build("smollm3").save_pretrained(tmp_path / "model")
    (other := build("smollm3")).model.layers[3].self_attn.k_proj.weight.data.mul_(2)
    other.save_pretrained(tmp_path / "other")
    told = CliRunner().invoke(app, ["doctor", str(tmp_path / "model")], catch_exceptions=False)
    assert told.exit_code == 0 and "No fault was found in the code around this model" in told.stdout
    asked = ["doctor", str(tmp_path / "model"), "--against", str(tmp_path / "other")]
    told = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert told.exit_code == 1 and "They first differ in layer 3: queries and keys, from position 0 on" in told.stdout


def test_a_model_that_counts_positions_from_a_wrong_place_is_named():
    """Planted: queries are at positions that are counted modulo 32, keys too, so a shift moves the seam."""
    model = build("llama")
    rotary = type(model.model.rotary_emb).forward
    model.model.rotary_emb.forward = lambda x, position_ids: rotary(model.model.rotary_emb, x, position_ids % 32)
    found = {one.name: one for one in check_toggles(Probe.of(model), relative=True)}
    assert found["shift"].sentence().startswith("shift: all positions shifted by 1: logits change by")
    healthy = {one.name: one for one in check_toggles(Probe.of(build("llama")), relative=True)}
    assert healthy["shift"].answer == RIGHT
    assert {one.name: one for one in check_toggles(Probe.of(build("gpt2")))}["shift"].answer == NOT_OFFERED


def _steep(model):
    real = model.transformer.build_mpt_alibi_tensor
    model.transformer.build_mpt_alibi_tensor = lambda *args, **options: 2 * real(*args, **options)


def _one_sink_less(model):
    from transformers.models.llama.modeling_llama import eager_attention_forward

    attention = model.model.layers[1].self_attn
    real, names = attention.forward, type(attention).forward.__globals__

    def forward(*args, **options):
        before, names["eager_attention_forward"] = names["eager_attention_forward"], eager_attention_forward
        try:
            return real(*args, **options)
        finally:
            names["eager_attention_forward"] = before

    attention.forward = forward


def _row_zero(model):
    real = model.transformer.wpe.forward
    model.transformer.wpe.forward = lambda places: real(torch.zeros_like(places))


def _stale(model):
    """After a long text, frequencies stay slower."""
    rotary = model.model.rotary_emb
    real = rotary.forward

    def forward(x, position_ids):
        if int(position_ids.max()) > 1000:
            rotary.inv_freq.mul_(0.5)
        return real(x, position_ids)

    rotary.forward = forward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plant", "says"),
    [
        ("mpt", _steep, "slopes of layers 0-3: the configuration asks for 0.25 to 0.00391, in force is 0.5"),
        ("gpt-oss", _one_sink_less, "parameters: model.layers.1.self_attn.sinks changes nothing"),
        ("gpt2", _row_zero, "positions: transformer.wpe changes nothing with the position"),
        ("llama", _stale, "call history: after a call at position 100,000"),
    ],
)
def test_a_fault_that_a_reviewer_planted_is_named(name, plant, says):
    model = build(name)
    plant(model)
    assert any(one.startswith(says) for one in lw.doctor(model).measurement.faults)


@pytest.mark.slow
def test_a_lost_temperature_is_named(monkeypatch):
    from transformers.models.ministral3 import modeling_ministral3

    real = modeling_ministral3.get_llama_4_attn_scale
    monkeypatch.setattr(modeling_ministral3, "get_llama_4_attn_scale", lambda *args: torch.ones_like(real(*args)))
    found = lw.doctor(build("ministral3")).measurement.faults
    assert found[0].startswith("temperature of layers 0-3: the configuration asks for up to × 1.248")


def test_an_encoder_is_told_from_a_decoder():
    import transformers

    config = transformers.BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(SpecError, match="attention is not causal"):
        identify(transformers.BertForMaskedLM(config).eval())


def test_a_model_without_gradients_is_diagnosed():
    model = build("gpt2").requires_grad_(False)
    with torch.no_grad():
        assert not compare_with_configuration(identify(model), model)
    assert not any(one.requires_grad for one in model.parameters())
