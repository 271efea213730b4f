"""What each head attends to, a block of queries at a time: entropy, sink mass, distances; T × T is never held.

The weights are those after softmax, bias and mask included, of the path that also gives the layer's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from lengthwise.encoding.base import Encoding
from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case, cases, grid
from lengthwise.evaluation.onepass import stacked
from lengthwise.model import Decoder
from lengthwise.model.taps import Blocks, tap_names
from lengthwise.spec import SpecError
from lengthwise.task.base import Task

ROWS = 128
"""Queries of a block."""
BINS = 40
"""Of normalised distance, .025 each: .125 and .875 are edges, and so are those of the published bins of .05."""
NEAR, FAR = BINS // 8, BINS - BINS // 8
"""Bins below NEAR are distances below .125, those from FAR on are .875 and more."""
TOKENS = 8192
"""Tokens of a batch, at most; a single sequence may be longer."""

See = Callable[[int, Tensor, int], None]
"""Gets a layer, the weights of some queries (B, H, R, K), and the first of these queries."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one number of tokens, so that none is padded: `Batch(ids_BT)`."""

    ids_BT: Tensor
    counted_BT: Tensor | None = None
    """The queries that statistics count; none means all."""
    length: int | None = None
    """The task's length."""
    seen: bool = True
    """Whether lengths like this one were trained."""
    cases: tuple[Case, ...] = ()


class Source(Protocol):
    """Something whose attention can be listened to: `DecoderSource(decoder)`, `HuggingFaceSource(model)`."""

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def heads(self) -> int:
        """The number of heads in each layer."""
        ...

    @property
    def complete(self) -> Sequence[bool]:
        """For each layer, whether a query's weights sum to 1."""
        ...

    def listen(self, batch: Batch, see: See, rows: int = ROWS) -> None:
        """Show every layer's weights, first layer first, in blocks of so many queries; keys end at the last query."""
        ...


class DecoderSource:
    """The attention of our decoder under a kind of positions; blocks come from the model, one at a time."""

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
    def complete(self) -> list[bool]:
        """By the claims of the encodings."""
        parts = [part for part in self.decoder.encodings if isinstance(part, Encoding)]
        return [parts[which].complete for which in self.decoder.which]

    def listen(self, batch: Batch, see: See, rows: int = ROWS) -> None:
        """One forward pass without a head; the weights of a block are gone when the next is made."""
        layer_of = {f"layers.{layer}.weights": layer for layer in range(self.layers)}
        assert set(layer_of) <= set(tap_names(self.layers))
        tokens = batch.ids_BT.shape[1]
        positions_BT, budget_B = None, None
        if batch.cases:
            positions_BT = stacked(
                [case.places(self.positions) for case in batch.cases], tokens, [tokens] * len(batch.cases)
            )
            budget_B = torch.tensor([case.budget for case in batch.cases])
        with torch.no_grad():
            self.decoder(
                batch.ids_BT,
                positions_BT=positions_BT,
                budget=budget_B,
                taps={
                    "layers.*.weights": Blocks(lambda name, weights, start: see(layer_of[name], weights, start), rows)
                },
                only_BT=torch.zeros_like(batch.ids_BT, dtype=torch.bool),
            )


