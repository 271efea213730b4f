"""ALiBi with the square root of the distance in place of the distance."""

from torch import Tensor, arange

import lengthwise as lw


class Root(lw.Encoding):
    """Subtract the root of the distance, times a slope for each head: 1, 1/2, 1/4, ..."""

    def by_distance(self, distances_N: Tensor) -> Tensor:
        slopes_H = 2.0 ** -arange(self.geometry.heads, device=distances_N.device, dtype=distances_N.dtype)
        return -slopes_H[:, None] * distances_N.abs().sqrt()
