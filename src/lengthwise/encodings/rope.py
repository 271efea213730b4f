"""Rotary positions. Su et al. 2021, arXiv:2104.09864."""

import math

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from lengthwise.encodings.encoding import Encoding, Geometry, phases
from lengthwise.spec import SpecError


class Rope(Encoding):
    """Turn pair f of the first `fraction` of each query's and key's coordinates by t · theta^(−2f / turned) radians.

    A turned query and key meet at an angle that depends on i − j alone. Pair f is coordinates (f, f + turned/2), as in
    Llama, or (2f, 2f + 1), as in GPT-J, with `interleaved=true`: the same up to a fixed order of coordinates. The
    "Rotary" of the original study is `rope:fraction=0.25:interleaved=true`; `fraction=0` is NoPE.
    """

    paper = "Su et al. 2021, arXiv:2104.09864"
    formula = "rope"

    def __init__(
        self, geometry: Geometry, *, theta: float = 10_000.0, fraction: float = 1.0, interleaved: bool = False
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

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        query = self._tables(query_positions_BQ)
        return query, (query if key_positions_BK is query_positions_BQ else self._tables(key_positions_BK))

    def _tables(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin of every coordinate, so that turning is x · cos + partner(x) · sin: (B, H or 1, T, E)."""
        cos_BTF, sin_BTF = phases(positions_BT, self.theta, self.turned // 2)
        kept_BTE = positions_BT.new_ones(*positions_BT.shape, self.geometry.head_width - self.turned)
        cos = torch.cat([self._join(cos_BTF, cos_BTF), kept_BTE], -1)
        sin = torch.cat([self._join(-sin_BTF, sin_BTF), kept_BTE * 0], -1)
        # In the memory order of queries and keys, heads inside tokens, the product runs over whole rows.
        heads = self.geometry.heads if len(positions_BT) == 1 else 1
        return tuple(table[:, :, None].repeat(1, 1, heads, 1).transpose(1, 2) for table in (cos, sin))  # pyrefly: ignore

    def _join(self, first_BTF: Tensor, second_BTF: Tensor) -> Tensor:
        if self.interleaved:
            return torch.stack([first_BTF, second_BTF], -1).flatten(-2)
        return torch.cat([first_BTF, second_BTF], -1)

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        if not self.turned:
            return q_BHQE, k_BHKE
        query, key = state  # pyrefly: ignore[not-iterable]
        partner_E = None
        if self.interleaved or self.turned < self.geometry.head_width:
            coordinates = torch.arange(self.geometry.head_width)
            shift = coordinates ^ 1 if self.interleaved else (coordinates + self.turned // 2) % self.turned
            partner_E = torch.where(coordinates < self.turned, shift, coordinates).to(q_BHQE.device)
        return _Turn.apply(q_BHQE, *query, partner_E), _Turn.apply(k_BHKE, *key, partner_E)


class _Turn(torch.autograd.Function):
    """Turning, with its gradient, which is turning back: half the time of the same in separate operations on a CPU."""

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
