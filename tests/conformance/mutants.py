"""Planted bugs, each of a kind that was found in the wild, and the checks that must catch them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from lengthwise.encoding import POSITIONS, rope
from lengthwise.encoding.alibi import Alibi
from lengthwise.encoding.base import Encoding, normal_
from lengthwise.encoding.learned import Learned
from lengthwise.encoding.nope import NoPE
from lengthwise.encoding.positions import Randomized
from lengthwise.encoding.rope import Rope
from lengthwise.encoding.sinusoidal import Sinusoidal
from lengthwise.encoding.t5 import T5
from lengthwise.model import attention, decoder, layout
from lengthwise.model.attention import AttentionContext, AttentionMask
from lengthwise.model.decoder import Decoder
from tests.conformance import mutants_newer, mutants_rope
from tests.conformance.mutants_further import FURTHER

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A bug: an encoding that has it, or a patch that puts it into the attention."""

    name: str
    encoding: type[Encoding] | str
    caught_by: set[str]
    patch: Patch | None = None
    positions: str = "consecutive"
    normaliser: str = "softmax"
    temperature: str = "constant"
    notes: str = field(default="", compare=False)


# --- encodings -------------------------------------------------------------------------------------------------------


class ZeroedFrequencies(Rope):
    def _tables(self, positions_BT, budget_B):
        return super()._tables(positions_BT * 0, budget_B)


class ShortAngles(Rope):
    def _tables(self, positions_BT, budget_B):
        return super()._tables(positions_BT.bfloat16().to(positions_BT.dtype), budget_B)


class OtherLayout(Rope):
    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        self.interleaved = True
        return super().prepare(query_positions_BQ, key_positions_BK, budget_B)

    def rotate(self, q_BHQE, k_BHKE, state):
        turned = super().rotate(q_BHQE, k_BHKE, state)
        self.interleaved = False
        return turned


class OverwrittenFraction(Rope):
    """As in the original study: the option is read and then overwritten."""

    def __init__(self, geometry, *, theta: float = 10_000.0, fraction: float = 1.0, interleaved: bool = False):
        super().__init__(geometry, theta=theta, fraction=0.25, interleaved=interleaved)


class TurnedFromTheEnd(Rope):
    """Turns keys relative to the last one, which the next token changes."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        last = key_positions_BK[:, -1:]
        return super().prepare(query_positions_BQ - last, key_positions_BK - last, budget_B)


class WronglyAbsolute(Rope):
    relative = False


class NeedlesslyUnstatic(Rope):
    static_keys = False


class SlopesFromZero(Alibi):
    def slope_H(self, like):
        return super().slope_H(like) * 2 ** (8 / self.geometry.heads)


class SlopesOfTheText(Alibi):
    """The formula of the paper's text where the authors' rule is claimed: differs where heads are no power of 2."""

    def slope_H(self, like):
        heads = torch.arange(1, self.geometry.heads + 1, dtype=like.dtype)
        return 2.0 ** (-8 * heads / self.geometry.heads)


class BiasFromQueryCount(Alibi):
    """Distances from the number of queries: right in a full pass, zero in every cached step."""

    columns = Encoding.columns
    by_distance = Encoding.by_distance

    def bias(self, query_positions_BQ, key_positions_BK):
        index = torch.arange(query_positions_BQ.shape[1], dtype=query_positions_BQ.dtype)
        short = (index[:, None] - index[None, :]).abs()
        padded = torch.zeros(len(index), key_positions_BK.shape[1], dtype=short.dtype)
        padded[:, : len(index)] = short
        return -(self.slope_H(short)[:, None, None] * padded)[None]


class ShortBias(Alibi):
    def by_distance(self, distances_N):
        return super().by_distance(distances_N.bfloat16()).to(distances_N.dtype)


class BiasInTheModelsPrecision(Encoding):
    """Learned slopes whose products take the parameters' dtype: fine in fp32, gone after `.to(bfloat16)`."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self.slope = torch.nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream):
        normal_(self.slope, 1.0, stream("slope"))

    def by_distance(self, distances_N):
        return self.slope[:, None] * distances_N.to(self.slope.dtype)


class ColumnsOfOtherSlopes(Alibi):
    def columns(self, positions_BT):
        query, key = super().columns(positions_BT)
        return query, key * 1.1


