"""Leases: a run has one owner at a time, over any number of machines; the only primitive is create-if-absent.

    STORE/leases/ID/1     the process that creates file n owns attempt n and increments a counter in it every 10 s
    STORE/runs/ID/1/      the output of attempt n; only its owner writes here
    STORE/done/ID         created last: the attempt's number and a summary; a run is done if and only if this exists
    STORE/failed/ID.1     created last: why attempt n failed

A lease is stale if its counter has not moved for six beats of the *observer's* clock, or at once if host, boot id and
process id (without /proc: a lock that its owner holds) show that the owner is dead. Another process takes over by
creating n + 1. An owner that wakes up after that can neither overwrite nor finish.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lengthwise.checksums import Damaged, read_sealed, sealed
from lengthwise.folder import Folder, Unavailable
from lengthwise.run.owner import OURS, describe_owner, hold, owner_is_dead, release, same_machine, whoami
from lengthwise.spec import SpecError, one_line
from lengthwise.training.health import Diverged

STORE = "lengthwise-store"
BEATS = 6
"""A lease whose counter has not moved for this many beats is stale."""
DEATHS = 2
"""After this many deaths in a row without a new checkpoint, the run has failed."""


def heartbeat_seconds() -> float:
    """Return the seconds between two beats; LENGTHWISE_BEAT must be the same for all processes that share a store."""
    try:
        return max(0.05, float(os.environ.get("LENGTHWISE_BEAT", "10")))
    except ValueError:
        raise SpecError("LENGTHWISE_BEAT is a number of seconds, e.g. 10") from None


class Held(SpecError):
    """Another process holds the lease of the run."""

    here = False
    """Whether the owner is on this machine, where it is known to be alive."""


class LeaseLost(SpecError):
    """Another process has taken over the run."""


class Failed(SpecError):
    """The run has failed; it is retried only with `retry_failed=True`."""


@dataclass
class StaleLeaseDetector:
    """Remembers the counters of leases to detect stale ones: `StaleLeaseDetector().can_be_taken(content)`."""

    seen: dict[str, tuple[tuple[str, int], float]] = field(default_factory=dict)
    """Lease → its token and counter, and when they were first seen."""

    def can_be_taken(self, lease_content: dict[str, Any]) -> bool:
        """Whether the lease can be taken: it was released, its owner is dead, or its counter has not moved."""
        return lease_content.get("state") != "held" or owner_is_dead(lease_content) or self.is_stale(lease_content)

    def is_stale(self, lease_content: dict[str, Any]) -> bool:
        """Whether the counter has not moved for `BEATS` beats since this observer first saw its value."""
        where, now = (
            lease_content.get("where", lease_content["token"]),
            (lease_content["token"], lease_content["beats"]),
        )
        before, since = self.seen.get(where, (None, 0.0))
        if before != now:
            self.seen[where] = (now, time.monotonic())
            return False
        return time.monotonic() - since > BEATS * heartbeat_seconds()


class Lease:
    """Attempt `number` of a run, owned by this process; `with Lease.take(...)` keeps it alive."""

    def __init__(self, store: Folder, id: str, number: int, content: dict[str, Any]) -> None:
        self.store, self.id, self.number, self._content = store, id, number, content
        self.lost = False
        """Whether another process is known to have taken over."""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()

    @property
    def home(self) -> Folder:
        """The run's folder."""
        return self.store / "runs" / self.id

    @property
    def folder(self) -> Folder:
        """The attempt's folder."""
        return self.home / str(self.number)

    @classmethod
    def take(
        cls, store: Folder, id: str, stale_lease_detector: StaleLeaseDetector | None = None, retry_failed: bool = False
    ) -> Lease | None:
        """Become the owner of the next attempt; return None if the run is done.

        Raises `Held` if another process owns the run, `Diverged` if training diverged (it would again), and `Failed` if
        the run failed, unless `retry_failed`.
        """
        heartbeat_seconds()  # raise for a wrong LENGTHWISE_BEAT here, not in the thread
        if intact_done_record(store, id) is not None:
            return None
        _release_pending()
        leases, stale_lease_detector = store / "leases" / id, stale_lease_detector or StaleLeaseDetector()
        numbers = _numbers(leases)
        tried = [int(name) for name in (store / "runs" / id).names() if name.isdecimal()]
        if numbers:
            content = read_lease(leases, numbers[-1])
            if not stale_lease_detector.can_be_taken(content):
                held = Held(f"run {id} is being run by {describe_owner(content)}; wait for it, or stop it")
                held.here = same_machine(content)
                raise held
            _refuse_failed(store, id, numbers, retry_failed)
        number = max([0, *numbers, *tried]) + 1
        content: dict[str, Any] = {"state": "held", "beats": 0, **whoami(), "token": uuid.uuid4().hex}
        if content["boot"] is None:
            content["locked"] = hold(content["token"])
        if not leases.create(str(number), json.dumps(content)):
            release(content["token"])
            raise Held(f"run {id} has just been started by somebody else")
        OURS.add(content["token"])
        lease = cls(store, id, number, content)
        try:
            over = done_record(store, id) is not None  # it may have finished before this lease was created
        except SpecError:
            with suppress(SpecError):
                lease.release("stopped")
            raise
        if over:
            lease.release("stopped")
            return None
        return lease

    # --- heartbeat ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        self._thread = threading.Thread(target=self._beat, name=f"lease {self.id}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        OURS.discard(self._content["token"])
        release(self._content["token"], remove=self._content["state"] != "held")

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(heartbeat_seconds()):
            late = time.monotonic() - last > BEATS * heartbeat_seconds() / 2
            with suppress(Exception):  # a store that is briefly unreachable must not end the run; `finish` would raise
                with self._writing:
                    if self._over.is_set():
                        return
                    self._content["beats"] += 1
                    (self.store / "leases" / self.id).write(str(self.number), json.dumps(self._content))
                if late and self.was_taken_over():  # this process was suspended, or the store was unreachable
                    self.lost = True
                last = time.monotonic()

    def set_progress(self, **progress: float) -> None:
        """Set the progress that the next beat writes."""
        self._content["progress"] = progress

    def was_taken_over(self) -> bool:
        """Whether a later attempt exists."""
        return any(number > self.number for number in _numbers(self.store / "leases" / self.id))

    # --- the end -----------------------------------------------------------------------------------------------------

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if somebody else has taken over."""
        if self.lost or self.was_taken_over():
            self.lost = True
            raise LeaseLost(f"attempt {self.number} at run {self.id} was taken over by somebody else; it ends here")

    def finish(self, summary: dict[str, Any], files: Mapping[str, str]) -> None:
        """Mark the run as done by this attempt, with the checksums of its files.

        Raises `LeaseLost` if another process has taken over.
        """
        self.raise_if_lost()
        if not declare_done(self.store, self.id, self.number, self._content["token"], summary, files):
            raise LeaseLost(f"run {self.id} was finished by somebody else")
        self.release("done")

    def fail(self, reason: str, diverged: Mapping[str, Any] | None = None) -> None:
        """Record that the attempt failed, for a reason that would recur; `diverged` is `Diverged.record()`."""
        told: dict[str, Any] = {"attempt": self.number, "why": one_line(reason)[:500], "token": self._content["token"]}
        if diverged is not None:
            told["diverged"] = dict(diverged)
        try:
            (self.store / "failed").create(f"{self.id}.{self.number}", json.dumps(told))
        finally:
            self.release("failed")

    def release(self, state: str) -> None:
        """Release the lease, so that no other process waits for it."""
        with self._writing:
            self._over.set()
            self._content["state"] = state
            OURS.discard(self._content["token"])  # first, in case the write below fails
            written = False
            try:
                (self.store / "leases" / self.id).write(str(self.number), json.dumps(self._content))
                written = True
            except Unavailable:
                _TO_RELEASE.append((self.store / "leases" / self.id, str(self.number), json.dumps(self._content)))
                raise
            finally:
                release(self._content["token"], remove=written)


_TO_RELEASE: list[tuple[Folder, str, str]] = []
"""Leases of this process that could not be released because the store was away; otherwise they count as deaths."""


def _release_pending() -> None:
    """Release what could not be released before; a store that is still away does not stop work on another one."""
    for pending in tuple(_TO_RELEASE):
        leases, name, content = pending
        with suppress(Unavailable):
            leases.write(name, content)
            _TO_RELEASE.remove(pending)


def declare_done(
    store: Folder, id: str, attempt: int, token: str, summary: Mapping[str, Any], files: Mapping[str, str]
) -> bool:
    """Create `done/ID`; False if it exists. `files` has the checksum of each file, by its path in the run's folder."""
    record = sealed({"id": id, "attempt": attempt, "token": token, **summary, "files": dict(files)})
    return (store / "done").create(id, json.dumps(record))


