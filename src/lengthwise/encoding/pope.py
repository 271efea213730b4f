"""Polar positions: what a token is sets the length, where it is the angle. Gopalakrishnan et al. 2025, 2509.10534."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, cos_sin_from_theta
from lengthwise.spec import SpecError


class PoPE(Encoding):
    """Score Σ_c softplus(q_c) · softplus(k_c) · cos((i − j) ω_c − δ_c), with ω_c = theta^(−c / width) for each channel.

    RoPE turns pairs of coordinates, whose own angle then depends on the content; here each coordinate is a length, and
    the angle depends on the position alone. δ is learned for each head and channel, in [−2π, 0], and starts at 0; each
    layer has its own. Queries and keys become twice as wide, while the scale stays 1/√width.
    """

    paper = "Gopalakrishnan et al. 2025, arXiv:2509.10534"
    formula = "pope"
    shared = False

    def __init__(self, geometry: Geometry, *, theta: float = 10_000.0) -> None:
        super().__init__(geometry)
        if not 0 < theta < math.inf:
            raise SpecError(f"pope needs a theta above 0, not {theta}")
        self.theta = theta
        self.phase = nn.Parameter(torch.empty(geometry.heads, geometry.head_width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            self.phase.zero_()

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        query = cos_sin_from_theta(query_positions_BQ, self.theta, self.geometry.head_width)
        if key_positions_BK is query_positions_BQ:
            return query, query
        return query, cos_sin_from_theta(key_positions_BK, self.theta, self.geometry.head_width)

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        (query_cos, query_sin), (key_cos, key_sin) = state  # pyrefly: ignore[not-iterable]
        phase_H1E = self.phase.to(key_cos.dtype).clamp(-2 * math.pi, 0.0)[:, None]
        cos_H1E, sin_H1E = phase_H1E.cos(), phase_H1E.sin()
        key_cos, key_sin = key_cos[:, None], key_sin[:, None]
        moved = key_cos * cos_H1E - key_sin * sin_H1E, key_sin * cos_H1E + key_cos * sin_H1E
        return _polar(q_BHQE, query_cos[:, None], query_sin[:, None]), _polar(k_BHKE, *moved)


def _polar(x_BHTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    length_BHTE = F.softplus(x_BHTE.to(cos.dtype))  # in fp32 where x is bf16
    return torch.cat([length_BHTE * cos, length_BHTE * sin], -1).to(x_BHTE.dtype)
