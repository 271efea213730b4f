"""What one layer without positions cannot do, and what two can."""

import pytest
import torch

from lengthwise.theory import objection


@pytest.mark.parametrize("seed", range(10))
def test_one_layer_gives_equal_tokens_equal_weights(seed):
    assert objection.equal_token_weight_gaps("nope", layers=1, seed=seed, sharpness=1000) == [0.0]


def test_a_second_layer_and_an_encoding_do_not(figure):
    first, then = objection.equal_token_weight_gaps("nope", layers=2)
    figure(f"[bos, x, x]: |α33 − α32| is {first} in layer 1, {then:.3f} in layer 2 of a random model")
    assert first == 0
    assert then > 0.01
    for encoding in ("rope", "alibi", "t5"):
        assert objection.equal_token_weight_gaps(encoding, layers=1)[0] > 1e-4


@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize("beta", [0.5, 5.0, 20.0])
def test_two_layers_make_a_diagonal_head(norm, beta, figure):
    made = objection.diagonal_decoder(64, beta, norm=norm)
    found = objection.second_layer_weights(made, made.draw(2)).diagonal(dim1=1, dim2=2)
    wanted = torch.tensor([objection.diagonal_weight(beta, t) for t in range(1, 66)], dtype=torch.float64)
    error = float((found - wanted).abs().max())
    figure(f"diagonal head, β={beta:g}, {norm}: α_tt ≥ {float(found.min()):.5f}, off by {error:.1e}")
    assert error < 1e-11


def test_its_weight_tends_to_one_minus_e_to_the_minus_beta():
    assert objection.diagonal_weight(5.0, 1) == 1
    assert objection.diagonal_weight(5.0, 1000) == pytest.approx(0.99326, abs=5e-6)


@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_two_layers_make_a_previous_token_head(beta, figure):
    made = objection.previous_token_decoder(64, beta)
    alpha = objection.second_layer_weights(made, made.draw(2))
    found = alpha.diagonal(-1, dim1=1, dim2=2)
    wanted = torch.tensor([objection.previous_token_weight(beta, t) for t in range(2, 66)], dtype=torch.float64)
    error = float((found - wanted).abs().max())
    figure(f"previous-token head, β={beta:g}: at least {float(found.min()):.4f}, off by {error:.1e}")
    assert error < 1e-10
    assert bool((alpha.argmax(-1)[:, 1:] == torch.arange(64)).all())


def test_both_look_at_a_place_whatever_the_token():
    """The same map for other tokens, constant ones included."""
    for made in (objection.diagonal_decoder(30), objection.previous_token_decoder(30)):
        same = torch.ones(1, 31, dtype=torch.long)
        same[:, 0] = 0
        a, b = objection.second_layer_weights(made, made.draw(1)), objection.second_layer_weights(made, same)
        assert float((a - b).abs().max()) < 1e-10
