"""Contextual positions: a count of the tokens that matter to the query. Golovneva et al. 2024, arXiv:2405.18719."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys
from lengthwise.spec import SpecError


class CoPE(Encoding):
    """Add q_i · e[p_ij] to each score; p_ij = Σ_{j ≤ l ≤ i} sigmoid(score_il) counts the tokens that matter to i.

    e is interpolated linearly between whole counts; counts of `counts` − 1 or more use the last row. If all gates are
    1, p_ij is i − j + 1 and this is Shaw's encoding of keys. All heads share e, which is initialized to 0; each layer
    has its own. As in the authors' code, q · e is not scaled, although the scores in the gates are divided by √width.
    The positions given to the model have no effect: only the order and the content of the keys matter. A key ahead of
    its query has count 0.
    """

    paper = "Golovneva et al. 2024, arXiv:2405.18719"
    formula = "cope"
    shared = False
    ordinal = True

    def __init__(self, geometry: Geometry, *, counts: int = 64) -> None:
        super().__init__(geometry)
        if counts < 2:
            raise SpecError(f"cope needs a table of at least two counts, not {counts}")
        self.counts = counts
        self.table = nn.Parameter(torch.empty(counts, geometry.head_width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            self.table.zero_()

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        gates_BHQK = scores_BHQK.masked_fill(~pair.behind_BQK[:, None], -torch.inf).sigmoid()
        count_BHQK = gates_BHQK.flip(-1).cumsum(-1).flip(-1).clamp(max=self.counts - 1)
        below_BHQK = count_BHQK.detach().floor()
        by_count_BHQN = (pair.q_BHQE / pair.scale) @ self.table.to(scores_BHQK.dtype).T
        low_BHQK = by_count_BHQN.gather(-1, below_BHQK.long())
        high_BHQK = by_count_BHQN.gather(-1, count_BHQK.detach().ceil().long())
        return scores_BHQK + torch.lerp(low_BHQK, high_BHQK, count_BHQK - below_BHQK)
