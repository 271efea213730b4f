"""The wheel ships the rows of small studies: every folder of `results/` below a megabyte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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
