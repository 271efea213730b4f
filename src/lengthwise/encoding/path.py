"""PaTH: reflections that accumulate from token to token. Yang et al. 2025, arXiv:2505.16381."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.encoding.base import Encoding, Geometry, QueriesAndKeys, normal_
from lengthwise.spec import SpecError


class PaTH(Encoding):
    """Score k_jᵀ (Π_{j < s ≤ i} (I − β_s w_s w_sᵀ)) q_i: each token between key and query turns the key once more.

    Token s has a unit vector w_s = W₂ W₁ x_s / |W₂ W₁ x_s| of rank `rank` and a strength β_s = 2 sigmoid(b · x_s + c)
    in (0, 2) in each head. β = 0 is NoPE; two unit vectors at an angle φ with β = 2 rotate by 2φ, so that the product
    can track a state. The authors' code convolves W₂ W₁ x over three tokens and applies SiLU before w is normalised;
    here, as with its option `use_w_shortconv=False`, it does not. Each layer has its own parameters. The positions
    given to the model have no effect. Scores solve a triangular system of all tokens, so time grows with tokens³, and
    each cached step solves it again: a reference up to about 512 tokens. fla has a kernel.
    """

    paper = "Yang et al. 2025, arXiv:2505.16381"
    formula = "path"
    shared = False
    ordinal = True

    def __init__(self, geometry: Geometry, *, rank: int = 32) -> None:
        super().__init__(geometry)
        if rank < 1:
            raise SpecError(f"path needs a rank of at least 1, not {rank}")
        self.rank = rank
        self.down = nn.Parameter(torch.empty(rank, geometry.width))
        self.up = nn.Parameter(torch.empty(geometry.heads * geometry.head_width, rank))
        self.strength = nn.Parameter(torch.empty(geometry.heads, geometry.width))
        self.strength_bias = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        normal_(self.down, self.geometry.bias_std, stream("down"))
        normal_(self.up, self.geometry.bias_std, stream("up"))
        normal_(self.strength, self.geometry.bias_std, stream("strength"))
        with torch.no_grad():
            self.strength_bias.zero_()

    def mark(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        down, up, strength, bias = (
            part.to(x_BTD.dtype) for part in (self.down, self.up, self.strength, self.strength_bias)
        )
        w_BHTE = F.linear(F.linear(x_BTD, down), up).unflatten(-1, (self.geometry.heads, -1)).transpose(1, 2)
        beta_BHT1 = 2 * F.linear(x_BTD, strength, bias).sigmoid().transpose(1, 2)[..., None]
        return torch.cat([F.normalize(w_BHTE, dim=-1), beta_BHT1], -1)

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        assert pair.marks_BHKC is not None
        marks_BHKC = pair.without_padding(pair.marks_BHKC).to(scores_BHQK.dtype)
        w_BHKE, beta_BHK1 = marks_BHKC[..., :-1], marks_BHKC[..., -1:]
        weighted_BHKE = beta_BHK1 * w_BHKE
        # The product of reflections is I − Wᵀ T (β W), with T the inverse of a unit triangular matrix.
        step_BHKK = (weighted_BHKE @ w_BHKE.mT).tril(-1)
        met_BHKK = (weighted_BHKE @ pair.k_BHKE.mT).tril(-1)
        removed_BHKK = torch.linalg.solve_triangular(step_BHKK, met_BHKK, upper=False, unitriangular=True)
        seen_BHQK = (pair.q_BHQE @ w_BHKE.mT).tril(pair.start)
        return scores_BHQK - seen_BHQK @ removed_BHKK
