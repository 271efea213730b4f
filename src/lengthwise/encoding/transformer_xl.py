"""The relative positions of Transformer-XL. Dai et al. 2019, arXiv:1901.02860."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, cos_sin_from_theta, normal_
from lengthwise.spec import SpecError


class TransformerXL(Encoding):
    """Score query i and key j by q_i · k_j + q_i · r(i − j) + u · k_j + v · r(i − j), all scaled alike.

    r(d) is a learned projection of the sinusoid of d, of the model's width, sines before cosines; u and v are learned
    per head. Each layer has its own (by default the authors share u and v between layers). `clamp` is their
    `clamp_len`: larger distances are clamped to it. The segments and memory of the publication are not included.
    """

    label = "Transformer-XL"
    paper = "Dai et al. 2019, arXiv:1901.02860"
    formula = "transformer_xl"
    shared = False

    def __init__(self, geometry: Geometry, *, clamp: int | None = None) -> None:
        super().__init__(geometry)
        if geometry.width % 2 or (clamp is not None and clamp < 1):
            raise SpecError(f"transformer_xl needs an even width and a clamp above 0, not {geometry.width} and {clamp}")
        self.clamp = clamp
        self.project = nn.Parameter(torch.empty(geometry.heads * geometry.head_width, geometry.width))
        self.u = nn.Parameter(torch.empty(geometry.heads, geometry.head_width))
        self.v = nn.Parameter(torch.empty(geometry.heads, geometry.head_width))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        for name in ("project", "u", "v"):
            normal_(getattr(self, name), self.geometry.bias_std, stream(name))

    def _waves(self, pair: QueriesAndKeys) -> tuple[Tensor, Tensor]:
        """The sinusoids of the distances that occur, (N, D), and for each query and key the row of its distance."""
        distance_BQK, (lowest, highest) = pair.distance_BQK, pair.distances
        if self.clamp is not None:
            distance_BQK = distance_BQK.clamp(max=self.clamp)
            lowest, highest = min(lowest, self.clamp), min(highest, self.clamp)
        span = highest - lowest + 1
        if span <= 4 * sum(distance_BQK.shape[1:]):  # tabulate the whole range, e.g. for consecutive positions
            distances_N = torch.arange(lowest, lowest + span, device=distance_BQK.device).to(distance_BQK.dtype)
            index_BQK = (distance_BQK.long() - lowest).clamp(0, span - 1)  # padding may lie outside the range
        else:
            distances_N, index_BQK = distance_BQK.unique(return_inverse=True)
        cos_1NF, sin_1NF = cos_sin_from_theta(distances_N[None], 10_000.0, self.geometry.width // 2)
        return torch.cat([sin_1NF, cos_1NF], -1)[0], index_BQK[:, None]

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        waves_ND, index_B1QK = self._waves(pair)
        dtype, heads = scores_BHQK.dtype, self.geometry.heads
        r_HNE = (waves_ND @ self.project.to(dtype).T).unflatten(-1, (heads, -1)).transpose(0, 1)
        u_H1E, v_H1E = (part.to(dtype)[:, None] * pair.scale for part in (self.u, self.v))
        by_key_BH1K = u_H1E @ pair.k_BHKE.mT
        by_distance_BHQN = (pair.q_BHQE + v_H1E) @ r_HNE.mT
        return scores_BHQK + by_key_BH1K + by_distance_BHQN.gather(-1, index_B1QK.expand(scores_BHQK.shape))
