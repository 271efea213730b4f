"""How far the construction can count, limited by numerical precision and by the width of the layer.

Theorem 1 is about real numbers. With p bits, 1/t and 1/(t+1) may be equal once their difference, about 1/t², is less
than the spacing of floating-point numbers, which for t between 2^(p−1) and 2^p happens at t = 2^(p−½). All integers up
to 2^p are exact, so t itself reaches a little further than 1/t. From 1/t, 180 positions are guaranteed to be distinct
in bf16 (8 bits), 1,447 in fp16 (11), 11,863,282 in fp32 (24); the first tie comes a little later, where two values
happen to round to the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lengthwise.device import HOST
from lengthwise.model.layout import lay_out
from lengthwise.spec import SpecError
from lengthwise.theory.hinges import rounded_position_knots
from lengthwise.theory.theorem1 import FIRST, POSITION, Constructed, NormKind, construct_theorem1_decoder
from lengthwise.theory.theorem2 import construct_theorem2_decoder

BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The number of bits of the significand, the implicit one included."""
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def dtype_named(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as `fp32`."""
    if name not in DTYPES:
        raise SpecError(f"the precisions are {', '.join(DTYPES)}, not {name!r}")
    return DTYPES[name]


def predicted_reciprocal_horizon(dtype: torch.dtype) -> int:
    """Return the largest t with 1/t ≠ 1/(t+1) for sure: 1/(t(t+1)) is at least the spacing, 2^(1−2p).

    t(t+1) ≤ 2^(2p−1): 180 in bf16, 1,447 in fp16, 11,863,282 in fp32.
    """
    most = 1 << (2 * BITS[dtype] - 1)
    t = math.isqrt(most)
    return t if t * (t + 1) <= most else t - 1


def predicted_count_horizon(dtype: torch.dtype) -> int:
    """Return the largest t that differs from t + 1: 2^p − 1, because 2^p + 1 is the first inexact integer."""
    return (1 << BITS[dtype]) - 1


def first_tie(value_at: Callable[[Tensor], Tensor], start: int, end: int, block_size: int = 1 << 20) -> int | None:
    """Return the first t from `start` below `end` whose number equals that of t + 1; None if all are distinct."""
    for low in range(start, end, block_size):
        values = value_at(torch.arange(low, min(low + block_size, end) + 1))
        ties = (values[1:] == values[:-1]).nonzero()
        if len(ties):
            return low + int(ties[0])
    return None


def reciprocal_horizon(dtype: torch.dtype) -> int:
    """Return the largest t up to which 1/t, rounded to `dtype`, is distinct for t and t + 1; without a network."""
    if dtype == torch.float64:
        raise SpecError("float64 tells positions apart beyond 10¹⁵; nobody can try them all")
    # Computed in the wider type, then rounded to `dtype`.
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    tie = first_tie(lambda t: (1 / t.to(wide)).to(dtype), 1, 4 << BITS[dtype])
    assert tie is not None
    return tie - 1


def head_horizon(dtype: torch.dtype, tokens: int, norm: NormKind = "none") -> int | None:
    """Return the same for the constructed head's output in the decoder, on one sequence; None if no tie up to T."""
    made = construct_theorem1_decoder(tokens, 4, norm=norm, heads=1, head_width=1, dtype=dtype)
    head_T = made.head(made.draw(1))[0]
    return _before_tie(head_T)


def layer_horizon(dtype: torch.dtype, tokens: int, norm: NormKind = "none") -> tuple[int | None, int, float]:
    """Return, for the whole first layer, up to which t values are distinct and round to t, and the largest error."""
    made = construct_theorem1_decoder(tokens, 64, norm=norm, dtype=dtype)
    position_T = made.positions(made.draw(1))[0]
    t_T = torch.arange(1, tokens + 2, dtype=torch.float64)
    wrong = (position_T.double().round() != t_T).nonzero()
    right = int(wrong[0]) if len(wrong) else tokens + 1
    return _before_tie(position_T), right, float((position_T.double() - t_T).abs().max())


def _before_tie(values_T: Tensor) -> int | None:
    """Return up to which t the values of t and t + 1 differ; values_T[t − 1] is that of position t."""
    ties = (values_T[1:] == values_T[:-1]).nonzero()
    return int(ties[0]) if len(ties) else None


@torch.no_grad()
def head_outputs_from(dtype: torch.dtype, start: int, count: int) -> list[float]:
    """Return the head's output at `count` positions from `start`, by the decoder with a cache of `start` − 1 tokens.

    All keys of the head are 1 and all values 0 but that of BOS, so the cache is filled directly: running the decoder on
    ten million tokens would take T² steps.
    """
    made = construct_theorem1_decoder(1, 4, heads=1, head_width=1, dtype=dtype)
    decoder, before = made.decoder, start - 1
    cache = decoder.cache(start + count)
    key_1HTE = torch.ones(1, 1, before, 1, dtype=dtype)
    value_1HTE = torch.zeros(1, 1, before, 1, dtype=dtype)
    value_1HTE[:, :, 0] = 1
    cache.extend(0, key_1HTE, value_1HTE)
    cache.layout = lay_out(1, before, HOST, cached=True)
    found: list[float] = []

    def keep(name: str, heads_BHQE: Tensor) -> None:
        found.append(float(heads_BHQE[0, 0, -1, 0]))

    for _ in range(count):
        decoder(torch.tensor([[FIRST + 1]]), cache=cache, taps={"layers.0.heads": keep})
    return found


@torch.no_grad()
def count_horizon(dtype: torch.dtype, start: int = 1, end: int | None = None) -> int | None:
    """Return up to which t the second layer's keys differ between t and t + 1 if its input holds t, in `dtype`."""
    made = construct_theorem2_decoder(1, 4, heads=1, head_width=2, content_scale=0.0, dtype=dtype)
    end = predicted_count_horizon(dtype) + 4 if end is None else end

    def keys(t_N: Tensor) -> Tensor:
        held: list[Tensor] = []

        def put(name: str, x_BTD: Tensor) -> Tensor:
            x_BTD = x_BTD.clone()
            x_BTD[0, :, POSITION] = t_N.to(dtype)
            return x_BTD

        def keep(name: str, k_BHKE: Tensor) -> None:
            held.append(k_BHKE[0, 0, :, 0])

        ids_1T = torch.full((1, len(t_N)), FIRST + 1)
        made.decoder(ids_1T, taps={"layers.0.residual": put, "layers.1.k": keep}, only_BT=ids_1T < 0)
        return held[0]

    tie = first_tie(keys, start, end, block_size=2048)
    return None if tie is None else tie - 1


# --- width -----------------------------------------------------------------------------------------------------------


def approximate_theorem1_decoder(tokens: int, width: int = 4, *, dtype: torch.dtype = torch.float64) -> Constructed:
    """Return the decoder of Theorem 1 with only about √T units, whose position is not exact but rounds to t.

    T = 20, 100, 400, 1,600 take 4, 10, 20, 40 units.
    """
    return construct_theorem1_decoder(
        tokens, width, heads=1, head_width=1, replacement_points=rounded_position_knots(tokens), dtype=dtype
    )
