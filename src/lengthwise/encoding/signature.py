"""The options, version, label and paper of an encoding, read from its source file without importing torch.

Run identities and citations need nothing else. Planning ten thousand runs takes a second; importing torch takes three.
"""

from __future__ import annotations
import __future__

import ast
import typing
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lengthwise.encoding import ENCODINGS
from lengthwise.spec import Spec, canonical, resolve


@cache
def encoding_stub(name: str) -> type:
    """A stub class with only the options, `version`, `label` and `paper` of an encoding in `ENCODINGS`."""
    module, _, cls = ENCODINGS[name].partition(":")
    return _drawn(module, cls)


def encoding_class(name: str) -> type:
    """The outline of an encoding in `ENCODINGS`, or the class itself if it is from outside the package."""
    return encoding_stub(name) if name in ENCODINGS else resolve("encoding", ENCODINGS, name)


def canonical_encoding(spec: Spec) -> Spec:
    """The one spelling of an encoding: options checked and typed, those that equal their default left out."""
    return _canonical_once(spec) if spec.name in ENCODINGS else _canonical(spec)


def _canonical(spec: Spec) -> Spec:
    return canonical("encoding", ENCODINGS, spec, positional_count=1, cls=encoding_class(spec.name))


_canonical_once = cache(_canonical)


def _drawn(module: str, name: str) -> type:
    found = find_spec(module)
    assert found is not None and found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    (drawn,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    bases = [base.id for base in drawn.bases if isinstance(base, ast.Name)]
    came = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    drawn.bases, drawn.keywords, drawn.decorator_list = [], [], []
    drawn.body = [kept for node in drawn.body if (kept := _kept(node)) is not None] or [ast.Pass()]
    parents = [_drawn(*came.get(base, (module, base))) for base in bases if came.get(base, (module,))[0] in _OURS]
    drawn.bases = [ast.Name(f"_parent{number}", ast.Load()) for number in range(len(parents))]
    code = compile(
        ast.fix_missing_locations(ast.Module([drawn], [])),
        found.origin,
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    known = {**vars(typing), **{f"_parent{number}": parent for number, parent in enumerate(parents)}}
    exec(code, known)
    return known[name]


_OURS = {where.partition(":")[0] for where in ENCODINGS.values()} | {"lengthwise.encoding.base"}


def _kept(node: ast.stmt) -> ast.stmt | None:
    """Keep assignments of `version`, `label` and `paper`, and the signature of `__init__`; drop everything else."""
    names = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
    if any(isinstance(name, ast.Name) and name.id in {"version", "label", "paper"} for name in names):
        return node
    if not (isinstance(node, ast.FunctionDef) and node.name == "__init__"):
        return None
    for argument in (*node.args.posonlyargs, *node.args.args):
        argument.annotation = None  # resolving `Geometry` would import torch
    node.body[:], node.returns, node.decorator_list = [ast.Pass()], None, []
    return node
