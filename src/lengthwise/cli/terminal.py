"""The command line itself, and how things are printed in a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from lengthwise.display import format_cell

if TYPE_CHECKING:
    from rich.console import Console
    from typer._click import Context, HelpFormatter

    from lengthwise.display import Display, Part, Rows
    from lengthwise.progress import Say

PANELS = {
    "Start here": ("list", "show", "train", "compare", "ask", "attention", "selftest"),
    "Your encoding": ("new", "verify", "describe", "bench", "measure", "doctor", "leaderboard"),
    "Studies": ("study", "claims", "evaluate", "export-model"),
    "Why it works": ("analyze", "probe", "theory"),
    "Data": ("audit", "corpus", "export", "export-lm-eval", "lengths"),
    "Reference": ("published", "cite"),
}
"""What each verb is for; the help lists them in this order."""


class Verbs(TyperGroup):
    """The verbs with a help that lists them by panel."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write one section for each panel."""
        for title, names in PANELS.items():
            limit = formatter.width - 6 - max(map(len, names))
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])


app = typer.Typer(
    name="lengthwise",
    cls=Verbs,
    help="How far beyond its training length does a decoder-only Transformer still work?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_NUMBER = re.compile(r"[−±≥–-]?\s?[\d,]*\.?\d*(e[+-]\d+)?( ?%)?( \[.*\])?( of \d+)?|not learned|none")

Json = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of a table.")]
LARGEST_SEED = 2**63 - 1
"""Tables store a seed as a signed 64-bit integer."""


def show(result: Display, as_json: bool = False, **more: object) -> None:
    """Print a result, as JSON where asked; `more` are further fields of the JSON."""
    if as_json:
        plain = result.plain()
        print(json.dumps({**plain, **more} if isinstance(plain, dict) else plain, indent=2))
        return
    print_parts(result.display_parts(console().width))


def print_parts(parts: Iterable[Part]) -> None:
    """Print lines and tables, each in its style."""
    for part in parts:
        if isinstance(part.content, str):
            style = part.style or None
            console().print(part.content, style=style, markup=False, highlight=False, soft_wrap=not part.wrap)
        else:
            print_table(part.content)


def print_table(rows: Rows) -> None:
    """Rows as a table, or as paragraphs where the screen is too narrow."""
    from rich.table import Table

    screen = console()
    wide = sum(max(len(format_cell(row.get(column))) for row in rows) + 2 for column in rows[0])
    if wide > 1.6 * screen.width:  # columns would break inside words: a paragraph for each row instead
        for row in rows:
            first, *rest = row
            screen.print(f"[bold]{escape(format_cell(row[first]))}[/]")
            for column in rest:
                if format_cell(row[column]):
                    screen.print(f"  {column}: {escape(format_cell(row[column]))}")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        right = all(
            isinstance(row.get(column), int | float) or _NUMBER.fullmatch(format_cell(row.get(column))) for row in rows
        )
        table.add_column(column, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(escape(format_cell(row.get(column))) for column in rows[0]))
    screen.print(table)


def escape(text: str) -> str:
    """Text in which square brackets are only square brackets."""
    from rich.markup import escape as escaped

    return escaped(text)


def console(stderr: bool = False) -> Console:
    """Where to print, 160 columns wide for a pipe; `:one:` in a spec is no emoji. Rich is imported when needed."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich's own would exit with code 1

    fixed = None if stderr or sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Screen(stderr=stderr, width=fixed, emoji=False)


def say(text: str, style: str = "") -> None:
    """Print text as it is: no markup, no colours of numbers, and no line broken inside a path or a spec."""
    console().print(text, style=style or None, markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())


def progress_callback(quiet: bool) -> Say | None:
    """What says how far slow work is: nothing if it should be quiet; None leaves it to the function."""
    return (lambda words: None) if quiet else None
