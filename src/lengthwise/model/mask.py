"""The attention mask, which combines order, padding, documents and prompts, and knows when none is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lengthwise.model.layout import TokenLayout


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query sees. The queries are the last tokens of `keys`, or those from index `first` on."""

    mask: str
    queries: TokenLayout
    keys: TokenLayout
    first: int | None = None

    @property
    def may_be_empty(self) -> bool:
        """Whether a query may see no key: never, since padding sees padding."""
        return False

    @property
    def start(self) -> int:
        """The index of the first query among the keys."""
        return self.keys.tokens - self.queries.tokens if self.first is None else self.first

    def block(self, start: int, end: int) -> AttentionMask:
        """The mask of the queries from `start` up to `end`; a causal mask drops the keys that none of them sees."""
        last = self.start + end if self.mask == "causal" else self.keys.tokens
        return AttentionMask(self.mask, self.queries.cut(start, end), self.keys.cut(0, last), self.start + start)

    @cached_property
    def plain(self) -> bool:
        """Whether no key is hidden except by the causal order."""
        return (
            self.keys.documents_BT is None or (self.mask == "causal" and self.keys.trailing)
        ) and self.mask != "prefix"

    @property
    def square(self) -> bool:
        """Whether every token is a query; only then does PyTorch's `is_causal` align queries with keys."""
        return self.queries.tokens == self.keys.tokens

    @cached_property
    def all_visible(self) -> bool:
        """Whether every query sees every key."""
        last = self.start + 1 == self.keys.tokens
        return self.plain and (self.mask == "bidirectional" or (self.queries.tokens == 1 and last))

    @property
    def distances(self) -> tuple[int, int]:
        """The smallest and the largest distance of a query and a key."""
        return self.queries.smallest - self.keys.largest, self.queries.largest - self.keys.smallest

    @cached_property
    def allowed_BQK(self) -> Tensor:
        """The mask as booleans, True where a key is visible; (1, Q, K) if all rows agree."""
        q, k = self.queries, self.keys
        key_K = torch.arange(k.tokens, device=k.positions_BT.device)
        query_Q = key_K[self.start : self.start + q.tokens]
        if self.mask == "bidirectional":
            allowed = torch.ones(1, q.tokens, k.tokens, dtype=torch.bool, device=key_K.device)
        else:
            allowed = (key_K <= query_Q[:, None])[None]
        if self.mask == "prefix" and k.prefix_BT is not None:
            allowed = allowed | k.prefix_BT[:, None, :]
        if k.documents_BT is not None and not self.plain:
            documents_BQ = k.documents_BT[:, self.start : self.start + q.tokens]
            allowed = allowed & (documents_BQ[:, :, None] == k.documents_BT[:, None, :])
        return allowed
