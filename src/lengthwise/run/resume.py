"""What an attempt continues from: a checkpoint that fits, whose notes and kept weights are intact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from lengthwise.checksums import checksum
from lengthwise.folder import Folder, Unavailable
from lengthwise.spec import SpecError, one_line
from lengthwise.training.checkpoint import Checkpoint, unpack
from lengthwise.training.loop import Loop


def load_checkpoint(loop: Loop, checkpoint: Checkpoint) -> None:
    """Continue the loop from a checkpoint; raises if its tensors are not those of this model."""
    tensors = checkpoint.tensors()
    try:
        loop.load(tensors, checkpoint.step)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise SpecError(
            f"{checkpoint.folder} does not fit this model ({one_line(str(error))}); remove it to use an earlier one"
        ) from error


def is_usable(home: Folder, checkpoint: Checkpoint, stages: Iterable[int]) -> bool:
    """Whether a checkpoint's notes are ones that an attempt writes, and the weights they refer to are intact."""
    notes = checkpoint.notes
    try:
        for one in notes["validations"]:
            numbers = (one["step"], one["correct"], one["examples"], one["targets"])
            if not all(type(number) is int for number in numbers) or not isinstance(one["loss"], int | float | None):
                return False
        best = best_checkpoint_steps(notes["validations"]).values()
        if not {str(step) for step in (*best, *stages) if step <= checkpoint.step} <= notes["kept"].keys():
            return False
        counted = (notes["tokens"], notes["seconds"], notes.get("cpu_seconds", 0.0))
        if not all(type(number) in {int, float} and 0 <= number < inf for number in counted):
            return False
        for path in notes["kept"].values():
            if not re.fullmatch(r"\d+/weights/\d{9}\.safetensors", path):
                return False
            data = home.read(path)
            if "files" in notes and notes["files"][path] != checksum(data):
                return False
            unpack(data)
    except Unavailable:
        raise
    except (SpecError, KeyError, TypeError, AttributeError, ValueError):
        return False
    return True


def best_checkpoint_steps(validations: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the steps of `best` (most exact matches, ties by lowest loss, then latest) and `earliest_best`.

    `earliest_best`, the published rule, is the first step with the most exact matches.
    """
    if not validations:
        return {}
    # A missing loss (it was NaN) counts as the worst.
    best = max(
        validations, key=lambda one: (one["correct"], -inf if one["loss"] is None else -one["loss"], one["step"])
    )
    earliest = max(validations, key=lambda one: (one["correct"], -one["step"]))
    return {"best": best["step"], "earliest_best": earliest["step"]}
