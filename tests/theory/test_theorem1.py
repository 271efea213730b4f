"""Theorem 1 in the decoder: t in the first layer's state, whatever the proof leaves to chance."""

import random
from itertools import pairwise

import pytest
import torch

from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError
from lengthwise.theory import rows
from lengthwise.theory.hinges import relu_weights
from lengthwise.theory.theorem1 import (
    BOS,
    FIRST,
    ONE,
    POSITION,
    construct_theorem1_decoder,
    extrapolated_position,
    normed_reciprocal,
    position_state,
)

T = 512
NORMS = ("none", "rms", "layer")
# The largest error of t at T = 512, width 64: asked for without a norm, stated with one.
POSITION_ERROR = {
    ("none", "fp64"): 1e-9,
    ("none", "fp32"): 1e-3,
    ("rms", "fp64"): 1e-9,
    ("rms", "fp32"): 3e-3,
    ("layer", "fp64"): 1e-9,
    ("layer", "fp32"): 5e-2,
}
HEAD_ERROR = {"none": 1e-7, "rms": 3e-7, "layer": 3e-7}


def places(n: int) -> torch.Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64)


@pytest.mark.slow
def test_a_hundred_random_sequences_of_512_tokens_without_a_norm(figure):
    table, _ = rows.theorem1_rows(T, 64, norms=("none",), precisions=("fp64", "fp32", "bf16"), sequences=100)
    for row in table:
        figure(
            f"theorem 1, T={T}, no norm, {row['precision']}: 1/t off by {row['error of 1/t']:.1e}, t by "
            f"{row['error of t']:.1e}, {row['rounds to t']:.1%} round to t (100 sequences)"
        )
        if row["precision"] != "bf16":
            assert row["error of t"] < POSITION_ERROR["none", row["precision"]]
            assert row["error of 1/t"] < 1e-7
            assert row["rounds to t"] == 1
    assert 0.5 < table[-1]["error of t"] < 8  # bf16 cannot hold odd numbers above 256: shown, not asked for


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_behind_real_norms_with_the_stated_error(norm, figure):
    table, _ = rows.theorem1_rows(T, 64, norms=(norm,), precisions=("fp64", "fp32"), sequences=20)
    for row in table:
        figure(
            f"theorem 1, T={T}, {norm}, {row['precision']}: 1/t off by {row['error of 1/t']:.1e}, "
            f"t by {row['error of t']:.1e} (20 sequences)"
        )
        assert row["error of t"] < POSITION_ERROR[norm, row["precision"]]
        assert row["error of 1/t"] < HEAD_ERROR[norm]
        assert row["rounds to t"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_a_hundred_random_sequences_behind_each_norm(norm, figure):
    table, _ = rows.theorem1_rows(T, 64, norms=(norm,), sequences=100)
    for row in table:
        figure(
            f"theorem 1, T={T}, {norm}, {row['precision']}: t off by {row['error of t']:.1e}, "
            f"{row['rounds to t']:.1%} round to t (100 sequences)"
        )
        if row["precision"] != "bf16":
            assert row["error of t"] < POSITION_ERROR[norm, row["precision"]]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [4, 5, 64])
@pytest.mark.parametrize("tokens", [1, 2, 3, 40, 200])
def test_any_width_from_four_and_any_number_of_tokens(norm, width, tokens):
    made = construct_theorem1_decoder(tokens, width, norm=norm)
    ids = made.draw(3)
    assert float((made.positions(ids) - places(tokens + 1)).abs().max()) < 1e-10
    assert float((made.head(ids) - 1 / places(tokens + 1)).abs().max()) < 1e-14


def test_random_sizes_seeds_and_tokens():
    draw = random.Random(0)
    for _ in range(40):
        norm = draw.choice(NORMS)
        tokens, width, heads = draw.randint(1, 120), draw.randint(4, 40), draw.randint(1, 5)
        extra = draw.randint(0, 20) if norm == "none" else 0
        made = construct_theorem1_decoder(
            tokens,
            width,
            norm=norm,
            heads=heads,
            head_width=draw.randint(1, 9),
            layers=draw.randint(1, 3),
            vocabulary=draw.randint(2, 50),
            units=tokens + extra,
            seed=draw.randint(0, 10**6),
        )
        said = made.positions(made.draw(2, seed=draw.randint(0, 10**6)))
        assert float((said - places(tokens + 1)).abs().max()) < 1e-10, (norm, tokens, width, heads)


