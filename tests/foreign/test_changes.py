"""Changes of a model at test time do what they say, are read back from behaviour, and leave no trace."""

import math

import pytest
import torch
from torch import nn

from lengthwise.foreign import changes
from lengthwise.foreign.changes import changed, compare_changes, scaled_frequencies
from lengthwise.foreign.identify import identify
from lengthwise.foreign.recorder import record_attention
from lengthwise.spec import SpecError
from tests.foreign.zoo import VOCABULARY, ZOO, build, marked

IDS = torch.randint(3, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
CHANGED = ("none", "log_n")
SPECS = ("linear:factor=4", "ntk:factor=4", "yarn:factor=4", "log_n", "drop_rope:layers=[1,3]")


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(IDS, use_cache=False).logits


def state(model) -> dict:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


# --- what they do ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["eager", pytest.param("sdpa", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scalings_equal_those_of_transformers(kind, attention):
    """The same weights, loaded with the scaling in their configuration."""
    model, reference = build("llama", attention), build(f"llama, {kind}", attention)
    with changed(model, f"{kind}:factor=4", 64):
        assert torch.allclose(logits(model), logits(reference), atol=2e-4)
    assert not torch.allclose(logits(model), logits(reference), atol=0.1)


def test_ntk_is_rope_with_a_larger_theta():
    model = build("llama")
    theta = 1e4 * 4 ** (16 / 14)
    reference = build("llama", rope_parameters={"rope_type": "default", "rope_theta": theta})
    with changed(model, "ntk:factor=4", 64):
        assert torch.allclose(logits(model), logits(reference), atol=2e-4)


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])
def test_frequencies_equal_those_of_our_own_scalings(kind):
    from lengthwise.encoding.scaling import build_scaling

    for theta, pairs, trained in ((1e4, 8, 64), (5e5, 64, 2048), (100.0, 4, 512)):
        plain_F = theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        options = {"factor": 8.0, "slow": None, "fast": None, "attention_factor": None, "length": "budget"}
        given = trained if kind == "yarn" else None
        ours = build_scaling(kind, theta=theta, pairs=pairs, trained=given, **options)
        found = scaled_frequencies(kind, plain_F, 8.0, trained)
        assert torch.allclose(found, ours.frequencies(plain_F, 8.0), rtol=1e-9)