def batches(
    task: Task, lengths: Sequence[int] | None = None, examples: int = 10, limit: int | None = None
) -> list[Batch]:
    """The first examples of each tested length, right answers given; counted are the queries that say the answer.

    The end token is no input. `limit` is the encoding's: what has no room is left out.
    """
    found: list[Batch] = []
    for split, length in grid(task, lengths):
        groups: dict[int, list[Case]] = {}
        for case in cases(task, split, length, examples):
            groups.setdefault(len(case.ids) - 1, []).append(case)
        for tokens, alike in sorted(groups.items()):
            if limit is not None and tokens > limit:
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
class Heads:
    """Sums over queries of what each head does, by layer and query; add blocks, then read means.

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
    """How many queries of each position were counted."""
    argmax_LHN: Tensor = field(default_factory=lambda: torch.zeros(0))
    """How many queries have their largest weight in each bin of normalised distance."""
    weight_LHN: Tensor = field(default_factory=lambda: torch.zeros(0))
    """How much weight lies in each bin, over all counted queries."""
    least_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    most_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The smallest and the largest sum of a row, of all queries."""
    future_L: Tensor = field(default_factory=lambda: torch.zeros(0))
    """The largest weight on a later key."""

    def __post_init__(self) -> None:
        shape = (self.layers, self.heads, self.tokens)
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name in MEANS}
        self.count_T = torch.zeros(self.tokens, dtype=torch.float64)
        self.argmax_LHN, self.weight_LHN = (
            torch.zeros(self.layers, self.heads, BINS, dtype=torch.float64) for _ in range(2)
        )
        self.least_L = torch.full((self.layers,), math.inf, dtype=torch.float64)
        self.most_L, self.future_L = (torch.zeros(self.layers, dtype=torch.float64) for _ in range(2))

    def add(self, layer: int, weights_BHRK: Tensor, start: int, counted_BT: Tensor | None = None) -> None:
        """Count a block of queries."""
        batch, _, rows, keys = weights_BHRK.shape
        query_R, key_K = torch.arange(start, start + rows), torch.arange(keys)
        back_RK = query_R[:, None] - key_K
        later_RK = back_RK < 0
        total_BHR = weights_BHRK.sum(-1, dtype=torch.float64)
        self.least_L[layer] = torch.minimum(self.least_L[layer], total_BHR.min())
        self.most_L[layer] = torch.maximum(self.most_L[layer], total_BHR.max())
        if bool(later_RK.any()):
            first = int(later_RK.any(0).nonzero()[0])  # keys before it are nobody's future
            future = weights_BHRK[..., first:].masked_fill(~later_RK[:, first:], 0).max()
            self.future_L[layer] = torch.maximum(self.future_L[layer], future.double())
        counted_BR = (
            torch.ones(batch, rows, dtype=torch.bool) if counted_BT is None else counted_BT[:, start : start + rows]
        )
        if not bool(counted_BR.any()):
            return
        if layer == 0:
            self.count_T[start : start + rows] += counted_BR.sum(0)
        weights_BHRK = weights_BHRK * counted_BR[:, None, :, None]
        largest_BHRK = _largest(weights_BHRK, later_RK) * counted_BR[:, None, :, None]
        # Products with a vector of keys, not a matrix of distances per head.
        places_K = key_K.to(weights_BHRK.dtype)
        place_BHR, argmax_BHR = weights_BHRK @ places_K, largest_BHRK @ places_K
        behind_BHR = query_R * counted_BR[:, None] - argmax_BHR.double()
        kept_BHR = total_BHR * counted_BR[:, None]
        distance_BHR = kept_BHR * query_R - place_BHR.double()
        per_token_R = 1 / (query_R + 1).double()
        # ln(t + 1) is the most there can be; the first query has no choice and counts as 0.
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
            self.sums[name][layer, :, start : start + rows] += value_BHR.sum(0)
        bins_RK = (BINS * back_RK.clamp(min=0)) // (query_R[:, None] + 1)  # in whole numbers: edges are exact
        for held_LHN, each_BHRK in ((self.weight_LHN, weights_BHRK), (self.argmax_LHN, largest_BHRK)):
            held_LHN[layer].index_add_(1, bins_RK.flatten(), each_BHRK.sum(0).flatten(1).double())

    def mean_LHT(self, name: str) -> Tensor:
        """The mean of a statistic at each query; not a number where none was counted."""
        return self.sums[name] / self.count_T

    def mean_LH(self, name: str) -> Tensor:
        """The mean of a statistic over all counted queries."""
        return self.sums[name].sum(-1) / self.count_T.sum()

    def near_LH(self, how: str = "weight") -> Tensor:
        """The share of distances below .125, of weights or of their maxima (`argmax`)."""
        return _share(self.weight_LHN if how == "weight" else self.argmax_LHN, slice(0, NEAR))

    def far_LH(self, how: str = "weight") -> Tensor:
        """The share of distances of .875 and more."""
        return _share(self.weight_LHN if how == "weight" else self.argmax_LHN, slice(FAR, BINS))


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
"""What `Heads` keeps, with its unit."""


def _largest(weights_BHRK: Tensor, later_RK: Tensor) -> Tensor:
    """1 at the largest weight of each row; several that are equal, to 1e-5, share it.

    Without positions equal tokens have equal weights in the first layer: which is the largest, rounding would decide.
    """
    most_BHR1 = weights_BHRK.amax(-1, keepdim=True)
    tied_BHRK = ((weights_BHRK >= most_BHR1 * (1 - 1e-5)) & ~later_RK).to(weights_BHRK.dtype)
    return tied_BHRK / tied_BHRK.sum(-1, keepdim=True)


def _share(counts_LHN: Tensor, part: slice) -> Tensor:
    return counts_LHN[..., part].sum(-1) / counts_LHN.sum(-1)


def observe(source: Source, given: Sequence[Batch], rows: int = ROWS) -> Heads:
    """The statistics of every head over some batches: `observe(DecoderSource(decoder), [Batch(ids_BT)])`."""
    if not given:
        raise SpecError("there is nothing to look at: no example has room, or no length was given")
    heads = Heads(source.layers, source.heads, max(batch.ids_BT.shape[1] for batch in given))
    for batch in given:

        def see(layer: int, weights_BHRK: Tensor, start: int, counted_BT: Tensor | None = batch.counted_BT) -> None:
            heads.add(layer, weights_BHRK, start, counted_BT)

        source.listen(batch, see, rows)
    return heads
