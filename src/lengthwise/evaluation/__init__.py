"""Evaluation: from weights to rows of results.

Legend of shape suffixes here: N a flat list, B rows of a batch, T tokens, V vocabulary.
"""

import typing
from importlib import import_module

if typing.TYPE_CHECKING:
    from lengthwise.evaluation.interface import evaluate
    from lengthwise.evaluation.result import EvaluationResult, evaluate_decoder

__all__ = ["EvaluationResult", "evaluate", "evaluate_decoder"]


def __getattr__(name: str) -> object:
    if name in __all__:  # lazy, so that reading rows does not import torch
        where = "interface" if name == "evaluate" else "result"
        return getattr(import_module(f"lengthwise.evaluation.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
