"""Evaluation of a language model: the loss of the same target tokens at every context.

A target is predicted from exactly `c` tokens before it, all of its own document, at positions 0 to c − 1. Targets stand
behind four trained contexts, so that all contexts have the same ones; behind the longest context, if that is longer,
and then `evaluation` says so. A row of results is one document at one context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.corpora.shards import Shard
from lengthwise.display import Part, Table
from lengthwise.evaluation.cases import parse_lengths
from lengthwise.evaluation.decoding import position_limit
from lengthwise.evaluation.outcomes import AS_TRAINED, DecodingAgreement, EvaluationResult, predictions_frame
from lengthwise.evaluation.rows import rows_to_frame
from lengthwise.model import Decoder
from lengthwise.spec import SpecError, digest
from lengthwise.task.text import Text

if TYPE_CHECKING:
    import polars as pl

DOCUMENTS, TARGETS = 256, 8
"""Documents of an evaluation, and target tokens of each."""
BEHIND = 16
"""Tokens that the targets of a document are spread over."""
_TOKENS = 16_384
"""Tokens of one forward pass."""


@dataclass(frozen=True, repr=False)
class LanguageModelEvaluation(EvaluationResult):
    """The loss of a language model by context."""

    @property
    def table(self) -> Table:
        """A line for each context."""
        return context_table(self.rows)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table."""
        yield Part(self.table)


def context_table(rows: pl.DataFrame) -> Table:
    """Return a line for each context: loss in nats, perplexity, the share of targets that the likeliest token hits."""
    import polars as pl

    sums = rows.group_by("length").agg(
        pl.col("loss", "targets", "correct").sum(), pl.col("loss").null_count().alias("lost")
    )
    return Table(_context_line(row) for row in sums.sort("length").iter_rows(named=True))


def _context_line(row: dict[str, Any]) -> dict[str, Any]:
    loss = row["loss"] / row["targets"] if not row["lost"] else None
    return {
        "context": row["length"],
        "loss": None if loss is None else round(loss, 4),
        "perplexity": None if loss is None else round(exp(min(loss, 99)), 2),
        "top-1": round(row["correct"] / row["targets"], 4),
        "targets": row["targets"],
    }


@dataclass(frozen=True)
class LongDocument:
    """The beginning of a test document."""

    key: str
    ids_T: np.ndarray
    """As many tokens before the first target as the longest context, and the targets."""
    length: int
    """Tokens of the whole document."""


