"""Theorem 2 of Kazemnejad et al. 2023, arXiv:2305.19466: with t in the state, the next layer can use distances.

The weights of the proof (appendix C.2) are set in the second layer of the decoder of Theorem 1: the first two
coordinates of a query are (1, −t), those of a key (i, 1), so q · k = content − (t − i); the attention scale 1/√h
applies to this too. (Eq. 29 is printed as W_V; it is W_K. Eqs. 28 and 29 let the content rows read every coordinate;
rows that read the position would not be content, so here they read only the tokens' own coordinates.)

The remark that closes the proof, that any function g of the position gives "more complex relative encoding schemes",
fails as written: g(i) − g(t) depends on t − i alone only if g is affine. What does give any kernel of the distance is
cos and sin of the position in several coordinates, because cos ω(t − i) = cos ωt cos ωi + sin ωt sin ωi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import torch
from torch import Tensor

from lengthwise.encoding.alibi import Alibi
from lengthwise.encoding.base import Geometry
from lengthwise.encoding.t5 import T5
from lengthwise.model.attention import Attention
from lengthwise.model.decoder import Layer
from lengthwise.spec import SpecError
from lengthwise.theory.theorem1 import ONE, POSITION, Constructed, NormKind, construct_theorem1_decoder


@dataclass(frozen=True)
class Scores:
    """The second layer's q · k, times the attention scale, for all pairs of one batch."""

    logits_BHQK: Tensor
    content_BHQK: Tensor

    @property
    def relative_BHQK(self) -> Tensor:
        """The logits without the content term."""
        return self.logits_BHQK - self.content_BHQK


