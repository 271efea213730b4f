"""The divergence of two models' attention, layer by layer: Jensen–Shannon, and what was published under that name.

    true          ½ [KL(P‖M) + KL(Q‖M)],  M = (P + Q) / 2;  nats, between 0 and ln 2
    as_published  ½ [KL(M‖P) + KL(M‖Q)];  no upper bound, infinite where one weight is 0 and the other is not

Kazemnejad et al. 2023, arXiv:2305.19466, §5.2 and Figure 4, print the first; their code has the second.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from lengthwise.analysis.attention import ROWS, AttentionSource, Batch
from lengthwise.spec import SpecError

DEFINITIONS = ("true", "as_published")
HEADS = {
    "minimum": "the closest pair of heads of all A × B, in each example, as the publication states it",
    "matching": "each head with one of the other model, the matching that is best over all examples",
    "as_published": "the closest of the pairs (i of the first, j of the second) with i < j, in each example",
    "same": "head i with head i: for models that began with the same weights",
}
"""The ways of pairing heads, with a description."""


def _information(x: Tensor) -> Tensor:
    """Return x ln x, and 0 at 0; three times as fast as `xlogy` or `entr`."""
    return x * x.clamp(min=1e-300).log()


def _with_rest(weights_BHRK: Tensor) -> Tensor:
    """Append the rest of weights that sum to less than 1 as one more key, which stands for no token."""
    return torch.cat([weights_BHRK, (1 - weights_BHRK.sum(-1, keepdim=True)).clamp(min=0)], -1)


def head_divergences(
    p_BARK: Tensor, q_BBRK: Tensor, first_query: int, sums_below_one: bool = False
) -> dict[str, Tensor]:
    """Return the divergence of each pair of heads, summed over a block of queries: definition → (batch, A, B), float64.

    Only keys up to the query count. `sums_below_one` says that some weights sum to less than 1.
    """
    p, q = p_BARK.double(), q_BBRK.double()
    rows, keys = p.shape[2:]
    visible_RK = torch.arange(keys) <= torch.arange(first_query, first_query + rows)[:, None]
    if sums_below_one:
        p, q = _with_rest(p), _with_rest(q)
        visible_RK = torch.cat([visible_RK, torch.ones(rows, 1, dtype=torch.bool)], 1)
    own_p, own_q = _information(p).sum((-1, -2)), _information(q).sum((-1, -2))
    # Keys after a query have weight 0 and do not count: their logs are set to 0.
    log_p, log_q = (x.log().masked_fill(~visible_RK, 0) / 2 for x in (p, q))
    shape = (p.shape[0], p.shape[1], q.shape[1])
    true, published = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    finite = bool(log_p.isfinite().all() and log_q.isfinite().all())
    if finite:  # Σ M (log P + log Q) / 2 of all pairs at once, as matrix products
        x, y, log_x, log_y = (part.flatten(2) for part in (p, q, log_p, log_q))
        own = (x * log_x).sum(-1)[:, :, None] + (y * log_y).sum(-1)[:, None]
        published = -(own + log_x @ y.mT + x @ log_y.mT) / 2
    for head in range(p.shape[1]):  # all pairs at once would need the memory of A × B blocks
        m_BBRK = (p[:, head, None] + q) / 2
        information = _information(m_BBRK).sum((-1, -2))
        apart = (own_p[:, head, None] + own_q) / 2 - information
        true[:, head] = apart.clamp(0, math.log(2) * rows)
        if not finite:
            published[:, head] = -(m_BBRK * (log_p[:, head, None] + log_q)).sum((-1, -2))
        published[:, head] += information
    return {"true": true, "as_published": published}


def layer_divergence(
    costs_NAB: np.ndarray, head_pairing: str, matching: tuple[np.ndarray, np.ndarray] | None = None
) -> float:
    """Return the divergence of two layers from the divergences of their heads over N examples, by one of `HEADS`.

    e.g. costs [[0, 1], [1, 3]] of one example: minimum 0, matching 1 (the mean of 1 and 1), as_published 1, same 1.5.
    """
    if head_pairing == "same":
        return float(np.diagonal(costs_NAB, axis1=1, axis2=2).mean())
    if head_pairing == "matching":
        chosen_A, chosen_B = best_head_matching(costs_NAB) if matching is None else matching
        return float(costs_NAB.mean(0)[chosen_A, chosen_B].mean())
    if head_pairing == "minimum":
        return _least(costs_NAB.reshape(len(costs_NAB), -1))
    if head_pairing == "as_published":
        listed = list(combinations(range(min(costs_NAB.shape[1:])), 2))
        if not listed:
            return math.nan  # a single head has no pair i < j
        first, second = zip(*listed, strict=True)
        return _least(costs_NAB[:, list(first), list(second)])
    raise SpecError(f"heads are paired by {', '.join(HEADS)}, not by {head_pairing!r}")


def _least(costs_NP: np.ndarray) -> float:
    """Return the mean over examples of the smallest pair; NaNs are skipped in both, as by pandas in the original."""
    least_N = np.where(np.isnan(costs_NP), math.inf, costs_NP).min(1)[~np.isnan(costs_NP).all(1)]
    return float(least_N.mean()) if len(least_N) else math.nan


def best_head_matching(costs_NAB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the one-to-one matching of heads with the smallest mean divergence over all examples."""
    from scipy.optimize import linear_sum_assignment

    mean_AB = costs_NAB.mean(0)
    most = float(np.finfo(np.float64).max) / (4 * mean_AB.size)  # scipy does not accept infinities
    return linear_sum_assignment(np.nan_to_num(mean_AB, nan=most, posinf=most))


