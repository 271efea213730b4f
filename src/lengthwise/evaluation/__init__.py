"""Weights → rows.

Legend of shape suffixes here: N a flat list, B rows of a batch, T tokens, V vocabulary.
"""

import typing
from importlib import import_module

if typing.TYPE_CHECKING:
    from lengthwise.evaluation.examination import Examination, examine
    from lengthwise.evaluation.interface import evaluate

__all__ = ["Examination", "evaluate", "examine"]


def __getattr__(name: str) -> object:
    if name in __all__:  # rows are read without torch; examining needs it
        where = "interface" if name == "evaluate" else "examination"
        return getattr(import_module(f"lengthwise.evaluation.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
