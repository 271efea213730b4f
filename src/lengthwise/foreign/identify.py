"""Which positional encoding does each attention layer have? Found from behaviour, whatever classes and configs say.

Every token of a row is given the same content, so that queries, keys and scores differ only by position. Keys that turn
show their frequencies, which lanes turn together and by how much they grow; scores show biases, windows, sinks and
temperatures; the hidden states before the first layer show positions that are added to embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import acos, cos, sin

import torch
from torch import Tensor, nn

from lengthwise.foreign.encodings import CLOSE, LayerEncoding, ModelEncodings, Rotation
from lengthwise.foreign.recorder import (
    AttentionCall,
    attention_modules,
    first_layer,
    kept_outputs,
    record_attention,
    states_before,
    vocabulary_size,
)
from lengthwise.spec import SpecError

TOKENS, CONTENTS = 48, 6
"""Tokens of a probe, and different contents."""
STRIDES = (1, 16, 256, 4096)
"""Distances between the positions of neighbouring tokens: slow frequencies show only far apart."""
USUAL = 1024
"""How far a window is looked for that no configuration names."""
FARTHEST = 8194
"""The most tokens of a call that looks for a wide window."""
HIDDEN = -1e4
"""Scores below this are masked."""


def identify(model: nn.Module) -> ModelEncodings:
    """Probe a causal language model in eval mode; its attention is torch's own, fused or step by step."""
    if (dtype := next(model.parameters()).dtype) not in {torch.float32, torch.float64}:
        raise SpecError(f"frequencies cannot be read from a model in {dtype}: convert it first, model.float()")
    size = vocabulary_size(model)
    ids_BT = torch.full((CONTENTS, TOKENS), 7 % size)
    generator, modules = torch.Generator().manual_seed(0), attention_modules(model)
    width = states_before(model, modules[0], ids_BT).shape[2]
    constant_BTD = torch.randn(CONTENTS, 1, width, generator=generator).expand(-1, TOKENS, -1)
    varied = record_attention(model, ids_BT, torch.randn(CONTENTS, TOKENS, width, generator=generator), modules)
    by_stride: list[list[AttentionCall]] = []
    for stride in STRIDES:
        places_BT = None if stride == 1 else (torch.arange(TOKENS) * stride)[None].expand(CONTENTS, TOKENS)
        try:
            by_stride.append(record_attention(model, ids_BT, constant_BTD, modules, positions_BT=places_BT))
        except (IndexError, RuntimeError, ValueError, TypeError):  # past the end of a table, or no such argument
            break
    with kept_outputs(modules) as outputs:
        record_attention(model, ids_BT, constant_BTD, modules)
    layers = [
        _layer([calls[number] for calls in by_stride], other, outputs[model.get_submodule(other.module)])
        for number, other in enumerate(varied)
    ]
    looked, wide = _wide_windows(model)
    for number, (window, chunk) in enumerate(wide):
        if layers[number].window is None and layers[number].chunk is None:
            layers[number] = replace(layers[number], window=window, chunk=chunk)
    return ModelEncodings(_embedding(model, modules[0], ids_BT), tuple(layers), looked)


def _wide_windows(model: nn.Module) -> tuple[int, list[tuple[int | None, int | None]]]:
    """Look for windows and chunks wider than the probe; the configuration says only how far to look."""
    config = getattr(model, "config", None)
    named = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    longest = getattr(config, "max_position_embeddings", None)
    usual = min(longest, USUAL) if isinstance(longest, int) else TOKENS
    tokens = min(max([usual, *(one + 2 for one in named if isinstance(one, int))]), FARTHEST)
    if tokens <= TOKENS:
        return TOKENS, []
    size = vocabulary_size(model)
    try:
        calls = record_attention(model, torch.full((1, tokens), 7 % size), queries=2)
    except (IndexError, RuntimeError, ValueError):  # past the end of a table
        return TOKENS, []
    found = list[tuple[int | None, int | None]]()
    for call in calls:
        first, last = ((call.scores_BHQK > HIDDEN).any(0).any(0)).int().argmax(1).tolist()  # the first visible keys
        window, chunk = tokens - last, last
        found.append((None, None) if last == 0 else (None, chunk) if first in {0, last} else (window, None))
    return tokens, found


def _layer(calls: Sequence[AttentionCall], varied: AttentionCall, output_BTD: Tensor) -> LayerEncoding:
    first = calls[0]
    window, chunk = _window_and_chunk((first.scores_BHQK > HIDDEN).any(0).any(0))
    scale_H = score_scale(varied)
    bias, slopes = _bias(first, scale_H)
    temperature = _temperature(calls) if bias != "by content and distance" else None
    sink = first.sinks_BHQS.shape[-1] > 0
    if first.values_BHKE is not None and _is_constant(first.values_BHKE, 2):
        # If all values are the same, outputs differ only if the weights of a query on its keys do not sum to one.
        sink = sink or not _is_constant(output_BTD, 1)
    return LayerEncoding(first.module, _rotation(calls), slopes, bias, window, chunk, sink, temperature)


