"""A folder on any fsspec file system: local disk, S3, GCS, memory. Files appear whole or not at all.

A store needs only two guarantees: a file is readable once it is written, and if two writers create the same name, one
of them fails.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from lengthwise.spec import SpecError, one_line

OUTPUT = Path("lengthwise-output")
"""Where figures, pages and tables are written, unless a call says otherwise."""
_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"}
"""Object stores, which have no folders: `makedirs` there would create a bucket."""
_SERVERS = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "requests"}
"""Client libraries of remote stores, whose exceptions are not Python's built-in ones."""
_NETWORK = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ESTALE}
_SERVER_ERRORS = {errno.EBUSY, errno.EIO, errno.EREMOTEIO}
"""What s3fs makes of answers such as 500, 503 and SlowDown; of a local disk they are no passing trouble."""
_CONTESTS = 6
"""How often a create is tried if other writers create the same name at the same time."""


def shipped_file_path(name: str) -> Path:
    """Return the path of a file of `studies/`, in a checkout or in the installed package."""
    inside, checkout = Path(__file__).parent / "study" / "recipes", Path(__file__).parents[2] / "studies"
    return (inside if inside.is_dir() else checkout) / name


class Missing(SpecError):
    """There is no such file."""


class Unavailable(SpecError):
    """The disk is full, or the server cannot be reached: the same may work later."""


