"""Build the site: docs/, and the pages that are made from the code, in one folder of HTML.

    python scripts/build_site.py [FOLDER]

It takes seconds, needs the packages of the dev group, and fails for a broken link. FOLDER is `site`, unless given.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import typer.main
import yaml
from typer.testing import CliRunner

import lengthwise
from lengthwise.cli.terminal import PANELS, app

ROOT = Path(__file__).parent.parent


def command_line() -> str:
    """The page of the command line: every verb with its help, in the order of the panels."""
    verbs = typer.main.get_group(app)
    lines = ["# Command line", "", "Each verb prints its help with `--help`; most take `--json`.", ""]
    for title, names in PANELS.items():
        lines += [f"## {title}", ""]
        for name in names:
            verb = verbs.commands[name]
            own = {f"{name} {one}": command for one, command in getattr(verb, "commands", {}).items()}
            for words, command in {name: verb, **own}.items():
                told = CliRunner().invoke(app, [*words.split(), "--help"], prog_name="lengthwise").output.strip()
                lines += [f"### {words}", "", (command.help or "").split("\n\n")[0], "", "```text", told, "```", ""]
    return "\n".join(lines)


def python_page() -> str:
    """The page of the Python interface: every public name, documented from its docstring."""
    lines = ["# Python", "", "`import lengthwise as lw` gives all of these; torch is imported when it is needed.", ""]
    public = {name: getattr(lengthwise, name) for name in sorted(lengthwise.__all__, key=str.lower)}
    for title, wanted in {"Functions": False, "Classes": True}.items():
        lines += [f"## {title}", ""]
        for value in public.values():
            if callable(value) and isinstance(value, type) == wanted:
                lines += [f"::: {value.__module__}.{value.__qualname__}", ""]
    return "\n".join(lines)


def catalogue() -> str:
    """The page of all encodings, as `lengthwise list encodings --markdown` prints it."""
    return CliRunner().invoke(app, ["list", "encodings", "--markdown"], prog_name="lengthwise").output


GENERATED = {
    "reference/command-line.md": command_line,
    "reference/python.md": python_page,
    "reference/catalogue.md": catalogue,
}
"""Pages that are made from the code; they are in the site and not in docs/."""
COPIED = {f"{name}.md": f"docs/project/{name.lower()}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
"""Files of the repository's root, and the pages that they become."""


def linked(text: str, source: str, target: str) -> str:
    """A page with links that work where it is now; what is not in the site loses its link and keeps its words."""

    def moved(found: re.Match[str]) -> str:
        words, address, anchor = found[1], found[2], found[3] or ""
        if address.startswith(("http:", "https:")):
            return found[0]
        to = os.path.normpath(Path(source).parent / address)
        to = COPIED.get(to, to)
        if not to.startswith("docs/"):
            return words
        return f"[{words}]({os.path.relpath(to, Path(target).parent)}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]+)?\)", moved, text)


def titled(text: str) -> str:
    """A page whose blocks of code have their file's name as a title, where they are to be written to a file."""
    text = re.sub(r"^```py (\S+)$", r'```py title="\1"', text, flags=re.MULTILINE)
    return re.sub(r"^```(\w+) .*not run.*$", r"```\1", text, flags=re.MULTILINE)


def build(to: Path) -> str:
    """Write the site into a folder; return what the builder said."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        shutil.copytree(ROOT / "docs", there / "docs")
        for page in (there / "docs").rglob("*.md"):
            own = str(page.relative_to(there))
            page.write_text(titled(linked(page.read_text(), own, own)))
        for name, target in COPIED.items():
            (there / target).write_text(titled(linked((ROOT / name).read_text(), name, target)))
        for name, make in GENERATED.items():
            (there / "docs" / name).write_text(make())
        settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
        settings["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
        settings["plugins"][1]["mkdocstrings"]["handlers"]["python"]["options"]["extensions"] = [
            f"{ROOT / 'scripts' / 'examples_of_docstrings.py'}:Examples"
        ]
        (there / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=there, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode:
            raise SystemExit(f"the site was not built:\n{said}")
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(there / "site", to)
        return said


if __name__ == "__main__":
    target = Path(sys.argv[1] if sys.argv[1:] else ROOT / "site")
    print(build(target))
    print(f"written: {target / 'index.html'}")
