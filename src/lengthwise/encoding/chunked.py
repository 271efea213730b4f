"""Rotary positions within blocks: the local layers of Llama 4."""

import torch
from torch import Tensor

from lengthwise.encoding.base import Geometry
from lengthwise.encoding.rope import Rope
from lengthwise.spec import SpecError


class Chunked(Rope):
    """RoPE among positions of the same block of `chunk`: 0 to chunk − 1, chunk to 2 · chunk − 1, and so on.

    A key in another block is hidden, so a token at the start of a block sees itself alone. `local` has a window that
    slides instead. Positions are given to blocks by the numbers that the model is given, so a shift of all positions
    changes what is visible.
    """

    label = "Chunked RoPE"
    paper = "Meta 2025, Llama 4"
    relative = False

    def __init__(
        self,
        geometry: Geometry,
        *,
        chunk: int = 16,
        theta: float = 10_000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__(geometry, theta=theta, fraction=fraction, interleaved=interleaved)
        if chunk < 1:
            raise SpecError(f"chunked needs blocks of at least one position, not {chunk}")
        self.chunk = chunk

    def bias(self, query_positions_BQ: Tensor, key_positions_BK: Tensor) -> Tensor:
        query_BQ, key_BK = ((part / self.chunk).floor() for part in (query_positions_BQ, key_positions_BK))
        hidden_BQK = query_BQ[:, :, None] != key_BK[:, None, :]
        bias_BQK = torch.zeros_like(hidden_BQK, dtype=query_positions_BQ.dtype).masked_fill(hidden_BQK, -torch.inf)
        return bias_BQK[:, None].expand(-1, self.geometry.heads, -1, -1)
