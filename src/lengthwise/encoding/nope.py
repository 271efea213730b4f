"""No positional encoding. Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466."""

from lengthwise.encoding.base import Encoding


class NoPE(Encoding):
    """Nothing is added anywhere: what a causal decoder knows of order, it knows from its mask.

    score(i, j) = q_i · k_j
    """

    paper = "Haviv et al. 2022, arXiv:2203.16634"
    formula = "nope"
