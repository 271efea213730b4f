"""α-entmax: softmax with exact zeros. Peters et al. 2019, arXiv:1905.05702; in attention: Correia et al. 2019."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from lengthwise.encoding.base import Geometry
from lengthwise.normaliser.base import Normaliser, Visibility
from lengthwise.spec import SpecError

HALVINGS = 60
"""Bisection steps for an α that has no closed form; float64 needs 53."""


class Entmax(Normaliser):
    """[(α − 1) s_j − τ]₊^(1 / (α − 1)), with τ such that the weights sum to 1: keys with low scores get exactly 0.

    α = 1 is softmax and α = 2 is sparsemax. With α = 1.5, scores 0 and −2 give weights 1 and 0. τ is exact, by sorting,
    for α = 1.5 and 2, and bisected for other values. All scores are needed at once, so attention runs
    on the dense path.
    """

    label = "entmax"
    paper = "Peters et al. 2019, arXiv:1905.05702"
    formula = "entmax"

    def __init__(self, geometry: Geometry, *, alpha: float = 1.5) -> None:
        super().__init__(geometry)
        if alpha != 1 and not 1.001 <= alpha <= 4:
            raise SpecError(f"entmax's alpha is 1 (softmax) or from 1.001 to 4, not {alpha}")
        self.alpha = alpha

    def weigh(self, scores_BHQK: Tensor, visible: Visibility) -> Tensor:
        if self.alpha == 1:
            return super().weigh(scores_BHQK, visible)
        return _Entmax.apply(scores_BHQK, self.alpha)


class _Entmax(torch.autograd.Function):
    """Entmax over the last dimension. The backward pass needs only the weights."""

    @staticmethod
    def forward(ctx: FunctionCtx, scores: Tensor, alpha: float) -> Tensor:
        top = scores.amax(-1, keepdim=True)
        empty = top == -torch.inf
        z = (scores - top.masked_fill(empty, 0.0)) * (alpha - 1)  # the largest is 0, hidden keys are −inf
        tau = _sorted_threshold(z, alpha) if alpha in {1.5, 2.0} else _bisected_threshold(z, alpha)
        weights = (z - tau).clamp(min=0) ** (1 / (alpha - 1))
        if alpha not in {1.5, 2.0}:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.masked_fill(empty, 0.0)
        ctx.save_for_backward(weights)
        ctx.alpha = alpha  # pyrefly: ignore[missing-attribute]
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:  # pyrefly: ignore[bad-override]
        (weights,) = ctx.saved_tensors  # pyrefly: ignore[missing-attribute]
        alpha: float = ctx.alpha  # pyrefly: ignore[missing-attribute]
        slope = torch.where(weights > 0, weights ** (2 - alpha), 0.0)
        mean = (slope * gradient).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True).clamp(min=1e-30)
        return slope * (gradient - mean), None


def _sorted_threshold(z: Tensor, alpha: float) -> Tensor:
    """τ for α = 1.5 or 2: that of the largest set of top scores that all stay above it."""
    ordered = z.sort(-1, descending=True).values
    # A weight is never above 1, so scores more than 1 below the largest get none; −inf would make means NaN.
    ordered = ordered.clamp(min=-2.0)
    count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean = ordered.cumsum(-1) / count
    if alpha == 2:
        tau = mean - 1 / count
    else:
        spread = (ordered.square().cumsum(-1) - count * mean.square()).clamp(min=0)
        tau = mean - ((1 - spread) / count).clamp(min=0).sqrt()
    support = (tau <= ordered).sum(-1, keepdim=True).clamp(min=1)
    return tau.gather(-1, support - 1)


def _bisected_threshold(z: Tensor, alpha: float) -> Tensor:
    low, high = torch.full_like(z[..., :1], -1.0), torch.zeros_like(z[..., :1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = ((z - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return low
