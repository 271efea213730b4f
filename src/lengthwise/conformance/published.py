"""The check against published formulas: whole rows of attention weights, from queries, keys and layer inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.subject import BUDGET, SMALL, Subject
from lengthwise.conformance.weights import READS, WEIGHTS, Head
from lengthwise.encoding.base import Encoding, QueriesAndKeys
from lengthwise.spec import SpecError


@check("F01", "Weights, and what else is read, are those of the published formula, written again in plain Python.")
@torch.no_grad()
def check_published_weights(subject: Subject) -> Iterator[CheckCase]:
    if subject.formula not in WEIGHTS:
        raise NotApplicable("it claims no formula of weights")
    encoding = subject.encoding
    for tokens in subject.sequence_lengths(2, 6):
        for apart in (1, 3, 200):  # 200: beyond every window, clip and threshold
            places = torch.arange(tokens, dtype=torch.float64)[None] * apart
            if encoding.limit is not None and int(places.max()) >= encoding.limit:
                continue
            generator = torch.Generator().manual_seed(tokens)
            shape = (1, SMALL.heads, tokens, SMALL.head_width)
            q, k = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
            x = torch.randn(1, tokens, SMALL.width, dtype=torch.float64, generator=generator)
            got, added = _weights(encoding, q, k, x, places)
            for h in range(SMALL.heads):
                at = [int(place) for place in places[0]]
                given = (q[0, h].tolist(), k[0, h].tolist(), x[0].tolist())
                head = Head(*given, at, h, SMALL.heads, SMALL.scale, encoding, q[0].tolist(), k[0].tolist())
                try:
                    rows = WEIGHTS[subject.formula](head)
                    read = READS[subject.formula](head, rows) if subject.formula in READS else None
                except AttributeError as error:
                    raise SpecError(
                        f"to be held to {subject.formula} it must name its parameters so: {error}"
                    ) from error
                case = f"head {h}, {tokens} tokens, positions {apart} apart"
                yield CheckCase(case, float((got[0, h] - torch.tensor(rows, dtype=torch.float64)).abs().max()), 1e-6)
                if read is not None and added is not None:
                    error = float((added[0, h] - torch.tensor(read, dtype=torch.float64)).abs().max())
                    yield CheckCase(f"what is added to the output, {case}", error, 1e-6)


def _weights(encoding: Encoding, q: Tensor, k: Tensor, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """The weights (1, H, T, T) and the term added to the output, from the hooks in the order of attention."""
    state = encoding.prepare(places, places, torch.tensor([BUDGET]))
    q, k = encoding.rotate(q, k, state)
    q = q * SMALL.scale
    allowed = torch.ones(1, q.shape[2], q.shape[2]).tril() > 0
    pair = QueriesAndKeys(q, k, places, places, allowed, state, SMALL.scale, encoding.mark(x))
    scores, bias = q @ k.mT, encoding.bias(places, places)
    scores = encoding.score(scores if bias is None else scores + bias, pair)
    weights = encoding.weigh(scores.masked_fill(~allowed[:, None], -torch.inf), pair)
    return weights, encoding.read(weights, pair)
