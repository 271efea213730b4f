"""Stick-breaking as a normaliser, for any encoding. Tan et al. 2024, arXiv:2410.17980."""

from torch import Tensor

from lengthwise.encoding.base import Geometry
from lengthwise.encoding.stick_breaking import break_stick
from lengthwise.normaliser.base import Normaliser, Visibility


class StickBreaking(Normaliser):
    """β_ij · Π_{j < l < i} (1 − β_il) with β = sigmoid(score): keys take their shares in turn, the nearest first.

    The encoding `stick_breaking` is NoPE with this normaliser; its page says more. Here it is combined with any
    encoding.
    """

    label = "stick-breaking"
    paper = "Tan et al. 2024, arXiv:2410.17980"
    formula = "stick_breaking"
    shift_invariant = False
    ordered = True

    def __init__(self, geometry: Geometry, *, remainder: bool = False) -> None:
        super().__init__(geometry)
        self.remainder = remainder
        self.complete = remainder

    def weigh(self, scores_BHQK: Tensor, visible: Visibility) -> Tensor:
        return break_stick(scores_BHQK, visible.allowed_BQK, visible.start, self.remainder)
