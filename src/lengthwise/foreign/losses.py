"""The loss of each token of a text under a causal language model, and the check that its logits are not shifted.

Logits at token t predict token t + 1. Everything that is measured here is measured in eval mode, without a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from math import exp, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.device import HOST, widest_float
from lengthwise.spec import SpecError

AT_ONCE = 2048
"""Tokens of one call: more rows than that holds are several calls, so that memory stays bounded."""
ROWS_AT_ONCE = 128
"""Rows of logits that are turned into float64 at once."""
PROBE = 24
"""Tokens with which the logits are checked."""


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode without gradients, and leave every module of it as it was."""
    were_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in were_training:
            module.training = True


def accepts(model: nn.Module, argument: str) -> bool:
    """Return whether the forward pass of a model has an argument of this name."""
    return argument in inspect.signature(model.forward).parameters


def last_logits(model: nn.Module, ids_BT: Tensor, last: int, offset: int = 0) -> Tensor:
    """Return the logits (B, last, vocabulary) at the last tokens of each row, on the model's device.

    Models that can compute only these do so. With an offset, the first token has that position.
    """
    tokens, device = ids_BT.shape[1], next(model.parameters()).device
    inputs: dict[str, Any] = {}
    if offset:
        inputs["position_ids"] = torch.arange(offset, offset + tokens, device=device).expand(len(ids_BT), -1)
    kept = next((name for name in ("logits_to_keep", "num_logits_to_keep") if accepts(model, name)), None)
    if kept is not None and last < tokens:
        inputs[kept] = last
    found = model(ids_BT.to(device), use_cache=False, **inputs)
    logits = found if isinstance(found, Tensor) else found.logits
    expected = last if kept in inputs else tokens
    if logits.shape[:2] != (len(ids_BT), expected):
        raise SpecError(
            f"the model returned logits of shape {tuple(logits.shape)} for {len(ids_BT)} rows of {tokens} tokens, "
            f"where {expected} of them were asked for: forward must return one row of logits for each token"
        )
    return logits[:, logits.shape[1] - last :]


def token_losses(model: nn.Module, ids_BT: Tensor, targets: int | None = None, offset: int = 0) -> Tensor:
    """Return the losses (B, targets) in nats of the last tokens of each row; of all but the first unless given."""
    tokens = ids_BT.shape[1]
    targets = tokens - 1 if targets is None else targets
    if not 1 <= targets < tokens:
        raise SpecError(f"of {tokens} tokens at least 1 and at most {tokens - 1} can be scored, not {targets}")
    found: list[Tensor] = []
    for part_BT in ids_BT.split(max(1, AT_ONCE // tokens)):
        logits = last_logits(model, part_BT, targets + 1, offset)[:, :-1].flatten(0, 1)
        next_N = part_BT[:, -targets:].flatten().to(logits.device)
        wide = widest_float(logits.device)
        losses = [
            F.cross_entropy(rows.to(wide), own, reduction="none")
            for rows, own in zip(logits.split(ROWS_AT_ONCE), next_N.split(ROWS_AT_ONCE), strict=True)
        ]
        found.append(torch.cat(losses).reshape(len(part_BT), targets).to(HOST, torch.float64))
    return torch.cat(found)


def perplexity(model: nn.Module, ids_T: Tensor, window: int, stride: int) -> float:
    """Return the perplexity of a text in which every token but the first is scored exactly once.

    The first window scores all of its tokens but the first. Each later one ends `stride` tokens further and scores
    only these, each with at least `window - stride` tokens before it. 50 tokens with window 20 and stride 10 are scored
    as tokens 1–19, 20–29, 30–39 and 40–49.
    """
    tokens = len(ids_T)
    if tokens < 2:
        raise SpecError(f"a text of {tokens} tokens has none to score: give at least 2")
    if not 1 <= stride < window:
        raise SpecError(
            f"stride {stride} with window {window} would score a token with nothing before it: "
            f"use a stride of 1 to {window - 1}, such as {max(1, window // 2)}"
        )
    with in_eval_mode(model):
        require_aligned_logits(model, ids_T)
        losses = [token_losses(model, ids_T[None, :window])]
        for begin in range(window, tokens, stride):
            end = min(begin + stride, tokens)
            losses.append(token_losses(model, ids_T[None, end - window : end], end - begin))
    return exp(float(torch.cat(losses, dim=1).mean()))


def require_aligned_logits(model: nn.Module, ids_T: Tensor) -> None:
    """Raise if the logits at a token are not those that follow from the tokens up to and with it.

    One token in the middle is replaced. Logits before it must stay as they are: if they change, they know the token
    that they should predict. Logits at it must change: if only later ones do, they are a token late. No loss is looked
    at, so a model that is poor, random or trained to repeat the current token raises no false alarm; neither does one
    whose logits depend on no token.
    """
    ids_T = ids_T[:PROBE]
    place = len(ids_T) // 2
    with in_eval_mode(model):
        logits = last_logits(model, ids_T[None], len(ids_T))
        listed = [one for one in ids_T.unique().tolist() if one != int(ids_T[place])][:4]
        others = torch.tensor(listed or [(int(ids_T[place]) + 1) % logits.shape[-1]])
        changed_BT = ids_T.repeat(len(others), 1)
        changed_BT[:, place] = others
        moved_BT = (last_logits(model, changed_BT, len(ids_T)) - logits).float().abs().amax(-1)
    most = float(moved_BT.max())
    if not isfinite(most):
        raise SpecError("the logits of this model are not finite, so nothing can be measured")
    if most <= 1e-6 * float(logits.float().abs().max()):
        return
    first = int((moved_BT.amax(0) > 0.01 * most).nonzero()[0])
    if first < place - 1:
        raise SpecError(
            f"attention is not causal: the logits at token {first} change with token {place}, so no loss of this model "
            "means anything; mend the mask of its attention"
        )
    if first < place:
        raise SpecError(
            f"the logits are shifted by one: those at token {first} change with token {place}, which they should "
            "predict; return logits as they are computed (logits[:, t] predicts token t + 1), without a shift"
        )
    if float(moved_BT[:, place].amax()) < 1e-4 * most:
        raise SpecError(
            f"the logits are shifted by {first - place}: those at token {place} do not change with token {place}, only "
            f"those from token {first} on; return logits as they are computed (logits[:, t] predicts token t + 1)"
        )


def most_tokens(model: nn.Module, ids_T: Tensor) -> int:
    """Return how many of these tokens the model takes at once before it raises; 0 if it does not take two."""
    works, fails = 1, len(ids_T) + 1
    while fails - works > 1:
        tokens = (works + fails) // 2
        try:
            last_logits(model, ids_T[None, :tokens], 1)
            works = tokens
        except (IndexError, RuntimeError, ValueError) as error:
            if is_about_memory(error):
                raise
            fails = tokens
    return works if works > 1 else 0


def is_about_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ended, which says nothing about positions."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
