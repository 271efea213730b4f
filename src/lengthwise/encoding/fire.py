"""Functional interpolation for relative positions. Li et al. 2024, arXiv:2310.04418."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, uniform_
from lengthwise.spec import SpecError


class Fire(Encoding):
    """Add f(ψ(i − j) / ψ(max(L, i))) to the score of query i and key j; ψ(x) = log(c · x + 1), f a small ReLU network.

    The input of f is the distance relative to the largest that the query can have, so longer sequences stay within the
    range on which f was trained. With c = 0.1 and L = 512, a key 100 tokens back maps to log(11) / log(52.2) = 0.61 for
    every query up to position 512. f has one hidden layer of `width` units, so it is piecewise linear, and each pair
    looks up its segment instead of evaluating all units. c and a factor on L = `threshold` are learned, as in the
    authors' code. Each layer has its own network; `shared=true` is the authors' FIRE-S. Their network also adds a
    constant per head, which softmax ignores; it is omitted here.
    """

    label = "FIRE"
    paper = "Li et al. 2024, arXiv:2310.04418"
    formula = "fire"
    relative = False  # the query's own position enters once it exceeds L

    def __init__(
        self,
        geometry: Geometry,
        *,
        width: int = 32,
        slope: float = 0.1,
        threshold: float = 512.0,
        shared: bool = False,
    ) -> None:
        super().__init__(geometry)
        if width < 1 or slope <= 0 or threshold <= 0:
            raise SpecError(
                f"fire needs a width, a slope and a threshold above 0, not {width=}, {slope=}, {threshold=}"
            )
        self.width, self.slope, self.threshold, self.shared = width, slope, threshold, shared
        self.c = nn.Parameter(torch.empty(1))  # shape (1,): FSDP cannot shard scalars
        self.multiple = nn.Parameter(torch.empty(1))
        self.up = nn.Parameter(torch.empty(width))
        self.up_bias = nn.Parameter(torch.empty(width))
        self.down = nn.Parameter(torch.empty(geometry.heads, width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        with torch.no_grad():
            self.c.fill_(self.slope)
            self.multiple.fill_(1.0)
            # PyTorch's default initialization of nn.Linear, as in the authors' code: U(±1/√inputs).
            for name, inputs in (("up", 1), ("up_bias", 1), ("down", self.width)):
                uniform_(getattr(self, name), 2.0, stream(name))
                getattr(self, name).sub_(1.0).mul_(inputs**-0.5)

    def bias(self, query_positions_BQ: Tensor, key_positions_BK: Tensor) -> Tensor:
        dtype = query_positions_BQ.dtype
        c, least = self.c.to(dtype).abs(), (self.multiple.to(dtype) * self.threshold).abs()
        distance_BQK = (query_positions_BQ[:, :, None] - key_positions_BK[:, None, :]).abs()
        reach_BQ1 = torch.maximum(query_positions_BQ, least)[:, :, None]
        share_BQK = torch.log1p(c * distance_BQK) / torch.log1p(c * reach_BQ1)
        slopes_SH, heights_SH, knots_S = self.linear_segments(dtype)
        segment_BQK = torch.searchsorted(knots_S, share_BQK.detach())
        out_BQKH = torch.addcmul(heights_SH[segment_BQK], slopes_SH[segment_BQK], share_BQK[..., None])
        return out_BQKH.permute(0, 3, 1, 2)

    def linear_segments(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """f as a piecewise linear function: slope and intercept (S, H) of each segment, and the knots between them."""
        up_F, bias_F, down_HF = (part.to(dtype) for part in (self.up, self.up_bias, self.down))
        with torch.no_grad():
            knot_F = -bias_F / torch.where(up_F == 0, torch.inf, up_F)
            knots_F = knot_F.sort().values
            # A point inside each segment shows which units are active there.
            inside_S = torch.cat([knots_F[:1] - 1, (knots_F[1:] + knots_F[:-1]) / 2, knots_F[-1:] + 1])
            on_SF = (inside_S[:, None] * up_F + bias_F > 0).to(dtype)
        return on_SF @ (down_HF * up_F).T, on_SF @ (down_HF * bias_F).T, knots_F
