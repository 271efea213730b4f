"""Classes from outside the package: how they are named, loaded, hashed, and sent to workers.

Only the statements of a file that a class needs are executed: imports, functions, other classes, constants. So
`script.py:Mine` can be used without running the script, and editing the rest of the script does not change a run's id.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.util
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from lengthwise.spec import Spec, SpecError, describe_error_with_line, did_you_mean

_OUTSIDE = "lengthwise_outside_"
_STANDARD = Path(ast.__file__).parent
GIVEN: dict[str, type] = {}
"""Classes that were passed as objects, by the names assigned to them."""


def to_spec(value: str | Mapping[str, object] | Spec | type, table: Mapping[str, str]) -> Spec:
    """Return the spec of a name, a mapping, a spec or a class; a class is named by its table key, module or file."""
    if not isinstance(value, type):
        return Spec.of(value)
    where = f"{value.__module__}:{value.__qualname__}"
    if row := next((name for name, place in table.items() if place == where), None):
        return Spec(row)
    if "<locals>" in value.__qualname__:
        raise SpecError(f"{value.__qualname__} is defined inside a function; move the class to the top of its file")
    path = _file_of(value)
    if path is not None and (value.__module__ == "__main__" or value.__module__.startswith(_OUTSIDE)):
        where = f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{value.__qualname__}"
    GIVEN[where] = value
    return Spec(where)


def names_of(values: Any, table: Mapping[str, str]) -> list[str]:  # noqa: ANN401
    """Convert a name, mapping, spec or class, or a list of them, to names as in a study file."""
    listed = [values] if isinstance(values, str | Mapping | Spec | type) else list(values)
    return [one if isinstance(one, str) else str(to_spec(one, table)) for one in listed]


def load_class(module_or_file: str, name: str) -> type:
    """Load the class `name` from a file, `module_or_file.py`, or from a module."""
    if not module_or_file.endswith(".py"):
        module = load_module(module_or_file)
        found = getattr(module, name, None)
        if not isinstance(found, type):
            there = [
                key
                for key, item in vars(module).items()
                if isinstance(item, type) and item.__module__ == module_or_file
            ]
            raise SpecError(f"{module_or_file!r} has no class {name!r}.{did_you_mean(name, there)}")
        return found
    tree, path = _parsed(module_or_file)
    if name.partition(".")[0] not in {bound for statement in tree.body for bound in _bound(statement)}:
        raise SpecError(
            f"{module_or_file!r} has no class {name!r}.{did_you_mean(name, class_names_in_file(module_or_file))}"
        )
    found: Any = _executed(path, needed_statements(tree, name), module_or_file)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise SpecError(
            f"{module_or_file!r} has no class {name!r}.{did_you_mean(name, class_names_in_file(module_or_file))}"
        )
    return found


def source_digest(name: str, digest_size: int = 16) -> str | None:
    """Return a hash of what `file.py:Class` needs of its file, which is read but not executed; None for a module."""
    where, _, cls = name.rpartition(":")
    if not where.endswith(".py"):
        return None
    body = needed_statements(_parsed(where)[0], cls)
    return hashlib.blake2b(code_without_comments(body).encode(), digest_size=digest_size).hexdigest()


def class_names_in_file(file: str) -> list[str]:
    """Return the names of the classes that a file defines."""
    return [node.name for node in _parsed(file)[0].body if isinstance(node, ast.ClassDef)]


def load_module(module_name: str) -> ModuleType:
    """Import an installed module, or one in the current directory."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # it is not on the path of a console script
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SpecError(
                f"there is no module {error.name!r} (in {module_name!r}), installed or in this directory"
            ) from error
        raise SpecError(f"{module_name!r} could not be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(
            f"{module_name!r} could not be imported: {describe_error_with_line(error, module_name)}"
        ) from error


def _parsed(where: str) -> tuple[ast.Module, Path]:
    path = Path(where).resolve()
    if not path.is_file():
        raise SpecError(f"there is no file {where!r} here; start the command in its folder, or give its path")
    try:
        return ast.parse(path.read_bytes(), str(path)), path
    except (SyntaxError, ValueError) as error:
        raise SpecError(f"{where!r} could not be loaded: {describe_error_with_line(error, str(path))}") from error


