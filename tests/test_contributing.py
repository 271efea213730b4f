"""Adding an encoding or a task is one file and one line: done in a copy of the tree, with the docs' own examples."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACT = [
    *(
        "tests/encoding",
        "tests/conformance/test_verify.py",
        "tests/task/test_golden.py",
        "tests/task/test_sets.py",
        "tests/task/test_arrays.py",
    ),
    *("tests/publication/test_cite.py", "tests/test_architecture.py", "tests/test_catalogue.py", "tests/test_cli.py"),
    *("tests/task/test_oracles.py", "tests/test_interface.py"),
]


def written(page: str, file: str) -> str:
    """The file that a page of the docs shows."""
    found = re.search(rf"```py {file}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def added(table: Path, name: str, line: str) -> None:
    text = table.read_text()
    assert text.count(f"\n{name} = {{\n") == 1
    table.write_text(text.replace(f"\n{name} = {{\n", f"\n{name} = {{\n    {line}\n"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_file_and_one_line_are_enough(tmp_path):
    tree = tmp_path / "tree"
    kept = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".pytest_cache", "*.parquet")
    shutil.copytree(ROOT, tree, ignore=kept)
    package = tree / "src" / "lengthwise"
    decay = written("how-to/add-an-encoding.md", "decay.py").replace(
        "from lengthwise import", "from lengthwise.encoding.base import"
    )
    (package / "encoding" / "decay.py").write_text(f'"""Logarithmic decay."""\n\n{decay}')
    (package / "task" / "commonest.py").write_text(
        f'"""Commonest: the commoner letter."""\n\n{written("reference/tasks.md", "commonest.py")}'
    )
    added(package / "encoding" / "__init__.py", "ENCODINGS", '"decay": "lengthwise.encoding.decay:Decay",')
    added(package / "task" / "__init__.py", "TASKS", '"commonest": "lengthwise.task.commonest:Commonest",')
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    there = [one for one in CONTRACT if (tree / one).exists()]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *there]
    # All that concerns the two new ones, and what looks at whole lists; the other encodings conform as before.
    named = "decay or commonest or ((list or every or catalogue or all or entry) and not conform and not oracle)"
    done = subprocess.run(
        [*command, "-k", named], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100
