"""Rotary positions within a window: the local layers of models that mix them with global ones."""

import torch
from torch import Tensor

from lengthwise.encoding.base import Geometry
from lengthwise.encoding.rope import Rope
from lengthwise.spec import SpecError


class Local(Rope):
    """RoPE among the last `window` positions, the query's own among them: a key further away is hidden.

    The bias is −inf from distance `window` on, in both directions if the model sees tokens ahead. Longer sequences
    contain no untrained distances, so the frequencies need no scaling. `3*local:window=8,nope`, in four layers, is the
    pattern of Cohere 2 and RNoPE-SWA (Yang et al. 2025, arXiv:2501.18795). Their windows count tokens; for consecutive
    positions that is the same.
    """

    label = "Local RoPE"
    paper = "Beltagy et al. 2020, arXiv:2004.05150; with RoPE: Yang et al. 2025, arXiv:2501.18795"

    def __init__(
        self,
        geometry: Geometry,
        *,
        window: int = 16,
        theta: float = 10_000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__(geometry, theta=theta, fraction=fraction, interleaved=interleaved)
        if window < 1:
            raise SpecError(f"local needs a window of at least one position, its own, not {window}")
        self.window = window

    def by_distance(self, distances_N: Tensor) -> Tensor:
        bias_N = torch.zeros_like(distances_N).masked_fill(distances_N.abs() >= self.window, -torch.inf)
        return bias_N.expand(self.geometry.heads, -1)
