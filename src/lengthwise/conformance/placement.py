"""Checks of padding, batches, caches, packed documents and kinds of positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.subject import TOLERANCE, Subject, relative_error
from lengthwise.model import Decoder
from lengthwise.spec import SpecError

LEFT = (1, 2, 7, 31)


def _pad_left(ids_T: Tensor, pads: int, pad_id: int = 0) -> Tensor:
    return torch.cat([torch.full((pads,), pad_id), ids_T])


@check("T01", "Padding on either side changes no logit of a real token.")
@torch.no_grad()
def check_padding(subject: Subject) -> Iterator[CheckCase]:
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        for n in subject.sequence_lengths(2, 9):
            ids, places = subject.ids(n), subject.places(n)
            truth = subject.unbatched_logits(decoder, ids, places)
            for pads in LEFT:
                for side in ("left", "right"):
                    row = _fill(ids, n + pads, side)[None]
                    padded_batch_positions = subject.padded_batch_positions([places], n + pads, side)
                    got = decoder(
                        row, lengths=[n], padding=side, positions_BT=padded_batch_positions, budget=subject.budget
                    )[0]
                    got = got[pads:] if side == "left" else got[:n]
                    yield CheckCase(
                        f"{n} tokens, {pads} pads on the {side}, {_name(dtype)}", relative_error(got, truth), tolerance
                    )


@check("T02", "A sequence has the same logits alone and in any batch, in any order.")
@torch.no_grad()
def check_batch_invariance(subject: Subject) -> Iterator[CheckCase]:
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        sequence_lengths = subject.sequence_lengths(2, 5, 9)
        rows = [(subject.ids(n, key), subject.places(n, key)) for key, n in enumerate(sequence_lengths)]
        # Each row has a budget of its own, as it would alone.
        budgets = [subject.budget - key for key in range(len(rows))]
        truths = [
            decoder(ids[None], positions_BT=places[None], budget=budget)[0]
            for (ids, places), budget in zip(rows, budgets, strict=True)
        ]
        for order in ([0], list(range(len(rows))), list(reversed(range(len(rows))))):
            for side in ("left", "right"):
                longest = max(len(rows[i][0]) for i in order)
                batch = torch.stack([_fill(rows[i][0], longest, side) for i in order])
                lengths = [len(rows[i][0]) for i in order]
                padded_batch_positions = subject.padded_batch_positions([rows[i][1] for i in order], longest, side)
                budget = torch.tensor([budgets[i] for i in order])
                got = decoder(batch, lengths=lengths, padding=side, positions_BT=padded_batch_positions, budget=budget)
                for row, i in enumerate(order):
                    real = got[row, longest - lengths[row] :] if side == "left" else got[row, : lengths[row]]
                    case = f"row {row} of a batch of {lengths} tokens padded on the {side}, {_name(dtype)}"
                    yield CheckCase(case, relative_error(real, truths[i]), tolerance)


def _fill(ids_T: Tensor, tokens: int, side: str) -> Tensor:
    room = torch.zeros(tokens - len(ids_T), dtype=torch.long)
    return torch.cat([room, ids_T] if side == "left" else [ids_T, room])


@check("T03", "Padding is known from lengths: the pad's id inside the content, or another pad id, changes nothing.")
@torch.no_grad()
def check_pad_ids(subject: Subject) -> Iterator[CheckCase]:
    decoder = subject.decoder()
    for n in subject.sequence_lengths(2, 9):
        ids = subject.ids(n).clone()
        ids[0], ids[-1] = 0, 5
        places = subject.places(n)
        truth = subject.unbatched_logits(decoder, ids, places)
        for pad_id in (0, 5, 16):
            row = _pad_left(ids, 3, pad_id)[None]
            got = decoder(
                row,
                lengths=[n],
                padding="left",
                positions_BT=subject.padded_batch_positions([places], n + 3, "left"),
                budget=subject.budget,
            )
            case = f"{n} tokens beginning with id 0 and ending with 5, padded with id {pad_id}"
            yield CheckCase(case, relative_error(got[0, 3:], truth), TOLERANCE[torch.float64])


@check("T04", "A padded batch has finite logits and finite gradients, padding included.")
def check_finite(subject: Subject) -> Iterator[CheckCase]:
    for dtype in (torch.float64, torch.float32):
        for side in ("left", "right"):
            most = subject.sequence_lengths(40)[-1]
            for n, pads in ((1, 1), (min(9, most - 1), most - min(9, most - 1))):
                decoder = subject.fresh_decoder(dtype)
                batch = torch.stack([_fill(subject.ids(n), n + pads, side), subject.ids(n + pads, 1)])
                rows, lengths = [subject.places(n), subject.places(n + pads, 1)], [n, n + pads]
                logits = decoder(
                    batch,
                    lengths=lengths,
                    padding=side,
                    positions_BT=subject.padded_batch_positions(rows, n + pads, side),
                    budget=subject.budget,
                )
                bad = int((~logits.isfinite()).sum())
                yield CheckCase(
                    f"logits of {n} tokens and {pads} pads on the {side}, {_name(dtype)}: not finite", bad, 0
                )
                logits.square().mean().backward()
                for name, parameter in decoder.named_parameters():
                    if parameter.grad is not None:
                        bad = int((~parameter.grad.isfinite()).sum())
                        yield CheckCase(
                            f"gradient of {name}, {n} tokens and {pads} pads on the {side}: not finite", bad, 0
                        )
    n = subject.sequence_lengths(9)[-1]
    logits = subject.unbatched_logits(subject.decoder(mask="bidirectional"), subject.ids(n), subject.places(n))
    yield CheckCase(f"logits of {n} tokens that see those ahead: not finite", int((~logits.isfinite()).sum()), 0)


@check("T05", "The cache gives the logits of one pass: token by token, in chunks of 1, 3, n − 1, and after padding.")
@torch.no_grad()
def check_cache(subject: Subject) -> Iterator[CheckCase]:
    if not subject.encoding.prefix_stable:
        yield CheckCase(
            "later tokens change earlier states, and yet a cache is made", _made(subject.decoder().cache, 9), 0
        )
        return
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        for n in subject.sequence_lengths(2, 9, 40):
            # Two rows with different tokens and lengths, since a bug may show in only one of them.
            rows = [(subject.ids(size, key), subject.places(size, key)) for key, size in ((0, n), (1, max(1, n - 1)))]
            truths = [subject.unbatched_logits(decoder, ids, places) for ids, places in rows]
            for chunk in sorted({1, 3, max(n - 1, 1)}):
                for pads in (0, 2, 7) if n < 40 else (0, 7):
                    for row, got in enumerate(_in_chunks(subject, decoder, rows, n + pads, chunk)):
                        case = f"{n} tokens in chunks of {chunk}, {pads} pads on the left, row {row}, {_name(dtype)}"
                        yield CheckCase(case, relative_error(got, truths[row]), tolerance)
            if n > 2:
                got = _after_right_padding(subject, decoder, *rows[0])
                case = f"{n} tokens, 3 pads after the first two, {_name(dtype)}"
                yield CheckCase(case, relative_error(got, truths[0][2:]), tolerance)


def _after_right_padding(subject: Subject, decoder: Decoder, ids: Tensor, places: Tensor) -> Tensor:
    """The logits from the third token on, after a prompt of two tokens and three pads."""
    cache, given = decoder.cache(subject.budget), subject.padded_batch_positions([places[:2]], 5, "right")
    decoder(_fill(ids[:2], 5, "right")[None], lengths=[2], positions_BT=given, cache=cache)
    later = None if given is None else places[None, 2:]
    return decoder(ids[None, 2:], positions_BT=later, cache=cache)[0]


def _made(make: Callable[..., object], *arguments: object) -> float:
    """1 if `make` succeeds, 0 if it raises a `SpecError`."""
    try:
        make(*arguments)
    except SpecError:
        return 0.0
    return 1.0


def _in_chunks(
    subject: Subject, decoder: Decoder, rows: list[tuple[Tensor, Tensor]], width: int, chunk: int
) -> list[Tensor]:
    """The logits of each row's real tokens, after filling the cache in chunks of left-padded rows."""
    pads = [width - len(ids) for ids, _ in rows]
    batch = torch.stack([_fill(ids, width, "left") for ids, _ in rows])
    padded_batch_positions = subject.padded_batch_positions([places for _, places in rows], width, "left")
    cache, out = decoder.cache(subject.budget), []
    for start in range(0, width, chunk):
        end = min(start + chunk, width)
        lengths = [max(0, end - max(start, pad)) for pad in pads]
        part = None if padded_batch_positions is None else padded_batch_positions[:, start:end]
        out.append(decoder(batch[:, start:end], lengths=lengths, padding="left", positions_BT=part, cache=cache))
    logits = torch.cat(out, 1)
    return [logits[row, pad:] for row, pad in enumerate(pads)]


