"""How slow work says what it is doing: in a terminal, a notebook or a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
_EVERY = 10.0
"""Seconds between lines where stderr is no terminal."""


@contextmanager
def progress(say: Say | None = None) -> Iterator[Say]:
    """A line on stderr that says what is being done; in a log, a new one every ten seconds, none of what is quick.

    Where the caller has a `say` of its own, that is used.
    """
    if say is not None:
        yield say
        return
    if not sys.stderr.isatty():
        last, said = time.monotonic(), ""

        def log(words: str) -> None:
            nonlocal last, said
            if words != said and time.monotonic() - last >= _EVERY:
                last, said = time.monotonic(), words
                print(words, file=sys.stderr, flush=True)  # noqa: T201

        yield log
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True, emoji=False).status("") as status:
        yield lambda words: status.update(escape(words))
