"""One run: its options and id (`identity`), its owner (`lease`), its execution (`attempt`), its results (`run`)."""

import typing
from importlib import import_module

from lengthwise.run.identity import Plan
from lengthwise.run.lease import STORE
from lengthwise.run.stop import STOPPED, Stopped

if typing.TYPE_CHECKING:
    from lengthwise.run.execute import train
    from lengthwise.run.run import Run

__all__ = ["STOPPED", "STORE", "Plan", "Run", "Stopped", "train"]


def __getattr__(name: str) -> object:
    if name in __all__:  # imported lazily: only these need torch
        where = {"Run": "run", "train": "execute"}[name]
        return getattr(import_module(f"lengthwise.run.{where}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
