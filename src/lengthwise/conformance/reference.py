"""A decoder written out in float64, one sequence at a time: no batch, no cache, no fused kernel, no shortcut.

It uses the encoding's hooks in their dense form, and of `lengthwise.model` only the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.encoding.base import Encoding, QueriesAndKeys
from lengthwise.model import Decoder
from lengthwise.model.layer import Layer
from lengthwise.normaliser.softmax import Softmax


@dataclass(frozen=True)
class Triangle:
    """The mask of `tokens` tokens that each see themselves and the earlier ones."""

    tokens: int
    start: int = 0
    may_be_empty: bool = False

    @property
    def allowed_BQK(self) -> Tensor:
        """True where a key is visible."""
        return torch.ones(1, self.tokens, self.tokens).tril() > 0


def reference_logits(decoder: Decoder, ids_T: Tensor, places_T: Tensor, budget: int) -> Tensor:
    """The logits (T, V) of one sequence at the given positions, differentiable."""
    config, parameters = decoder.config, dict(decoder.named_parameters())
    parts = [part for part in decoder.encodings if isinstance(part, Encoding)]
    positions_1T = places_T[None].to(torch.float64)
    x = parameters["embedding.weight"][ids_T]
    x = parts[0].embed(x[None], positions_1T)[0]

    def normed(name: str, x_TD: Tensor) -> Tensor:
        mean_square = (x_TD * x_TD).sum(-1, keepdim=True) / config.width
        return x_TD / (mean_square + config.norm_epsilon) ** 0.5 * parameters[f"{name}.weight"]

    for layer in range(config.layers):
        encoding, at = parts[decoder.which[layer]], f"layers.{layer}"
        h = normed(f"{at}.attention_norm", x)
        q, k, v = (_heads(h @ parameters[f"{at}.attention.{name}.weight"].T, config.heads) for name in "qkv")
        length_1 = torch.tensor([budget if encoding.prefix_stable else len(ids_T)])
        state = encoding.prepare(positions_1T, positions_1T, length_1)
        marks = encoding.mark(h[None])
        q, k = encoding.rotate(q, k, state)
        made = decoder.layers[layer]
        assert isinstance(made, Layer)
        factor = _factor(made, encoding, h[None])
        inside, after = (1.0, factor) if made.attention.temperature.scales_bias else (factor, 1.0)
        allowed_1TT = Triangle(len(ids_T)).allowed_BQK
        q = q * inside * config.scale
        pair = QueriesAndKeys(q, k, positions_1T, positions_1T, allowed_1TT, state, config.scale, marks)
        heads = _attend(encoding, pair, v, after, made)
        x = x + heads.transpose(1, 2).flatten(2)[0] @ parameters[f"{at}.attention.out.weight"].T
        h = normed(f"{at}.feed_forward_norm", x)
        gate = h @ parameters[f"{at}.feed_forward.gate.weight"].T
        up = h @ parameters[f"{at}.feed_forward.up.weight"].T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ parameters[f"{at}.feed_forward.down.weight"].T
    return normed("norm", x) @ parameters["head.weight"].T


def _heads(x_TN: Tensor, heads: int) -> Tensor:
    return x_TN.view(1, x_TN.shape[0], heads, -1).transpose(1, 2)


def _factor(layer: Layer, encoding: Encoding, x_1TD: Tensor) -> Tensor | float:
    """The temperature's factor, with the tokens counted from 1."""
    temperature, tokens = layer.attention.temperature, x_1TD.shape[1]
    if not temperature.acts(encoding):
        return 1.0
    found = temperature.checked_factor(torch.arange(1.0, tokens + 1, dtype=x_1TD.dtype)[None], x_1TD, encoding)
    return 1.0 if found is None else found


def _attend(encoding: Encoding, pair: QueriesAndKeys, v: Tensor, factor: Tensor | float, layer: Layer) -> Tensor:
    tokens = v.shape[2]
    scores = torch.einsum("bhqe,bhke->bhqk", pair.q_BHQE, pair.k_BHKE)
    bias = encoding.bias(pair.query_positions_BQ, pair.key_positions_BK)
    if bias is not None:
        scores = scores + bias
    scores = encoding.score(scores, pair) * factor
    normaliser, masked = layer.attention.normaliser, scores.masked_fill(~pair.allowed_BQK[:, None], -torch.inf)
    if encoding.overrides("weigh"):
        weights = encoding.weigh(masked, pair)
    elif type(normaliser) is not Softmax:
        weights = normaliser.weigh(masked, Triangle(tokens))
    else:
        # Softmax row by row over the visible keys only, so that no mask is needed.
        rows = []
        for i in range(tokens):
            row = scores[:, :, i, : i + 1]
            row = torch.exp(row - row.max(-1, keepdim=True).values)
            rows.append(F.pad(row / row.sum(-1, keepdim=True), (0, tokens - 1 - i)))
        weights = torch.stack(rows, 2)
    out = weights @ v
    addition = encoding.read(weights, pair)
    return out if addition is None else out + addition
