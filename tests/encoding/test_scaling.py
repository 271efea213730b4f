"""RoPE's scalings: the identities each must keep, and `transformers`' own frequencies and attention factor."""

import math

import pytest
import torch

from lengthwise.conformance import assert_conforms, verify
from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Geometry
from lengthwise.encoding.rope import Rope
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.model import Decoder, preset
from lengthwise.model.decode import greedy
from lengthwise.spec import Spec, SpecError

WIDTH, TOKENS = 16, 40


def geometry(head_width: int = WIDTH, heads: int = 3) -> Geometry:
    return Geometry(width=48, heads=heads, head_width=head_width)


def frequencies(spec: str, *lengths: int, head_width: int = WIDTH):
    rope = build_encoding(spec, geometry(head_width))
    return rope.frequencies(torch.zeros(1, 1, dtype=torch.float64), torch.tensor(lengths or (TOKENS,)))


def turned(spec: str, positions=None, budget: int = TOKENS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, TOKENS, WIDTH, generator=generator).to(dtype) for _ in range(2))
    positions = torch.arange(TOKENS, dtype=dtype)[None] if positions is None else positions.to(dtype)
    rope = build_encoding(spec, geometry())
    return *rope.rotate(q, k, rope.prepare(positions, positions, torch.tensor([budget]))), q, k


# --- identities ------------------------------------------------------------------------------------------------------

