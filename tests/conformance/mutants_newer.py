"""Planted bugs of normalisers, temperatures and the encodings of 2024 to 2026."""

from __future__ import annotations

import torch

from lengthwise.encoding.base import Encoding
from lengthwise.encoding.dape import DAPE
from lengthwise.encoding.inkling import Inkling
from lengthwise.encoding.nape import Nape
from lengthwise.encoding.path import PaTH
from lengthwise.encoding.pope import PoPE
from lengthwise.encoding.selective_rope import SelectiveRope
from lengthwise.encoding.wall import Wall
from lengthwise.model import attention
from lengthwise.model.attention import AttentionContext
from lengthwise.model.temperature import SSMax
from lengthwise.normaliser.base import Normaliser
from lengthwise.normaliser.entmax import Entmax
from lengthwise.normaliser.sink import Sink


class NapeSwapped(Nape):
    """ALiBi in the second half of the heads."""

    def slope_H(self, like_tensor):
        return super().slope_H(like_tensor).flip(0)


class InklingKeys(Inkling):
    """The bias depends on the key's token, not on the query's."""

    def score(self, scores_BHQK, pair):
        moved = torch.zeros_like(pair.marks_BHKC) + pair.marks_BHKC[:, :, :1]
        return super().score(scores_BHQK, type(pair)(**{**vars(pair), "marks_BHKC": moved}))


class InklingClamped(Inkling):
    """Distances beyond the extent get the last bias, where none is meant."""

    def score(self, scores_BHQK, pair):
        changed = type(pair)(**{**vars(pair)})
        object.__setattr__(changed, "distance_BQK", pair.distance_BQK.clamp(max=self.extent - 1))
        return super().score(scores_BHQK, changed)


class WallFromOwn(Wall):
    """The key's own decay counts too."""

    def score(self, scores_BHQK, pair):
        return super().score(scores_BHQK, pair) * pair.marks_BHKC.exp().mean(-1)[:, :, None]


class PathReversed(PaTH):
    """Reflections in the wrong order: from the query's token back."""

    def score(self, scores_BHQK, pair):
        w, beta = pair.marks_BHKC[..., :-1], pair.marks_BHKC[..., -1:]
        kept = torch.zeros_like(scores_BHQK)
        for i in range(scores_BHQK.shape[2]):
            for j in range(scores_BHQK.shape[3]):
                k = pair.k_BHKE[:, :, j]
                for s in range(pair.start + i, j, -1):
                    k = k - beta[:, :, s] * (k * w[:, :, s]).sum(-1, keepdim=True) * w[:, :, s]
                kept[:, :, i, j] = (pair.q_BHQE[:, :, i] * k).sum(-1)
        return kept


class SelectiveAcrossDocuments(SelectiveRope):
    """The convolution reaches into the document before, and into padding."""

    def increments(self, pair):
        return super().increments(type(pair)(**{**vars(pair), "documents_BK": None}))


