"""Which positional encoding does each attention layer have? Found from behaviour, whatever classes and configs say.

Every token of a row is given the same content, so that queries, keys and scores differ only by position. Keys that turn
show their frequencies, which lanes turn together and by how much they grow; scores show biases, windows, sinks and
temperatures; the hidden states before the first layer show positions that are added to embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import acos, cos, exp, log, sin

import torch
from torch import Tensor, nn

from lengthwise.device import HOST
from lengthwise.display import Display, Part
from lengthwise.foreign.recorder import AttentionCall, attention_modules, record_attention
from lengthwise.spec import SpecError

TOKENS, CONTENTS = 48, 6
"""Tokens of a probe, and different contents."""
STRIDES = (1, 16, 256, 4096)
"""Distances between the positions of neighbouring tokens: slow frequencies show only far apart."""
CLOSE = 2e-3
"""Two values this close, relative to the larger, count as equal."""
HIDDEN = -1e4
"""Scores below this are masked."""
COLUMNS = ("encoding", "theta", "lanes", "scaling", "window", "temperature")
"""What is printed of a layer."""


@dataclass(frozen=True)
class Rotation:
    """How keys turn with their position."""

    frequencies: tuple[float, ...]
    """Radians per position of each pair of lanes, in the order of its first lane."""
    pairs: tuple[tuple[int, int], ...]
    """The lanes that turn together."""
    head_width: int
    factor: float | None
    """By how much a key grows when it is turned (YaRN's attention factor); None if that was not seen."""
    changes_with_length: bool
    """Whether fast pairs turn differently at large positions, as with dynamic scaling and LongRoPE."""

    @property
    def layout(self) -> str:
        """`half` if lane i turns with lane i + n/2, `interleaved` if it turns with its neighbour, else `other`."""
        apart = {second - first for first, second in self.pairs}
        if apart == {1} and len(self.pairs) > 1:
            return "interleaved"
        return "half" if len(apart) == 1 else "other"

    @property
    def spread(self) -> int:
        """The lanes over which frequencies are spread: all of the head if lanes without rotation count too."""
        apart = self.pairs[0][1] - self.pairs[0][0]
        return 2 * apart if self.layout == "half" else 2 * len(self.pairs)

    @property
    def share(self) -> float:
        """The share of the head's lanes that turn."""
        return 2 * len(self.pairs) / self.head_width

    @property
    def theta(self) -> float:
        """The base of the frequencies: that of the slowest pairs, or of the fastest if those do not fit to it."""
        logs, few = [log(one) for one in self.frequencies], max(2, len(self.frequencies) // 4)
        if len(logs) < 2:
            return float("nan")
        bases = [exp((part[0] - part[-1]) / (len(part) - 1) * self.spread / 2) for part in (logs[-few:], logs[:few])]
        return min(bases, key=lambda base: self._misfit(self._slowdown(base)))

    def _slowdown(self, base: float) -> list[float]:
        """Return by how much each pair is slower than with this base."""
        return [base ** (-2 * n / self.spread) / one for n, one in enumerate(self.frequencies)]

    def _misfit(self, slowdown: Sequence[float]) -> float:
        """Return how far slowdowns are from growing with the pair, as those of every known scaling do."""
        fall = sum(max(0.0, log(a / b)) for a, b in pairwise(slowdown))
        return fall + abs(log(slowdown[0])) * 1e-3

    @property
    def scaling(self) -> str:
        """`none`, `linear by 4`, or how much slower the slowest pairs are, e.g. `slow pairs by 8`."""
        slowdown = self._slowdown(self.theta)
        if max(slowdown) - min(slowdown) < 20 * CLOSE * max(slowdown):
            return "none" if abs(slowdown[0] - 1) < 5 * CLOSE else f"linear by {slowdown[0]:.3g}"
        return f"slow pairs by {slowdown[-1]:.3g}"


@dataclass(frozen=True)
class LayerEncoding:
    """What positions do in one attention layer."""

    module: str
    rotation: Rotation | None
    slopes: tuple[float, ...]
    """The slope of each head, if scores fall linearly with distance."""
    bias: str
    """`none`, `linear` (as ALiBi), `by distance`, or `by content and distance`."""
    window: int | None
    """How many keys a query sees, itself included; None if it sees all."""
    chunk: int | None
    """The size of the chunks of tokens outside of which a query sees nothing; None if there are none."""
    sink: bool
    temperature: float | None
    """The largest factor by which queries grow with their position; None if the bias depends on the content."""

    def line(self) -> dict[str, str]:
        """The cells of the layer's line in the table."""
        cells, turned = dict.fromkeys(COLUMNS, ""), self.rotation
        cells["encoding"] = self.name + (" + sink" if self.sink else "")
        if turned is not None:
            cells["theta"] = f"{turned.theta:.4g}"
            cells["lanes"] = f"{turned.share:.0%} {turned.layout}"
            factor = "" if turned.factor is None or abs(turned.factor - 1) < CLOSE else f", keys × {turned.factor:.4g}"
            cells["scaling"] = ("changes with length" if turned.changes_with_length else turned.scaling) + factor
        if self.slopes:
            cells["scaling"] = f"slopes {self.slopes[0]:.3g} to {self.slopes[-1]:.3g}"
        cells["window"] = f"{self.window}" if self.window else f"chunks of {self.chunk}" if self.chunk else "all"
        if self.temperature is not None and abs(self.temperature - 1) > CLOSE:
            cells["temperature"] = f"up to × {self.temperature:.4g}"
        return cells

    @property
    def name(self) -> str:
        """The encoding in a word, as in our catalogue."""
        if self.rotation is not None:
            return "rope"
        return {"none": "nope", "linear": "alibi"}.get(self.bias, f"bias {self.bias}")


@dataclass(frozen=True, repr=False)
class ModelEncodings(Display):
    """What positions do in a model."""

    embedding: str
    """Whether positions are `added` to the embeddings, or `none` are."""
    layers: tuple[LayerEncoding, ...]

    def parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each kind of layer, and whether positions are added to embeddings."""
        lines: dict[tuple[str, ...], list[int]] = {}
        for number, layer in enumerate(self.layers):
            lines.setdefault(tuple(layer.line().values()), []).append(number)
        yield Part([{"layers": _ranges(own), **dict(zip(COLUMNS, line, strict=True))} for line, own in lines.items()])
        if self.embedding == "added":
            yield Part("Positions are added to the embeddings, before the first layer.")
        yield Part("Found by probing the model; its configuration was not read.")

    def plain(self) -> dict[str, object]:
        """Everything that was found, layer by layer."""
        return {"embedding": self.embedding, "layers": [asdict(layer) for layer in self.layers]}


def _ranges(numbers: Sequence[int]) -> str:
    """Return e.g. `0-2, 5` for 0, 1, 2, 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def identify(model: nn.Module) -> ModelEncodings:
    """Probe a causal language model in eval mode; its attention is torch's own, fused or step by step."""
    if (dtype := next(model.parameters()).dtype) not in {torch.float32, torch.float64}:
        raise SpecError(f"frequencies cannot be read from a model in {dtype}: convert it first, model.float()")
    ids_BT = torch.full((CONTENTS, TOKENS), 7)
    generator, modules = torch.Generator().manual_seed(0), attention_modules(model)
    states_BTD = _attention_states(model, modules[0], ids_BT)
    width = states_BTD.shape[2]
    constant_BTD = torch.randn(CONTENTS, 1, width, generator=generator).expand(-1, TOKENS, -1)
    varied = record_attention(model, ids_BT, torch.randn(CONTENTS, TOKENS, width, generator=generator), modules)
    by_stride: list[list[AttentionCall]] = []
    for stride in STRIDES:
        positions_BT = (torch.arange(TOKENS) * stride)[None].expand(CONTENTS, TOKENS)
        given = {} if stride == 1 else {"position_ids": positions_BT}
        try:
            by_stride.append(record_attention(model, ids_BT, constant_BTD, modules, **given))
        except (IndexError, RuntimeError, ValueError, TypeError):  # past the end of a table, or no such argument
            break
    layers = [_layer([calls[number] for calls in by_stride], other) for number, other in enumerate(varied)]
    return ModelEncodings(_embedding(states_BTD[0]), tuple(layers))


def _attention_states(model: nn.Module, first: nn.Module, ids_BT: Tensor) -> Tensor:
    """Return the hidden states that the first attention module takes."""
    held: list[Tensor] = []

    def look(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for one in (*args, *kwargs.values()):
            if isinstance(one, Tensor) and one.shape[:2] == ids_BT.shape and one.ndim == 3 and one.is_floating_point():
                held.append(one.detach().to(HOST))

    hook = first.register_forward_pre_hook(look, with_kwargs=True)
    try:
        record_attention(model, ids_BT)
    finally:
        hook.remove()
    return held[0]


def _layer(calls: Sequence[AttentionCall], varied: AttentionCall) -> LayerEncoding:
    first = calls[0]
    window, chunk = _window_and_chunk((first.scores_BHQK > HIDDEN).any(0).any(0))
    scale_H = _scale(varied)
    bias, slopes = _bias(first, scale_H)
    temperature = _temperature(calls) if bias != "by content and distance" else None
    sink = first.sinks_BHQS.shape[-1] > 0
    return LayerEncoding(first.module, _rotation(calls), slopes, bias, window, chunk, sink, temperature)


def _window_and_chunk(visible_QK: Tensor) -> tuple[int | None, int | None]:
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


def _scale(call: AttentionCall) -> Tensor:
    """Return by what the product of query and key is multiplied in each head, from tokens of different contents."""
    seen_BHQK = call.scores_BHQK > HIDDEN
    s_BHQK, p_BHQK = (_without_row_mean(one.double(), seen_BHQK) for one in (call.scores_BHQK, call.products_BHQK))
    # Across contents, at one pair of positions: score = scale · product + bias.
    s_BHQK, p_BHQK = s_BHQK - s_BHQK.mean(0), p_BHQK - p_BHQK.mean(0)
    return (s_BHQK * p_BHQK).sum((0, 2, 3)) / (p_BHQK**2).sum((0, 2, 3)).clamp(min=1e-12)


def _without_row_mean(values_BHQK: Tensor, seen_BHQK: Tensor) -> Tensor:
    """Subtract from each row its mean over visible keys: a constant in a row changes no softmax."""
    kept = values_BHQK.masked_fill(~seen_BHQK, 0.0)
    mean = kept.sum(-1, keepdim=True) / seen_BHQK.sum(-1, keepdim=True).clamp(min=1)
    return (values_BHQK - mean).masked_fill(~seen_BHQK, 0.0)


def _bias(call: AttentionCall, scale_H: Tensor) -> tuple[str, tuple[float, ...]]:
    """Find what is added to scale · q·k: nothing, a slope times the distance, or something else."""
    seen_BHQK = call.scores_BHQK > HIDDEN
    products_BHQK = scale_H[:, None, None] * call.products_BHQK.double()
    left_BHQK = _without_row_mean(call.scores_BHQK.double() - products_BHQK, seen_BHQK)
    size = float(products_BHQK.abs().mean())
    bias_HQK = left_BHQK.mean(0)
    if float(left_BHQK.abs().max()) < CLOSE * size:
        return "none", ()
    if float((left_BHQK - bias_HQK).abs().max()) > 10 * CLOSE * size:
        return "by content and distance", ()
    place_K = torch.arange(bias_HQK.shape[-1], dtype=torch.float64)
    place_HQK = _without_row_mean(place_K.expand_as(left_BHQK), seen_BHQK)[0]
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


def _embedding(states_TD: Tensor) -> str:
    """Find what is added to embeddings, from the states of one token at all positions before the first attention."""
    if float((states_TD - states_TD[:1]).abs().max()) < 1e-4 * float(states_TD.abs().max()):
        return "none"
    return "added"
