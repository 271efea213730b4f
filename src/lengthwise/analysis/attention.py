"""Statistics of each head's attention: entropy, sink mass, distances. A T × T matrix is never held in memory.

The weights are those after softmax, with bias and mask, taken from the computation of the layer's output itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from lengthwise.device import HOST, without_waiting
from lengthwise.encoding.base import Encoding
from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case, evaluation_cases, splits_and_lengths
from lengthwise.evaluation.onepass import stack_positions
from lengthwise.model import Decoder
from lengthwise.model.taps import QueryBlockTap, tap_names
from lengthwise.normaliser.base import Normaliser
from lengthwise.spec import SpecError
from lengthwise.task.base import Task

ROWS = 128
"""The number of queries in a block."""
BINS = 40
"""Bins of normalised distance, .025 wide: their edges include .125, .875 and the edges of the published bins of .05."""
NEAR, FAR = BINS // 8, BINS - BINS // 8
"""Bins below NEAR are distances below .125, those from FAR on are .875 and more."""
TOKENS = 8192
"""The maximum number of tokens in a batch; a single sequence may be longer."""

See = Callable[[int, Tensor, int], None]
"""A callback with the layer, the weights of a block of queries (B, H, R, K), and the index of the first query."""


@dataclass(frozen=True)
class Batch:
    """Sequences of equal length, so that there is no padding: `Batch(ids_BT)`."""

    ids_BT: Tensor
    counted_BT: Tensor | None = None
    """The mask of the queries that statistics include; None means all."""
    length: int | None = None
    """The length in the task's unit."""
    seen: bool = True
    """Whether the model was trained on this length."""
    cases: tuple[Case, ...] = ()


class AttentionSource(Protocol):
    """A model whose attention weights can be read: a `DecoderAttentionSource` or a `HuggingFaceAttentionSource`."""

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def heads(self) -> int:
        """The number of heads in each layer."""
        ...

    @property
    def weights_sum_to_one(self) -> Sequence[bool]:
        """For each layer, whether a query's weights sum to 1."""
        ...

    def visit_attention_weights(self, batch: Batch, on_weights: See, queries_per_block: int = ROWS) -> None:
        """Call `on_weights` with each layer's weights in turn, `queries_per_block` at a time; keys end with them."""
        ...


class DecoderAttentionSource:
    """The attention of our decoder with a kind of positions; the model computes one block of queries at a time."""

    def __init__(self, decoder: Decoder, positions: Positions | None = None) -> None:
        if decoder.config.mask != "causal":
            raise SpecError(f"analyses of attention are of causal models; this one's mask is {decoder.config.mask}")
        self.decoder = decoder.eval()
        self.positions = positions or Consecutive()

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.decoder.config.layers

    @property
    def heads(self) -> int:
        """The number of heads in each layer."""
        return self.decoder.config.heads

    @property
    def weights_sum_to_one(self) -> list[bool]:
        """For each layer, what its encoding and its normaliser declare."""
        parts = [part for part in self.decoder.encodings if isinstance(part, Encoding)]
        complete = [part.complete for part in self.decoder.modules() if isinstance(part, Normaliser)]
        return [parts[which].complete and all(complete) for which in self.decoder.which]

    def visit_attention_weights(self, batch: Batch, on_weights: See, queries_per_block: int = ROWS) -> None:
        """Run one forward pass without logits; a block's weights are freed before the next block is computed."""
        layer_of = {f"layers.{layer}.weights": layer for layer in range(self.layers)}
        assert set(layer_of) <= set(tap_names(self.layers))
        tokens = batch.ids_BT.shape[1]
        positions_BT, budget_B = None, None
        if batch.cases:
            positions_BT = stack_positions(
                [case.places(self.positions) for case in batch.cases], tokens, [tokens] * len(batch.cases)
            )
            budget_B = torch.tensor([case.budget for case in batch.cases])
        with torch.no_grad():
            self.decoder(
                without_waiting(batch.ids_BT, next(self.decoder.parameters()).device),
                positions_BT=positions_BT,
                budget=budget_B,
                taps={
                    "layers.*.weights": QueryBlockTap(
                        lambda name, weights, start: on_weights(layer_of[name], weights.to(HOST), start),
                        queries_per_block,
                    )
                },
                only_BT=torch.zeros_like(batch.ids_BT, dtype=torch.bool),
            )