def _is_constant(values: Tensor, axis: int) -> bool:
    """Return whether values are the same along an axis."""
    first = values.narrow(axis, 0, 1)
    return float((values - first).abs().max()) < CLOSE * float(values.abs().max())


def _window_and_chunk(visible_QK: Tensor) -> tuple[int | None, int | None]:
    if bool(visible_QK.triu(1).any()):
        raise SpecError("attention is not causal: a token sees later ones, as in an encoder; this is no decoder")
    counts = visible_QK.sum(1).tolist()
    if counts == list(range(1, len(counts) + 1)):
        return None, None
    largest = max(counts)
    if counts[-1] == largest and all(one == min(n + 1, largest) for n, one in enumerate(counts)):
        return largest, None
    if all(one == n % largest + 1 for n, one in enumerate(counts)):
        return None, largest
    return None, None


# --- rotation --------------------------------------------------------------------------------------------------------


def _rotation(calls: Sequence[AttentionCall]) -> Rotation | None:
    """Find frequencies and pairs of lanes from keys of constant content; None if they do not turn."""
    keys = [call.keys_BHKE.double().flatten(0, 1) for call in calls]  # (contents · heads, positions, lanes)
    size_E = keys[0].abs().amax((0, 1)).clamp(min=1e-12)
    half = TOKENS // 2  # a convolution changes the first keys only
    moved_E = (keys[0][:, half:] - keys[0][:, half : half + 1]).abs().amax((0, 1)) / size_E
    frequency = {lane: _frequency(keys[0][:, :, lane], 1, 0.0) for lane, moved in enumerate(moved_E) if moved > 1e-5}
    used = 1
    for stride, later_NTE in zip(STRIDES[1:], keys[1:], strict=False):
        if not _same_frequencies(later_NTE, stride, frequency):
            break
        used += 1
        for lane in range(later_NTE.shape[2]):  # slow lanes show only where positions are far apart
            far = float((later_NTE[:, 1:, lane] - later_NTE[:, :1, lane]).abs().max() / size_E[lane])
            if lane in frequency or far > 1e-4:
                frequency[lane] = _frequency(later_NTE[:, :, lane], stride, frequency.get(lane, 0.0))
    pairs = _pairs(keys[:used], frequency)
    if not pairs:
        return None
    turning = tuple(frequency[first] for first, _ in pairs)
    return Rotation(turning, tuple(pairs), keys[0].shape[2], _factor(calls[0], pairs), used < len(keys))


def _frequency(x_NT: Tensor, stride: int, known: float) -> float:
    """Return the frequency of a lane from x(t + s) + x(t − s) = 2 cos(ωs) x(t), with the longest lag without alias."""
    best = known
    for lag in (1, 2, 4, 8, 16):
        if best * stride * lag > 2.5:  # a turn is not told from several
            return best
        around_NT, middle_NT = x_NT[:, 2 * lag :] + x_NT[:, : -2 * lag], x_NT[:, lag:-lag]
        cosine = float((around_NT * middle_NT).sum() / (2 * (middle_NT**2).sum()))
        angle = acos(max(-1.0, min(1.0, cosine)))
        if angle > 3e-3 or best == 0.0:
            best = angle / (stride * lag)
    return best


def _same_frequencies(x_NTE: Tensor, stride: int, frequency: Mapping[int, float]) -> bool:
    """Return whether the fast lanes turn at these positions as they do at small ones."""
    for lane, omega in frequency.items():
        if omega > 0.05:
            x_NT = x_NTE[:, :, lane]
            wrong_NT = x_NT[:, 2:] + x_NT[:, :-2] - 2 * cos(omega * stride) * x_NT[:, 1:-1]
            if float(wrong_NT.abs().max()) > 0.2 * float(x_NT.abs().max()):
                return False
    return True


def _pairs(keys: Sequence[Tensor], frequency: Mapping[int, float]) -> list[tuple[int, int]]:
    """Return the lanes that turn together: one is the other a quarter turn later."""
    found, left = list[tuple[int, int]](), dict(frequency)
    while left:
        lane = min(left)
        omega = left.pop(lane)
        stride, x_NTE = next(
            (one for one in zip(STRIDES, keys, strict=False) if omega * one[0] * 8 > 0.05),
            (STRIDES[len(keys) - 1], keys[-1]),
        )
        lag = next((one for one in (1, 2, 4, 8, 16) if omega * stride * one > 0.05), 16)
        angle = omega * stride * lag
        own_NT = x_NTE[:, :, lane]
        # x(t + s) = x(t) cos − y(t) sin, so y is known from x.
        partner_NT = (own_NT[:, :-lag] * cos(angle) - own_NT[:, lag:]) / sin(angle)
        scale = float(partner_NT.abs().max())
        errors = {other: float((x_NTE[:, :-lag, other] - partner_NT).abs().max()) / scale for other in left}
        best = min(errors, key=lambda other: errors[other], default=lane)
        if errors.get(best, 1.0) < 0.05:
            found.append((lane, best))
            del left[best]
    return found