def done_record(store: Folder, id: str) -> dict[str, Any] | None:
    """Return the content of `done/ID`, or None; raises `Damaged` if it is not what was recorded for this run."""
    done = store / "done"
    return check_done_record(read_sealed(done, id), id, str(done)) if done.exists(id) else None


def intact_done_record(store: Folder, id: str) -> dict[str, Any] | None:
    """Return the content of `done/ID`, or None; a damaged one is set aside, so that the run is made again."""
    try:
        return done_record(store, id)
    except Damaged as error:
        mark_damaged(store, id, str(error))
        return None


def check_done_record(record: dict[str, Any], id: str, source: str) -> dict[str, Any]:
    """Return a record of `done/` if it has what is read from it, and is of this run."""
    attempt, files = record.get("attempt"), record.get("files", {})
    if record.get("id", id) != id or type(attempt) is not int or attempt < 1 or not isinstance(files, dict):
        raise Damaged(f"{source}/{id} is damaged: it is no record of this run")
    return record


def mark_damaged(store: Folder, id: str, why: str) -> None:
    """Declare a damaged run not done, so that it is made again; its record is kept in `damaged/`."""
    record = {"id": id, "why": one_line(why), "token": uuid.uuid4().hex}
    with suppress(SpecError):
        record["was"] = (store / "done").read(id).decode(errors="replace")
    (store / "damaged").create(f"{id}.{record['token'][:8]}", json.dumps(record))
    (store / "done").remove(id)
    warnings.warn(f"run {id} is damaged and is made again: {one_line(why)}", stacklevel=2)


