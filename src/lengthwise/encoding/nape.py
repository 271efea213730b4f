"""NAPE: ALiBi in half of the heads, no positions in the others. Vasylenko et al. 2025, arXiv:2506.16640."""

from typing import Literal

import torch
from torch import Tensor

from lengthwise.encoding.base import Encoding, Geometry
from lengthwise.spec import SpecError


class Nape(Encoding):
    """Subtract distance / h from each score in heads h = 1, 2, ... of the first half; the other heads are NoPE.

    With 8 heads, head 1 subtracts the distance, head 4 a quarter of it, and heads 5 to 8 nothing. `slopes=exp` halves
    the slope from head to head instead. A temperature with `heads=nope` acts in the second half only, as published.
    """

    label = "NAPE"
    paper = "Vasylenko et al. 2025, arXiv:2506.16640"
    formula = "nape"

    def __init__(self, geometry: Geometry, *, slopes: Literal["linear", "exp"] = "linear") -> None:
        super().__init__(geometry)
        if geometry.heads < 2:
            raise SpecError("nape needs at least two heads, one with ALiBi and one without positions")
        self.slopes = slopes

    def heads_without_positions(self) -> range:
        return range(self.geometry.heads // 2, self.geometry.heads)

    def slope_H(self, like_tensor: Tensor) -> Tensor:
        """The slope of each head, in the precision and on the device of `like_tensor`."""
        h_H = torch.arange(self.geometry.heads, device=like_tensor.device, dtype=like_tensor.dtype)
        slope_H = 1 / (h_H + 1) if self.slopes == "linear" else 0.5**h_H
        return slope_H * (h_H < self.geometry.heads // 2)

    def columns(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        k_BHT1 = (self.slope_H(positions_BT)[:, None] * positions_BT[:, None])[..., None]
        return torch.ones_like(k_BHT1), k_BHT1

    def by_distance(self, distances_N: Tensor) -> Tensor:
        return -self.slope_H(distances_N)[:, None] * distances_N.abs()