@dataclass
class HeadDivergences:
    """The divergence of every pair of heads of two models, example by example."""

    lengths: list[int | None] = field(default_factory=list)
    """The length of each example."""
    seen: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """Definition → one array (N, L, A, B) per batch: means over queries."""

    def pairwise_divergences(self, definition: str) -> np.ndarray:
        """Return the divergences of all examples, (N, L, A, B)."""
        return np.concatenate(self.parts[definition])

    def rows(self, **labels: object) -> list[dict[str, object]]:
        """Return a row for each layer and length, with a column per definition and pairing of heads.

        One matching of heads is used for all lengths.
        """
        found: list[dict[str, object]] = []
        lengths = np.array([-1 if length is None else length for length in self.lengths])
        pairwise_divergences = {definition: self.pairwise_divergences(definition) for definition in DEFINITIONS}
        for layer in range(pairwise_divergences["true"].shape[1]):
            own = {definition: costs_NLAB[:, layer] for definition, costs_NLAB in pairwise_divergences.items()}
            matching = {definition: best_head_matching(costs_NAB) for definition, costs_NAB in own.items()}
            for length in np.unique(lengths):
                here = lengths == length
                row: dict[str, object] = {
                    **labels,
                    "layer": layer,
                    "length": None if length < 0 else int(length),
                    "seen": self.seen[int(here.argmax())],
                    "examples": int(here.sum()),
                }
                for definition, costs_NAB in own.items():
                    for how in HEADS:
                        if how == "same" and costs_NAB.shape[1] != costs_NAB.shape[2]:
                            continue
                        row[f"{definition} {how}"] = layer_divergence(costs_NAB[here], how, matching[definition])
                found.append(row)
        return found

    def mean_over_layers(self, definition: str = "true", head_pairing: str = "minimum") -> float:
        """Return the mean over layers and examples."""
        costs_NLAB = self.pairwise_divergences(definition)
        return float(
            np.mean([layer_divergence(costs_NLAB[:, layer], head_pairing) for layer in range(costs_NLAB.shape[1])])
        )


def attention_divergences(
    sources: Sequence[AttentionSource],
    pairs: Sequence[tuple[int, int]],
    batches: Sequence[Batch],
    queries_per_block: int = 32,
    on_progress: Callable[[str], None] | None = None,
) -> list[HeadDivergences]:
    """Compute the divergence of each pair of sources, e.g. `attention_divergences([a, b], [(0, 1)], batches)[0]`.

    Every model runs once on each batch, all in lockstep, so that only one block of each is in memory.
    """
    if not batches:
        raise SpecError("there is nothing to look at: no example has room, or no length was given")
    layers = {source.layers for source in sources}
    if len(layers) != 1:
        raise SpecError(f"layers are compared one by one, so models need equally many; these have {sorted(layers)}")
    found = [HeadDivergences(parts={definition: [] for definition in DEFINITIONS}) for _ in pairs]
    for number, batch in enumerate(batches):
        if on_progress is not None:
            on_progress(f"comparing {len(pairs)} pairs of {len(sources)} models: batch {number + 1} of {len(batches)}")
        count, tokens = batch.ids_BT.shape
        sums: list[dict[str, list[Tensor]]] = [{name: [] for name in DEFINITIONS} for _ in pairs]
        with closing(lockstep_attention_blocks(sources, batch, queries_per_block)) as steps:
            for layer, start, weights in steps:
                for place, (a, b) in enumerate(pairs):
                    rest = not (sources[a].weights_sum_to_one[layer] and sources[b].weights_sum_to_one[layer])
                    for name, part in head_divergences(weights[a], weights[b], start, rest).items():
                        held = sums[place][name]
                        if len(held) == layer:
                            held.append(torch.zeros_like(part))
                        held[layer] += part
        for place, apart in enumerate(found):
            for name, held in sums[place].items():
                apart.parts[name].append((torch.stack(held, 1) / tokens).numpy())
            apart.lengths += [batch.length] * count
            apart.seen += [batch.seen] * count
            apart.tokens += [tokens] * count
    return found


class _Left(Exception):
    """Raised in a worker thread when the consumer has stopped."""


def lockstep_attention_blocks(
    sources: Sequence[AttentionSource], batch: Batch, queries_per_block: int = ROWS
) -> Generator[tuple[int, int, list[Tensor]]]:
    """Yield (layer, first query, weights of each source), one block of all models at a time.

    Each model runs in its own thread, because a forward pass cannot otherwise be paused at a tap.
    """
    gone = threading.Event()
    lines: list[queue.Queue[tuple[int, int, Tensor] | BaseException | None]] = [queue.Queue(1) for _ in sources]

    def put(line: queue.Queue, item: object) -> None:
        while not gone.is_set():
            try:
                return line.put(item, timeout=0.2)
            except queue.Full:
                continue
        raise _Left

    def work(source: AttentionSource, line: queue.Queue) -> None:
        try:
            source.visit_attention_weights(
                batch, lambda layer, weights, start: put(line, (layer, start, weights)), queries_per_block
            )
            put(line, None)
        except _Left:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
            if not gone.is_set():
                put(line, error)

    threads = [
        threading.Thread(target=work, args=(source, line), daemon=True)
        for source, line in zip(sources, lines, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        while True:
            items = [line.get() for line in lines]
            for item in items:
                if isinstance(item, BaseException):
                    raise item
            there = [item for item in items if item is not None and not isinstance(item, BaseException)]
            if not there:
                return
            assert len(there) == len(items) and len({item[:2] for item in there}) == 1
            yield there[0][0], there[0][1], [item[2] for item in there]
    finally:
        gone.set()
        for thread in threads:
            thread.join()