SAME = {
    "p = 1": "rope:p=1.0",
    "linear by 1": "rope:scaling=linear:factor=1",
    "ntk by 1": "rope:scaling=ntk:factor=1",
    "yarn by 1": "rope:scaling=yarn:factor=1:trained=16",
    "llama3 by 1": "rope:scaling=llama3:factor=1:trained=16",
    "dynamic, as long as trained": f"rope:scaling=dynamic:factor=4:trained={TOKENS}",
    "dynamic, shorter than trained": "rope:scaling=dynamic:factor=4:trained=64",
    "linear by length, as long as trained": f"rope:scaling=linear:trained={TOKENS}",
    "ntk by length, shorter than trained": "rope:scaling=ntk:trained=64",
    "yarn by length, as long as trained": f"rope:scaling=yarn:trained={TOKENS}",
    "llama3 by length, as long as trained": f"rope:scaling=llama3:trained={TOKENS}",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spec", SAME.values(), ids=SAME)
def test_it_is_rope_bit_for_bit(spec, dtype):
    for got, wanted in zip(turned(spec, dtype=dtype), turned("rope", dtype=dtype), strict=True):
        assert torch.equal(got, wanted)


def test_p_of_0_is_nope_bit_for_bit():
    q, k, plain_q, plain_k = turned("rope:p=0.0")
    assert torch.equal(q, plain_q) and torch.equal(k, plain_k)
    ids = torch.randint(17, (2, 12), generator=torch.Generator().manual_seed(0))
    config = preset("laptop", vocabulary=17)
    assert torch.equal(Decoder(config, "rope:p=0.0")(ids), Decoder(config, "nope")(ids))
    assert torch.equal(Decoder(config, "rope:p=1.0")(ids), Decoder(config, "rope")(ids))


def test_p_keeps_the_spacing_and_stops_the_end_of_each_half():
    whole, _ = frequencies("rope")
    some, _ = frequencies("rope:p=0.75")
    partial, _ = frequencies("rope:fraction=0.75")
    assert torch.equal(some[:6], whole[:6]) and some[6:].tolist() == [0, 0]
    assert len(partial) == 6 and not torch.allclose(partial, whole[:6])
    q, _, plain, _ = turned("rope:p=0.75")
    still = [6, 7, 14, 15]  # of 16 coordinates in halves
    assert torch.equal(q[..., still], plain[..., still])
    moved = (q != plain).any(2).all(1).all(0)
    assert moved.nonzero().flatten().tolist() == [c for c in range(16) if c not in still]
    q, _, plain, _ = turned("rope:p=0.75:interleaved=true")
    assert torch.equal(q[..., 12:], plain[..., 12:]) and not torch.equal(q[..., 10:12], plain[..., 10:12])


def test_linear_by_s_is_rope_at_position_over_s():
    positions = torch.arange(TOKENS)[None]
    got = turned("rope:scaling=linear:factor=4.0", positions)
    wanted = turned("rope", positions / 4)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("s", [2.0, 3.7, 32.0])
@pytest.mark.parametrize("head_width", [4, 16, 64])
def test_ntk_leaves_the_fastest_and_slows_the_slowest_by_exactly_s(s, head_width):
    plain, _ = frequencies("rope", head_width=head_width)
    got, _ = frequencies(f"rope:scaling=ntk:factor={s}", head_width=head_width)
    assert got[0] == plain[0] and got[-1] == plain[-1] / s
    assert bool((got[1:-1] < plain[1:-1]).all()) and bool((got[1:-1] > plain[1:-1] / s).all())
    # As published: another theta.
    other, _ = frequencies(f"rope:theta={10_000 * s ** (head_width / (head_width - 2))}", head_width=head_width)
    assert torch.allclose(got, other, rtol=1e-12)


def test_dynamic_without_a_factor_is_ntk_by_length_and_grows():
    for length in (16, 17, 40, 4096):
        got, _ = frequencies("rope:scaling=dynamic:trained=16", length)
        assert torch.equal(got, frequencies("rope:scaling=ntk:trained=16", length)[0])
        assert torch.allclose(got, frequencies(f"rope:scaling=ntk:factor={max(length / 16, 1)}")[0], rtol=1e-15)
    one, two = frequencies("rope:scaling=dynamic:trained=16", 40, 4096)[0]
    assert bool((one[1:] > two[1:]).all())


def test_rows_of_several_budgets_have_frequencies_of_their_own():
    got, magnitude = frequencies("rope:scaling=yarn:trained=16", 8, 32, 64)
    for row, length in enumerate((8, 32, 64)):
        alone, factor = frequencies("rope:scaling=yarn:trained=16", length)
        assert torch.equal(got[row], alone[0]) and float(magnitude[row]) == float(factor)


def test_rows_of_one_budget_share_their_frequencies(monkeypatch):
    seen, real = [], Rope.prepare

    def watched(self, query_positions_BQ, key_positions_BK, budget_B):
        seen.append(budget_B.tolist())
        return real(self, query_positions_BQ, key_positions_BK, budget_B)

    monkeypatch.setattr(Rope, "prepare", watched)
    made = Decoder(preset("laptop", vocabulary=17), "rope:scaling=yarn:trained=16")
    for budget in ([32, 32, 32], [32, 31, 32]):
        made(torch.zeros(3, 5, dtype=torch.long), budget=torch.tensor(budget))
    assert seen == [[32], [32, 31, 32]]


def test_packed_documents_need_a_budget_where_frequencies_depend_on_it():
    decoder = Decoder(preset("laptop", vocabulary=11, sigma=0.3), "rope:scaling=dynamic:trained=8").double().eval()
    ids = torch.randint(0, 11, (1, 20), generator=torch.Generator().manual_seed(0))
    with pytest.raises(SpecError, match="give it as budget"):
        decoder(ids, documents=[[5, 15]])
    packed = decoder(ids, documents=[[5, 15]], budget=20)[:, :5]
    assert torch.allclose(packed, decoder(ids[:, :5], budget=20), atol=1e-12)
    assert not torch.allclose(packed, decoder(ids[:, :5]), atol=1e-3), "the budget acts"


def test_yarns_factor_is_on_cos_and_sin_and_the_given_one_wins():
    spec = "rope:scaling=yarn:factor=4:trained=16"
    assert frequencies(spec)[1] == pytest.approx(0.1 * math.log(4) + 1)
    assert frequencies(f"{spec}:attention_factor=1.0")[1] == 1.0
    assert frequencies(f"{spec}:attention_factor=0.5")[1] == 0.5
    q, _, plain_q, _ = turned(spec)
    assert torch.allclose(q.norm(dim=-1), plain_q.norm(dim=-1) * (0.1 * math.log(4) + 1))
    # On whole heads it is the temperature `yarn`.
    ids = torch.randint(17, (2, 12), generator=torch.Generator().manual_seed(0))
    config = preset("laptop", vocabulary=17, sigma=0.3)
    warm = config.model_copy(update={"temperature": "yarn:factor=4"})
    got, wanted = Decoder(warm, f"{spec}:attention_factor=1.0")(ids), Decoder(config, spec)(ids)
    assert torch.allclose(got, wanted, atol=1e-5) and not torch.allclose(got, Decoder(config, "rope")(ids), atol=1e-3)


# --- transformers ----------------------------------------------------------------------------------------------------

THEIRS = {
    "rope:scaling=linear:factor=4": {"rope_type": "linear", "factor": 4.0},
    "rope:p=0.75": {"rope_type": "proportional", "partial_rotary_factor": 0.75},
    "rope:p=0.3": {"rope_type": "proportional", "partial_rotary_factor": 0.3},
    "rope:p=0.25:scaling=linear:factor=8": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "factor": 8.0,
    },
    "rope:scaling=dynamic:factor=2:trained=64": {"rope_type": "dynamic", "factor": 2.0},
    "rope:scaling=dynamic:trained=64": {"rope_type": "dynamic", "factor": 1.0},
    "rope:scaling=yarn:factor=4:trained=64": {"rope_type": "yarn", "factor": 4.0},
    "rope:scaling=yarn:factor=40:trained=4096:fast=16:slow=2": {
        "rope_type": "yarn",
        "factor": 40.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "rope:scaling=yarn:factor=4:trained=64:attention_factor=0.7": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.7,
    },
    "rope:scaling=yarn:factor=4:trained=2048:fraction=0.5": {
        "rope_type": "yarn",
        "factor": 4.0,
        "partial_rotary_factor": 0.5,
    },
    "rope:scaling=llama3:factor=8:trained=8192:theta=500000": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "rope:scaling=llama3:factor=32:trained=64:slow=0.5:fast=3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 0.5,
        "high_freq_factor": 3.0,
    },
}


