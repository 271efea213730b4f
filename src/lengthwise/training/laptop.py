"""What `laptop` means for each task: lengths, depth, steps and rate that a CPU learns in about a minute and a half.

Chosen on seen lengths alone, by validation exact match; what was tried is in docs/log.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthwise.tasks.task import Task


@dataclass(frozen=True)
class Setting:
    """What a task has instead of the presets' own values."""

    longest: int | None = None
    model: dict[str, object] = field(default_factory=dict)
    training: dict[str, object] = field(default_factory=dict)


LAPTOP = {
    "copy:variant=same": Setting(16, {"layers": 2}, {"steps": 2000, "batch": 64, "rate": 2e-3}),
    "copy:variant=random": Setting(10, {"layers": 3}, {"steps": 2500, "batch": 64, "rate": 2e-3}),
    "reverse:variant=once": Setting(10, {"layers": 3}, {"steps": 2500, "batch": 64, "rate": 1e-3}),
    "sort:variant=single": Setting(8, {"layers": 2}, {"steps": 4000, "batch": 64, "rate": 2e-3}),
    "summation": Setting(5, {"layers": 2}, {"steps": 2800, "batch": 128, "rate": 2e-3}),
    "parity": Setting(10, {"layers": 2}, {"steps": 2000, "batch": 128, "rate": 1e-3}),
    "count": Setting(8, {"layers": 2}, {"steps": 2000, "batch": 64, "rate": 2e-3}),
}


def laptop(task: Task) -> Setting:
    """The setting of a task, or an empty one where it was not tuned."""
    variant = getattr(task, "variant", None)
    return LAPTOP.get(task.name if variant is None else f"{task.name}:variant={variant}", Setting())
