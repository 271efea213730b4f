"""Learned absolute positions: one vector per position. Gehring et al. 2017, arXiv:1705.03122; as in GPT-2."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, normal_
from lengthwise.spec import SpecError


class Learned(Encoding):
    """Add row t of a learned table to the embedding at position t.

    The table ends at `limit`: a later position raises an error and never reuses the last row.
    """

    paper = "Gehring et al. 2017, arXiv:1705.03122"
    formula = "learned"
    relative = False

    def __init__(self, geometry: Geometry, *, limit: int = 2048) -> None:
        super().__init__(geometry)
        if limit < 1:
            raise SpecError(f"learned needs a table of at least one position, not limit={limit}")
        self.limit = limit
        self.table = nn.Parameter(torch.empty(limit, geometry.width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.table, self.geometry.embedding_std, stream("table"))

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return x_BTD + self.table[positions_BT.long()].to(x_BTD.dtype)