@pytest.mark.parametrize("head_width", [16, 64, 128])
@pytest.mark.parametrize("spec", THEIRS)
def test_frequencies_and_attention_factor_are_those_of_transformers(spec, head_width, figure):
    pytest.importorskip("transformers", reason="references come from the extra `hf`")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    options = dict(Spec.of(spec).options)
    trained = options.get("trained", 2048)
    parameters = {"rope_theta": float(options.get("theta", 10_000)), **THEIRS[spec]}
    if parameters["rope_type"] in {"yarn", "llama3"}:
        parameters["original_max_position_embeddings"] = trained
    config = LlamaConfig(
        hidden_size=head_width,
        num_attention_heads=1,
        head_dim=head_width,
        max_position_embeddings=trained,
        rope_parameters=parameters,
    )
    for length in (1, 64, 65, 1000, 100_000):
        theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
        ours, magnitude = frequencies(spec, length, head_width=head_width)
        ours = ours.flatten()
        assert ours.shape == theirs.shape
        still = theirs == 0
        assert torch.equal(ours == 0, still)
        difference = float(((ours - theirs) / theirs)[~still].abs().max())
        assert difference < 1e-5, (length, ours, theirs)  # theirs are in fp32
        assert float(magnitude) == pytest.approx(factor, rel=1e-12)
    figure(f"{spec}, width {head_width}: largest relative difference to transformers {difference:.0e}")


# --- what is refused -------------------------------------------------------------------------------------------------

WRONG = {
    "rope:factor=4": "'factor' belongs to a scaling",
    "rope:trained=4": "'trained' belongs to a scaling",
    "rope:length=seen": "'length' belongs to a scaling",
    "rope:attention_factor=1.2": "'attention_factor' belongs to a scaling",
    "rope:scaling=linear": "'linear' needs the training length",
    "rope:scaling=ntk:factor=4:trained=16": "does not read 'trained'",
    "rope:scaling=ntk:factor=4:attention_factor=1.1": "has no option 'attention_factor'",
    "rope:scaling=linear:factor=4:fast=2": "has no option 'fast'",
    "rope:scaling=yarn:factor=4": "'yarn' needs the training length",
    "rope:scaling=yarn:factor=4:trained=16:length=seen": "length=seen is for scalings that depend on it",
    "rope:scaling=yarn:factor=0.5:trained=16": "at least 1, not 0.5",
    "rope:scaling=yarn:factor=4:trained=2:slow=4": "in 2 tokens no pair turns 4 times",
    "rope:scaling=llama3:factor=4:trained=16:slow=4": "0 < slow < fast",
    "rope:scaling=dynamic": "'dynamic' needs the training length",
    "rope:scaling=dynamic:trained=1": "at least 2, not 1",
    "rope:scaling=linear:factor=2:p=0": "nothing to scale",
    "rope:scaling=linear:factor=2:fraction=0": "nothing to scale",
    "rope:scaling=longrope": "needs short, a list of",
    "rope:p=1.5": "from 0 to 1",
    "rope:p=0.1": "turns none; write at least p=0.125",
    "rope:p=0.5:fraction=0.5": "two ways to turn less",
    "local:window=0": "at least one position",
}


