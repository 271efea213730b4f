"""How far does a model work? Losses, recall and attended distance by length, for any causal language model.

Perplexity scores the same target tokens at every context, because other tokens would have another perplexity; recall is
asked at the same lengths, because a model that looks only at the last tokens can have a fine perplexity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import torch
from torch import Tensor, nn

from lengthwise.display import Display, Part
from lengthwise.foreign.distance import LONGEST_SEEN, attended_distances
from lengthwise.foreign.losses import (
    accepts,
    in_eval_mode,
    is_about_memory,
    most_tokens,
    require_aligned_logits,
    token_losses,
)
from lengthwise.foreign.recall import (
    SHORTEST,
    copy_questions,
    induction_questions,
    questions_in,
    retrieval_questions,
    right_answers,
)
from lengthwise.foreign.rows import Row, exponential, mean_row, share_row
from lengthwise.progress import Say, progress
from lengthwise.spec import SpecError

WINDOWS, TARGETS, BINS = 4, 64, 32
"""Windows of the longest length, target tokens at the end of each, and bins of positions in it."""
RECALL_TOKENS = 4096
"""Tokens of the sequences of one kind of recall at one length; at least four sequences, at most 32."""
SLACK, KEPT = 1.05, 0.5
"""A length works if perplexity is at most so many times the best shorter one, and retrieval keeps this share."""
FURTHER = {
    "loss by segment": "Loss by segment of the trained context, in nats per token:",
    "loss after the": "Loss of a token after its prefix, and after the prefix in another order:",
    "perplexity, documents": "Perplexity by length of the document:",
}
RECALL = ("copy", "induction", "retrieval")
MOVED = {"moved passage by positions": "by positions", "moved passage behind text": "behind text"}
FEWEST_RIGHT = 0.25
"""A model that retrieves less than this at the shortest length has not learned to retrieve."""
FEWEST_IDS = 16
"""Recall needs so many different tokens."""


@dataclass(frozen=True, repr=False)
class Reach(Display):
    """How far a model works, as rows with `measure, length, value, low, high, examples`.

    `low` and `high` are a 95 % interval, None where there is one example. `length` is

    - the context in tokens, for `perplexity`, `perplexity ratio` (to the shortest context, in pairs of equal targets),
      `copy`, `induction`, `retrieval` (accuracies) and `attended distance` (in tokens; also by layer);
    - the number of positions or tokens before the passage, for `moved passage by positions` and `moved passage behind
      text` (nats per token) and, with `, change`, their difference from the first, in pairs of equal passages;
    - the last position of a bin, for `loss by position` (nats per token).
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""
    trained_length: int | None = None

    def values(self, measure: str) -> dict[int, float]:
        """Return length → value of one measure."""
        return {row["length"]: row["value"] for row in self.rows if row["measure"] == measure}

    @property
    def verdict(self) -> str:
        """How far the model works, in a sentence or two; it says so where perplexity and retrieval disagree."""
        ratios = [row for row in self.rows if row["measure"] == "perplexity ratio"]
        unsure = {row["length"] for row in ratios if row["low"] is None or row["low"] < 1}
        return _verdict(self.values("perplexity"), self.values("retrieval"), unsure)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict, a table by length, the moved passage, and what could not be measured."""
        cells = {(row["measure"], row["length"]): row for row in self.rows}
        yield Part(self.verdict, "bold")
        lines = [{"length": n, **_line(cells, n, ("perplexity", *RECALL))} for n in self.values("perplexity")]
        yield Part(lines)
        seen = self.values("attended distance")
        if seen:
            far, farthest = max(seen), self.values("attended distance, farthest head")
            yield Part(
                f"With {far:,} tokens attention goes {seen[far]:.3g} tokens back on average, {farthest[far]:.3g} in "
                "the head that looks farthest."
            )
        moved = {f"{name}, change": words for name, words in MOVED.items() if self.values(name)}
        offsets = sorted({offset for name in moved for offset in self.values(name)})
        yield Part("How the loss of one passage changes with its offset, in nats per token:")
        yield Part([{"offset": n, **_line(cells, n, moved)} for n in offsets])
        yield from self._further_tables()
        for note in self.notes:
            yield Part(note)

    def _further_tables(self) -> Iterator[Part]:
        """What is measured of models that were trained here alone."""
        for measure, words in FURTHER.items():
            rows = [row for row in self.rows if row["measure"].startswith(measure)]
            if rows:
                yield Part(words)
                yield Part([{"": row["measure"], "tokens": row["length"], "value": _cell(row)} for row in rows])

    def plain(self) -> dict[str, object]:
        """The rows, the verdict and the notes."""
        rows = [dict(row) for row in self.rows]
        return {"verdict": self.verdict, "trained_length": self.trained_length, "rows": rows, "notes": [*self.notes]}


def _line(cells: dict[tuple[str, int], Row], length: int, measures: Sequence[str] | dict[str, str]) -> dict[str, str]:
    words = measures if isinstance(measures, dict) else {name: name for name in measures}
    return {words[name]: _cell(cells.get((name, length))) for name in words}


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    form = ".2f" if row["measure"] in RECALL else "+.3f" if row["measure"].endswith("change") else ".4g"
    interval = "" if row["low"] is None else f" ({row['low']:{form}} to {row['high']:{form}})"
    return f"{row['value']:{form}}{interval}"


def default_lengths(longest: int, shortest: int = 64) -> list[int]:
    """Return the lengths to measure: doubled from about `shortest` so that the last is `longest`."""
    found = [longest]
    while found[0] // 2 >= max(shortest, SHORTEST):
        found.insert(0, found[0] // 2)
    return found


def measure_reach(
    model: nn.Module,
    ids_T: Tensor,
    lengths: Sequence[int],
    *,
    trained_length: int | None = None,
    usable_ids: Sequence[int] | None = None,
    windows: int = WINDOWS,
    seed: int = 0,
    say: Say | None = None,
) -> Reach:
    """Measure how far a causal language model works on a text, at these context lengths in tokens.

    `usable_ids` are the tokens of which copy, induction and retrieval are made: those of the text unless given. Special
    tokens should not be among them. The same arguments give the same rows.
    """
    lengths = checked_lengths(lengths)
    ids_T, usable = ids_T.to(torch.long), usable_or_own(usable_ids, ids_T)
    with in_eval_mode(model), progress(say) as tell:
        require_aligned_logits(model, ids_T)
        tell(f"losses of {lengths[-1]:,} tokens")
        windows_WT, losses_WT, lengths, notes = _longest_windows(model, ids_T, lengths, windows)
        rows = _by_position(losses_WT)
        rows += perplexity_rows(model, windows_WT, lengths, tell, losses_WT)
        moved, further = _moved_passage(model, ids_T, windows_WT, lengths, seed, tell)
        rows += moved
        rows += recall_rows(model, ids_T, lengths, RECALL, usable, seed, tell)
        far, unseen = _distance_rows(model, windows_WT, lengths, tell)
        rows += far
    return Reach(tuple(rows), (*notes, *further, *unseen), trained_length)


def checked_lengths(lengths: Sequence[int]) -> list[int]:
    """Return the lengths in order, without repeats; below 16 tokens a question and its answer have no room."""
    found = sorted(set(lengths))
    if not found or found[0] < SHORTEST:
        raise SpecError(f"lengths are at least {SHORTEST} tokens, not {list(lengths)}: try {default_lengths(1024)}")
    return found


def usable_or_own(usable_ids: Sequence[int] | None, ids_T: Tensor) -> list[int]:
    """Return the ids of which recall is made: the given ones, or those of the text."""
    found = sorted(set(usable_ids if usable_ids is not None else ids_T.tolist()))
    if len(found) < FEWEST_IDS:
        whose = "the text has" if usable_ids is None else "usable_ids has"
        raise SpecError(f"copy and retrieval need at least {FEWEST_IDS} different tokens; {whose} {len(found)}")
    return found


def text_windows(ids_T: Tensor, length: int, windows: int) -> Tensor:
    """Return windows (W, length) of a text that do not overlap, spread over all of it; fewer if it is short."""
    many = min(windows, len(ids_T) // length)
    if many < 1:
        raise SpecError(
            f"the text has {len(ids_T):,} tokens, which is no window of {length:,}: give a text of at least "
            f"{length:,} tokens, better {windows * length:,}, or smaller lengths"
        )
    step = len(ids_T) // many
    return torch.stack([ids_T[n * step : n * step + length] for n in range(many)])


def _longest_windows(
    model: nn.Module, ids_T: Tensor, lengths: list[int], windows: int
) -> tuple[Tensor, Tensor, list[int], list[str]]:
    """Return windows of the longest length that the model takes, their losses, the lengths left, and what to note."""
    windows_WT = text_windows(ids_T, lengths[-1], windows)
    try:
        return windows_WT, token_losses(model, windows_WT), lengths, []
    except (IndexError, RuntimeError, ValueError) as error:
        limit = 0 if is_about_memory(error) else most_tokens(model, windows_WT[0])
        left = [length for length in lengths if length <= limit]
        if limit == 0:
            raise
    if not left:
        raise SpecError(
            f"the model has no positions beyond {limit}, and the shortest length is {lengths[0]}: use shorter lengths"
        )
    windows_WT = text_windows(ids_T, left[-1], windows)
    return windows_WT, token_losses(model, windows_WT), left, [f"The model has no positions beyond {limit:,}."]


def _by_position(losses_WT: Tensor) -> list[Row]:
    """The mean loss of tokens in bins of positions, over windows; position 0 is not predicted."""
    positions = losses_WT.shape[1]
    edges = sorted({round(n * positions / BINS) for n in range(BINS + 1)})
    return [
        mean_row("loss by position", end, losses_WT[:, begin:end].mean(1).tolist()) for begin, end in pairwise(edges)
    ]


def perplexity_rows(
    model: nn.Module, windows_WT: Tensor, lengths: Sequence[int], tell: Say, losses_WT: Tensor | None = None
) -> list[Row]:
    """Perplexity by context: the same last tokens of each window are scored with only the last `length` as input.

    Half of the shortest context is scored, at most 64 tokens, so each target has at least half of the length before it.
    """
    targets, rows = min(TARGETS, lengths[0] // 2), list[Row]()
    first: list[float] = []
    for length in lengths:
        tell(f"perplexity with {length:,} tokens")
        if losses_WT is not None and length == windows_WT.shape[1]:
            losses_WN = losses_WT[:, -targets:]
        else:
            losses_WN = token_losses(model, windows_WT[:, -length:], targets)
        means = losses_WN.mean(1).tolist()
        first = first or means
        rows.append(exponential(mean_row("perplexity", length, means)))
        ratios = [own - other for own, other in zip(means, first, strict=True)]
        rows.append(exponential(mean_row("perplexity ratio", length, ratios)))
    return rows


def _moved_passage(
    model: nn.Module, ids_T: Tensor, windows_WT: Tensor, lengths: Sequence[int], seed: int, tell: Say
) -> tuple[list[Row], list[str]]:
    """The loss of the first tokens of each window at growing offsets: by their positions, and behind other tokens.

    The other tokens are drawn from the text without its order, so they say nothing about the passage; those right
    before it are the same at every offset.
    """
    size = min(TARGETS, lengths[0] // 2)
    passages_WT, offsets = windows_WT[:, :size], [0, *(length - size for length in lengths)]
    generator = torch.Generator().manual_seed(seed)
    drawn_T = torch.randint(len(ids_T), (offsets[-1],), generator=generator)
    filler_WT = ids_T[drawn_T.to(ids_T.device)].expand(len(passages_WT), -1)
    rows, notes, by_positions = list[Row](), list[str](), accepts(model, "position_ids")
    if not by_positions:
        notes.append("The model takes no position_ids, so the passage was moved only behind other tokens.")
    for measure in MOVED if by_positions else list(MOVED)[1:]:
        first: list[float] = []
        for offset in offsets:
            tell(f"{measure}, offset {offset:,}")
            if measure.endswith("positions"):
                losses_WN = token_losses(model, passages_WT, size - 1, offset)
            else:
                behind_WT = torch.cat([filler_WT[:, filler_WT.shape[1] - offset :], passages_WT], 1)
                losses_WN = token_losses(model, behind_WT, size - 1)
            means = losses_WN.mean(1).tolist()
            rows.append(mean_row(measure, offset, means))
            if offset or measure.endswith("positions"):
                first = first or means  # behind text, the first one with text before it
                change = [own - other for own, other in zip(means, first, strict=True)]
                rows.append(mean_row(f"{measure}, change", offset, change))
    return rows, notes


def recall_rows(
    model: nn.Module,
    ids_T: Tensor,
    lengths: Sequence[int],
    kinds: Sequence[str],
    usable: Sequence[int],
    seed: int,
    tell: Say,
) -> list[Row]:
    """The accuracy of copy, induction and retrieval at each length; the longer, the fewer sequences."""
    rows, asked = list[Row](), questions_in(lengths[0])
    for kind in kinds:
        for length in lengths:
            tell(f"{kind} in {length:,} tokens")
            many = max(4, min(32, RECALL_TOKENS // length))
            if kind == "copy":
                made = copy_questions(usable, length, many, seed)
            elif kind == "induction":
                made = induction_questions(usable, length, many, asked, seed)
            else:
                made = retrieval_questions(usable, ids_T, length, many, asked, seed)
            rows.append(share_row(kind, length, right_answers(model, made).double()))
    return rows


def _distance_rows(
    model: nn.Module, windows_WT: Tensor, lengths: Sequence[int], tell: Say
) -> tuple[list[Row], list[str]]:
    """How far attention goes back, by layer and over all layers; only as far as all scores of a layer fit."""
    rows, short = list[Row](), [length for length in lengths if length <= LONGEST_SEEN]
    for length in short:
        tell(f"attended distance in {length:,} tokens")
        found_WLH = [attended_distances(model, window_T[-length:]) for window_T in windows_WT[:2]]
        if not found_WLH[0]:
            return [], ["No attention of torch was seen, so there is no attended distance: load with attention eager."]
        layers = range(len(found_WLH[0]))
        every = [torch.cat(list(found_LH)) for found_LH in found_WLH]
        rows.append(mean_row("attended distance", length, [float(one.mean()) for one in every]))
        rows.append(mean_row("attended distance, farthest head", length, [float(one.max()) for one in every]))
        for layer in layers:
            heads = [found_LH[layer] for found_LH in found_WLH]
            name = f"attended distance, layer {layer}"
            rows.append(mean_row(name, length, [float(one.mean()) for one in heads]))
            rows.append(mean_row(f"{name}, farthest head", length, [float(one.max()) for one in heads]))
    return rows, []


def _verdict(perplexity: dict[int, float], retrieval: dict[int, float], unsure: Collection[int]) -> str:
    """Say how far the model works: perplexity within 5 % of the best shorter one, half of the retrieval kept."""
    lengths, best = sorted(perplexity), float("inf")
    reads: list[int] = []
    for length in lengths:
        value = perplexity[length]
        if not (isfinite(value) and value <= SLACK * best):
            break
        reads, best = [*reads, length], min(best, value)
    if not reads:
        return f"The model's loss is not finite even with {lengths[0]:,} tokens."
    last, shortest = reads[-1], min(retrieval, default=0)
    words = f"Perplexity holds to {last:,} tokens"
    if last < lengths[-1]:
        beyond = lengths[lengths.index(last) + 1]
        words += f": with {beyond:,} it is {perplexity[beyond]:.3g}, and {best:.3g} with fewer"
        words += ", which so few targets do not settle." if beyond in unsure else "."
    else:
        words += ", the longest measured."
    if not retrieval:
        return words
    if retrieval[shortest] < FEWEST_RIGHT:
        return (
            f"{words} The model does not retrieve even with {shortest:,} tokens ({retrieval[shortest]:.0%}), so "
            "nothing shows that it uses what is far back."
        )
    kept = [length for length in sorted(retrieval) if retrieval[length] < KEPT * retrieval[shortest]]
    holds = max(length for length in retrieval if not kept or length < kept[0])
    if holds < last:
        return (
            f"Works to {holds:,} tokens: retrieval falls from {retrieval[shortest]:.0%} to {retrieval[kept[0]]:.0%} "
            f"with {kept[0]:,}. {words} A fine perplexity beyond {holds:,} is that of a model that looks only nearby."
        )
    return f"Works to {last:,} tokens. {words} Retrieval holds to {holds:,}."
