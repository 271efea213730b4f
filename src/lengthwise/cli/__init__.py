"""The command line: verbs, one file per family. Everything heavy is imported inside the verb that needs it."""

from __future__ import annotations

import _thread
import atexit
import errno
import io
import os
import sys
import threading
import warnings
from contextlib import suppress
from typing import Annotated

import typer

from lengthwise import __version__
from lengthwise.cli import analyze, encodings, leaderboard, published, runs, study, tasks, theory
from lengthwise.cli.terminal import app
from lengthwise.spec import SpecError

__all__ = ["analyze", "app", "encodings", "leaderboard", "main", "published", "runs", "study", "tasks", "theory"]


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit code 2, a run that diverged is code 3."""
    if sys.stdout is None:  # the shell closed it: `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without − or ≥ shows ?, not a traceback
    warnings.showwarning, sys.unraisablehook = _warn, _interrupt_again
    try:
        app()
    except SystemExit as left:
        if words := getattr(left, "words", ""):  # a run that was stopped says how far it is
            print(words, file=sys.stderr)
        if "RANK" in os.environ or (words and "ray" in sys.modules):
            _exit_without_destructors(int(str(left.code or 0)))
        raise
    except SpecError as error:
        for line in str(error).splitlines() or [""]:
            print(f"lengthwise: error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        _drop_output()  # the reader of our output (`| head`) has left; that is no error
        sys.exit(0)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print(f"lengthwise: error: {str(error.filename)[:40]}… is too long for the name of a file", file=sys.stderr)
            sys.exit(2)
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            raise
        _drop_output()
        print(f"lengthwise: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise  # Python 3.11 wraps Ctrl-C in one while a class is made
        print("lengthwise: stopped", file=sys.stderr)
        sys.exit(130)


def _exit_without_destructors(code: int) -> None:
    """Exit at once: the destructors of Ray, and of Gloo after DDP (PyTorch's issue 190489), may abort the process."""
    atexit._run_exitfuncs()  # these stop Ray's servers
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _drop_output() -> None:
    """Send what is still to be printed nowhere, so that Python does not fail again when it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt_again(problem: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came while Python cleaned up an object: there it is printed, and otherwise ignored."""
    if isinstance(problem.exc_value, KeyboardInterrupt):
        threading.Timer(0.01, _thread.interrupt_main).start()  # in this function it would be ignored again
    else:
        sys.__unraisablehook__(problem)


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """A warning in one line, without the place in our code that raised it."""
    print(f"lengthwise: {message}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """How far beyond its training length does a decoder-only Transformer still work?"""
    if version:
        print(f"lengthwise {__version__}")
        raise typer.Exit