def task_batches(
    task: Task, lengths: Sequence[int] | str | None = None, examples: int = 10, max_tokens: int | None = None
) -> list[Batch]:
    """Return the first examples of each tested length, with correct answers; queries that predict the answer count.

    The end token is not an input. Sequences longer than `max_tokens`, the encoding's, are left out.
    """
    found: list[Batch] = []
    for split, length in splits_and_lengths(task, lengths):
        groups: dict[int, list[Case]] = {}
        for case in evaluation_cases(task, split, length, examples):
            groups.setdefault(len(case.ids) - 1, []).append(case)
        for tokens, alike in sorted(groups.items()):
            if max_tokens is not None and tokens > max_tokens:
                continue
            together = max(1, TOKENS // tokens)
            for start in range(0, len(alike), together):
                chosen = tuple(alike[start : start + together])
                ids_BT = torch.tensor([case.ids[:tokens] for case in chosen])
                said_B1 = torch.tensor([[case.prompt - 1] for case in chosen])
                counted_BT = torch.arange(tokens) >= said_B1
                found.append(Batch(ids_BT, counted_BT, length, length <= task.longest, chosen))
    return found


@dataclass
class HeadStatistics:
    """Sums of attention statistics by layer, head and query position; add blocks, then read means.

    With weights w over keys 0..t of query t: entropy −Σ w ln w (nats); `sink` w₀; `distance` Σ w_k (t − k);
    `argmax` t − argmax w, where equal weights share; both are also divided by t + 1, the published normalisation.
    e.g. for uniform attention at t = 3: entropy ln 4, sink 1/4, distance 1.5, normalised .375.
    """

    layers: int
    heads: int
    tokens: int
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Name → (L, H, T), float64."""
    count_T: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The number of counted queries at each position."""
    argmax_LHN: Tensor = field(default_factory=lambda: torch.zeros(0))
    """How many queries have their largest weight in each bin of normalised distance."""
    weight_LHN: Tensor = field(default_factory=lambda: torch.zeros(0))
    """How much weight lies in each bin, over all counted queries."""
    least_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    most_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The smallest and the largest sum of a query's weights, over all queries."""
    future_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The largest weight on a key after the query; 0 in a causal model."""

    def __post_init__(self) -> None:
        shape = (self.layers, self.heads, self.tokens)
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name in MEANS}
        self.count_T = torch.zeros(self.tokens, dtype=torch.float64)
        self.argmax_LHN, self.weight_LHN = (
            torch.zeros(self.layers, self.heads, BINS, dtype=torch.float64) for _ in range(2)
        )
        self.least_L = torch.full((self.layers,), math.inf, dtype=torch.float64)
        self.most_L, self.future_L = (torch.zeros(self.layers, dtype=torch.float64) for _ in range(2))

    def add(self, layer: int, weights_BHRK: Tensor, first_query: int, counted_BT: Tensor | None = None) -> None:
        """Add the statistics of a block of queries."""
        batch, _, rows, keys = weights_BHRK.shape
        query_R, key_K = torch.arange(first_query, first_query + rows), torch.arange(keys)
        back_RK = query_R[:, None] - key_K
        later_RK = back_RK < 0
        total_BHR = weights_BHRK.sum(-1, dtype=torch.float64)
        self.least_L[layer] = torch.minimum(self.least_L[layer], total_BHR.min())
        self.most_L[layer] = torch.maximum(self.most_L[layer], total_BHR.max())
        if bool(later_RK.any()):
            first = int(later_RK.any(0).nonzero()[0])  # keys before it are in no query's future
            future = weights_BHRK[..., first:].masked_fill(~later_RK[:, first:], 0).max()
            self.future_L[layer] = torch.maximum(self.future_L[layer], future.double())
        counted_BR = (
            torch.ones(batch, rows, dtype=torch.bool)
            if counted_BT is None
            else counted_BT[:, first_query : first_query + rows]
        )
        if not bool(counted_BR.any()):
            return
        if layer == 0:
            self.count_T[first_query : first_query + rows] += counted_BR.sum(0)
        weights_BHRK = weights_BHRK * counted_BR[:, None, :, None]
        largest_BHRK = _largest(weights_BHRK, later_RK) * counted_BR[:, None, :, None]
        # Multiply by the vector of key positions, which is cheaper than by a matrix of distances.
        places_K = key_K.to(weights_BHRK.dtype)
        place_BHR, argmax_BHR = weights_BHRK @ places_K, largest_BHRK @ places_K
        behind_BHR = query_R * counted_BR[:, None] - argmax_BHR.double()
        kept_BHR = total_BHR * counted_BR[:, None]
        distance_BHR = kept_BHR * query_R - place_BHR.double()
        per_token_R = 1 / (query_R + 1).double()
        # ln(t + 1) is the maximum entropy; it is 0 for the first query, whose relative entropy counts as 0.
        most_R = (query_R + 1).double().log().clamp(min=1e-9)
        tiny = torch.finfo(weights_BHRK.dtype).tiny
        entropy_BHR = -(weights_BHRK * weights_BHRK.clamp(min=tiny).log()).sum(-1, dtype=torch.float64)
        found = {
            "entropy": entropy_BHR,
            "relative_entropy": entropy_BHR / most_R,
            "sink": weights_BHRK[..., 0].double(),
            "distance": distance_BHR,
            "relative_distance": distance_BHR * per_token_R,
            "argmax": behind_BHR,
            "relative_argmax": behind_BHR * per_token_R,
            "total": kept_BHR,
        }
        for name, value_BHR in found.items():
            self.sums[name][layer, :, first_query : first_query + rows] += value_BHR.sum(0)
        bins_RK = (BINS * back_RK.clamp(min=0)) // (query_R[:, None] + 1)  # in integers, so that edges are exact
        for held_LHN, each_BHRK in ((self.weight_LHN, weights_BHRK), (self.argmax_LHN, largest_BHRK)):
            held_LHN[layer].index_add_(1, bins_RK.flatten(), each_BHRK.sum(0).flatten(1).double())

    def mean_LH(self, statistic: str) -> Tensor:
        """Return the mean of a statistic over all counted queries."""
        return self.sums[statistic].sum(-1) / self.count_T.sum()

    def near_share_LH(self, histogram: str = "weight") -> Tensor:
        """Return the share of distances below .125, of all weights or of the largest weights (`argmax`)."""
        return _share(self.weight_LHN if histogram == "weight" else self.argmax_LHN, slice(0, NEAR))

    def far_share_LH(self, histogram: str = "weight") -> Tensor:
        """Return the share of distances of .875 and more."""
        return _share(self.weight_LHN if histogram == "weight" else self.argmax_LHN, slice(FAR, BINS))


MEANS = {
    "entropy": "nats",
    "relative_entropy": "share of the most possible, ln(t + 1)",
    "sink": "weight on the first token",
    "distance": "tokens back, weighted",
    "relative_distance": "weighted distance / (t + 1)",
    "argmax": "tokens back of the largest weight",
    "relative_argmax": "the same / (t + 1), as published",
    "total": "sum of the weights",
}
"""The statistics of `HeadStatistics`, with their units."""


def _largest(weights_BHRK: Tensor, later_RK: Tensor) -> Tensor:
    """Return 1 at the largest weight of each row; weights that are equal up to 1e-5 share it.

    Without positions, equal tokens have equal weights in the first layer, and rounding would decide the argmax.
    """
    most_BHR1 = weights_BHRK.amax(-1, keepdim=True)
    tied_BHRK = ((weights_BHRK >= most_BHR1 * (1 - 1e-5)) & ~later_RK).to(weights_BHRK.dtype)
    return tied_BHRK / tied_BHRK.sum(-1, keepdim=True)


def _share(counts_LHN: Tensor, part: slice) -> Tensor:
    return counts_LHN[..., part].sum(-1) / counts_LHN.sum(-1)


def attention_statistics(
    source: AttentionSource, batches: Sequence[Batch], queries_per_block: int = ROWS
) -> HeadStatistics:
    """Return the statistics of all heads over batches, e.g. of `DecoderAttentionSource(decoder)`, `[Batch(ids_BT)]`."""
    if not batches:
        raise SpecError("there is nothing to look at: no example has room, or no length was given")
    heads = HeadStatistics(source.layers, source.heads, max(batch.ids_BT.shape[1] for batch in batches))
    for batch in batches:

        def see(layer: int, weights_BHRK: Tensor, start: int, counted_BT: Tensor | None = batch.counted_BT) -> None:
            heads.add(layer, weights_BHRK, start, counted_BT)

        source.visit_attention_weights(batch, see, queries_per_block)
    return heads
