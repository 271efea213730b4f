"""Wall attention: a decay of each channel, from the tokens. Tilde Research 2026, from the code in fla."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.device import widest_float
from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_


class Wall(Encoding):
    """Multiply channel n of q_i · k_j by Π_{j < l ≤ i} f_ln, where token l lets f_l = sigmoid(W x_l + b) pass.

    With all f = 1 this is NoPE; with one f for all channels the whole score decays, where `forgetting` adds a decay to
    it. b starts at `start`, 8 in the authors' code, so that each token lets .9997 pass; 0 would halve every channel at
    each token. Each layer and head has its own W and b. The positions given to the model have no effect. Keys ahead of
    the query, where a mask shows them, do not decay. Scores need (queries × keys × channels) products, so this is a
    reference for short sequences; fla has a kernel. Its optional gate, window and norms are not included.
    """

    paper = "Tilde Research 2026, fla-org/flash-linear-attention"
    formula = "wall"
    shared = False
    ordinal = True

    def __init__(self, geometry: Geometry, *, start: float = 8.0) -> None:
        super().__init__(geometry)
        self.start = start
        self.weight = nn.Parameter(torch.empty(geometry.heads * geometry.head_width, geometry.width))
        self.bias_N = nn.Parameter(torch.empty(geometry.heads * geometry.head_width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.weight, self.geometry.bias_std, stream("weight"))
        with torch.no_grad():
            self.bias_N.fill_(self.start)

    def mark(self, x_BTD: Tensor) -> Tensor:
        # At least fp32, because many logarithms are summed later.
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        gates_BTN = F.linear(x_BTD.to(dtype), self.weight.to(dtype), self.bias_N.to(dtype))
        return F.logsigmoid(gates_BTN).unflatten(-1, (self.geometry.heads, -1)).transpose(1, 2)

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        assert pair.marks_BHKC is not None
        sum_BHKE = pair.without_padding(pair.marks_BHKC).to(widest_float(scores_BHQK.device)).cumsum(2)
        own_BHQE = sum_BHKE[:, :, pair.start : pair.start + scores_BHQK.shape[2]]
        behind_B1QK = pair.behind_BQK[:, None]
        decayed_BHQK = torch.zeros_like(scores_BHQK)
        for e in range(pair.q_BHQE.shape[-1]):
            # Mask before exp: a hidden difference may overflow, and its gradient would be NaN.
            passed_BHQK = own_BHQE[..., e, None] - sum_BHKE[:, :, None, :, e]
            passed_BHQK = torch.where(behind_B1QK, passed_BHQK, 0.0).to(scores_BHQK.dtype).exp()
            decayed_BHQK = decayed_BHQK + pair.q_BHQE[..., e, None] * pair.k_BHKE[:, :, None, :, e] * passed_BHQK
        return decayed_BHQK
