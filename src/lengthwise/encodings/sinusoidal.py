"""Sinusoidal absolute positions. Vaswani et al. 2017, arXiv:1706.03762."""

import torch
from torch import Tensor

from lengthwise.encodings.encoding import Encoding, Geometry
from lengthwise.spec import SpecError


class Sinusoidal(Encoding):
    """Add amplitude · [sin(t ω_0), sin(t ω_1), ..., cos(t ω_0), cos(t ω_1), ...] to the embedding at position t.

    ω_k = theta^(−2k / width). Position 0 of width 4 gets [0, 0, 1, 1]. Sines first, then cosines, as the original
    study's code has it (its text says alternating, which is `interleaved=true`). The amplitude is the embeddings' own
    standard deviation unless given: 1 in the `paper` preset, as published.
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
        self.theta = theta
        self.interleaved = interleaved
        self.amplitude = amplitude

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        width = self.geometry.width
        even_K = torch.arange(0, width, 2, device=x_BTD.device, dtype=positions_BT.dtype)
        angles_BTK = positions_BT[..., None] * self.theta ** (-even_K / width)
        waves = (angles_BTK.sin(), angles_BTK.cos())
        waves_BTD = torch.stack(waves, -1).flatten(-2) if self.interleaved else torch.cat(waves, -1)
        amplitude = self.geometry.embedding_std if self.amplitude is None else self.amplitude
        return x_BTD + (waves_BTD * amplitude).to(x_BTD.dtype)
