"""Being asked to stop: a cluster's SIGTERM, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

STOPPED = 75
"""The exit code of what was asked to stop and has saved itself: start it again, it goes on."""


class Stopped(SystemExit):
    """The run was asked to stop; it has saved itself and goes on when it is started again."""

    def __init__(self, step: int) -> None:
        super().__init__(STOPPED)
        self.step = step
        self.words = f"stopped: saved at step {step:,}; the same command goes on"


@contextmanager
def when_asked_to_stop(act: Callable[[], None]) -> Iterator[None]:
    """Do this on SIGTERM and Ctrl-C, also where a shell has told a process of the background to ignore Ctrl-C."""

    def asked(number: int, frame: object) -> None:
        act()

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread: somebody else decides
        before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
