"""Any function of the position from 1/t, by an explicit ReLU layer: its knots, and the weight of each.

Seed 004 objects that Theorem 1 leans on universal approximation. It need not: with knots at the values the layer sees
at t = 1, ..., T, the weights are differences of slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

DIGITS = 50
"""Slopes are quotients of differences of neighbours: taken in float64 they would lose all digits near t = 10⁵."""


def weights(seen_N: Sequence[Decimal], values_N: Sequence[Decimal]) -> list[float]:
    """The c with value(t) = value(1) + Σ_k c_k · ReLU(seen_k − seen_t); one fewer than there are points.

    `seen` falls. Where the layer sees 1/t and writes t, c_k = 2k: all positive, so nothing cancels.
    """
    with localcontext() as context:
        context.prec = DIGITS
        slopes = [(values_N[k + 1] - values_N[k]) / (seen_N[k] - seen_N[k + 1]) for k in range(len(values_N) - 1)]
        return [float(slope - before) for slope, before in zip(slopes, [Decimal(0), *slopes], strict=False)]


def squares(tokens: int, tolerance: float = 0.49) -> tuple[list[Decimal], list[Decimal]]:
    """Points (t, value) of a broken line in 1/t that stays within `tolerance` of t: about √T pieces.

    On a piece from t₁ to t₂ the chord errs by at most (√t₂ − √t₁)², at √(t₁ t₂), and always upwards; lowered by half of
    that it errs by half of it. So √t may advance by √(2 · tolerance) a piece, nearly 1: knots near 1, 4, 9, 16, ...
    """
    with localcontext() as context:
        context.prec = DIGITS
        last, step = Decimal(tokens + 1), (2 * Decimal(str(tolerance))).sqrt()
        points, root = [Decimal(1)], Decimal(1)
        while points[-1] < last:
            root += step
            points.append(root * root)
        return points, [point - Decimal(str(tolerance)) for point in points]
