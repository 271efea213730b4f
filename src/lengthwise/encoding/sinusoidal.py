"""Sinusoidal absolute positions. Vaswani et al. 2017, arXiv:1706.03762."""

import math

import torch
from torch import Tensor

from lengthwise.encoding.base import Encoding, Geometry, cos_sin_from_theta
from lengthwise.spec import SpecError


class Sinusoidal(Encoding):
    """Add amplitude · [sin(t ω_0), sin(t ω_1), ..., cos(t ω_0), cos(t ω_1), ...] to the embedding at position t.

    ω_k = theta^(−2k / width). Position 0 of width 4 gets [0, 0, 1, 1]. Sines come first, then cosines, as in the
    original study's code (its text says alternating, which is `interleaved=true`). The default amplitude is the initial
    standard deviation of the embeddings: 1 in the `paper` preset, as published.
    """

    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    formula = "sinusoidal"
    relative = False

    def __init__(
        self,
        geometry: Geometry,
        *,
        theta: float = 10_000.0,
        interleaved: bool = False,
        amplitude: float | None = None,
    ) -> None:
        super().__init__(geometry)
        if geometry.width % 2:
            raise SpecError(f"sinusoidal fills pairs of coordinates, so the width must be even, not {geometry.width}")
        if not 0 < theta < math.inf:
            raise SpecError(f"sinusoidal needs a theta above 0, not {theta}")
        self.theta = theta
        self.interleaved = interleaved
        self.amplitude = amplitude

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        cos_BTK, sin_BTK = cos_sin_from_theta(positions_BT, self.theta, self.geometry.width // 2)
        waves = (sin_BTK, cos_BTK)
        waves_BTD = torch.stack(waves, -1).flatten(-2) if self.interleaved else torch.cat(waves, -1)
        amplitude = self.geometry.embedding_std if self.amplitude is None else self.amplitude
        return x_BTD + (waves_BTD * amplitude).to(x_BTD.dtype)
