"""Theorem 1 of Kazemnejad et al. 2023, arXiv:2305.19466: one layer without an encoding can count its tokens.

The weights of the proof (appendix C.1, Eqs. 17–27) are set in the real `Decoder`. Three coordinates are reserved:

- ONE holds 1 for every token, so all keys of the first head are equal and its attention is uniform, 1/t each;
- BOS marks the first token, whose value alone is 1, so the head's output is 1/t;
- POSITION gets 1/t from the head and t from the feed-forward.

Everything else is random, as the proof allows: W_Q, the other heads, the remaining coordinates, further units.

The layer adds, so POSITION already holds 1/t when the feed-forward writes, and t − 1/t = 3 · ReLU(1 − u) + Σ_{k=2..T}
2k · ReLU(1/k − u) with u = 1/t: T units, no bias, and every term positive. (t = 1 + Σ_{k=1..T} 2k · ReLU(1/k − u) is
the same sum before 1 − u = ReLU(1 − u) is folded into its first unit.)

Under RMSNorm or LayerNorm the layer sees POSITION divided by the norm of the whole state. If all embeddings have the
same norm (and mean zero, for LayerNorm), that is a decreasing function of t alone, and the knots are placed at its
values. A fourth coordinate, REST, together with BOS, keeps the norm of the layer's output the same for every t, so that
the next layer, after its own norm, still sees t and not t divided by something that depends on t. The other heads of
the first layer must then output 0, because their output would change the norm. This loses part of the proof's freedom.
A large `anchor` N restores it, because other output then hardly changes the norm (the bypass of Akyürek et al. 2023):
the error falls as 1/N², but so does the remaining precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

import torch
from torch import Tensor

from lengthwise.model import Decoder, DecoderConfig
from lengthwise.model.decoder import Layer
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError
from lengthwise.theory.hinges import DIGITS, relu_weights

ONE, BOS, POSITION, REST = range(4)
"""The reserved coordinates; REST is used only with a norm."""
FIRST = 0
"""The id of the BOS token."""

NormKind = Literal["none", "rms", "layer"]


@dataclass(frozen=True)
class Constructed:
    """A decoder with the weights of the proof, and known properties of its states."""

    decoder: Decoder
    tokens: int
    """T: the tokens after BOS that the feed-forward was built for; positions run from 1 to T + 1."""
    root: float
    """The divisor of the next layer's norm; 1 without a norm."""
    extra: int
    """The number of coordinates after the reserved ones that hold further functions of the position."""

    @property
    def content_start(self) -> int:
        """The first coordinate of the tokens' own content."""
        return (POSITION + 1 if self.decoder.config.norm == "none" else REST + 1) + self.extra

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.embedding.weight.dtype

    def draw(self, sequences: int, seed: int = 0, length: int | None = None) -> Tensor:
        """Draw random sequences: BOS, then `length` − 1 other tokens; by default T + 1 tokens in total."""
        generator = torch.Generator().manual_seed(seed)
        size = (sequences, (length or self.tokens + 1) - 1)
        ids = torch.randint(1, self.decoder.config.vocabulary, size, generator=generator)
        return torch.cat([torch.full((sequences, 1), FIRST), ids], 1)

    @torch.no_grad()
    def tap_outputs(self, ids_BT: Tensor, *names: str) -> Recorder:
        """Return what the decoder computes at these taps."""
        recorder = Recorder()
        self.decoder(ids_BT, taps=dict.fromkeys(names, recorder), only_BT=torch.zeros_like(ids_BT, dtype=torch.bool))
        return recorder

    def head(self, ids_BT: Tensor) -> Tensor:
        """Return the first head's output, (B, T): 1/t."""
        return self.tap_outputs(ids_BT, "layers.0.heads")["layers.0.heads"][:, 0, :, 0]

    def states(self, ids_BT: Tensor) -> Tensor:
        """Return the residual stream after the first layer, (B, T, D)."""
        return self.tap_outputs(ids_BT, "layers.0.residual")["layers.0.residual"]

    def positions(self, ids_BT: Tensor) -> Tensor:
        """Return the coordinate that holds t, (B, T), in the decoder's precision."""
        return self.states(ids_BT)[..., POSITION]


