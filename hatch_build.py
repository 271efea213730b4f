"""What is special about our wheel: it ships the rows of studies, and its README works on a package index."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LIMIT, LARGEST = 5 * 10**5, 25 * 10**5
"""Bytes of tables from which on a folder of `results/` is shipped without wrong answers, or not at all."""
WRONG, LEFT_OUT = "wrong.parquet", "left-out.txt"
"""The wrong answers of a bundle, and the file that tells which of its files are not shipped."""


def shipped(results: Path) -> dict[Path, bool]:
    """The folders of results that go into the wheel, and whether their wrong answers do."""
    found = {}
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        sizes = {file.name: file.stat().st_size for file in folder.glob("*") if file.suffix != ".jsonl"}
        if sum(sizes.values()) < LIMIT and (WRONG in sizes or "bundle.json" not in sizes):  # an sdist may lack it
            found[folder] = True
        elif sum(sizes.values()) - sizes.get(WRONG, 0) < LARGEST:
            found[folder] = False
    return found


class ShipResults(BuildHookInterface):
    """Adds them to a wheel; an editable install finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        notes = Path(tempfile.mkdtemp())
        for folder, whole in shipped(Path(self.root) / "results").items():
            there = f"lengthwise/study/results/{folder.name}"
            for file in folder.glob("*"):
                if whole or file.name != WRONG:
                    build_data["force_include"][str(file)] = f"{there}/{file.name}"
            if not whole:
                (notes / folder.name).write_text(f"{WRONG}\n")
                build_data["force_include"][str(notes / folder.name)] = f"{there}/{LEFT_OUT}"


def absolute(readme: str, repository: str) -> str:
    """A README whose links and images work outside the repository."""
    raw, page = f"{repository}/raw/main/", f"{repository}/blob/main/"
    readme = re.sub(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)", rf"![\1]({raw}\2)", readme)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({page}\2)", readme)


class Readme(MetadataHookInterface):
    """Gives the package's metadata the README with absolute links; the address is in pyproject.toml alone."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = absolute((Path(self.root) / "README.md").read_text(), metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
