"""The measures of `measure` for language models that were trained here, and the tables of the publications.

Beside perplexity, copy, induction and retrieval: loss by segment of the trained context (Haviv et al. 2022, appendix
A), the loss after a shuffled prefix (their section 6), and perplexity by context and length of the document
(Kazemnejad et al. 2023, appendix F).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lengthwise.evaluation.text import BEHIND, TARGETS, long_documents, next_token_losses
from lengthwise.foreign.losses import in_eval_mode, token_losses
from lengthwise.foreign.reach import Reach, measure_reach
from lengthwise.foreign.rows import Row, exponential, mean_row
from lengthwise.progress import Say
from lengthwise.spec import digest
from lengthwise.task.text import Text

TOKENS, DOCUMENTS, SHUFFLED, SEGMENTS, BUCKETS = 200_000, 256, 100, 8, 4
"""Tokens of test text, documents, inputs with a shuffled prefix, segments of a context, buckets of document lengths."""


class CausalModel(nn.Module):
    """A decoder of ours, called as models of Hugging Face are."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        use_cache: bool = False,
    ) -> Tensor:
        """Return logits (B, T, V), or those of the last tokens only."""
        if not logits_to_keep:
            return self.decoder(input_ids, positions_BT=position_ids)
        only_BT = torch.zeros_like(input_ids, dtype=torch.bool)
        only_BT[:, -logits_to_keep:] = True
        logits_NV = self.decoder(input_ids, positions_BT=position_ids, only_BT=only_BT)
        return logits_NV.reshape(len(input_ids), logits_to_keep, -1)


def measure_text_model(decoder: Any, task: Text, lengths: Sequence[int], say: Say) -> Reach:  # noqa: ANN401
    """Measure a decoder on test documents of its corpus, at these contexts."""
    vocabulary, corpus = task.vocabulary, task.corpora[0]
    parts = [shard.read(0, min(shard.tokens, TOKENS)) for shard in corpus.shards("test")]
    ids_T = torch.from_numpy(np.concatenate(parts)[:TOKENS].astype(np.int64))
    special = {vocabulary.bos, *(number for number, name in enumerate(vocabulary.symbols) if name == "<|mask|>")}
    usable = [number for number in ids_T.unique().tolist() if number not in special]
    model = CausalModel(decoder)
    how: dict[str, Any] = {"trained_length": task.longest, "usable_ids": usable, "windows": 16, "say": say}
    found = measure_reach(model, ids_T, lengths, **how)
    with in_eval_mode(model):
        say("segments, shuffled prefixes, lengths of documents")
        rows = segment_rows(model, task) + shuffled_rows(decoder, task) + bucket_rows(decoder, task, lengths)
    return replace(found, rows=(*found.rows, *rows))


def segment_rows(model: nn.Module, task: Text) -> list[Row]:
    """The loss in eight equal segments of the trained context, from the beginning of documents."""
    ids_BT = _beginnings(task, task.longest + 1)
    losses_BT = token_losses(model, ids_BT)
    ends = [task.longest * (n + 1) // SEGMENTS for n in range(SEGMENTS)]
    starts = [0, *ends[:-1]]
    return [
        mean_row("loss by segment", end, losses_BT[:, begin:end].mean(1).tolist())
        for begin, end in zip(starts, ends, strict=True)
    ]


def shuffled_rows(decoder: Any, task: Text) -> list[Row]:  # noqa: ANN401
    """The loss of one token after its prefix, after the same prefix in another order, and the gap between them.

    The token right before it stays where it is: so a single layer without positions cannot tell the two apart.
    """
    ids_BT = _beginnings(task, task.longest + 1)[:SHUFFLED]
    plain, mixed = list[float](), list[float]()
    for row, ids_T in enumerate(ids_BT):
        raw = np.random.Philox(key=digest("shuffled", row)).random_raw(task.longest + 1)
        place = 5 + int(raw[0] % (task.longest - 4))
        order = torch.from_numpy(np.argsort(raw[1:place], kind="stable"))
        both_BT = torch.stack([ids_T[: place + 1], torch.cat([ids_T[order], ids_T[place - 1 : place + 1]])])
        one, other = next_token_losses(decoder, both_BT)[0].tolist()
        plain.append(one)
        mixed.append(other)
    gaps = [other - one for one, other in zip(plain, mixed, strict=True)]
    named = {"loss after the prefix": plain, "loss after the shuffled prefix": mixed, "shuffled prefix, change": gaps}
    return [mean_row(name, task.longest, values) for name, values in named.items()]


def bucket_rows(decoder: Any, task: Text, lengths: Sequence[int]) -> list[Row]:  # noqa: ANN401
    """Perplexity of the same last tokens at every context, for documents of four ranges of lengths."""
    documents = sorted(long_documents(task, max(lengths), DOCUMENTS), key=lambda one: one.length)
    rows = list[Row]()
    for number in range(BUCKETS):
        own = documents[len(documents) * number // BUCKETS : len(documents) * (number + 1) // BUCKETS]
        if not own:
            continue
        name = f"perplexity, documents of {own[0].length:,} to {own[-1].length:,} tokens"
        before = len(own[0].ids_T) - 1 - BEHIND
        for context in lengths:
            places = [before + 1 + BEHIND * n // TARGETS for n in range(TARGETS)]
            windows = [torch.from_numpy(one.ids_T[place - context : place + 1]) for one in own for place in places]
            losses_DN = next_token_losses(decoder, torch.stack(windows))[0].reshape(-1, TARGETS)
            rows.append(exponential(mean_row(name, context, losses_DN.mean(1).tolist())))
    return rows


def _beginnings(task: Text, tokens: int) -> Tensor:
    """The first tokens of test documents, from their start token on."""
    rows = [one.ids_T[:tokens] for one in long_documents(task, tokens, DOCUMENTS)]
    return torch.from_numpy(np.stack(rows))
