"""Measure the claims of `studies/claims.yaml` that need no study: `lengthwise theory claims`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lengthwise.spec import digest
from lengthwise.theory import rows
from lengthwise.theory.lemmas import CHI, variance_decay_rows
from lengthwise.theory.order import VOCABULARY, masked_logit_spread, untrained_decoder
from lengthwise.theory.rows import OnProgress, Rows, ignore_progress
from lengthwise.theory.variance import DRAWS, LEVEL, coordinate_variances, mean_with_interval

INPUTS_PER_VARIANCE = 8192
"""The number of inputs per variance of a coordinate in the correlation with lemma 4; with few, noise dominates."""


def measure_claims(
    *,
    tokens: int = 512,
    sequences: int = 100,
    draws: int = DRAWS,
    inputs_per_variance: int = INPUTS_PER_VARIANCE,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Rows]:
    """Return the `quantity` of each claim: an exact value, or a mean over draws with its 99 % band.

    e.g. `measure_claims()["V2"][0]["value"]` is 12.0: a logit's variance is H times what was published.
    """
    return {
        "C3": _theorems(tokens, sequences, seed, on_progress),
        "H2": [_exact("masks apart, logits", _masks(seed), 4, "sequences")],
        **_lemmas(tokens, draws, seed, on_progress),
        "V4": [_mean("correlation", _correlations(draws, inputs_per_variance, seed, on_progress))],
    }


def _theorems(tokens: int, sequences: int, seed: int, tell: OnProgress) -> Rows:
    """Measure both theorems without norms, as in the proofs; `lengthwise theory theorem1` also has the norms."""
    first, _ = rows.theorem1_rows(
        tokens, norms=("none",), precisions=("fp64",), sequences=sequences, seed=seed, on_progress=tell
    )
    second = rows.theorem2_rows(tokens, norms=("none",), precisions=("fp64",), seed=seed, on_progress=tell)
    return [
        _exact("position", first[0]["error of t"], sequences, "sequences"),
        _exact("relative term", second[0]["error of f_rel"], second[0]["pairs"], "pairs"),
    ]


def _masks(seed: int, tokens: int = 24) -> float:
    stream = torch.Generator().manual_seed(digest("theory", "claims", seed, bits=63))
    ids_BT = torch.randint(1, VOCABULARY, (4, tokens), generator=stream)
    decoder = untrained_decoder("bidirectional", 4, seed=seed, sigma=0.2)
    return masked_logit_spread(decoder, ids_BT, 0, [2, 7, tokens // 2, tokens - 3]).logits


def _lemmas(tokens: int, draws: int, seed: int, tell: OnProgress) -> dict[str, Rows]:
    found = variance_decay_rows(CHI, tokens, draws=draws, seed=seed, on_progress=tell)
    made: dict[str, Rows] = {}
    for claim, part, m in (("V1", "lemma 1", None), ("V2", "lemma 2", None), ("V3", "lemma 3", tokens)):
        row: dict[str, Any] = next(row for row in found if row["part"] == part and row["m"] == m)
        value, low, high = (row[key] / row["as_published"] for key in ("measured", "low", "high"))
        made[claim] = [_row("measured / published", value, low, high, row["draws"], "draws")]
    return made


def _correlations(draws: int, inputs_per_variance: int, seed: int, tell: OnProgress, m: int = 16) -> np.ndarray:
    drawn = coordinate_variances(CHI, [m], draws=draws, sequences=inputs_per_variance, seed=seed, on_progress=tell)
    return np.array([np.corrcoef(there_MJ[0], forms["as_published"][0])[0, 1] for there_MJ, forms in drawn])


def _mean(name: str, values: np.ndarray) -> dict[str, object]:
    return _row(name, *mean_with_interval(values), len(values), "draws")


def _exact(name: str, value: float, n: int, unit: str) -> dict[str, object]:
    return _row(name, value, value, value, n, unit, None)


def _row(
    name: str, value: float, low: float, high: float, n: int, unit: str, level: float | None = LEVEL
) -> dict[str, object]:
    return {"name": name, "value": value, "low": low, "high": high, "level": level, "n": n, "unit": unit}