def test_what_the_proof_leaves_to_chance_is_random_and_used():
    """Another seed changes W_Q, the other heads, the other coordinates and the spare units, but not the count."""
    one, other = (construct_theorem1_decoder(30, 16, units=50, seed=seed) for seed in (1, 2))
    ids = one.draw(2)
    a, b = one.states(ids), other.states(ids)
    reserved = [ONE, BOS, POSITION]
    assert float((a[..., reserved] - b[..., reserved]).abs().max()) < 1e-12
    assert float((a[..., 3:] - b[..., 3:]).abs().min(-1).values.max()) > 1e-3
    one.decoder.requires_grad_(False)
    attention, feed = one.decoder.layers[0].attention, one.decoder.layers[0].feed_forward
    assert float(attention.q.weight.abs().min()) > 0
    assert float(attention.out.weight[3:, 16:].abs().max()) > 0  # the other heads do speak
    assert float(feed.down.weight[3:, 30:].abs().max()) > 0


def test_the_state_is_that_of_equation_30():
    made = construct_theorem1_decoder(12, 8)
    state_TD = made.states(made.draw(1))[0]
    assert torch.equal(state_TD[:, ONE], torch.ones(13, dtype=torch.float64))
    assert state_TD[:, BOS].tolist() == [1.0, *[0.0] * 12]


def test_the_weights_are_those_of_the_closed_form():
    feed = construct_theorem1_decoder(9, 4).decoder.layers[0].feed_forward
    found = sorted(feed.down.weight[POSITION].tolist())
    assert found == pytest.approx([3, 4, 6, 8, 10, 12, 14, 16, 18], abs=1e-12)  # 2k, and 2 + 1 for the first
    assert min(found) > 0  # nothing cancels
    assert feed.up.bias is None