def read_lease(leases_folder: Folder, attempt_number: int) -> dict[str, Any]:
    """Return a lease's content; an unreadable one (partly written) counts as held, with a counter that stands still."""
    try:
        content = leases_folder.json(str(attempt_number))
        if content["beats"] >= 0 and content["token"]:
            return {**content, "where": f"{leases_folder}/{attempt_number}"}
    except (SpecError, KeyError, TypeError):
        pass
    return {
        "state": "held",
        "beats": -2,
        "token": "unreadable",
        "where": f"{leases_folder}/{attempt_number}",
        "host": None,
    }


def _numbers(leases: Folder) -> list[int]:
    return sorted(int(name) for name in leases.names() if name.isdecimal())


def _refuse_failed(store: Folder, id: str, numbers: list[int], again: bool) -> None:
    """Raise for a run that failed, or whose process died repeatedly without progress, unless `again`."""
    failed = [int(name.rpartition(".")[2]) for name in (store / "failed").names() if name.rpartition(".")[0] == id]
    if failed and max(failed) == numbers[-1]:
        told: dict[str, Any] = {"why": "the record of its failure is damaged"}
        with suppress(Damaged):
            told |= read_sealed(store / "failed", f"{id}.{numbers[-1]}")
        if told.get("diverged"):
            raise Diverged.read(told["diverged"], id)
        if not again:
            raise Failed(f"run {id} has failed: {told['why']}")
    if again:
        return
    since = [number for number in numbers if number > max(failed, default=0)][-DEATHS:]
    leases, runs = store / "leases" / id, store / "runs" / id
    if len(since) == DEATHS and all(
        read_lease(leases, number).get("state") == "held" and not (runs / str(number) / "checkpoints").names()
        for number in since
    ):
        why = f"its process died {DEATHS} times in a row before a new checkpoint (out of memory?)"
        told = {"attempt": numbers[-1], "why": why, "token": uuid.uuid4().hex}
        (store / "failed").create(f"{id}.{numbers[-1]}", json.dumps(told))
        raise Failed(f"run {id} has failed: {why}")
