"""Draw names and sentences of the package for a reader who sees neither code nor docs.

    python scripts/draw_words.py SEED              40 names of classes, functions and options, and 20 sentences
    python scripts/draw_words.py SEED --typed      the same, functions with their type annotations

Draws with different seeds are disjoint, of names below 70: each takes its own part of one shuffled list.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "lengthwise"
NAMES, SENTENCES = 40, 20


def _signature(node: ast.ClassDef | ast.FunctionDef, inside: str, typed: bool) -> str:
    """The parameters of a function or method but for `self` and `cls`; nothing for a class."""
    if isinstance(node, ast.ClassDef):
        return ""
    own = {"self", "cls"} if inside else set()
    named = [one for one in (*node.args.args, *node.args.kwonlyargs) if one.arg not in own]
    shown = ", ".join(ast.unparse(one) if typed else one.arg for one in named)
    return f"({shown})" + (f" -> {ast.unparse(node.returns)}" if typed and node.returns is not None else "")


def drawn(typed: bool = False) -> tuple[list[str], list[str]]:
    """Every public name, and every first sentence of a docstring or an error, sorted."""
    names, sentences = set[str](), set[str]()
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text())
        for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
            inside = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
            if inside.startswith("_"):
                continue
            for node in owner.body:
                if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
                    continue
                kind = "class" if isinstance(node, ast.ClassDef) else "method" if inside else "function"
                names.add(f"{kind} {inside}{node.name}{_signature(node, inside, typed)} (package {package})")
                if isinstance(node, ast.FunctionDef):
                    options = [one.arg for one in node.args.kwonlyargs]
                    names |= {f"option {one} of {inside}{node.name}() (package {package})" for one in options}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and (said := ast.get_docstring(node)):
                place = path.relative_to(ROOT) if isinstance(node, ast.Module) else getattr(node, "name", "")
                sentences.add(f"[docstring of {place}] " + re.split(r"(?<=[.?])\s", " ".join(said.split()))[0])
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                sentences.add("[error message] " + ast.unparse(node.exc.args[0]))
    return sorted(names), sorted(sentences)


if __name__ == "__main__":
    seed = int(sys.argv[1])
    for listed, many in zip(drawn("--typed" in sys.argv), (NAMES, SENTENCES), strict=True):
        random.Random("lengthwise").shuffle(listed)
        print("\n".join(f"{number}. {one}" for number, one in enumerate(listed[seed * many : (seed + 1) * many], 1)))
        print()
