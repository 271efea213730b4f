"""Templates of a new encoding or task, with their tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from lengthwise.display import Display, Part
from lengthwise.spec import SpecError, did_you_mean

_COMMANDS = {
    "encoding": ("lengthwise verify {spec}", "lengthwise compare addition --encodings {spec},nope,rope"),
    "task": ("lengthwise show {spec}", "lengthwise audit {spec}", "lengthwise compare {spec} --encodings nope,rope"),
}


@dataclass(frozen=True, repr=False)
class Template(Display):
    """The files that were written, and the commands to type next."""

    file: Path
    test: Path
    commands: list[str]

    def display_parts(self, width: int = 80) -> list[Part]:
        """The files, and what to type next."""
        lines = [f"written: {self.file}, {self.test}", "then:", *(f"  {line}" for line in self.commands)]
        return [Part("\n".join(lines), wrap=False)]

    def plain(self) -> dict[str, object]:
        """The files and the commands."""
        return {"file": str(self.file), "test": str(self.test), "commands": self.commands}


def write_template(kind: Literal["encoding", "task"] | str, name: str, to: str | Path = ".") -> Template:
    """Write a commented encoding or task to begin with, and its test, into a folder.

    >>> write_template("encoding", "mine").commands[0]
    'lengthwise verify mine.py:Mine'
    """
    if kind not in _COMMANDS:
        raise SpecError(f"there is no new {kind!r}.{did_you_mean(kind, _COMMANDS)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        fitting = re.sub(r"\W+", "_", name.lower()).lstrip("_0123456789") or f"my_{kind}"
        raise SpecError(f"a name is lower-case letters, digits and _, e.g. {fitting}, not {name!r}")
    cls = "".join(part.capitalize() for part in name.split("_"))
    file, test = Path(to) / f"{name}.py", Path(to) / f"test_{name}.py"
    for path in (file, test):
        if path.exists():
            raise SpecError(f"{path} is there already; choose another name, or move it away")
    words = {"title": cls, "cls": cls, "file": file.name, "module": name}
    try:
        Path(to).mkdir(parents=True, exist_ok=True)
        for path, source in ((file, f"{kind}.py.txt"), (test, f"test_{kind}.py.txt")):
            text = files("lengthwise.interface").joinpath("templates", source).read_text("utf-8")
            path.write_text(re.sub(r"\{(title|cls|file|module)\}", lambda found: words[found[1]], text))
    except OSError as error:
        raise SpecError(f"cannot write to {to}: {error.strerror or error}") from error
    commands = [line.format(spec=f"{file}:{cls}") for line in _COMMANDS[kind]]
    return Template(file, test, [*commands, f"python -m pytest {test}"])
