"""Normalisers and temperatures: against independent implementations, on every path, and as files of one's own."""

import itertools
import math

import pytest
import torch

import lengthwise as lw
from lengthwise.conformance.reference import Triangle
from lengthwise.conformance.subject import relative_error
from lengthwise.encoding.base import Geometry
from lengthwise.model import Decoder, attention, preset
from lengthwise.model.config import TEMPERATURES
from lengthwise.model.taps import Recorder
from lengthwise.model.temperature import build_temperature
from lengthwise.normaliser import NORMALISERS, build_normaliser
from lengthwise.normaliser.entmax import Entmax
from lengthwise.run.identity import Plan
from lengthwise.spec import SpecError

GEOMETRY = Geometry(width=32, heads=4, head_width=8)
SOME = [*NORMALISERS, "entmax:alpha=1.3", "entmax:alpha=2.0", "stick_breaking:remainder=true"]


def scores(keys: int = 12, queries: int | None = None, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(2, 4, queries or keys, keys, dtype=torch.float64, generator=generator)


def model(encoding: str = "nope", **changes) -> Decoder:
    config = preset("laptop", vocabulary=17, layers=2, width=32, heads=4, head_width=8, sigma=0.3, **changes)
    decoder = Decoder(config, encoding).double().eval()
    for name, parameter in decoder.named_parameters():
        if ".normaliser." in name or ".temperature." in name:
            generator = torch.Generator().manual_seed(len(name))
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return decoder


def ids(tokens: int, rows: int = 2) -> torch.Tensor:
    return torch.randint(17, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


# --- against implementations that are not ours -----------------------------------------------------------------------


def test_a_sink_is_that_of_gpt_oss(figure):
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    module = torch.nn.Module()
    module.sinks, module.num_key_value_groups, module.training = torch.randn(4, dtype=torch.float64), 1, False
    q, k, v = (torch.randn(2, 4, 12, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.zeros(1, 1, 12, 12, dtype=torch.float64).masked_fill(torch.ones(12, 12).triu(1) > 0, -torch.inf)
    _, wanted = gpt_oss.eager_attention_forward(module, q, k, v, mask, scaling=8**-0.5)
    ours = build_normaliser("sink", GEOMETRY).double()
    with torch.no_grad():
        ours.sink_H.copy_(module.sinks)
        got = ours.weigh(q @ k.mT * 8**-0.5 + mask, Triangle(12))
    figure(f"sink against transformers' gpt-oss: largest difference {float((got - wanted).abs().max()):.1e}")
    assert torch.allclose(got, wanted, atol=1e-12)


def test_temperatures_are_those_of_the_published_models(figure):
    pytest.importorskip("transformers")
    from transformers.models.beam.modeling_beam import compute_attention_scaling
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    positions = torch.tensor([[0, 1, 2046, 2047, 2048, 16383, 16384, 100_000]])
    n = positions.double() + 1
    beam = compute_attention_scaling(positions).flatten().double()
    ministral = get_llama_4_attn_scale(positions, 0.1, 16384).flatten().double()
    for name, wanted in (("beam", beam), ("ministral", ministral)):
        got = build_temperature(name, GEOMETRY).factor(n, n).flatten()
        figure(f"{name} against transformers: largest difference {float((got - wanted).abs().max()):.1e}")
        assert torch.allclose(got, wanted, atol=1e-6)


def test_inklings_layer_is_that_of_transformers(figure):
    """A whole attention layer: bias, extent, and the temperature on both products and bias."""
    pytest.importorskip("transformers")
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits, eager_attention_forward

    decoder = model("inkling:extent=5:rank=3", temperature="inkling:floor=4:scale=0.7", attention_scale=0.3)
    part, layer = decoder.encodings[0], decoder.layers[0].attention
    theirs = InklingRelativeLogits(3, 5).double()
    x = torch.randn(2, 11, 32, dtype=torch.float64)
    with torch.no_grad():
        part.profiles.copy_(torch.randn(3, 5))
        part.mix.copy_(torch.randn(12, 32))
        theirs.proj.copy_(part.profiles)
        places = torch.arange(11)
        relative = (x @ part.mix.T).view(2, 11, 4, 3)
        tau = (1 + 0.7 * torch.log(((places + 1.0) / 4).clamp(min=1))).double().view(1, 1, -1, 1)
        bias = theirs(relative, places, places) * tau
        q, k, v = (layer._split(one(x)) for one in (layer.q, layer.k, layer.v))
        mask = torch.zeros(1, 1, 11, 11, dtype=torch.float64).masked_fill(torch.ones(11, 11).triu(1) > 0, -torch.inf)
        module = torch.nn.Module()
        module.num_key_value_groups = 1
        _, wanted = eager_attention_forward(module, q * tau, k, v, mask, 0.3, position_bias=bias)
        seen = Recorder()
        taps = {"layers.0.weights": seen, "embeddings": lambda _, __: x}
        decoder.layers[0].attention_norm = torch.nn.Identity()
        decoder(ids(11), taps=taps)
    difference = float((seen["layers.0.weights"] - wanted).abs().max())
    figure(f"Inkling's weights against transformers: largest difference {difference:.1e}")
    assert difference < 1e-6


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 1.9, 2.0, 3.0])
def test_entmax_has_the_gradient_of_its_weights(alpha):
    ours = Entmax(GEOMETRY, alpha=alpha)
    given = scores(7)[:1, :2].masked_fill(torch.ones(7, 7).triu(1) > 0, -30.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: ours.weigh(s, Triangle(7)), given, eps=1e-7, atol=1e-5)


def test_entmax_goes_to_softmax_as_alpha_goes_to_one(figure):
    given = scores()
    soft = given.softmax(-1)
    far = {a: float((Entmax(GEOMETRY, alpha=a).weigh(given, Triangle(12)) - soft).abs().max()) for a in (1.01, 1.001)}
    figure(f"entmax's distance from softmax: {far[1.01]:.1e} at 1.01, {far[1.001]:.1e} at 1.001")
    assert 5 < far[1.01] / far[1.001] < 20 and far[1.01] < 5e-2
    assert torch.equal(Entmax(GEOMETRY, alpha=1.0).weigh(given, Triangle(12)), soft)
    assert bool((Entmax(GEOMETRY).weigh(given, Triangle(12)) == 0).any()), "it has exact zeros"


@pytest.mark.parametrize("name", SOME)
def test_rows_without_keys_are_zero_and_so_are_their_gradients(name):
    ours = build_normaliser(name, GEOMETRY).double()
    ours.initialize(lambda _: torch.Generator())
    given = torch.full((1, 4, 3, 3), -torch.inf, dtype=torch.float64)
    given[:, :, 2] = torch.tensor([1.0, 2.0, 3.0])
    given.requires_grad_()
    weights = ours.weigh(given, Triangle(3, may_be_empty=True))
    weights.square().sum().backward()
    assert bool((weights[:, :, :2] == 0).all()) and float(weights[:, :, 2].sum()) > 0
    assert bool(given.grad.isfinite().all())


# --- on every path ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize(("name", "encoding"), itertools.product(SOME, ["nope", "alibi", "rope", "t5"]))
@torch.no_grad()
def test_every_path_gives_the_same(name, encoding, backend):
    if backend == "flex" and name.startswith(("entmax", "stick")):
        with pytest.raises(SpecError, match="attention=flex has softmax, with or without a sink, not"):
            model(encoding, normaliser=name, attention=backend)
        return
    decoder = model(encoding, normaliser=name)
    tokens = ids(30)
    for given in ({}, {"lengths": [30, 17]}, {"lengths": [30, 17], "padding": "left"}, {"documents": [[9, 20], [30]]}):
        decoder.backend = "dense"
        wanted = decoder(tokens, **given)
        decoder.backend = backend
        got = decoder(tokens, **given)
        real = torch.ones(2, 30, dtype=torch.bool)
        if "lengths" in given:
            real[1] = torch.arange(30) >= 13 if given.get("padding") else torch.arange(30) < 17
        real[0] = real[0] & (torch.arange(30) < 29) if "documents" in given else real[0]
        assert relative_error(got[real], wanted[real]) < 1e-9


@torch.no_grad()
def test_a_bias_is_never_computed_up_to_a_constant_where_constants_matter(figure, monkeypatch):
    tokens = ids(1024, rows=1)
    mass = {}
    for name in ("exact", "columns"):
        decoder = model("alibi", normaliser="sink").float()
        for layer in decoder.layers:
            layer.attention.normaliser.sink_H.fill_(0.0)
            if name == "columns":
                layer.attention.normaliser.shift_invariant = True  # the planted bug
        decoder.layers[0].attention.v.weight.zero_()
        ones = Recorder()
        taps = {"layers.0.heads": ones}
        values = decoder.layers[0].attention.v
        monkeypatch.setattr(values, "forward", lambda x: torch.ones(*x.shape[:-1], 32))
        decoder(tokens, taps=taps)
        mass[name] = float(ones["layers.0.heads"][..., 0].mean())
    figure(
        f"weight on keys at 1,024 tokens with a sink: {mass['exact']:.2f}, with ALiBi's columns {mass['columns']:.2f}"
    )
    assert abs(mass["exact"] - mass["columns"]) > 0.1


@pytest.mark.parametrize(
    "name", ["ssmax", "asentmax", "inkling:floor=3", "log-n:trained=4", "log-n:trained=4:bias=true"]
)
@pytest.mark.parametrize("encoding", ["nope", "nape", "inkling", "alibi"])
@torch.no_grad()
def test_n_counts_the_tokens_of_the_querys_own_document(name, encoding):
    if name == "asentmax" and encoding not in {"nope", "nape"}:
        with pytest.raises(SpecError, match=r"heads without positions .* so write it with heads=all"):
            model(encoding, temperature=name)
        return
    decoder = model(encoding, temperature=name)
    tokens = ids(12, rows=1)
    alone = decoder(tokens)
    padded = decoder(torch.cat([tokens[:, :5] * 0, tokens], 1), lengths=[12], padding="left")[:, 5:]
    packed = decoder(torch.cat([ids(7, rows=1), tokens], 1), documents=[[7, 12]])[:, 7:]
    cache = decoder.cache(12)
    steps = torch.cat([decoder(tokens[:, t : t + 1], cache=cache) for t in range(12)], 1)
    for got in (padded, packed, steps):
        assert relative_error(got, alone) < 1e-9
    if encoding == "nope":  # positions matter to nothing, so only the count is left
        given = decoder(tokens, positions_BT=torch.arange(12)[None] * 50 + 3)
        assert relative_error(given, alone) < 1e-9
        assert relative_error(model(encoding)(tokens), alone) > 1e-3


@torch.no_grad()
def test_asentmax_acts_in_heads_without_positions_alone():
    decoder, tokens = model("nape", temperature="asentmax"), ids(9, rows=1)
    plain = model("nape")
    plain.load_state_dict(decoder.state_dict(), strict=False)
    seen, wanted = Recorder(), Recorder()
    decoder(tokens, taps={"layers.0.weights": seen})
    plain(tokens, taps={"layers.0.weights": wanted})
    got, wanted = seen["layers.0.weights"], wanted["layers.0.weights"]
    assert torch.equal(got[:, :2], wanted[:, :2]) and float((got[:, 2:] - wanted[:, 2:]).abs().max()) > 1e-3


@torch.no_grad()
def test_blocks_of_queries_and_dropout_keep_the_normaliser_and_the_temperature(monkeypatch):
    decoder, tokens = model("inkling", normaliser="entmax", temperature="inkling:floor=3"), ids(50)
    wanted = decoder(tokens)
    monkeypatch.setattr(attention, "AT_ONCE", 2 * 4 * 50 * 20)
    assert relative_error(decoder(tokens), wanted) < 1e-9


# --- as a user meets them --------------------------------------------------------------------------------------------


def test_an_encoding_that_weighs_goes_without_another_normaliser():
    with pytest.raises(
        SpecError, match="'stick_breaking' computes weights itself, so it goes without normaliser 'sink'"
    ):
        model("stick_breaking", normaliser="sink")
    old, new = model("stick_breaking"), model("nope", normaliser="stick_breaking")
    assert torch.equal(old(ids(9)), new(ids(9)))


@pytest.mark.parametrize("name", [name for name in TEMPERATURES if name != "constant"])
def test_every_temperature_is_built_by_name_and_changes_something(name):
    given = {"log-n": "log-n:trained=4", "yarn": "yarn:factor=4", "inkling": "inkling:floor=2"}.get(name, name)
    given += ":floor=2" if name in {"llama4", "ministral", "beam"} else ""
    decoder = model("nope", temperature=given)
    plain = model("nope")
    plain.load_state_dict(decoder.state_dict(), strict=False)
    assert relative_error(decoder(ids(9)), plain(ids(9))) > 1e-4


OWN = """
import torch
from lengthwise.model.temperature import AttentionTemperature
from lengthwise.normaliser.base import Normaliser


class Top(Normaliser):
    def weigh(self, scores_BHQK, visible):
        kept = scores_BHQK >= scores_BHQK.topk(min(2, scores_BHQK.shape[-1])).values[..., -1:]
        return scores_BHQK.masked_fill(~kept, -torch.inf).softmax(-1)


class Root(AttentionTemperature):
    def factor(self, n_BQ, x_BQD):
        return n_BQ.sqrt()[:, None, :, None]
"""


@pytest.mark.slow
def test_files_of_ones_own_work_wherever_a_name_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    small = "laptop:width=16:heads=2:head_width=8:layers=1"
    named = f"{small}:normaliser=[own.py:Top]:temperature=[own.py:Root]"
    run = lw.train("sort:longest=4", "nope", model=named, steps=2, quiet=True)
    assert run.decoder().config.normaliser == "own.py:Top"
    first = Plan.of("sort:longest=4", "nope", model=named).id
    (tmp_path / "own.py").write_text(OWN.replace("min(2,", "min(3,"))
    assert Plan.of("sort:longest=4", "nope", model=named).id != first, "its source is part of a run's identity"
    assert lw.verify("nope", temperature="own.py:Root", only=["T01", "T11", "N03"]).passed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"normaliser": "sinc"}, "unknown normaliser 'sinc'. Did you mean 'sink'"),
        ({"normaliser": "entmax:alpha=9.0"}, "from 1.001 to 4, not 9.0"),
        ({"temperature": "ssmix"}, "unknown temperature 'ssmix'. Did you mean 'ssmax'"),
        ({"temperature": "log-n"}, "needs 'trained'"),
        ({"temperature": "asentmax"}, "so write it with heads=all"),
    ],
)
def test_verify_tells_a_mistake_in_a_name_at_once(given, words):
    with pytest.raises(SpecError, match=words):
        lw.verify("rope", **given)


