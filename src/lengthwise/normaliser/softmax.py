"""Softmax, the default."""

from lengthwise.normaliser.base import Normaliser


class Softmax(Normaliser):
    """exp(s_j) / Σ_k exp(s_k) over the visible keys."""

    formula = "softmax"
