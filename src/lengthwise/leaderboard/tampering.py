"""Whether code of an entry changed lengthwise or torch in this process, e.g. the function that compares answers.

Every function, method and constant is noted before the code is loaded and compared afterwards. Code that wants to hide
can defeat this; it is one of several checks, and a person reads the file before.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_ALSO = ("torch", "torch.nn.functional", "torch.nn.modules.module", "numpy", "polars", "json", "hashlib")
_CONSTANTS = (bool, int, float, str, bytes, tuple, frozenset, type(None))
_CHANGING = {"lengthwise.loading.GIVEN"}
"""Tables that grow in normal use."""


class Snapshot:
    """The functions and constants of lengthwise and torch at one time."""

    def __init__(self) -> None:
        import lengthwise

        for found in pkgutil.walk_packages(lengthwise.__path__, "lengthwise."):
            if not found.name.endswith("__main__"):
                try:
                    importlib.import_module(found.name)
                except ImportError:  # it needs an extra that is not installed
                    continue
        # The objects are kept, so that no new one can get the address of an old one.
        self._parts = dict(_parts())

    def changes(self) -> list[str]:
        """Return the names that are not what they were, and what was added to classes."""
        now = dict(_parts())
        changed = [name for name, before in self._parts.items() if name not in now or not _same(before, now[name])]
        # A new method of a known class hides one that it inherits, e.g. Tensor.argmax.
        new = [name for name in now.keys() - self._parts.keys() if isinstance(self._class_of(name), type)]
        return sorted([*changed, *new])

    def _class_of(self, name: str) -> object:
        return self._parts.get(name.rpartition(".")[0], (None,))[0]


def _same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether two notes of one name are the same: objects by identity, constants and tables by value."""
    if len(before) != len(now):
        return False
    return all(
        one is other or (isinstance(one, (*_CONSTANTS, dict, list, set)) and type(one) is type(other) and one == other)
        for one, other in zip(before, now, strict=True)
    )


def _parts() -> Iterator[tuple[str, tuple[Any, ...]]]:
    modules = {name: module for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)}
    for name, module in modules.items():
        own = name == "lengthwise" or name.startswith("lengthwise.")
        if not own and name not in _ALSO:
            continue
        for key, value in list(vars(module).items()):
            where = f"{name}.{key}"
            if isinstance(value, type) and (value.__module__ == name or not own):
                yield where, (value,)
                for attribute, part in list(vars(value).items()):
                    if isinstance(part, FunctionType | staticmethod | classmethod | property):
                        yield f"{where}.{attribute}", _noted(part)
            elif callable(value) and not isinstance(value, type):
                yield where, _noted(value)
            elif own and key.isupper() and not key.startswith("_") and where not in _CHANGING:
                yield where, (_copied(value),)


def _noted(value: object) -> tuple[Any, ...]:
    """Return what makes a function what it is."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    code = getattr(inner, "__code__", None)
    return (value, code, getattr(inner, "__defaults__", None)) if code is not None else (value,)


def _copied(value: object) -> object:
    return type(value)(value) if type(value) in {dict, list, set} else value  # pyrefly: ignore
