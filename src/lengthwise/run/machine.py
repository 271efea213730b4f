"""The machine and the versions a run was made with: they are recorded, but are no part of its identity."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lengthwise import __version__
from lengthwise.device import Compute, device_name
from lengthwise.folder import publishable
from lengthwise.task.sets import VERSION
from lengthwise.training.parallel import DistributedProcesses


def machine_record(
    processes: DistributedProcesses, compute: Compute, checkpoint_every: int | None = None
) -> dict[str, Any]:
    """Return versions, git hash, CPU, device, threads, process and command line."""
    import torch

    return {
        "lengthwise": __version__,
        "sets": VERSION,
        "git": _git(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", "polars")},
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "device": processes.device.type,
        "device_name": device_name(processes.device),
        "compile": compute.compile,
        "device_batch": compute.device_batch,
        "recompute": compute.recompute,
        "processes": processes.size,
        "sharded": processes.shard,
        "checkpoint_every": checkpoint_every,
        "process": os.getpid(),
        "command": _command(),
    }


def _command() -> list[str]:
    """Return the command line; for a Ray worker, whose own lists only the cluster's sockets, just its kind."""
    name = Path(sys.argv[0]).name
    return ["ray worker"] if name == "default_worker.py" else [name, *map(publishable, sys.argv[1:])]


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git() -> str | None:
    """Return the commit of the checkout this package runs from, with `+` for local changes; None if there is none."""
    here = Path(__file__).parent
    try:
        known = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=here,
            capture_output=True,
            timeout=5,
            check=False,
        )
        return known.stdout.strip() if tracked.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
