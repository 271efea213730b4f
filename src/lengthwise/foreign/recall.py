"""Copy, induction and retrieval: does a model use what stands far back? Perplexity alone does not tell (T54).

All tokens of the answers and their keys are drawn at random from usable ids, so nothing but the context tells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthwise.device import HOST
from lengthwise.foreign.losses import AT_ONCE, last_logits
from lengthwise.spec import SpecError, digest

KEY = 4
"""Tokens of a key of retrieval; so many random tokens do not occur elsewhere in a text, even of bytes."""
SHORTEST = 16
"""The shortest context in which a pair and its question have room."""
QUESTIONS = 8
"""The most questions of one sequence of induction or retrieval."""


@dataclass(frozen=True)
class Questions:
    """Sequences in which some tokens can be known from what stands before them."""

    ids_ST: Tensor
    places_SN: Tensor
    """Where the tokens stand that are to be predicted."""


def questions_in(shortest: int) -> int:
    """Return how many questions a sequence has, the same at all lengths: 8, or fewer if the shortest has no room."""
    return max(1, min(QUESTIONS, shortest // SHORTEST))


def copy_questions(usable_ids: Sequence[int], length: int, sequences: int, seed: int = 0) -> Questions:
    """Random tokens, and the same again: all of the second half but its first token can be known.

    `length` is the whole sequence, so the token to be copied is always length / 2 back.
    """
    generator, half = _generator("copy", length, seed), length // 2
    ids_ST = _draw(usable_ids, (sequences, half), generator)
    return Questions(torch.cat([ids_ST, ids_ST], 1), torch.arange(half + 1, 2 * half).expand(sequences, -1))


def induction_questions(
    usable_ids: Sequence[int], length: int, sequences: int, questions: int = QUESTIONS, seed: int = 0
) -> Questions:
    """A B ... A: what follows? Pairs of tokens stand at the start, random filler after them, the same pairs at the end.

    The pairs at the end come in another order and have their answers, so that one pass asks several questions. No token
    of a pair occurs twice in it or in the filler. Nearly all of `length` lies between question and answer.
    """
    questions = min(questions, len(usable_ids) // 4)
    if questions < 1:
        raise SpecError(f"induction needs at least 4 different tokens, not {len(usable_ids)}: give a richer text")
    generator, rows, places = _generator("induction", length, seed), [], []
    for _ in range(sequences):
        mixed = [usable_ids[one] for one in torch.randperm(len(usable_ids), generator=generator).tolist()]
        pairs = torch.tensor(mixed[: 2 * questions]).reshape(questions, 2)
        filler = _draw(mixed[2 * questions :], (length - 4 * questions,), generator)
        asked = pairs[torch.randperm(questions, generator=generator)]
        rows.append(torch.cat([pairs.flatten(), filler, asked.flatten()]))
        places.append(torch.arange(length - 2 * questions + 1, length, 2))
    return Questions(torch.stack(rows), torch.stack(places))


def retrieval_questions(
    usable_ids: Sequence[int], text_T: Tensor, length: int, sequences: int, questions: int = QUESTIONS, seed: int = 0
) -> Questions:
    """Keys of four random tokens with a value stand at all depths in a text; at its end each key is asked again.

    The last quarter of the text has no key, so that what is asked is never near. The questions at the end have their
    answers, so that one pass asks several. A model that finds some value is right once in so many questions.
    """
    generator, rows, places = _generator("retrieval", length, seed), [], []
    size = KEY + 1
    room = length - 2 * size * questions
    if room < 0:
        raise SpecError(f"{questions} questions of retrieval do not fit into {length} tokens: use longer contexts")
    for _ in range(sequences):
        pairs = _draw(usable_ids, (questions, size), generator)
        start = int(torch.randint(0, max(1, len(text_T) - room), (1,), generator=generator))
        filler = text_T[start : start + room].to(HOST)
        if len(filler) < room:
            raise SpecError(f"a text of {len(text_T):,} tokens cannot fill {length:,}: give a longer text")
        # One pair in each of equally long stretches of the text, at a random place in it.
        depth = 0.75 * (torch.rand(questions, generator=generator) + torch.arange(questions)) / questions
        pieces, last = list[Tensor](), 0
        for pair, place in zip(pairs, (depth * room).long().tolist(), strict=True):
            pieces += [filler[last:place], pair]
            last = place
        asked = pairs[torch.randperm(questions, generator=generator)]
        rows.append(torch.cat([*pieces, filler[last:], asked.flatten()]))
        places.append(torch.arange(length - size * questions + KEY, length, size))
    return Questions(torch.stack(rows), torch.stack(places))


def right_answers(model: nn.Module, questions: Questions) -> Tensor:
    """Return, for each sequence and question (S, N), whether the most probable token is the right one."""
    tokens, found = questions.ids_ST.shape[1], []
    needed = tokens - int(questions.places_SN.min()) + 1
    rows = max(1, AT_ONCE // tokens)
    for ids_ST, places_SN in zip(questions.ids_ST.split(rows), questions.places_SN.split(rows), strict=True):
        best_SN = last_logits(model, ids_ST, needed).argmax(-1).to(HOST)  # of the last tokens alone
        told_SN = best_SN.gather(1, places_SN - 1 - (tokens - needed))
        found.append(told_SN == ids_ST.gather(1, places_SN))
    return torch.cat(found)


def _generator(*key: object) -> torch.Generator:
    """Return a generator that depends on the key alone."""
    return torch.Generator().manual_seed(digest(*key, bits=32))


def _draw(usable_ids: Sequence[int], shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.tensor(usable_ids)[torch.randint(len(usable_ids), shape, generator=generator)]
