"""`lengthwise new`: a file to begin with, its test, and the command that compares it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.terminal import app, say


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="encoding or task")],
    name: Annotated[str, typer.Argument(help="its name, e.g. mine")],
    to: Annotated[Path, typer.Option(help="the folder to write into")] = Path("."),
) -> None:
    """Write a template for a new encoding or task, with its test.

    It also prints the command that compares it with others.
    """
    from lengthwise.interface.new import write_template

    made = write_template(kind, name, to)
    say("\n".join([f"written: {made.file}, {made.test}", "then:", *(f"  {line}" for line in made.commands)]))
