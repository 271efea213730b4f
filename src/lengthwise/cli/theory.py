"""`lengthwise theory`: the theorems and lemmas on positions without an encoding, run and measured."""

from __future__ import annotations

import typer

from lengthwise.cli.terminal import app

theory = typer.Typer(
    help="Theorems and lemmas on positions without an encoding, run and measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(theory, name="theory")
