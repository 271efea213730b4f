"""The health of a training: divergence, which ends it at once, and spikes and plateaus of its losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from lengthwise.spec import SpecError

RECENT = 20
"""The number of preceding logged losses that a spike is compared with."""
SPIKE = 0.25
"""A spike rises above the recent median by more than this share of the loss at the start."""
PLATEAU = 0.7
"""A run is on a plateau if its loss at the end is at least this share of its loss just after the warm-up."""


class Diverged(SpecError):
    """The loss or the gradient stopped being a finite number; the run has failed and would fail again."""

    exit_code = 3

    def __init__(self, step: int, parameter: str | None, last_loss: float | None, run: str = "") -> None:
        self.step, self.parameter, self.last_loss = step, parameter, last_loss
        before = "" if last_loss is None else f" (last finite loss {last_loss:.4g})"
        words = f"diverged at step {step:,}: {parameter or 'the loss'} is not finite{before}"
        hint = ". It would diverge again; try a lower learning rate, or bound that parameter"
        super().__init__(f"run {run} {words}{hint}" if run else words)

    def record(self) -> dict[str, Any]:
        """The failure as plain data; `Diverged.read` reads it."""
        return {"step": self.step, "parameter": self.parameter, "last_loss": self.last_loss}

    @classmethod
    def read(cls, record: Mapping[str, Any], run: str = "") -> Diverged:
        """The failure that `record` stored; with the run's id the message says what to do."""
        return cls(record["step"], record.get("parameter"), record.get("last_loss"), run)


def loss_spikes(losses_by_step: Iterable[Sequence[float]]) -> list[int]:
    """The steps at which the training loss suddenly rose, from (step, loss) pairs in order.

    A spike is a loss that exceeds the median of the 20 before it by more than a quarter of the first losses' median;
    neighbouring spikes count as one, at the first. Losses 3, 2, 1, .5, .4, 2.5, .4 have one spike, at 2.5.
    """
    pairs = [(int(step), float(loss)) for step, loss in losses_by_step]
    if len(pairs) < 4:
        return []
    start = median(loss for _, loss in pairs[:3])
    found: list[int] = []
    rising = False
    for number in range(3, len(pairs)):
        recent = median(loss for _, loss in pairs[max(0, number - RECENT) : number])
        high = not pairs[number][1] <= recent + SPIKE * start
        if high and not rising:
            found.append(pairs[number][0])
        rising = high
    return found


def is_on_plateau(losses_by_step: Iterable[Sequence[float]]) -> bool:
    """Whether the loss never really fell after the warm-up, from (step, loss) pairs in order.

    The lowest loss of the last quarter is compared with the median between 10 % and 25 % of the steps.
    """
    pairs = [(int(step), float(loss)) for step, loss in losses_by_step]
    if len(pairs) < 8:
        return False
    last = pairs[-1][0]
    early = [loss for step, loss in pairs if 0.1 * last <= step <= 0.25 * last]
    late = [loss for step, loss in pairs if step >= 0.75 * last]
    if not early or not late or not math.isfinite(min(late)):
        return False
    return min(late) >= PLATEAU * median(early)