def _executed(path: Path, body: list[ast.stmt], where: str) -> ModuleType:
    """Execute these statements of a file as a module."""
    # A hash of the content is part of the name, so an edited class is a new module, and unpickling finds the right one.
    mark = hashlib.blake2b(
        bytes(path) + path.read_bytes() + code_without_comments(body).encode(), digest_size=6
    ).hexdigest()
    name = f"{_OUTSIDE}{path.stem}_{mark}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))  # it may import modules beside it, as any script may
        # Those are loaded anew and removed again: a module beside another file may have the same name.
        hidden = {one: sys.modules.pop(one) for one in _beside(path.parent)}
        try:
            exec(compile(ast.Module(body, []), str(path), "exec"), vars(module))
            module.__dict__["__neighbours__"] = list(_beside(path.parent).values())
            module.__dict__["__needed__"] = code_without_comments(body)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise SpecError(f"{where!r} could not be loaded: {describe_error_with_line(error, str(path))}") from error
        finally:
            sys.path.remove(str(path.parent))
            for one in _beside(path.parent):
                del sys.modules[one]
            sys.modules.update(hidden)
    return sys.modules[name]


def _beside(folder: Path) -> dict[str, str]:
    """Return the files of modules that were imported from a folder, by module name, without installed packages."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        own = name in {"__main__", "__mp_main__", "lengthwise"} or name.startswith((_OUTSIDE, "lengthwise."))
        if own or not isinstance(file, str):
            continue
        installed = {"site-packages", "dist-packages"} & set(Path(file).parts) or Path(file).is_relative_to(_STANDARD)
        if Path(file).is_relative_to(folder) and not installed:
            found[name] = file
    return found


# --- what a class is made of -----------------------------------------------------------------------------------------


def content(cls: type) -> bytes:
    """Return the source that determines how a class from outside behaves, without comments and docstrings.

    It is the statements that the class needs; the rest of the file does not matter. `Mine` and `file.py:Mine` have the
    same content.
    """
    if (path := _file_of(cls)) is None:
        text = notebook_class_source(cls)
        return code_without_comments(needed_statements(ast.parse(text), cls.__qualname__)).encode()
    module = sys.modules[cls.__module__]
    if module.__package__:  # its relative imports work only inside its package, so it is parsed but not executed again
        return _package_source(module.__name__, path, cls.__qualname__).encode()
    if not hasattr(module, "__needed__"):
        module = sys.modules[load_class(str(path), cls.__qualname__).__module__]
    beside = [
        code_without_comments(ast.parse(Path(file).read_bytes()).body) for file in module.__dict__["__neighbours__"]
    ]
    return "\n".join([module.__dict__["__needed__"], *beside]).encode()


def _package_source(module: str, path: Path, name: str) -> str:
    """Return what a class needs of its own module, and the modules of its package that are imported from there."""
    body = needed_statements(ast.parse(path.read_bytes()), name)
    pieces, seen, waiting = [code_without_comments(body)], {module}, [(module, body)]
    while waiting:
        importer, statements = waiting.pop()
        for one in sorted(_imported(importer, statements) - seen):
            seen.add(one)
            file = getattr(sys.modules[one], "__file__", None)
            if file is not None and Path(file).suffix == ".py":
                tree = ast.parse(Path(file).read_bytes())
                pieces.append(code_without_comments(tree.body))
                waiting.append((one, tree.body))
    return "\n".join(pieces)


def _imported(importer: str, statements: list[ast.stmt]) -> set[str]:
    """Return the modules of the importer's own package that these statements import."""
    found, package = set[str](), sys.modules[importer].__package__
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    own = importer.partition(".")[0]
    return {one for one in found if one in sys.modules and one.partition(".")[0] == own}


def files_of(cls: type) -> dict[str, bytes]:
    """Return path → content of the files a worker needs to import a class: its own, then modules beside it."""
    if (path := _file_of(cls)) is None:
        return {"notebook.py": notebook_class_source(cls).encode()}
    loaded = sys.modules[load_class(str(path), cls.__qualname__).__module__]
    beside = [Path(file) for file in loaded.__dict__["__neighbours__"]]
    return {path.name: path.read_bytes(), **{str(one.relative_to(path.parent)): one.read_bytes() for one in beside}}