@pytest.mark.parametrize("spec", WRONG)
def test_what_would_be_ignored_or_has_no_meaning_is_refused(spec):
    with pytest.raises(SpecError, match=WRONG[spec]):
        build_encoding(spec, geometry())


def test_new_options_are_no_part_of_an_old_identity():
    assert canonical_encoding(Spec.of("rope:p=1:length=budget:scaling=null:factor=null")) == Spec("rope")
    assert str(canonical_encoding(Spec.of("rope:scaling=yarn:factor=4:trained=16"))) == (
        "rope:factor=4.0:scaling=yarn:trained=16"
    )


# --- verify ----------------------------------------------------------------------------------------------------------

SEEN = "rope:scaling=dynamic:trained=16:length=seen"
VARIANTS = ["rope:scaling=yarn:trained=16", SEEN]
SLOW = [
    "local:window=4",
    "rope:p=0.5:interleaved=true",
    "rope:p=0.75:scaling=linear:factor=4",
    "rope:scaling=linear:factor=4",
    "rope:scaling=ntk:factor=4",
    "rope:scaling=dynamic:factor=2:trained=16",
    "rope:scaling=yarn:factor=4:trained=16:fraction=0.5:interleaved=true",
    "rope:scaling=llama3:factor=4:trained=32",
    "rope:scaling=yarn:trained=16:length=seen",
]


@pytest.mark.parametrize("spec", [*VARIANTS, *(pytest.param(spec, marks=pytest.mark.slow) for spec in SLOW)])
def test_every_variant_conforms(spec):
    assert_conforms(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope:scaling=dynamic:trained=16", SEEN, "local:window=4", "rope:p=0.75"])
def test_variants_conform_under_other_positions(spec):
    assert_conforms(spec, positions="randomized:limit=64")


def test_verify_says_by_how_much_earlier_logits_move(figure):
    report = verify(SEEN, only=["C01", "C02", "T05", "T11", "T28"])
    assert report.passed
    moved = report.result("C01").detail
    figure(f"{SEEN}: {moved}; {report.result('C02').detail}")
    assert "within 40 tokens earlier logits move by up to 0." in moved
    assert "scaling=dynamic; trained=16; length=seen" in report.result("T28").detail
    steady = verify("rope:scaling=dynamic:trained=16", only=["C01", "C02"])
    assert steady.passed and "move by" not in steady.result("C01").detail


def test_the_published_dynamic_scaling_has_no_cache_and_is_decoded_anew():
    decoder = Decoder(preset("laptop", vocabulary=17, sigma=0.5), SEEN).eval()
    with pytest.raises(SpecError, match=r"length=seen.* has no cache"):
        decoder.cache(30)
    prompt = torch.randint(17, (2, 14), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        said = greedy(decoder, prompt, 6)
        ids = prompt
        for _ in range(6):
            ids = torch.cat([ids, decoder(ids)[:, -1:].argmax(-1)], 1)
        assert torch.equal(said, ids[:, 14:])
        # A row that is shorter, padded on the left, says what it says alone.
        alone = greedy(decoder, prompt[1:, 4:], 6)
        padded = torch.cat([prompt[:1], torch.cat([torch.zeros(1, 4, dtype=torch.long), prompt[1:, 4:]], 1)])
        assert torch.equal(greedy(decoder, padded, 6, lengths=[14, 10])[1:], alone)
    with pytest.raises(SpecError, match="documents cannot be packed"):
        decoder(prompt, documents=[[7, 7], [14]])


# --- windows ---------------------------------------------------------------------------------------------------------


def test_a_window_is_rope_where_nothing_is_further_and_hides_what_is():
    ids = torch.randint(17, (1, 12), generator=torch.Generator().manual_seed(0))
    config = preset("laptop", vocabulary=17, sigma=0.3, layers=1)
    rope, local = Decoder(config, "rope"), Decoder(config, "local:window=4")
    assert torch.allclose(rope(ids)[:, :4], local(ids)[:, :4], atol=1e-6)
    for end in range(5, 13):  # one layer: the last logits are those of the last four tokens alone
        assert torch.allclose(local(ids[:, :end])[:, -1], rope(ids[:, end - 4 : end])[:, -1], atol=1e-5)
    assert not torch.allclose(rope(ids)[:, -1], local(ids)[:, -1], atol=1e-3)
    assert torch.allclose(Decoder(config, "local:window=12")(ids), rope(ids), atol=1e-6)
