"""One measurement in a separate process: its peak memory, and whether it finishes within a time limit."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from lengthwise.spec import SpecError, one_line
from lengthwise.timing.work import Setting, Work

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM = 8
"""Tokens of the small warm-up call, which loads libraries and fills memory pools."""


@dataclass(frozen=True)
class CallCost:
    """The cost of one call: seconds, and peak MiB above the memory in use before it; or why it failed."""

    seconds: float = 0.0
    peak_mib: float | None = None
    failed: str | None = None


def run_in_new_process(setting: Setting, threads: int, seconds_limit: float) -> CallCost:
    """Run the work once in a new process, which is killed after `seconds_limit` seconds."""
    # A fork server that has imported torch starts a process in milliseconds, and no process inherits our memory.
    context = get_context("forkserver")
    context.set_forkserver_preload(["lengthwise.timing.work"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(there, setting, threads), daemon=True)
    with _without_main():
        child.start()
    there.close()
    try:
        if not here.poll(seconds_limit):
            return CallCost(failed=f"not done after {seconds_limit:g} s")
        return here.recv()
    except EOFError:
        child.join(5)
        return CallCost(failed=f"its process ended (exit code {child.exitcode}): out of memory?")
    finally:
        child.kill()
        child.join()
        here.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Let a new process not import the script that started this one, which may have no `__main__` guard."""
    own = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = own


def _child(there: Connection, setting: Setting, threads: int) -> None:
    import torch

    from lengthwise.device import is_host, peak_bytes, restart_peak

    torch.set_num_threads(threads)
    try:
        Work(replace(setting, length=WARM, batch=1))()
        work = Work(setting)
        where, on_host = work.device, is_host(work.device)
        gc.collect()
        if not on_host:
            restart_peak(where)
        before = _restart() if on_host else _mib(peak_bytes(where))
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        if before is None:
            peak = None
        else:
            peak = (_status("VmHWM") if on_host else _mib(peak_bytes(where)) or 0.0) - before
        there.send(CallCost(seconds, peak))
    except SpecError as error:
        there.send(CallCost(failed=str(error)))
    except Exception as error:  # noqa: BLE001 - report any error of a user's encoding; it is not a lack of memory
        there.send(CallCost(failed=f"{type(error).__name__}: {one_line(str(error))}"[:200]))


def _mib(size: int | None) -> float | None:
    return None if size is None else size / 2**20


def _restart() -> float | None:
    """Reset the peak memory counter and return the MiB now in use; None if the system has no such counter."""
    with suppress(OSError):
        # Not ru_maxrss: a child inherits its parent's value, and a large parent would hide the child's own peak.
        CLEAR.write_text("5")
        return _status("VmRSS")
    return None


def _status(field: str) -> float:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
