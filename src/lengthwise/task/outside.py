"""Tasks from a user's own file: an error in one becomes a one-line `SpecError` with the file and the line number.

The tasks of the package are never wrapped, so they have no overhead from this.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any

from lengthwise.spec import SpecError, describe_error_with_line, one_line
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import TooManyChoices

OWED = ("symbols", "draw", "to_example", "check", "longest_answer_instance", "chance", "space")
CONTRACT = "`lengthwise new task NAME` writes a file to begin with, help(lengthwise.task.base.Task) has the contract"
DECORATOR = "@dataclass(frozen=True, kw_only=True)"


def is_outside_package(cls: type) -> bool:
    """Whether a class is defined outside the package."""
    return not cls.__module__.startswith("lengthwise.")


def refuse_undeclared_options(cls: type, name: str) -> None:
    """Refuse a class whose options would be ignored because they are not dataclass fields."""
    for one in cls.__mro__:
        if not (issubclass(one, Task) and is_outside_package(one)):
            continue
        stated = [key for key, kind in inspect.get_annotations(one).items() if "ClassVar" not in str(kind)]
        if stated and "__dataclass_fields__" not in one.__dict__:
            raise SpecError(
                f"{name!r}: {one.__name__} states {', '.join(stated)}, which would be ignored: "
                f"write {DECORATOR} above `class {one.__name__}`"
            )
        for key in {option.name for option in fields(one)} - set(stated):
            if key in one.__dict__:
                raise SpecError(
                    f"{name!r}: {one.__name__} sets {key} without a type, which would be ignored: "
                    f"write {key}: {type(one.__dict__[key]).__name__} = {one.__dict__[key]!r}"
                )


def refuse_incomplete_task(task: Task, name: str) -> None:
    """Refuse a task that does not implement all required methods."""
    cls = type(task)
    if cls is Task:
        raise SpecError(f"{name!r} is the base class of all tasks; name your own class, which derives from it")
    lists = cls.listed is not Task.listed  # such a task needs no `draw`
    missing = [key for key in OWED if getattr(cls, key) is getattr(Task, key) and not (lists and key == "draw")]
    if missing:
        raise SpecError(f"{name!r} lacks {', '.join(missing)}; {CONTRACT}")


def wrap_task_errors(task: Task, name: str) -> Task:
    """Wrap the task's methods: an exception or a wrong return value becomes a `SpecError` with the user's line."""
    for key in ("symbols", "lengths", "far"):
        _look(task, name, key)
    for key in (*OWED[1:], *_OTHERS):
        # `bucket` hashes what `draw` returned; if hashing fails, the error is in `draw`.
        where = f"{name!r}, {'what draw returns' if key == 'bucket' else key}"
        object.__setattr__(task, key, _Guard(getattr(task, key), where))
    return task


def _look(task: Task, name: str, key: str) -> None:
    """Refuse a property that raises, or is not a sequence."""
    try:
        found = getattr(task, key)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{name!r}, {key}: {_place(error, type(task))}") from error
    if callable(found):
        raise SpecError(f"{name!r}, {key} is a method; write @property above it")
    if not isinstance(found, Sequence):
        raise SpecError(f"{name!r}, {key} is {_shown(found)}; it is a tuple, a list or a range")
    if key == "symbols" and not all(isinstance(symbol, str) for symbol in found):
        raise SpecError(f"{name!r}, symbols has {next(x for x in found if not isinstance(x, str))!r}, not a string")


class _Guard:
    """One method of one task, called as before."""

    def __init__(self, method: Callable[..., Any], where: str) -> None:
        self.method, self.where = method, where
        self.check = _CHECKS.get(method.__name__)

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes and gives
        try:
            found = self.method(*arguments, **named)
        except (SpecError, TooManyChoices):
            raise
        except (Exception, SystemExit) as error:
            owner = getattr(self.method, "__self__", None)
            raise SpecError(f"{self.where}: {_place(error, type(owner))}") from error
        if self.check is None:
            return found
        try:
            return self.check(found)
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self.where} returned {_shown(found)}: {error}") from error


def _place(error: BaseException, cls: type) -> str:
    """Return file, line and message of an error; without file and line if the user's file is not in its traceback."""
    source = inspect.getsourcefile(cls) or ""
    told = describe_error_with_line(error, source)
    return f"{Path(source).name}, {told}" if told.startswith("line ") else told


def _shown(value: object) -> str:
    """Format a value for an error message: the first characters of its repr, and its type."""
    if value is None:
        return "None"
    text = one_line(repr(value))
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


# --- what methods return ---------------------------------------------------------------------------------------------


def _instance(found: object) -> object:
    if found is None:
        raise TypeError("return the instance: a number, a string, or a tuple of such")
    try:
        hash(found)
    except TypeError:
        raise TypeError("an instance is a number, a string, or a tuple of such, all the way down") from None
    return found


def _example(found: object) -> Example:
    if not isinstance(found, Example):
        raise TypeError("return Example(prompt, answer), both tuples of symbols")
    for key, part in found._asdict().items():
        if not isinstance(part, tuple):
            raise TypeError(f"its {key} is {_shown(part)}; write a tuple of symbols, e.g. ('a', 'b', '=')")
        for symbol in part:
            if not isinstance(symbol, str):
                raise TypeError(f"its {key} has {_shown(symbol)}; a symbol is a string")
    return found


def _verdict(found: object) -> bool:
    if found is None:
        raise TypeError("return True or False")
    return bool(found)


def _number(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, Real) or math.isnan(found):
        raise TypeError("return a number")
    return float(found)


def _count(found: Any) -> int:  # noqa: ANN401 - anything that counts
    try:
        count = operator.index(found)
    except TypeError:
        raise TypeError("return a whole number, e.g. 2**length") from None
    if count < 1:
        raise ValueError("a length that can be drawn has at least one instance")
    return count


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "draw": _instance,
    "longest_answer_instance": _instance,
    "to_example": _example,
    "check": _verdict,
    "chance": _number,
    "weight": _number,
    "space": _count,
}
_OTHERS = (
    "parse_prompt",
    "subgroup",
    "listed",
    "weight",
    "facts",
    "bucket",
    "key",
    "places",
    "max_answer_digit_run",
    "answer_limit",
)
