"""Analyses of attention and hidden states: entropies, distances, divergences between models, probes of position.

Every analysis takes a model (trained, constructed or untrained) and reads or changes it only through its taps.

Legend of shape suffixes, beside those of `lengthwise.model`: R rows (queries of a block), L layers, A and B the heads
of two models that are compared.
"""
