"""Estimates over seeds of the divergence between attention of different models, beside the published numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lengthwise.encoding.labels import label_of
from lengthwise.publication import attention as published
from lengthwise.publication import published_encoding
from lengthwise.statistics.estimate import Estimate
from lengthwise.statistics.pairs import difference_over_pairs, mean_over_seed_pairs

Rows = Sequence[dict[str, Any]]

MEASURES = tuple(
    f"{definition} {heads}"
    for definition in ("true", "as_published")
    for heads in ("minimum", "matching", "as_published", "same")
)
"""Columns of the rows: each is a definition of divergence and a pairing of heads."""
SHOWN = {
    "as_published as_published": "as published",
    "true minimum": "true, closest heads",
    "true matching": "true, heads matched",
}
"""The measures in figures and terminal tables, and their titles."""


def mean_over_lengths(rows: Rows, seen_only: bool = False) -> list[dict[str, Any]]:
    """Average the rows of each pair and layer over all lengths, or over seen lengths; the input of estimates."""
    keys = ("task", "pairing", "encoding", "seed", "against", "against_seed", "layer")
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["seen"] or not seen_only:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, group, strict=True))
        | {measure: math.fsum(row[measure] for row in own) / len(own) for measure in MEASURES if measure in own[0]}
        for group, own in groups.items()
    ]


def tasks_of(rows: Rows) -> list[str]:
    """Return the tasks of these rows, in order of appearance."""
    return list(dict.fromkeys(row["task"] for row in rows))


def divergence_by_seed_pair(
    rows: Rows, task: str, pairing: str, encoding: str, measure: str, layer: int | None = None
) -> dict[tuple[int, int], float]:
    """Return (seed, seed of the other model) → the mean over layers, or the value of one layer."""
    sums: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if (row["task"], row["pairing"], row["encoding"]) != (task, pairing, encoding) or measure not in row:
            continue
        if layer is None or row["layer"] == layer:
            sums.setdefault((row["seed"], row["against_seed"]), []).append(row[measure])
    return {pair: math.fsum(values) / len(values) for pair, values in sums.items()}


def estimate_divergence(
    rows: Rows, task: str, pairing: str, encoding: str, measure: str, layer: int | None = None
) -> Estimate:
    """Return the mean over pairs of seeds, with its interval."""
    return mean_over_seed_pairs(divergence_by_seed_pair(rows, task, pairing, encoding, measure, layer), measure)


def encodings_of(rows: Rows, task: str) -> list[str]:
    """Return the encodings compared on a task, in order of appearance."""
    return list(dict.fromkeys(row["encoding"] for row in rows if row["task"] == task))


def published_divergence(encoding: str, pairing: str = "record", reference: str = "nope") -> float | None:
    """Return the published divergence from NoPE of one of our encodings; full RoPE in heads of 16 is Rotary.

    It is None for pairs that were not published: another reference, two named runs, untrained models.
    """
    name = published_encoding(encoding)
    if name is None or reference != "nope" or pairing not in {"record", "published"}:
        return None
    return published.DIVERGENCE.get(name)


def reference_encoding_of(rows: Rows, task: str) -> str:
    """Return the encoding with which the runs of a task were compared, apart from their own initial weights."""
    named = [row["against"] for row in rows if row["task"] == task and row["pairing"] != "change"]
    return named[0] if named else "nope"


def all_divergence_estimates(rows: Rows) -> list[dict[str, object]]:
    """Return every estimate as a row: task, pairing, encoding, measure, layer (None for all), value, interval, ..."""
    found: list[dict[str, object]] = []
    for task in tasks_of(rows):
        reference = reference_encoding_of(rows, task)
        pairings = list(dict.fromkeys(row["pairing"] for row in rows if row["task"] == task))
        layers = sorted({row["layer"] for row in rows if row["task"] == task})
        for pairing in pairings:
            for encoding in encodings_of(rows, task):
                for measure in MEASURES:
                    for layer in (None, *layers):
                        made = estimate_divergence(rows, task, pairing, encoding, measure, layer)
                        if made.value is None:
                            continue
                        found.append(
                            {
                                "task": task,
                                "pairing": pairing,
                                "encoding": encoding,
                                "measure": measure,
                                "layer": layer,
                                "value": made.value,
                                "low": made.low,
                                "high": made.high,
                                "level": made.level,
                                "seeds": made.n,
                                "published": published_divergence(encoding, pairing, reference)
                                if layer is None
                                else None,
                            }
                        )
    return found


def differences_from_reference(rows: Rows, reference: str = "nope") -> list[dict[str, object]]:
    """Return how much farther each encoding is from the reference than the reference with other seeds is."""
    found: list[dict[str, object]] = []
    for task in tasks_of(rows):
        for measure in MEASURES:
            own = divergence_by_seed_pair(rows, task, "record", reference, measure)
            for encoding in encodings_of(rows, task):
                if encoding == reference or not own:
                    continue
                made = difference_over_pairs(
                    divergence_by_seed_pair(rows, task, "record", encoding, measure), own, measure
                )
                if made.value is not None:
                    found.append(
                        {
                            "task": task,
                            "encoding": encoding,
                            "measure": measure,
                            "difference": made.value,
                            "low": made.low,
                            "high": made.high,
                            "seeds": made.n,
                        }
                    )
    return found


def divergence_table(rows: Rows, task: str) -> list[dict[str, object]]:
    """Return the terminal table, a line for each encoding: the published number, our result by its recipe, the true
    divergence over pairs of different seeds, and for scale that of untrained models and from the initial weights.
    """
    found: list[dict[str, object]] = []
    reference = reference_encoding_of(rows, task)
    pairing = "given" if any(row["pairing"] == "given" for row in rows if row["task"] == task) else "record"
    for encoding in encodings_of(rows, task):
        number = published_divergence(encoding, pairing, reference)
        line: dict[str, object] = {"encoding": label_of(encoding)}
        if pairing == "given":
            line["against"] = "itself" if encoding == reference else label_of(reference)
        else:
            line["published"] = "" if number is None else f"{number:.3f}"
            line["its recipe here"] = _half(
                estimate_divergence(rows, task, "published", encoding, "as_published as_published")
            )
        for measure, name in SHOWN.items():
            line[name] = _half(estimate_divergence(rows, task, pairing, encoding, measure))
        if pairing == "record":
            line["matched, untrained"] = _half(estimate_divergence(rows, task, "floor", encoding, "true matching"))
        line["matched, from first weights"] = _half(
            estimate_divergence(rows, task, "change", encoding, "true matching")
        )
        found.append(line)
    return found


def nearest_encoding_sentence(rows: Rows, task: str, reference: str = "nope") -> str:
    """Say which encoding's attention is nearest to the reference's, and whether it differs from other seeds of it."""
    parts = []
    for measure, name in SHOWN.items():
        values = {
            encoding: made.value
            for encoding in encodings_of(rows, task)
            if encoding != reference
            and (made := estimate_divergence(rows, task, "record", encoding, measure)).value is not None
        }
        if not values:
            return ""
        nearest = min(values, key=lambda encoding: values[encoding] or 0)
        gap = next(
            (
                one
                for one in differences_from_reference([row for row in rows if row["task"] == task], reference)
                if one["encoding"] == nearest and one["measure"] == measure
            ),
            None,
        )
        parts.append(f"{name}: {label_of(nearest)}{'' if gap is None else f' ({_gap(gap, reference)})'}")
    return f"Nearest to the attention of {label_of(reference)}, {'; '.join(parts)}."


def _gap(gap: dict[str, Any], reference: str) -> str:
    reference = label_of(reference)
    if gap["low"] is None:
        return f"{gap['difference']:+.3f} against {reference} with another seed, no interval"
    interval = f"{gap['difference']:+.3f} [{gap['low']:.3f}, {gap['high']:.3f}] against {reference} with another seed"
    if gap["low"] > 0:
        return f"{interval}: farther"
    return f"{interval}: nearer" if gap["high"] < 0 else f"{interval}: not told apart"


def _short(one: Estimate) -> str:
    if one.value is None:
        return ""
    if one.low is None or one.high is None:
        return f"{one.value:.3f}"
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def divergence_markdown(rows: Rows, task: str, reference: str = "nope", heading_suffix: str = "") -> str:
    """Return all results of a task as Markdown: both definitions, three pairings of heads, scale, differences."""
    label = label_of(reference)
    names = {
        "record": f"Seeds s of {label} with all other seeds s′ of M",
        "given": f"M with {label}, the run that was named",
        "published": f"Paired as published: M with the same seed, {label} with another",
        "floor": "Both untrained, different seeds",
        "change": "Each model with its own first weights",
    }
    columns = [measure for measure in MEASURES if not measure.endswith(" same")]
    heading = [measure.replace(" ", ", ").replace("as_published", "as published") for measure in columns]
    parts = [f"### {task}{heading_suffix}", nearest_encoding_sentence(rows, task, reference)]
    for pairing, words in names.items():
        lines = []
        for encoding in encodings_of(rows, task):
            made = [estimate_divergence(rows, task, pairing, encoding, measure) for measure in columns]
            if made[0].value is None:
                continue
            number = published_divergence(encoding, pairing, reference)
            lines.append([label_of(encoding), "" if number is None else f"{number:.3f}", *map(_short, made)])
        if lines:
            parts += [f"{words}:", _grid(["M", "published", *heading], lines)]
    gaps = differences_from_reference([row for row in rows if row["task"] == task], reference)
    if gaps:
        there = {(str(one["encoding"]), one["measure"]): _signed(one) for one in gaps}
        lines = [
            [label_of(encoding), *(there.get((encoding, measure), "infinite") for measure in columns)]
            for encoding in dict.fromkeys(str(one["encoding"]) for one in gaps)
        ]
        parts += [f"D({label}, M) − D({label}, {label}′):", _grid(["M", *heading], lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _half(one: Estimate) -> str:
    """Format an estimate as value ± half-width; these intervals are symmetric."""
    half = "" if one.half is None else f" ± {one.half:.3f}"
    return "" if one.value is None else f"{one.value:.3f}{half}"


def _grid(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    assert all(len(line) == len(heading) for line in lines)  # a missing cell would shift all that follow
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, ["---"] * len(heading), *lines))


def _signed(gap: dict[str, Any]) -> str:
    value = f"{gap['difference']:+.3f}"
    return value if gap["low"] is None else f"{value} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