def construct_theorem1_decoder(
    tokens: int = 512,
    width: int = 64,
    *,
    norm: NormKind = "none",
    heads: int = 4,
    head_width: int = 16,
    layers: int = 1,
    vocabulary: int = 32,
    units: int | None = None,
    replacement_points: tuple[Sequence[Decimal], Sequence[Decimal]] | None = None,
    extra_functions: Sequence[Sequence[float]] = (),
    other_heads_scale: float | None = None,
    anchor_size: int = 1,
    attention_scale: float | None = None,
    mask: Literal["causal", "bidirectional"] = "causal",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Constructed:
    """Return a decoder whose first layer writes t into coordinate POSITION.

    `construct_theorem1_decoder(tokens=4, width=4).positions(torch.tensor([[0, 5, 5, 9, 2]]))` is [[1, 2, 3, 4, 5]].
    `units` beyond T are random; `replacement_points` (t, value) replace t by another piecewise linear function of 1/t;
    each of `extra_functions` is a further function of the position, its values at 1, ..., T + 1, in a coordinate of its
    own after POSITION; `other_heads_scale` scales the output of the other heads (1 without a norm, 0 with one);
    `anchor_size` is the size of the embeddings' reserved coordinates under a norm: the larger, the less other
    coordinates affect the norm.
    """
    n, extra = tokens + 1, len(extra_functions)
    reserved = (3 if norm == "none" else 4) + extra
    _check(tokens, width, norm, reserved, extra, replacement_points is not None, vocabulary)
    if anchor_size < 1 or (anchor_size > 1 and norm == "none"):
        raise SpecError(f"an anchor is 1 or more, and only a norm asks for more than 1, not {anchor_size}")
    at, values = replacement_points or ([Decimal(t) for t in range(1, n + 1)],) * 2
    if any(len(one) != n for one in extra_functions):
        raise SpecError(f"each function of the position is given by its {n} values, at 1 to {n}")
    hinges = len(at) - 1
    units = hinges if units is None else units
    if units < hinges or (units > hinges and norm != "none"):
        raise SpecError(f"this construction has {hinges} units; give {'more' if units < hinges else 'no more'} of them")
    config = DecoderConfig(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        head_width=head_width,
        feed_forward="relu",
        feed_forward_width=units,
        norm=norm,
        attention_scale=attention_scale,
        mask=mask,
        biases=norm != "none",
        dropout=0.0,
        attention_dropout=0.0,
        sigma=width**-0.5,
    )
    decoder = Decoder(config, "nope", seed=seed).double().eval()
    with torch.no_grad(), localcontext() as context:
        context.prec = DIGITS
        for layer in _layers(decoder):  # no layer writes to reserved coordinates
            layer.attention.out.weight[:reserved] = 0
            layer.feed_forward.down.weight[:reserved] = 0
        shift = values[0] - at[0] if norm == "none" else Decimal(0)
        content = _embed(decoder, norm, reserved, anchor_size, seed)
        decoder.embedding.weight[:, POSITION] = float(shift)
        for column, one in enumerate(extra_functions):
            decoder.embedding.weight[:, POSITION + 1 + column] = one[0]
        epsilon = Decimal(str(config.norm_epsilon))
        _attend(
            decoder,
            norm,
            content,
            epsilon,
            anchor_size,
            (norm == "none") * 1.0 if other_heads_scale is None else other_heads_scale,
        )
        root = 1.0
        if norm == "none":
            _feed_plain(decoder, at, values, extra_functions, shift)
        else:
            root = _feed_normed(decoder, norm, n, content, epsilon, anchor_size)
    return Constructed(decoder.to(dtype), tokens, root, extra)


def position_state(ids_BT: Tensor, *, width: int = 64, norm: NormKind = "none", seed: int = 0) -> Tensor:
    """Return the states of a perfect counter for these tokens, (B, T, D) in float64, as a reference for probes.

    The first token of each row is taken as BOS. Coordinate POSITION of the result is t = 1, 2, ..., T, the others are
    random as in the proof. So a linear probe finds the position up to about 10⁻¹⁵ T, the best that any probe of a
    trained model can reach.
    """
    if ids_BT.ndim != 2 or ids_BT.shape[1] < 2:
        raise SpecError(f"ids must be (batch, tokens) with at least two tokens, not {tuple(ids_BT.shape)}")
    if bool((ids_BT[:, 1:] == ids_BT[:, :1]).any()) or len(set(ids_BT[:, 0].tolist())) > 1:
        raise SpecError("the first token anchors the count: it must be the same in every row and nowhere else")
    found, inverse_BT = ids_BT.unique(return_inverse=True)
    first = inverse_BT[0, 0]
    # The first token swaps ids with the token that had id 0.
    renamed_BT = torch.where(inverse_BT == first, 0, torch.where(inverse_BT == 0, first, inverse_BT))
    made = construct_theorem1_decoder(ids_BT.shape[1] - 1, width, norm=norm, vocabulary=max(2, len(found)), seed=seed)
    return made.states(renamed_BT)


def extrapolated_position(tokens: int, position: int | Tensor) -> float | Tensor:
    """Return the output of the construction for T tokens at position n > T: 1 + 2T − T(T+1)/n, always below 2T + 1.

    Its last piece, linear in 1/t, continues: with T = 20 the output is 21.91 at position 22, 27 at 30, 30.5 at 40.
    """
    return 1 + 2 * tokens - tokens * (tokens + 1) / position


# --- the weights -----------------------------------------------------------------------------------------------------


def _layers(decoder: Decoder) -> list[Layer]:
    return [layer for layer in decoder.layers if isinstance(layer, Layer)]


def _sign(norm: NormKind) -> int:
    """Return the sign of the BOS mark, −1 for LayerNorm: (1, −1, 0, 0) and (1, 0, 0, −1) have equal norm, mean zero."""
    return -1 if norm == "layer" else 1


def _embed(decoder: Decoder, norm: NormKind, reserved: int, anchor: int, seed: int) -> Decimal:
    """Set the embeddings; return the squared norm of a token's own content, which a norm needs to be equal for all."""
    weight_VD = decoder.embedding.weight
    generator = torch.Generator().manual_seed(seed)
    own_VD = torch.randn(len(weight_VD), weight_VD.shape[1] - reserved, generator=generator, dtype=torch.float64)
    square = Decimal(own_VD.shape[1])
    if norm == "layer":
        own_VD = own_VD - own_VD.mean(1, keepdim=True)
        square = square if square > 1 else Decimal(0)  # one number with mean zero is zero
    if norm != "none" and square:
        own_VD = own_VD * float(square.sqrt()) / own_VD.norm(dim=1, keepdim=True)
    weight_VD[:, reserved:] = own_VD
    weight_VD[:, :reserved] = 0
    weight_VD[:, ONE] = 1
    weight_VD[FIRST, BOS] = _sign(norm)
    if norm != "none":
        weight_VD[:, REST] = _sign(norm)
        weight_VD[FIRST, REST] = 0
        weight_VD[:, :reserved] *= anchor
    return square


def _attend(decoder: Decoder, norm: NormKind, content: Decimal, epsilon: Decimal, anchor: int, others: float) -> None:
    """Set equal keys, and the value 1 for BOS and 0 for others (Eqs. 18 and 19); W_Q stays random."""
    attention = _layers(decoder)[0].attention
    width = attention.q.weight.shape[0] // attention.heads
    # The weights cancel the norm's divisor, which is the same for every token.
    root = (
        1.0 if norm == "none" else float(((2 * anchor**2 + content) / decoder.config.width + epsilon).sqrt()) / anchor
    )
    attention.k.weight[:width] = 0
    attention.k.weight[:width, ONE] = root
    attention.v.weight[:width] = 0
    attention.v.weight[0, BOS] = root * _sign(norm)
    attention.out.weight[:, :width] = 0
    attention.out.weight[POSITION, 0] = 1
    attention.out.weight[:, width:] *= others


def _shuffled(values_N: Sequence[float]) -> Tensor:
    """Return the units in a fixed random order: in sorted order, rounding errors of similar terms accumulate.

    At T = 512 in fp32 the largest error is 2 · 10⁻⁴ in this order, and 5 · 10⁻⁴ in sorted order.
    """
    order = torch.randperm(len(values_N), generator=torch.Generator().manual_seed(0))
    return torch.tensor(values_N, dtype=torch.float64)[order]


def _feed_plain(
    decoder: Decoder,
    at: Sequence[Decimal],
    values: Sequence[Decimal],
    written: Sequence[Sequence[float]],
    shift: Decimal,
) -> None:
    """Set units ReLU(1/k − u), with constants from ONE; `shift` is the value of POSITION before the head adds u."""
    feed = _layers(decoder)[0].feed_forward
    u_N, hinges = [1 / t for t in at], len(at) - 1
    feed.up.weight[:hinges] = 0
    feed.up.weight[:hinges, ONE] = _shuffled([float(u + shift) for u in u_N[:hinges]])
    feed.up.weight[:hinges, POSITION] = -1
    feed.down.weight[:, :hinges] = 0
    to_write = [value - u for value, u in zip(values, u_N, strict=True)]
    feed.down.weight[POSITION, :hinges] = _shuffled(relu_weights(u_N, to_write))
    for column, one in enumerate(written):
        found = relu_weights(u_N, [Decimal(value) for value in one])
        feed.down.weight[POSITION + 1 + column, :hinges] = _shuffled(found)


def normed_reciprocal(
    norm: NormKind, t: Decimal, width: int, content_norm: Decimal, epsilon: Decimal, anchor_size: int = 1
) -> Decimal:
    """Return the feed-forward's input for 1/t after its norm; without a norm, 1/t."""
    u, d = 1 / t, Decimal(width)
    if norm == "none":
        return u
    square = 2 * anchor_size**2 + content_norm + u * u
    if norm == "rms":
        return u / (square / d + epsilon).sqrt()
    return u / (square / d - (u / d) ** 2 + epsilon).sqrt()


def _feed_normed(decoder: Decoder, norm: NormKind, n: int, content: Decimal, epsilon: Decimal, anchor: int) -> float:
    """Set knots at the normalised values, and rewrite BOS and REST so that all states have the same norm.

    Return the divisor of the next layer's norm.
    """
    feed, width, mark = _layers(decoder)[0].feed_forward, decoder.config.width, Decimal(_sign(norm) * anchor)
    positions = [Decimal(t) for t in range(1, n + 1)]
    seen_N = [normed_reciprocal(norm, t, width, content, epsilon, anchor) for t in positions]
    feed.up.weight[:] = 0
    feed.up.weight[:, POSITION] = -1
    if norm == "layer":  # ONE, BOS and REST sum to 0, so their mean after LayerNorm cancels what it subtracted
        feed.up.weight[:, [ONE, BOS, REST]] = 1 / 3
    feed.up.bias[:] = _shuffled([float(z) for z in seen_N[:-1]])
    feed.down.weight[:] = 0
    if norm == "rms":
        square = Decimal(n) ** 2
        balance = [((square - t * t).sqrt(), Decimal(0)) for t in positions]
    else:  # the sum must be the same too: BOS + REST = −ONE − t
        square = Decimal(n) ** 2 + Decimal(n + anchor) ** 2 / 2
        sums = [-anchor - t for t in positions]
        roots = [(2 * (square - t * t) - total**2).sqrt() for t, total in zip(positions, sums, strict=True)]
        balance = [((total + root) / 2, (total - root) / 2) for total, root in zip(sums, roots, strict=True)]
    for coordinate, target, before in (
        (POSITION, positions, [1 / t for t in positions]),
        (BOS, [one for one, _ in balance], [mark, *[Decimal(0)] * (n - 1)]),
        (REST, [other for _, other in balance], [Decimal(0), *[mark] * (n - 1)]),
    ):
        to_write = [value - held for value, held in zip(target, before, strict=True)]
        feed.down.weight[coordinate] = _shuffled(relu_weights(seen_N, to_write))
        feed.down.bias[coordinate] = float(to_write[0])
    return float(((anchor**2 + square + content) / width + epsilon).sqrt())


def _check(
    tokens: int, width: int, norm: NormKind, reserved: int, extra: int, other_line: bool, vocabulary: int
) -> None:
    if tokens < 1:
        raise SpecError(f"the theorem speaks of at least one token after BOS, not {tokens}")
    if norm not in {"none", "rms", "layer"}:
        raise SpecError(f"norm is none, rms or layer, not {norm!r}")
    if width < max(4, reserved):
        raise SpecError(f"the construction needs a width of at least {max(4, reserved)}, not {width}")
    if norm != "none" and (extra or other_line):
        raise SpecError("other functions of the position are built without a norm; leave out norm")
    if vocabulary < 2:
        raise SpecError(f"the vocabulary holds BOS and at least one more token, so 2 or more, not {vocabulary}")
