"""Inkling's relative bias, which depends on the query's token. Thinking Machines 2026, from transformers' code."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_
from lengthwise.spec import SpecError


class Inkling(Encoding):
    """Add (W_h x_i) · p[i − j] to the score of query i and key j, up to distance `extent`; from there on add nothing.

    The layer input x_i of the query mixes `rank` profiles over distance, which all heads share, into one bias per
    distance. With a constant x it is a learned table of relative biases; beyond its extent it is NoPE. Each layer has
    its own. With `window`, keys from that distance on are hidden, as in the local layers of Inkling, whose extent is
    their window. Inkling has extent 1024, 512 in local layers; it also normalises queries and keys, scales by 1/width
    and convolves keys and values, which this model does not.
    """

    paper = "Thinking Machines 2026, thinkingmachines/Inkling"
    formula = "inkling"
    shared = False

    def __init__(self, geometry: Geometry, *, extent: int = 64, rank: int = 16, window: int | None = None) -> None:
        super().__init__(geometry)
        if extent < 1 or rank < 1 or (window is not None and window < 1):
            raise SpecError(
                f"inkling needs an extent, a rank and a window of at least 1, not extent={extent}, rank={rank}, "
                f"window={window}"
            )
        self.extent, self.rank, self.window = extent, rank, window
        self.mix = nn.Parameter(torch.empty(geometry.heads * rank, geometry.width))
        self.profiles = nn.Parameter(torch.empty(rank, extent))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.mix, self.geometry.width**-0.5, stream("mix"))
        normal_(self.profiles, self.geometry.bias_std, stream("profiles"))

    def mark(self, x_BTD: Tensor) -> Tensor:
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        mixed_BTN = F.linear(x_BTD.to(dtype), self.mix.to(dtype))
        return mixed_BTN.unflatten(-1, (self.geometry.heads, self.rank)).transpose(1, 2)

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        assert pair.marks_BHKC is not None
        mixed_BHQC = pair.marks_BHKC[:, :, pair.start : pair.start + scores_BHQK.shape[2]].to(scores_BHQK.dtype)
        by_distance_BHQN = mixed_BHQC @ self.profiles.to(scores_BHQK.dtype)
        distance_B1QK = pair.distance_BQK[:, None]
        index_B1QK = distance_B1QK.clamp(0, self.extent - 1).long()
        bias_BHQK = by_distance_BHQN.gather(-1, index_B1QK.expand_as(scores_BHQK))
        within_B1QK = (distance_B1QK >= 0) & (distance_B1QK < self.extent)
        scores_BHQK = scores_BHQK + torch.where(within_B1QK, bias_BHQK, 0.0)
        if self.window is not None:
            scores_BHQK = scores_BHQK.masked_fill(distance_B1QK.abs() >= self.window, -torch.inf)
        return scores_BHQK
