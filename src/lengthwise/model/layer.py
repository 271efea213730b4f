"""One layer of the decoder: attention, then feed-forward."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.model.attention import Attention, AttentionContext
from lengthwise.model.cache import Cache
from lengthwise.model.config import DecoderConfig
from lengthwise.model.norm import Norm
from lengthwise.model.taps import Taps


class FeedForward(nn.Module):
    """Two matrices around ReLU or GELU, or three around SiLU gates (SwiGLU)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.kind = config.feed_forward
        self.dropout = config.dropout
        self.up = nn.Linear(config.width, config.feed_forward_width, bias=config.biases)
        self.gate = (
            nn.Linear(config.width, config.feed_forward_width, bias=config.biases) if self.kind == "swiglu" else None
        )
        self.down = nn.Linear(config.feed_forward_width, config.width, bias=config.biases)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.gate is not None:
            h_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        else:
            h_BTF = F.relu(self.up(x_BTD)) if self.kind == "relu" else F.gelu(self.up(x_BTD))
        return self.down(F.dropout(h_BTF, self.dropout, self.training) if self.dropout else h_BTF)


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added to the residual stream after."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.dropout = config.dropout
        self.attention_norm = Norm(config.norm, config.width, config.norm_epsilon, config.biases)
        self.attention = Attention(config)
        self.feed_forward_norm = Norm(config.norm, config.width, config.norm_epsilon, config.biases)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTD: Tensor, context: AttentionContext, cache: Cache | None, taps: Taps | None) -> Tensor:
        h = self.attention(self.attention_norm(x_BTD), context, layer=self.index, cache=cache, taps=taps)
        x_BTD = x_BTD + (F.dropout(h, self.dropout, self.training) if self.dropout else h)
        h = self.feed_forward(self.feed_forward_norm(x_BTD))
        x_BTD = x_BTD + (F.dropout(h, self.dropout, self.training) if self.dropout else h)
        return x_BTD if taps is None else taps(f"layers.{self.index}.residual", x_BTD)