def test_lanes_that_never_turn_stay_and_too_few_are_told():
    padded = torch.tensor([1.0, 0.1, 0.0, 0.0])
    assert scaled_frequencies("ntk", padded, 4.0, 64).tolist() == pytest.approx([1.0, 0.025, 0.0, 0.0])
    with pytest.raises(SpecError, match="ntk needs at least two pairs of lanes that turn, here there is 1"):
        scaled_frequencies("ntk", torch.tensor([1.0]), 4.0, 64)
    with pytest.raises(SpecError, match="in 4 tokens no pair turns once"):
        scaled_frequencies("yarn", 1e4 ** -(torch.arange(64) / 64), 4.0, 4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_log_n_sharpens_attention_from_the_trained_length_on(attention):
    model = build("llama", attention)
    before = record_attention(model, IDS)[0].scores_BHQK
    with changed(model, "log_n", 16):
        after = record_attention(model, IDS)[0].scores_BHQK
    seen_QK = torch.ones(40, 40).tril().bool()
    ratio_QK = (after / before)[0, 0].where(seen_QK, 1.0)
    for n in (1, 8, 16, 17, 32, 40):
        wanted = max(1.0, math.log(n) / math.log(16))
        assert ratio_QK[n - 1, :n].tolist() == pytest.approx([wanted] * n, rel=1e-3)


def test_log_n_counts_the_tokens_of_a_cache():
    model = build("llama")
    with changed(model, "log_n", 8), torch.no_grad():
        whole = model(IDS, use_cache=False).logits
        first = model(IDS[:, :30], use_cache=True)
        rest = model(IDS[:, 30:], past_key_values=first.past_key_values, use_cache=True).logits
    assert torch.allclose(rest, whole[:, 30:], atol=1e-4)


def test_log_n_leaves_biases_alone():
    model = build("bloom")
    slopes = identify(model).layers[0].slopes
    with changed(model, "log_n", 8):
        assert identify(model).layers[0].temperature > 1.5
        calls = record_attention(model, IDS)
        scores, products = calls[0].scores_BHQK[0, 0, 39], calls[0].products_BHQK[0, 0, 39] / 4
        bias = scores - products
    assert (bias[39] - bias[0]) / 39 == pytest.approx(slopes[0], rel=1e-3)


def test_rope_is_dropped_in_the_chosen_layers_alone():
    model = build("llama")
    with changed(model, "drop_rope:layers=1,3", 64):
        assert [layer.name for layer in identify(model).layers] == ["rope", "nope", "rope", "nope"]


# --- they leave no trace ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_a_changed_model_is_restored_exactly_also_after_an_exception(spec):
    model = build("llama")
    before, buffers, plain = logits(model), state(model), vars(model.model.rotary_emb).copy()

    def fail() -> None:
        assert not torch.allclose(logits(model), before, atol=1e-3)
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"), changed(model, spec, 16):
        fail()
    assert logits(model).equal(before)
    assert all(buffer.equal(buffers[name]) for name, buffer in model.named_buffers())
    assert model.model.rotary_emb.attention_scaling == plain["attention_scaling"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_exception_in_the_forward_pass_leaves_no_mode_behind():
    model = build("llama")
    before = logits(model)
    with pytest.raises(IndexError), changed(model, "log_n", 16):
        model(torch.full((1, 20), VOCABULARY + 5))
    broken = model.model.layers[2].self_attn.o_proj
    hook = broken.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(ValueError("broken")))
    with changed_despite(model), pytest.raises(ValueError, match="broken"):
        model(IDS)
    hook.remove()
    assert logits(model).equal(before)
    assert torch._C._len_torch_function_stack() == 0


class changed_despite:
    """`log_n` on a model that is already broken, as its own checks would refuse it."""

    def __init__(self, model):
        from contextlib import ExitStack

        from lengthwise.foreign.temperature import _inside, _Scale

        self.stack = ExitStack()
        for layer in model.model.layers:
            _inside(layer.self_attn, lambda: _Scale(16, 0), self.stack)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


def test_a_refused_change_leaves_no_trace_either():
    """Reading a model with dynamic scaling moves its tables; they are put back."""
    model = build("llama, dynamic")
    before, buffers, table = logits(model), state(model), model.model.rotary_emb.max_seq_len_cached
    with pytest.raises(SpecError, match="layer 0 has a scaling that changes with the length already"):
        changed(model, "linear:factor=4", 64).__enter__()
    assert model.model.rotary_emb.max_seq_len_cached == table
    assert all(buffer.equal(buffers[name]) for name, buffer in model.named_buffers())
    assert logits(model).equal(before)


# --- they are read back ----------------------------------------------------------------------------------------------


class Stubborn(nn.Module):
    """Angles from frequencies of its own; the buffer is there and is not used (a public fault of several ports)."""

    def __init__(self, rotary):
        super().__init__()
        self.rotary, self.own = rotary, rotary.inv_freq.clone()

    def forward(self, x, position_ids):
        kept = self.rotary.inv_freq
        self.rotary.inv_freq = self.own
        try:
            return self.rotary(x, position_ids)
        finally:
            self.rotary.inv_freq = kept


@pytest.mark.parametrize("spec", SPECS[:3])
def test_a_scaling_that_is_not_in_force_is_refused(spec):
    model = build("llama")
    model.model.rotary_emb = Stubborn(model.model.rotary_emb)
    before = logits(model)
    with pytest.raises(SpecError, match="did not take effect in layer 0"), changed(model, spec, 64):
        pass
    assert logits(model).equal(before)


def test_a_factor_that_is_lost_is_refused(monkeypatch):
    """Planted: frequencies are scaled, but cos and sin do not get YaRN's factor."""
    monkeypatch.setattr(changes, "log", lambda _: 4.0)  # asks for another factor than the one that is read back
    model = build("llama")
    model.model.rotary_emb.attention_scaling = torch.tensor(1.0)  # not a number, so it is not changed
    with pytest.raises(SpecError, match="did not take effect in layer 0"), changed(model, "yarn:factor=4", 64):
        pass


def test_log_n_that_is_not_in_force_is_refused(monkeypatch):
    from lengthwise.foreign import temperature

    monkeypatch.setattr(temperature, "_product_number", lambda *_: 5)  # another product than that of queries and keys
    with pytest.raises(SpecError, match=r"log_n did not take effect in model\.layers\.0\.self_attn"):
        changed(build("llama"), "log_n", 64).__enter__()


@pytest.mark.parametrize(
    ("name", "spec", "told"),
    [
        ("llama", "lineer:factor=4", "unknown change 'lineer'. Did you mean 'linear'"),
        ("llama", "linear", "change 'linear' needs 'factor'; write linear:factor=4"),
        ("llama", "linear:faktor=4", "change 'linear' has no option 'faktor'. Did you mean 'factor'"),
        ("llama", "log_n:factor=2", "change 'log_n' has no option 'factor'. It has none."),
        ("llama", "linear:factor=0.5", "factor says how many times longer texts are: a number above 1"),
        ("llama", "linear:factor=four", "factor says how many times longer texts are: a number above 1"),
        ("llama", "drop_rope", "change 'drop_rope' needs 'layers'; write drop_rope:layers=[3,7]"),
        ("llama", "drop_rope:layers=x", "layers are numbers from 0, e.g. layers=[3,7]"),
        ("llama", "drop_rope:layers=4", "there is no layer 4: this model has layers 0 to 3"),
        ("llama, linear", "yarn:factor=2", "layer 0 has linear by 4 already: load the model without it"),
        ("gpt2", "ntk:factor=2", "ntk has nothing to scale: no module of this model holds rotary frequencies"),
        ("gpt2", "drop_rope:layers=0", "layer 0 turns nothing already; layers that turn: none"),
        ("gpt-j", "drop_rope:layers=0", "cannot be dropped from outside, because its attention is given no position"),
    ],
)
def test_what_cannot_be_done_is_told_in_words(name, spec, told):
    import re

    with pytest.raises(SpecError, match=re.escape(told)):
        changed(build(name), spec, 64).__enter__()


@pytest.mark.parametrize("name", marked(ZOO))
def test_every_model_takes_a_change_or_refuses_it_and_is_restored(name, figure):
    model, taken = build(name), []
    before = logits(model)
    for spec in (*SPECS[:4], "drop_rope:layers=1"):
        try:
            with changed(model, spec, 16):
                assert not torch.allclose(logits(model), before, atol=1e-4)
                taken.append(spec)
        except SpecError:
            pass
        assert logits(model).equal(before)
    figure(f"{name}: takes {', '.join(taken) or 'none'}")
    assert "log_n" in taken


# --- before and after ------------------------------------------------------------------------------------------------


def test_changes_are_compared_on_the_same_targets_and_questions(monkeypatch):
    from lengthwise.foreign import reach

    monkeypatch.setattr(reach, "RECALL_TOKENS", 128)
    seen: dict[str, list[torch.Tensor]] = {}
    model, doing = build("llama"), []
    model.register_forward_pre_hook(lambda _, args: seen.setdefault(doing[-1], []).append(args[0]) if doing else None)
    ids = torch.randint(3, VOCABULARY, (300,), generator=torch.Generator().manual_seed(1))
    specs = ["log_n", "drop_rope:layers=9"]
    found = compare_changes(model, ids, [32, 56], specs, trained_length=32, say=doing.append)
    assert {row["change"] for row in found.rows} == {"none", "log_n"}
    assert "there is no layer 9" in found.refused["drop_rope:layers=9"] and "was not measured" in str(found)
    steps = [one.removeprefix("none: ") for one in doing if one.startswith("none: ")]
    assert len(steps) == 4
    for words in steps:  # calls of other lengths read a change back
        wanted, other = ([ids for ids in seen[f"{name}: {words}"] if ids.shape[1] in {32, 56}] for name in CHANGED)
        assert wanted and all(one.equal(two) for one, two in zip(wanted, other, strict=True))
    assert len({row["value"] for row in found.rows if row["measure"] == "perplexity" and row["length"] == 56}) == 2
    with pytest.raises(SpecError, match="unknown change 'pi'"):
        compare_changes(model, ids, [32], ["pi:factor=2"], trained_length=32)


@pytest.mark.slow
def test_the_figure_of_changes_names_each(tmp_path):
    from lengthwise.reporting.foreign_models import change_drawing

    ids = torch.randint(3, VOCABULARY, (300,), generator=torch.Generator().manual_seed(1))
    found = compare_changes(build("llama"), ids, [32, 64], ["linear:factor=2"], trained_length=32)
    drawing = change_drawing(found.rows, found.trained_length)
    drawing.write(tmp_path)
    assert "linear:factor=2" in drawing.svg() and drawing.alt.endswith("unchanged and with linear:factor=2.")
