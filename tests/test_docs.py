"""What README and docs show was run: code blocks are executed, and what they claim to print is compared.

The blocks ```python of a page are one script. A block ```console holds `$ command` lines; if output
follows a command, each of its lines must appear in what the command prints (`...` stands for anything). A command must
end with exit code 0, unless the page says otherwise: `$ lengthwise verify broken.py:Mine  # exits with 1`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [
        body
        for kind, note, body in BLOCK.findall(page.read_text())
        if kind == language and "not run" not in (note or "")
    ]


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_page_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if not code:
        return
    where = _with_files(page, tmp_path)
    (where / "page.py").write_text(code)  # a class that is trained needs a file
    done = subprocess.run([sys.executable, "page.py"], cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_page_print_what_it_shows(page, tmp_path):
    run_page(page, _with_files(page, tmp_path))


def run_page(page: Path, where: Path) -> None:
    """Run the commands of a page in a folder; raises where one prints something else, or ends otherwise than shown."""
    environment = {**os.environ, "COLUMNS": "160", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for body in blocks(page, "console"):
        for part in re.split(r"^\$ ", re.sub(r" \\\n\s*", " ", body), flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            command, _, code = line.partition("  # exits with ")
            done = subprocess.run(
                shlex.split(command), cwd=where, env=environment, capture_output=True, text=True, check=False
            )
            told = f"{page.name}: `{command}` ends with {done.returncode}, not {int(code or 0)}"
            assert done.returncode == int(code or 0), f"{told}\n{done.stdout}{done.stderr}"
            printed = " ".join((done.stdout + done.stderr).split())
            for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
                pieces = [piece.strip() for piece in line.split("...")]
                pattern = ".*".join(re.escape(piece) for piece in pieces)
                assert re.search(pattern, printed), (
                    f"{page.name}: `{command}` does not print {line!r}\n{done.stdout}{done.stderr}"
                )


def _with_files(page: Path, tmp_path: Path) -> Path:
    """A clean directory with the files the page tells the reader to write: blocks marked ```py my_pe.py."""
    for kind, note, body in BLOCK.findall(page.read_text()):
        if kind == "py" and note.endswith(".py"):
            (tmp_path / note).write_text(body)
    return tmp_path


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("$ lengthwise theory theorem99 --nonsense", "ends with 2, not 0"),
        ("$ lengthwise list encodings  # exits with 1", "ends with 0, not 1"),
        ("$ lengthwise list encodings\nno such line", "does not print 'no such line'"),
    ],
)
def test_a_page_that_shows_something_else_fails(tmp_path, line, code):
    page = tmp_path / "page.md"
    page.write_text(f"```console\n{line}\n```\n")
    with pytest.raises(AssertionError, match=code):
        run_page(page, tmp_path)
