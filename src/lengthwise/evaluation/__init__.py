"""Weights → rows.

Legend of shape suffixes here: N a flat list, B rows of a batch, T tokens, V vocabulary.
"""

import typing
from importlib import import_module

if typing.TYPE_CHECKING:
    from lengthwise.evaluation.examination import Examination, evaluate, examine

__all__ = ["Examination", "evaluate", "examine"]


def __getattr__(name: str) -> object:
    if name in __all__:  # rows are read without torch; examining needs it
        return getattr(import_module("lengthwise.evaluation.examination"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
