"""Compute any function of the position from 1/t with an explicit ReLU layer: its knots and their weights.

It answers the objection that Theorem 1 relies on universal approximation: with knots at the layer's inputs at
t = 1, ..., T, the weights are differences of slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

DIGITS = 50
"""The decimal precision: slopes are quotients of small differences, which lose all digits in float64 near t = 10⁵."""


def relu_weights(seen_N: Sequence[Decimal], values_N: Sequence[Decimal]) -> list[float]:
    """Return the c with value(t) = value(1) + Σ_k c_k · ReLU(seen_k − seen_t); one fewer than there are points.

    `seen` must be decreasing. If the layer sees 1/t and writes t, c_k = 2k: all are positive, so nothing cancels.
    """
    with localcontext() as context:
        context.prec = DIGITS
        slopes = [(values_N[k + 1] - values_N[k]) / (seen_N[k] - seen_N[k + 1]) for k in range(len(values_N) - 1)]
        return [float(slope - before) for slope, before in zip(slopes, [Decimal(0), *slopes], strict=False)]


def rounded_position_knots(tokens: int, tolerance: float = 0.49) -> tuple[list[Decimal], list[Decimal]]:
    """Return points (t, value) of a piecewise linear function of 1/t within `tolerance` of t: about √T pieces.

    On a piece from t₁ to t₂ the chord exceeds t by at most (√t₂ − √t₁)², at √(t₁ t₂); lowering it by half of that
    halves the error. So √t may advance by √(2 · tolerance) per piece, nearly 1: knots are near 1, 4, 9, 16, ...
    """
    with localcontext() as context:
        context.prec = DIGITS
        last, step = Decimal(tokens + 1), (2 * Decimal(str(tolerance))).sqrt()
        points, root = [Decimal(1)], Decimal(1)
        while points[-1] < last:
            root += step
            points.append(root * root)
        return points, [point - Decimal(str(tolerance)) for point in points]
