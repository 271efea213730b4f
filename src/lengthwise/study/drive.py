"""The driver: hands out what is missing, in order, until nothing is. Any number of drivers may share a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lengthwise.run.lease import Watch, beat
from lengthwise.spec import SpecError
from lengthwise.study.executors import Executor
from lengthwise.study.plan import Item, Planned
from lengthwise.study.store import State, Store
from lengthwise.study.work import Outcome, job_of

_PATIENT = 6
"""Looks at a store that is away, over about two minutes, before the driver gives up."""
LOOK = 5.0
"""Seconds between two looks at what other drivers have done."""


@dataclass
class Tally:
    """What a driver has done and seen."""

    total: int = 0
    """Items of work that are known, and points that wait for their rate."""
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """Key → why."""
    here: int = 0
    """Done by this driver."""
    again: int = 0
    """Jobs that were given out again: their worker died, or was stopped."""
    waiting: int = 0
    """Cells that cannot be run: a tuning run they need has failed."""
    seconds: list[float] = field(default_factory=list)
    """How long each run took that this driver did."""
    remaining: float = 0.0
    """Seconds of work that is left, as expected before anything was done."""
    foreseen: float = 0.0
    """What the runs behind `seconds` were expected to take."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left that could be done."""
        return len(self.done) + len(self.failed) == self.total

    def sentence(self, going: int) -> str:
        """How it stands."""
        parts = [f"{len(self.done)} of {self.total} done", f"{going} running"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        left = self.remaining * (sum(self.seconds) / self.foreseen if self.foreseen else 1.0)
        if going and left:
            parts.append(f"about {minutes(left / going)} left")
        return ", ".join(parts)


def minutes(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Driver:
    """One driver at work: `Driver(planned, store, InProcess()).run()`."""

    def __init__(
        self,
        planned: Planned,
        store: Store,
        executor: Executor,
        *,
        given: Mapping[str, Mapping[str, Any]] | None = None,
        retry: bool = False,
        expected: Mapping[tuple[str, ...], float] | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.planned, self.store, self.executor, self.tell = planned, store, executor, tell
        self.given = dict(given or {})
        """Summaries of runs that a bundle says are done."""
        self.tally = Tally()
        self._expected = expected or {}
        self._retry, self._again = retry, set[str]()
        self._watch = Watch()
        self._going: dict[str, Item] = {}
        self._held: dict[str, float] = {}
        """Key → when it may be tried again."""
        self._known: tuple[int, list[Item], int] | None = None

    def run(self) -> Tally:
        """Until everything is done, or has failed, or cannot be done."""
        looked, todo = -LOOK, list[Item]()
        try:
            while True:
                if time.monotonic() - looked > LOOK or (not todo and not self._going):
                    todo = self._look()
                    looked = time.monotonic()
                while todo and self.executor.room > 0:
                    self._begin(todo.pop(0))
                if not self._going:
                    if not todo and not self._held:
                        return self.tally
                    time.sleep(min(LOOK, beat() / 4))  # others are at work on what is left
                    looked = -LOOK
                    continue
                self.tell(self.tally.sentence(min(len(self._going), self.executor.slots)))
                for outcome in self.executor.wait(1.0):
                    if self._ended(outcome):
                        looked = -LOOK  # something new can be begun
        finally:
            self.executor.close()

    def _begin(self, item: Item) -> None:
        self._going[item.key] = item
        self.executor.submit(job_of(item, self.planned.study, self.store.folder, item.key in self._again))

    def _ended(self, outcome: Outcome) -> bool:
        """Take note of an outcome; whether the store must be looked at for what follows."""
        item = self._going.pop(outcome.key)
        if outcome.state in {"done", "already"}:
            self.tally.done.add(outcome.key)
            self._held.pop(outcome.key, None)
            if outcome.state == "done":
                self.tally.here += 1
                self.tally.seconds.append(outcome.seconds)
                self.tally.foreseen += self._expected.get(kind_of(item), 0.0)
            return item.kind == "tuning" or bool(self.planned.study.evaluations)
        if outcome.state == "failed":
            self.tally.failed[outcome.key] = outcome.why
            self._again.discard(outcome.key)
            return False
        if outcome.state in {"held", "lost"}:
            self._held[outcome.key] = time.monotonic() + beat() / 2
            return False
        self.tally.again += 1
        self._again.discard(outcome.key)  # asked for once: from now on its deaths count
        return True

    def _items(self, done: frozenset[str]) -> tuple[list[Item], int]:
        """All items that are known, and how many points wait; made again only when a tuning run has ended."""
        tuned = [item.key for tried in self.planned.tuning.values() for item in tried]
        ready = sum(key in done or key in self.given for key in tuned)
        if self._known is None or self._known[0] != ready:
            summaries = {**self.store.summaries(key for key in tuned if key in done), **self.given}
            items, waiting = self.planned.items(summaries)
            # A bundle has no weights, so what it has cannot be evaluated anew.
            items = [item for item in items if item.kind != "evaluation" or item.run not in self.given]
            self._known = (ready, items, len(waiting))
        return self._known[1], self._known[2]

    def _look(self) -> list[Item]:
        """What can be begun now."""
        state = self._state()
        items, waiting = self._items(state.done)
        done = {item.key for item in items if item.key in state.done or item.key in self.given}
        self.tally.done, self.tally.total, self.tally.waiting = done, len(items) + waiting, waiting
        if self._retry:  # those that had failed when the command was given
            self._again, self._retry = {item.key for item in items if item.key in state.failed}, False
        self._failures(items, state)
        ended = done | set(self.tally.failed)
        self.tally.remaining = remaining(self._expected, [item for item in items if item.key not in ended], waiting)
        todo, held = [], dict[str, float]()
        for item in items:
            if item.key in done or item.key in self.tally.failed or item.key in self._going:
                continue
            if item.kind == "evaluation" and item.run not in done:
                continue
            lease = state.leases.get(item.key)
            if lease is not None and not self._watch.free(dict(lease)):
                held[item.key] = time.monotonic()
                continue
            if self._held.get(item.key, 0.0) > time.monotonic():
                held[item.key] = self._held[item.key]
                continue
            todo.append(item)
        self._held = held
        return todo

    def _state(self) -> State:
        """A look at the store; one that is away for a moment is waited for."""
        for tried in range(_PATIENT):
            try:
                return self.store.state()
            except SpecError as error:
                self.tell(f"the store cannot be read, trying again: {error}")
                time.sleep(min(30.0, 2.0**tried))
        return self.store.state()

    def _failures(self, items: Sequence[Item], state: State) -> None:
        keys = {item.key for item in items}
        fresh = {
            key: number
            for key, number in state.failed.items()
            if key in keys and key not in self._again and key not in self.tally.failed
        }
        self.tally.failed |= self.store.reasons(fresh)
        for key in [key for key in self.tally.failed if key not in state.failed]:
            lease = state.leases.get(key)
            if key in state.done or (lease is not None and not self._watch.free(dict(lease))):
                del self.tally.failed[key]  # somebody else is at it again


def kind_of(item: Item) -> tuple[str, ...]:
    """What decides how long an item takes: all but its seed."""
    point = item.point
    return (item.kind, point.task, point.encoding, point.positions, point.model, point.training)


def remaining(expected: Mapping[tuple[str, ...], float], items: Sequence[Item], waiting: int) -> float:
    """Seconds that these items and so many points without a learning rate will take, from `kind_of` → seconds."""
    runs = [seconds for kind, seconds in expected.items() if kind[0] == "run"]
    unknown = waiting * (sum(runs) / len(runs) if runs else 0.0)
    return sum(expected.get(kind_of(item), 0.0) for item in items) + unknown


def probed(store: Store, alone: bool) -> None:
    """Refuse a store on which two drivers could do one run twice."""
    if not store.probe() and not alone:
        raise SpecError(
            f"{store} lets two writers create the same file, so two workers could do one run twice; "
            "use --inline, one command at a time, or another store (a local disk, S3, GCS)"
        )