@check("T06", "In a cached step the bias of the one query is the last row of the whole bias.")
@torch.no_grad()
def check_bias_row(subject: Subject) -> Iterator[CheckCase]:
    if not subject.biased:
        raise NotApplicable("it adds no bias")
    encoding = subject.encoding
    for n in subject.sequence_lengths(2, 9, 40):
        positions = subject.places(n).double()[None]
        whole = encoding.checked_bias(positions, positions)
        row = encoding.checked_bias(positions[:, -1:], positions)
        yield CheckCase(
            f"the last of {n} tokens", relative_error(row[:, :, 0], whole[:, :, -1]), TOLERANCE[torch.float64]
        )
    if encoding.overrides("rotate"):
        return  # its rotation may distinguish keys instead
    counted = torch.arange(9, dtype=torch.float64)[None]
    row = encoding.checked_bias(counted[:, -1:], counted)
    flat = float((row.amax(-1) - row.amin(-1)).amax() == 0)
    yield CheckCase("the last of 9 consecutive tokens has the same bias for every key", flat, 0)


@check("T10", "Results depend on the call alone: after a long sequence, a short one is as in a fresh model.")
@torch.no_grad()
def check_call_independence(subject: Subject) -> Iterator[CheckCase]:
    short, long = subject.sequence_lengths(4, 40)[0], subject.sequence_lengths(4, 40)[-1]
    used, fresh = subject.fresh_decoder(), subject.fresh_decoder()
    ids, places = subject.ids(short), subject.places(short)
    truth = subject.unbatched_logits(fresh, ids, places)
    used(subject.ids(long)[None], positions_BT=subject.places(long)[None])
    yield CheckCase(
        f"{short} tokens after {long}", relative_error(subject.unbatched_logits(used, ids, places), truth), 0
    )
    got = used(ids[None], positions_BT=places[None], budget=subject.budget)[0]
    yield CheckCase(f"{short} tokens twice", relative_error(got, truth), 0)


