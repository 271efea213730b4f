"""Rotary positions. Su et al. 2021, arXiv:2104.09864."""

import torch
from torch import Tensor

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
        query = self._turn(query_positions_BQ)
        return query, (query if key_positions_BK is query_positions_BQ else self._turn(key_positions_BK))

    def _turn(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        cos_BTF, sin_BTF = phases(positions_BT, self.theta, self.turned // 2)
        return cos_BTF[:, None], sin_BTF[:, None]

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        if not self.turned:
            return q_BHQE, k_BHKE
        query, key = state  # pyrefly: ignore[not-iterable]
        return self._turned(q_BHQE, *query), self._turned(k_BHKE, *key)

    def _turned(self, x_BHTE: Tensor, cos_B1TF: Tensor, sin_B1TF: Tensor) -> Tensor:
        turned, kept = x_BHTE[..., : self.turned], x_BHTE[..., self.turned :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
        else:
            a, b = turned.chunk(2, -1)
        pair = (a * cos_B1TF - b * sin_B1TF, b * cos_B1TF + a * sin_B1TF)
        if self.interleaved:
            pair = (torch.stack(pair, -1).flatten(-2),)
        parts = [part.to(x_BHTE.dtype) for part in pair]
        return torch.cat([*parts, kept] if kept.shape[-1] else parts, -1)