def evaluate_language_model(
    model: object,
    task: Text,
    lengths: Sequence[int] | str | None = None,
    *,
    examples: int | None = None,
    labels: dict[str, str | None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> LanguageModelEvaluation:
    """Evaluate a decoder or a run on test documents; `examples` is the number of documents."""
    decoder = model.evaluation_inputs()[0] if hasattr(model, "evaluation_inputs") else model
    if not isinstance(decoder, Decoder):
        raise SpecError("a language model of ours is evaluated here; measure those of others with lengthwise measure")
    decoder.eval()
    tell = on_progress or (lambda _: None)
    marks = {"run": getattr(model, "id", None), "evaluation": AS_TRAINED, "checkpoint": "last", **(labels or {})}
    if task.objective == "masked":
        rows = [_masked_row(decoder, task, examples or DOCUMENTS)]
    else:
        contexts = task.contexts if lengths is None else _parsed(lengths)
        limit = position_limit(decoder)
        within = [context for context in contexts if limit is None or context <= limit]
        if not within:
            raise SpecError(f"the encoding has {limit} positions, and no context that is asked for is within them")
        usual = 4 * task.longest
        before = max(usual, *contexts)
        if before > usual:  # other documents and other targets: a curve of its own
            name = f"targets behind {before} tokens"
            marks["evaluation"] = name if marks["evaluation"] == AS_TRAINED else f"{marks['evaluation']}, {name}"
        documents = long_documents(task, before, examples or DOCUMENTS)
        rows = []
        for context in within:
            tell(f"{len(documents)} documents with {context:,} tokens before each target")
            rows += _context_rows(decoder, task, documents, context)
    frame = rows_to_frame([{**marks, **row} for row in rows])
    return LanguageModelEvaluation(frame, predictions_frame([]), DecodingAgreement(), [])


def _parsed(lengths: Sequence[int] | str) -> list[int]:
    found = sorted(set(parse_lengths(lengths) if isinstance(lengths, str) else lengths))
    if not found or found[0] < 1:
        raise SpecError(f"contexts are numbers of tokens from 1, not {lengths!r}")
    return found


def long_documents(task: Text, before: int, many: int, split: str = "test") -> list[LongDocument]:
    """Return documents of a split with so many tokens before their targets, in the order of a hash."""
    found, need = list[tuple[int, str, Shard, int, int]](), before + BEHIND
    for corpus in task.corpora:
        for shard in corpus.shards(split):
            keys, starts = shard.documents
            long = np.flatnonzero(np.diff(starts) > need)
            found += [
                (digest("document", keys[n]), keys[n], shard, int(starts[n]), int(starts[n + 1])) for n in long.tolist()
            ]
    if not found:
        raise SpecError(f"no {split} document has more than {need} tokens; use shorter contexts, or longer documents")
    chosen = sorted(found, key=lambda one: one[:2])[:many]
    return [
        LongDocument(key, shard.read(start, start + need + 1).astype(np.int64), end - start)
        for _, key, shard, start, end in chosen
    ]


def _context_rows(decoder: Decoder, task: Text, documents: list[LongDocument], context: int) -> list[dict[str, Any]]:
    """The summed loss of each document's targets, each with exactly `context` tokens before it."""
    before = len(documents[0].ids_T) - 1 - BEHIND
    places = [before + 1 + BEHIND * n // TARGETS for n in range(TARGETS)]
    windows = [torch.from_numpy(one.ids_T[place - context : place + 1]) for one in documents for place in places]
    windows_NT = torch.stack(windows)
    losses, right = next_token_losses(decoder, windows_NT)
    losses_DN, right_DN = losses.reshape(-1, TARGETS), right.reshape(-1, TARGETS)
    return [
        _row(task, context, str(number), float(loss), int(hits), TARGETS)
        for number, (loss, hits) in enumerate(zip(losses_DN.sum(1), right_DN.sum(1), strict=True))
    ]


@torch.no_grad()
def next_token_losses(decoder: Decoder, windows_NT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of the last token of each window, and whether it was the likeliest, both on the CPU."""
    device, losses, right = next(decoder.parameters()).device, list[Tensor](), list[Tensor]()
    for part_BT in windows_NT.split(max(1, _TOKENS // windows_NT.shape[1])):
        last_BT = torch.zeros_like(part_BT[:, :-1], dtype=torch.bool)
        last_BT[:, -1] = True
        logits_BV = decoder(part_BT[:, :-1].to(device), only_BT=last_BT.to(device)).float()
        target_B = part_BT[:, -1].to(device)
        losses.append(F.cross_entropy(logits_BV, target_B, reduction="none").double().cpu())
        right.append((logits_BV.argmax(-1) == target_B).cpu())
    return torch.cat(losses), torch.cat(right)


@torch.no_grad()
def row_losses(decoder: Decoder, task: Text, split: str, many: int) -> tuple[float, int, int]:
    """Return the summed loss of rows of a split at the trained context, how many were likeliest, and the targets."""
    decoder.eval()
    rows, device = task.rows(split, 0), next(decoder.parameters()).device
    many = min(many, rows.without_repetition)
    loss, right, targets, each = 0.0, 0, 0, max(1, _TOKENS // task.longest)
    for begin in range(0, many, each):
        block = task.block(rows, range(begin, min(begin + each, many)))
        ids_BT, loss_BT = torch.from_numpy(block.ids_BT), torch.from_numpy(block.loss_BT)
        given_BT, only_BT = ids_BT[:, :-1], loss_BT[:, 1:]
        if block.hidden_BT is not None:
            given_BT, only_BT = torch.from_numpy(block.hidden_BT), loss_BT
        documents = block.documents if max(map(len, block.documents)) > 1 else None
        logits_NV = decoder(
            given_BT.to(device), documents=documents, only_BT=only_BT.to(device), budget=given_BT.shape[1]
        ).float()
        target_N = ids_BT[loss_BT].to(device)
        loss += float(F.cross_entropy(logits_NV, target_N, reduction="none").double().sum())
        right += int((logits_NV.argmax(-1) == target_N).sum())
        targets += len(target_N)
    return loss, right, targets


def _masked_row(decoder: Decoder, task: Text, many: int) -> dict[str, Any]:
    loss, right, targets = row_losses(decoder, task, "test", many)
    return _row(task, task.longest, None, loss, right, targets)


def _row(task: Text, context: int, subgroup: str | None, loss: float, right: int, targets: int) -> dict[str, Any]:
    split = "test_seen" if context <= task.longest else "test_unseen" if context <= 2 * task.longest else "test_far"
    return {
        "split": split,
        "seen": split == "test_seen",
        "length": context,
        "subgroup": subgroup,
        "tokens": context,
        "examples": targets,
        "correct": right,
        "correct_content": None,
        **dict.fromkeys(("early", "late", "cut"), 0),
        "wrong": targets - right,
        "chance": float(task.chance(context)),
        "loss": loss if isfinite(loss) else None,
        "targets": targets,
    }
