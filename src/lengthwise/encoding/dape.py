"""Data-adaptive positions: a small network over the heads' scores and biases. Zheng et al. 2024, arXiv:2405.14722."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_
from lengthwise.spec import SpecError


class DAPE(Encoding):
    """Add b + f(s, b) to the scores s of all heads, where b is the bias of `inner` and f a network across the heads.

    For each query and key, f maps the scores and the biases of all heads, 2H numbers, through `hidden` units with
    LeakyReLU to one number per head. Each layer has its own f and its own inner encoding: ALiBi, KERPLE or FIRE, as
    published. The bias of the authors' last layer is left out: it adds one number to all keys of a query, which softmax
    and entmax ignore (a sink would not). Scores are computed on the dense path.
    """

    paper = "Zheng et al. 2024, arXiv:2405.14722"
    formula = "dape"
    shared = False

    def __init__(
        self, geometry: Geometry, *, inner: Literal["alibi", "kerple", "fire"] = "kerple", hidden: int = 32
    ) -> None:
        super().__init__(geometry)
        if hidden < 1:
            raise SpecError(f"dape needs at least one hidden unit, not {hidden}")
        self.inner, self.hidden = inner, hidden
        self.inner_encoding = build_encoding(inner, geometry)
        self.relative = self.inner_encoding.relative
        self.up = nn.Parameter(torch.empty(hidden, 2 * geometry.heads))
        self.up_bias = nn.Parameter(torch.empty(hidden))
        self.down = nn.Parameter(torch.empty(geometry.heads, hidden))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        self.inner_encoding.initialize(lambda name: stream(f"inner.{name}"))
        # The variance of PyTorch's default initialization, 1 / (3 · inputs).
        inputs = 2 * self.geometry.heads
        for name, size in (("up", inputs), ("up_bias", inputs), ("down", self.hidden)):
            normal_(getattr(self, name), (3 * size) ** -0.5, stream(name))

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        bias_BHQK = self.inner_encoding.checked_bias(pair.query_positions_BQ, pair.key_positions_BK)
        bias_BHQK = bias_BHQK.to(scores_BHQK.dtype).expand_as(scores_BHQK)
        both_BQKN = torch.cat([scores_BHQK, bias_BHQK], 1).permute(0, 2, 3, 1)
        up, up_bias, down = (part.to(scores_BHQK.dtype) for part in (self.up, self.up_bias, self.down))
        more_BQKH = F.linear(F.leaky_relu(F.linear(both_BQKN, up, up_bias)), down)
        return scores_BHQK + bias_BHQK + more_BQKH.permute(0, 3, 1, 2)
