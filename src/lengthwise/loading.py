"""Classes from outside the package: how they are named, loaded, and what they are made of."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from lengthwise.spec import Spec, SpecError, blame


def named(value: str | Mapping[str, object] | Spec | type, table: Mapping[str, str]) -> Spec:
    """The spec of a name, a mapping, a spec, or a class: of the table by its row, of others by where it is written."""
    if not isinstance(value, type):
        return Spec.of(value)
    where = f"{value.__module__}:{value.__qualname__}"
    if row := next((name for name, place in table.items() if place == where), None):
        return Spec(row)
    try:
        file = inspect.getsourcefile(value)
    except (TypeError, OSError):
        file = None
    there = file is not None and Path(file).is_file()
    if there and (value.__module__ == "__main__" or value.__module__.startswith(_OUTSIDE)):
        path = Path(str(file)).resolve()
        where = f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{value.__qualname__}"
    if "<locals>" in value.__qualname__:
        raise SpecError(f"{value.__qualname__} is defined inside a function; move the class to the top of its file")
    GIVEN[where] = value
    return Spec(where)


_OUTSIDE = "lengthwise_outside_"
GIVEN: dict[str, type] = {}
"""Classes that were handed over as objects, by the names that they have from then on."""


def classes(module: ModuleType) -> list[str]:
    """The classes a module defines itself."""
    return [key for key, item in vars(module).items() if isinstance(item, type) and item.__module__ == module.__name__]


def load_file(where: str) -> ModuleType:
    path = Path(where).resolve()
    if not path.is_file():
        raise SpecError(f"there is no file {where!r}; give its path from the current directory")
    source = path.read_bytes()
    # The content is part of the name, so an edited file is a new module, and pickling finds it again.
    name = f"{_OUTSIDE}{path.stem}_{hashlib.blake2b(bytes(path) + source, digest_size=6).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))  # it may import its neighbours, as any script may
        before = set(sys.modules)
        try:
            spec.loader.exec_module(module)
            module.__dict__["__neighbours__"] = _neighbours(path.parent, set(sys.modules) - before)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise SpecError(f"{where!r} could not be loaded: {blame(error, str(path))}") from error
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[name]


def _neighbours(folder: Path, names: Iterable[str]) -> list[str]:
    """The files of modules that were imported from a folder; another file's neighbour may have the same name."""
    files = []
    for name in sorted(names):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            files.append(file)
            del sys.modules[name]
    return files


def sources(cls: type) -> list[str]:
    """The files that a class from outside is made of: its own, and the neighbours it imported."""
    return [inspect.getfile(cls), *getattr(sys.modules.get(cls.__module__), "__neighbours__", [])]


def content(cls: type) -> bytes:
    """What a class from outside is made of, as bytes: its files or, for one from a notebook's cell, its own source."""
    files = [Path(file) for file in sources(cls)]
    if all(file.is_file() for file in files):
        return b"".join(file.read_bytes() for file in files)
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError) as error:
        raise SpecError(
            f"the source of {cls.__qualname__} cannot be found, so a run of it could not be told from another; "
            "write the class into a file"
        ) from error


def load_module(where: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # a console script does not see the current directory by itself
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(error.name + ".")):
            raise SpecError(
                f"there is no module {error.name!r} (in {where!r}), installed or in this directory"
            ) from error
        raise SpecError(f"{where!r} could not be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(f"{where!r} could not be imported: {blame(error, where)}") from error
