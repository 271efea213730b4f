"""Attention temperature: a factor on q · k beside the scale. It acts on content, never on a bias."""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor

from lengthwise.spec import Spec, SpecError, build

TEMPERATURES = {
    "constant": "lengthwise.model.temperature:Constant",
    "log-n": "lengthwise.model.temperature:LogN",
}


class Temperature:
    """A factor that may depend on the query's position; this base class changes nothing."""

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        """The factor, as a number or as (B, 1, Q, 1)."""
        return 1.0


class Constant(Temperature):
    """The same factor everywhere."""

    def __init__(self, *, factor: float = 1.0) -> None:
        self.value = factor

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return self.value


class LogN(Temperature):
    """max(1, ln(t + 1) / ln(trained)) at position t, so that attention over more keys stays as sharp as in training.

    With `trained=16`, position 15 has factor 1 and position 255 has factor 2. Chiang and Cholak 2022, arXiv:2202.12172.
    """

    def __init__(self, *, trained: int) -> None:
        if trained < 2:
            raise SpecError(f"log-n needs the training length in tokens, at least 2, not trained={trained}")
        self.trained = trained

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return ((positions_BQ + 1).log() / math.log(self.trained)).clamp(min=1)[:, None, :, None]


def build_temperature(spec: str) -> Temperature:
    """The temperature that `spec` names, e.g. `log-n:trained=16`."""
    return cast(Temperature, build("temperature", TEMPERATURES, Temperature, Spec.of(spec)))
