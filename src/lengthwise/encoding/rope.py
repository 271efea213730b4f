"""Rotary positions. Su et al. 2021, arXiv:2104.09864."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from lengthwise.encoding.base import Encoding, Geometry, cos_sin_from_frequency, frequencies_from_theta
from lengthwise.encoding.scaling import build_scaling
from lengthwise.spec import SpecError


class Rope(Encoding):
    """Turn pair f of the first `fraction` of each query's and key's coordinates by t · theta^(−2f / turned) radians.

    The dot product of a rotated query and key depends on their positions only through i − j. Pair f is coordinates (f,
    f + turned/2), as in Llama, or (2f, 2f + 1), as in GPT-J, with `interleaved=true`; the two differ only by a fixed
    permutation of coordinates. The "Rotary" of the original study is `rope:fraction=0.25:interleaved=true`;
    `fraction=0` is NoPE.

    `p=0.75` keeps RoPE's frequencies but does not rotate the slowest quarter of the pairs (p-RoPE, Barbero et al. 2025,
    arXiv:2410.06205): of 8 pairs, 6 turn as in RoPE. `fraction=0.75` instead has 6 pairs that span all frequencies.
    `fixed=[2,3]` names pairs that do not turn.

    `scaling` changes the frequencies for longer sequences (`lengthwise.encoding.scaling`). If they depend on the
    length, the length is the budget of the sequence, so appending a token does not change them. With `length=seen`, as
    published, it is the number of tokens so far, and each appended token changes the rotation of all earlier ones.
    """

    label = "RoPE"
    paper = "Su et al. 2021, arXiv:2104.09864"
    formula = "rope"

    def __init__(
        self,
        geometry: Geometry,
        *,
        theta: float = 10_000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
        p: float = 1.0,
        scaling: Literal["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"] | None = None,
        factor: float | None = None,
        trained: int | None = None,
        slow: float | None = None,
        fast: float | None = None,
        attention_factor: float | None = None,
        length: Literal["budget", "seen"] = "budget",
        short: tuple[float, ...] | None = None,
        long: tuple[float, ...] | None = None,
        fixed: tuple[int, ...] = (),
    ) -> None:
        super().__init__(geometry)
        if not 0 < theta < math.inf:
            raise SpecError(f"rope needs a theta above 0, not {theta}")
        self.theta = theta
        self.fraction = fraction
        self.interleaved = interleaved
        self.turned = round(fraction * geometry.head_width)
        if not 0 <= fraction <= 1 or self.turned % 2 or abs(self.turned - fraction * geometry.head_width) > 1e-6:
            raise SpecError(
                f"rope turns pairs, so fraction × head width must be an even number up to {geometry.head_width}, "
                f"not {fraction} × {geometry.head_width} = {fraction * geometry.head_width:g}"
            )
        self.p, self.fixed = p, fixed
        if any(not 0 <= pair < self.turned // 2 for pair in fixed) or len(set(fixed)) < len(fixed):
            raise SpecError(f"rope's fixed pairs are different ones from 0 to {self.turned // 2 - 1}, not {fixed}")
        self.turning = _turning(p, fraction, self.turned)
        self.scaling, self.factor, self.trained, self.slow, self.fast = scaling, factor, trained, slow, fast
        self.attention_factor, self.length, self.short, self.long = attention_factor, length, short, long
        self._scaling = build_scaling(
            scaling,
            theta=theta,
            pairs=self.turned // 2 if self.turning else 0,
            factor=factor,
            trained=trained,
            slow=slow,
            fast=fast,
            attention_factor=attention_factor,
            short=short,
            long=long,
            length=length,
        )
        self.uses_budget = length == "budget" and self._scaling is not None and self._scaling.depends_on_length
        if length == "seen":
            self.prefix_stable = self.static_keys = False

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        query = self._tables(query_positions_BQ, budget_B)
        same = key_positions_BK is query_positions_BQ
        return query, (query if same else self._tables(key_positions_BK, budget_B))

    def frequencies(self, like_tensor: Tensor, budget_B: Tensor) -> tuple[Tensor, Tensor | float]:
        """The frequency of each pair, (F,) or (B, F), and what cos and sin are multiplied by, a number or (B, 1)."""
        pairs, magnitude = self.turned // 2, 1.0
        frequency = frequencies_from_theta(self.theta, pairs, like_tensor)
        if self._scaling is not None:
            stretch = self._scaling.stretch(budget_B)
            frequency = self._scaling.frequencies(frequency, stretch)
            magnitude = self._scaling.magnitude(stretch)
        if self.turning < pairs or self.fixed:
            turns = [pair < self.turning and pair not in self.fixed for pair in range(pairs)]
            frequency = frequency * torch.tensor(turns, device=like_tensor.device)
        return frequency, magnitude

    def _tables(self, positions_BT: Tensor, budget_B: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin of every coordinate, so that turning is x · cos + partner(x) · sin: (B, H or 1, T, E)."""
        frequency, magnitude = self.frequencies(positions_BT, budget_B)
        cos_BTF, sin_BTF = cos_sin_from_frequency(positions_BT, frequency)
        if isinstance(magnitude, Tensor) or magnitude != 1.0:
            factor = magnitude[..., None].to(cos_BTF) if isinstance(magnitude, Tensor) else magnitude
            cos_BTF, sin_BTF = cos_BTF * factor, sin_BTF * factor
        kept_BTE = cos_BTF.new_ones(*cos_BTF.shape[:2], self.geometry.head_width - self.turned)
        cos = torch.cat([self._join(cos_BTF, cos_BTF), kept_BTE], -1)
        sin = torch.cat([self._join(-sin_BTF, sin_BTF), kept_BTE * 0], -1)
        # In the memory order of queries and keys (heads inside tokens), the product runs over contiguous rows.
        heads = self.geometry.heads if len(cos) == 1 else 1
        return tuple(table[:, :, None].repeat(1, 1, heads, 1).transpose(1, 2) for table in (cos, sin))  # pyrefly: ignore

    def _join(self, first_BTF: Tensor, second_BTF: Tensor) -> Tensor:
        if self.interleaved:
            return torch.stack([first_BTF, second_BTF], -1).flatten(-2)
        return torch.cat([first_BTF, second_BTF], -1)

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        if not self.turning:
            return q_BHQE, k_BHKE
        query, key = state  # pyrefly: ignore[not-iterable]
        partner_E = None
        if self.interleaved or self.turned < self.geometry.head_width:
            coordinates = torch.arange(self.geometry.head_width, device=q_BHQE.device)
            shift = coordinates ^ 1 if self.interleaved else (coordinates + self.turned // 2) % self.turned
            partner_E = torch.where(coordinates < self.turned, shift, coordinates)
        return _Turn.apply(q_BHQE, *query, partner_E), _Turn.apply(k_BHKE, *key, partner_E)


def _turning(p: float, fraction: float, turned: int) -> int:
    """The number of pairs that rotate under p-RoPE: the first, fastest ones."""
    if not 0 <= p <= 1:
        raise SpecError(f"rope's p is the share of pairs that turn, from 0 to 1, not {p}")
    if p < 1 and fraction < 1:
        raise SpecError("rope's p and fraction are two ways to turn less; give one of them")
    turning = int(p * turned / 2 + 1e-4)  # 0.333333 of 3 pairs is one
    if p and turned and not turning:
        raise SpecError(f"rope's p={p} of {turned // 2} pairs turns none; write at least p={2 / turned:g}, or p=0")
    return turning


class _Turn(torch.autograd.Function):
    """Rotation with its gradient, the inverse rotation; on a CPU this takes half the time of separate operations."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, cos: Tensor, sin: Tensor, partner_E: Tensor | None) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.partner_E = partner_E  # pyrefly: ignore[missing-attribute]
        return _turn(x, cos, sin, partner_E)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyrefly: ignore[bad-override]
        cos, sin = ctx.saved_tensors  # pyrefly: ignore[missing-attribute]
        return _turn(gradient, cos, -sin, ctx.partner_E), None, None, None  # pyrefly: ignore[missing-attribute]


def _turn(x_BHTE: Tensor, cos: Tensor, sin: Tensor, partner_E: Tensor | None) -> Tensor:
    x = x_BHTE.to(cos.dtype)  # in fp32 where x is bf16
    other = x.roll(x.shape[-1] // 2, -1) if partner_E is None else x.index_select(-1, partner_E)
    return torch.addcmul(x * cos, other, sin).to(x_BHTE.dtype)
