"""T5's relative bias. Raffel et al. 2020, arXiv:1910.10683."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, normal_
from lengthwise.spec import SpecError


class T5(Encoding):
    """Add a learned number per head and bucket of distance to each score; one table serves all layers.

    The first half of the buckets holds one distance each (0, 1, 2, ...); the rest are spaced logarithmically up to
    `distance`, and everything beyond falls into the last. With 5 buckets and distance 6: 0 1 2 3 4 5 6 7 → buckets
    0 1 2 3 3 4 4 4. A key ahead of its query counts as distance 0, unless `bidirectional=true`, which gives half of
    the buckets to either side. (The formula printed in Kazemnejad et al. halves the number of buckets as a real number;
    their code and their example matrix use integer division, as here.)
    """

    paper = "Raffel et al. 2020, arXiv:1910.10683"
    formula = "t5"

    def __init__(
        self, geometry: Geometry, *, buckets: int = 32, distance: int = 128, bidirectional: bool = False
    ) -> None:
        super().__init__(geometry)
        exact = (buckets // 2 if bidirectional else buckets) // 2
        if exact < 1 or distance <= exact:
            need = "at least 4 buckets" if bidirectional else "at least 2 buckets"
            raise SpecError(f"t5 needs {need} and a distance above {max(exact, 1)}, not {buckets} and {distance}")
        self.buckets = buckets
        self.distance = distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.empty(buckets, geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.table, self.geometry.bias_std, stream("table"))

    def bucket(self, distances_N: Tensor) -> Tensor:
        """The bucket of each distance, always in fp32: at a bucket's boundary rounding decides, as in T5."""
        behind_N, buckets, side_N = distances_N.long(), self.buckets, 0
        if self.bidirectional:
            buckets //= 2
            side_N = (behind_N < 0).long() * buckets
            behind_N = behind_N.abs()
        behind_N = behind_N.clamp(min=0)
        exact = buckets // 2
        ratio_N = torch.log(behind_N.clamp(min=1).float() / exact) / math.log(self.distance / exact)
        far_N = (exact + (ratio_N * (buckets - exact)).long()).clamp(max=buckets - 1)
        return side_N + torch.where(behind_N < exact, behind_N, far_N)

    def by_distance(self, distances_N: Tensor) -> Tensor:
        # Cast before the gather: its gradient sums over all pairs of tokens, for which bf16 is not precise enough.
        return self.table.to(distances_N.dtype).T[:, self.bucket(distances_N)]
