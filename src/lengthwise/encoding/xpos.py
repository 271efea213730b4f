"""Rotary positions with exponential decay. Sun et al. 2022, arXiv:2212.10554."""

import math

import torch
from torch import Tensor

from lengthwise.device import widest_float, without_waiting
from lengthwise.encoding.base import Geometry
from lengthwise.encoding.rope import Rope
from lengthwise.spec import SpecError


class XPos(Rope):
    """Turn pair f of queries and keys as RoPE does, and scale it by ζ_f^(t / base) in queries, ζ_f^(−t / base) in keys.

    ζ_f = (2f / width + gamma) / (1 + gamma) is below 1, so a score decays by ζ_f^((i − j) / base): with gamma = 0.4 and
    base = 512, the fastest pair decays to 0.2857 at distance 512, the slowest hardly at all. Keys need the inverse
    scale of queries, from a fixed origin: the authors' code counts from the middle of each call, which gives the same
    scores in one pass but other keys in a cache. Counted from 0, a key's scale would leave the range of fp32 past
    `limit`, so such positions are an error.
    """

    label = "xPos"
    paper = "Sun et al. 2022, arXiv:2212.10554"
    formula = "xpos"

    def __init__(
        self,
        geometry: Geometry,
        *,
        theta: float = 10_000.0,
        gamma: float = 0.4,
        base: float = 512.0,
        interleaved: bool = True,
    ) -> None:
        super().__init__(geometry, theta=theta, interleaved=interleaved)
        if not (0 < gamma < math.inf and 0 < base < math.inf):
            raise SpecError(f"xpos needs gamma and base above 0, not {gamma=}, {base=}")
        self.gamma, self.base = gamma, base
        fade = math.log((1 + gamma) / gamma)
        # e^80 squared still fits fp32 where it meets the query's e^−80.
        last = 80 * base / fade if fade else math.inf
        if last == math.inf:
            raise SpecError(
                f"xpos never fades with {gamma=}, {base=}; write smaller ones, or rope, which does not fade"
            )
        if last < 2:
            raise SpecError(f"xpos fades with {gamma=}, {base=} before there is a second position; write a larger base")
        self.limit = int(last)

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        query = self._tables(query_positions_BQ, budget_B)
        key = self._tables(key_positions_BK, budget_B)
        return self._faded(query, query_positions_BQ, 1), self._faded(key, key_positions_BK, -1)

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        if q_BHQE.dtype == torch.float16:
            raise SpecError("xpos scales keys by up to e^80, which fp16 cannot hold; use bf16 or fp32")
        return super().rotate(q_BHQE, k_BHKE, state)

    def _faded(self, tables: tuple[Tensor, Tensor], positions_BT: Tensor, sign: int) -> tuple[Tensor, Tensor]:
        pairs = self.geometry.head_width // 2
        zetas = [(f / pairs + self.gamma) / (1 + self.gamma) for f in range(pairs)]
        device, dtype = positions_BT.device, positions_BT.dtype
        log_zeta_F = torch.tensor([math.log(zeta) for zeta in zetas], dtype=dtype).double()
        rate_F = without_waiting((sign * log_zeta_F / self.base).to(widest_float(device)), device)
        scale_BTF = (positions_BT.to(rate_F.dtype)[..., None] * rate_F).exp().to(dtype)
        scale_B1TE = self._join(scale_BTF, scale_BTF)[:, None]
        return tables[0] * scale_B1TE, tables[1] * scale_B1TE
