"""What a decoder without an encoding can know about token order, depending on its mask and its depth.

- *Shuffled prefix* (Haviv et al. 2022, arXiv:2203.16634): shuffle the tokens before a token and measure the change of
  its prediction. One causal NoPE layer averages over a set, so with the token itself left in place nothing changes;
  from two layers on, the states of earlier tokens depend on their places and the prediction changes.
- *Masked language model*: with a bidirectional mask and no positions every layer is equivariant under permutations, so
  all [MASK] tokens of a sequence have the same state and get the same logits, at any depth.
- *Prefix mask* ("T5-style?"): the prompt sees itself in both directions, the answer is causal. Without positions the
  prompt is a multiset to the answer, so its order cannot matter, at any depth: sorting is possible, copying is not.

Legend of shape suffixes, besides the model's: S shuffles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.model import Decoder, DecoderConfig, preset
from lengthwise.spec import SpecError, digest

Mask: TypeAlias = Literal["causal", "bidirectional", "prefix"]
Row: TypeAlias = dict[str, object]

VOCABULARY = 32


def shuffles(ids_T: Tensor, count: int, seed: int = 0, keep_last: int = 0, keep_first: int = 0) -> Tensor:
    """Return `count` random orders (S, T) of a sequence; its first `keep_first` and last `keep_last` tokens stay."""
    free = len(ids_T) - keep_last
    if free - keep_first < 2:
        stay = keep_last + keep_first
        raise SpecError(f"{len(ids_T)} tokens of which {stay} stay cannot be shuffled; give at least two more")
    stream = torch.Generator().manual_seed(digest("theory", "shuffles", seed, bits=63))
    orders = [keep_first + torch.randperm(free - keep_first, generator=stream) for _ in range(count)]
    return torch.stack([torch.cat([ids_T[:keep_first], ids_T[order], ids_T[free:]]) for order in orders])


@dataclass(frozen=True)
class OrderEffect:
    """The effect of another order of the input on a prediction."""

    logits: float
    """The largest change of a logit."""
    loss: float
    """The mean change of the loss, in nats; 0 if there is no target."""
    scale: float
    """The standard deviation of the logits, as a scale for `logits`."""


@torch.no_grad()
def shuffled_prefix_effect(
    decoder: Decoder,
    ids_BT: Tensor,
    targets_B: Tensor,
    *,
    shuffles_per_sequence: int = 8,
    seed: int = 0,
    keep_last: bool = True,
) -> OrderEffect:
    """Measure how shuffling the tokens before the last one changes the prediction of the next one.

    Haviv et al. shuffle the last token too (`keep_last=False`): then the query is another token, and even the
    prediction of one layer changes, although it does not depend on order.
    """
    largest, gaps, spread = 0.0, [], []
    for row, (ids_T, target) in enumerate(zip(ids_BT, targets_B, strict=True)):
        others_ST = shuffles(ids_T, shuffles_per_sequence, seed + row, keep_last=1 if keep_last else 0)
        plain_1V, other_SV = decoder(ids_T[None])[:, -1], decoder(others_ST)[:, -1]
        largest = max(largest, float((other_SV - plain_1V).abs().max()))
        loss_S = F.cross_entropy(other_SV, target.expand(shuffles_per_sequence), reduction="none")
        gaps.append(float(loss_S.mean() - F.cross_entropy(plain_1V, target[None])))
        spread.append(float(plain_1V.std()))
    return OrderEffect(largest, sum(gaps) / len(gaps), sum(spread) / len(spread))


@torch.no_grad()
def masked_logit_spread(decoder: Decoder, ids_BT: Tensor, mask_id: int, masked_positions: list[int]) -> OrderEffect:
    """Measure how much the logits at the [MASK] tokens differ, if the tokens at `masked_positions` are masked."""
    if len(masked_positions) < 2:
        raise SpecError("at least two masks are compared; give two places or more")
    hidden_BT = ids_BT.clone()
    hidden_BT[:, masked_positions] = mask_id
    logits_BMV = decoder(hidden_BT)[:, masked_positions]
    apart = float((logits_BMV - logits_BMV[:, :1]).abs().max())
    return OrderEffect(apart, 0.0, float(logits_BMV.std()))


@torch.no_grad()
def permuted_prompt_effect(
    decoder: Decoder, ids_BT: Tensor, prompt_length: int, *, permutations: int = 8, seed: int = 0, keep_first: int = 0
) -> OrderEffect:
    """Measure how another order of the prompt changes the logits of the whole answer.

    The prompt's last token, a separator, and its first `keep_first` tokens stay: a causal model expects BOS there.
    """
    largest, gaps, spread = 0.0, [], []
    prefix = decoder.config.mask == "prefix"
    for row, ids_T in enumerate(ids_BT):
        heads_SP = shuffles(ids_T[:prompt_length], permutations, seed + row, keep_last=1, keep_first=keep_first)
        others_ST = torch.cat([heads_SP, ids_T[prompt_length:].expand(permutations, -1)], 1)
        plain = decoder(ids_T[None], prefix=[prompt_length] if prefix else None)[:, prompt_length - 1 : -1]
        other = decoder(others_ST, prefix=[prompt_length] * permutations if prefix else None)[:, prompt_length - 1 : -1]
        largest = max(largest, float((other - plain).abs().max()))
        answer = ids_T[prompt_length:]
        loss = F.cross_entropy(other.flatten(0, 1), answer.repeat(permutations)) - F.cross_entropy(plain[0], answer)
        gaps.append(float(loss))
        spread.append(float(plain.std()))
    return OrderEffect(largest, sum(gaps) / len(gaps), sum(spread) / len(spread))


def best_guess_accuracy_from_multiset(symbols: int, length: int) -> float:
    """Return the best exact match on copying for a model that knows the multiset of symbols but not their order.

    It can be right for one order of each multiset, so it is the number of multisets over that of sequences,
    C(n+V−1, n) / Vⁿ; for distinct symbols 1/n!. For example 0.525 for two of 20 symbols, and 0.00051 for seven.
    """
    return comb(length + symbols - 1, length) / symbols**length


def untrained_decoder(
    mask: Mask, layers: int, encoding: str = "nope", *, seed: int = 0, sigma: float | None = None
) -> Decoder:
    """Return a small decoder in float64, at initialisation."""
    config: DecoderConfig = preset("laptop", vocabulary=VOCABULARY, layers=layers, mask=mask, sigma=sigma)
    return Decoder(config, encoding, seed=seed).double().eval()


def order_check_rows(
    tokens: int = 24, *, shuffles_per_sequence: int = 8, seed: int = 0, sigma: float = 0.2
) -> list[Row]:
    """Return all rows of `lengthwise theory order`: each invariance, and similar cases that are not invariant.

    `change` is the largest change of a logit divided by the logits' standard deviation; σ is large to make it visible.
    """
    stream = torch.Generator().manual_seed(digest("theory", "order", seed, bits=63))
    ids_BT = torch.randint(1, VOCABULARY, (4, tokens), generator=stream)
    targets_B = torch.randint(1, VOCABULARY, (4,), generator=stream)
    rows: list[Row] = []

    def note(check: str, decoder: Decoder, change: OrderEffect, invariant: bool, by: str) -> None:
        rows.append(
            {
                "check": check,
                "mask": decoder.config.mask,
                "layers": decoder.config.layers,
                "encoding": str(decoder.specs[0]),
                "expected": "no change" if invariant else "a change",
                "change": change.logits / change.scale,
                "why": by,
            }
        )

    def made(mask: Mask, layers: int, encoding: str = "nope") -> Decoder:
        return untrained_decoder(mask, layers, encoding, seed=seed, sigma=sigma)

    before = "shuffle what is before the last token"
    for layers, encoding, invariant, by in (
        (1, "nope", True, "one layer averages over a set"),
        (1, "alibi", False, "an encoding tells places at once"),
        (2, "nope", False, "the second layer sees states that differ by place"),
        (4, "nope", False, "so do all later ones"),
    ):
        decoder = made("causal", layers, encoding)
        note(
            before,
            decoder,
            shuffled_prefix_effect(decoder, ids_BT, targets_B, shuffles_per_sequence=shuffles_per_sequence, seed=seed),
            invariant,
            by,
        )
    decoder = made("causal", 1)
    moved = shuffled_prefix_effect(
        decoder, ids_BT, targets_B, shuffles_per_sequence=shuffles_per_sequence, seed=seed, keep_last=False
    )
    note("shuffle the last token too (as published)", decoder, moved, False, "the query is another token: no order yet")
    places = [2, 7, tokens // 2, tokens - 3]
    for mask, encoding, invariant, by in (
        ("bidirectional", "nope", True, "every layer is equivariant"),
        ("bidirectional", "sinusoidal", False, "positions tell the masks apart"),
        ("causal", "nope", False, "each mask has another past"),
    ):
        decoder = made(mask, 4, encoding)
        note("masks of one sequence", decoder, masked_logit_spread(decoder, ids_BT, 0, places), invariant, by)
    for mask, encoding, invariant, by in (
        ("prefix", "nope", True, "the prompt is a multiset"),
        ("prefix", "t5", False, "an encoding tells places"),
        ("causal", "nope", False, "a causal prompt has its order by depth"),
    ):
        decoder = made(mask, 4, encoding)
        changed = permuted_prompt_effect(decoder, ids_BT, tokens // 2, permutations=shuffles_per_sequence, seed=seed)
        note("another order of the prompt", decoder, changed, invariant, by)
    return rows
