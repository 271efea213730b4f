"""Loggers of training metrics: a progress bar, TensorBoard, W&B. None of them can stop a run by failing."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lengthwise.folder import Folder
from lengthwise.spec import SpecError, did_you_mean


class Logger(Protocol):
    """Receives the metrics of a step: `loss`, `lr`, `norm`, `tokens_per_second`, or those of a validation."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        ...

    def close(self) -> None:
        """Called once, after the last step."""
        ...


class TensorBoard:
    """Event files in a folder. Needs `pip install 'lengthwise[track]'`."""

    def __init__(self, folder: str, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(f"{folder}/{name}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A W&B run. Needs `pip install 'lengthwise[track]'`; without an account, WANDB_MODE=offline."""

    def __init__(self, folder: str, name: str) -> None:
        import wandb  # pyrefly: ignore[missing-import]

        self._run = wandb.init(project="lengthwise", name=name, dir=folder)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, Callable[[str, str], Logger]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def check_loggers(names: Sequence[str]) -> None:
    """Refuse names of loggers that do not exist."""
    for name in names:
        if name not in LOGGERS:
            raise SpecError(f"there is no logger {name!r}.{did_you_mean(name, LOGGERS)}")


class Loggers:
    """The loggers of a run; one that fails is warned about once, and then left out."""

    def __init__(self, loggers: Sequence[Logger] = ()) -> None:
        self._loggers = list(loggers)

    @classmethod
    def of(cls, names: Sequence[str], folder: str, name: str) -> Loggers:
        """The loggers with these names; one that cannot start is left out."""
        check_loggers(names)
        loggers = cls()
        for wanted in names:
            loggers._try(wanted, lambda wanted=wanted: loggers._loggers.append(LOGGERS[wanted](folder, name)))
        return loggers

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics to all loggers."""
        for logger in list(self._loggers):
            self._try(type(logger).__name__, lambda one=logger: one.log(step, metrics), logger)

    def close(self) -> None:
        """Close all loggers."""
        for logger in list(self._loggers):
            self._try(type(logger).__name__, logger.close, logger)

    def _try(self, name: str, act: Callable[[], Any], logger: Logger | None = None) -> None:
        try:
            act()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the run goes on
            warnings.warn(f"{name} is left out of this run: {type(error).__name__}: {error}", stacklevel=2)
            if logger in self._loggers:
                self._loggers.remove(logger)


LINES = "LENGTHWISE_LINES"
"""If this environment variable is set, progress is printed in lines: several processes cannot share a bar."""


class Progress:
    """A bar with loss, tokens per second and time left; without a terminal, an occasional line."""

    def __init__(self, title: str, steps: int, quiet: bool = False, every: float = 20.0) -> None:
        self.title, self.steps, self.every = title, steps, every
        self._bar: Any = None
        self._said = time.monotonic()
        self._quiet = quiet
        if not quiet and sys.stderr.isatty() and not os.environ.get(LINES):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} {task.fields[told]}", markup=False),
                TimeRemainingColumn(),
                console=Console(stderr=True, emoji=False),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=steps, told="")
            self._bar.start()

    def step(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show the progress after a step."""
        told = f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, told=told)
        else:
            self._line(f"step {step:,} of {self.steps:,}, {told}, {seconds_left:.0f} s left")

    def say(self, words: str) -> None:
        """Show a message about work beside the training, such as an evaluation."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.steps, told=words)
        else:
            self._line(words)

    def _line(self, words: str) -> None:
        if not self._quiet and time.monotonic() - self._said > self.every:
            self._said = time.monotonic()
            with suppress(OSError):
                print(f"{self.title}: {words}", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            with suppress(OSError):  # the terminal was closed
                self._bar.stop()


_FLUSH_SECONDS = 2.0


class LogFile:
    """`train.jsonl`: lines are kept and appended every few seconds."""

    def __init__(self, folder: Folder, writes: bool) -> None:
        self._folder, self._writes = folder, writes
        self._waiting: list[str] = []
        self._flushed = time.monotonic()

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        self._waiting.append(json.dumps(line) + "\n")
        if time.monotonic() - self._flushed > _FLUSH_SECONDS and self._folder.local is not None:
            self.flush()

    def flush(self) -> None:
        """Append the lines that are kept."""
        if self._waiting and self._writes:
            self._folder.append("train.jsonl", "".join(self._waiting))
        self._waiting.clear()
        self._flushed = time.monotonic()
