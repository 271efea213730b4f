"""Handle requests to stop: SIGTERM, as sent by a cluster, Ctrl-C, and SIGHUP, sent when a terminal is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

STOPPED = 75
"""The exit code after a requested stop with a checkpoint: the same command continues the run."""


class Stopped(SystemExit):
    """The run stopped on request; its checkpoint is saved, and starting it again continues it."""

    def __init__(self, step: int) -> None:
        super().__init__(STOPPED)
        self.step = step
        self.words = f"stopped: saved at step {step:,}; the same command goes on"


@contextmanager
def call_when_asked_to_stop(on_stop: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` on SIGTERM, Ctrl-C and SIGHUP; under nohup, which ignores SIGHUP, it stays ignored.

    Ctrl-C also works in a background process, whose shell made it ignore Ctrl-C.
    """

    def asked(number: int, frame: object) -> None:
        on_stop()

    before: dict[int, Any] = {}
    with suppress(ValueError):  # only the main thread can set signal handlers
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
