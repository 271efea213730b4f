"""The decoder that all encodings share, as plain `nn.Module`s.

Legend of shape suffixes here: B batch (1 where all rows agree), T tokens, Q queries, K keys, H heads, E head width,
D model width, F feed-forward width, V vocabulary, C columns, N a flat list.
"""

import typing
from importlib import import_module

from lengthwise.model.config import PRESETS, DecoderConfig, preset

if typing.TYPE_CHECKING:
    from lengthwise.model.cache import Cache
    from lengthwise.model.decoder import Decoder
    from lengthwise.model.layout import TokenLayout

__all__ = ["PRESETS", "Cache", "Decoder", "DecoderConfig", "TokenLayout", "preset"]


def __getattr__(name: str) -> object:
    if name in __all__:  # lazy, so that reading a config does not import torch
        return getattr(import_module(f"lengthwise.model.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
