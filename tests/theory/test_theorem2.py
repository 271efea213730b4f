"""Theorem 2 in the decoder: distances in the second layer's scores, and any kernel of them."""

import pytest
import torch

from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Geometry
from lengthwise.encoding.t5 import T5
from lengthwise.spec import SpecError
from lengthwise.theory import rows
from lengthwise.theory.theorem2 import (
    alibi_constant_as_printed,
    alibi_slopes,
    construct_theorem2_decoder,
    pairwise_distances,
    relative_bias_decoder,
    second_layer_attention,
    second_layer_scores,
    t5_bias,
    t5_bucket_as_printed,
    unevenness,
)

T = 512
# The largest error of −(t − i), unscaled, over all pairs at T = 512.
ERROR = {
    ("none", "fp64"): 1e-9,
    ("none", "fp32"): 1e-3,
    ("rms", "fp64"): 1e-9,
    ("rms", "fp32"): 5e-3,
    ("layer", "fp64"): 1e-9,
    ("layer", "fp32"): 1e-1,
}


@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize("scaled", [False, True])
def test_score_minus_content_is_minus_the_distance_for_all_pairs(norm, scaled, figure):
    table = rows.theorem2_rows(T, 64, norms=(norm,), precisions=("fp64", "fp32", "bf16"), scaled=scaled)
    for row in table:
        figure(f"theorem 2, T={T}, {norm}, {row['precision']}, {row['f_rel']}: off by {row['error of f_rel']:.1e}")
        assert row["largest |content|"] > 1  # there is content to take away
        if row["precision"] != "bf16":
            assert row["error of f_rel"] < ERROR[norm, row["precision"]]


@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize("width", [4, 5, 64])
@pytest.mark.parametrize("tokens", [1, 2, 37])
def test_any_width_and_any_number_of_tokens(norm, width, tokens):
    made = construct_theorem2_decoder(tokens, width, norm=norm, heads=2, head_width=3, scaled=False, seed=width)
    relative = second_layer_scores(made, made.draw(2)).relative_BHQK
    assert float((relative + pairwise_distances(tokens + 1)).tril().abs().max()) < 1e-10


def test_softmax_sees_it_too():
    """The weights the layer really uses: log α_ti − log α_tt is −(t − i) plus the difference of contents."""
    made = construct_theorem2_decoder(60, 16, heads=2, head_width=4, scaled=False)
    ids = made.draw(2)
    log_BHQK = made.tap_outputs(ids, "layers.1.weights")["layers.1.weights"].log()
    content = second_layer_scores(made, ids).content_BHQK
    seen = log_BHQK - content - (log_BHQK - content).diagonal(dim1=-2, dim2=-1)[..., None]
    below = torch.ones(61, 61, dtype=torch.bool).tril()
    assert float((seen + pairwise_distances(61))[..., below].abs().max()) < 1e-9


def test_values_and_output_are_free_but_for_what_is_reserved():
    made = construct_theorem2_decoder(20, 16)
    made.decoder.requires_grad_(False)
    attention = second_layer_attention(made)
    assert float(attention.v.weight.abs().min()) > 0
    assert float(attention.out.weight[: made.content_start].abs().max()) == 0
    assert float(attention.out.weight[made.content_start :].abs().min()) > 0
    state = made.tap_outputs(made.draw(1), "layers.1.residual")["layers.1.residual"]
    assert float((state[0, :, 2] - torch.arange(1, 22)).abs().max()) < 1e-10  # a third layer finds t again


def test_the_proofs_label_of_equation_29_is_wrong():
    """With Eq. 29 as W_V, as printed, and W_K at random, the term is not relative."""
    made = construct_theorem2_decoder(30, 16, heads=1, head_width=4, content_scale=0.0, scaled=False)
    right = second_layer_scores(made, made.draw(1)).logits_BHQK[0, 0]
    assert unevenness(right) < 1e-10
    attention = second_layer_attention(made)
    with torch.no_grad():
        attention.v.weight.copy_(attention.k.weight)
        attention.k.weight.normal_(generator=torch.Generator().manual_seed(0))
    printed = second_layer_scores(made, made.draw(1)).logits_BHQK[0, 0]
    assert unevenness(printed) > 1


def test_the_closing_remark_holds_for_affine_functions_only(figure):
    table, _ = rows.theorem2_remark()
    for row in table:
        figure(f"g = {row['g']}: g(i) − g(t) spreads by {row['spread along a distance']:.2g} along a distance")
    assert {row["g"]: row["relative"] for row in table} == {
        "t": True,
        "3 − 2t": True,
        "t² / T": False,
        "10 log t": False,
    }


@pytest.mark.parametrize("heads", [2, 8, 12])
def test_a_second_layer_is_exactly_alibi(heads):
    made = construct_theorem2_decoder(
        80, 16, heads=heads, head_width=2, slopes=alibi_slopes(heads), content_scale=0.0, scaled=False
    )
    found = second_layer_scores(made, made.draw(1)).logits_BHQK[0]
    encoding = build_encoding("alibi", Geometry(width=16, heads=heads, head_width=2))
    positions = torch.arange(81, dtype=torch.float64)[None]
    wanted = encoding.checked_bias(positions, positions)[0]
    assert float((found - wanted).tril().abs().max()) < 1e-11


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 127])
def test_a_second_layer_is_exactly_a_t5_bias(tokens, figure):
    bias_HN = t5_bias(tokens, heads=3)
    made = relative_bias_decoder(bias_HN)
    found = second_layer_scores(made, made.draw(1)).logits_BHQK[0]
    wanted = bias_HN[:, pairwise_distances(tokens + 1).long().clamp(min=0)]
    error = float((found - wanted).tril().abs().max())
    figure(f"T5's bias from cos and sin, T={tokens}: off by {error:.1e}")
    assert error < 1e-10


def test_any_table_of_biases_will_do():
    bias_HN = torch.randn(2, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    made = relative_bias_decoder(bias_HN, width=64)
    found = second_layer_scores(made, made.draw(2)).logits_BHQK
    wanted = bias_HN[:, pairwise_distances(40).long().clamp(min=0)]
    assert float((found - wanted).tril().abs().max()) < 1e-10
    assert float(made.tap_outputs(made.draw(1), "layers.1.k")["layers.1.k"].abs().max()) < 1 + 1e-9


def test_the_printed_constants_are_wrong_and_named():
    assert alibi_constant_as_printed(8) == pytest.approx(0.939, abs=5e-4)
    assert alibi_slopes(8)[:2] == [0.5, 0.25]
    matrix = [0, 1, 2, 3, 3, 4]  # the publication's own example, B = 5, D = 6
    code = T5(Geometry(width=1, heads=1, head_width=1), buckets=5, distance=6).bucket(torch.arange(6)).tolist()
    assert code == matrix
    assert [t5_bucket_as_printed(n, 5, 6) for n in range(6)] == [0, 1, 2, 2.5, 3.5, 3.5]


def test_what_cannot_be_built_is_said():
    with pytest.raises(SpecError, match="head_width 2 or more"):
        construct_theorem2_decoder(4, 8, head_width=1)
    with pytest.raises(SpecError, match="one slope for each of 4 heads"):
        construct_theorem2_decoder(4, 8, slopes=[1.0])
