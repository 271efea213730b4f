"""The layout of a batch: positions, padding, documents and prompts, all derived from lengths, never from ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from lengthwise.device import HOST, without_waiting
from lengthwise.spec import SpecError

PAD = -1
"""The document index of padding. Padding attends to padding, so no query is ever without a visible key."""


@dataclass(frozen=True)
class TokenLayout:
    """The positions and documents of a block of tokens, and some of their properties, computed once."""

    positions_BT: Tensor
    order_BT: Tensor
    """The index of each token in its own document, 0, 1, 2, ...; positions, unless others were given."""
    documents_BT: Tensor | None
    """The document index of each token, `PAD` for padding; None if each row is one sequence without padding."""
    prefix_BT: Tensor | None
    """Tokens that every token of the row may see, under a prefix mask."""
    counts: tuple[int, ...]
    """Real tokens in each row; one number where all rows agree."""
    smallest: int
    largest: int
    """The smallest and the largest position."""
    given: bool
    """Whether positions were passed by the caller, not counted."""
    trailing: bool
    """Padding, if any, comes after all real tokens of its row, where a causal mask already hides it."""
    consecutive: bool
    """Positions are 0, 1, 2, ... in every row."""
    ordered: bool
    """Within a document positions never decrease."""

    @property
    def tokens(self) -> int:
        """Tokens per row, padding included."""
        return self.positions_BT.shape[1]

    def rows(self, row_indices: list[int]) -> TokenLayout:
        """The layout of these rows only."""

        def of(held_BT: Tensor | None) -> Tensor | None:
            if held_BT is None or held_BT.shape[0] == 1:
                return held_BT
            return held_BT[without_waiting(row_indices, held_BT.device)]

        counts = self.counts if len(self.counts) == 1 else tuple(self.counts[row] for row in row_indices)
        positions_BT, order_BT = of(self.positions_BT), of(self.order_BT)
        assert positions_BT is not None and order_BT is not None
        return replace(
            self,
            positions_BT=positions_BT,
            order_BT=order_BT,
            documents_BT=of(self.documents_BT),
            prefix_BT=of(self.prefix_BT),
            counts=counts[:1] if len(set(counts)) == 1 else counts,
            smallest=int(positions_BT.min()),
            largest=int(positions_BT.max()),
        )

    def cut(self, start: int, end: int) -> TokenLayout:
        """The layout of the tokens from `start` up to `end`, with unchanged positions."""

        def of(held_BT: Tensor | None) -> Tensor | None:
            return None if held_BT is None else held_BT[:, start:end]

        first, last = self.smallest, self.largest
        if self.consecutive:
            first, last = min(first + start, last), min(first + end - 1, last)
        return replace(
            self,
            positions_BT=self.positions_BT[:, start:end],
            order_BT=self.order_BT[:, start:end],
            documents_BT=of(self.documents_BT),
            prefix_BT=of(self.prefix_BT),
            smallest=first,
            largest=last,
        )

    def joined(self, new_layout: TokenLayout) -> TokenLayout:
        """The layout of these tokens followed by `new_layout` ones."""
        batch = max(self.positions_BT.shape[0], new_layout.positions_BT.shape[0])
        documents = None
        if self.documents_BT is not None or new_layout.documents_BT is not None:
            documents = _cat(self._documents(), new_layout._documents())
        prefix = None
        if self.prefix_BT is not None:
            prefix = _cat(self.prefix_BT, torch.zeros_like(new_layout.positions_BT, dtype=torch.bool))
        counts = tuple(a + b for a, b in zip(_each(self.counts, batch), _each(new_layout.counts, batch), strict=True))
        follows = self.documents_BT is None and new_layout.documents_BT is None
        return TokenLayout(
            positions_BT=_cat(self.positions_BT, new_layout.positions_BT),
            order_BT=_cat(self.order_BT, new_layout.order_BT),
            documents_BT=documents,
            prefix_BT=prefix,
            counts=counts[:1] if len(set(counts)) == 1 else counts,
            smallest=min(self.smallest, new_layout.smallest),
            largest=max(self.largest, new_layout.largest),
            given=self.given,
            trailing=self.documents_BT is None and new_layout.trailing,
            consecutive=self.consecutive and new_layout.consecutive and follows,
            ordered=self.ordered and new_layout.ordered and follows and new_layout.smallest >= self.largest,
        )

    def _documents(self) -> Tensor:
        return torch.zeros_like(self.positions_BT) if self.documents_BT is None else self.documents_BT


def _each(counts: tuple[int, ...], batch: int) -> tuple[int, ...]:
    return counts * batch if len(counts) == 1 else counts


def _cat(a_BT: Tensor, b_BT: Tensor) -> Tensor:
    batch = max(a_BT.shape[0], b_BT.shape[0])
    return torch.cat([a_BT.expand(batch, -1), b_BT.expand(batch, -1)], 1)


def lay_out(
    batch: int,
    tokens: int,
    device: torch.device,
    *,
    past: TokenLayout | None = None,
    positions_BT: Tensor | None = None,
    lengths: Sequence[int] | Tensor | None = None,
    padding: Literal["right", "left"] = "right",
    documents: Sequence[Sequence[int]] | None = None,
    prefix: Sequence[int] | Tensor | None = None,
    cached: bool = False,
) -> TokenLayout:
    """The layout of `batch` rows of `tokens` tokens, with `lengths` or packed `documents`, appended to `past`.

    It is computed and checked on the CPU, and its tensors are then copied to `device`: so nothing waits for the device.
    """
    rows = _check_lengths(lengths, batch, tokens, "lengths", padding)
    if documents is not None and (lengths is not None or cached or prefix is not None):
        raise SpecError("packed documents go without lengths, prefix and cache: each document is its own sequence")
    if past is not None and past.given != (positions_BT is not None):
        before, now = ("given", "counted") if past.given else ("counted", "given")
        raise SpecError(
            f"the positions of the tokens in the cache were {before}; these would be {now}: do the same for all"
        )
    start = past.counts if past else (0,)
    index_1T = torch.arange(tokens, device=HOST)[None]

    documents_BT, trailing = None, True
    if documents is not None:
        documents_BT, counted_BT = _pack(documents, batch, tokens)
        counts = tuple(sum(row) for row in documents)
        largest = max(max(row, default=1) for row in documents) - 1
        consecutive = False
    elif rows is None or all(length == tokens for length in rows):
        counts = (tokens,)
        counted_BT = index_1T + (start[0] if len(set(start)) == 1 else torch.tensor(start, device=HOST)[:, None])
        largest = max(start) + tokens - 1
        consecutive = len(set(start)) == 1
    else:
        counts = tuple(rows)
        length_B1, start_B1 = (torch.tensor(item, device=HOST)[:, None] for item in (rows, _each(start, batch)))
        skip_B1 = tokens - length_B1 if padding == "left" else torch.zeros_like(length_B1)
        real_BT = (index_1T >= skip_B1) & (index_1T < skip_B1 + length_B1)
        documents_BT = torch.where(real_BT, 0, PAD)
        trailing = padding == "right"
        counted_BT = (index_1T - skip_B1).clamp(min=0).minimum(length_B1.clamp(min=1) - 1) + start_B1
        largest = max(a + b for a, b in zip(_each(start, batch), rows, strict=True)) - 1
        consecutive = False
        if trailing and past is None:
            # Padding after the end is never seen, so all rows may share the positions of the longest.
            largest = max(max(rows), 1) - 1
            counted_BT, consecutive = index_1T.clamp(max=largest), True

    smallest, ordered = min(start), True
    order_BT = counted_BT
    if positions_BT is not None:
        consecutive = False
        counted_BT, ordered = _check_positions(positions_BT, batch, tokens, documents_BT)
        smallest, largest = (int(counted_BT.min()), int(counted_BT.max())) if tokens else (0, 0)
    prefix_BT = _prefix(prefix, index_1T, batch, tokens, rows, padding)
    moved_BT = without_waiting(counted_BT, device)
    return TokenLayout(
        positions_BT=moved_BT,
        order_BT=moved_BT if order_BT is counted_BT else without_waiting(order_BT, device),
        documents_BT=None if documents_BT is None else without_waiting(documents_BT, device),
        prefix_BT=None if prefix_BT is None else without_waiting(prefix_BT, device),
        counts=counts[:1] if len(set(counts)) == 1 else counts,
        smallest=smallest,
        largest=max(smallest, largest),  # a block of padding alone has one position too
        given=positions_BT is not None,
        trailing=trailing and documents is None,
        consecutive=consecutive,
        ordered=ordered,
    )


def _check_lengths(
    lengths: Sequence[int] | Tensor | None, batch: int, tokens: int, name: str, padding: str
) -> list[int] | None:
    if padding not in {"right", "left"}:
        raise SpecError(f"padding is 'right' or 'left', not {padding!r}")
    if lengths is None:
        return None
    rows = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    whole = all(isinstance(length, Integral) and not isinstance(length, bool) for length in rows)
    if not whole or len(rows) != batch or any(not 0 <= length <= tokens for length in rows):
        raise SpecError(f"{name} must be {batch} whole numbers from 0 to {tokens}, not {rows}")
    return [int(length) for length in rows]


def _check_positions(positions_BT: Tensor, batch: int, tokens: int, documents_BT: Tensor | None) -> tuple[Tensor, bool]:
    if not isinstance(positions_BT, Tensor):
        raise SpecError("positions must be a tensor of whole numbers, (batch or 1, tokens)")
    if positions_BT.ndim != 2 or positions_BT.shape[0] not in {1, batch} or positions_BT.shape[1] != tokens:
        raise SpecError(f"positions must be ({batch} or 1, {tokens}), not {tuple(positions_BT.shape)}")
    if positions_BT.is_floating_point() or positions_BT.dtype == torch.bool:
        raise SpecError(f"positions are whole numbers, not {positions_BT.dtype}")
    positions_BT = positions_BT.to(device=HOST, dtype=torch.long)
    if tokens and int(positions_BT.min()) < 0:
        raise SpecError(f"positions are not negative, but the smallest is {int(positions_BT.min())}")
    later_BT = positions_BT[:, 1:] >= positions_BT[:, :-1]
    if documents_BT is not None:
        later_BT = later_BT | (documents_BT[:, 1:] != documents_BT[:, :-1])
    return positions_BT, bool(later_BT.all())


def _pack(documents: Sequence[Sequence[int]], batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    if any(isinstance(row, Integral) for row in documents):
        raise SpecError(f"documents has one list of lengths per row, e.g. [[5, 7], [12]], not {documents}")
    if len(documents) != batch or any(sum(row) > tokens or any(n < 1 for n in row) for row in documents):
        raise SpecError(f"documents must be {batch} lists of lengths, each of at most {tokens} in sum, not {documents}")
    ids = [[i for i, n in enumerate(row) for _ in range(n)] + [PAD] * (tokens - sum(row)) for row in documents]
    places = [[t for n in row for t in range(n)] + [0] * (tokens - sum(row)) for row in documents]
    return torch.tensor(ids, device=HOST), torch.tensor(places, device=HOST)


def _prefix(
    prefix: Sequence[int] | Tensor | None,
    index_1T: Tensor,
    batch: int,
    tokens: int,
    rows: list[int] | None,
    padding: str,
) -> Tensor | None:
    checked = _check_lengths(prefix, batch, tokens, "prefix", padding)
    if checked is None:
        return None
    if rows is not None and any(p > n for p, n in zip(checked, rows, strict=True)):
        raise SpecError(f"a prompt is not longer than its row: prefix {checked}, lengths {rows}")
    skip = [tokens - n for n in rows] if rows is not None and padding == "left" else [0] * batch
    skip_B1, prefix_B1 = (torch.tensor(item, device=HOST)[:, None] for item in (skip, checked))
    return (index_1T >= skip_B1) & (index_1T < skip_B1 + prefix_B1)