def test_a_name_with_options_stands_in_brackets():
    config = preset("laptop:temperature=[log-n:trained=16]:normaliser=[entmax:alpha=1.3]", vocabulary=4)
    assert (config.temperature, config.normaliser) == ("log-n:trained=16", "entmax:alpha=1.3")
    assert math.isclose(Decoder(config).layers[0].attention.normaliser.alpha, 1.3)
    with pytest.raises(SpecError, match=r"unknown normaliser 'softmix'. Did you mean 'softmax'"):
        model(normaliser="softmix")


def test_a_temperature_has_no_idle_parameters_that_ddp_would_wait_for():
    config = preset("laptop", vocabulary=17, layers=2, temperature="ssmax:layers=nope")
    decoder = Decoder(config, ["rope", "nope"])
    decoder(ids(9)).sum().backward()
    idle = [name for name, one in decoder.named_parameters() if one.requires_grad and one.grad is None]
    assert (
        not idle
        and decoder.parameter_count()
        == Decoder(config.model_copy(update={"temperature": "constant"}), ["rope", "nope"]).parameter_count() + 4
    )


@pytest.mark.parametrize(
    ("encoding", "changes", "words"),
    [
        ("selective_rope:rank=0", {}, "a rank of at least 1"),
        ("selective_rope:theta=0.0", {}, "a theta above 0"),
        ("path:rank=0", {}, "a rank of at least 1"),
        ("dape:hidden=0", {}, "at least one hidden unit"),
        ("pope:theta=-2.0", {}, "a theta above 0"),
        ("nope", {"temperature": "ssmax:shift=-1"}, "it is not negative"),
        ("nope", {"temperature": "inkling:floor=2:scale=-3.0"}, "a scale from 0"),
        ("nope", {"normaliser": "entmax:alpha=1.0001"}, "from 1.001 to 4"),
    ],
)
def test_options_that_would_give_nan_or_nothing_are_refused(encoding, changes, words):
    with pytest.raises(SpecError, match=words):
        model(encoding, **changes)


def test_where_a_temperature_counted_positions_a_run_is_another_run_now():
    given = {"model": "laptop:temperature=[log-n:trained=8]"}
    plain = Plan.of("copy:variant=same", "nope", **given).identity()
    moved = Plan.of("copy:variant=same", "nope", positions="randomized", **given).identity()
    assert "temperature_version" not in plain and moved["temperature_version"] == 2


def test_an_exported_model_refuses_a_normaliser_that_has_changed(tmp_path, monkeypatch):
    hf = pytest.importorskip("lengthwise.hf", reason="needs the extra `hf`")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    decoder = Decoder(preset("laptop", vocabulary=17, normaliser="own.py:Top"), "nope")
    hf.LengthwiseForCausalLM.from_decoder(decoder).save_pretrained(tmp_path / "saved")
    with pytest.warns(UserWarning, match="runs code from outside the package"):
        loaded = hf.LengthwiseForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert torch.equal(loaded(ids(9)).logits, decoder.eval()(ids(9)))
    (tmp_path / "own.py").write_text(OWN.replace("min(2,", "min(3,"))
    with pytest.raises(SpecError, match=r"the file of 'own.py:Top' has changed since this model was saved"):
        hf.LengthwiseForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
