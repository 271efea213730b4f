"""Attention temperature: a factor on q · k in addition to the scale. It is never applied to a bias."""

from __future__ import annotations

import math
from typing import Literal, cast

from torch import Tensor

from lengthwise.encoding.base import Encoding
from lengthwise.spec import Spec, SpecError, build

TEMPERATURES = {
    "constant": "lengthwise.model.temperature:Constant",
    "log-n": "lengthwise.model.temperature:LogN",
    "yarn": "lengthwise.model.temperature:Yarn",
    "llama4": "lengthwise.model.temperature:Llama4",
}


class AttentionTemperature:
    """A factor that may depend on the query's position; this base class changes nothing.

    With `layers=nope` it acts only in layers without an encoding: in `3*rope,nope`, only in the fourth.
    """

    layers: Literal["all", "nope"] = "all"

    def acts(self, encoding: Encoding) -> bool:
        """Whether it acts in the layers of this encoding."""
        return self.layers == "all" or not encoding.acts()

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        """The factor, as a number or as (B, 1, Q, 1)."""
        return 1.0


class Constant(AttentionTemperature):
    """The same factor everywhere."""

    def __init__(self, *, factor: float = 1.0, layers: Literal["all", "nope"] = "all") -> None:
        self.value = factor
        self.layers = layers

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return self.value


class LogN(AttentionTemperature):
    """max(1, ln(t + 1) / ln(trained)) at position t, so that attention over more keys stays as sharp as in training.

    With `trained=16`, position 15 has factor 1 and position 255 has factor 2. Chiang and Cholak 2022, arXiv:2202.12172.
    """

    def __init__(self, *, trained: int, layers: Literal["all", "nope"] = "all") -> None:
        if trained < 2:
            raise SpecError(f"log-n needs the training length in tokens, at least 2, not trained={trained}")
        self.trained = trained
        self.layers = layers

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return ((positions_BQ + 1).log() / math.log(self.trained)).clamp(min=1)[:, None, :, None]


class Yarn(AttentionTemperature):
    """(0.1 ln s + 1)² everywhere, for sequences s = `factor` times as long as the trained ones.

    `rope:scaling=yarn` applies this factor to the scores of rotated coordinates; here it works with any encoding. s = 4
    gives 1.2965. Peng et al. 2023, arXiv:2309.00071, who multiply cos and sin by its square root.
    """

    def __init__(self, *, factor: float, layers: Literal["all", "nope"] = "all") -> None:
        if not 1 <= factor < math.inf:
            raise SpecError(f"yarn's factor is how many times longer sequences are, at least 1, not {factor}")
        self.value = (0.1 * math.log(factor) + 1) ** 2
        self.layers = layers

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return self.value


class Llama4(AttentionTemperature):
    """1 + scale · ln(1 + ⌊(t + 1) / floor⌋) at position t: 1 up to `floor` − 2 and in steps of `floor` from there.

    It acts only in layers without an encoding, as in Llama 4, unless `layers=all`; position 8191 has factor 1.0693.
    """

    def __init__(self, *, scale: float = 0.1, floor: int = 8192, layers: Literal["all", "nope"] = "nope") -> None:
        if floor < 1 or not 0 <= scale < math.inf:
            raise SpecError(f"llama4 needs a floor of at least 1 and a scale from 0, not floor={floor}, scale={scale}")
        self.scale, self.floor, self.layers = scale, floor, layers

    def factor(self, positions_BQ: Tensor) -> Tensor | float:
        return (1 + self.scale * ((positions_BQ + 1) / self.floor).floor().log1p())[:, None, :, None]


def build_temperature(spec: str) -> AttentionTemperature:
    """The temperature that `spec` names, e.g. `log-n:trained=16`."""
    return cast(AttentionTemperature, build("temperature", TEMPERATURES, AttentionTemperature, Spec.of(spec)))
