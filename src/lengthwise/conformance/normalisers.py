"""Checks of the normaliser and of the attention temperature: claims, and formulas written again in plain Python."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.claims import CHANGED
from lengthwise.conformance.reference import Triangle
from lengthwise.conformance.subject import SMALL, Subject, relative_error
from lengthwise.conformance.weights import sigmoid
from lengthwise.model.config import TEMPERATURES
from lengthwise.model.temperature import build_temperature
from lengthwise.spec import Spec


def _scores(tokens: int) -> Tensor:
    """Scores of a small model, some close to each other and some far apart: (1, H, T, T)."""
    generator = torch.Generator().manual_seed(tokens)
    shape = (1, SMALL.heads, tokens, tokens)
    return 2 * torch.randn(shape, dtype=torch.float64, generator=generator)


def _weights(subject: Subject, scores_1HTT: Tensor, allowed_1TT: Tensor | None = None) -> Tensor:
    visible = Triangle(scores_1HTT.shape[-1], may_be_empty=allowed_1TT is not None)
    allowed_1TT = visible.allowed_BQK if allowed_1TT is None else allowed_1TT
    return subject.normaliser.weigh(scores_1HTT.masked_fill(~allowed_1TT[:, None], -torch.inf), visible)


@check(
    "N01",
    "Normaliser's claims: a constant added to a row, or another order of keys, changes nothing, or does, as claimed.",
)
@torch.no_grad()
def check_normaliser_claims(subject: Subject) -> Iterator[CheckCase]:
    scores = _scores(9)
    plain = _weights(subject, scores)
    moved = max(relative_error(_weights(subject, scores + shift), plain) for shift in (-3.0, 2.0))
    if subject.normaliser.shift_invariant:
        yield CheckCase("2 or −3 added to all scores of a query, claimed invariant", moved, 1e-9)
    else:
        case = "2 or −3 added to all scores change nothing: claim shift_invariant = True"
        yield CheckCase(case, float(moved < CHANGED), 0)
    order = torch.tensor([7, 6, 5, 4, 3, 2, 1, 0, 8])  # the query's own key stays the last one
    shuffled = _weights(subject, scores[..., order])[..., -1, :]
    moved = relative_error(shuffled, plain[..., -1, order])
    if subject.normaliser.ordered:
        yield CheckCase(
            "earlier keys in another order change nothing: claim ordered = False", float(moved < CHANGED), 0
        )
    else:
        yield CheckCase("earlier keys in another order (if it matters, claim ordered = True)", moved, 1e-9)


@check(
    "N02",
    "Weights are those of the normaliser's formula in plain Python; hidden keys get none, a query without keys zeros.",
)
@torch.no_grad()
def check_normaliser_formula(subject: Subject) -> Iterator[CheckCase]:
    normaliser = subject.normaliser
    single = copy.deepcopy(normaliser).float()
    for tokens in (1, 2, 9):
        scores, visible = _scores(tokens), Triangle(tokens)
        got = _weights(subject, scores)
        ahead = float(got[..., torch.ones(tokens, tokens).triu(1) > 0].abs().sum())
        yield CheckCase(f"weight on hidden keys, {tokens} tokens", ahead, 0)
        empty = _weights(subject, scores, torch.zeros(1, tokens, tokens, dtype=torch.bool))
        yield CheckCase(f"queries without keys, {tokens} tokens: not zero", float((empty != 0).sum()), 0)
        short = single.weigh(scores.float().masked_fill(~visible.allowed_BQK, -torch.inf), visible)
        yield CheckCase(f"fp32 against float64, {tokens} tokens", relative_error(short, got), 1e-5)
        if normaliser.formula is None:
            continue
        formula = FORMULAS[normaliser.formula]
        for head in range(SMALL.heads):
            rows = [formula(scores[0, head, i, : i + 1].tolist(), head, normaliser) for i in range(tokens)]
            wanted = torch.tensor([row + [0.0] * (tokens - len(row)) for row in rows], dtype=torch.float64)
            case = f"head {head}, {tokens} tokens"
            yield CheckCase(case, float((got[0, head] - wanted).abs().max()), 1e-9)


def _softmax(scores: Sequence[float], head: int, normaliser: Any) -> list[float]:  # noqa: ANN401
    total = math.fsum(math.exp(s) for s in scores)
    return [math.exp(s) / total for s in scores]


def _sink(scores: Sequence[float], head: int, normaliser: Any) -> list[float]:  # noqa: ANN401
    own = float(normaliser.sink_H[head]) if hasattr(normaliser, "sink_H") else 0.0
    total = math.fsum(math.exp(s) for s in (*scores, own))
    return [math.exp(s) / total for s in scores]


def _entmax(scores: Sequence[float], head: int, normaliser: Any) -> list[float]:  # noqa: ANN401
    alpha = float(normaliser.alpha)
    if alpha == 1:
        return _softmax(scores, head, normaliser)

    def weights(tau: float) -> list[float]:
        return [max((alpha - 1) * s - tau, 0.0) ** (1 / (alpha - 1)) for s in scores]

    low, high = (alpha - 1) * max(scores) - 1, (alpha - 1) * max(scores)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(weights(middle)) > 1 else (low, middle)
    return weights(low)


def _stick_breaking(scores: Sequence[float], head: int, normaliser: Any) -> list[float]:  # noqa: ANN401
    left, row = 1.0, [0.0] * len(scores)
    for j in reversed(range(len(scores) - 1)):
        share = sigmoid(scores[j])
        row[j], left = left * share, left * (1 - share)
    row[-1] = left if normaliser.remainder else 0.0
    return row


FORMULAS: dict[str, Callable[[Sequence[float], int, Any], list[float]]] = {
    "softmax": _softmax,
    "sink": _sink,
    "entmax": _entmax,
    "stick_breaking": _stick_breaking,
}
"""The formulas a normaliser may claim: the scores of the keys up to the query, its own last, give its weights."""


@check("N03", "The temperature's factor is that of its formula in plain Python, at tokens 1 to 100,000.")
@torch.no_grad()
def check_temperature_formula(subject: Subject) -> Iterator[CheckCase]:
    name = Spec.of(subject.config.temperature).name
    if name not in TEMPERATURES or name == "constant":
        raise NotApplicable("it has no temperature, or one of its own")
    temperature = build_temperature(subject.config.temperature, SMALL.geometry)
    generator = torch.Generator().manual_seed(0)
    for parameter in temperature.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    counts = [1, 2, 3, 15, 16, 17, 255, 256, 2047, 2048, 8191, 8192, 8193, 16384, 16385, 100_000]
    x = torch.randn(1, len(counts), SMALL.width, dtype=torch.float64, generator=generator)
    temperature = temperature.double()
    found = temperature.factor(torch.tensor([counts], dtype=torch.float64), x)
    got = torch.as_tensor(found, dtype=torch.float64).expand(1, SMALL.heads, len(counts), 1)[0, ..., 0]
    for head in range(SMALL.heads):
        for at, n in enumerate(counts):
            wanted = TEMPERATURE_FORMULAS[name](temperature, n, x[0, at].tolist(), head)
            yield CheckCase(f"token {n}, head {head}", abs(float(got[head, at]) - wanted) / max(abs(wanted), 1), 1e-9)


def _asentmax(t: Any, n: int, x: Sequence[float], head: int) -> float:  # noqa: ANN401
    beta, gamma = (
        math.fsum(float(w) * v for w, v in zip(part.weight[head], x, strict=True)) + float(part.bias[head])
        for part in (t.beta, t.gamma)
    )
    return 1 + math.log(1 + math.exp(beta)) * math.log(n + 1) ** (t.range * math.tanh(gamma))


TEMPERATURE_FORMULAS: dict[str, Callable[[Any, int, Sequence[float], int], float]] = {
    "log-n": lambda t, n, x, head: max(1.0, math.log(n) / math.log(t.trained)),
    "yarn": lambda t, n, x, head: t.value,
    "llama4": lambda t, n, x, head: 1 + t.scale * math.log(1 + n // t.floor),
    "ministral": lambda t, n, x, head: 1 + t.scale * math.log(1 + (n - 1) // t.floor),
    "beam": lambda t, n, x, head: math.exp(t.power * math.log(n / t.floor + 1)),
    "inkling": lambda t, n, x, head: 1 + t.scale * max(0.0, math.log(n / t.floor)),
    "ssmax": lambda t, n, x, head: float(t.scale_H[head]) * math.log(n + t.shift),
    "asentmax": _asentmax,
}
"""The factor at the n-th token, whose layer input is x."""
