"""Relative position representations. Shaw et al. 2018, arXiv:1803.02155."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_
from lengthwise.spec import SpecError


class Shaw(Encoding):
    """Add a learned vector to each key, and one to each value, chosen by the distance, clipped to ± `distance`.

    The score of query i and key j is q_i · (k_j + a[i − j]), and the value is v_j + b[i − j]. Heads share both tables;
    each layer has its own. All distances from 16 on share a row, so there is no limit to the length. `values=false`
    omits b, which the authors found to matter little. q · a is computed for the 33 rows and then looked up for each
    pair.
    """

    paper = "Shaw et al. 2018, arXiv:1803.02155"
    formula = "shaw"
    shared = False

    def __init__(self, geometry: Geometry, *, distance: int = 16, values: bool = True) -> None:
        super().__init__(geometry)
        if distance < 1:
            raise SpecError(f"shaw clips distances to at least 1, not {distance}")
        self.distance, self.values = distance, values
        rows = 2 * distance + 1
        self.keys = nn.Parameter(torch.empty(rows, geometry.head_width))
        self.reads = nn.Parameter(torch.empty(rows, geometry.head_width)) if values else None

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.keys, self.geometry.bias_std, stream("keys"))
        if self.reads is not None:
            normal_(self.reads, self.geometry.bias_std, stream("reads"))

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        distance_BQK = query_positions_BQ[:, :, None] - key_positions_BK[:, None, :]
        return distance_BQK.clamp(-self.distance, self.distance).long()[:, None] + self.distance

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        by_row_BHQR = pair.q_BHQE @ self.keys.to(scores_BHQK.dtype).T
        return scores_BHQK + by_row_BHQR.gather(-1, _rows(pair, scores_BHQK))

    def read(self, weights_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor | None:
        if self.reads is None:
            return torch.zeros_like(pair.q_BHQE)
        by_row_BHQR = weights_BHQK.new_zeros(*weights_BHQK.shape[:-1], 2 * self.distance + 1)
        by_row_BHQR = by_row_BHQR.scatter_add(-1, _rows(pair, weights_BHQK), weights_BHQK)
        return by_row_BHQR @ self.reads.to(weights_BHQK.dtype)


def _rows(pair: QueriesAndKeys, like_BHQK: Tensor) -> Tensor:
    rows_B1QK = pair.state
    assert isinstance(rows_B1QK, Tensor)
    return rows_B1QK.expand(like_BHQK.shape)
