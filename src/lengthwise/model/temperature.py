"""Attention temperature: a factor on q · k in addition to the scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry
from lengthwise.model.config import TEMPERATURES
from lengthwise.spec import Spec, SpecError, build

Layers = Literal["all", "nope", "global"]
Heads = Literal["all", "nope"]


class AttentionTemperature(nn.Module):
    """A factor that may depend on the number of tokens so far and on the query's token; each layer has its own.

    With `layers=nope` it acts only in layers without an encoding (in `3*rope,nope`, only in the fourth), with
    `layers=global` only in layers without a window. With `heads=nope` it acts only in heads that no position reaches:
    all of `nope`, the second half of `nape`.
    """

    version: ClassVar[int] = 1
    """Incremented when the computed numbers change; part of a run's identity if it is from outside the package."""
    layers: Layers = "all"
    heads: Heads = "all"
    scales_bias: bool = False
    """Whether it multiplies the bias, and what `score` adds, as it multiplies q · k."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        """Fill the parameters; `stream(name)` is a generator that depends on the seed and that name alone."""
        if any(True for _ in self.parameters()):
            raise SpecError(f"{type(self).__name__} has parameters, so it must define initialize(self, stream)")

    def acts(self, encoding: Encoding) -> bool:
        """Whether it acts in the layers of this encoding."""
        if self.layers == "nope" and encoding.acts():
            return False
        if self.layers == "global" and any(getattr(encoding, name, None) is not None for name in ("window", "chunk")):
            return False
        return self.heads == "all" or bool(encoding.heads_without_positions())

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        """The factor, as a number or as (B, H, Q, 1), where B and H may be 1.

        `n_BQ` is the number of tokens of the query's own document up to and with the query: it counts no padding, it
        starts at 1 in each packed document, and it does not depend on the positions. `x_BQD` is the normalised layer
        input of which the query is a projection.
        """
        return 1.0

    def checked_factor(self, n_BQ: Tensor, x_BQD: Tensor, encoding: Encoding) -> Tensor | None:
        """`factor` with 1 in the heads where it does not act; None if it is 1 everywhere."""
        found = self.factor(n_BQ, x_BQD)
        if isinstance(found, float | int) and found == 1:
            return None
        factor = found if isinstance(found, Tensor) else n_BQ.new_full((1, 1, 1, 1), found)
        heads = self.geometry.heads
        if factor.ndim != 4 or factor.shape[1] not in {1, heads} or factor.shape[2] not in {1, n_BQ.shape[1]}:
            raise SpecError(
                f"factor of {type(self).__name__} returned {tuple(factor.shape)}, it must return a number or "
                f"(batch, heads, queries, 1), with {heads} heads and {n_BQ.shape[1]} queries"
            )
        if self.heads == "all":
            return factor
        free, head_H = encoding.heads_without_positions(), torch.arange(heads, device=factor.device)
        acts_H11 = ((head_H >= free.start) & (head_H < free.stop))[:, None, None]
        return torch.where(acts_H11, factor, 1.0)


class Constant(AttentionTemperature):
    """The same factor everywhere."""

    def __init__(self, geometry: Geometry, *, factor: float = 1.0, layers: Layers = "all") -> None:
        super().__init__(geometry)
        self.value, self.layers = factor, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return self.value


class LogN(AttentionTemperature):
    """max(1, ln n / ln trained) at the n-th token, so that attention over more keys stays as sharp as in training.

    With `trained=16`, token 16 has factor 1 and token 256 has factor 2. With `bias` it multiplies the encoding's bias
    too. Chiang and Cholak 2022, arXiv:2202.12172.
    """

    def __init__(self, geometry: Geometry, *, trained: int, bias: bool = False, layers: Layers = "all") -> None:
        super().__init__(geometry)
        if trained < 2:
            raise SpecError(f"log-n needs the training length in tokens, at least 2, not trained={trained}")
        self.trained, self.scales_bias, self.layers = trained, bias, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return (n_BQ.log() / math.log(self.trained)).clamp(min=1)[:, None, :, None]


class Yarn(AttentionTemperature):
    """(0.1 ln s + 1)² everywhere, for sequences s = `factor` times as long as the trained ones.

    `rope:scaling=yarn` applies this factor to the scores of rotated coordinates; here it works with any encoding. s = 4
    gives 1.2965. Peng et al. 2023, arXiv:2309.00071, who multiply cos and sin by its square root.
    """

    def __init__(self, geometry: Geometry, *, factor: float, layers: Layers = "all") -> None:
        super().__init__(geometry)
        if not 1 <= factor < math.inf:
            raise SpecError(f"yarn's factor is how many times longer sequences are, at least 1, not {factor}")
        self.value, self.layers = (0.1 * math.log(factor) + 1) ** 2, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return self.value


class Llama4(AttentionTemperature):
    """1 + scale · ln(1 + ⌊n / floor⌋) at the n-th token: 1 before token `floor`, and in steps of `floor` from there.

    It acts only in layers without an encoding, as in Llama 4, unless `layers=all`; token 8192 has factor 1.0693.
    """

    def __init__(self, geometry: Geometry, *, scale: float = 0.1, floor: int = 8192, layers: Layers = "nope") -> None:
        super().__init__(geometry)
        if floor < 1 or not 0 <= scale < math.inf:
            name = type(self).__name__.lower()
            raise SpecError(f"{name} needs a floor of at least 1 and a scale from 0, not floor={floor}, scale={scale}")
        self.scale, self.floor, self.layers = scale, floor, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return (1 + self.scale * (n_BQ / self.floor).floor().log1p())[:, None, :, None]


class Ministral(Llama4):
    """1 + scale · ln(1 + ⌊(n − 1) / floor⌋) at the n-th token: Llama 4's factor, one token later, in all layers.

    So in Ministral 3 and Mistral 4, which rotate in all layers; `floor` is the length before extension, 16384 there.
    """

    def __init__(self, geometry: Geometry, *, scale: float = 0.1, floor: int = 16384, layers: Layers = "all") -> None:
        super().__init__(geometry, scale=scale, floor=floor, layers=layers)

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return super().factor(n_BQ - 1, x_BQD)


class Beam(AttentionTemperature):
    """(1 + n / floor)^power at the n-th token, in layers without an encoding, as in Beam 1.0 (Reflection).

    Token 2048 has factor 2^0.1 = 1.0718. Its documentation says `position / 2048`, its code uses n, one more.
    """

    def __init__(self, geometry: Geometry, *, power: float = 0.1, floor: int = 2048, layers: Layers = "nope") -> None:
        super().__init__(geometry)
        if floor < 1:
            raise SpecError(f"beam needs a floor of at least 1, not {floor}")
        self.power, self.floor, self.layers = power, floor, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return ((1 + n_BQ / self.floor) ** self.power)[:, None, :, None]


class Inkling(AttentionTemperature):
    """1 + scale · ln(max(1, n / floor)) at the n-th token, on q · k and on the bias, in layers without a window.

    So in Inkling (Thinking Machines). With `floor=1024`, token 2048 has factor 1.0693.
    """

    scales_bias = True

    def __init__(self, geometry: Geometry, *, floor: int, scale: float = 0.1, layers: Layers = "global") -> None:
        super().__init__(geometry)
        if floor < 1 or not 0 <= scale < math.inf:
            raise SpecError(f"inkling needs a floor of at least 1 and a scale from 0, not floor={floor}, scale={scale}")
        self.floor, self.scale, self.layers = floor, scale, layers

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return (1 + self.scale * (n_BQ / self.floor).clamp(min=1).log())[:, None, :, None]


class SSMax(AttentionTemperature):
    """Scalable softmax: s_h · ln n at the n-th token, with a learned s per head. Nakanishi 2025, arXiv:2501.19399.

    s is initialized to `start`. The first token's factor is 0: it sees itself alone, so softmax does not change. With
    `shift=1` it is s · ln(n + 1), as in the code of the ASEntmax study, which draws s from N(1, 0.01²).
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        start: float = 0.43,
        shift: int = 0,
        layers: Layers = "all",
        heads: Heads = "all",
    ) -> None:
        super().__init__(geometry)
        if shift < 0:
            raise SpecError(f"ssmax's shift is added to the number of tokens, so it is not negative, not {shift}")
        self.start, self.shift, self.layers, self.heads = start, shift, layers, heads
        self.scale_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            self.scale_H.fill_(self.start)

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        return self.scale_H.to(n_BQ.dtype)[None, :, None, None] * (n_BQ + self.shift).log()[:, None, :, None]


