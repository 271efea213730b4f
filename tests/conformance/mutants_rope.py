"""Planted bugs of RoPE's variants, each of a kind that was found in the wild."""

from __future__ import annotations

import torch

from lengthwise.encoding.local import Local
from lengthwise.encoding.rope import Rope


class SpacedAsPartial(Rope):
    """p-RoPE whose turning pairs reach from fast to slow, as in partial rotary."""

    def __init__(self, geometry, *, p: float = 0.75):
        super().__init__(geometry, p=p)

    def frequencies(self, like, budget_B):
        frequency, magnitude = super().frequencies(like, budget_B)
        spaced = self.theta ** -(torch.arange(self.turning, dtype=frequency.dtype) / self.turning)
        return torch.cat([spaced, frequency[self.turning :]]), magnitude


class StillAtTheStart(Rope):
    """p-RoPE that stops the fastest pairs."""

    def __init__(self, geometry, *, p: float = 0.75):
        super().__init__(geometry, p=p)

    def frequencies(self, like, budget_B):
        frequency, magnitude = super().frequencies(like, budget_B)
        return frequency.roll(len(frequency) - self.turning), magnitude


class StillAtTheEndOfTheHead(Rope):
    """p-RoPE whose still coordinates lie at the end of the head, not of each half."""

    def __init__(self, geometry, *, p: float = 0.75):
        super().__init__(geometry, p=p)

    def rotate(self, q_BHQE, k_BHKE, state):
        half, still = self.turned // 2, self.turned // 2 - self.turning
        first = list(range(self.turning)) + list(range(half, half + self.turning))
        rest = [c for c in range(self.turned) if c not in first]
        assert len(rest) == 2 * still
        order = torch.tensor([(first + rest).index(c) for c in range(self.turned)])
        back = order.argsort()
        turned = super().rotate(q_BHQE[..., order].contiguous(), k_BHKE[..., order].contiguous(), state)
        return turned[0][..., back], turned[1][..., back]


class DynamicAsConstant(Rope):
    """Dynamic NTK that ignores the length (vllm#41236)."""

    def __init__(self, geometry, *, trained: int = 16):
        super().__init__(geometry, scaling="dynamic", factor=2.0, trained=trained)

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return super().prepare(query_positions_BQ, key_positions_BK, torch.full_like(budget_B, 2 * self.trained))


class MagnitudeTwice(Rope):
    """YaRN's factor on cos and sin and once more (sglang#33558)."""

    def __init__(self, geometry, *, factor: float = 4.0, trained: int = 16):
        super().__init__(geometry, scaling="yarn", factor=factor, trained=trained)

    def frequencies(self, like, budget_B):
        frequency, magnitude = super().frequencies(like, budget_B)
        return frequency, magnitude * magnitude


class LostScaling(Rope):
    """A scaling that is asked for and lost (unsloth#7028)."""

    def __init__(self, geometry, *, scaling: str = "linear", factor: float = 4.0):
        super().__init__(geometry)


class LengthOfTheCall(Rope):
    """Dynamic NTK by the largest position of the call, under the claims of one by the budget."""

    def __init__(self, geometry, *, trained: int = 16):
        super().__init__(geometry, scaling="dynamic", trained=trained)

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        seen_B = key_positions_BK.amax(-1) + 1
        return super().prepare(query_positions_BQ, key_positions_BK, seen_B)


class LongestOfTheBatch(Rope):
    """Dynamic NTK by the largest budget of the batch, as in transformers: a row depends on its neighbours."""

    def __init__(self, geometry, *, trained: int = 16):
        super().__init__(geometry, scaling="dynamic", trained=trained)

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return super().prepare(query_positions_BQ, key_positions_BK, budget_B.amax(0, keepdim=True))


class WindowOffByOne(Local):
    """A window that holds one position more than it says."""

    def by_distance(self, distances_N):
        return super().by_distance(distances_N.abs() - 1)
