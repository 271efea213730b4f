"""The driver submits missing runs in order until all are done or failed. Several drivers may share a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lengthwise.folder import Unavailable
from lengthwise.run.lease import StaleLeaseDetector, heartbeat_seconds
from lengthwise.spec import SpecError
from lengthwise.study.bundle import done_and_diverged
from lengthwise.study.executors import Executor
from lengthwise.study.plan import Item, Planned, failed_before, runs_without_weights
from lengthwise.study.store import Store, StoreState
from lengthwise.study.work import Outcome, job_of

_PAUSE, _ROOM = 10.0, 4 * 2**20
"""Seconds between two looks whether the store can be written to again, and the bytes that count as room."""
LOOK = 5.0
"""Seconds between two reads of the store, which show what other drivers have done."""


@dataclass
class Tally:
    """The progress of a driver."""

    total: int = 0
    """Known items plus the points that wait for their learning rate."""
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """Key → reason."""
    here: int = 0
    """Items done by this driver."""
    again: int = 0
    """Jobs submitted again because their worker died or was stopped."""
    waiting: int = 0
    """Points without a learning rate because a tuning run is not done or has failed."""
    seconds: list[float] = field(default_factory=list)
    """The duration of each item done by this driver."""
    remaining: float = 0.0
    """Seconds of the work that is left, by the estimate made before the first run."""
    foreseen: float = 0.0
    """The estimated seconds of the items in `seconds`."""

    @property
    def ended(self) -> bool:
        """Whether every item is done or has failed."""
        return len(self.done) + len(self.failed) == self.total

    @property
    def slowdown_factor(self) -> float:
        """How many times longer items take than was estimated."""
        return sum(self.seconds) / self.foreseen if self.foreseen else 1.0

    def sentence(self, running: int, running_seconds: float = 0.0) -> str:
        """The progress as one line; `running_seconds` are the seconds that running items have taken so far."""
        parts = [f"{len(self.done)} of {self.total} done", f"{running} running"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        left = self.remaining * self.slowdown_factor - running_seconds
        if running and left > 0:
            parts.append(f"about {format_duration(left / running)} left")
        return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Return a duration in readable units."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Driver:
    """A driver of one study: `Driver(planned, store, InProcess()).run()`."""

    def __init__(
        self,
        planned: Planned,
        store: Store,
        executor: Executor,
        *,
        given: Mapping[str, Mapping[str, Any]] | None = None,
        retry: bool = False,
        expected: Mapping[tuple[str, ...], float] | None = None,
        device: str = "auto",
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.device = device
        self.planned, self.store, self.executor, self.tell = planned, store, executor, tell
        self._given_records = dict(given or {})
        self.given, self._given_diverged = done_and_diverged(self._given_records)
        """Records of runs that a bundle says are done, and why those that diverged did."""
        self.tally = Tally()
        self._expected = expected or {}
        self._retry, self._again = retry, set[str]()
        self._watch = StaleLeaseDetector()
        self._going: dict[str, Item] = {}
        self._began: dict[str, float] = {}
        self._held: dict[str, float] = {}
        """Key of an item that another owner holds → when it may be tried again."""
        self._known: tuple[int, list[Item], int] | None = None
        self._follow_failed: dict[str, str] = {}
        """Runs that cannot be done because the run that they start from has failed."""

    def run(self) -> Tally:
        """Run until every item is done, has failed, or cannot be run."""
        looked, todo = -LOOK, list[Item]()
        try:
            while True:
                if time.monotonic() - looked > LOOK or (not todo and not self._going):
                    try:
                        todo = self._look()
                    except Unavailable as error:
                        self._wait_for_store(str(error))
                        continue
                    looked = time.monotonic()
                while todo and self.executor.free_slots > 0:
                    self._begin(todo.pop(0))
                if not self._going:
                    if not todo and not self._held:
                        return self.tally
                    time.sleep(min(LOOK, heartbeat_seconds() / 4))  # other drivers hold all remaining items
                    looked = -LOOK
                    continue
                self.tell(self.tally.sentence(min(len(self._going), self.executor.slots), self._spent()))
                for outcome in self.executor.wait(1.0):
                    if self._ended(outcome):
                        looked = -LOOK  # new items may be ready
        finally:
            self.executor.close()

    def _spent(self) -> float:
        """Return the seconds that running items have taken, each up to its expected duration."""
        now, slowdown_factor = time.monotonic(), self.tally.slowdown_factor
        limits = {
            key: slowdown_factor * self._expected.get(item_without_seed(item), 0.0) for key, item in self._going.items()
        }
        return sum(min(now - self._began[key], limit) for key, limit in limits.items())

    def _begin(self, item: Item) -> None:
        self._going[item.key], self._began[item.key] = item, time.monotonic()
        again = item.key in self._again
        self.executor.submit(job_of(item, self.planned.study, self.store.folder, again, self.device))

    def _ended(self, outcome: Outcome) -> bool:
        """Record an outcome; return whether the store must be read again for items that are now ready."""
        item = self._going.pop(outcome.key)
        if outcome.state in {"done", "already"}:
            self.tally.done.add(outcome.key)
            self._held.pop(outcome.key, None)
            if outcome.state == "done":
                self.tally.here += 1
                self.tally.seconds.append(outcome.seconds)
                self.tally.foreseen += self._expected.get(item_without_seed(item), 0.0)
            return item.kind == "tuning" or bool(self.planned.study.evaluations or self.planned.study.then)
        if outcome.state == "failed":
            self.tally.failed[outcome.key] = outcome.why
            self._again.discard(outcome.key)
            return False
        if outcome.state in {"held", "lost"}:
            self._held[outcome.key] = time.monotonic() + heartbeat_seconds() / 2
            return False
        if outcome.state == "unavailable":
            self._wait_for_store(outcome.why)
        self.tally.again += 1
        self._again.discard(outcome.key)  # a retry is granted once: from now on its deaths count
        return True

    def _wait_for_store(self, why: str) -> None:
        """Pause until the store can be written to again; nothing that was running counts as failed."""
        while True:
            self.tell(f"paused, and goes on by itself when the store can be written to: {why.partition(';')[0]}")
            time.sleep(_PAUSE)
            try:
                self.store.folder.write("probes/room", bytes(_ROOM))
                self.store.folder.remove("probes/room")
                return
            except Unavailable as error:
                why = str(error)

    def _items(self, state: StoreState) -> tuple[list[Item], int]:
        """Return all known items and the number of waiting points; recomputed only when a tuning run has ended."""
        tuned = [item.key for tried in self.planned.tuning.values() for item in tried]
        ended = state.done | state.failed.keys() | self._given_records.keys()
        ready = sum(key in ended for key in tuned)
        if self._known is None or self._known[0] != ready:
            summaries = self.store.ended_records(key for key in tuned if key in ended) | self._given_records
            items, waiting = self.planned.items(summaries)
            self._known = (ready, items, len(waiting))
        return self._known[1], self._known[2]

    def _look(self) -> list[Item]:
        """Read the store and return the items that can start now."""
        state = self.store.state()
        items, waiting = self._items(state)
        items, done = self._items_and_done(items, state)
        self.tally.done, self.tally.total, self.tally.waiting = done, len(items) + waiting, waiting
        if self._retry:  # retry the items that had failed when the command started
            self._again, self._retry = {item.key for item in items if item.key in state.failed}, False
        self._failures(items, state)
        ended = done | set(self.tally.failed)
        self.tally.remaining = remaining_seconds(
            self._expected, [item for item in items if item.key not in ended], waiting
        )
        todo, held = [], dict[str, float]()
        for item in items:
            if item.key in done or item.key in self.tally.failed or item.key in self._going:
                continue
            if item.kind == "evaluation" and item.run_id not in done:
                continue
            if item.kind == "run" and item.start_id is not None and item.start_id not in state.done:
                continue
            lease = state.leases.get(item.key)
            if lease is not None and not self._watch.can_be_taken(dict(lease)):
                held[item.key] = time.monotonic()
                continue
            if self._held.get(item.key, 0.0) > time.monotonic():
                held[item.key] = self._held[item.key]
                continue
            todo.append(item)
        self._held = held
        return todo

    def _items_and_done(self, items: Sequence[Item], state: StoreState) -> tuple[list[Item], set[str]]:
        """Return the items that are to be done or are done, and the keys of those that are."""
        here = state.done | runs_without_weights(items, state.done, self.given)
        # A bundle has no weights, so its runs cannot be evaluated again; those that are done here can.
        kept = [
            item for item in items if item.kind != "evaluation" or item.run_id not in self.given or item.run_id in here
        ]
        given = {item.key for item in kept if item.key in self.given and item.run_id not in here}
        return kept, {item.key for item in kept if item.key in state.done or item.key in given}

    def _failures(self, items: Sequence[Item], state: StoreState) -> None:
        keys = {item.key for item in items}
        fresh = {
            key: number
            for key, number in state.failed.items()
            if key in keys and key not in self._again and key not in self.tally.failed
        }
        self.tally.failed |= self.store.reasons(fresh)
        lost = self._given_diverged
        self.tally.failed |= {key: lost[key] for key in keys if key in lost and key not in state.done}
        for key in [key for key in self.tally.failed if key not in state.failed]:
            lease = state.leases.get(key)
            if key in state.done or (lease is not None and not self._watch.can_be_taken(dict(lease))):
                del self.tally.failed[key]  # another driver is retrying it, or has done it
        for key in self._follow_failed:  # the run that they start from may have been done since
            self.tally.failed.pop(key, None)
        follow = failed_before(items, self.tally.failed)
        self._follow_failed = {key: why for key, why in follow.items() if key not in state.done}
        self.tally.failed |= self._follow_failed


def item_without_seed(item: Item) -> tuple[str, ...]:
    """Return what decides how long an item takes: everything but its seed."""
    point = item.point
    return (item.kind, point.task, point.encoding, point.positions, point.model, point.training)


def remaining_seconds(
    expected_seconds: Mapping[tuple[str, ...], float], items: Sequence[Item], waiting_points: int
) -> float:
    """Return the expected seconds of these items and waiting points; `expected_seconds` is by `item_without_seed`."""
    runs = [seconds for kind, seconds in expected_seconds.items() if kind[0] == "run"]
    unknown = waiting_points * (sum(runs) / len(runs) if runs else 0.0)
    return sum(expected_seconds.get(item_without_seed(item), 0.0) for item in items) + unknown


def require_exclusive_create(store: Store, only_driver: bool) -> None:
    """Raise if two drivers could do the same run twice on this store."""
    if not store.supports_exclusive_create() and not only_driver:
        raise SpecError(
            f"{store} lets two writers create the same file, so two workers could do one run twice; "
            "use --inline, one command at a time, or another store (a local disk, S3, GCS)"
        )