def _factor(call: AttentionCall, pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return by how much keys grow when they are turned: at position 0 turning changes nothing else."""
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    for lanes in (sorted(first + second), first, second):
        turned = call.keys_BHKE[:, :, 0][..., lanes].flatten().abs().sort().values
        for flat in call.factors:
            for width in {len(lanes), call.keys_BHKE.shape[-1]}:
                if flat.numel() % width:
                    continue
                kept = lanes if width > len(lanes) else list(range(width))
                plain = flat.reshape(-1, width)[:, kept].flatten().abs().sort().values
                if not plain.numel() or turned.numel() % plain.numel():
                    continue
                every = turned.numel() // plain.numel()  # keys may be repeated for several heads of queries
                ratio = (turned[::every] / plain.clamp(min=1e-12))[plain > 1e-4 * plain.max()]
                if float(ratio.max() - ratio.min()) < CLOSE * float(ratio.max()):
                    return float(ratio.median())
    return None


# --- scores ----------------------------------------------------------------------------------------------------------


def score_scale(call: AttentionCall) -> Tensor:
    """Return by what the product of query and key is multiplied in each head, from tokens of different contents."""
    seen_BHQK = call.scores_BHQK > HIDDEN
    s_BHQK, p_BHQK = (without_row_mean(one.double(), seen_BHQK) for one in (call.scores_BHQK, call.products_BHQK))
    # Across contents, at one pair of positions: score = scale · product + bias.
    s_BHQK, p_BHQK = s_BHQK - s_BHQK.mean(0), p_BHQK - p_BHQK.mean(0)
    return (s_BHQK * p_BHQK).sum((0, 2, 3)) / (p_BHQK**2).sum((0, 2, 3)).clamp(min=1e-12)


def without_row_mean(values_BHQK: Tensor, seen_BHQK: Tensor) -> Tensor:
    """Subtract from each row its mean over visible keys: a constant in a row changes no softmax."""
    kept = values_BHQK.masked_fill(~seen_BHQK, 0.0)
    mean = kept.sum(-1, keepdim=True) / seen_BHQK.sum(-1, keepdim=True).clamp(min=1)
    return (values_BHQK - mean).masked_fill(~seen_BHQK, 0.0)


def _bias(call: AttentionCall, scale_H: Tensor) -> tuple[str, tuple[float, ...]]:
    """Find what is added to scale · q·k: nothing, a slope times the distance, or something else."""
    seen_BHQK = call.scores_BHQK > HIDDEN
    products_BHQK = scale_H[:, None, None] * call.products_BHQK.double()
    left_BHQK = without_row_mean(call.scores_BHQK.double() - products_BHQK, seen_BHQK)
    size = float(products_BHQK.abs().mean())
    bias_HQK = left_BHQK.mean(0)
    if float(left_BHQK.abs().max()) < CLOSE * size:
        return "none", ()
    if float((left_BHQK - bias_HQK).abs().max()) > 10 * CLOSE * size:
        return "by content and distance", ()
    place_K = torch.arange(bias_HQK.shape[-1], dtype=torch.float64)
    place_HQK = without_row_mean(place_K.expand_as(left_BHQK), seen_BHQK)[0]
    slope_H = (bias_HQK * place_HQK).sum((1, 2)) / (place_HQK**2).sum((1, 2))
    rest = float((bias_HQK - slope_H[:, None, None] * place_HQK).abs().max())
    if rest < 10 * CLOSE * float(bias_HQK.abs().max()):
        return "linear", tuple(slope_H.tolist())
    return "by distance", ()


def _temperature(calls: Sequence[AttentionCall]) -> float:
    """Return by how much queries grow with their position: the largest change up to the farthest position probed."""
    found = 1.0
    for call in calls:
        norm_BHQ = call.queries_BHQE.double().norm(dim=-1)
        growth = float((norm_BHQ[:, :, -1] / norm_BHQ[:, :, 0].clamp(min=1e-12)).median())
        found = growth if abs(growth - 1) > abs(found - 1) else found
    return found


# --- embeddings ------------------------------------------------------------------------------------------------------


def _embedding(model: nn.Module, attention: nn.Module, ids_BT: Tensor) -> str:
    """Find what is added to embeddings, from the states of one token at all positions before the first norm."""
    states_TD = states_before(model, first_layer(model, attention), ids_BT)[0].double()
    if float((states_TD - states_TD[:1]).abs().max()) < 1e-4 * float(states_TD.abs().max()):
        return "none"
    # The steps of a sinusoid are one too, whatever constant the token adds: x(t + 1) + x(t − 1) = 2 cos(ω) x(t).
    step_TD = states_TD.diff(dim=0)
    around_TD, middle_TD = step_TD[2:] + step_TD[:-2], step_TD[1:-1]
    cosine_D = (around_TD * middle_TD).sum(0) / (2 * (middle_TD**2).sum(0)).clamp(min=1e-30)
    rest_TD = around_TD - 2 * cosine_D * middle_TD
    return "sinusoidal" if float(rest_TD.abs().max()) < 1e-3 * float(step_TD.abs().max()) else "learned"
