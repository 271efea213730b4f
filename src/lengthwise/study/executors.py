"""Where the jobs of a study are done: in this process, in worker processes, or on Ray. One interface for all."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from lengthwise.run.lease import Watch
from lengthwise.study.work import Job, Outcome, work

PATIENCE = 60.0
"""Seconds that runs are given to save themselves when the study is stopped."""


class Executor(Protocol):
    """Does jobs, some at a time."""

    @property
    def slots(self) -> int:
        """How many jobs it does at once."""
        ...

    @property
    def room(self) -> int:
        """How many more jobs it takes now."""
        ...

    def submit(self, job: Job) -> None:
        """Begin a job."""
        ...

    def wait(self, seconds: float) -> list[Outcome]:
        """The jobs that ended since the last call; waits up to `seconds` for one."""
        ...

    def close(self) -> None:
        """Let running jobs save themselves, and stop."""
        ...


class InProcess:
    """One job at a time, in this process."""

    slots = 1

    def __init__(self, do: Callable[[Job, Watch], Outcome] = work) -> None:
        self._do, self._watch = do, Watch()
        self._next: Job | None = None

    @property
    def room(self) -> int:
        return 1 if self._next is None else 0

    def submit(self, job: Job) -> None:
        self._next = job

    def wait(self, seconds: float) -> list[Outcome]:
        if self._next is None:
            time.sleep(seconds)
            return []
        job, self._next = self._next, None
        outcome = self._do(job, self._watch)
        if outcome.state == "stopped":  # the signal was for this process
            raise KeyboardInterrupt
        return [outcome]

    def close(self) -> None:
        self._next = None


class Processes:
    """Jobs in worker processes of this machine; each imports torch once and does many jobs.

    A worker is `python -m lengthwise.study.worker`, so nothing of the caller's script is executed in it.
    """

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self._busy: dict[subprocess.Popen[str], str] = {}
        self._idle: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._lines: queue.SimpleQueue[tuple[subprocess.Popen[str], str]] = queue.SimpleQueue()

    @property
    def room(self) -> int:
        return self.slots - len(self._busy)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop() if self._idle else self._started()
        self._busy[worker] = job.key
        assert worker.stdin is not None
        try:
            worker.stdin.write(job.line() + "\n")
            worker.stdin.flush()
        except (OSError, ValueError):  # it has died, its pipe may be closed; its reader says so
            pass

    def _started(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "lengthwise.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the one who hands out jobs
        )
        self._readers.append(threading.Thread(target=self._read, args=(worker,), daemon=True))
        self._readers[-1].start()
        return worker

    def _read(self, worker: subprocess.Popen[str]) -> None:
        """Take down what a worker says; an empty line says that it is gone."""
        assert worker.stdin is not None and worker.stdout is not None
        with worker.stdout as said:
            for line in said:
                self._lines.put((worker, line))
        worker.wait()
        with suppress(OSError):  # a job that it never read
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
            worker.terminate()  # one that trains saves its run
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
