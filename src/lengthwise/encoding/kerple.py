"""Kernelised relative positions. Chi et al. 2022, arXiv:2205.09921."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, uniform_

LEAST = 0.01
"""The lower bound of both parameters, as in the authors' code."""


class Kerple(Encoding):
    """Subtract r1 · log(1 + r2 · distance) from each score, or with `kernel=power` r1 · distance^r2; learned per head.

    With r1 = r2 = 1, distance 3 costs log 4 = 1.39, or 3 under the power kernel, which with r2 = 1 is ALiBi with slope
    r1. Each layer has its own r1 and r2. They are drawn as in the authors' code: r1 from (0, 2) and r2 from (0, 1) for
    the logarithm, and the other way round for the power kernel, whose r2 is at most 2. The authors overwrite a
    parameter that leaves its range; here it is clamped only where it is used, with a straight-through gradient, so that
    training can move it back.
    """

    label = "KERPLE"
    paper = "Chi et al. 2022, arXiv:2205.09921"
    formula = "kerple"
    shared = False

    def __init__(self, geometry: Geometry, *, kernel: Literal["log", "power"] = "log") -> None:
        super().__init__(geometry)
        self.kernel = kernel
        self.r1 = nn.Parameter(torch.empty(geometry.heads))
        self.r2 = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        outer, inner = (2.0, 1.0) if self.kernel == "log" else (1.0, 2.0)
        uniform_(self.r1, outer, stream("r1"))
        uniform_(self.r2, inner, stream("r2"))

    def by_distance(self, distances_N: Tensor) -> Tensor:
        r1_H1 = _read(self.r1, distances_N)
        if self.kernel == "log":
            return -r1_H1 * torch.log1p(_read(self.r2, distances_N) * distances_N.abs())
        return -r1_H1 * distances_N.abs() ** _read(self.r2, distances_N, most=2.0)


def _read(parameter_H: Tensor, like: Tensor, most: float | None = None) -> Tensor:
    """The parameter clamped to [`LEAST`, `most`], with a straight-through gradient: (H, 1)."""
    value_H = parameter_H.to(like.dtype)
    return (value_H + (value_H.clamp(min=LEAST, max=most) - value_H).detach())[:, None]