def _file_of(cls: type) -> Path | None:
    """Return the file that defines a class; None for a class from a notebook cell."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file).resolve() if file is not None and Path(file).is_file() else None


def needed_statements(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the statements of a file that one of its classes needs, in order; imports keep only the used names."""
    wanted, kept = {name.partition(".")[0]}, set[int]()
    while True:
        found = {
            place
            for place, statement in enumerate(tree.body)
            if place not in kept and wanted & {*_bound(statement), *_changed(statement)}
        }
        if not found:
            break
        kept |= found
        wanted |= {free for place in found for free in _free(tree.body[place])}
    body: list[ast.stmt] = []
    for place, statement in enumerate(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            body.append(statement)
        elif place in kept:
            body.append(_only(statement, wanted))
    return body


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines in its module."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting.extend(ast.iter_child_nodes(node))


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose attributes or entries a statement sets: `Mine` for `Mine.paper = ...`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AugAssign | ast.AnnAssign) else targets
    for target in targets:
        root: ast.expr = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name):
            yield root.id


def _free(statement: ast.stmt) -> set[str]:
    """Return the global names that a statement uses, also in annotations."""
    found: set[str] = set()
    waiting = [symtable.symtable(ast.unparse(statement), "statement", "exec")]
    while waiting:
        table = waiting.pop()
        outer = table.get_type() == "module"
        found |= {one.get_name() for one in table.get_symbols() if (one.is_referenced() if outer else one.is_global())}
        waiting.extend(table.get_children())
    return found


def _only(statement: ast.stmt, wanted: set[str]) -> ast.stmt:
    """Reduce an import to the names that are used; return any other statement unchanged."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return statement
    names = [one for one in statement.names if (one.asname or one.name.partition(".")[0]) in wanted]
    made = (
        ast.Import(names)
        if isinstance(statement, ast.Import)
        else ast.ImportFrom(statement.module, names, statement.level)
    )
    return ast.copy_location(made, statement)


def code_without_comments(body: list[ast.stmt]) -> str:
    """Return statements as text without comments, docstrings and layout, i.e. only what determines their behaviour."""
    tree = ast.parse(ast.unparse(ast.Module(body, [])))
    for node in ast.walk(tree):
        own = getattr(node, "body", None)
        if isinstance(own, list):
            kept = [one for one in own if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
            node.body = kept or ([ast.Pass()] if not isinstance(node, ast.Module) else [])  # pyrefly: ignore
    return ast.unparse(tree)


# --- notebooks -------------------------------------------------------------------------------------------------------


def notebook_class_source(cls: type) -> str:
    """Return the source of a class from a notebook as one file, after everything that it uses."""
    there, pieces, seen = vars(sys.modules[cls.__module__]), list[str](), set[str]()

    def add(name: str, value: object) -> None:
        if name in seen:
            return
        seen.add(name)
        if isinstance(value, type | FunctionType) and value.__module__ == cls.__module__:
            source = _in_a_cell(value)
            for free in sorted(_free(ast.parse(source).body[0]) - {name}):
                if free in there:
                    add(free, there[free])
                elif not hasattr(builtins, free):
                    raise SpecError(f"{cls.__qualname__} uses {free!r}, which is not defined; run its cell first")
            pieces.append(source)
        else:
            pieces.append(_written(name, value, cls))

    add(cls.__qualname__, cls)
    return "\n".join(pieces) + "\n"


def _written(name: str, value: object, cls: type) -> str:
    """Return the statement that binds a module, an imported object or a constant to its name."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None) or getattr(value, "_name", 0)
    if module and isinstance(own, str) and getattr(sys.modules.get(module), own, None) is value:
        return f"from {module} import {own} as {name}"
    try:
        if ast.literal_eval(repr(value)) == value:
            return f"{name} = {value!r}"
    except (ValueError, SyntaxError, TypeError):
        pass
    raise SpecError(
        f"{cls.__qualname__} uses {name!r}, a {type(value).__name__} of the notebook, which cannot be sent to workers; "
        "define it inside the class, or write the class into a file"
    )


def _in_a_cell(value: type | FunctionType) -> str:
    """Return the source of a class or function that was defined in a cell."""
    functions = [value] if isinstance(value, FunctionType) else [one for one in vars(value).values() if callable(one)]
    files = [code.co_filename for one in functions if (code := getattr(one, "__code__", None)) is not None]
    for file in [*files, *reversed(list(linecache.cache))]:
        if Path(file).suffix == ".py" and Path(file).is_file() and file not in files:
            continue  # an unrelated module
        try:
            tree = ast.parse(textwrap.dedent("".join(linecache.getlines(file))))
        except SyntaxError:
            continue
        for node in reversed(tree.body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__:
                return ast.unparse(node)
    raise SpecError(
        f"the source of {value.__qualname__} cannot be found, so a run of it could not be told from another; "
        "write the class into a file"
    )
