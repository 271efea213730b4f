"""Normalisation of the residual stream."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from lengthwise.device import is_host


class Norm(nn.Module):
    """RMSNorm (x / rms(x) · weight), LayerNorm, or nothing."""

    def __init__(self, kind: Literal["rms", "layer", "none"], width: int, epsilon: float, bias: bool) -> None:
        super().__init__()
        self.kind = kind
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width)) if kind != "none" else None
        self.bias = nn.Parameter(torch.empty(width)) if kind == "layer" and bias else None

    def initialize(self) -> None:
        """Start as the plain normalisation: weight 1, bias 0."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.weight is None:
            return x_BTD
        if self.kind == "layer":
            return F.layer_norm(x_BTD, x_BTD.shape[-1:], self.weight, self.bias, self.epsilon)
        if is_host(x_BTD) and x_BTD.dtype in {torch.float32, torch.float64}:
            if torch.is_grad_enabled():
                return _RMSNorm.apply(x_BTD, self.weight, self.epsilon)
            return x_BTD * _inverse(x_BTD, self.epsilon) * self.weight  # the same numbers, without autograd
        # The mean square of bf16 numbers is taken in fp32, as T5 and Llama do.
        x = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)).to(x_BTD.dtype) * self.weight


def _inverse(x: Tensor, epsilon: float) -> Tensor:
    """1 / rms(x)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()


class _RMSNorm(torch.autograd.Function):
    """`F.rms_norm` with its gradient written out: PyTorch has no fused kernel on a CPU; this takes half the time."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = _inverse(x, epsilon)
        normal = x * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # pyrefly: ignore[bad-override]
        normal, inverse, weight = ctx.saved_tensors  # pyrefly: ignore[missing-attribute]
        for_weight = (gradient * normal).flatten(0, -2).sum(0)
        inner = gradient * weight
        along = (inner * normal).mean(-1, keepdim=True)
        return torch.addcmul(inner, normal, along, value=-1).mul_(inverse), for_weight, None
