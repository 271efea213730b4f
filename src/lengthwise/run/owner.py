"""Who owns a lease, and whether that process lives: by /proc, or by a lock where there is none.

Without /proc, a lease's owner holds a lock on a file that is named by the lease's token, in this user's temporary
folder. Whoever can lock that file too knows that the owner is dead, because the system gives a lock back when a process
ends. A file that is not there says nothing: the owner may be on another machine with the same name, or in a container.
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from lengthwise.spec import SpecError

OURS: set[str] = set()
"""The tokens of the leases that this process holds now."""
_HELD: dict[str, BinaryIO] = {}
"""The files that this process has locked, by token."""


def hold(token: str) -> bool:
    """Lock the file of a token until `release` or the end of this process; False if no such file can be made."""
    try:
        file = _path(token, make=True).open("ab")
    except (OSError, SpecError):
        return False
    if not _locked(file):
        file.close()
        return False
    _HELD[token] = file
    return True


def release(token: str, remove: bool = True) -> None:
    """Unlock the file of a token, if this process holds it. A file that stays shows others that its owner is gone."""
    if (file := _HELD.pop(token, None)) is not None:
        if remove:
            with suppress(OSError, SpecError):
                _path(token).unlink()
        file.close()


def _is_held(token: str) -> bool | None:
    """Whether a living process holds the lock of a token; None if there is no such file here."""
    if token in _HELD:
        return True
    try:
        with _path(token).open("r+b") as file:  # closing it gives the lock back
            return not _locked(file)
    except (OSError, SpecError):
        return None


def _path(token: str, make: bool = False) -> Path:
    """Return the file of a token, in a folder that only this user can write to."""
    if not token.isalnum():
        raise SpecError("a token is letters and digits")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"lengthwise-leases-{user}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise SpecError(f"{folder} belongs to somebody else")
    return folder / token


def _locked(file: BinaryIO) -> bool:
    """Lock an open file if nobody else has; whether it is locked now."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyrefly: ignore
        else:
            import fcntl

            # Not lockf: that one is lost as soon as this process closes any other handle of the file.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def owner_is_dead(lease_content: dict[str, Any]) -> bool:
    """Whether the owner is dead for sure: it was on this machine, and its process no longer exists."""
    if not same_machine(lease_content):
        return False
    if lease_content["boot"] is None:
        return _is_held(lease_content["token"]) is False
    process = lease_content["process"]
    if process == os.getpid() and lease_content["began"] == process_start_time(process):
        return lease_content["token"] not in OURS
    now = process_start_time(process)
    if now is None:  # the process is gone, or not visible to this user
        return not _there(process)
    return now != lease_content["began"]


def same_machine(content: dict[str, Any]) -> bool:
    """Whether process ids can be compared: same host, same boot, same pid namespace (container).

    Without /proc: same host, and the owner's lock is on this machine.
    """
    here = whoami()
    if any(content.get(key) != here[key] for key in ("host", "boot", "pids")):
        return False
    return here["boot"] is not None or (content.get("locked") is True and _is_held(content["token"]) is not None)


def _there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def describe_owner(lease_content: dict[str, Any]) -> str:
    """Describe the owner in words."""
    if lease_content.get("host") == socket.gethostname():
        return f"process {lease_content['process']} on this machine"
    return f"process {lease_content.get('process')} on {lease_content.get('host') or 'a machine that cannot be told'}"


def whoami() -> dict[str, Any]:
    """Return what tells this process from all others: host, boot, pid namespace, process id and start time."""
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        pids = None
    own = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": boot_id(),
        "pids": pids,
        "process": own,
        "began": process_start_time(own),
    }


def boot_id() -> str | None:
    """Return the boot id of the machine, which changes at every restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def process_start_time(process: int) -> str | None:
    """Return a process's start time in kernel ticks, which differs if its id is reused."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
