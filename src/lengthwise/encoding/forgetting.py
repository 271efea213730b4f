"""Forgetting attention (FoX): a decay that depends on the tokens. Lin et al. 2025, arXiv:2503.02130."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_


class Forgetting(Encoding):
    """Add Σ_{j < l ≤ i} log f_l to the score of query i and key j; token l forgets by f_l = sigmoid(w_h · x_l + b_h).

    With a constant gate f this is ALiBi with slope −log f in every head: with f = 1/2, distance 3 costs 3 · log 2 =
    2.08. x is the normalised layer input; each layer and head has its own w and b. b is initialized to `start`, by
    default 0 as in the authors' code, so that f starts near 1/2; x-transformers initializes it to 5. The authors'
    output gate and norms are not included. The positions given to the model have no effect. Keys ahead of the query,
    where a mask shows them, do not decay.
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
        # At least fp32, because many logarithms are summed later.
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        gates_BTH = F.linear(x_BTD.to(dtype), self.weight.to(dtype), self.bias_H.to(dtype))
        return F.logsigmoid(gates_BTH).transpose(1, 2)[..., None]

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        assert pair.marks_BHKC is not None
        seen_BHQK = torch.where(pair.behind_BQK[:, None], pair.marks_BHKC.to(scores_BHQK.dtype).mT, 0.0)
        # Sum from the right: the near keys matter most, and their sums then have few terms and little rounding error.
        return scores_BHQK + seen_BHQK.flip(-1).cumsum(-1).flip(-1) - seen_BHQK