@check("T11", "Packed documents, each from position 0, equal the documents alone.")
@torch.no_grad()
def check_packed_documents(subject: Subject) -> Iterator[CheckCase]:
    if not subject.encoding.prefix_stable:

        def pack() -> object:
            return subject.decoder()(subject.ids(4)[None], documents=[[1, 3]])

        yield CheckCase("it reads the tokens that are there, and yet documents are packed", _made(pack), 0)
        return
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        for sequence_lengths in ((1, 1), (2, 3), (5, 1, 9)):
            rows = [
                (subject.ids(n, n), subject.places(n, n)) for n in sequence_lengths if n in subject.sequence_lengths(n)
            ]
            row = torch.cat([ids for ids, _ in rows])[None]
            padded_batch_positions = (
                None if subject.model_counts_positions else torch.cat([places for _, places in rows])[None]
            )
            lengths = [len(ids) for ids, _ in rows]
            got = decoder(row, documents=[lengths], positions_BT=padded_batch_positions, budget=subject.budget)[
                0
            ].split(lengths)
            for i, (ids, places) in enumerate(rows):
                case = f"document {i} of {lengths} tokens, {_name(dtype)}"
                yield CheckCase(case, relative_error(got[i], subject.unbatched_logits(decoder, ids, places)), tolerance)
    decoder, lengths = subject.decoder(torch.float64), [2, 3]
    rows = [(subject.ids(n, n), subject.places(n, n)) for n in lengths if n in subject.sequence_lengths(n)]
    if not subject.encoding.uses_budget and len(rows) == len(lengths):
        row, places = (torch.cat(parts)[None] for parts in zip(*rows, strict=True))
        got = decoder(row, documents=[lengths], positions_BT=None if subject.model_counts_positions else places)[0]
        for (ids, at), part in zip(rows, got.split(lengths), strict=True):
            alone = decoder(ids[None], positions_BT=at[None])[0]
            case = f"document of {len(ids)} tokens, no budget given, and uses_budget = False"
            yield CheckCase(case, relative_error(part, alone), TOLERANCE[torch.float64])


@check("T25", "Positions are a pure function of the example: prefixes agree, and all are below the limit.")
def check_positions_contract(subject: Subject) -> Iterator[CheckCase]:
    kind = subject.positions
    for tokens in subject.sequence_lengths(1, 9, 40):
        budget = max(subject.sequence_lengths(subject.budget)[0], tokens)
        for key in (0, 1, 2**127 + 3):
            prompt, answer = list(range(tokens // 2)), list(range(tokens - tokens // 2))
            whole = kind.places(prompt, answer, key, budget)
            where = f"{tokens} tokens, key {key}"
            yield CheckCase(f"{where}: numbers given", abs(len(whole) - tokens), 0)
            yield CheckCase(f"{where}: asked again", float(kind.places(prompt, answer, key, budget) != whole), 0)
            for k in range(len(answer) + 1):
                part = kind.places(prompt, answer[:k], key, budget)
                yield CheckCase(f"{where}: the first {k} of the answer alone", float(part != whole[: len(part)]), 0)
            below = kind.limit if kind.limit is not None else 10**9
            yield CheckCase(
                f"{where}: positions below 0 or at least the limit", sum(not 0 <= p < below for p in whole), 0
            )
            if subject.positions_spec.name in {"randomized", "offset", "consecutive"}:
                falls = sum(b <= a for a, b in pairwise(whole))
                yield CheckCase(f"{where}: positions that do not increase", falls, 0)
        try:
            kind.places([0] * budget, [0], 0, budget)
            silent = 1.0
        except SpecError:
            silent = 0.0
        yield CheckCase(f"one token more than the budget of {budget}: accepted in silence", silent, 0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
