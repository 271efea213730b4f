"""The command line: verbs, one file per family. Everything heavy is imported inside the verb that needs it."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer

from lengthwise import __version__
from lengthwise.cli import analyze, encodings, published, runs, study, tasks, theory
from lengthwise.cli.terminal import app
from lengthwise.spec import SpecError

__all__ = ["analyze", "app", "encodings", "main", "published", "runs", "study", "tasks", "theory"]


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit code 2, a run that diverged is code 3."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without − or ≥ shows ?, not a traceback
    warnings.showwarning = _warn
    try:
        app()
    except SystemExit as left:
        if words := getattr(left, "words", ""):  # a run that was stopped says how far it is
            print(words, file=sys.stderr)
        raise
    except SpecError as error:
        for line in str(error).splitlines() or [""]:
            print(f"lengthwise: error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; that is no error.
        sys.stderr.close()
        sys.exit(0)


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """A warning in one line, without the place in our code that raised it."""
    print(f"lengthwise: {message}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """How far beyond its training length does a decoder-only Transformer still work?"""
    if version:
        print(f"lengthwise {__version__}")
        raise typer.Exit
