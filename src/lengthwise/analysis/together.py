"""Analyses of many models on one task, as rows: attention statistics, attended distances, divergences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lengthwise.analysis.attention import AttentionSource, Batch
from lengthwise.analysis.distance import head_rows_by_length, layer_distance_rows
from lengthwise.analysis.divergence import attention_divergences
from lengthwise.analysis.pairing import ModelKey, ModelPair

OnProgress = Callable[[str], None]


def describe_attention(
    models: Mapping[ModelKey, AttentionSource], batches: Sequence[Batch], on_progress: OnProgress, **labels: object
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return, for every model, rows of heads by length and rows of attended distance at unseen lengths."""
    heads: list[dict[str, object]] = []
    distances: list[dict[str, object]] = []
    for number, (model, source) in enumerate(models.items()):
        on_progress(f"what heads attend to: model {number + 1} of {len(models)}")
        own = {**labels, "encoding": model.encoding, "seed": model.seed, "trained": model.trained}
        rows, unseen = head_rows_by_length(source, batches, **own)
        heads += rows
        distances += layer_distance_rows(unseen, **own)
    return heads, distances


def compare_attention(
    models: Mapping[ModelKey, AttentionSource],
    pairs: Sequence[ModelPair],
    batches: Sequence[Batch],
    on_progress: OnProgress,
    **labels: object,
) -> list[dict[str, object]]:
    """Return rows of divergence of these pairings, by layer and length; each model runs once on each batch."""
    needed = list(dict.fromkeys(one for pair in pairs for one in (pair.model, pair.against)))
    place = {model: number for number, model in enumerate(needed)}
    # Several pairings may compare the same two models; these are compared only once.
    distinct = list(dict.fromkeys((place[pair.model], place[pair.against]) for pair in pairs))
    found = attention_divergences([models[model] for model in needed], distinct, batches, on_progress=on_progress)
    apart = dict(zip(distinct, found, strict=True))
    rows: list[dict[str, object]] = []
    for pair in pairs:
        rows += apart[place[pair.model], place[pair.against]].rows(**labels, **pair.labels())
    return rows
