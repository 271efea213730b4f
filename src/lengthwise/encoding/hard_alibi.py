"""Hard-ALiBi: windows in place of slopes. Jelassi et al. 2024, arXiv:2402.01032."""

import torch
from torch import Tensor

from lengthwise.encoding.base import Encoding, Geometry
from lengthwise.spec import SpecError


class HardAlibi(Encoding):
    """Head h of the first `fraction` of the heads sees h tokens: its own and the h − 1 before; the others see all.

    With 4 heads, head 1 sees only its own token, head 2 also the one before, and heads 3 and 4 have no positions. That
    suffices to find an earlier occurrence of the last n tokens and to copy what follows it. (The publication gives
    windows to 8 of 16 heads.)
    """

    label = "Hard-ALiBi"
    paper = "Jelassi et al. 2024, arXiv:2402.01032"
    formula = "hard_alibi"

    def __init__(self, geometry: Geometry, *, fraction: float = 0.5) -> None:
        super().__init__(geometry)
        self.fraction = fraction
        self.windows = int(fraction * geometry.heads + 1e-4)  # 0.333333 of 3 heads is one
        if not 0 < fraction <= 1 or not self.windows:
            raise SpecError(
                f"hard_alibi gives windows to a fraction of the heads, at least to one, not {fraction} of "
                f"{geometry.heads}; write fraction={1 / geometry.heads:g} to 1.0"
            )

    def heads_without_positions(self) -> range:
        return range(self.windows, self.geometry.heads)

    def by_distance(self, distances_N: Tensor) -> Tensor:
        heads_H1 = torch.arange(self.geometry.heads, device=distances_N.device)[:, None]
        hidden_HN = (distances_N.abs() > heads_H1) & (heads_H1 < self.windows)
        return torch.zeros_like(hidden_HN, dtype=distances_N.dtype).masked_fill(hidden_HN, -torch.inf)
