"""Forgetting attention (FoX): a decay that the tokens decide. Lin et al. 2025, arXiv:2503.02130."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, Pair, normal_


class Forgetting(Encoding):
    """Add Σ_{j < l ≤ i} log f_l to the score of query i and key j; token l forgets by f_l = sigmoid(w_h · x_l + b_h).

    A constant gate f is ALiBi of slope −log f in every head: with f = 1/2, distance 3 costs 3 · log 2 = 2.08. x is what
    queries and keys are made of, and each layer and head has its own w and b. b starts at `start`, as in the authors'
    code at 0, so that f begins near 1/2; x-transformers starts it at 5. The authors' output gate and norms are not part
    of it. Given positions change nothing. Where a mask shows keys ahead of the query, nothing is forgotten of them.
    """

    label = "FoX"
    paper = "Lin et al. 2025, arXiv:2503.02130"
    formula = "forgetting"
    shared = False
    ordinal = True

    def __init__(self, geometry: Geometry, *, start: float = 0.0) -> None:
        super().__init__(geometry)
        self.start = start
        self.weight = nn.Parameter(torch.empty(geometry.heads, geometry.width))
        self.bias_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.weight, self.geometry.bias_std, stream("weight"))
        with torch.no_grad():
            self.bias_H.fill_(self.start)

    def mark(self, x_BTD: Tensor) -> Tensor:
        # Sums of many logarithms follow, so in fp32 at least.
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        gates_BTH = F.linear(x_BTD.to(dtype), self.weight.to(dtype), self.bias_H.to(dtype))
        return F.logsigmoid(gates_BTH).transpose(1, 2)[..., None]

    def score(self, scores_BHQK: Tensor, pair: Pair) -> Tensor:
        assert pair.marks_BHKC is not None
        seen_BHQK = torch.where(pair.behind_BQK[:, None], pair.marks_BHKC.to(scores_BHQK.dtype).mT, 0.0)
        # From the right, so that the sums of near keys, which count, are sums of few.
        return scores_BHQK + seen_BHQK.flip(-1).cumsum(-1).flip(-1) - seen_BHQK
