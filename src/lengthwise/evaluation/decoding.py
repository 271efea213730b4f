"""Free-running greedy decoding of many cases at once, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lengthwise.device import free_bytes, is_host, without_waiting
from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case
from lengthwise.model import Decoder, DecoderConfig
from lengthwise.spec import SpecError, one_line

ROWS = 256
"""The most cases that are decoded in one batch; on an accelerator fewer, if its memory is short."""
AHEAD = 8
"""Tokens that an accelerator generates before the host reads them and drops the rows that have ended."""

Decode = Callable[[Sequence[Case], Sequence[Sequence[int]]], list[list[int]]]
"""(cases, tokens already generated for each) → all generated tokens of each, up to its end token or its limit."""


def position_limit(decoder: Decoder) -> int | None:
    """The first position that one of the decoder's encodings does not support; None if there is none."""
    limits = [part.limit for part in decoder._encodings() if part.limit is not None]
    return min(limits, default=None)


def bytes_per_token(config: DecoderConfig) -> float:
    """The most bytes that decoding holds for each token of each row: activations and the cache, in fp32."""
    activations = 1.15 * (2 * config.width + 3 * config.feed_forward_width)
    return 4 * (activations + 2 * config.heads * config.head_width * config.layers)


def rows_that_fit(decoder: Decoder, tokens: int, most: int = ROWS) -> int:
    """Return the batch size for rows of this length: `most` on the CPU, else what fits into half of the free memory.

    The estimate includes the scores of every query with every key, as if no fused kernel were used.
    """
    free = free_bytes(next(decoder.parameters()).device)
    if free is None:
        return most
    scores = 8 * decoder.config.heads * tokens**2
    return max(1, min(most, int(free / 2 / (tokens * bytes_per_token(decoder.config) + scores))))


def decoder_decode_function(decoder: Decoder, positions: Positions, end_id: int, batch_rows: int = ROWS) -> Decode:
    """Decoding with our decoder's cache, or without where appended tokens change earlier states."""
    work = _side_by_side if decoder.prefix_stable and decoder.config.mask != "bidirectional" else _anew

    def decode(asked: Sequence[Case], begun: Sequence[Sequence[int]]) -> list[list[int]]:
        said: list[list[int]] = [[] for _ in asked]
        # Sorted, so that the cases of a batch have similar numbers of tokens to generate and of prompt tokens.
        order = sorted(range(len(asked)), key=lambda n: (asked[n].limit - len(begun[n]), asked[n].prompt))
        start = 0
        while start < len(order):
            longest = max(asked[n].prompt + asked[n].limit for n in order[start : start + batch_rows])
            group = order[start : start + rows_that_fit(decoder, longest, batch_rows)]
            start += len(group)
            told = work(decoder, positions, end_id, [asked[n] for n in group], [begun[n] for n in group])
            for number, words in zip(group, told, strict=True):
                said[number] = words
        return said

    return decode


@torch.no_grad()
def _side_by_side(
    decoder: Decoder, positions: Positions, end: int, asked: list[Case], begun: list[Sequence[int]]
) -> list[list[int]]:
    said = [list(words) for words in begun]
    limit = position_limit(decoder)
    active = [row for row in range(len(asked)) if _goes_on(asked[row], said[row], end, positions, limit)]
    if not active:
        return said
    ids_BT, lengths, last_BT = _heads([asked[row] for row in active], [said[row] for row in active])
    wide = ids_BT.shape[1]
    cache = decoder.cache(torch.tensor([asked[row].budget for row in active]))
    carried = isinstance(positions, Consecutive) and limit is None
    best_B = decoder(
        without_waiting(ids_BT, next(decoder.parameters()).device),
        cache=cache,
        lengths=None if min(lengths) == wide else lengths,
        padding="left",
        positions_BT=_first_places(positions, [asked[row] for row in active], [said[row] for row in active], wide),
        prefix=[asked[row].prompt for row in active] if decoder.config.mask == "prefix" else None,
        only_BT=last_BT,
    ).argmax(-1)
    unread = [best_B]
    ahead = 1 if is_host(best_B) or not carried else AHEAD
    while True:
        for row, tokens in zip(active, torch.stack(unread, 1).tolist(), strict=True):
            for token in tokens:
                if _goes_on(asked[row], said[row], end, positions, limit):
                    said[row].append(token)
        going = [n for n, row in enumerate(active) if _goes_on(asked[row], said[row], end, positions, limit)]
        if not going:
            return said
        full = any(cache.tokens - wide + lengths[n] + 1 > asked[row].budget for n, row in enumerate(active))
        # Dropping rows copies the cache, so finished rows stay until dropping them pays off or is necessary.
        if len(going) < len(active) and (full or not carried or len(going) <= 0.7 * len(active)):
            cache.keep(going)
            best_B = best_B[without_waiting(going, best_B.device)]
            active, lengths = [active[n] for n in going], [lengths[n] for n in going]
        unread, many = [], ahead
        if ahead > 1:  # no row outgrows its budget unread
            room = min(asked[row].budget - (cache.tokens - wide + lengths[n]) for n, row in enumerate(active))
            many = max(1, min(ahead, room))
        for _ in range(many):
            places_B1 = _next_places(positions, active, asked, said)
            best_B = decoder(best_B[:, None], cache=cache, positions_BT=places_B1)[:, -1].argmax(-1)
            unread.append(best_B)


