"""Who hears how a training goes: a progress bar, TensorBoard, W&B. None of them can break a run."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lengthwise.spec import SpecError, did_you_mean


class Listener(Protocol):
    """Hears numbers of a step: `loss`, `rate`, `norm`, `tokens_per_second`, or those of a validation."""

    def hear(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take note."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...


class TensorBoard:
    """Event files in a folder. Needs `pip install 'lengthwise[track]'`."""

    def __init__(self, folder: str, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(f"{folder}/{name}")

    def hear(self, step: int, numbers: Mapping[str, float]) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A W&B run. Needs `pip install 'lengthwise[track]'`; without an account, WANDB_MODE=offline."""

    def __init__(self, folder: str, name: str) -> None:
        import wandb  # pyrefly: ignore[missing-import]

        self._run = wandb.init(project="lengthwise", name=name, dir=folder)

    def hear(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


LISTENERS: dict[str, Callable[[str, str], Listener]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def known_listeners(names: Sequence[str]) -> None:
    """Refuse names that nobody has."""
    for name in names:
        if name not in LISTENERS:
            raise SpecError(f"there is no listener {name!r}.{did_you_mean(name, LISTENERS)}")


class Audience:
    """All who listen; one that fails is heard of once, and then left out."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = list(listeners)

    @classmethod
    def of(cls, names: Sequence[str], folder: str, name: str) -> Audience:
        """The listeners with these names; one that cannot begin is left out."""
        known_listeners(names)
        audience = cls()
        for wanted in names:
            audience._try(wanted, lambda wanted=wanted: audience._listeners.append(LISTENERS[wanted](folder, name)))
        return audience

    def hear(self, step: int, numbers: Mapping[str, float]) -> None:
        """Tell all."""
        for listener in list(self._listeners):
            self._try(type(listener).__name__, lambda one=listener: one.hear(step, numbers), listener)

    def close(self) -> None:
        """Let all go."""
        for listener in list(self._listeners):
            self._try(type(listener).__name__, listener.close, listener)

    def _try(self, name: str, act: Callable[[], Any], listener: Listener | None = None) -> None:
        try:
            act()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, the run goes on
            warnings.warn(f"{name} is left out of this run: {type(error).__name__}: {error}", stacklevel=2)
            if listener in self._listeners:
                self._listeners.remove(listener)


LINES = "LENGTHWISE_LINES"
"""Set in the environment, progress is told in lines: several processes cannot share one bar."""


class Progress:
    """A bar with loss, tokens per second and time left; where nobody looks, a line now and then."""

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

    def step(self, step: int, loss: float, speed: float, left: float) -> None:
        """A step is done."""
        told = f"loss {loss:.3f}, {speed:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, told=told)
        else:
            self._line(f"step {step:,} of {self.steps:,}, {told}, {left:.0f} s left")

    def say(self, words: str) -> None:
        """Something else is being done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.steps, told=words)
        else:
            self._line(words)

    def _line(self, words: str) -> None:
        if not self._quiet and time.monotonic() - self._said > self.every:
            self._said = time.monotonic()
            print(f"{self.title}: {words}", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