class SlopesInABuffer(Alibi):
    def __init__(self, geometry):
        super().__init__(geometry, slopes="authors")
        self.register_buffer("kept", Alibi.slope_H(self, torch.zeros(1)), persistent=False)

    def slope_H(self, like):
        return self.kept.to(like.dtype)


class LongestSeen(Alibi):
    """Scales by the longest sequence seen so far, as dynamic tables did."""

    longest = 1.0

    def by_distance(self, distances_N):
        self.longest = max(self.longest, float(distances_N.max()))
        return super().by_distance(distances_N) / self.longest


class ScaledByKeys(Alibi):
    """Divides by the number of keys in the call: every appended or padded token changes all."""

    def bias(self, query_positions_BQ, key_positions_BK):
        return Alibi.bias(self, query_positions_BQ, key_positions_BK) / key_positions_BK.shape[1]


class FirstRowForAll(Sinusoidal):
    def embed(self, x_BTD, positions_BT):
        return super().embed(x_BTD, positions_BT[:1])


class ClampedTable(Learned):
    """Claims no end and repeats the last row."""

    def __init__(self, geometry, *, rows: int = 2048):
        super().__init__(geometry, limit=rows)
        self.rows = rows
        self.limit = None

    def embed(self, x_BTD, positions_BT):
        return super().embed(x_BTD, positions_BT.clamp(max=self.rows - 1))


class ClampedInSilence(Learned):
    """Claims its end but repeats the last row past it."""

    def embed(self, x_BTD, positions_BT):
        return super().embed(x_BTD, positions_BT.clamp(max=self.limit - 1))


class GlobalDraws(Learned):
    def initialize(self, stream):
        torch.nn.init.normal_(self.table)


class OwnGenerator(Learned):
    """The same table for every seed, drawn from a generator of its own."""

    def initialize(self, stream):
        normal_(self.table, 1.0, torch.Generator().manual_seed(0))


class NumpyDraws(Learned):
    def initialize(self, stream):
        np.random.seed(0)
        with torch.no_grad():
            self.table.copy_(torch.from_numpy(np.random.standard_normal(self.table.shape)))


