"""Softmax attention by PyTorch's fused kernels, with a bias as extra columns and a sink as an extra key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.device import is_host, without_autocast

if TYPE_CHECKING:
    from lengthwise.model.attention import AttentionContext

KERNEL_WIDTH = 8
"""Fused kernels of a GPU take heads whose width is a multiple of this; others fall back on an unfused one."""


def fused_attention(
    q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, context: AttentionContext, sink_H: Tensor | None = None
) -> Tensor:
    """Softmax attention by PyTorch's fused kernels; `sink_H` is a further logit of each head, without a value."""
    attention_mask = context.attention_mask
    causal = (
        attention_mask.plain
        and attention_mask.mask == "causal"
        and attention_mask.square
        and attention_mask.queries.tokens > 1
    )
    mask = None if causal or attention_mask.all_visible else attention_mask.allowed_BQK[:, None]
    added, width = None, v_BHKE.shape[-1]
    if context.biased and context.columns is not None:
        q_BHQE, k_BHKE = _beside(q_BHQE, k_BHKE, *context.columns)
    elif context.biased:
        mask, added, causal = None, context.added_BHQK, False
    if sink_H is not None:
        # The sink is the first key, with value 0. A causal kernel aligns the first query with it, so one goes before.
        q_BHQE = F.pad(q_BHQE, (0, 0, 1, 0)) if causal else q_BHQE
        q_BHQE, k_BHKE = _with_sink(q_BHQE, k_BHKE, sink_H / context.scale)
        v_BHKE = F.pad(v_BHKE, (0, 0, 1, 0))
        mask, added = (
            None if part is None else F.pad(part, (1, 0), value=one) for part, one in ((mask, True), (added, 0.0))
        )
    out_BHQE = _kernel(q_BHQE, k_BHKE, v_BHKE, mask if added is None else added, causal, context.scale)[..., :width]
    return out_BHQE if sink_H is None or not causal else out_BHQE[:, :, 1:]


def _kernel(
    q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, mask_BHQK: Tensor | None, causal: bool, scale: float
) -> Tensor:
    # Kernels want values as wide as keys.
    v_BHKE = F.pad(v_BHKE, (0, k_BHKE.shape[-1] - v_BHKE.shape[-1])) if k_BHKE.shape[-1] > v_BHKE.shape[-1] else v_BHKE
    if mask_BHQK is None or mask_BHQK.dtype == torch.bool:
        return F.scaled_dot_product_attention(q_BHQE, k_BHKE, v_BHKE, mask_BHQK, is_causal=causal, scale=scale)
    # The bias stays in fp32 even with bf16 queries; autocast would round it.
    with without_autocast(q_BHQE.device):
        if mask_BHQK.dtype == q_BHQE.dtype or is_host(mask_BHQK):
            return F.scaled_dot_product_attention(q_BHQE, k_BHKE, v_BHKE, mask_BHQK, scale=scale)
        # CUDA's memory-efficient kernel refuses two dtypes, and cuDNN's reads a fp32 bias as if it were bf16.
        wide_q, wide_k, wide_v = (part.to(mask_BHQK.dtype) for part in (q_BHQE, k_BHKE, v_BHKE))
        return F.scaled_dot_product_attention(wide_q, wide_k, wide_v, mask_BHQK, scale=scale).to(q_BHQE.dtype)


def _with_sink(q_BHQE: Tensor, k_BHKE: Tensor, logit_H: Tensor) -> tuple[Tensor, Tensor]:
    """Put a key before the others whose product with every query is `logit_H`."""
    column_1HK1 = F.pad(logit_H[None, :, None, None], (0, 0, 0, k_BHKE.shape[2]))
    ones_1HQ1 = torch.ones_like(column_1HK1[:, :, :1]).expand(-1, -1, q_BHQE.shape[2], -1)
    return _beside(q_BHQE, F.pad(k_BHKE, (0, 0, 1, 0)), ones_1HQ1, column_1HK1)


def _beside(q_BHQE: Tensor, k_BHKE: Tensor, query_BHQC: Tensor, key_BHKC: Tensor) -> tuple[Tensor, Tensor]:
    """Append columns to queries and keys; in bf16 and fp16 each column is split into several that sum to it."""
    if q_BHQE.dtype in {torch.bfloat16, torch.float16}:
        # Three bf16 numbers of 8 bits make up fp32's 24 bits. For queries, whose columns are mostly ones, two suffice.
        (q_head, q_rest), (k_head, k_rest, k_last) = (
            _split(query_BHQC, q_BHQE.dtype, 2),
            _split(key_BHKC, q_BHQE.dtype, 3),
        )
        query_BHQC = torch.cat([q_head, q_head, q_head, q_rest], -1)
        key_BHKC = torch.cat([k_head, k_rest, k_last, k_head], -1)
    query = query_BHQC.to(q_BHQE.dtype).expand(*q_BHQE.shape[:-1], -1)
    key = key_BHKC.to(q_BHQE.dtype).expand(*k_BHKE.shape[:-1], -1)
    query, key = torch.cat([q_BHQE, query], -1), torch.cat([k_BHKE, key], -1)
    if not is_host(q_BHQE):
        surplus = -query.shape[-1] % KERNEL_WIDTH
        query, key = F.pad(query, (0, surplus)), F.pad(key, (0, surplus))
    return query, key


def _split(x: Tensor, dtype: torch.dtype, parts: int) -> list[Tensor]:
    """Split `x` into tensors that `dtype` can represent and that sum to `x`, the largest first."""
    found: list[Tensor] = []
    for _ in range(parts):
        found.append(x.to(dtype).to(x.dtype))
        x = x - found[-1]
    return found
