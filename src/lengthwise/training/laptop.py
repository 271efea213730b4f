"""The `laptop` settings of each task: lengths, depth, steps and lr for about a minute and a half on a CPU.

They were chosen by validation exact match on seen lengths only; docs/log.md lists what was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthwise.spec import Value
from lengthwise.task.base import Task


@dataclass(frozen=True)
class Setting:
    """The values that replace those of the presets for a task."""

    longest: int | None = None
    model: dict[str, object] = field(default_factory=dict)
    training: dict[str, object] = field(default_factory=dict)
    task: dict[str, Value] = field(default_factory=dict)
    """Options of the task itself, e.g. a format in which it is learned; the user's options take precedence."""
    unlearned: str = ""
    """If the task is not learned at this size, a variant that is; shown before training."""


LAPTOP = {
    "copy:variant=same": Setting(16, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "copy:variant=random": Setting(10, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 2e-3}),
    "reverse:variant=once": Setting(10, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 1e-3}),
    "sort:variant=single": Setting(8, {"layers": 2}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}),
    "summation": Setting(5, {"layers": 2}, {"steps": 2800, "batch_size": 128, "lr": 2e-3}),
    "parity": Setting(10, {"layers": 2}, {"steps": 2000, "batch_size": 128, "lr": 1e-3}),
    "count": Setting(8, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "addition": Setting(
        4, {"layers": 4}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"padded": True, "reversed": "all"}
    ),
    "multiplication": Setting(
        4, {"layers": 3}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"by": 1, "padded": True, "reversed": "all"}
    ),
    "polynomial": Setting(2, {"layers": 2}, {"steps": 4000, "batch_size": 128, "lr": 2e-3}),
    "lego": Setting(3, {"layers": 3}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "scan": Setting(25, {"layers": 3}, {"steps": 3200, "batch_size": 64, "lr": 2e-3}),
    "pcfg": Setting(2, {"layers": 3}, {"steps": 4000, "batch_size": 64, "lr": 2e-3}, {"alphabet": 20, "strings": 2}),
    "dyck": Setting(12, {"layers": 3}, {"steps": 2500, "batch_size": 64, "lr": 2e-3}),
    "flipflop": Setting(20, {"layers": 2}, {"steps": 2000, "batch_size": 64, "lr": 2e-3}),
    "modular": Setting(
        6, {"layers": 2}, {"steps": 3500, "batch_size": 128, "lr": 2e-3}, unlearned="modular:modulus=2 is learned"
    ),
    "recall": Setting(
        4, {"layers": 2}, {"steps": 3500, "batch_size": 128, "lr": 2e-3}, {"queries": 1, "keys": 16, "values": 8}
    ),
}
"""Task → its setting; `studies/defaults.yaml` shows that each is learned at seen lengths, or that it is not."""


def laptop(task: Task) -> Setting:
    """The setting of a task, or an empty one where it was not tuned."""
    variant = getattr(task, "variant", None)
    return LAPTOP.get(task.name if variant is None else f"{task.name}:variant={variant}", Setting())