class RunawayPower(Encoding):
    """Finite at its start; after some updates the exponent is below 0, and 0 ** p infinite."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self.p_H = torch.nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream):
        torch.nn.init.constant_(self.p_H, 0.02)

    def by_distance(self, distances_N):
        return -(distances_N.abs()[None] ** self.p_H.to(distances_N.dtype)[:, None])


class DetachedBias(T5):
    def by_distance(self, distances_N):
        return super().by_distance(distances_N).detach()


class HalfTheTable(T5):
    """Bidirectional buckets in a causal model: half of the table is never used."""

    def bucket(self, distances_N):
        self.bidirectional = True
        try:
            return super().bucket(distances_N)
        finally:
            self.bidirectional = False


class HalfGradient(T5):
    """The gradient of half of the table is lost."""

    def by_distance(self, distances_N):
        half = self.buckets // 2
        table = torch.cat([self.table[:half], self.table[half:].detach()])
        return table.to(distances_N.dtype).T[:, self.bucket(distances_N)] * 1.0


class DetachedKeys(Rope):
    def rotate(self, q_BHQE, k_BHKE, state):
        q, k = super().rotate(q_BHQE, k_BHKE, state)
        return q, k.detach()


class FirstRowWhenDecoding(Rope):
    """All rows of a decoding step get the positions of the first."""

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        if query_positions_BQ.shape[1] == 1:
            query_positions_BQ = query_positions_BQ[:1]
            key_positions_BK = key_positions_BK[:1]
        return super().prepare(query_positions_BQ, key_positions_BK, budget_B)


class BudgetOfTheBatch(Alibi):
    """Reads the largest budget of the batch, so that a row depends on its neighbours."""

    columns = Encoding.columns
    by_distance = Encoding.by_distance

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return float(budget_B.max())

    def score(self, scores_BHQK, pair):
        return scores_BHQK - pair.distance_BQK.abs()[:, None] / pair.state


BudgetOfTheBatch.bias = Encoding.bias


class WrappedTable(Learned):
    """Claims no end and begins again."""

    def __init__(self, geometry):
        super().__init__(geometry, limit=512)
        self.rows, self.limit = 512, None

    def embed(self, x_BTD, positions_BT):
        return super().embed(x_BTD, positions_BT % self.rows)


class NanAhead(Encoding):
    """The root of a negative distance."""

    def by_distance(self, distances_N):
        return -distances_N.sqrt().expand(self.geometry.heads, -1)


class KeptPrivately(Alibi):
    def __init__(self, geometry):
        super().__init__(geometry)
        self._kept = torch.ones(3)


class WidthForHeads(Rope):
    """Takes width / heads for the width of a head."""

    def _tables(self, positions_BT, budget_B):
        width = self.geometry.width // self.geometry.heads
        cos, sin = super()._tables(positions_BT, budget_B)
        return cos[..., :width], sin[..., :width] * (1 if width == self.geometry.head_width else 0)


class ForgottenAtSave(Encoding):
    """Keeps a learned strength outside its parameters."""

    def initialize(self, stream):
        self.strength = float(torch.rand((), generator=stream("strength")))

    def by_distance(self, distances_N):
        return -self.strength * distances_N.abs()[None].expand(self.geometry.heads, -1)


class UnusedTable(Encoding):
    """A second table that nothing reads."""

    def __init__(self, geometry):
        super().__init__(geometry)
        self.used = torch.nn.Parameter(torch.empty(geometry.heads))
        self.unused = torch.nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream):
        normal_(self.used, 1.0, stream("used"))
        normal_(self.unused, 1.0, stream("unused"))

    def by_distance(self, distances_N):
        return self.used[:, None] * distances_N.abs()


class OtherFrequencies(Sinusoidal):
    """tensor2tensor's spacing, k / (d/2 − 1), under the published formula's name."""

    def embed(self, x_BTD, positions_BT):
        half = self.geometry.width // 2
        angle = positions_BT[..., None] * self.theta ** -(torch.arange(half, dtype=positions_BT.dtype) / (half - 1))
        return x_BTD + torch.cat([angle.sin(), angle.cos()], -1).to(x_BTD.dtype)


class WronglyRelative(Sinusoidal):
    relative = True


class WronglyUnstable(NoPE):
    prefix_stable = False


class PlacesFromTheAnswer(Randomized):
    """Draws as many positions as there are tokens, so that a longer answer moves the earlier ones."""

    def places(self, prompt, answer, key, budget):
        return super().places(prompt, answer, key, max(len(prompt) + len(answer), 1))


# --- attention -------------------------------------------------------------------------------------------------------


def _counted_through_padding(patch):
    real = layout.lay_out

    def lay_out(batch, tokens, device, *, past=None, positions_BT=None, **rest):
        made = real(batch, tokens, device, past=past, positions_BT=positions_BT, **rest)
        if positions_BT is not None:
            return made
        start = past.tokens if past is not None else 0
        object.__setattr__(made, "positions_BT", torch.arange(start, start + tokens)[None])
        return made

    patch.setattr(decoder, "lay_out", lay_out)


def _is_causal_with_fewer_queries(patch):
    patch.setattr(AttentionMask, "square", property(lambda self: True))
    patch.setattr(AttentionMask, "plain", property(lambda self: True))
    real = AttentionContext.__init__

    def init(self, encoding, config, attention_mask, dtype, *rest):
        real(self, encoding, config, attention_mask, dtype, *rest)
        self.key_positions_BK = attention_mask.keys.positions_BT.to(dtype)

    patch.setattr(AttentionContext, "__init__", init)


def _scaled_bias(patch):
    real = AttentionContext.bias_BHQK.func
    patch.setattr(
        AttentionContext, "bias_BHQK", property(lambda self: None if real(self) is None else real(self) * self.scale)
    )


def _finite_mask(patch):
    real = AttentionContext.added_BHQK.func

    def added(self):
        made = real(self)
        return None if made is None else made.clamp(min=-1e5)

    patch.setattr(AttentionContext, "added_BHQK", property(added))
    patch.setattr(AttentionContext, "dense", property(lambda self: True))


def _leaks_one_ahead(patch):
    real = AttentionMask.allowed_BQK.func

    def allowed(self):
        made = real(self)
        ahead = torch.ones(made.shape[-2:], dtype=torch.bool).tril(self.keys.tokens - self.queries.tokens + 1)
        return made | ahead

    patch.setattr(AttentionMask, "allowed_BQK", property(allowed))
    patch.setattr(AttentionContext, "dense", property(lambda self: True))


def _leaks_across_documents(patch):
    patch.setattr(AttentionMask, "plain", property(lambda self: self.mask == "causal"))


def _padding_attends_to_nothing(patch):
    real = AttentionMask.allowed_BQK.func

    def allowed(self):
        made = real(self)
        if self.keys.documents_BT is None:
            return made
        return made & (self.keys.documents_BT >= 0)[:, None, :]

    patch.setattr(AttentionMask, "allowed_BQK", property(allowed))
    patch.setattr(AttentionMask, "plain", property(lambda self: False))


def _bidirectional_stays_causal(patch):
    real = AttentionMask.__init__

    def init(self, mask, queries, keys, first=None):
        real(self, "causal", queries, keys, first)

    patch.setattr(AttentionMask, "__init__", init)


def _scale_by_width_always(patch):
    real = AttentionContext.__init__

    def init(self, encoding, config, attention_mask, dtype, *rest):
        real(self, encoding, config, attention_mask, dtype, *rest)
        self.scale = config.head_width**-0.5

    patch.setattr(AttentionContext, "__init__", init)


def _mask_from_ids(patch):
    real = Decoder.forward

    def forward(self, ids_BT, *, lengths=None, padding="right", **rest):
        if lengths is not None and padding == "left":
            lengths = [int((row != 0).sum()) for row in ids_BT]
        return real(self, ids_BT, lengths=lengths, padding=padding, **rest)

    patch.setattr(Decoder, "forward", forward)


def _weights_without_bias(patch):
    real = attention.dense

    def dense(q, k, v, context, *, taps=None, tap_prefix="", **rest):
        if taps is None or not taps.has(f"{tap_prefix}.weights"):
            return real(q, k, v, context, taps=taps, tap_prefix=tap_prefix, **rest)
        weights = (
            (q @ k.mT * context.scale).masked_fill(~context.attention_mask.allowed_BQK[:, None], -torch.inf).softmax(-1)
        )
        return taps(f"{tap_prefix}.weights", weights) @ v

    patch.setattr(attention, "dense", dense)


def _one_encoding_for_all_layers(patch):
    real = Decoder._build_encodings

    def build(self, classes):
        real(self, classes)
        acting = next((i for i, part in enumerate(self.encodings) if part.acts()), 0)
        self.which = [acting] * len(self.which)

    patch.setattr(Decoder, "_build_encodings", build)


def _table_for_every_layer(patch):
    real = Decoder._build_encodings

    def build(self, classes):
        real(self, classes)
        while len(self.encodings) < self.config.layers:
            self.encodings.append(type(self.encodings[0])(self.config.geometry))

    patch.setattr(Decoder, "_build_encodings", build)


def _wrong_backward(patch):
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        return rope._turn(gradient, cos, sin, ctx.partner_E), None, None, None

    patch.setattr(rope._Turn, "backward", staticmethod(backward))


def _planted_positions(patch):
    patch.setitem(POSITIONS, "randomized", f"{__name__}:PlacesFromTheAnswer")


MUTANTS = [
    *(Mutant(name, encoding, caught) for name, encoding, caught in FURTHER),
    Mutant("zeroed rotary frequencies", ZeroedFrequencies, {"T08", "T12"}),
    Mutant("bf16 angles", ShortAngles, {"T13"}),
    Mutant("rotary pairs of the other layout", OtherLayout, {"T12"}),
    Mutant("rotary fraction overwritten", OverwrittenFraction, {"T28"}),
    Mutant("keys turned from the end", TurnedFromTheEnd, {"C02", "T05"}),
    Mutant("relative, claimed absolute", WronglyAbsolute, {"T07"}),
    Mutant("absolute, claimed relative", WronglyRelative, {"T07"}),
    Mutant("static keys, claimed not", NeedlesslyUnstatic, {"C02"}),
    Mutant("prefix-stable, claimed not", WronglyUnstable, {"C01"}),
    Mutant("off-by-one slopes", SlopesFromZero, {"T15"}),
    Mutant("slopes of the wrong rule for 12 heads", SlopesOfTheText, {"T15"}),
    Mutant("bias from the query length under the cache", BiasFromQueryCount, {"T05", "T06"}),
    Mutant("bf16 bias", ShortBias, {"T15"}),
    Mutant("bias in the model's precision", BiasInTheModelsPrecision, {"T13"}),
    Mutant("columns of other slopes", ColumnsOfOtherSlopes, {"T17", "T19"}),
    Mutant("constant in a non-persistent buffer", SlopesInABuffer, {"S01", "S02"}),
    Mutant("scaled by the longest seen", LongestSeen, {"T10"}),
    Mutant("scaled by the number of keys", ScaledByKeys, {"C01", "T01"}),
    Mutant("positions of the first row for all", FirstRowForAll, {"T02"}),
    Mutant("clamped table that claims no end", ClampedTable, {"T09"}),
    Mutant("clamped table that claims its end", ClampedInSilence, {"T09"}),
    Mutant("parameters from the global generator", GlobalDraws, {"S03"}),
    Mutant("parameters from a generator of its own", OwnGenerator, {"S03"}),
    Mutant("parameters from numpy", NumpyDraws, {"S03"}),
    Mutant("a power that training drives below 0", RunawayPower, {"S04"}),
    Mutant("learned bias without gradient", DetachedBias, {"T22"}),
    Mutant("half of a gradient lost", HalfGradient, {"T22"}),
    Mutant("keys without gradient", DetachedKeys, {"T22"}),
    Mutant("turning whose gradient turns on", "rope", {"T22"}, _wrong_backward),
    Mutant("the first row's positions in a decoding step", FirstRowWhenDecoding, {"T05"}),
    Mutant("the budget of the whole batch", BudgetOfTheBatch, {"T02"}),
    Mutant("a table that begins again", WrappedTable, {"T09"}),
    Mutant("no bias ahead of the query", NanAhead, {"T04"}),
    Mutant("a tensor kept privately", KeptPrivately, {"S01"}),
    Mutant("width / heads taken for the head's width", WidthForHeads, {"T12"}),
    Mutant("half of the T5 table unused", HalfTheTable, {"T20"}),
    Mutant("state outside the parameters", ForgottenAtSave, {"S02"}),
    Mutant("a table nothing reads", UnusedTable, {"T21", "T22"}),
    Mutant("other sinusoid frequencies", OtherFrequencies, {"T30"}),
    Mutant("positions drawn for the answer's length", "rope", {"T25"}, _planted_positions, "randomized"),
    Mutant("positions counted through padding", "sinusoidal", {"T01"}, _counted_through_padding),
    Mutant("is_causal with fewer queries than keys", "rope", {"T05"}, _is_causal_with_fewer_queries),
    Mutant("bias multiplied by the attention scale", "alibi", {"T18"}, _scaled_bias),
    Mutant("a mask of −1e5", "nope", {"T23"}, _finite_mask),
    Mutant("a mask that leaks one token", "rope", {"T24"}, _leaks_one_ahead),
    Mutant("documents that see each other", "nope", {"T11"}, _leaks_across_documents),
    Mutant("padding that attends to nothing", "t5", {"T04"}, _padding_attends_to_nothing),
    Mutant("a bidirectional mask that is causal", "nope", {"T08"}, _bidirectional_stays_causal),
    Mutant("1/√width whatever the scale", "rope", {"T19"}, _scale_by_width_always),
    Mutant("padding found by its id", "rope", {"T03"}, _mask_from_ids),
    Mutant("weights shown without the bias", "alibi", {"T57"}, _weights_without_bias),
    Mutant("one encoding for every layer of a list", "rope", {"T29"}, _one_encoding_for_all_layers),
    Mutant("a table for every layer, one used", "t5", {"T21"}, _table_for_every_layer),
    Mutant("p-RoPE spaced as partial rotary", mutants_rope.SpacedAsPartial, {"T12"}),
    Mutant("p-RoPE without its fastest pairs", mutants_rope.StillAtTheStart, {"T12"}),
    Mutant("p-RoPE still at the end of the head", mutants_rope.StillAtTheEndOfTheHead, {"T12"}),
    Mutant("dynamic NTK as a constant", mutants_rope.DynamicAsConstant, {"T12"}),
    Mutant("YaRN's factor applied twice", mutants_rope.MagnitudeTwice, {"T12"}),
    Mutant("a scaling that is lost", mutants_rope.LostScaling, {"T28"}),
    Mutant("the length of the call for the budget", mutants_rope.LengthOfTheCall, {"C01", "C02", "T05"}),
    Mutant("the longest budget of the batch", mutants_rope.LongestOfTheBatch, {"T02"}),
    Mutant("a window off by one", mutants_rope.WindowOffByOne, {"T12"}),
    *(Mutant(name, encoding, caught_by) for name, encoding, caught_by in mutants_newer.ENCODINGS),
    *(Mutant(**given) for given in mutants_newer.ATTENTION),
]
