"""Planted bugs of the further encodings: what ports of them have got wrong, or would."""

from __future__ import annotations

import torch

from lengthwise.encoding.cope import CoPE
from lengthwise.encoding.fire import Fire
from lengthwise.encoding.forgetting import Forgetting
from lengthwise.encoding.hard_alibi import HardAlibi
from lengthwise.encoding.kerple import Kerple
from lengthwise.encoding.shaw import Shaw
from lengthwise.encoding.stick_breaking import StickBreaking
from lengthwise.encoding.transformer_xl import TransformerXL
from lengthwise.encoding.xpos import XPos


class KerpleSwapped(Kerple):
    """r1 and r2 in each other's place."""

    def by_distance(self, distances_N):
        r1, r2 = self.r1.to(distances_N.dtype)[:, None], self.r2.to(distances_N.dtype)[:, None]
        return -r2 * torch.log1p(r1 * distances_N.abs())


class KerpleShort(Kerple):
    """Computed in the precision of its parameters."""

    def by_distance(self, distances_N):
        return super().by_distance(distances_N.to(self.r1.dtype)).to(distances_N.dtype)


class FireClampedAbove(Fire):
    """min in place of max, as in a public port: beyond L everything is squeezed into the wrong range."""

    def bias(self, query_positions_BQ, key_positions_BK):
        real = torch.maximum
        torch.maximum = torch.minimum
        try:
            return super().bias((query_positions_BQ + 1), key_positions_BK + 1)
        finally:
            torch.maximum = real


class FireClaimedRelative(Fire):
    relative = True


class HardAlibiWide(HardAlibi):
    """A window one token too wide."""

    def by_distance(self, distances_N):
        return super().by_distance((distances_N.abs() - 1).clamp(min=0))


class HardAlibiFinite(HardAlibi):
    """−100 for a hidden key, where −inf is meant."""

    def by_distance(self, distances_N):
        return super().by_distance(distances_N).clamp(min=-4.0)


class ShawBackwards(Shaw):
    """key − query for query − key: after the causal mask, always the same half of the table."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        distance = key_positions_BK[:, None, :] - query_positions_BQ[:, :, None]
        return distance.clamp(-self.distance, self.distance).long()[:, None] + self.distance


class ShawFromTheQueries(Shaw):
    """Distances from the index of the query in the call: right in one pass, wrong in every cached step."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        index = torch.arange(query_positions_BQ.shape[1], dtype=query_positions_BQ.dtype)[None]
        return super().prepare(index.expand_as(query_positions_BQ), key_positions_BK, budget_B)


class ShawReadsTwice(Shaw):
    """The value term twice as large."""

    def read(self, weights_BHQK, pair):
        return 2 * super().read(weights_BHQK, pair)


class XLWithoutV(TransformerXL):
    """The fourth term forgotten."""

    def score(self, scores_BHQK, pair):
        kept = self.v.data
        self.v.data = torch.zeros_like(kept)
        try:
            return super().score(scores_BHQK, pair)
        finally:
            self.v.data = kept


class XLUnscaled(TransformerXL):
    """u and v unscaled beside scaled queries."""

    def score(self, scores_BHQK, pair):
        import dataclasses

        return super().score(scores_BHQK, dataclasses.replace(pair, scale=1.0))


class XPosSameWay(XPos):
    """Queries and keys scaled alike: the scores then grow or fade with the position, not with the distance."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        query, _ = super().prepare(query_positions_BQ, key_positions_BK, budget_B)
        key = self._faded(self._tables(key_positions_BK, budget_B), key_positions_BK, 1)
        return query, key


class XPosFromTheMiddle(XPos):
    """Counted from the middle of each call, as in the authors' code: the cache then holds keys of other origins."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        middle = key_positions_BK.shape[1] // 2
        return super().prepare(query_positions_BQ - middle, key_positions_BK - middle, budget_B)


class XPosEndless(XPos):
    """No limit: beyond it keys are infinite."""

    def __init__(self, geometry):
        super().__init__(geometry, base=64.0)
        self.limit = None


