"""FlexAttention, used only with `attention=flex` and never chosen automatically.

This is a third path beside *fast* and *dense*. The kernel reads a bias that depends on distance (T5, KERPLE, ALiBi)
from one vector per head, `s + b[h, i − j]`, so it needs no T × T matrix where PyTorch fuses it: on CUDA, forward and
backward. Any other bias (FIRE) is read from its matrix. On a CPU, PyTorch has only an unfused forward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from lengthwise.device import FLEX_COMPILES, FLEX_WITHOUT_BACKWARD, without_autocast
from lengthwise.encoding.base import SEES_SCORES
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.encoding.base import Encoding
    from lengthwise.model.attention import AttentionContext
    from lengthwise.model.mask import AttentionMask
    from lengthwise.model.temperature import AttentionTemperature
    from lengthwise.normaliser.base import Normaliser

Change = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, row, head, query, key) → the changed score."""

INSTEAD = "use attention=auto (or decoder.backend = 'auto')"


def check(encoding: Encoding, normaliser: Normaliser, temperature: AttentionTemperature) -> None:
    """Raise for hooks that see scores or weights, which the kernel does not expose."""
    hooks = [hook for hook in SEES_SCORES if encoding.overrides(hook)]
    name = type(encoding).__name__.lower()
    if hooks:
        raise SpecError(f"attention=flex cannot do {name}, which acts in {' and '.join(hooks)}; {INSTEAD}")
    if normaliser.overrides("weigh"):
        raise SpecError(
            f"attention=flex has softmax, with or without a sink, not {type(normaliser).__name__}; {INSTEAD}"
        )
    if temperature.scales_bias and encoding.adds_bias() and temperature.acts(encoding):
        raise SpecError(f"attention=flex cannot multiply the bias of {name} by a temperature; {INSTEAD}")


def flex(
    q_BHQE: Tensor,
    k_BHKE: Tensor,
    v_BHKE: Tensor,
    context: AttentionContext,
    *,
    sink_H: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention by FlexAttention; `sink_H` is a further logit of each head, without a value."""
    if dropout:
        raise SpecError(f"attention=flex has no attention dropout; train with attention_dropout=0, or {INSTEAD}")
    device = q_BHQE.device.type
    learns = any(part.requires_grad for part in (q_BHQE, k_BHKE, v_BHKE, *context.encoding.parameters()))
    if device in FLEX_WITHOUT_BACKWARD and learns and torch.is_grad_enabled():
        raise SpecError(
            f"attention=flex has no backward pass on {device}: to train there {INSTEAD}; "
            "for logits alone, call the model in torch.no_grad()"
        )
    change, mask = context.flex_inputs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        kernel, given = _kernel(device in FLEX_COMPILES), {"score_mod": change, "block_mask": mask}
        if sink_H is None:
            return kernel(q_BHQE, k_BHKE, v_BHKE, **given, scale=context.scale)
        wanted = AuxRequest(lse=True)
        out_BHQE, aux = kernel(q_BHQE, k_BHKE, v_BHKE, **given, scale=context.scale, return_aux=wanted)
        # exp(lse) / (exp(lse) + exp(sink)) is the share that softmax without the sink gives away.
        return (out_BHQE * (aux.lse - sink_H[:, None]).sigmoid()[..., None]).to(out_BHQE.dtype)


@lru_cache(maxsize=2)
def _kernel(compiled: bool) -> Callable[..., Any]:
    return torch.compile(flex_attention) if compiled else flex_attention


def build_flex_inputs(context: AttentionContext) -> tuple[Change | None, BlockMask | None]:
    """The change of scores (the bias) and the block mask, both shared by the layers of a context."""
    mask = None if context.attention_mask.all_visible else _mask(context.attention_mask)
    if not context.biased:
        return None, mask
    return _by_distance(context) or _by_matrix(context), mask


# Functions below capture tensors only: a captured number would be compiled into the kernel, with one kernel per value.


def _mask(attention_mask: AttentionMask) -> BlockMask:
    """`AttentionMask.allowed_BQK`, as a function of one query and one key."""
    q, k = attention_mask.queries, attention_mask.keys
    device = k.positions_BT.device
    place_Q = torch.arange(attention_mask.start, attention_mask.start + q.tokens, device=device)
    documents_BK = None if attention_mask.plain else k.documents_BT
    prefix_BK = k.prefix_BT if attention_mask.mask == "prefix" else None

    def ahead(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= place_Q[i]

    def anywhere(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j >= 0

    seen = anywhere if attention_mask.mask == "bidirectional" else ahead
    if prefix_BK is not None:
        seen = _or_prefix(seen, prefix_BK)
    if documents_BK is not None:
        seen = _in_document(seen, documents_BK, place_Q)
    own = [len(rows) for rows in (documents_BK, prefix_BK) if rows is not None]
    return create_block_mask(seen, max(own) if own else None, None, q.tokens, k.tokens, device=str(device))


Seen = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _or_prefix(seen: Seen, prefix_BK: Tensor) -> Seen:
    return lambda b, h, i, j: seen(b, h, i, j) | prefix_BK[b, j]


def _in_document(seen: Seen, documents_BK: Tensor, place_Q: Tensor) -> Seen:
    return lambda b, h, i, j: seen(b, h, i, j) & (documents_BK[b, place_Q[i]] == documents_BK[b, j])


def _by_distance(context: AttentionContext) -> Change | None:
    """`s + b[h, i − j]` with b computed here; None if the bias has no form by distance, or its matrix is smaller."""
    encoding, q, k = context.encoding, context.attention_mask.queries, context.attention_mask.keys
    if not (encoding.overrides("by_distance") or (encoding.overrides("columns") and encoding.relative)):
        return None
    first, last = context.attention_mask.distances
    if last - first >= max(q.tokens * k.tokens, 2):
        return None
    working = context.query_positions_BQ.dtype
    with without_autocast(q.positions_BT.device):
        distances_N = torch.arange(first, last + 1, device=q.positions_BT.device, dtype=working)
        vector_HN = encoding.checked_by_distance(distances_N)
    # Positions of padding may lie outside [smallest, largest]; their bias does not matter, but the index must be valid.
    query_BQ = q.positions_BT.clamp(q.smallest, q.largest) - first
    key_BK = k.positions_BT.clamp(k.smallest, k.largest)
    if len(query_BQ) == len(key_BK) == 1:
        query_Q, key_K = query_BQ[0], key_BK[0]
        return lambda score, b, h, i, j: score + vector_HN[h, query_Q[i] - key_K[j]]
    rows = max(len(query_BQ), len(key_BK))
    query_BQ, key_BK = query_BQ.expand(rows, -1).contiguous(), key_BK.expand(rows, -1).contiguous()
    return lambda score, b, h, i, j: score + vector_HN[h, query_BQ[b, i] - key_BK[b, j]]


def _by_matrix(context: AttentionContext) -> Change:
    """`s + bias[h, i, j]`: works for any bias, but needs its whole matrix."""
    bias_BHQK = context.bias_BHQK
    assert bias_BHQK is not None
    if len(bias_BHQK) == 1:
        bias_HQK = bias_BHQK[0]
        return lambda score, b, h, i, j: score + bias_HQK[h, i, j]
    return lambda score, b, h, i, j: score + bias_BHQK[b, h, i, j]
