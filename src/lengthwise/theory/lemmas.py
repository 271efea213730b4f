"""Chi et al.'s lemmas as rows: the measured value with a band, the published, the corrected and the exact law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.theory.variance import (
    DRAWS,
    Initialisation,
    Mask,
    Row,
    Tell,
    band,
    coordinate_variances,
    exponent,
    lemma1,
    lemma2,
    lemma3,
    second_moments_at_init,
    slope,
)

CHI = Initialisation(768, 12, 0.02)
"""The setting of Chi et al. 2023."""
SWEPT = Initialisation(256, 4, 0.05)
"""The setting of the sweeps over heads, σ and far positions: its floor is reached early, and a draw is cheap."""
HEADS = (1, 2, 4, 8, 16)
SIGMAS = (0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.095, 0.11)


def powers(tokens: int) -> list[int]:
    """Return positions 1, 2, 4, ... up to `tokens`, and `tokens`: `powers(12)` is [1, 2, 4, 8, 12]."""
    if tokens < 2:
        raise SpecError(f"a decay needs at least two positions, not {tokens}")
    return sorted({2**i for i in range(int(log(tokens, 2)) + 1) if 2**i <= tokens} | {tokens})


def row(
    part: str,
    start: Initialisation,
    values: np.ndarray,
    predicted: Mapping[str, float],
    *,
    m: int | None = None,
    mask: str = "causal",
) -> Row:
    """Return a row with a measured value, its 99 % band over draws, and its predictions."""
    mean, low, high = band(values)
    return {
        "part": part,
        "width": start.width,
        "heads": start.heads,
        "sigma": start.sigma,
        "weights": start.weights,
        "spread": start.logit_variance,
        "mask": mask,
        "m": m,
        "draws": len(values),
        "measured": mean,
        "low": low,
        "high": high,
        "as_published": predicted.get("as_published"),
        "corrected": predicted.get("corrected"),
        "exact": predicted.get("exact"),
    }


def variance_decay_rows(
    start: Initialisation,
    tokens: int,
    *,
    mask: Mask = "causal",
    count: int = DRAWS,
    seed: int = 0,
    tell: Tell | None = None,
) -> list[Row]:
    """Lemmas 1 to 3 at positions 1, 2, 4, ..., `tokens`, and the exponent of the decay."""
    positions = powers(tokens)
    found = second_moments_at_init(start, positions, count=count, sequences=2, mask=mask, seed=seed, tell=tell)
    rows = []
    if mask == "causal":
        dot = {form: lemma2(start, form) for form in ("as_published", "corrected")}
        share = start.heads / start.width
        rows = [
            row("lemma 1", start, found["qkv"], {"as_published": lemma1(start), "corrected": lemma1(start)}),
            row("lemma 2", start, found["logits"], dot),
            row("lemma 2, scaled", start, found["logits"] * share, {form: dot[form] * share for form in dot}),
        ]
    for place, m in enumerate(positions):
        rows.append(row("lemma 3", start, found["output"][:, place], _third(start, m, mask, tokens), m=m, mask=mask))
    slopes = np.array([exponent(positions, variances) for variances in found["output"]])
    lines = {
        form: exponent(positions, [_third(start, m, mask, tokens)[form] for m in positions])
        for form in ("as_published", "corrected", "exact")
    }
    return [*rows, row("exponent", start, slopes, lines, mask=mask)]


def _third(start: Initialisation, m: int, mask: str, tokens: int) -> dict[str, float]:
    seen = m if mask == "causal" else tokens
    return {form: lemma3(start, seen, form) for form in ("as_published", "corrected", "exact")}


def large_position_rows(
    start: Initialisation, tokens: int, *, count: int = DRAWS, seed: int = 0, tell: Tell | None = None
) -> list[Row]:
    """Return rows of lemma 3 alone, at large m, where the floor is visible."""
    positions = powers(tokens)
    found = second_moments_at_init(start, positions, count=count, seed=seed, tell=tell)["output"]
    return [
        row("floor", start, found[:, place], _third(start, m, "causal", tokens), m=m)
        for place, m in enumerate(positions)
    ]


def head_sweep(
    start: Initialisation, heads: Sequence[int] = HEADS, *, count: int = DRAWS, seed: int = 0, tell: Tell | None = None
) -> list[Row]:
    """Return rows of lemma 2, scaled, by number of heads: d²σ⁴/H as published, d²σ⁴ for every H by the correction."""
    rows = []
    for many in heads:
        here = replace(start, heads=many)
        found = (
            second_moments_at_init(here, [64], count=count, sequences=2, seed=seed, tell=tell)["logits"]
            * many
            / here.width
        )
        rows.append(
            row("heads", here, found, {"as_published": here.logit_variance / many, "corrected": here.logit_variance})
        )
    return rows


def sigma_sweep(
    start: Initialisation,
    sigmas: Sequence[float] = SIGMAS,
    m: int = 512,
    *,
    count: int = DRAWS,
    seed: int = 0,
    tell: Tell | None = None,
) -> list[Row]:
    """Show where Property 1 fails: lemma 3 at one m for growing σ, with the attention's entropy divided by ln m."""
    rows = []
    for sigma in sigmas:
        here = replace(start, sigma=sigma)
        found = second_moments_at_init(here, [m], count=count, sequences=2, seed=seed, tell=tell)
        measured = row("property 1", here, found["output"][:, 0], _third(here, m, "causal", m), m=m)
        rows.append({**measured, "entropy": float(found["entropy"].mean())})
    return rows


def coordinate_rows(
    start: Initialisation, positions: Sequence[int], *, count: int = DRAWS, seed: int = 0, tell: Tell | None = None
) -> list[Row]:
    """Return rows of lemma 4: the slope of measured on predicted differences between coordinates (1 is right)."""
    drawn = list(coordinate_variances(start, positions, count=count, seed=seed, tell=tell))
    rows = []
    for place, m in enumerate(positions):
        for form in ("as_published", "corrected"):
            slopes = np.array([slope(measured_MJ[place], forms[form][place]) for measured_MJ, forms in drawn])
            rows.append({**row("lemma 4", start, slopes, {form: 1.0}, m=m), "form": form})
    return rows


def lemma_rows(
    start: Initialisation = CHI, tokens: int = 512, *, count: int = DRAWS, seed: int = 0, tell: Tell | None = None
) -> list[Row]:
    """Return all rows of `lengthwise theory variance`: the given setting, then sweeps of heads, floor and σ."""
    rows = variance_decay_rows(start, tokens, count=count, seed=seed, tell=tell)
    rows += variance_decay_rows(start, tokens, mask="bidirectional", count=count, seed=seed, tell=tell)
    rows += coordinate_rows(start, [m for m in (1, 4, 16, 64) if m <= tokens], count=count, seed=seed, tell=tell)
    rows += head_sweep(SWEPT, count=count, seed=seed, tell=tell)
    rows += large_position_rows(SWEPT, 4096, count=count, seed=seed, tell=tell)
    return rows + sigma_sweep(SWEPT, count=count, seed=seed, tell=tell)
