"""Studies that take seconds: the real path with few steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lengthwise.study.file import StudyFile

TINY = {
    "name": "tiny",
    "question": "Does the engine lose a run?",
    "base": {
        "task": "copy:variant=same:longest=3",
        "model": "laptop:width=16:heads=2:head_width=8:layers=1",
        "training": "laptop:steps=4:batch_size=4:validations=1:validation_examples=8",
    },
    "vary": {"encoding": ["nope", "alibi"]},
    "seeds": 2,
    "checkpoint_every": 1,
}

LEADERBOARD = {
    "name": "leaderboard",
    "question": "A small one?",
    "vary": {"encoding": ["nope"]},
    "linked": [
        {"task": "copy:variant=same:longest=3", "model": "laptop:width=16:heads=2:head_width=8:layers=1"},
        {"task": "sort:longest=3", "model": "laptop:width=16:heads=2:head_width=8:layers=2"},
    ],
    "base": {"training": "laptop:steps=6:batch_size=4:validations=1:validation_examples=8"},
    "seeds": [20, 21],
    "lr": {"choose": [0.001, 0.002], "seeds": [1000]},
}
"""The study of the leaderboard in seconds."""


def tiny(**changes: object) -> StudyFile:
    """The tiny study, with changes."""
    return StudyFile.of({**TINY, **changes})


@pytest.fixture
def written(tmp_path: Path):
    """Write a study into a file."""

    def write(**changes: object) -> Path:
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump({**TINY, **changes}))
        return path

    return write


def lengthwise(
    *arguments: object, cwd: Path | None = None, timeout: float = 240, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command line as a user has it."""
    return subprocess.run(
        [sys.executable, "-m", "lengthwise", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )
