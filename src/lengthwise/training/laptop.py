"""The `laptop` settings of each task: lengths, depth, steps and lr for about a minute and a half on a CPU.

They were chosen by validation exact match on seen lengths only; docs/project/log.md lists what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthwise.spec import Value
from lengthwise.task.base import Task


@dataclass(frozen=True)
class TaskOverrides:
    """The values that replace those of the presets for a task."""

    longest: int | None = None
    model: dict[str, object] = field(default_factory=dict)
    training: dict[str, object] = field(default_factory=dict)
    task: dict[str, Value] = field(default_factory=dict)
    """Options of the task itself, e.g. a format in which it is learned; the user's options take precedence."""
    unlearned: str = ""
    """If the task is not learned at this size, a variant that is; shown before training."""


LAPTOP = {
    "copy:variant=same": TaskOverrides(16, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "copy:variant=random": TaskOverrides(10, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 2e-3}),
    "reverse:variant=once": TaskOverrides(10, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 1e-3}),
    "sort:variant=single": TaskOverrides(8, {"layers": 2}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}),
    "summation": TaskOverrides(5, {"layers": 2}, {"steps": 2800, "batch_size": 128, "lr": 2e-3}),
    "parity": TaskOverrides(10, {"layers": 2}, {"steps": 2000, "batch_size": 128, "lr": 1e-3}),
    "count": TaskOverrides(8, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "addition": TaskOverrides(
        4, {"layers": 4}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"padded": True, "reversed": "all"}
    ),
    "multiplication": TaskOverrides(
        4, {"layers": 3}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"by": 1, "padded": True, "reversed": "all"}
    ),
    "polynomial": TaskOverrides(2, {"layers": 2}, {"steps": 4000, "batch_size": 128, "lr": 2e-3}),
    "lego": TaskOverrides(3, {"layers": 3}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "scan": TaskOverrides(25, {"layers": 3}, {"steps": 3200, "batch_size": 64, "lr": 2e-3}),
    "pcfg": TaskOverrides(
        2, {"layers": 3}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"alphabet": 20, "strings": 2}
    ),
    "dyck": TaskOverrides(12, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 2e-3}),
    "flipflop": TaskOverrides(20, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "modular": TaskOverrides(
        6, {"layers": 2}, {"steps": 3500, "batch_size": 128, "lr": 2e-3}, unlearned="modular:modulus=2 is learned"
    ),
    "recall": TaskOverrides(
        4, {"layers": 2}, {"steps": 3500, "batch_size": 128, "lr": 2e-3}, {"queries": 1, "keys": 16, "values": 8}
    ),
    "group": TaskOverrides(5, {"layers": 3}, {"steps": 4000, "batch_size": 128, "lr": 2e-3}),
    "majority": TaskOverrides(15, {"layers": 2}, {"steps": 1500, "batch_size": 64, "lr": 2e-3}),
    "nback": TaskOverrides(16, {"layers": 2}, {"steps": 1500, "batch_size": 64, "lr": 2e-3}),
    "mqmtar": TaskOverrides(
        24, {"layers": 3}, {"steps": 3500, "batch_size": 128, "lr": 2e-3}, {"queries": 1, "letters": 8}
    ),
}
"""Task → its setting; `studies/defaults.yaml` shows that each is learned at seen lengths, or that it is not."""


def laptop_overrides(task: Task) -> TaskOverrides:
    """The setting of a task, or an empty one where it was not tuned."""
    variant = getattr(task, "variant", None)
    return LAPTOP.get(task.name if variant is None else f"{task.name}:variant={variant}", TaskOverrides())
