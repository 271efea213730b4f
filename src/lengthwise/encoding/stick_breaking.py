"""Stick-breaking attention: keys take their shares in turn, the nearest first. Tan et al. 2024, arXiv:2410.17980."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys


class StickBreaking(Encoding):
    """Weigh key j < i by β_ij · Π_{j < l < i} (1 − β_il), with β = sigmoid(score), in place of softmax.

    Going back from query i, each key takes the share β of the remaining weight: with all scores 0, a half, a quarter,
    an eighth. Near keys come first, so the weights depend on order without positions. A query does not see itself.
    Weight that no key takes is lost (a row sums to less than 1, the first to 0), or with `remainder=true` goes to the
    query's own value, as in the authors' language models. The positions given to the model have no effect. Use a causal
    mask.
    """

    label = "Stick-breaking"
    paper = "Tan et al. 2024, arXiv:2410.17980"
    formula = "stick_breaking"
    ordinal = True

    def __init__(self, geometry: Geometry, *, remainder: bool = False) -> None:
        super().__init__(geometry)
        self.remainder = remainder
        self.complete = remainder

    def weigh(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        return break_stick(scores_BHQK, pair.allowed_BQK, pair.start, self.remainder)


def break_stick(scores_BHQK: Tensor, allowed_BQK: Tensor, start: int, remainder: bool) -> Tensor:
    """The weights of queries, of which the first is key `start`; with `remainder`, what is left goes to the query."""
    queries, keys = scores_BHQK.shape[-2:]
    key_K = torch.arange(keys, device=scores_BHQK.device)
    own_QK = key_K[start : start + queries, None] == key_K
    there_BHQK = allowed_BQK[:, None] & (scores_BHQK > -torch.inf)  # a bias may hide keys too
    seen_BHQK = there_BHQK & ~own_QK
    scores_BHQK = scores_BHQK.masked_fill(~seen_BHQK, 0.0)
    left_BHQK = torch.where(seen_BHQK, F.logsigmoid(-scores_BHQK), 0.0)
    # Sum from the right, so that the sums of near keys have few terms and little rounding error.
    until_BHQK = left_BHQK.flip(-1).cumsum(-1).flip(-1)
    taken_BHQK = (F.logsigmoid(scores_BHQK) + until_BHQK - left_BHQK).exp()
    rest = until_BHQK[..., :1].exp() if remainder else 0.0
    return torch.where(seen_BHQK, taken_BHQK, torch.where(there_BHQK & own_QK, rest, 0.0))
