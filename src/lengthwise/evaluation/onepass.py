"""One teacher-forced pass over the right answers, which predicts what greedy decoding would give.

For a causal model in which later tokens never change earlier logits, greedy decoding gives the right answer if and only
if the most likely token is right at every position of the right answer, including the end token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.device import HOST, without_waiting
from lengthwise.encoding.positions import Positions
from lengthwise.evaluation.cases import Case
from lengthwise.model import Decoder

TOKENS = 16_384
"""The approximate number of input tokens of a batch."""


@dataclass(frozen=True)
class OnePassResult:
    """One case in one pass: at each position of the answer, the most likely token and its margin."""

    case: Case
    chosen: np.ndarray
    """The most likely token at each position of the answer, up to the model's limit."""
    gap: np.ndarray
    """The difference of the two largest logits, relative to the larger absolute value."""
    content: bool
    """Whether every token before the end is right if the model is not allowed to stop."""
    loss: float

    @property
    def first_wrong(self) -> int | None:
        """The first position of the answer that is wrong or past the model's limit; None if all are right."""
        answer = np.array(self.case.answer)
        differs = np.flatnonzero(self.chosen != answer[: len(self.chosen)])
        if len(differs):
            return int(differs[0])
        return None if len(self.chosen) == len(answer) else len(self.chosen)


Logits = Callable[[list[Case], Tensor, list[int], Tensor], Tensor]
"""(cases, ids_BT, real tokens of each row, where logits are wanted) → logits (N, V)."""


def decoder_logits_function(decoder: Decoder, positions: Positions) -> Logits:
    """The logits of our decoder under these positions; the head is computed only where they are wanted."""

    device = next(decoder.parameters()).device

    def logits(chosen: list[Case], ids_BT: Tensor, tokens: list[int], wanted_BT: Tensor) -> Tensor:
        return decoder(
            without_waiting(ids_BT, device),
            lengths=tokens,
            positions_BT=stack_positions([case.places(positions) for case in chosen], ids_BT.shape[1], tokens),
            budget=torch.tensor([case.budget for case in chosen]),
            prefix=[case.prompt for case in chosen] if decoder.config.mask == "prefix" else None,
            only_BT=wanted_BT,
        )

    return logits


def stack_positions(
    positions_by_row: list[list[int] | None], padded_length: int, row_lengths: list[int]
) -> Tensor | None:
    """The positions of several rows, padded on the right; None if they are consecutive."""
    if positions_by_row[0] is None:
        return None
    found = np.zeros((len(positions_by_row), padded_length), dtype=np.int64)
    for row, (here, count) in enumerate(zip(positions_by_row, row_lengths, strict=True)):
        assert here is not None
        found[row, :count] = here[:count]
    return torch.from_numpy(found)


def usable_input_tokens(case: Case, positions: Positions, position_limit: int | None) -> int:
    """The number of input tokens of a case: all but the end token, or those before the first unsupported position."""
    inputs = len(case.ids) - 1
    if position_limit is None:
        return inputs
    places = case.places(positions)
    if places is None:
        return min(inputs, position_limit)
    over = [at for at, place in enumerate(places[:inputs]) if place >= position_limit]
    return over[0] if over else inputs


@torch.no_grad()
def predict_in_one_pass(
    logits_function: Logits,
    cases: Sequence[Case],
    end_id: int,
    positions: Positions,
    position_limit: int | None,
    tokens_per_batch: int = TOKENS,
) -> list[OnePassResult]:
    """Run all cases in one pass, in batches of about `tokens_per_batch`; a prompt past the limit has no answer."""
    rooms = [usable_input_tokens(case, positions, position_limit) for case in cases]
    found: dict[int, OnePassResult] = {
        number: OnePassResult(case, np.zeros(0, dtype=np.int64), np.zeros(0), False, float("nan"))
        for number, case in enumerate(cases)
        if rooms[number] < case.prompt
    }
    waiting = sorted((n for n in range(len(cases)) if n not in found), key=lambda n: rooms[n])
    for group in _grouped(waiting, rooms, tokens_per_batch):
        chosen = [cases[number] for number in group]
        counts = [rooms[number] for number in group]
        wide = max(counts)
        ids_BT = np.zeros((len(group), wide), dtype=np.int64)
        wanted_BT = np.zeros((len(group), wide), dtype=bool)
        for row, (case, count) in enumerate(zip(chosen, counts, strict=True)):
            ids_BT[row, :count] = case.ids[:count]
            wanted_BT[row, case.prompt - 1 : count] = True
        got_NV = logits_function(chosen, torch.from_numpy(ids_BT), counts, torch.from_numpy(wanted_BT)).float()
        targets_N = torch.tensor(
            [t for case, count in zip(chosen, counts, strict=True) for t in case.ids[case.prompt : count + 1]]
        )
        found |= dict(zip(group, _split(got_NV, targets_N, chosen, counts, end_id), strict=True))
    return [found[number] for number in range(len(cases))]


def _grouped(order: list[int], rooms: list[int], tokens: int) -> Iterator[list[int]]:
    group: list[int] = []
    for number in order:  # the longest comes last
        if group and rooms[number] * (len(group) + 1) > tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _split(
    got_NV: Tensor, targets_N: Tensor, chosen: list[Case], counts: list[int], end: int
) -> Iterator[OnePassResult]:
    loss_N = F.cross_entropy(got_NV, without_waiting(targets_N, got_NV.device), reduction="none")
    best_N2, which_N2 = got_NV.topk(2, dim=-1)
    gap_N = (best_N2[:, 0] - best_N2[:, 1]) / best_N2.abs().amax(-1).clamp(min=1e-30)
    best_N = got_NV.argmax(-1)  # the first one at ties, as in decoding
    # The best token if stopping is not allowed: the second best where the best is the end token.
    going_N = torch.where(which_N2[:, 0] == end, which_N2[:, 1], which_N2[:, 0])
    loss_N, gap_N = torch.stack([loss_N, gap_N]).to(HOST).numpy()
    loss_N = loss_N.astype(np.float64)
    best_N, going_N = torch.stack([best_N, going_N]).to(HOST).numpy()
    targets = targets_N.numpy()
    at = 0
    for case, count in zip(chosen, counts, strict=True):
        here = slice(at, at + count + 1 - case.prompt)
        at = here.stop
        whole = count == len(case.ids) - 1
        inside = slice(here.start, here.stop - 1 if whole else here.stop)
        content = whole and bool((going_N[inside] == targets[inside]).all())
        loss = float(loss_N[here].sum()) if whole else float("nan")  # that of a partial answer would be too low
        yield OnePassResult(case, best_N[here], gap_N[here], content, loss)
