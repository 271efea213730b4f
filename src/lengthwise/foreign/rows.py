"""Rows of what was measured: `measure, length, value, low, high, examples`, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

from torch import Tensor

Row = dict[str, Any]


def mean_row(measure: str, length: int, values: Sequence[float]) -> Row:
    """Return the mean of some examples with a t interval; None in place of the interval of one example."""
    from scipy.special import stdtrit

    value, low, high = fmean(values), None, None
    if len(values) > 1 and isfinite(value):
        half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))
        low, high = value - half, value + half
    return {"measure": measure, "length": length, "value": value, "low": low, "high": high, "examples": len(values)}


def share_row(measure: str, length: int, right_SN: Tensor) -> Row:
    """Return the share of right answers in sequences (S) with several questions each (N), with an exact interval.

    Answers of one sequence tend to be right together. Where they do more than chance would have it, the interval is
    that of as many fewer independent questions (Clopper and Pearson 1934, with the design effect of Kish 1965).
    """
    from scipy.special import betaincinv

    sequences, questions = right_SN.shape
    value, effect = float(right_SN.double().mean()), 1.0
    if sequences > 1 and 0 < value < 1:
        by_chance = value * (1 - value) / questions
        effect = max(1.0, float(right_SN.double().mean(1).var()) / by_chance)
    alone = right_SN.numel() / min(effect, questions)
    right, wrong = value * alone, (1 - value) * alone
    low = float(betaincinv(right, wrong + 1, 0.025)) if right else 0.0
    high = float(betaincinv(right + 1, wrong, 0.975)) if wrong else 1.0
    row = {"measure": measure, "length": length, "value": value, "low": low, "high": high}
    return {**row, "examples": right_SN.numel()}


def exponential(row: Row) -> Row:
    """Return the row with e to the power of its value and interval, as for a perplexity."""
    changed = {name: None if row[name] is None else _exp(row[name]) for name in ("value", "low", "high")}
    return {**row, **changed}


def _exp(value: float) -> float:
    return exp(value) if value < 700 else inf
