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
    OnProgress,
    Row,
    coordinate_variances,
    lemma1_variance,
    lemma2_variance,
    lemma3_variance,
    mean_with_interval,
    power_law_exponent,
    second_moments_at_init,
    slope,
)

CHI = Initialisation(768, 12, 0.02)
"""The setting of Chi et al. 2023."""
SWEPT = Initialisation(256, 4, 0.05)
"""The setting of the sweeps over heads, σ and far positions: its floor is reached early, and a draw is cheap."""
HEADS = (1, 2, 4, 8, 16)
SIGMAS = (0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.095, 0.11)


def powers_of_two_up_to(tokens: int) -> list[int]:
    """Return positions 1, 2, 4, ... up to `tokens`, and `tokens`: `powers_of_two_up_to(12)` is [1, 2, 4, 8, 12]."""
    if tokens < 2:
        raise SpecError(f"a decay needs at least two positions, not {tokens}")
    return sorted({2**i for i in range(int(log(tokens, 2)) + 1) if 2**i <= tokens} | {tokens})


def lemma_row(
    quantity: str,
    initialisation: Initialisation,
    values: np.ndarray,
    predictions: Mapping[str, float],
    *,
    m: int | None = None,
    mask: str = "causal",
) -> Row:
    """Return a row with a measured value, its 99 % band over draws, and its predictions."""
    mean, low, high = mean_with_interval(values)
    return {
        "part": quantity,
        "width": initialisation.width,
        "heads": initialisation.heads,
        "sigma": initialisation.sigma,
        "weights": initialisation.weights,
        "spread": initialisation.logit_variance,
        "mask": mask,
        "m": m,
        "draws": len(values),
        "measured": mean,
        "low": low,
        "high": high,
        "as_published": predictions.get("as_published"),
        "corrected": predictions.get("corrected"),
        "exact": predictions.get("exact"),
    }


def variance_decay_rows(
    initialisation: Initialisation,
    tokens: int,
    *,
    mask: Mask = "causal",
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Lemmas 1 to 3 at positions 1, 2, 4, ..., `tokens`, and the exponent of the decay."""
    positions = powers_of_two_up_to(tokens)
    found = second_moments_at_init(
        initialisation, positions, draws=draws, sequences=2, mask=mask, seed=seed, on_progress=on_progress
    )
    rows = []
    if mask == "causal":
        dot = {form: lemma2_variance(initialisation, form) for form in ("as_published", "corrected")}
        share = initialisation.heads / initialisation.width
        rows = [
            lemma_row(
                "lemma 1",
                initialisation,
                found["qkv"],
                {"as_published": lemma1_variance(initialisation), "corrected": lemma1_variance(initialisation)},
            ),
            lemma_row("lemma 2", initialisation, found["logits"], dot),
            lemma_row(
                "lemma 2, scaled", initialisation, found["logits"] * share, {form: dot[form] * share for form in dot}
            ),
        ]
    for place, m in enumerate(positions):
        rows.append(
            lemma_row(
                "lemma 3",
                initialisation,
                found["output"][:, place],
                _third(initialisation, m, mask, tokens),
                m=m,
                mask=mask,
            )
        )
    slopes = np.array([power_law_exponent(positions, variances) for variances in found["output"]])
    lines = {
        form: power_law_exponent(positions, [_third(initialisation, m, mask, tokens)[form] for m in positions])
        for form in ("as_published", "corrected", "exact")
    }
    return [*rows, lemma_row("exponent", initialisation, slopes, lines, mask=mask)]


def _third(start: Initialisation, m: int, mask: str, tokens: int) -> dict[str, float]:
    seen = m if mask == "causal" else tokens
    return {form: lemma3_variance(start, seen, form) for form in ("as_published", "corrected", "exact")}


def large_position_rows(
    initialisation: Initialisation,
    tokens: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Return rows of lemma 3 alone, at large m, where the floor is visible."""
    positions = powers_of_two_up_to(tokens)
    found = second_moments_at_init(initialisation, positions, draws=draws, seed=seed, on_progress=on_progress)["output"]
    return [
        lemma_row("floor", initialisation, found[:, place], _third(initialisation, m, "causal", tokens), m=m)
        for place, m in enumerate(positions)
    ]


def head_sweep(
    initialisation: Initialisation,
    head_counts: Sequence[int] = HEADS,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Return rows of lemma 2, scaled, by number of heads: d²σ⁴/H as published, d²σ⁴ for every H by the correction."""
    rows = []
    for many in head_counts:
        here = replace(initialisation, heads=many)
        found = (
            second_moments_at_init(here, [64], draws=draws, sequences=2, seed=seed, on_progress=on_progress)["logits"]
            * many
            / here.width
        )
        rows.append(
            lemma_row(
                "heads", here, found, {"as_published": here.logit_variance / many, "corrected": here.logit_variance}
            )
        )
    return rows


def sigma_sweep(
    initialisation: Initialisation,
    sigmas: Sequence[float] = SIGMAS,
    position: int = 512,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Show where Property 1 fails: lemma 3 at one m for growing σ, with the attention's entropy divided by ln m."""
    rows = []
    for sigma in sigmas:
        here = replace(initialisation, sigma=sigma)
        found = second_moments_at_init(here, [position], draws=draws, sequences=2, seed=seed, on_progress=on_progress)
        measured = lemma_row(
            "property 1", here, found["output"][:, 0], _third(here, position, "causal", position), m=position
        )
        rows.append({**measured, "entropy": float(found["entropy"].mean())})
    return rows


def coordinate_rows(
    initialisation: Initialisation,
    positions: Sequence[int],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Return rows of lemma 4: the slope of measured on predicted differences between coordinates (1 is right)."""
    drawn = list(coordinate_variances(initialisation, positions, draws=draws, seed=seed, on_progress=on_progress))
    rows = []
    for place, m in enumerate(positions):
        for form in ("as_published", "corrected"):
            slopes = np.array([slope(measured_MJ[place], forms[form][place]) for measured_MJ, forms in drawn])
            rows.append({**lemma_row("lemma 4", initialisation, slopes, {form: 1.0}, m=m), "form": form})
    return rows


def lemma_rows(
    initialisation: Initialisation = CHI,
    tokens: int = 512,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Return all rows of `lengthwise theory variance`: the given setting, then sweeps of heads, floor and σ."""
    rows = variance_decay_rows(initialisation, tokens, draws=draws, seed=seed, on_progress=on_progress)
    rows += variance_decay_rows(
        initialisation, tokens, mask="bidirectional", draws=draws, seed=seed, on_progress=on_progress
    )
    rows += coordinate_rows(
        initialisation, [m for m in (1, 4, 16, 64) if m <= tokens], draws=draws, seed=seed, on_progress=on_progress
    )
    rows += head_sweep(SWEPT, draws=draws, seed=seed, on_progress=on_progress)
    rows += large_position_rows(SWEPT, 4096, draws=draws, seed=seed, on_progress=on_progress)
    return rows + sigma_sweep(SWEPT, draws=draws, seed=seed, on_progress=on_progress)