@torch.no_grad()
def _anew(
    decoder: Decoder, positions: Positions, end: int, asked: list[Case], begun: list[Sequence[int]]
) -> list[list[int]]:
    """Decode without a cache: each token changes earlier states, so every step runs the whole sequence."""
    said, limit = [list(words) for words in begun], position_limit(decoder)
    while active := [row for row in range(len(asked)) if _goes_on(asked[row], said[row], end, positions, limit)]:
        cases, words = [asked[row] for row in active], [said[row] for row in active]
        ids_BT, lengths, last_BT = _heads(cases, words)
        best_B = decoder(
            without_waiting(ids_BT, next(decoder.parameters()).device),
            lengths=lengths,
            padding="left",
            positions_BT=_first_places(positions, cases, words, ids_BT.shape[1]),
            budget=torch.tensor([case.budget for case in cases]),
            prefix=[case.prompt for case in cases] if decoder.config.mask == "prefix" else None,
            only_BT=last_BT,
        ).argmax(-1)
        for row, token in zip(active, best_B.tolist(), strict=True):
            said[row].append(token)
    return said


def _heads(cases: list[Case], said: list[list[int]]) -> tuple[Tensor, list[int], Tensor]:
    """Prompts plus generated tokens, padded on the left; the length of each row; and a mask of the last tokens."""
    heads = [case.ids[: case.prompt] + words for case, words in zip(cases, said, strict=True)]
    wide = max(map(len, heads))
    ids_BT = np.zeros((len(heads), wide), dtype=np.int64)
    for row, head in enumerate(heads):
        ids_BT[row, wide - len(head) :] = head
    last_BT = torch.zeros(ids_BT.shape, dtype=torch.bool)
    last_BT[:, -1] = True
    return torch.from_numpy(ids_BT), [len(head) for head in heads], last_BT


def _goes_on(case: Case, said: list[int], end: int, positions: Positions, limit: int | None) -> bool:
    """Whether to generate another token: not after the end token, nor past the limits of answer and encoding."""
    if len(said) >= case.limit or (said and said[-1] == end):
        return False
    if limit is None:
        return True
    if isinstance(positions, Consecutive):
        return case.prompt + len(said) <= limit
    places = case.places(positions, said)
    assert places is not None
    return max(places) < limit


def _first_places(positions: Positions, asked: list[Case], said: list[list[int]], wide: int) -> Tensor | None:
    if isinstance(positions, Consecutive):
        return None
    found = np.zeros((len(asked), wide), dtype=np.int64)
    for row, (case, words) in enumerate(zip(asked, said, strict=True)):
        places = case.places(positions, words)
        assert places is not None
        found[row, wide - len(places) :] = places
    return torch.from_numpy(found)


def _next_places(positions: Positions, active: list[int], asked: list[Case], said: list[list[int]]) -> Tensor | None:
    if isinstance(positions, Consecutive):
        return None
    last = [asked[row].places(positions, said[row]) for row in active]
    return torch.tensor([[places[-1]] for places in last if places is not None])


Outside = Callable[[Tensor, Tensor], Tensor]
"""A model that is not our decoder: (ids_BT padded on the right, real tokens of each row) → logits (B, T, V)."""


def call_external_model(model: Outside, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """The logits of an outside model; if it fails, the error is one line with the number of tokens."""
    try:
        return model(ids_BT, lengths_B)
    except (IndexError, RuntimeError, ValueError) as error:
        raise SpecError(
            f"the model failed on sequences of {ids_BT.shape[1]} tokens: {type(error).__name__}: "
            f"{one_line(str(error))[:200]}. If its table of positions ends before that, test shorter lengths"
        ) from error


def external_decode_function(model: Outside, end_id: int, batch_rows: int = ROWS) -> Decode:
    """Decoding with any callable, which runs on the whole sequence for every token."""

    @torch.no_grad()
    def decode(asked: Sequence[Case], begun: Sequence[Sequence[int]]) -> list[list[int]]:
        said = [list(words) for words in begun]
        waiting = list(range(len(asked)))
        while waiting := [n for n in waiting if len(said[n]) < asked[n].limit and said[n][-1:] != [end_id]]:
            for start in range(0, len(waiting), batch_rows):
                group = waiting[start : start + batch_rows]
                heads = [asked[n].ids[: asked[n].prompt] + said[n] for n in group]
                lengths = torch.tensor([len(head) for head in heads])
                ids_BT = torch.zeros(len(heads), int(lengths.max()), dtype=torch.long)
                for row, head in enumerate(heads):
                    ids_BT[row, : len(head)] = torch.tensor(head)
                logits_BTV = call_external_model(model, ids_BT, lengths)
                best_B = logits_BTV[torch.arange(len(heads)), lengths - 1].argmax(-1)
                for n, token in zip(group, best_B.tolist(), strict=True):
                    said[n].append(token)
        return said

    return decode