class ASEntmax(AttentionTemperature):
    """1 + β · (ln(n + 1))^γ with β = softplus(w_β · x + b_β), γ = `range` · tanh(w_γ · x + b_γ), for each head.

    Vasylenko et al. 2025, arXiv:2506.16640, with `normaliser=entmax` and `nape`: it acts only in heads without
    positions, unless `heads=all`. All weights start at 0, so that the factor starts at 1.69: drawn at random, no run of
    a public re-run left its plateau. Heads in which it does not act have idle weights.
    """

    def __init__(
        self, geometry: Geometry, *, range: float = 2.0, layers: Layers = "all", heads: Heads = "nope"
    ) -> None:
        super().__init__(geometry)
        self.range, self.layers, self.heads = range, layers, heads
        self.beta, self.gamma = nn.Linear(geometry.width, geometry.heads), nn.Linear(geometry.width, geometry.heads)

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()

    def factor(self, n_BQ: Tensor, x_BQD: Tensor) -> Tensor | float:
        beta_BHQ, gamma_BHQ = (
            F.linear(x_BQD.to(n_BQ.dtype), part.weight.to(n_BQ.dtype), part.bias.to(n_BQ.dtype)).transpose(1, 2)
            for part in (self.beta, self.gamma)
        )
        log_B1Q = (n_BQ + 1).log()[:, None]
        return (1 + F.softplus(beta_BHQ) * log_B1Q ** (self.range * gamma_BHQ.tanh()))[..., None]


def build_temperature(spec: str, geometry: Geometry) -> AttentionTemperature:
    """The temperature that `spec` names, e.g. `log-n:trained=16`."""
    made = build("temperature", TEMPERATURES, AttentionTemperature, Spec.of(spec), [geometry])
    return cast(AttentionTemperature, made)
