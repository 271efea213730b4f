"""Multi-head attention under an encoding.

One `AttentionContext` per forward pass and encoding is shared by all layers of that encoding. It holds the mask, and
the bias in the cheapest form that the path can use. Three paths compute the same result:

- *fast* (`fused.py`): PyTorch's fused attention; it needs no T × T matrix if the mask is causal and the bias is absent
  or in columns;
- *dense*: explicit scores, bias, mask and normaliser, for attention dropout, a learned bias, hooks that see scores,
  normalisers other than softmax, and taps on the weights. Above `AT_ONCE` scores it computes a block of queries at a
  time;
- *flex* (`flex.py`): FlexAttention, only with `attention=flex`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthwise.device import without_autocast
from lengthwise.encoding.base import SEES_SCORES, Encoding, QueriesAndKeys
from lengthwise.model.cache import Cache
from lengthwise.model.config import DecoderConfig
from lengthwise.model.flex import BlockMask, Change, build_flex_inputs, flex
from lengthwise.model.fused import fused_attention
from lengthwise.model.mask import AttentionMask
from lengthwise.model.taps import Taps
from lengthwise.model.temperature import build_temperature
from lengthwise.normaliser import build_normaliser
from lengthwise.normaliser.base import Normaliser

COLUMNS_FROM = 512 * 512
"""Up to this many query-key pairs a bias matrix is faster than extra columns (measured in benchmarks/bias.py)."""

AT_ONCE = 2**24
"""Above this many scores (64 MB in fp32) the dense path computes blocks of queries with a quarter as many scores."""


class AttentionContext:
    """What the layers that share an encoding need in one forward pass."""

    def __init__(
        self,
        encoding: Encoding,
        config: DecoderConfig,
        attention_mask: AttentionMask,
        dtype: torch.dtype,
        budget_B: Tensor,
        normaliser: Normaliser,
        backend: str = "auto",
    ) -> None:
        self.encoding = encoding
        self.config = config
        self.budget_B = budget_B
        self.scale = config.scale
        self.normaliser = normaliser
        """The first layer's, for its claims: each layer has its own, of the same class."""
        self.backend = backend
        """The requested attention path."""
        self.attention_mask = attention_mask
        self.query_positions_BQ = attention_mask.queries.positions_BT.to(dtype)
        same = attention_mask.square
        self.key_positions_BK = self.query_positions_BQ if same else attention_mask.keys.positions_BT.to(dtype)
        self.turns = encoding.overrides("rotate")
        self.biased = encoding.adds_bias()
        self.marks = encoding.overrides("mark")
        self.hooked = any(encoding.overrides(hook) for hook in SEES_SCORES)

    @cached_property
    def counts_BQ(self) -> Tensor:
        """The number of tokens of each query's own document up to it, whatever their positions are."""
        return self.attention_mask.queries.order_BT.to(self.query_positions_BQ.dtype) + 1

    @cached_property
    def state(self) -> object:
        """What the encoding prepared for this forward pass."""
        # Cached keys are already rotated; an encoding without `rotate` needs all keys (in `score` and `read`).
        new_only = self.encoding.static_keys and self.turns
        with without_autocast(self.query_positions_BQ.device):
            keys_BK = self.query_positions_BQ if new_only else self.key_positions_BK
            return self.encoding.prepare(self.query_positions_BQ, keys_BK, self.budget_B)

    def block(self, start: int, end: int) -> AttentionContext:
        """The context of the queries from `start` up to `end`."""
        dtype = self.query_positions_BQ.dtype
        mask = self.attention_mask.block(start, end)
        given = (self.encoding, self.config, mask, dtype, self.budget_B, self.normaliser, self.backend)
        return AttentionContext(*given)

    def rows(self, score_count: int, tap_block_size: int | None) -> int:
        """The number of queries per block, given the number of all scores and the block size that a tap wants."""
        queries = self.attention_mask.queries.tokens
        # An encoding that rotates keys and sees scores has one state for all queries, so they are not split.
        if self.hooked and self.turns:
            return queries
        if tap_block_size is not None:
            return min(tap_block_size, queries)
        if score_count <= AT_ONCE:
            return queries
        return max(16, queries * (AT_ONCE // 4) // score_count)

    @cached_property
    def bias_BHQK(self) -> Tensor | None:
        """The bias as a matrix, in the working precision."""
        if not self.biased:
            return None
        q, k = self.attention_mask.queries, self.attention_mask.keys
        if k.consecutive and q.consecutive and self.encoding.overrides("by_distance"):
            # Row i of the matrix is a window of one vector: distances Q−1+start, ..., 1−K+start, read from the right.
            start = self.attention_mask.start
            first, last = start + q.tokens - 1, start + 1 - k.tokens
            distances_N = torch.arange(first, last - 1, -1, device=self.query_positions_BQ.device)
            with without_autocast(distances_N.device):
                vector_HN = self.encoding.checked_by_distance(distances_N.to(self.query_positions_BQ.dtype))
            return vector_HN.unfold(-1, k.tokens, 1).flip(-2)[None]
        with without_autocast(self.query_positions_BQ.device):
            return self.encoding.checked_bias(self.query_positions_BQ, self.key_positions_BK)

    @cached_property
    def added_BHQK(self) -> Tensor | None:
        """Bias and mask in one matrix, with −inf, not a large negative number, where a key is hidden."""
        if self.attention_mask.all_visible:
            return self.bias_BHQK
        hidden_B1QK = ~self.attention_mask.allowed_BQK[:, None]
        if self.bias_BHQK is None:
            return torch.zeros_like(hidden_B1QK, dtype=self.query_positions_BQ.dtype).masked_fill(
                hidden_B1QK, -torch.inf
            )
        return self.bias_BHQK.masked_fill(hidden_B1QK, -torch.inf)

    @cached_property
    def columns(self) -> tuple[Tensor, Tensor] | None:
        """The bias as extra columns of queries and keys; None if that form is not valid, not precise or slower."""
        attention_mask, encoding = self.attention_mask, self.encoding
        if not encoding.overrides("columns") or attention_mask.mask != "causal" or not attention_mask.keys.ordered:
            return None
        if not self.normaliser.shift_invariant:
            return None  # columns leave out a constant of each query
        if attention_mask.queries.tokens * attention_mask.keys.tokens <= COLUMNS_FROM and encoding.overrides(
            "by_distance"
        ):
            return None
        if attention_mask.keys.largest - attention_mask.keys.smallest > 2 * attention_mask.keys.tokens:
            return None  # at such large positions rounding would hide small distances
        query_BQ, key_BK = self.query_positions_BQ, self.key_positions_BK
        if encoding.relative:
            # Only differences matter, so count from the middle query: small numbers keep the sums exact.
            origin_B1 = query_BQ[:, query_BQ.shape[1] // 2, None]
            query_BQ, key_BK = query_BQ - origin_B1, key_BK - origin_B1
        with without_autocast(query_BQ.device):
            return encoding.checked_columns(query_BQ)[0], encoding.checked_columns(key_BK)[1] / self.scale

    @cached_property
    def dense(self) -> bool:
        """Whether the dense path is needed: for hooks on scores or weights, a learned bias, or if it was requested."""
        if self.hooked or self.normaliser.overrides("weigh") or self.backend == "dense":
            return True
        learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.encoding.parameters())
        return self.biased and learns and self.columns is None

    @cached_property
    def flex_inputs(self) -> tuple[Change | None, BlockMask | None]:
        """What FlexAttention needs: the bias and the mask as functions of one query and one key."""
        return build_flex_inputs(self)

    def precompute_shared(self, batch_size: int, has_dropout: bool, weights_tapped: bool) -> None:
        """Compute state and bias now: both runs of a layer under gradient checkpointing must find them cached."""
        queries, keys = self.attention_mask.queries.tokens, self.attention_mask.keys.tokens
        much = not weights_tapped and self.rows(batch_size * self.config.heads * queries * keys, None) < queries
        if self.turns or not much:
            _ = self.state
        if self.backend == "flex":
            _ = self.flex_inputs
            return
        if much and (self.dense or has_dropout):
            return  # each block computes its own
        if self.hooked:
            _ = self.bias_BHQK
        elif self.dense or has_dropout or weights_tapped:
            _ = self.added_BHQK
        else:
            _ = self.columns

    def pair(self, q_BHQE: Tensor, k_BHKE: Tensor, marks_BHKC: Tensor | None) -> QueriesAndKeys:
        """The queries, keys, positions and mask that content-dependent hooks receive."""
        return QueriesAndKeys(
            q_BHQE,
            k_BHKE,
            self.query_positions_BQ,
            self.key_positions_BK,
            self.attention_mask.allowed_BQK,
            self.state,
            self.scale,
            marks_BHKC,
            self.attention_mask.start,
            self.attention_mask.distances,
            self.attention_mask.keys.documents_BT,
        )


def dense(
    q_BHQE: Tensor,
    k_BHKE: Tensor,
    v_BHKE: Tensor,
    context: AttentionContext,
    *,
    normaliser: Normaliser,
    marks_BHKC: Tensor | None = None,
    factor: Tensor | None = None,
    dropout: float = 0.0,
    taps: Taps | None = None,
    tap_prefix: str = "",
) -> Tensor:
    """Explicit attention in fp32 or better; with many scores, one block of queries at a time.

    `factor`, (B, H, Q, 1) where each may be 1, multiplies scores and bias.
    """
    name = f"{tap_prefix}.weights"
    listened = taps is not None and taps.has(name)
    wanted = taps.queries_per_block(name) if taps is not None else None
    queries = q_BHQE.shape[2]
    rows = context.rows(q_BHQE.shape[0] * q_BHQE.shape[1] * queries * k_BHKE.shape[2], wanted)
    work = partial(_dense, normaliser=normaliser, dropout=dropout, taps=taps, name=name)
    if rows == queries or (listened and wanted is None):
        return work(q_BHQE, k_BHKE, v_BHKE, marks_BHKC, factor, context=context)
    parts = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        keys = context.attention_mask.block(start, end).keys.tokens
        block = partial(_block, work=work, context=context, start=start)
        marks = None if marks_BHKC is None else marks_BHKC[:, :, :keys]
        scale = factor if factor is None or factor.shape[2] == 1 else factor[:, :, start:end]
        tensors = (q_BHQE[:, :, start:end], k_BHKE[:, :, :keys], v_BHKE[:, :, :keys], marks, scale)
        if torch.is_grad_enabled() and not listened:
            # Without checkpointing, the backward pass would keep every block's scores, and blocks would save no memory.
            parts.append(checkpoint(block, *tensors, use_reentrant=False))
        else:
            parts.append(block(*tensors))
    return torch.cat(parts, 2)


def _block(*tensors: Tensor | None, work: Callable[..., Tensor], context: AttentionContext, start: int) -> Tensor:
    """The block of queries from `start` on. Its context is built here, so that checkpointing recomputes it too."""
    assert tensors[0] is not None
    return work(*tensors, context=context.block(start, start + tensors[0].shape[2]), start=start)


def _dense(
    q_BHQE: Tensor,
    k_BHKE: Tensor,
    v_BHKE: Tensor,
    marks_BHKC: Tensor | None,
    factor: Tensor | None,
    *,
    context: AttentionContext,
    normaliser: Normaliser,
    dropout: float,
    taps: Taps | None,
    name: str,
    start: int | None = None,
) -> Tensor:
    """All queries of a context at once; `start` is the index of the first one if they are a block of more."""
    working = torch.promote_types(q_BHQE.dtype, torch.float32)
    encoding, mask = context.encoding, context.attention_mask
    with without_autocast(q_BHQE.device):
        q_BHQE, k_BHKE = q_BHQE.to(working) * context.scale, k_BHKE.to(working)
        scores_BHQK = q_BHQE @ k_BHKE.mT
        pair = context.pair(q_BHQE, k_BHKE, marks_BHKC) if context.hooked else None
        if pair is not None or factor is not None:
            if context.bias_BHQK is not None:
                scores_BHQK = scores_BHQK + context.bias_BHQK
            if pair is not None:
                scores_BHQK = encoding.score(scores_BHQK, pair)
            if factor is not None:
                scores_BHQK = scores_BHQK * factor
            scores_BHQK = scores_BHQK.masked_fill(~mask.allowed_BQK[:, None], -torch.inf)
        elif context.added_BHQK is not None:
            scores_BHQK = scores_BHQK + context.added_BHQK
        if pair is not None and encoding.overrides("weigh"):
            weights_BHQK = encoding.weigh(scores_BHQK, pair)
        else:
            weights_BHQK = normaliser.weigh(scores_BHQK, mask)
        if taps is not None and start is not None:
            taps.pass_block_to_tap(name, weights_BHQK, start)
        elif taps is not None:
            weights_BHQK = taps(name, weights_BHQK)
        weights_BHQK = F.dropout(weights_BHQK, dropout, training=dropout > 0)
        out_BHQE = weights_BHQK.to(v_BHKE.dtype) @ v_BHKE
        if pair is not None and encoding.overrides("read"):
            addition = encoding.read(weights_BHQK, pair)
            assert addition is not None
            out_BHQE = out_BHQE + addition.to(out_BHQE.dtype)
    return out_BHQE


class Attention(nn.Module):
    """Multi-head attention, which uses its encoding, normaliser and temperature only through hooks."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout
        inner = config.heads * config.head_width
        self.q = nn.Linear(config.width, inner, bias=config.biases)
        self.k = nn.Linear(config.width, inner, bias=config.biases)
        self.v = nn.Linear(config.width, inner, bias=config.biases)
        self.out = nn.Linear(inner, config.width, bias=config.biases)
        self.normaliser = build_normaliser(config.normaliser, config.geometry)
        self.temperature = build_temperature(config.temperature, config.geometry)
        self.tempered = config.temperature != "constant"

    def forward(
        self,
        x_BTD: Tensor,
        context: AttentionContext,
        *,
        layer: int,
        cache: Cache | None = None,
        taps: Taps | None = None,
    ) -> Tensor:
        at = f"layers.{layer}"
        q, k, v = (self._split(part(x_BTD)) for part in (self.q, self.k, self.v))
        static = context.encoding.static_keys
        if static and context.turns:
            q, k = context.encoding.checked_rotate(q, k, context.state)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        if not static and context.turns:
            q, k = context.encoding.checked_rotate(q, k, context.state)
        if taps is not None:
            q, k = taps(f"{at}.q", q), taps(f"{at}.k", k)
        factor = self._factor(x_BTD, context)
        if factor is not None and not (self.temperature.scales_bias and (context.biased or context.hooked)):
            q, factor = (q * factor).to(q.dtype), None
        marks = None
        if context.marks:
            with without_autocast(x_BTD.device):
                marks = context.encoding.checked_mark(x_BTD)
            if cache is not None:
                marks = cache.extend_marks(layer, marks)
        dropout = self.dropout if self.training else 0.0
        watched = taps is not None and taps.has(f"{at}.weights")  # fused kernels do not return weights
        sink_H = None
        if self.normaliser.overrides("sink"):
            with without_autocast(x_BTD.device):
                sink_H = self.normaliser.sink(context.query_positions_BQ)
        if context.backend == "flex" and not watched:
            heads = flex(q, k, v, context, sink_H=sink_H, dropout=dropout)
        elif context.dense or dropout or watched or factor is not None:
            given = {"normaliser": self.normaliser, "marks_BHKC": marks, "factor": factor}
            heads = dense(q, k, v, context, **given, dropout=dropout, taps=taps, tap_prefix=at)
        else:
            heads = fused_attention(q, k, v, context, sink_H)
        if taps is not None:
            heads = taps(f"{at}.heads", heads)
        return self.out(heads.transpose(1, 2).flatten(2))

    def _factor(self, x_BTD: Tensor, context: AttentionContext) -> Tensor | None:
        """The temperature's factor, None if it is 1 everywhere."""
        if not self.tempered or not self.temperature.acts(context.encoding):
            return None
        with without_autocast(x_BTD.device):
            return self.temperature.checked_factor(context.counts_BQ, x_BTD, context.encoding)

    def _split(self, x_BTN: Tensor) -> Tensor:
        return x_BTN.unflatten(-1, (self.heads, -1)).transpose(1, 2)
