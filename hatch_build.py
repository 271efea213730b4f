"""What is special about our wheel: it ships the rows of small studies, and its README works on a package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LIMIT = 10**6
"""Bytes of a folder of `results/` from which on it stays out of the wheel."""


def shipped(results: Path) -> list[Path]:
    """The folders of results that go into the wheel."""
    folders = [folder for folder in sorted(results.iterdir()) if folder.is_dir()]
    return [folder for folder in folders if sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) < LIMIT]


class ShipResults(BuildHookInterface):
    """Adds them to a wheel; an editable install finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for folder in shipped(Path(self.root) / "results"):
            build_data["force_include"][str(folder)] = f"lengthwise/study/results/{folder.name}"


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
