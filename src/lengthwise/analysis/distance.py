"""Attended distance, and how it changes with length: rows from the statistics of heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lengthwise.analysis.attention import BINS, MEANS, AttentionSource, Batch, HeadStatistics, attention_statistics


def layer_distance_rows(head_statistics: HeadStatistics, **labels: object) -> list[dict[str, object]]:
    """Return each layer's distribution of normalised distance (t − k) / (t + 1), in bins of .025.

    `argmax` counts the distance of the largest weight, as published (Figure 7); `weight` sums all weights.
    """
    found: list[dict[str, object]] = []
    for layer in range(head_statistics.layers):
        argmax_N, weight_N = head_statistics.argmax_LHN[layer].sum(0), head_statistics.weight_LHN[layer].sum(0)
        for bin in range(BINS):
            row = {**labels, "layer": layer, "distance": bin / BINS, "argmax": float(argmax_N[bin])}
            found.append({**row, "weight": float(weight_N[bin])})
    return found


def head_rows(head_statistics: HeadStatistics, **labels: object) -> list[dict[str, object]]:
    """Return a row for each layer and head: the means of all statistics, and the shares of near and far distances.

    `near` is the share below .125, `far` that of .875 and more; if both are large, the head is bimodal.
    """
    means = {name: head_statistics.mean_LH(name) for name in MEANS}
    modes = {
        f"{mode}_{how}": share(how)
        for mode, share in (("near", head_statistics.near_share_LH), ("far", head_statistics.far_share_LH))
        for how in ("argmax", "weight")
    }
    return [
        {
            **labels,
            "layer": layer,
            "head": head,
            "queries": int(head_statistics.count_T.sum()),
            **{name: float(value_LH[layer, head]) for name, value_LH in (means | modes).items()},
        }
        for layer in range(head_statistics.layers)
        for head in range(head_statistics.heads)
    ]


def head_rows_by_length(
    source: AttentionSource, batches: Sequence[Batch], **labels: object
) -> tuple[list[dict[str, object]], HeadStatistics]:
    """Return `head_rows` of each length, and statistics pooled over unseen lengths (over all, if none is unseen)."""
    found: list[dict[str, object]] = []
    seen: list[HeadStatistics] = []
    unseen: list[HeadStatistics] = []
    for length in dict.fromkeys(batch.length for batch in batches):
        own = [batch for batch in batches if batch.length == length]
        heads = attention_statistics(source, own)
        found += head_rows(heads, **labels, length=length, seen=own[0].seen)
        (seen if own[0].seen else unseen).append(heads)
    return found, pool_statistics(unseen or seen)


def pool_statistics(head_statistics: Sequence[HeadStatistics]) -> HeadStatistics:
    """Pool several statistics into one."""
    tokens = max(heads.tokens for heads in head_statistics)
    whole = HeadStatistics(head_statistics[0].layers, head_statistics[0].heads, tokens)
    for heads in head_statistics:
        for name, total_LHT in heads.sums.items():
            whole.sums[name][..., : heads.tokens] += total_LHT
        whole.count_T[: heads.tokens] += heads.count_T
        whole.argmax_LHN += heads.argmax_LHN
        whole.weight_LHN += heads.weight_LHN
        whole.least_L = torch.minimum(whole.least_L, heads.least_L)
        whole.most_L = torch.maximum(whole.most_L, heads.most_L)
        whole.future_L = torch.maximum(whole.future_L, heads.future_L)
    return whole
