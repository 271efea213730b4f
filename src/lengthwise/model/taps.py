"""Taps: named places in the decoder where a function may read or replace a tensor, without editing the model."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from torch import Tensor

from lengthwise.spec import SpecError, did_you_mean

Tap = Callable[[str, Tensor], Tensor | None]
"""Gets the tap's name and the tensor; returns a replacement, or None to keep the tensor."""

LAYER_TAPS = {
    "q": "queries, turned, before scaling: (B, H, Q, E)",
    "k": "keys, turned: (B, H, K, E)",
    "weights": "attention after softmax: (B, H, Q, K); the layer then takes the dense path",
    "heads": "each head's output: (B, H, Q, E)",
    "residual": "the residual stream after the layer: (B, T, D)",
}


def tap_names(layers: int) -> list[str]:
    """Every tap of a decoder: `embeddings`, `layers.0.q`, ..., `states`."""
    return ["embeddings", *(f"layers.{i}.{name}" for i in range(layers) for name in LAYER_TAPS), "states"]


class QueryBlockTap:
    """A tap on weights that gets one block of queries at a time, so that no T × T matrix is held in memory.

    `QueryBlockTap(function, 256)` calls `function(name, weights_BHRK, start)` for queries from start on; under a causal
    mask a block only has the keys up to its last query. It can read weights but not replace them.
    """

    def __init__(self, function: Callable[[str, Tensor, int], None], rows: int = 256) -> None:
        if rows < 1:
            raise SpecError(f"a block has at least one row, not {rows}")
        self.function, self.rows = function, rows

    def __call__(self, name: str, tensor: Tensor) -> None:
        """Receive all weights as one block, where they were computed at once."""
        self.function(name, tensor, 0)


class Taps:
    """The taps of one forward pass; a name may be a pattern, as `layers.*.weights`."""

    def __init__(self, taps: Mapping[str, Tap], layers: int) -> None:
        known = tap_names(layers)
        self._taps: dict[str, Tap] = {}
        for pattern, tap in taps.items():
            names = fnmatch.filter(known, pattern)
            if not names:
                raise SpecError(f"the decoder has no tap {pattern!r}.{did_you_mean(pattern, known)}")
            for name in names:
                if isinstance(tap, QueryBlockTap) and not name.endswith(".weights"):
                    raise SpecError(
                        f"QueryBlockTap listens to weights, not to {name!r}; give it for 'layers.*.weights'"
                    )
                if name in self._taps:
                    raise SpecError(f"two taps are given for {name!r}; one function may do both")
                self._taps[name] = tap

    def queries_per_block(self, name: str) -> int | None:
        """The number of queries per block that the tap at `name` wants; None for all at once."""
        tap = self._taps.get(name)
        return tap.rows if isinstance(tap, QueryBlockTap) else None

    def pass_block_to_tap(self, name: str, weights_BHRK: Tensor, start: int) -> None:
        """Pass a block of weights to the tap at `name`."""
        tap = self._taps.get(name)
        assert tap is None or isinstance(tap, QueryBlockTap)
        if tap is not None:
            tap.function(name, weights_BHRK, start)

    def has(self, name: str) -> bool:
        """Whether there is a tap at `name`."""
        return name in self._taps

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._taps:
            return tensor
        replacement = self._taps[name](name, tensor)
        if replacement is None:
            return tensor
        if replacement.shape != tensor.shape:
            raise SpecError(f"the tap at {name!r} returned {tuple(replacement.shape)} for {tuple(tensor.shape)}")
        return replacement


class Recorder(dict[str, Tensor]):
    """A tap that stores tensors: `decoder(ids, taps={"*.weights": recorder})`, then `recorder["layers.0.weights"]`."""

    def __call__(self, name: str, tensor: Tensor) -> None:
        self[name] = tensor
