"""What positions do in a model: the encoding of each layer as it was found, or as a configuration asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, log

from lengthwise.display import Display, Part

CLOSE = 2e-3
"""Two values this close, relative to the larger, count as equal."""
COLUMNS = ("encoding", "theta", "lanes", "scaling", "window", "temperature")
"""What is printed of a layer."""


@dataclass(frozen=True)
class Rotation:
    """How queries and keys turn with their position, as found on the keys."""

    frequencies: tuple[float, ...]
    """Radians per position of each pair of lanes, in the order of its first lane."""
    pairs: tuple[tuple[int, int], ...]
    """The lanes that turn together."""
    head_width: int
    factor: float | None
    """By how much a key grows when it is turned (YaRN's attention factor); None if that was not seen."""
    changes_with_length: bool
    """Whether fast pairs turn differently at large positions, as with dynamic scaling and LongRoPE."""

    @property
    def layout(self) -> str:
        """`half` if lane i turns with lane i + n/2, `interleaved` if it turns with its neighbour, else `other`."""
        apart = {second - first for first, second in self.pairs}
        if apart == {1} and len(self.pairs) > 1:
            return "interleaved"
        return "half" if len(apart) == 1 else "other"

    @property
    def frequency_lanes(self) -> int:
        """The lanes over which frequencies are spread: all of the head if lanes without rotation count too."""
        apart = self.pairs[0][1] - self.pairs[0][0]
        return 2 * apart if self.layout == "half" else 2 * len(self.pairs)

    @property
    def share(self) -> float:
        """The share of the head's lanes that turn."""
        return 2 * len(self.pairs) / self.head_width

    @property
    def theta(self) -> float:
        """The base of the frequencies: that of the slowest pairs, or of the fastest if those do not fit to it."""
        logs, few = [log(one) for one in self.frequencies], max(2, len(self.frequencies) // 4)
        if len(logs) < 2:
            return float("nan")
        bases = [
            exp((part[0] - part[-1]) / (len(part) - 1) * self.frequency_lanes / 2) for part in (logs[-few:], logs[:few])
        ]
        return min(bases, key=lambda base: self._misfit(self._slowdown(base)))

    def _slowdown(self, base: float) -> list[float]:
        """Return by how much each pair is slower than with this base."""
        return [base ** (-2 * n / self.frequency_lanes) / one for n, one in enumerate(self.frequencies)]

    def _misfit(self, slowdown: Sequence[float]) -> float:
        """Return how far slowdowns are from growing with the pair, as those of every known scaling do."""
        fall = sum(max(0.0, log(a / b)) for a, b in pairwise(slowdown))
        return fall + abs(log(slowdown[0])) * 1e-3

    @property
    def scaling(self) -> str:
        """`none`, `linear by 4`, or how much slower the slowest pairs are, e.g. `slow pairs by 8`."""
        slowdown = self._slowdown(self.theta)
        if max(slowdown) - min(slowdown) < 20 * CLOSE * max(slowdown):
            return "none" if abs(slowdown[0] - 1) < 5 * CLOSE else f"linear by {slowdown[0]:.3g}"
        return f"slow pairs by {slowdown[-1]:.3g}"


@dataclass(frozen=True)
class LayerEncoding:
    """What positions do in one attention layer."""

    module: str
    rotation: Rotation | None
    slopes: tuple[float, ...]
    """The slope of each head, if scores fall linearly with distance."""
    bias: str
    """`none`, `linear` (as ALiBi), `by distance`, or `by content and distance`."""
    window: int | None
    """How many keys a query sees, itself included; None if it sees all."""
    chunk: int | None
    """The size of the chunks of tokens outside of which a query sees nothing; None if there are none."""
    sink: bool
    temperature: float | None
    """The largest factor by which queries grow with their position; None if the bias depends on the content."""

    @property
    def number(self) -> int | None:
        """The number of the layer, from the name of its module; None if it has none."""
        found = re.search(r"\.(\d+)(\.|$)", self.module)
        return None if found is None else int(found[1])

    def line(self) -> dict[str, str]:
        """The cells of the layer's line in the table."""
        cells, turned = dict.fromkeys(COLUMNS, ""), self.rotation
        cells["encoding"] = self.name + (" + sink" if self.sink else "")
        if turned is not None:
            cells["theta"] = f"{turned.theta:.4g}"
            cells["lanes"] = f"{turned.share:.0%} {turned.layout}"
            factor = "" if turned.factor is None or abs(turned.factor - 1) < CLOSE else f", keys × {turned.factor:.4g}"
            cells["scaling"] = ("changes with length" if turned.changes_with_length else turned.scaling) + factor
        if self.slopes:
            cells["scaling"] = f"slopes {self.slopes[0]:.3g} to {self.slopes[-1]:.3g}"
        cells["window"] = f"{self.window}" if self.window else f"chunks of {self.chunk}" if self.chunk else "all"
        if self.temperature is not None and abs(self.temperature - 1) > CLOSE:
            cells["temperature"] = f"up to × {self.temperature:.4g}"
        return cells

    @property
    def name(self) -> str:
        """The encoding in a word, as in our catalogue."""
        if self.rotation is not None:
            return "rope"
        return {"none": "nope", "linear": "alibi"}.get(self.bias, f"bias {self.bias}")


@dataclass(frozen=True, repr=False)
class ModelEncodings(Display):
    """What positions do in a model."""

    embedding: str
    """What is added to the embeddings: `learned` or `sinusoidal` positions, or `none`."""
    layers: tuple[LayerEncoding, ...]
    looked: int
    """Tokens of the longest call: a wider window was not looked for."""

    @property
    def relative(self) -> bool:
        """Whether only distances count, and not positions themselves."""
        return self.embedding == "none" and not any(
            layer.temperature is None
            or abs(layer.temperature - 1) > CLOSE
            or (layer.rotation is not None and layer.rotation.changes_with_length)
            or layer.chunk
            for layer in self.layers
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each kind of layer, and whether positions are added to embeddings."""
        lines: dict[tuple[str, ...], list[int]] = {}
        for place, layer in enumerate(self.layers):
            lines.setdefault(tuple(layer.line().values()), []).append(place if layer.number is None else layer.number)
        yield Part([{"layers": ranges(own), **dict(zip(COLUMNS, line, strict=True))} for line, own in lines.items()])
        if self.embedding != "none":
            yield Part(f"Positions are added to the embeddings, before the first layer ({self.embedding}).")
        yield Part(
            f"Found by probing the model, not from its configuration. Windows were looked for in {self.looked} tokens."
        )

    def plain(self) -> dict[str, object]:
        """Everything that was found, layer by layer."""
        return {
            "embedding": self.embedding,
            "looked": self.looked,
            "layers": [{**layer.line(), **asdict(layer)} for layer in self.layers],
        }


def ranges(numbers: Sequence[int]) -> str:
    """Return e.g. `0-2, 5` for 0, 1, 2, 5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
