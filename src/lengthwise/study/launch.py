"""Which engine does a study: Ray where it is, processes where it is not, or this process alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lengthwise.run.stop import STOPPED, when_asked_to_stop
from lengthwise.study.drive import Driver, Engine, Inline, Tally, kind_of, probed, remaining
from lengthwise.study.engine import RayEngine, installed
from lengthwise.study.plan import Item, Planned
from lengthwise.study.status import status
from lengthwise.study.store import Store

_LOOK = 2.0
_RESTARTS = 1000


@dataclass
class Launch:
    """How the runs of a command are done; `drive` does them and says what came of it, or None when it was stopped."""

    file: str
    store: Store
    inline: bool
    workers: int | None
    address: str | None
    no_ray: bool
    allow_code: bool
    add: list[str]
    tasks: str | None
    with_: Path | None
    checked: bool = False
    """Whether this is one of several drivers that another command started."""

    def drive(
        self,
        planned: Planned,
        store: Store,
        tell: Callable[[str], None],
        given: Mapping[str, Mapping[str, Any]],
        again: bool = False,
        only: Sequence[Item] | None = None,
    ) -> Tally | None:
        """Do what is missing."""
        if only is None and not again and (there := self._tally(planned, store, given, 0, fresh=True)).ended:
            return there  # nothing is missing: no engine is started
        probed(store, alone=self.inline)
        expected = self._expected(planned, only, tell)
        ray = not self.inline and not self.no_ray and (self.address is not None or installed())
        if not self.inline and not ray and only is None:
            with when_asked_to_stop(_interrupt):
                self._foreseen = expected
                return self._processes(planned, store, tell, given, again)
        driver_plan = planned if only is None else Only(planned, only)
        given = given if only is None else {}
        engine: Engine = Inline()
        if ray:
            tell("starting Ray" if self.address is None else f"joining {self.address}")
            engine = RayEngine(planned.study.resources, address=self.address, workers=self.workers)
        try:
            with when_asked_to_stop(_interrupt):
                return Driver(driver_plan, store, engine, given=given, retry=again, expected=expected, tell=tell).run()
        except KeyboardInterrupt:
            return None

    def _processes(
        self,
        planned: Planned,
        store: Store,
        tell: Callable[[str], None],
        given: Mapping[str, Mapping[str, Any]],
        again: bool,
    ) -> Tally | None:
        """N drivers, each in a process of its own, over the same store; one that dies is replaced."""
        many = self.workers or os.cpu_count() or 1
        command = [sys.executable, "-m", "lengthwise", "study", "run", self.file, "--inline"]
        command += ["--store", str(store), "--quiet", "--checked"]
        command += ["--allow-code"] if self.allow_code else []
        command += [part for name in self.add for part in ("--add", name)]
        command += ["--tasks", self.tasks] if self.tasks else []
        command += ["--with", str(self.with_)] if self.with_ else []
        going: list[subprocess.Popen[bytes]] = []
        restarts = 0
        try:
            # What failed is tried once more by one of them, and not by each.
            first = [*command[:4], "retry", *command[5:]] if again else command
            listed = [first, *[command] * (many - 1)]
            going = [subprocess.Popen(one, stdin=subprocess.DEVNULL) for one in listed]
            while going:
                time.sleep(0.2)
                for process in [one for one in going if one.poll() is not None]:
                    going.remove(process)
                    if process.returncode < 0 and restarts < _RESTARTS:  # killed: what it did is taken up again
                        restarts += 1
                        going.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
                    elif process.returncode == STOPPED:
                        raise KeyboardInterrupt
                tell(self._tally(planned, store, given, restarts).sentence(len(going)))
        except KeyboardInterrupt:
            return None
        finally:
            for process in going:
                process.terminate()  # each saves itself and can go on
            for process in going:
                process.wait()
        return self._tally(planned, store, given, restarts, fresh=True)

    def _expected(
        self, planned: Planned, only: Sequence[Item] | None, tell: Callable[[str], None]
    ) -> Mapping[tuple[str, ...], float]:
        """Kind of run → about how long one takes; nothing where a child of another driver would work it out again."""
        if self.checked:
            return {}
        from lengthwise.study.cost import expected_seconds

        tell("timing a step")
        items = list(only) if only is not None else planned.provisional(planned.points)
        items += [] if only is not None else [item for tried in planned.tuning.values() for item in tried]
        known = expected_seconds([item.plan for item in items], planned.study.resources.threads)
        return {kind_of(item): known[item.key] for item in items}

    _foreseen: Mapping[tuple[str, ...], float] = field(default_factory=dict, init=False)
    _looked: tuple[float, Tally] | None = None

    def _tally(
        self,
        planned: Planned,
        store: Store,
        given: Mapping[str, Mapping[str, Any]],
        restarts: int,
        fresh: bool = False,
    ) -> Tally:
        """How it stands in the store, looked at now and then."""
        if self._looked is None or fresh or time.monotonic() - self._looked[0] > _LOOK:
            found = status(planned, store, given)
            tally = Tally(found.total, {item.key for item in found.done}, found.failed, waiting=found.waiting)
            tally.again = restarts
            busy = {one["run"] for one in found.running}
            tally.remaining = remaining(self._foreseen, found.missing, found.waiting + len(busy))
            if found.seconds is not None and self._foreseen:
                tally.seconds, tally.foreseen = [found.seconds], sum(self._foreseen.values()) / len(self._foreseen)
            self._looked = (time.monotonic(), tally)
        return self._looked[1]


def _interrupt() -> None:
    raise KeyboardInterrupt


class Only(Planned):
    """A plan of some items of another."""

    def __init__(self, planned: Planned, items: Sequence[Item]) -> None:
        super().__init__(planned.study)
        self._items = list(items)

    @property
    def tuning(self) -> dict[Any, tuple[Item, ...]]:  # pyrefly: ignore
        return {}

    def items(self, summaries: Mapping[str, Mapping[str, Any]]) -> tuple[list[Item], list[Any]]:
        return self._items, []
