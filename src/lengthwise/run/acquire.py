"""Before an attempt begins: find the weights that it starts from, and acquire the lease of the run."""

from __future__ import annotations

import json
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lengthwise.checksums import Damaged, checksum, read_sealed
from lengthwise.device import HOST, Compute
from lengthwise.encoding.labels import label_of_class
from lengthwise.folder import Folder, Missing, Unavailable, without_paths
from lengthwise.loading import source_digest
from lengthwise.run.identity import Plan
from lengthwise.run.lease import (
    BEATS,
    Failed,
    Held,
    Lease,
    StaleLeaseDetector,
    declare_done,
    done_record,
    heartbeat_seconds,
    intact_done_record,
)
from lengthwise.run.machine import machine_record
from lengthwise.run.run import Run, attempts_of
from lengthwise.spec import SpecError, digest
from lengthwise.training.health import Diverged
from lengthwise.training.parallel import DistributedProcesses


def load_start_run(start: str, store: str, is_called: bool = False) -> tuple[Run, dict[str, str]]:
    """Return the run to start from, and what identifies its weights in the new run's identity.

    `is_called` says that its model will be called, so that code which the run names would be executed.
    """
    where, _, checkpoint = start.partition("@")
    run = Run.open(where, store, allow_code=not is_called)
    label = checkpoint or "last"
    weights = run.weights(label)
    content = {
        name: digest(value.double().sum().item(), value.double().square().sum().item(), bits=64)
        for name, value in weights.items()
    }
    return run, {"run": run.id, "checkpoint": label, "weights": f"{digest(content, bits=64):016x}"}


def acquire_lease(
    store: Folder,
    plan: Plan,
    processes: DistributedProcesses,
    compute: Compute,
    checkpoint_every: int | None,
    take_lease: Callable[[], Lease | None],
) -> tuple[Lease | None, Folder | None]:
    """Return the lease of this attempt, or the folder of a finished one; the first process decides for all."""
    lease: Lease | None = None
    found: list[Any] = [0, "", None]
    if processes.first:
        try:
            _adopt(store, plan.id)
            lease = take_lease()
            if lease is None:
                found[1] = str(done_record(store, plan.id)["attempt"])  # pyrefly: ignore
            else:
                record = {
                    "version": 1,
                    "id": plan.id,
                    "options": without_paths(plan.options()),
                    "identity": plan.identity(),
                }
                named = [spec.name for _, spec in plan.outside_classes()]
                record["code"] = {without_paths(name): source_digest(name) for name in named}
                labels = {without_paths(spec.name): label_of_class(cls) for cls, spec in plan.outside_classes()}
                record["recorded"] = {
                    **machine_record(processes, compute, checkpoint_every),
                    "labels": labels,
                }
                if differing := _computed_otherwise(lease, record["recorded"]):
                    record["recorded"]["continues"] = differing
                lease.folder.create("run.json", json.dumps(record, indent=1))
                found[0] = lease.number
        except Diverged as error:
            found[2] = ("Diverged", error.record())
        except SpecError as error:
            found[2] = (type(error).__name__, str(error))
            if lease is not None:  # this process holds the lease but will not train: release it
                with suppress(SpecError):
                    lease.release("stopped") if isinstance(error, Unavailable) else lease.fail(str(error))
    found = processes.broadcast_from_first(found)
    if found[2] is not None:
        kind, told = found[2]
        if kind == "Diverged":
            raise Diverged.read(told, plan.id)
        raise {"Held": Held, "Failed": Failed, "Unavailable": Unavailable}.get(kind, SpecError)(told)
    if found[1]:
        return None, store / "runs" / plan.id / found[1]
    return lease or Lease(store, plan.id, found[0], {}), None


def _computed_otherwise(lease: Lease, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the attempt before this one was computed, as far as it differs: then resuming is not bit-equal."""
    before = [attempt for attempt in attempts_of(lease.home) if int(attempt.leaf) < lease.number]
    try:
        told = before[-1].json("run.json")["recorded"]
        earlier = {"device": HOST.type, "compile": False, **told}  # runs from before devices were recorded
        return {key: earlier.get(key) for key in ("device", "compile", "processes") if earlier.get(key) != now[key]}
    except (IndexError, KeyError, TypeError, SpecError):
        return {}


def take_lease_with_wait(
    store: Folder, id: str, retry_failed: bool, on_progress: Callable[[str], None]
) -> Lease | None:
    """Take a lease; if its owner is on another machine, watch for about a minute whether its counter moves."""
    watch, until, first = StaleLeaseDetector(), time.monotonic() + (BEATS + 2) * heartbeat_seconds(), None
    while True:
        try:
            return Lease.take(store, id, watch, retry_failed)
        except Held as held:
            counts = {where: seen for where, (seen, _) in watch.seen.items()}
            first = counts if first is None else first
            if held.here or not counts or counts != first or time.monotonic() > until:
                raise
            on_progress(str(held).partition(";")[0] + "; looking whether it is alive")
            time.sleep(heartbeat_seconds() / 4)


def _adopt(store: Folder, id: str) -> None:
    """Create `done/ID` if an attempt has finished without it: it was killed just before, or is older than leases."""
    if intact_done_record(store, id) is None:
        declare_finished(store, id)


def declare_finished(store: Folder, id: str) -> None:
    """Create `done/ID` for the first attempt that has finished and whose files are intact."""
    for attempt in attempts_of(store / "runs" / id):
        if attempt.exists("done"):
            try:
                done, files = finished_attempt(attempt)
            except Damaged as error:
                warnings.warn(f"{attempt} is damaged and not used: {error}", stacklevel=2)
                continue
            declare_done(store, id, int(attempt.leaf), uuid.uuid4().hex, time_and_last_validation(done), files)
            return


def finished_attempt(attempt: Folder) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a finished attempt recorded, and the checksums of its files; raises `Damaged` if they differ."""
    done = read_sealed(attempt, "done")
    try:
        paths = [f"{attempt.leaf}/{name}" for name in FILES] + list(done["kept"].values())
        paths += [f"{attempt.leaf}/{LOG}"] if attempt.exists(LOG) else []
        files = {path: checksum(attempt.parent.read(path)) for path in paths}
        time_and_last_validation(done)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Damaged(f"{attempt}/done is damaged: {type(error).__name__}: {error}") from error
    except Missing as error:
        raise Damaged(str(error)) from error
    for path, recorded in done.get("files", {}).items():
        if files.get(path) != recorded:
            raise Damaged(f"{attempt.parent}/{path} is damaged: it is not what was recorded")
    return done, {**files, f"{attempt.leaf}/done": checksum(attempt.read("done"))}


FILES = ("run.json", "rows.parquet", "predictions.parquet", "model.safetensors")
"""The files of a finished attempt, besides its log and the weights that are kept."""
LOG = "train.jsonl"
"""The log of an attempt; one that only evaluated has none."""


def time_and_last_validation(done: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `done/ID` records besides the attempt: its duration and the last seen-length validation."""
    validations = done["validations"]
    times = {"seconds": done.get("seconds"), "cpu_seconds": done.get("cpu_seconds")}
    return {**times, "validation": validations[-1] if validations else None}
