"""What the file of an entry may contain, checked by reading it: one encoding, written with torch and lengthwise's base.

This finds carelessness and the usual tricks. It is no sandbox: a person reads the file before it is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MAY_IMPORT = (
    *("torch", "math", "typing", "collections", "dataclasses", "functools", "itertools", "numpy", "__future__"),
    *("lengthwise.encoding", "lengthwise.spec", "lengthwise.device"),
)
_FROM_LENGTHWISE = {"Encoding", "Geometry"}
_FORBIDDEN = {
    "exec",
    "eval",
    "compile",
    "open",
    "input",
    "globals",
    "locals",
    "vars",
    "setattr",
    "delattr",
    "breakpoint",
}
_MODULES = {"torch.hub", "torch.serialization", "torch.utils.cpp_extension", "torch.multiprocessing", "torch.package"}
_SIZE_LIMIT = 100_000


def source_mistakes(path: Path) -> list[str]:
    """Return what an entry's file must not contain, each with its line."""
    data = path.read_bytes()
    if len(data) > _SIZE_LIMIT:
        return [f"{path.name} has {len(data):,} bytes; an encoding has at most {_SIZE_LIMIT:,}"]
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError) as error:
        return [f"{path.name} is no Python: {error}"]
    found = [
        *_imports(tree),
        *_names(tree),
        *_changes(tree, {name for name, _ in _imported(tree)}),
    ]
    return [f"{path.name}, line {line}: {words}" for line, words in sorted(set(found))]


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name and where it is from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            own = origin == "lengthwise" and {alias.name for alias in node.names} <= _FROM_LENGTHWISE
            parts = [f"{origin}.{alias.name}" for alias in node.names]
            if node.level or not (own or _allowed(origin)) or any(part in _MODULES for part in [origin, *parts]):
                yield node.lineno, f"it imports from {'.' * node.level}{origin}; an entry may import {_listed()}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                # `import lengthwise as lw` is what the examples do; what is used of it is checked by `_names`.
                if alias.name != "lengthwise" and (not _allowed(alias.name) or alias.name in _MODULES):
                    yield node.lineno, f"it imports {alias.name}; an entry may import {_listed()}"


def _allowed(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in MAY_IMPORT)


def _listed() -> str:
    return ", ".join(one for one in MAY_IMPORT if one != "__future__")


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield calls and attributes that reach outside the encoding."""
    package = {name for name, origin in _imported(tree) if origin == "lengthwise"}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Name) and node.id in _FORBIDDEN) or (isinstance(node, ast.Name) and _dunder(node.id)):
            yield node.lineno, f"it uses {node.id}, which an encoding does not need"
        elif isinstance(node, ast.Attribute):
            if _dunder(node.attr) and node.attr not in {"__init__", "__name__"}:
                yield node.lineno, f"it uses .{node.attr}, which an encoding does not need"
            elif isinstance(node.value, ast.Name) and node.value.id in package and node.attr not in _FROM_LENGTHWISE:
                told = " and ".join(sorted(_FROM_LENGTHWISE))
                yield node.lineno, f"it uses {node.value.id}.{node.attr}; of lengthwise itself, {told} are enough"


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _changes(tree: ast.Module, imported: set[str]) -> Iterator[tuple[int, str]]:
    """Yield assignments to attributes or entries of what was imported."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
        for target in targets:
            root: ast.expr = target
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            if isinstance(root, ast.Name) and root is not target and root.id in imported:
                yield target.lineno, f"it changes {ast.unparse(target)}, which belongs to what it imported"
