"""Executors run the jobs of a study: in this process, in worker processes, or on Ray, with one interface."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from lengthwise.run.lease import StaleLeaseDetector
from lengthwise.study.work import Job, Outcome, do_job

PATIENCE = 60.0
"""Seconds that runs have to save a checkpoint when the study is stopped."""


class Executor(Protocol):
    """Runs jobs, several at a time."""

    @property
    def slots(self) -> int:
        """How many jobs run at once."""
        ...

    @property
    def free_slots(self) -> int:
        """How many more jobs can be submitted now."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of jobs that ended since the last call; wait up to `seconds` for the first one."""
        ...

    def close(self) -> None:
        """Let running jobs save their checkpoints, then stop."""
        ...


class InProcess:
    """One job at a time, in this process."""

    slots = 1

    def __init__(self, do: Callable[[Job, StaleLeaseDetector], Outcome] = do_job) -> None:
        self._do, self._watch = do, StaleLeaseDetector()
        self._next: Job | None = None

    @property
    def free_slots(self) -> int:
        return 1 if self._next is None else 0

    def submit(self, job: Job) -> None:
        self._next = job

    def wait(self, seconds: float) -> list[Outcome]:
        if self._next is None:
            time.sleep(seconds)
            return []
        job, self._next = self._next, None
        outcome = self._do(job, self._watch)
        if outcome.state == "stopped":  # this process received the signal
            raise KeyboardInterrupt
        return [outcome]

    def close(self) -> None:
        self._next = None


class Processes:
    """Runs jobs in worker processes on this machine; each worker imports torch once and does many jobs.

    A worker is `python -m lengthwise.study.worker`, so the caller's script is not executed again. With `gpus`, each
    worker sees one of these GPUs, or groups of GPUs such as `0,1`, in turn.
    """

    def __init__(self, workers: int, gpus: Sequence[str] = ()) -> None:
        self.slots, self._gpus, self._many = workers, gpus, 0
        self._busy: dict[subprocess.Popen[str], str] = {}
        self._idle: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._lines: queue.SimpleQueue[tuple[subprocess.Popen[str], str]] = queue.SimpleQueue()

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._busy)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else self._started()
        self._busy[worker] = job.key
        assert worker.stdin is not None
        try:
            worker.stdin.write(job.line() + "\n")
            worker.stdin.flush()
        except (OSError, ValueError):  # the worker has died; its reader thread reports that
            pass

    def _started(self) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if self._gpus:  # in turn
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[self._many % len(self._gpus)]
        self._many += 1
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "lengthwise.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the driver only
        )
        self._readers.append(threading.Thread(target=self._read, args=(worker,), daemon=True))
        self._readers[-1].start()
        return worker

    def _read(self, worker: subprocess.Popen[str]) -> None:
        """Queue the lines that a worker writes; an empty line means that the worker has ended."""
        assert worker.stdin is not None and worker.stdout is not None
        with worker.stdout as said:
            for line in said:
                self._lines.put((worker, line))
        worker.wait()
        with suppress(OSError):  # closing flushes a job that the worker never read
            worker.stdin.close()
        self._lines.put((worker, ""))

    def wait(self, seconds: float) -> list[Outcome]:
        ended = []
        try:
            worker, line = self._lines.get(timeout=seconds)
            while True:
                if (outcome := self._ended(worker, line)) is not None:
                    ended.append(outcome)
                worker, line = self._lines.get_nowait()
        except queue.Empty:
            return ended

    def _ended(self, worker: subprocess.Popen[str], line: str) -> Outcome | None:
        key = self._busy.pop(worker, None)
        if line:
            self._idle.append(worker)
            return Outcome(**json.loads(line))
        if worker in self._idle:
            self._idle.remove(worker)
        return None if key is None else Outcome(key, "died", f"its process ended with code {worker.returncode}")

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.terminate()  # a training run saves a checkpoint
        until = time.monotonic() + PATIENCE
        for worker in [*self._idle, *self._busy]:
            try:
                worker.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for reader in self._readers:
            reader.join()
        self._idle.clear(), self._busy.clear(), self._readers.clear()
