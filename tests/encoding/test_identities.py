"""Where two encodings are one: each identity holds two formulas to each other."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.conformance.formulas import RopeVariant, rope_frequencies
from lengthwise.conformance.weights import WEIGHTS, Head
from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys
from lengthwise.model import Decoder, preset
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError

TOKENS = 24


def geometry(heads: int = 4, head_width: int = 8, width: int = 32) -> Geometry:
    return Geometry(width=width, heads=heads, head_width=head_width)


def built(spec: str, **sizes: int) -> Encoding:
    made = build_encoding(spec, geometry(**sizes)).double()
    made.initialize(lambda name: torch.Generator().manual_seed(len(name)))
    return made.eval()


def pair(
    encoding: Encoding, *, scale: float = 8**-0.5, marks: torch.Tensor | None = None
) -> tuple[torch.Tensor, QueriesAndKeys]:
    """Random scores and what belongs to them, one sequence of `TOKENS`."""
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 4, TOKENS, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    places = torch.arange(TOKENS, dtype=torch.float64)[None]
    allowed = torch.ones(1, TOKENS, TOKENS).tril() > 0
    state = encoding.prepare(places, places, torch.tensor([TOKENS]))
    made = QueriesAndKeys(q * scale, k, places, places, allowed, state, scale, marks)
    return q @ k.mT * scale, made


def masked(scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(torch.ones(TOKENS, TOKENS).triu(1) > 0, -torch.inf)


@pytest.mark.parametrize("heads", [1, 4, 8, 12])
def test_kerple_power_with_exponent_one_is_alibi(heads):
    kerple, alibi = built("kerple:kernel=power", heads=heads), built("alibi", heads=heads)
    distances = torch.arange(2000, dtype=torch.float64)
    with torch.no_grad():
        # Slopes below 0.01 are below what KERPLE allows.
        kerple.r1.copy_(alibi.slope_H(distances))
        kerple.r2.fill_(1.0)
        wanted = alibi.by_distance(distances)
        kept = kerple.r1 >= 0.01
        assert torch.allclose(kerple.by_distance(distances)[kept], wanted[kept], atol=1e-9)
        assert int(kept.sum()) >= heads * 3 // 4


def test_kerple_keeps_its_gradient_where_it_is_clamped():
    kerple = built("kerple")
    with torch.no_grad():
        kerple.r1.fill_(-1.0)
    out = kerple.by_distance(torch.arange(5.0, dtype=torch.float64))
    assert torch.allclose(out[:, 1:], -0.01 * torch.log1p(kerple.r2[:, None] * torch.arange(1, 5)))
    out.sum().backward()
    assert bool((kerple.r1.grad < 0).all())


@given(st.floats(0.05, 0.99))
def test_forgetting_with_a_constant_gate_is_alibi(gate):
    fox = built("forgetting")
    with torch.no_grad():
        fox.weight.zero_()
        fox.bias_H.fill_(math.log(gate / (1 - gate)))
        marks = fox.mark(torch.randn(1, TOKENS, 32, dtype=torch.float64))
        scores, given = pair(fox, marks=marks)
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        wanted = scores + math.log(gate) * distance
        assert torch.allclose(masked(fox.score(scores, given)).softmax(-1), masked(wanted).softmax(-1), atol=1e-9)


def test_cope_with_all_gates_one_is_shaws_encoding_of_keys():
    cope, shaw = built("cope:counts=64"), built(f"shaw:distance={TOKENS}:values=false")
    with torch.no_grad():
        cope.table.copy_(torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
        # A count is one more than a distance: the query counts itself.
        shaw.keys[TOKENS : 2 * TOKENS].copy_(cope.table[1 : TOKENS + 1])
        scores, given = pair(cope)
        sure = torch.full_like(scores, 60.0)  # sigmoid is 1 to the last bit
        added = cope.score(sure, given) - sure
        wanted = shaw.score(scores, pair(shaw)[1]) - scores
        # Shaw's vector joins the key before scaling, CoPE's is met by the query as it is.
        assert torch.allclose(masked(added).nan_to_num(neginf=0), masked(wanted / given.scale).nan_to_num(neginf=0))


def test_shaw_and_transformer_xl_without_their_parameters_are_nope():
    for spec in ("shaw", "transformer_xl", "cope"):
        encoding = built(spec)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.zero_()
            scores, given = pair(encoding)
            assert torch.equal(encoding.score(scores, given), scores)


def test_fire_has_a_fixed_normaliser_up_to_its_threshold():
    fire = built("fire:threshold=100.0")
    with torch.no_grad():

        def at(query: float) -> torch.Tensor:
            return fire.bias(torch.tensor([[query]], dtype=torch.float64), torch.tensor([[query - 7]]).double())

        assert torch.equal(at(20), at(100))
        assert not torch.allclose(at(100), at(140))


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_fires_lines_are_its_network(width, seed):
    fire = build_encoding(f"fire:width={width}", geometry()).double()
    fire.initialize(lambda name: torch.Generator().manual_seed(seed + len(name)))
    with torch.no_grad():
        share = torch.linspace(-1.5, 1.5, 997, dtype=torch.float64)
        slopes, heights, knots = fire.linear_segments(torch.float64)
        segment = torch.searchsorted(knots, share)
        got = heights[segment] + slopes[segment] * share[:, None]
        wanted = torch.relu(share[:, None] * fire.up + fire.up_bias) @ fire.down.T
    assert torch.allclose(got, wanted, atol=1e-12)


def test_fires_lines_have_the_gradient_of_its_network():
    lines, network = built("fire"), built("fire")
    places = torch.arange(600, 640, dtype=torch.float64)[None]
    lines.bias(places, places).square().sum().backward()
    c, far = network.c.abs(), (network.multiple * network.threshold).abs()
    distance = (places[:, :, None] - places[:, None, :]).abs()
    share = torch.log1p(c * distance) / torch.log1p(c * torch.maximum(places, far))[:, :, None]
    (torch.relu(share[..., None] * network.up + network.up_bias) @ network.down.T).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert torch.allclose(lines.get_parameter(name).grad, parameter.grad, rtol=1e-9), name


@pytest.mark.parametrize("count", range(2, 40))
def test_the_share_that_an_error_advises_is_taken(count):
    for option, made in (("rope:p", {"head_width": 2 * count}), ("hard_alibi:fraction", {"heads": count})):
        with pytest.raises(SpecError) as error:
            built(f"{option}={0.5 / count}", **made)
        advised = re.search(r"write (?:at least )?(?:p|fraction)=([0-9.]+)", str(error.value))[1]
        encoding = built(f"{option}={float(advised)}", **made)
        assert (encoding.turning if option == "rope:p" else encoding.windows) == 1
        for part in range(1, count + 1):  # 0.29 of 100 is 29, although 0.29 * 100 is a little less
            encoding = built(f"{option}={part / count:.6g}", **made)
            assert (encoding.turning if option == "rope:p" else encoding.windows) == part


def test_verify_counts_shares_as_the_encodings_do():
    frequencies, _ = rope_frequencies(6, 1, RopeVariant(p=0.333333))
    assert [value > 0 for value in frequencies] == [True, False, False]
    head = Head([[1.0]] * 3, [[1.0]] * 3, [], [0, 1, 2], 0, 3, 1.0, built("hard_alibi:fraction=0.333333", heads=3))
    assert WEIGHTS["hard_alibi"](head)[2] == [0.0, 0.0, 1.0]


def test_xpos_without_fading_is_rope():
    xpos, rope = built("xpos:base=1e12"), built("rope:interleaved=true")
    places = torch.arange(TOKENS, dtype=torch.float64)[None]
    q = torch.randn(1, 4, TOKENS, 8, dtype=torch.float64)
    got = xpos.rotate(q, q, xpos.prepare(places, places, torch.tensor([TOKENS])))
    wanted = rope.rotate(q, q, rope.prepare(places, places, torch.tensor([TOKENS])))
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [("base=1e-3", "write a larger base"), ("gamma=1e300", "never fades"), ("base=1e308", "never fades")],
)
def test_xpos_refuses_what_has_no_positions_or_never_fades(options, said):
    with pytest.raises(SpecError, match=said) as error:
        built(f"xpos:{options}")
    assert "could not be built" not in str(error.value)


def test_xpos_fades_by_zeta_to_the_distance():
    xpos = built("xpos:gamma=0.4:base=512.0")
    assert xpos.limit == int(80 * 512 / math.log(3.5))
    places = torch.tensor([[0.0, 512.0]], dtype=torch.float64)
    x = torch.ones(1, 4, 2, 8, dtype=torch.float64)
    q, k = xpos.rotate(x, x, xpos.prepare(places, places, torch.tensor([2])))
    norms = (q[0, 0, 1].view(-1, 2).norm(dim=1) * k[0, 0, 0].view(-1, 2).norm(dim=1)) / 2
    wanted = torch.tensor([(f / 4 + 0.4) / 1.4 for f in range(4)], dtype=torch.float64)
    assert torch.allclose(norms, wanted, atol=1e-9)


@given(st.integers(1, 12), st.floats(-20, 20))
def test_stick_breaking_rows_are_at_most_one_and_the_remainder_makes_them_one(tokens, size):
    for spec, whole in (("stick_breaking", False), ("stick_breaking:remainder=true", True)):
        encoding = built(spec)
        generator = torch.Generator().manual_seed(tokens)
        scores = torch.randn(1, 4, tokens, tokens, dtype=torch.float64, generator=generator) * size
        allowed = torch.ones(1, tokens, tokens).tril() > 0
        places = torch.arange(tokens, dtype=torch.float64)[None]
        given = QueriesAndKeys(scores[..., :1], scores[..., :1], places, places, allowed, None)
        weights = encoding.weigh(scores.masked_fill(~allowed[:, None], -torch.inf), given)
        assert bool((weights >= 0).all())
        sums = weights.sum(-1)
        assert bool((sums <= 1 + 1e-12).all())
        if whole:
            assert torch.allclose(sums, torch.ones_like(sums))
        else:
            assert float(weights.diagonal(dim1=-2, dim2=-1).abs().max()) == 0


def test_stick_breaking_halves_when_all_scores_are_zero():
    encoding = built("stick_breaking")
    scores = torch.zeros(1, 4, TOKENS, TOKENS, dtype=torch.float64)
    weights = encoding.weigh(masked(scores), pair(encoding)[1])
    assert torch.allclose(weights[0, 0, 5, :6], torch.tensor([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 0]).double())


def test_hard_alibi_in_the_decoder_sees_its_window_and_nothing_else():
    decoder = Decoder(preset("laptop", vocabulary=17), "hard_alibi")
    weights = Recorder()
    with torch.no_grad():
        decoder(torch.zeros(1, 9, dtype=torch.long), taps={"layers.0.weights": weights})
    seen = weights["layers.0.weights"][0, :, 8] > 0
    assert seen.sum(-1).tolist() == [1, 2, 9, 9]
    assert seen[1].nonzero().flatten().tolist() == [7, 8]


def test_what_leaves_its_range_keeps_its_gradient():
    kerple = built("kerple:kernel=power")
    with torch.no_grad():
        kerple.r2.fill_(2.5)
    out = kerple.by_distance(torch.arange(5.0, dtype=torch.float64))
    assert torch.allclose(out, -kerple.r1[:, None] * torch.arange(5).double() ** 2)
    out.sum().backward()
    assert bool((kerple.r2.grad != 0).all())


@pytest.mark.parametrize("name", ["forgetting", "cope"])
def test_keys_ahead_of_a_query_count_for_nothing(name):
    encoding = built(name)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        marks = encoding.mark(
            torch.randn(1, TOKENS, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        )
        scores, given = pair(encoding, marks=marks)
        everything = QueriesAndKeys(**{**vars(given), "allowed_BQK": torch.ones_like(given.allowed_BQK)})
        causal, ahead = encoding.score(scores, given), encoding.score(scores, everything)
        # What a query makes of the keys behind it does not depend on what lies ahead.
        seen = given.allowed_BQK[:, None].expand_as(causal)
        assert torch.allclose(causal[seen], ahead[seen])


def test_xpos_refuses_fp16_where_it_would_be_wrong_in_silence():
    xpos = built("xpos").half()
    places = torch.arange(3.0)[None]
    q = torch.ones(1, 4, 3, 8, dtype=torch.float16)
    with pytest.raises(SpecError, match="fp16 cannot hold"):
        xpos.rotate(q, q, xpos.prepare(places, places, torch.tensor([3])))


# --- encodings of 2024 to 2026 ---------------------------------------------------------------------------------------


def drawn(name: str):
    """An encoding with random parameters, marks of random tokens, and scores with what `score` gets."""
    encoding = built(name)
    with torch.no_grad():
        for number, parameter in enumerate(encoding.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    x = torch.randn(1, TOKENS, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return encoding, x


def behind(scores):
    """The scores of keys that a causal mask shows."""
    return scores[..., torch.ones(TOKENS, TOKENS).tril() > 0]


@torch.no_grad()
def test_path_without_strength_is_nope():
    encoding, x = drawn("path")
    encoding.strength.zero_()
    encoding.strength_bias.fill_(-1e3)
    scores, given = pair(encoding, marks=encoding.mark(x))
    assert torch.allclose(behind(encoding.score(scores, given)), behind(scores), atol=1e-12)
    encoding.strength_bias.fill_(0.0)
    scores, given = pair(encoding, marks=encoding.mark(x))
    assert float((encoding.score(scores, given) - scores).abs().max()) > 0.1


@torch.no_grad()
def test_wall_without_decay_is_nope():
    encoding, x = drawn("wall")
    scores, given = pair(encoding, marks=torch.zeros_like(encoding.mark(x)))
    assert torch.allclose(encoding.score(scores, given), scores, atol=1e-12)
    scores, given = pair(encoding, marks=encoding.mark(x))
    assert float((encoding.score(scores, given) - scores).abs().max()) > 0.1


def test_wall_has_finite_gradients_where_sums_overflow():
    encoding, _ = drawn("wall")
    marks = torch.full((1, 4, TOKENS, 8), -400.0, dtype=torch.float64, requires_grad=True)
    scores, given = pair(encoding, marks=marks)
    encoding.score(scores, given).masked_fill(~given.allowed_BQK[:, None], -torch.inf).softmax(
        -1
    ).square().sum().backward()
    assert bool(marks.grad.isfinite().all())


@torch.no_grad()
def test_selective_rope_with_increments_of_one_is_rope():
    encoding, x = drawn("selective_rope:theta=10000.0:drift=true")
    encoding.up.zero_()
    encoding.log_drift.zero_()
    scores, given = pair(encoding, marks=encoding.mark(x))
    rope = built("rope")
    places = torch.arange(float(TOKENS), dtype=torch.float64)[None]
    q, k = rope.rotate(given.q_BHQE, given.k_BHKE, rope.prepare(places, places, torch.tensor([TOKENS])))
    assert torch.allclose(encoding.score(scores, given), q @ k.mT, atol=1e-9)


@torch.no_grad()
def test_inkling_is_nope_beyond_its_extent_and_without_profiles():
    encoding, x = drawn("inkling:extent=3:rank=2")
    scores, given = pair(encoding, marks=encoding.mark(x))
    changed = (encoding.score(scores, given) - scores)[0]
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    near = (distance >= 0) & (distance < 3)
    assert bool((changed[:, ~near] == 0).all()) and bool((changed[:, near] != 0).all())
    encoding.profiles.zero_()
    assert torch.equal(encoding.score(scores, given), scores)


@torch.no_grad()
def test_cable_is_forgetting():
    """CABLE adds b_i − b_j with b the running sum of −softplus(w · x): forgetting with the gate sigmoid(−w · x)."""
    encoding, x = drawn("forgetting")
    scores, given = pair(encoding, marks=encoding.mark(x))
    h_BHT = torch.nn.functional.linear(x, -encoding.weight, -encoding.bias_H).transpose(1, 2)
    b_BHT = (-torch.nn.functional.softplus(h_BHT)).cumsum(-1)
    wanted = scores + b_BHT[..., :, None] - b_BHT[..., None, :]
    assert torch.allclose(behind(encoding.score(scores, given)), behind(wanted), atol=1e-12)