class Folder:
    """A folder, local or remote: `Folder("runs") / "a"`, `Folder("s3://bucket/runs")`."""

    def __init__(self, where: str | Path | Folder) -> None:
        if isinstance(where, Folder):
            self.fs, self.path, self.name, self.root = where.fs, where.path, where.name, where.root
            self.is_local, self._inside = where.is_local, where._inside
            return
        import fsspec

        self.name = str(where)
        try:
            # A cached listing would hide files that another machine has just written.
            self.fs, self.path = fsspec.core.url_to_fs(self.name, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise SpecError(f"{self.name!r} cannot be opened: {error}") from error
        self.path = self.path.rstrip("/") or "/"
        self.is_local = "file" in self.fs.protocol
        self._inside = set[str]()  # folders below the root that were found to be no links that lead out
        self.root = self._real_path()
        """The real path of the folder that was named; links may not lead out of it."""

    def __truediv__(self, name: str) -> Folder:
        _require_inside(name)
        below = Folder(self)
        below.path, below.name = f"{self.path}/{name}", f"{self.name.rstrip('/')}/{name}"
        return below

    def _at(self, name: str) -> str:
        """Return the path of a file of this folder; raises for a name or a link that leads out of it."""
        _require_inside(name)
        path = f"{self.path}/{name}"
        if self.is_local:
            above = path.rpartition("/")[0]
            if (above not in self._inside and self._leads_out(above)) or (
                os.path.islink(path) and self._leads_out(path)
            ):
                raise SpecError(f"{self.name}/{name} is a link that leads out of {self.root}; it is not followed")
            self._inside.add(above)
        return path

    def _leads_out(self, path: str) -> bool:
        return not f"{os.path.realpath(path)}/".startswith(self.root.rstrip("/") + "/")

    def _real_path(self) -> str:
        return os.path.realpath(self.path) if self.is_local else self.path

    def __str__(self) -> str:
        return self.name

    @property
    def local(self) -> Path | None:
        """The path on the local disk; None for a remote folder."""
        return Path(self.path) if self.is_local else None

    @property
    def leaf(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Folder:
        """The folder this one is in."""
        above = Folder(self)
        above.path = self.path.rpartition("/")[0]
        above.root, above._inside = above._real_path(), set()
        above.name = self.name.rpartition("/")[0] if self.local is None else str(Path(self.name).parent)
        return above

    def names(self) -> list[str]:
        """Return the names in the folder, sorted; an empty list if the folder does not exist."""
        with readable_errors("read", self.name):
            try:
                if self.local is not None:
                    return sorted(name for name in os.listdir(self.path) if not name.endswith(".part"))
                found = self.fs.ls(self.path, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted({str(name).rstrip("/").rpartition("/")[2] for name in found} - {self.leaf})

    def exists(self, name: str = "") -> bool:
        """Whether a file or folder exists; without a name, this folder itself."""
        with readable_errors("read", self.name):
            return self.fs.exists(self._at(name) if name else self.path)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with readable_errors("read", f"{self.name}/{name}"):
            if not self.is_local:  # one request, so that a file being rewritten is read whole, old or new
                return self.fs.cat_file(self._at(name))
            with open(self._at(name), "rb") as file:
                return file.read()

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file atomically: readers see the old content or the new, never a part."""
        data = content.encode() if isinstance(content, str) else content
        target = self._at(name)
        with readable_errors("write", f"{self.name}/{name}"):
            self._room(name)
            if self.local is None:
                self.fs.pipe_file(target, data)
                return
            with _partial(target, data) as partial:
                os.replace(partial, target)

    def create(self, name: str, content: bytes | str) -> bool:
        """Create a file if it is absent; of several writers exactly one gets True. Each must write unique content."""
        data = content.encode() if isinstance(content, str) else content
        if not data:
            raise ValueError("a file that is created is not empty: s3fs writes an empty one whoever was first")
        target = self._at(name)
        with readable_errors("write", f"{self.name}/{name}"):
            self._room(name)
            if self.local is not None:
                # Link a complete file: opening with "xb" would expose an empty file, forever if the process dies.
                with _partial(target, data) as partial:
                    try:
                        os.link(partial, target)
                    except FileExistsError:
                        # On NFS the reply to a link that was made can be lost; then the file has this content.
                        with suppress(OSError), open(target, "rb") as file:
                            return file.read() == data
                        return False
                    except OSError as error:
                        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}:
                            raise
                        return self._create_open(target, data)
                _fsync_folder(target)
                return True
            return self._create_open(target, data)

    def _create_open(self, target: str, data: bytes) -> bool:
        for contest in range(1, _CONTESTS + 1):
            try:
                with self.fs.open(target, "xb") as file:
                    file.write(data)
                return True
            except Exception as error:
                if self.local is not None:
                    if isinstance(error, FileExistsError):
                        return False
                    raise
                if isinstance(error, PermissionError) or not (isinstance(error, OSError) or _of_server(error)):
                    raise
                # Whatever the error, the stored content decides: if it is this writer's, the file was created and only
                # the response was lost (a retry is then refused). Servers also differ in how they refuse.
                with suppress(FileNotFoundError):
                    return self.fs.cat_file(target, start=0) == data  # without `start`, s3fs asks for the size first
                if "Conflict" not in str(error) or contest == _CONTESTS:  # S3's 409: concurrent creates, try again
                    raise
                time.sleep(0.05 * 2**contest)
        raise AssertionError

    def append(self, name: str, lines: str) -> None:
        """Append lines to a file; a remote file, which cannot be appended to, is rewritten."""
        with readable_errors("write", f"{self.name}/{name}"):
            self._room(name)
            if self.local is not None:
                with open(self._at(name), "a") as file:
                    file.write(lines)
            else:
                before = b""
                with suppress(FileNotFoundError):
                    before = self.fs.cat_file(self._at(name))
                self.fs.pipe_file(self._at(name), before + lines.encode())

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it exists."""
        with readable_errors("remove", f"{self.name}/{name}"), suppress(FileNotFoundError):
            self.fs.rm(self._at(name), recursive=True)

    def json(self, name: str) -> Any:  # noqa: ANN401
        """Return the parsed JSON of a file."""
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{self.name}/{name} is damaged: {error}") from error

    def _room(self, name: str) -> None:
        if _BUCKETS.isdisjoint([self.fs.protocol] if isinstance(self.fs.protocol, str) else self.fs.protocol):
            self.fs.makedirs(f"{self.path}/{name}".rpartition("/")[0], exist_ok=True)


_HOME = r"(?:~[\w.-]*)?/"
_PATH = re.compile(rf"(?<![\w./~-]){_HOME}(?:[^:=,/]*/)*([^:=,/]+)")
_CODE_FILE = re.compile(rf"(^|[,\[]|\d\*){_HOME}(?:[^:,\]]*/)?(?=[^/:,\]]+\.py:)")
_DATA_FILE = re.compile(rf"(\b(?:path|tokenizer)=){_HOME}(?:[^:,\]]*/)?(?=[^/:,\]]+)")


def publishable(argument: str) -> str:
    """Return an argument of a command line without passwords of URLs and without paths of this machine."""
    if argument.startswith("file://"):
        return argument.rstrip("/").rpartition("/")[2]
    if "://" in argument:
        return re.sub(r"(?<=://)[^/\s]*@", "", argument)
    return _PATH.sub(r"\1", argument)


def without_paths(options: Any, key: str = "") -> Any:  # noqa: ANN401
    """Return options of a run without the folders of files that they name: `/home/me/pe.py:Mine` is `pe.py:Mine`.

    Only names of code and the options `path` and `tokenizer` are changed, so that any other text stays what it is.
    """
    if isinstance(options, str):
        if key in {"path", "tokenizer"} and re.match(_HOME, options):
            return options.rstrip("/").rpartition("/")[2]
        return _DATA_FILE.sub(r"\1", _CODE_FILE.sub(r"\1", options))
    if isinstance(options, Mapping):
        return {without_paths(name): without_paths(value, name) for name, value in options.items()}
    return [without_paths(value, key) for value in options] if isinstance(options, list | tuple) else options


def _require_inside(name: str) -> None:
    """Raise for a name that is absolute, or leads out of the folder by `..`."""
    if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise SpecError(f"{name!r} is no name of a file inside a folder")


@contextmanager
def _partial(target: str, data: bytes) -> Iterator[str]:
    """Write the data to a temporary file beside the target, synced to disk; it is removed afterwards."""
    partial = f"{target}.{uuid4().hex}.part"
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        with suppress(OSError):
            os.unlink(partial)


def _fsync_folder(target: str) -> None:
    """Sync the target's folder, so that the new name survives a crash."""
    with suppress(OSError):
        number = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def readable_errors(doing: str, where: str) -> Iterator[None]:
    """Turn errors of disks and servers into a `SpecError` with a readable message."""
    try:
        yield
    except SpecError:
        raise
    except FileNotFoundError as error:
        if doing != "write":
            raise Missing(f"there is no {where}") from error
        raise SpecError(f"cannot write {where}: there is no such bucket or folder") from error
    except PermissionError as error:
        raise SpecError(f"cannot {doing} {where}: permission denied; give another folder") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Unavailable(f"cannot write {where}: the disk is full; free some room, then run it again") from error
        raise (Unavailable if _is_temporary(error, where) else SpecError)(
            f"cannot {doing} {where}: {error.strerror or error}"
        ) from error
    except Exception as error:
        if not _of_server(error):
            raise
        raise (Unavailable if _is_temporary(error, where) else SpecError)(
            f"cannot {doing} {where}: {one_line(str(error))}"
        ) from error


def _is_temporary(error: Exception, where: str) -> bool:
    """Whether the network or the server of a store is away or overloaded, so that the same may work later."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _NETWORK | (_SERVER_ERRORS if "://" in where else set()):
        return True
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    away = "Connection|Connector|Timeout|Disconnected|HTTPClient|Transport|ServiceRe"
    return _of_server(error) and (re.search(away, names) is not None or 500 <= _status(error) < 600)


def _status(error: Exception) -> int:
    """The HTTP status of an error of a server; 0 if it has none."""
    status = getattr(error, "status", None) or getattr(error, "code", None)
    return int(str(status)) if str(status).isdigit() else 0


def _of_server(error: Exception) -> bool:
    """Whether the error comes from the client library of a remote store."""
    return any(kind.__module__.partition(".")[0] in _SERVERS for kind in type(error).__mro__)


_CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder of the checkout, if lengthwise is not installed."""


def last_commit_date(path: Path) -> str | None:
    """Return the day on which a file of lengthwise's own checkout was last committed; None for any other file.

    git is not started in another folder: the configuration of a foreign repository can name programs to run.
    """
    if not path.exists() or not path.resolve().is_relative_to(_CHECKOUT):
        return None
    try:
        done = subprocess.run(
            ["git", "-c", "log.showSignature=false", "log", "-1", "--format=%cs", "--", path.name],
            cwd=path.resolve().parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