class BudgetUnsaid(Encoding):
    """Scores grow with the number of tokens that a sequence may get, and `uses_budget` is not set."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return 1 + budget_B[:, None, None, None] / 16

    def rotate(self, q_BHQE, k_BHKE, state):
        return q_BHQE * state.to(q_BHQE), k_BHKE


class PopeSigned(PoPE):
    """Lengths that may be negative: softplus left out."""

    def rotate(self, q_BHQE, k_BHKE, state):
        return super().rotate(q_BHQE.exp().clamp(max=20), k_BHKE, state)


class DapeWithoutBias(DAPE):
    """The network is added, the bias is not."""

    def score(self, scores_BHQK, pair):
        bias = self.inner_encoding.bias(pair.query_positions_BQ, pair.key_positions_BK)
        return super().score(scores_BHQK, pair) - bias


class SinkClaimedInvariant(Sink):
    shift_invariant = True


class SinkClaimedComplete(Sink):
    complete = True


class EntmaxUnmasked(Entmax):
    """A hidden key is −10, not −inf."""

    def weigh(self, scores_BHQK, visible):
        return super().weigh(scores_BHQK.clamp(min=-2.0), visible)


class SoftmaxOfNothing(Normaliser):
    """A query without keys gets equal weights."""

    formula = "softmax"

    def weigh(self, scores_BHQK, visible):
        return scores_BHQK.clamp(min=-1e5).softmax(-1)


class SSMaxOfSlots(SSMax):
    """n counts slots of the row, padding and other documents among them."""

    def factor(self, n_BQ, x_BQD):
        slots = torch.arange(1, n_BQ.shape[1] + 1, dtype=n_BQ.dtype)[None]
        return super().factor(slots if n_BQ.shape[1] > 1 else n_BQ, x_BQD)


def sink_dropped_by_the_fast_path(patch):
    real = attention.fused_attention
    patch.setattr(attention, "fused_attention", lambda q, k, v, context, sink_H=None: real(q, k, v, context))


def n_is_the_position(patch):
    patch.setattr(AttentionContext, "counts_BQ", property(lambda self: self.query_positions_BQ + 1))


def temperature_left_off_the_bias(patch):
    real = attention.dense

    def dense(q, k, v, context, *, factor=None, **rest):
        return real(q if factor is None else q * factor, k, v, context, **rest)

    patch.setattr(attention, "dense", dense)


def beam_one_token_late(patch):
    from lengthwise.model.temperature import Beam

    real = Beam.factor
    patch.setattr(Beam, "factor", lambda self, n_BQ, x_BQD: real(self, n_BQ - 1, x_BQD))


HERE = "tests.conformance.mutants_newer"
ENCODINGS: list[tuple[str, type[Encoding], set[str]]] = [
    ("NAPE in the other half of the heads", NapeSwapped, {"F01"}),
    ("Inkling's bias by another token", InklingKeys, {"F01"}),
    ("Inkling's bias beyond its extent", InklingClamped, {"F01"}),
    ("Wall with the key's own decay", WallFromOwn, {"F01"}),
    ("PaTH's reflections backwards", PathReversed, {"F01"}),
    ("a convolution across documents", SelectiveAcrossDocuments, {"T11"}),
    ("a budget that is read and not declared", BudgetUnsaid, {"T11"}),
    ("PoPE without softplus", PopeSigned, {"F01"}),
    ("DAPE without its bias", DapeWithoutBias, {"F01"}),
]
ATTENTION: list[dict] = [
    {"name": "a sink that the fast path drops", "encoding": "nope", "caught_by": {"T19", "T57"},
     "patch": sink_dropped_by_the_fast_path, "normaliser": "sink"},
    {"name": "a sink that claims invariance", "encoding": "alibi", "caught_by": {"N01", "T19"},
     "normaliser": f"{HERE}:SinkClaimedInvariant"},
    {"name": "a sink that claims complete rows", "encoding": "nope", "caught_by": {"T57"},
     "normaliser": f"{HERE}:SinkClaimedComplete"},
    {"name": "entmax that sees hidden keys", "encoding": "nope", "caught_by": {"N02", "T24"},
     "normaliser": f"{HERE}:EntmaxUnmasked"},
    {"name": "weights without keys", "encoding": "nope", "caught_by": {"N02"},
     "normaliser": f"{HERE}:SoftmaxOfNothing"},
    {"name": "a temperature that counts padding", "encoding": "nope", "caught_by": {"T01", "T11"},
     "temperature": f"{HERE}:SSMaxOfSlots"},
    {"name": "a temperature that counts positions", "encoding": "nope", "caught_by": {"T07"},
     "patch": n_is_the_position, "temperature": "ssmax"},
    {"name": "a temperature that leaves out the bias", "encoding": "inkling", "caught_by": {"T19"},
     "patch": temperature_left_off_the_bias, "temperature": "inkling:floor=4"},
    {"name": "a temperature one token late", "encoding": "nope", "caught_by": {"N03"},
     "patch": beam_one_token_late, "temperature": "beam:floor=3"},
]  # fmt: skip
