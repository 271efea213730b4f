"""The published formulas, implemented independently in plain Python floats, to check encodings against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields


def alibi_slopes(heads: int) -> list[float]:
    """The authors' rule, as they state it: by recursion on the powers of two around `heads`."""
    power = math.log2(heads)
    if power.is_integer():
        start = 2.0 ** -(2.0 ** -(power - 3))
        return [start ** (h + 1) for h in range(heads)]
    below = 2 ** math.floor(power)
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]


def alibi_slopes_by_paper_text(heads: int) -> list[float]:
    """The formula in the paper's text, for any number of heads."""
    return [2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)]


def t5_bucket(distance: int, buckets: int, max_distance: int) -> int | None:
    """The bucket of a distance ≥ 0 by exact integer comparison; none on a boundary, where rounding decides."""
    exact = buckets // 2
    if distance < exact:
        return distance
    log_buckets, n = buckets - exact, 0
    # Bucket exact + n begins where (distance / exact)^log_buckets reaches (furthest / exact)^n.
    while n < log_buckets and distance**log_buckets * exact**n >= max_distance**n * exact**log_buckets:
        n += 1
    boundary = distance**log_buckets * exact ** (n - 1) == max_distance ** (n - 1) * exact**log_buckets
    if boundary and n > 1:
        return None
    return min(exact + n - 1, buckets - 1)


@dataclass(frozen=True)
class RopeVariant:
    """The variant of RoPE that an encoding implements, by its attributes of these names."""

    theta: float = 10_000.0
    fraction: float = 1.0
    interleaved: bool = False
    p: float = 1.0
    scaling: str | None = None
    factor: float | None = None
    trained: int | None = None
    slow: float | None = None
    fast: float | None = None
    attention_factor: float | None = None
    short: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None
    fixed: tuple[int, ...] = ()
    """Pairs that do not turn."""
    window: int | None = None
    """From this distance on a key is hidden."""

    @classmethod
    def of(cls, encoding: object) -> RopeVariant:
        """Read the variant from an encoding's attributes; missing ones are as in plain RoPE."""
        known = [field.name for field in fields(cls)]
        return cls(**{name: getattr(encoding, name) for name in known if hasattr(encoding, name)})

    def stretch(self, length: int) -> float:
        """The stretch factor s: how many times slower the slowest pair turns."""
        if self.scaling is None:
            return 1.0
        if self.scaling == "longrope":
            return length / (self.trained or 1)
        if self.scaling == "dynamic":
            factor = 1.0 if self.factor is None else self.factor
            return max(1.0, factor * length / (self.trained or 1) - (factor - 1))
        return max(1.0, length / (self.trained or 1)) if self.factor is None else self.factor


def rope_frequencies(width: int, length: int, variant: RopeVariant) -> tuple[list[float], float]:
    """The angle per position of each pair and the factor on cos and sin, for a sequence of `length` tokens."""
    turned = round(variant.fraction * width)
    s, theta = variant.stretch(length), variant.theta
    if variant.scaling in {"ntk", "dynamic"}:
        theta *= s ** (turned / (turned - 2))  # as published, by a larger theta
    found = []
    for k in range(turned // 2):
        wavelength = 2 * math.pi * theta ** (2 * k / turned)
        if variant.scaling == "linear":
            wavelength *= s
        elif variant.scaling == "llama3":
            wavelength = _llama3(wavelength, s, variant)
        elif variant.scaling == "yarn":
            wavelength = _yarn(wavelength, s, k, turned, variant)
        elif variant.scaling == "longrope":
            wavelength *= ((variant.long if s > 1 else variant.short) or ())[k]
        # p-RoPE turns only the first p · turned / 2 pairs.
        turns = k + 1 <= variant.p * turned / 2 + 1e-4 and k not in variant.fixed
        found.append(2 * math.pi / wavelength if turns else 0.0)
    magnitude = 0.1 * math.log(s) + 1 if variant.scaling == "yarn" else 1.0
    if variant.scaling == "longrope":
        magnitude = math.sqrt(1 + math.log(variant.factor or 1) / math.log(variant.trained or 1))
    return found, magnitude if variant.attention_factor is None else variant.attention_factor


def _llama3(wavelength: float, s: float, variant: RopeVariant) -> float:
    """Long waves become s times as long, short ones stay, and frequencies in between are interpolated."""
    low, high, trained = variant.slow or 1.0, variant.fast or 4.0, variant.trained or 1
    if wavelength > trained / low:
        return wavelength * s
    if wavelength < trained / high:
        return wavelength
    smooth = (trained / wavelength - low) / (high - low)
    return 1 / ((1 - smooth) / (s * wavelength) + smooth / wavelength)


def _yarn(wavelength: float, s: float, k: int, turned: int, variant: RopeVariant) -> float:
    """As in the authors' code, the interpolation weight is a linear ramp over the pair index."""

    def pair_index(turns: float) -> float:
        return turned * math.log((variant.trained or 1) / (turns * 2 * math.pi)) / (2 * math.log(variant.theta))

    low = max(math.floor(pair_index(variant.fast or 32.0)), 0)
    high: float = min(math.ceil(pair_index(variant.slow or 1.0)), turned - 1)
    high += 0.001 if low == high else 0
    share = min(max((k - low) / (high - low), 0.0), 1.0)
    return 1 / (share / (s * wavelength) + (1 - share) / wavelength)


def rotate_by_rope(
    x: Sequence[float], position: int, frequencies: Sequence[float], magnitude: float, interleaved: bool
) -> list[float]:
    """Rotate the first coordinates of a vector pair by pair, as complex numbers."""
    out, half = list(x), len(frequencies)
    for f, frequency in enumerate(frequencies):
        a, b = (2 * f, 2 * f + 1) if interleaved else (f, f + half)
        # exp of an imaginary number, with the angle reduced first: exact to float64 at any position.
        angle = math.fmod(position * frequency, 2 * math.pi)
        z = complex(x[a], x[b]) * complex(math.cos(angle), math.sin(angle)) * magnitude
        out[a], out[b] = z.real, z.imag
    return out


def sinusoid(position: int, width: int, theta: float, interleaved: bool) -> list[float]:
    """The sinusoidal encoding of a position, with amplitude 1: sines then cosines, or alternating."""
    angles = [position * theta ** (-2 * k / width) for k in range(width // 2)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    if interleaved:
        return [value for pair in zip(sines, cosines, strict=True) for value in pair]
    return sines + cosines
