"""Attention sinks: weight that goes to no key. In gpt-oss, DeepSeek-V4, Granite and others; Xiao et al. 2023."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Geometry
from lengthwise.normaliser.base import Normaliser


class Sink(Normaliser):
    """exp(s_j) / (exp(σ) + Σ_k exp(s_k)): a learned logit σ per head takes weight and has no value, as in gpt-oss.

    With all scores 0 and σ = 0, three keys get a quarter each. Weights sum to less than 1, so a head can read almost
    nothing. σ is initialized to `start`, 0 as in Granite; gpt-oss draws it from N(0, 0.02²). It is not multiplied by
    the temperature. A constant added to a row changes its weights, so biases are added exactly.
    """

    label = "sink"
    paper = "OpenAI 2025, arXiv:2508.10925; the name: Xiao et al. 2023, arXiv:2309.17453"
    formula = "sink"
    complete = False
    shift_invariant = False

    def __init__(self, geometry: Geometry, *, start: float = 0.0) -> None:
        super().__init__(geometry)
        self.start = start
        self.sink_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            self.sink_H.fill_(self.start)

    def sink(self, like_tensor: Tensor) -> Tensor:
        return self.sink_H.to(like_tensor.dtype)


class OffByOne(Normaliser):
    """exp(s_j) / (1 + Σ_k exp(s_k)): a sink fixed at 0, without a parameter."""

    label = "off-by-one"
    paper = "Miller 2023, evanmiller.org/attention-is-off-by-one.html"
    formula = "sink"
    complete = False
    shift_invariant = False

    def sink(self, like_tensor: Tensor) -> Tensor:
        return like_tensor.new_zeros(self.geometry.heads)
