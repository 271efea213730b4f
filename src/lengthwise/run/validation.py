"""How well a run does at seen lengths while it is trained: the only split that is looked at before its end."""

from __future__ import annotations

from math import isfinite
from typing import Any

from lengthwise.evaluation.result import evaluate_decoder
from lengthwise.evaluation.text import row_losses
from lengthwise.model import Decoder
from lengthwise.run.identity import Plan
from lengthwise.task.sets import lengths_of, trained_lengths
from lengthwise.task.text import Text


def validate_decoder(plan: Plan, decoder: Decoder, step: int) -> dict[str, Any]:
    """Return exact matches and loss on the validation split; of a language model, right tokens and their loss."""
    task, wanted = plan.task, plan.training.validation_examples
    if isinstance(task, Text):
        loss, correct, targets = row_losses(decoder, task, "validation", wanted)
        return {
            "step": step,
            "correct": correct,
            "examples": targets,
            "loss": loss if isfinite(loss) else None,
            "targets": targets,
        }
    splits = [("validation", length) for length in lengths_of(task, "validation") if length in trained_lengths(task)]
    how: dict[str, Any] = {"positions": plan.positions, "decoding": "none"}
    found = evaluate_decoder(decoder, task, splits=splits, examples=-(-wanted // len(splits)), **how).rows
    return {
        "step": step,
        "correct": int(found["correct"].sum()),
        "examples": int(found["examples"].sum()),
        "loss": None if found["loss"].null_count() else float(found["loss"].sum()),
        "targets": int(found["targets"].sum()),
    }