class CopeFromTheStart(CoPE):
    """Counted from the first key on, not back from the query: distance is lost."""

    def score(self, scores_BHQK, pair):
        real = torch.Tensor.flip
        torch.Tensor.flip = lambda self, *dims: self
        try:
            return super().score(scores_BHQK, pair)
        finally:
            torch.Tensor.flip = real


class CopeSeesAhead(CoPE):
    """Gates of hidden keys counted too."""

    def score(self, scores_BHQK, pair):
        import dataclasses

        seen = dataclasses.replace(pair)
        vars(seen)["behind_BQK"] = torch.ones_like(pair.allowed_BQK)
        return super().score(scores_BHQK, seen)


class CopeClaimsPositions(CoPE):
    ordinal = False


class FoxWithItself(Forgetting):
    """The gate of the key itself counted too."""

    def score(self, scores_BHQK, pair):
        marks = pair.marks_BHKC.to(scores_BHQK.dtype).mT
        return super().score(scores_BHQK, pair) + marks


class FoxForgetsTheCache(Forgetting):
    """The gates of this call alone: cached keys fade by nothing."""

    def score(self, scores_BHQK, pair):
        import dataclasses

        marks = pair.marks_BHKC.clone()
        marks[:, :, : marks.shape[2] - scores_BHQK.shape[2]] = 0
        return super().score(scores_BHQK, dataclasses.replace(pair, marks_BHKC=marks))


class StickSeesItself(StickBreaking):
    """The query's own key takes the first share."""

    def weigh(self, scores_BHQK, pair):
        taken = torch.where(pair.allowed_BQK[:, None], scores_BHQK.sigmoid(), 0.0)
        left = torch.where(pair.allowed_BQK[:, None], torch.nn.functional.logsigmoid(-scores_BHQK), 0.0)
        return taken * (left.flip(-1).cumsum(-1).flip(-1) - left).exp()


class StickClaimsAll(StickBreaking):
    def __init__(self, geometry):
        super().__init__(geometry)
        self.complete = True


class StickClaimsLess(StickBreaking):
    def __init__(self, geometry):
        super().__init__(geometry, remainder=True)
        self.complete = False


FURTHER = [
    ("kerple with r1 and r2 swapped", KerpleSwapped, {"F01"}),
    ("kerple in its parameters' precision", KerpleShort, {"T13"}),
    ("fire clamped from above", FireClampedAbove, {"F01"}),
    ("fire claimed relative", FireClaimedRelative, {"T07"}),
    ("hard windows one too wide", HardAlibiWide, {"F01"}),
    ("hard windows of −4", HardAlibiFinite, {"F01"}),
    ("shaw's distances backwards", ShawBackwards, {"F01"}),
    ("shaw's distances by the query's index", ShawFromTheQueries, {"T05"}),
    ("shaw's values read twice", ShawReadsTwice, {"F01"}),
    ("transformer-xl without its fourth term", XLWithoutV, {"F01"}),
    ("transformer-xl with unscaled u and v", XLUnscaled, {"F01"}),
    ("xpos scales both the same way", XPosSameWay, {"F01", "T07"}),
    ("xpos counted from the middle of a call", XPosFromTheMiddle, {"C02", "T05"}),
    ("xpos without an end", XPosEndless, {"T09"}),
    ("cope counted from the start", CopeFromTheStart, {"F01"}),
    ("cope counts hidden keys", CopeSeesAhead, {"F01", "T24"}),
    ("cope claims positions", CopeClaimsPositions, {"T08"}),
    ("fox forgets the key's own gate", FoxWithItself, {"F01"}),
    ("fox forgets what is cached", FoxForgetsTheCache, {"T05"}),
    ("stick-breaking sees itself", StickSeesItself, {"F01"}),
    ("stick-breaking claims whole rows", StickClaimsAll, {"T57"}),
    ("stick-breaking claims broken rows", StickClaimsLess, {"T57"}),
]
"""(name, the encoding that has the bug, the checks that must catch it)."""
