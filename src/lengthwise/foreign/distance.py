"""How far back does attention go? The mean distance between a query and the keys it attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lengthwise.foreign.recorder import record_attention

LONGEST_SEEN = 1024
"""Eager attention holds all scores of all layers while they are recorded: 12 layers of 12 heads take 0.6 GB here."""
QUERIES = 64


def attended_distances(model: nn.Module, ids_T: Tensor) -> list[Tensor]:
    """Return the distance of each head (H) of each layer, weighted by attention, for the last 64 tokens as queries.

    These are the last quarter if there are fewer than 256 tokens. Uniform attention over T tokens goes back by nearly
    T / 2. No layer is returned if kernels of other libraries compute attention: they show no scores.
    """
    queries, found = max(1, min(QUERIES, len(ids_T) // 4)), list[Tensor]()
    for call in record_attention(model, ids_T[None], queries=queries):
        keys = call.scores_BHQK.shape[-1]
        weights_HQK = torch.cat([call.scores_BHQK, call.sinks_BHQS], -1)[0].float().softmax(-1)[..., :keys]
        distance_QK = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
        seen_HQ = weights_HQK.sum(-1).clamp(min=1e-12)  # what goes to a sink goes no distance
        found.append(((weights_HQK * distance_QK).sum(-1) / seen_HQ).mean(-1))
    return found
