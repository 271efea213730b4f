"""How large the code is, and how much of it a user's command passes through.

    python scripts/measure.py src/lengthwise                     statements of a tree, by package
    python scripts/measure.py --enter train copy --encoding rope   files and functions that a command enters

Statements are counted by `ast`; docstrings and data files do not count. A command runs in this process, with the
`lengthwise` that is installed or on PYTHONPATH, so the same script measures any version.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType


def statements(path: Path) -> int:
    """Statements of a file, without docstrings."""
    tree = ast.parse(path.read_text())
    docs = 0
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else []:
            value = part.value if isinstance(part, ast.Expr) else None
            docs += isinstance(value, ast.Constant) and isinstance(value.value, str)
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - docs


def count(root: Path) -> None:
    """Print the statements of a tree, by package."""
    by: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        part = path.relative_to(root).parts[0].removesuffix(".py")
        by[part] += statements(path)
        files[part] += 1
    for part, many in by.most_common():
        print(f"{many:7,} {files[part]:4} files  {part}")
    print(f"{sum(by.values()):7,} {sum(files.values()):4} files  in all")


def enter(arguments: list[str]) -> None:
    """Run a command and print how many files and functions of lengthwise it entered."""
    import lengthwise

    root, seen = str(Path(lengthwise.__file__).parent), set[CodeType]()

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
            seen.add(code)

    from lengthwise.cli import main

    sys.argv = ["lengthwise", *arguments]
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        main()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    named = {(code.co_filename, code.co_qualname) for code in seen}
    files = {file for file, _ in named}
    print(f"{len(files)} files, {len(named)} functions: lengthwise {' '.join(arguments)}", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--enter"]:
        enter(sys.argv[2:])
    else:
        count(Path(sys.argv[1]))
