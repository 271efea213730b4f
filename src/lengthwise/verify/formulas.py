"""The published formulas, written again in plain Python floats, so that an encoding is not its own judge."""

from __future__ import annotations

import math
from collections.abc import Sequence


def alibi_slopes(heads: int) -> list[float]:
    """The authors' rule, as they state it: by recursion on the powers of two around `heads`."""
    power = math.log2(heads)
    if power.is_integer():
        start = 2.0 ** -(2.0 ** -(power - 3))
        return [start ** (h + 1) for h in range(heads)]
    below = 2 ** math.floor(power)
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]


def alibi_slopes_text(heads: int) -> list[float]:
    """The formula in the paper's text, for any number of heads."""
    return [2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)]


def t5_bucket(distance: int, buckets: int, furthest: int) -> int | None:
    """The bucket of a distance ≥ 0 by exact integer comparison; none on a boundary, where rounding decides."""
    exact = buckets // 2
    if distance < exact:
        return distance
    log_buckets, n = buckets - exact, 0
    # Bucket exact + n begins where (distance / exact)^log_buckets reaches (furthest / exact)^n.
    while n < log_buckets and distance**log_buckets * exact**n >= furthest**n * exact**log_buckets:
        n += 1
    boundary = distance**log_buckets * exact ** (n - 1) == furthest ** (n - 1) * exact**log_buckets
    if boundary and n > 1:
        return None
    return min(exact + n - 1, buckets - 1)


def rope_turned(x: Sequence[float], position: int, theta: float, turned: int, interleaved: bool) -> list[float]:
    """A vector with its first `turned` coordinates turned pair by pair, as complex numbers."""
    out, half = list(x), turned // 2
    for f in range(half):
        a, b = (2 * f, 2 * f + 1) if interleaved else (f, f + half)
        # exp of an imaginary number, with the angle reduced first: exact to float64 at any position.
        angle = math.fmod(position * theta ** (-2 * f / turned), 2 * math.pi)
        z = complex(x[a], x[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = z.real, z.imag
    return out


def sinusoid(position: int, width: int, theta: float, interleaved: bool) -> list[float]:
    """What is added at a position, at amplitude 1: sines then cosines, or alternating."""
    angles = [position * theta ** (-2 * k / width) for k in range(width // 2)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    if interleaved:
        return [value for pair in zip(sines, cosines, strict=True) for value in pair]
    return sines + cosines
