"""How results are shown: a result lists its parts once; terminals, notebooks and `str` print the same ones."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lengthwise.spec import format_value

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """A line of text, or a table."""

    content: str | Rows
    style: str = ""
    """How a terminal shows text: bold, dim, yellow, ..."""
    wrap: bool = True
    """Whether the line may be broken; False for paths and specs."""


class Display(ABC):
    """A result that is shown in a terminal, in a notebook, and as JSON."""

    @abstractmethod
    def display_parts(self, width: int = 80) -> Iterable[Part]:
        """Return what is shown, in order; `width` is the number of columns."""

    @abstractmethod
    def plain(self) -> object:
        """Return the result as data that JSON can hold."""

    def __str__(self) -> str:
        return "\n".join(
            part.content if isinstance(part.content, str) else _text_table(part.content)
            for part in self.display_parts()
        ).rstrip()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{html.escape(part.content)}</p>" if isinstance(part.content, str) else _html_table(part.content)
            for part in self.display_parts()
            if part.content
        )


class Table(Display, list[dict[str, Any]]):
    """Rows that are shown as a table; `table.names` has the values of the first column."""

    @property
    def names(self) -> list[str]:
        """The first column."""
        return [str(next(iter(row.values()))) for row in self]

    def display_parts(self, width: int = 80) -> Iterable[Part]:
        """The table."""
        return [Part(self) if self else Part("(empty)")]

    def plain(self) -> object:
        """The rows."""
        return list(self)


class Facts(Display, dict[str, Any]):
    """Names and values that are shown as a table of two columns."""

    def display_parts(self, width: int = 80) -> Iterable[Part]:
        """A line for each name."""
        return [Part([{"field": key, "value": value} for key, value in self.items()])]

    def plain(self) -> object:
        """The names and values."""
        return dict(self)


def format_cell(value: object) -> str:
    """Format a value for a person."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={format_value(item)}" for key, item in value.items())  # as they are typed
    if isinstance(value, list | tuple):
        return ", ".join(format_cell(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "none" if value is None else str(value)


def _text_table(rows: Rows) -> str:
    lines = [list(rows[0]), *([format_cell(row.get(column)) for column in rows[0]] for row in rows)]
    wide = [min(48, max(len(line[column]) for line in lines)) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(_cut(text, size).ljust(size) for text, size in zip(line, wide, strict=True)).rstrip()
        for line in lines
    )


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _html_table(rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = ["".join(f"<td>{html.escape(format_cell(row.get(column)))}</td>" for column in rows[0]) for row in rows]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
