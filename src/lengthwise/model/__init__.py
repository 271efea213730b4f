"""Where they meet: one decoder for all encodings, as plain `nn.Module`s.

Legend of shape suffixes here: B batch (1 where all rows agree), T tokens, Q queries, K keys, H heads, E head width,
D model width, F feed-forward width, V vocabulary, C columns, N a flat list.
"""

from lengthwise.model.cache import Cache
from lengthwise.model.config import PRESETS, DecoderConfig, preset
from lengthwise.model.decoder import Decoder
from lengthwise.model.layout import Layout

__all__ = ["PRESETS", "Cache", "Decoder", "DecoderConfig", "Layout", "preset"]