def construct_theorem2_decoder(
    tokens: int = 512,
    width: int = 64,
    *,
    norm: NormKind = "none",
    heads: int = 4,
    head_width: int = 16,
    slopes: Sequence[float] | None = None,
    content_scale: float = 1.0,
    scaled: bool = True,
    position_function: Callable[[int], float] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Constructed:
    """Return a decoder of two layers whose second has −slope · (t − i) in every head's q · k.

    `slopes` are 1 by default, as in the proof; those of `Alibi` make the layer an exact ALiBi. `content_scale` scales
    the random rows, 0 for none. With `position_function`, g, the first layer writes g(t) instead of t, to test the
    proof's closing remark.
    """
    if head_width < 2:
        raise SpecError(f"the proof uses two coordinates of a head; give head_width 2 or more, not {head_width}")
    if slopes is not None and len(slopes) != heads:
        raise SpecError(f"one slope for each of {heads} heads, not {len(slopes)}")
    points = None
    if position_function is not None:
        points = (
            [Decimal(t) for t in range(1, tokens + 2)],
            [Decimal(position_function(t)) for t in range(1, tokens + 2)],
        )
    made = construct_theorem1_decoder(
        tokens,
        width,
        norm=norm,
        heads=heads,
        head_width=head_width,
        layers=2,
        replacement_points=points,
        attention_scale=None if scaled else 1.0,
        seed=seed,
        dtype=torch.float64,
    )
    attention = second_layer_attention(made)
    with torch.no_grad():
        for head in range(heads):
            rows = slice(head * head_width, (head + 1) * head_width)
            slope = 1.0 if slopes is None else slopes[head]
            for part in (attention.q, attention.k):
                part.weight[rows, : made.content_start] = 0
                part.weight[rows] *= content_scale * made.root
                part.weight[rows.start : rows.start + 2] = 0
            attention.q.weight[rows.start + 1, POSITION] = -slope * made.root
            attention.k.weight[rows.start, POSITION] = made.root
            if norm == "none":
                attention.q.weight[rows.start, ONE] = slope
                attention.k.weight[rows.start + 1, ONE] = 1
            else:  # a norm leaves few digits of a 1 beside a position of hundreds; a bias is exact
                attention.q.bias[rows.start] = slope
                attention.k.bias[rows.start + 1] = 1
    made.decoder.to(dtype)
    return made


def second_layer_attention(constructed: Constructed) -> Attention:
    """Return the second layer's attention module."""
    layer = constructed.decoder.layers[1]
    assert isinstance(layer, Layer)
    return layer.attention


def second_layer_scores(constructed: Constructed, ids_BT: Tensor, reserved_coordinates: int = 2) -> Scores:
    """Return the second layer's logits, from taps on its queries and keys, in the decoder's precision.

    The first `reserved_coordinates` coordinates of a head belong to the construction, the rest is content.
    """
    tap_outputs = constructed.tap_outputs(ids_BT, "layers.1.q", "layers.1.k")
    q, k, scale = tap_outputs["layers.1.q"], tap_outputs["layers.1.k"], constructed.decoder.config.scale
    return Scores(q @ k.mT * scale, q[..., reserved_coordinates:] @ k[..., reserved_coordinates:].mT * scale)


def pairwise_distances(n: int) -> Tensor:
    """Return t − i for all pairs of n positions, in float64."""
    t_N = torch.arange(1, n + 1, dtype=torch.float64)
    return t_N[:, None] - t_N


def unevenness(relative_QK: Tensor) -> float:
    """Return how far a term is from depending on t − i alone: the largest range along a (sub)diagonal."""
    n = len(relative_QK)
    diagonals = [relative_QK.diagonal(-distance) for distance in range(n)]
    return max(float(one.max() - one.min()) for one in diagonals)


# --- any kernel of the distance --------------------------------------------------------------------------------------


def relative_bias_decoder(
    bias_HN: Tensor, width: int | None = None, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Constructed:
    """Return a two-layer NoPE decoder whose second layer adds its head's bias[t − i] to each score.

    The first layer writes cos(2πmt/N) and sin(2πmt/N) for m = 1, ..., N/2 besides t; distances are 0, ..., N − 1, so
    one period is enough, and N coordinates represent any table of N biases. There is no content term.
    """
    heads, n = bias_HN.shape
    waves = n // 2
    written = [
        [wave(2 * math.pi * m * t / n) for t in range(1, n + 1)]
        for m in range(1, waves + 1)
        for wave in (math.cos, math.sin)
    ]
    head_width = 1 + 2 * waves
    least = POSITION + 1 + 2 * waves
    made = construct_theorem1_decoder(
        n - 1,
        least + 1 if width is None else width,
        heads=heads,
        head_width=head_width,
        layers=2,
        extra_functions=written,
        attention_scale=1.0,
        seed=seed,
        dtype=torch.float64,
    )
    attention = second_layer_attention(made)
    spectrum_HM = torch.fft.rfft(bias_HN.double())  # bias[d] = Σ (a cos ωd + b sin ωd)
    share_M = torch.full((waves + 1,), 2.0 / n, dtype=torch.float64)
    share_M[0] = 1 / n
    if n % 2 == 0:
        share_M[-1] = 1 / n
    a_HM, b_HM = spectrum_HM.real * share_M, -spectrum_HM.imag * share_M
    with torch.no_grad():
        for part in (attention.q, attention.k):
            part.weight.zero_()
        for head in range(heads):
            row = head * head_width
            attention.q.weight[row, ONE] = a_HM[head, 0]
            attention.k.weight[row, ONE] = 1
            for m in range(1, waves + 1):
                first = row + 2 * m - 1
                cos, sin = POSITION + 2 * m - 1, POSITION + 2 * m
                # a cos ω(t−i) + b sin ω(t−i) = cos ωi (a cos ωt + b sin ωt) + sin ωi (a sin ωt − b cos ωt)
                attention.q.weight[first, cos], attention.q.weight[first, sin] = a_HM[head, m], b_HM[head, m]
                attention.q.weight[first + 1, sin], attention.q.weight[first + 1, cos] = a_HM[head, m], -b_HM[head, m]
                attention.k.weight[first, cos] = attention.k.weight[first + 1, sin] = 1
    made.decoder.to(dtype)
    return made


def t5_bias(tokens: int, heads: int = 2, *, buckets: int = 32, max_distance: int = 128, seed: int = 0) -> Tensor:
    """Return a T5-style table by distance, one random number per head and bucket: (H, T + 1).

    The buckets are those of `lengthwise.encoding.t5`, which halves their number as an integer. The formula printed in
    Kazemnejad et al. halves it as a real number (`t5_bucket_as_printed`), and disagrees with their own example.
    """
    geometry = Geometry(width=heads, heads=heads, head_width=1)
    encoding = T5(geometry, buckets=buckets, distance=max_distance)
    encoding.initialize(lambda name: torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return encoding.by_distance(torch.arange(tokens + 1, dtype=torch.float64))


def alibi_slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes, 2^(−8k/H) if H is a power of two; `alibi_constant_as_printed` is the publication's."""
    geometry = Geometry(width=heads, heads=heads, head_width=1)
    return Alibi(geometry).slope_H(torch.zeros(1, dtype=torch.float64)).tolist()


def alibi_constant_as_printed(heads: int) -> float:
    """Return ALiBi's constant as printed in Kazemnejad et al. (appendix B): .939 at 8 heads, but slopes start at .5."""
    return 2.0 ** -(2.0 ** -math.log2(heads + 3))


def t5_bucket_as_printed(distance_back: int, buckets: int, max_distance: int) -> float:
    """Return T5's bucket by the formula printed in Kazemnejad et al. (appendix B), with B/2 a real number.

    For B = 5, D = 6 and distances 3, 4, 5 it gives "buckets" 2.5, 3.5, 3.5; their own matrix, and T5, have 3, 3, 4.
    """
    half = buckets / 2
    if distance_back < half:
        return distance_back
    if distance_back >= max_distance:
        return buckets - 1
    return half + math.floor(math.log(distance_back / half) / math.log(max_distance / half) * half)
