"""How results are shown: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import html

from lengthwise.spec import show


class Display:
    """A result whose `str` is shown wherever Python would show its fields, and in notebooks."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Table(list[dict[str, object]]):
    """A list of rows that prints as a table in terminals and notebooks; `table.names` has the names to use."""

    @property
    def names(self) -> list[str]:
        """The first column."""
        return [str(next(iter(row.values()))) for row in self]

    def __str__(self) -> str:
        if not self:
            return "(empty)"
        cells = [list(self[0]), *([_text(value) for value in row.values()] for row in self)]
        wide = [min(48, max(len(line[column]) for line in cells)) for column in range(len(cells[0]))]
        lines = (
            "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(line, wide, strict=True)) for line in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in (self[0] if self else ()))
        rows = ["".join(f"<td>{html.escape(_text(value))}</td>" for value in row.values()) for row in self]
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={show(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
