"""Attention with linear biases. Press et al. 2022, arXiv:2108.12409."""

import math
from typing import Literal

import torch
from torch import Tensor

from lengthwise.device import without_waiting
from lengthwise.encoding.base import Encoding, Geometry


class Alibi(Encoding):
    """Subtract slope · distance from each score; head h of H has slope 2^(−8h / H), h = 1, ..., H.

    If H is not a power of two, `slopes=authors` follows the authors' code: it takes the slopes of the next lower power
    of two, then every other slope of the next higher one (12 heads: 2^−1, ..., 2^−8, then 2^−0.5, 2^−1.5, 2^−2.5,
    2^−3.5). `slopes=text` applies the formula literally. −slope · (i − j) equals slope · j plus a constant per query,
    which softmax ignores, so the bias needs only one extra column of queries and keys and no matrix. (The constant
    printed in Kazemnejad et al. is garbled; their code agrees with this one.)
    """

    label = "ALiBi"
    paper = "Press et al. 2022, arXiv:2108.12409"
    formula = "alibi"

    def __init__(self, geometry: Geometry, *, slopes: Literal["authors", "text"] = "authors") -> None:
        super().__init__(geometry)
        self.slopes = slopes

    def slope_H(self, like_tensor: Tensor) -> Tensor:
        """The slope of each head, in the precision and on the device of `like_tensor`."""
        heads = self.geometry.heads
        below = heads if self.slopes == "text" else 2 ** math.floor(math.log2(heads))
        exponents = [8 * (h + 1) / below for h in range(below)]
        exponents += [8 * (2 * h + 1) / (2 * below) for h in range(heads - below)]
        return without_waiting(torch.tensor([2.0**-e for e in exponents], dtype=like_tensor.dtype), like_tensor.device)

    def columns(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        k_BHT1 = (self.slope_H(positions_BT)[:, None] * positions_BT[:, None])[..., None]
        return torch.ones_like(k_BHT1), k_BHT1

    def by_distance(self, distances_N: Tensor) -> Tensor:
        return -self.slope_H(distances_N)[:, None] * distances_N.abs()
