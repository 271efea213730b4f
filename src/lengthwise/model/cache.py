"""The cache of keys and values, so that decoding computes each token only once."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from lengthwise.device import without_waiting
from lengthwise.model.layout import TokenLayout
from lengthwise.spec import SpecError


class Cache:
    """Keys and values of every layer, and the layout of the tokens they belong to.

    It is made by `Decoder.cache(budget)`. Its capacity doubles when full, so appending has a constant amortized cost.
    """

    def __init__(self, owner: nn.Module, layers: int, budget: int | Tensor) -> None:
        smallest = int(budget.min()) if isinstance(budget, Tensor) else budget
        if not isinstance(smallest, int) or isinstance(smallest, bool) or smallest < 1:
            raise SpecError(f"a cache needs a budget of at least one token, prompt and answer together, not {budget!r}")
        self.owner = weakref.ref(owner)
        self.budget = budget
        self.layout: TokenLayout | None = None
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._marks: list[Tensor | None] = [None] * layers

    @property
    def tokens(self) -> int:
        """Tokens per row so far, padding included."""
        return 0 if self.layout is None else self.layout.tokens

    def check_can_append(self, mask: str, new_layout: TokenLayout) -> None:
        """Refuse tokens that do not fit the budget, or that would change states which are already stored."""
        before = torch.tensor((0,) if self.layout is None else self.layout.counts)
        tokens_B = before + torch.tensor(new_layout.counts)
        if bool((tokens_B > torch.as_tensor(self.budget).cpu()).any()):
            most = int(tokens_B.max())
            raise SpecError(
                f"{most} tokens do not fit the cache's budget of {self.budget}; make it decoder.cache({most})"
            )
        if mask == "bidirectional":
            raise SpecError("a bidirectional model has no cache: every new token changes the states of all others")
        if mask == "prefix" and self.layout is not None and new_layout.prefix_BT is not None:
            raise SpecError(
                "under a prefix mask the whole prompt goes into the cache at once: give prefix with the first block"
            )

    def keep(self, row_indices: list[int]) -> None:
        """Keep only these rows of the batch; the others are finished."""
        for held in (self._keys, self._values, self._marks):
            held[:] = [None if part is None else part[without_waiting(row_indices, part.device)] for part in held]
        if isinstance(self.budget, Tensor) and self.budget.numel() > 1:
            self.budget = self.budget.reshape(-1)[without_waiting(row_indices, self.budget.device)]
        if self.layout is not None:
            self.layout = self.layout.rows(row_indices)

    def extend_marks(self, layer: int, marks_BHQC: Tensor) -> Tensor:
        """Append the marks of one layer's new tokens (see `Encoding.mark`), and return all of that layer's."""
        self._marks[layer] = held = _append(self._marks[layer], marks_BHQC, self.tokens)
        return held[:, :, : self.tokens + marks_BHQC.shape[2]]

    def extend(self, layer: int, k_BHQE: Tensor, v_BHQE: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new keys and values, and return all of that layer's."""
        held = self._keys[layer]
        if held is not None and held.shape[:2] != k_BHQE.shape[:2]:
            raise SpecError(
                f"the cache holds {held.shape[0]} rows of {held.shape[1]} heads, these are {k_BHQE.shape[0]} of "
                f"{k_BHQE.shape[1]}; use one cache per batch and model"
            )
        start = self.tokens
        self._keys[layer] = _append(self._keys[layer], k_BHQE, start)
        self._values[layer] = _append(self._values[layer], v_BHQE, start)
        end = start + k_BHQE.shape[2]
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None and values is not None
        return keys[:, :, :end], values[:, :, :end]


def _append(held: Tensor | None, new_BHQE: Tensor, start: int) -> Tensor:
    batch, heads, new, width = new_BHQE.shape
    if held is None or held.shape[2] < start + new:
        room = new_BHQE.new_empty(batch, heads, max(start + new, 2 * start, 16), width)
        if held is not None:
            room[:, :, :start] = held[:, :, :start]
        held = room
    held[:, :, start : start + new] = new_BHQE
    return held
