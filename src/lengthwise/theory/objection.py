"""The objection of Barbero et al. 2025, arXiv:2410.06205: without positions a head cannot tell where a token is.

This is true of one layer: equal tokens have equal keys, so in [bos, x, x] the last token gives both x's the same
attention, whatever the parameters (Proposition 5.2 rules out diagonal and previous-token heads there). It is not true
of two layers: Theorems 1 and 2 give a diagonal head with α_tt = (1 − e^−β) / (1 − e^−βt) and, with t² beside t, a
previous-token head. Their other objection, that the proof relies on universal approximation, is met by the explicit
layer of `hinges`, which costs width and precision (`horizon`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lengthwise.model import Decoder, preset
from lengthwise.model.taps import Recorder
from lengthwise.theory.theorem1 import ONE, POSITION, Constructed, NormKind, construct_theorem1_decoder
from lengthwise.theory.theorem2 import construct_theorem2_decoder, second_layer_attention


def diagonal_decoder(
    tokens: int = 64, beta: float = 5.0, *, norm: NormKind = "none", width: int = 16, dtype: torch.dtype = torch.float64
) -> Constructed:
    """Return a NoPE decoder whose second layer attends to the query's own token, the more the larger β."""
    head_width = 4
    slope = beta * math.sqrt(head_width)  # attention is scaled by 1/√h
    return construct_theorem2_decoder(
        tokens, width, norm=norm, heads=1, head_width=head_width, slopes=[slope], content_scale=0.0, dtype=dtype
    )


def diagonal_weight(beta: float, t: int) -> float:
    """α_tt of the diagonal head: (1 − e^−β) / (1 − e^−βt). At β = 5 at least .99326."""
    return math.expm1(-beta) / math.expm1(-beta * t)


def previous_token_decoder(
    tokens: int = 64, beta: float = 5.0, *, width: int = 16, dtype: torch.dtype = torch.float64
) -> Constructed:
    """Return a NoPE decoder whose second layer attends to the token before the query.

    The score is −β (t − 1 − i)² without its term −β (t − 1)², the same for all keys of a query, which softmax drops:
    2β (t − 1) i − β i². The first layer writes t and t².
    """
    square = [float(t * t) for t in range(1, tokens + 2)]
    made = construct_theorem1_decoder(
        tokens,
        width,
        heads=1,
        head_width=2,
        layers=2,
        extra_functions=[square],
        attention_scale=1.0,
        dtype=torch.float64,
    )
    attention = second_layer_attention(made)
    with torch.no_grad():
        attention.q.weight.zero_()
        attention.k.weight.zero_()
        attention.q.weight[0, POSITION], attention.q.weight[0, ONE] = 2 * beta, -2 * beta
        attention.q.weight[1, ONE] = -beta
        attention.k.weight[0, POSITION] = 1
        attention.k.weight[1, POSITION + 1] = 1
    made.decoder.to(dtype)
    return made


def previous_token_weight(beta: float, t: int) -> float:
    """α of the token before t ≥ 2: 1 / Σ_m e^(−βm²), m = −1 (the token itself), 0, ..., t − 2."""
    return 1 / sum(math.exp(-beta * m * m) for m in range(-1, t - 1))


def second_layer_weights(constructed: Constructed, ids_BT: Tensor) -> Tensor:
    """Return the second layer's attention weights, (B, Q, K) of its one head."""
    return constructed.tap_outputs(ids_BT, "layers.1.weights")["layers.1.weights"][:, 0]


@torch.no_grad()
def equal_token_weight_gaps(
    encoding: str = "nope", *, layers: int = 2, seed: int = 0, sharpness: float = 30.0
) -> list[float]:
    """Return the largest |α₃₃ − α₃₂| of any head on [bos, x, x], per layer of a random decoder; exactly 0 in the first.

    `sharpness` multiplies W_Q: however sharp the heads, equal tokens get equal weights in the first layer of `nope`.
    """
    decoder = Decoder(preset("laptop", vocabulary=8, layers=layers), encoding, seed=seed).double().eval()
    for name, parameter in decoder.named_parameters():
        if name.endswith("attention.q.weight"):
            parameter.mul_(sharpness)
    recorder = Recorder()
    decoder(torch.tensor([[0, 5, 5]]), taps={"layers.*.weights": recorder})
    found = [recorder[f"layers.{layer}.weights"][0, :, 2] for layer in range(layers)]
    return [float((alpha_HK[:, 2] - alpha_HK[:, 1]).abs().max()) for alpha_HK in found]