def test_hinges_go_through_every_point():
    from decimal import Decimal

    u, wanted = [Decimal(1) / t for t in range(1, 8)], [Decimal(v) for v in (3, -1, 4, 1, -5, 9, 2)]
    c = relu_weights(u, wanted)
    for t in range(7):
        said = 3 + sum(one * max(0.0, float(u[k] - u[t])) for k, one in enumerate(c))
        assert said == pytest.approx(float(wanted[t]), abs=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_what_the_layer_sees_falls_and_is_convex(norm):
    """Falling: positions are told apart. Convex: all weights of the count are positive, so nothing cancels."""
    from decimal import Decimal

    for width in (4, 5, 64):
        z = [
            float(normed_reciprocal(norm, Decimal(t), width, Decimal(width - 4), Decimal("1e-6")))
            for t in range(1, 300)
        ]
        steps = [a - b for a, b in pairwise(z)]
        assert min(steps) > 0
        assert all(a > b for a, b in pairwise(steps))


def test_removing_bos_or_the_mask_breaks_it(figure):
    found = {row["change"]: row["error of t"] for row in rows.construction_change_rows(64)}
    for change, error in found.items():
        figure(f"theorem 1, T=64, {change}: t off by {error:.2g}")
    for harmless in ("as built", "W_Q 100 times as large", "RMSNorm, other heads silent"):
        assert found[harmless] < 1e-9
    for harmful in ("without BOS", "without the causal mask", "a second BOS in the middle"):
        assert found[harmful] > 10
    # This much of the proof's freedom is lost behind a norm.
    assert found["RMSNorm, other heads speak"] > 1


def test_without_bos_or_mask_every_position_says_the_same():
    made = construct_theorem1_decoder(40, 8)
    ids = made.draw(2)
    headless = made.head(ids[:, 1:])
    assert headless.abs().max() == 0
    said = made.positions(ids[:, 1:])
    assert float((said - (1 + 2 * 40)).abs().max()) < 1e-10
    open_ = construct_theorem1_decoder(40, 8, mask="bidirectional")
    assert float((open_.positions(ids) - 41).abs().max()) < 1e-10  # all see all 41


@pytest.mark.parametrize("tokens", [20, 64, 300])
def test_beyond_t_the_decoder_follows_the_closed_form(tokens, figure):
    made = construct_theorem1_decoder(tokens, 16)
    n = 4 * tokens
    said = made.positions(made.draw(2, length=n))
    wanted = extrapolated_position(tokens, places(n)[tokens:])
    error = float((said[:, tokens:] - wanted).abs().max())
    figure(
        f"beyond T={tokens} to {n}: closed form against decoder {error:.1e}; position {n} is called {said[0, -1]:.2f}"
    )
    assert error < 1e-6
    assert float(said.max()) < 2 * tokens + 1


def test_the_worked_examples_of_beyond():
    assert [round(float(extrapolated_position(20, n)), 2) for n in (21, 22, 30, 40)] == [21, 21.91, 27, 30.5]


@pytest.mark.parametrize("norm", NORMS)
def test_behind_a_norm_every_state_has_one_norm(norm):
    made = construct_theorem1_decoder(50, 16, norm=norm)
    states = made.states(made.draw(3))
    size = states.norm(dim=-1)
    if norm == "none":
        assert float(size.max() / size.min()) > 2
        return
    assert float(size.max() / size.min()) - 1 < 1e-12
    assert float(size[0, 0]) / 16**0.5 == pytest.approx(made.root, rel=1e-6)
    if norm == "layer":
        assert float(states.mean(-1).abs().max()) < 1e-11


def test_the_perfect_state_for_a_probe():
    ids = torch.tensor([[7, 3, 9, 3, 3, 1], [7, 1, 1, 0, 9, 3]])
    for norm in NORMS:
        states = position_state(ids, width=12, norm=norm)
        assert states.shape == (2, 6, 12)
        assert float((states[..., POSITION] - places(6)).abs().max()) < 1e-12
    design = torch.cat([states.flatten(0, 1), torch.ones(12, 1, dtype=torch.float64)], 1)
    probe = torch.linalg.lstsq(design, places(6).repeat(2)[:, None], driver="gelsd").solution
    assert float((design @ probe - places(6).repeat(2)[:, None]).abs().max()) < 1e-9
    with pytest.raises(SpecError, match="anchors the count"):
        position_state(torch.tensor([[7, 3, 7]]))
    with pytest.raises(SpecError, match="anchors the count"):
        position_state(torch.tensor([[7, 3, 3], [8, 3, 3]]))


def test_it_is_the_real_decoder_that_says_it():
    """A tap that silences the head takes the count away."""
    made = construct_theorem1_decoder(20, 8)
    ids = made.draw(1)
    recorder = Recorder()
    silence = {"layers.0.heads": lambda name, x: x * 0, "layers.0.residual": recorder}
    with torch.no_grad():
        made.decoder(ids, taps=silence)
    assert recorder["layers.0.residual"][0, :, POSITION].std() == 0
    assert made.decoder.specs[0].name == "nope"
    assert ids[0, 0] == FIRST


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"width": 3}, "at least 4"),
        ({"tokens": 0}, "at least one token"),
        ({"norm": "batch"}, "none, rms or layer"),
        ({"tokens": 8, "units": 7}, "8 units"),
        ({"tokens": 8, "norm": "rms", "units": 9}, "8 units"),
        ({"vocabulary": 1}, "2 or more"),
        ({"tokens": 2, "norm": "rms", "extra_functions": [[1.0, 2.0, 3.0]]}, "without a norm"),
        ({"tokens": 3, "width": 8, "extra_functions": [[1.0, 2.0, 3.0]]}, "4 values"),
    ],
)
def test_what_cannot_be_built_is_said(arguments, words):
    with pytest.raises(SpecError, match=words):
        construct_theorem1_decoder(**arguments)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_large_anchor_buys_the_other_heads_freedom_back(norm, figure):
    """The error falls as 1/N², until the digits are used up."""
    errors = []
    for anchor in (10, 100, 1000, 10_000):
        assert (
            float(
                (construct_theorem1_decoder(40, 16, norm=norm, anchor_size=anchor).positions(IDS) - places(41))
                .abs()
                .max()
            )
            < 1e-5
        )
        said = construct_theorem1_decoder(40, 16, norm=norm, anchor_size=anchor, other_heads_scale=1.0).positions(IDS)
        errors.append(float((said - places(41)).abs().max()))
    figure(
        f"{norm}, other heads speak, anchor 10, 100, 1,000, 10,000: t off by {', '.join(f'{e:.1e}' for e in errors)}"
    )
    for before, after in pairwise(errors[1:]):
        assert 50 < before / after < 200


IDS = construct_theorem1_decoder(40, 4).draw(3)
