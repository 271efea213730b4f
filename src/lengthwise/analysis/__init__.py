"""Weights → what attention does: distributions, distances, divergences between models, and probes of position.

Everything here is a function of a model, trained, constructed or untrained, read and changed only through its taps.

Legend of shape suffixes, beside those of `lengthwise.model`: R rows (queries of a block), L layers, A and B the heads
of two models that are compared.
"""
