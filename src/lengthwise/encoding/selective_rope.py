"""Selective RoPE: rotation by angles that depend on the tokens. Movahedi et al. 2025, arXiv:2511.17388."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.device import widest_float
from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, frequencies_from_theta, normal_
from lengthwise.spec import SpecError

TAPS = 4
"""Tokens of the convolution, as in the authors' code."""


class SelectiveRope(Encoding):
    """Turn pair f of token t's query and key by theta^(−2f / width) · Φ_tf, where Φ sums an increment of each token.

    The increments are a convolution over four tokens of W₂ W₁ x̂, of rank `rank`, where x̂ is the layer input with each
    head's slice normalised to length 1. With increments of 1 this is RoPE. `drift=true` adds a learned positive
    constant exp(b) to each increment, which starts at 1 (the authors' `use_bias`). The authors' gate is not included.
    Each layer has its own parameters. The positions given to the model have no effect. Scores are computed on the dense
    path.
    """

    label = "Selective RoPE"
    paper = "Movahedi et al. 2025, arXiv:2511.17388"
    formula = "selective_rope"
    shared = False
    ordinal = True

    def __init__(self, geometry: Geometry, *, theta: float = 500_000.0, rank: int = 16, drift: bool = False) -> None:
        super().__init__(geometry)
        if geometry.head_width % 2 or geometry.width % geometry.heads:
            raise SpecError(
                f"selective_rope needs an even head width and a width that its heads divide, not {geometry.head_width} "
                f"and {geometry.width} / {geometry.heads}"
            )
        if rank < 1 or not 0 < theta < math.inf:
            raise SpecError(f"selective_rope needs a rank of at least 1 and a theta above 0, not {rank} and {theta}")
        self.theta, self.rank, self.drift = theta, rank, drift
        self.pairs = geometry.head_width // 2
        self.down = nn.Parameter(torch.empty(rank, geometry.width))
        self.up = nn.Parameter(torch.empty(geometry.heads * self.pairs, rank))
        self.taps = nn.Parameter(torch.empty(geometry.heads, self.pairs, TAPS))
        self.log_drift = nn.Parameter(torch.empty(geometry.heads, self.pairs)) if drift else None

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        # The variance of PyTorch's default initialization, 1 / (3 · inputs).
        for name, inputs in (("down", self.geometry.width), ("up", self.rank), ("taps", TAPS)):
            normal_(getattr(self, name), (3 * inputs) ** -0.5, stream(name))
        if self.log_drift is not None:
            with torch.no_grad():
                self.log_drift.zero_()

    def mark(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        unit_BTD = F.normalize(x_BTD.unflatten(-1, (self.geometry.heads, -1)), dim=-1).flatten(-2)
        angle_BTN = F.linear(F.linear(unit_BTD, self.down.to(x_BTD.dtype)), self.up.to(x_BTD.dtype))
        return angle_BTN.unflatten(-1, (self.geometry.heads, -1)).transpose(1, 2)

    def increments(self, pair: QueriesAndKeys) -> Tensor:
        """How far each token turns each pair on, padding not at all: (B, H, K, pairs)."""
        assert pair.marks_BHKC is not None
        angle_BHKF, documents_BK = pair.marks_BHKC, pair.documents_BK
        if documents_BK is None:
            return self._convolved(angle_BHKF, None)
        # A cache may hold padding between tokens, so the convolution is over the tokens with padding moved to the end.
        documents_BK = documents_BK.expand(len(angle_BHKF), -1)
        order_BK = torch.argsort(documents_BK < 0, dim=-1, stable=True)
        index_BHKF = order_BK[:, None, :, None].expand_as(angle_BHKF)
        moved_BHKF = self._convolved(angle_BHKF.gather(2, index_BHKF), documents_BK.gather(1, order_BK))
        return pair.without_padding(torch.zeros_like(moved_BHKF).scatter(2, index_BHKF, moved_BHKF))

    def _convolved(self, angle_BHKF: Tensor, documents_BK: Tensor | None) -> Tensor:
        taps_HF = self.taps.to(angle_BHKF.dtype)
        found_BHKF = torch.zeros_like(angle_BHKF)
        for lag in range(min(TAPS, angle_BHKF.shape[2])):
            earlier_BHKF = F.pad(angle_BHKF, (0, 0, lag, 0))[:, :, : angle_BHKF.shape[2]]
            if lag and documents_BK is not None:  # a document does not see the one before it
                same_BK = F.pad(documents_BK[:, lag:] == documents_BK[:, :-lag], (lag, 0))
                earlier_BHKF = earlier_BHKF * same_BK[:, None, :, None]
            found_BHKF = found_BHKF + taps_HF[:, None, :, TAPS - 1 - lag] * earlier_BHKF
        return found_BHKF if self.log_drift is None else found_BHKF + self.log_drift.to(taps_HF.dtype).exp()[:, None]

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        wide = widest_float(scores_BHQK.device)
        sum_BHKF = self.increments(pair).to(wide).cumsum(2)
        angle_BHKF = sum_BHKF * frequencies_from_theta(self.theta, self.pairs, scores_BHQK)
        cos_BHKF, sin_BHKF = (part.to(scores_BHQK.dtype) for part in (angle_BHKF.cos(), angle_BHKF.sin()))
        own = slice(pair.start, pair.start + scores_BHQK.shape[2])
        q_BHQE = _turn(pair.q_BHQE, cos_BHKF[:, :, own], sin_BHKF[:, :, own])
        return q_BHQE @ _turn(pair.k_BHKE, cos_BHKF, sin_BHKF).mT


def _turn(x_BHTE: Tensor, cos_BHTF: Tensor, sin_BHTF: Tensor) -> Tensor:
    first_BHTF, second_BHTF = x_BHTE.chunk(2, -1)
    turned = (first_BHTF * cos_BHTF - second_BHTF * sin_BHTF, first_BHTF * sin_BHTF + second_BHTF * cos_BHTF)
    return torch.cat(turned, -1)
