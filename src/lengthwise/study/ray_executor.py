"""Run jobs on Ray: on a local cluster started on demand, or on an existing one. Only this file imports ray.

Each job is one Ray task; Tune and Train are not used. After a worker, node or driver is lost, the store shows which
runs are missing.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lengthwise.run.lease import StaleLeaseDetector
from lengthwise.spec import SpecError, one_line
from lengthwise.study.executors import PATIENCE
from lengthwise.study.file import RunResources
from lengthwise.study.work import Job, Outcome, do_job

AHEAD = 4
"""Tasks queued beyond those that can run at once, so that no worker waits for the driver."""
_OBJECTS = 100_000_000
_LOOK = 5.0
"""Seconds between two checks of the cluster's nodes."""
_watch = StaleLeaseDetector()
"""The leases of other owners that this worker process has observed."""


def ray_is_installed() -> bool:
    """Return whether ray is installed, without importing it."""
    return importlib.util.find_spec("ray") is not None


def _work(job: Job) -> Outcome:
    return do_job(job, _watch)


class RayDidNotStart(SpecError):
    """Raised if Ray's own servers cannot be started on this machine, for example because it is too busy."""


class RayExecutor:
    """Runs jobs as Ray tasks: `RayExecutor(Resources(), workers=2)`, or `address="auto"` for an existing cluster."""

    def __init__(
        self,
        resources: RunResources,
        *,
        address: str | None = None,
        workers: int | None = None,
        do: Callable[[Job], Outcome] = _work,
    ) -> None:
        if not ray_is_installed():
            raise SpecError("ray is not installed; pip install 'lengthwise[study]', or leave --address out")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if address is not None and not _local(address):
            _authenticated()
        import ray

        self._ray, self._refs = ray, dict[Any, str]()
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            cores = workers * resources.cpus if workers is not None else max(os.cpu_count() or 1, resources.cpus)
            local: dict[str, Any] = {"num_cpus": int(-(-cores // 1)), "include_dashboard": False}
            try:
                with _own_signals():
                    ray.init("local", _node_ip_address="127.0.0.1", object_store_memory=_OBJECTS, **local, **common)
            except Exception as error:  # Ray raises a plain Exception when a server of its own is too slow
                ray.shutdown()
                raise RayDidNotStart(
                    f"Ray did not start on this machine ({one_line(str(error))[:200]}); with --no-ray (in Python "
                    "executor='processes') runs need no Ray"
                ) from error
        else:
            try:
                with _own_signals():
                    ray.init(address, **common)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise SpecError(f"no Ray cluster answers at {address!r}: {one_line(str(error))[:300]}") from error
        asked: dict[str, Any] = {"num_cpus": resources.cpus, "max_retries": 0}
        if resources.gpus:
            asked["num_gpus"] = resources.gpus
        if resources.bytes is not None:
            asked["memory"] = resources.bytes
        if resources.custom:
            asked["resources"] = dict(resources.custom)
        self._asked, self._workers = resources, workers
        # A worker process does many runs, so that it imports torch once; with GPUs only one, because a process that has
        # used a GPU does not see the one that the next run is given.
        self._do = ray.remote(max_calls=1 if resources.gpus else 0)(do).options(**asked)
        self._check_room()

    def _check_room(self) -> None:
        """Raise if no node that is in the cluster now has the resources of one run."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {"CPU": self._asked.cpus, "GPU": self._asked.gpus, **self._asked.custom}
        if self._asked.bytes is not None:
            wanted["memory"] = float(self._asked.bytes)
        if not any(all(node.get(key, 0.0) >= value for key, value in wanted.items()) for node in nodes):
            most = {key: max((node.get(key, 0.0) for node in nodes), default=0.0) for key in wanted}
            lacking = [f"{key} {wanted[key]:g} (there is {most[key]:g})" for key in wanted if most[key] < wanted[key]]
            told = ", ".join(lacking) or "all of its resources on one node"
            self._ray.shutdown()
            raise SpecError(f"no node of the cluster has what one run asks for: {told}; see resources in the study")

    @property
    def slots(self) -> int:
        if time.monotonic() - self._counted_at > _LOOK:  # a cluster may grow or shrink
            self._counted, self._counted_at = self._count(), time.monotonic()
        return self._counted

    def _count(self) -> int:
        """Count the jobs that the cluster can run at once."""
        there = self._ray.cluster_resources()
        by = [there.get("CPU", 1.0) / self._asked.cpus]
        if self._asked.gpus:
            by.append(there.get("GPU", 0.0) / self._asked.gpus)
        by += [there.get(name, 0.0) / value for name, value in self._asked.custom.items()]
        if self._workers is not None:
            by.append(float(self._workers))
        return max(1, int(min(by)))

    @property
    def free_slots(self) -> int:
        return self.slots + AHEAD - len(self._refs)

    _counted, _counted_at = 1, -_LOOK
    _alive, _looked_at = frozenset[str](), -_LOOK

    def submit(self, job: Job) -> None:
        self._refs[self._do.remote(job)] = job.key

    def wait(self, seconds: float) -> list[Outcome]:
        ray = self._ray
        if not self._refs:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(list(self._refs), num_returns=1, timeout=seconds)
        if ready:  # also collect all others that have ended
            ready, _ = ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        ended = [self._outcome(ref) for ref in ready]
        if self._node_lost():
            # Ray reports the tasks of a disconnected node only when the connection times out, after many minutes. The
            # store knows sooner: jobs that still run hold a live lease, and all others are started again.
            ended += [Outcome(key, "died", "a node of the cluster is gone") for key in self._refs.values()]
            self._refs.clear()
        return ended

    def _node_lost(self) -> bool:
        """Return whether a node has disappeared since the last check."""
        if time.monotonic() - self._looked_at < _LOOK:
            return False
        alive = frozenset(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
        lost, self._alive, self._looked_at = self._alive - alive, alive, time.monotonic()
        return bool(lost)

    def _outcome(self, ref: Any) -> Outcome:  # noqa: ANN401
        key, ray = self._refs.pop(ref), self._ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:  # `do_job` never raises, so the worker could not start the job
            return Outcome(key, "failed", one_line(str(error).strip().splitlines()[-1]))
        except ray.exceptions.RayError as error:  # the worker or its node died
            return Outcome(key, "died", one_line(str(error).splitlines()[0]))

    def close(self) -> None:
        ray = self._ray
        try:
            for ref in list(self._refs):
                ray.cancel(ref, force=False)  # a running job saves a checkpoint
            if self._refs:
                ray.wait(list(self._refs), num_returns=len(self._refs), timeout=PATIENCE)
        except (ray.exceptions.RayError, KeyboardInterrupt):
            pass
        finally:
            self._refs.clear()
            ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Start Ray so that it changes no signal of this process, and its servers survive the end of the terminal.

    The servers inherit that SIGHUP is blocked, so that running work is saved before they are stopped; a SIGHUP that
    reaches this process meanwhile is handled afterwards. Ray's handler of SIGTERM is replaced by the one before it.
    """
    handler, mask = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with suppress(ValueError):  # only the main thread can set signal handlers
            signal.signal(signal.SIGTERM, handler)


def _local(address: str) -> bool:
    return address.partition("://")[2].startswith(("127.", "localhost")) or address.startswith(("127.", "localhost"))


def _authenticated() -> None:
    """Require a token on a cluster that others can reach: by default, Ray lets everybody run code on it."""
    if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
        return
    there = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not there and not (Path.home() / ".ray" / "auth_token").exists():
        raise SpecError(
            "a cluster that is not on this machine is used with a token, and there is none: make one with "
            "`ray get-auth-token --generate`, copy ~/.ray/auth_token to every node and start Ray there with "
            "RAY_AUTH_MODE=token; RAY_AUTH_MODE=disabled goes without, at your own risk"
        )
