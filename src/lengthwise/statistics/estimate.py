"""A number that a reader may check: what it is, how sure it is, of how many of what, and by which recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Examples = Literal["crossed", "binomial", "not counted"]
"""How the noise of the test set was counted: from each example's outcomes, from p(1 − p) / m, or not at all."""

NO_SEEDS = "no seed interval: one seed"
THESE_TASKS = "these tasks, other seeds"
OTHER_TASKS = "other tasks like these"


@dataclass(frozen=True)
class Estimate:
    """A value with its interval: `low` to `high` holds the truth in `level` of all studies done this way.

    e.g. `Estimate(.54, .50, .58, .95, 51, "(task, seed) pairs", "t stratified by task", THESE_TASKS)`; `value` is None
    where there is nothing to say, `low` and `high` are None where there is no interval, and `words` says why.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float | None
    n: int
    """How many of `unit` it is made of."""
    unit: str
    recipe: str
    words: str
    measure: str = ""
    """What was measured, e.g. `unseen`."""
    examples: Examples = "not counted"
    """How the noise of the test set is in the interval."""
    df: float | None = None
    """Degrees of freedom, of a t interval."""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval is wholly on one side of 0; an interval that is not there excludes nothing."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.value is None:
            return f"missing ({self.words})"
        if self.low is None or self.high is None or self.level is None:
            return f"{self.value:.3f} ({self.words}; n = {self.n} {self.unit})"
        told = f"{100 * self.level:.4g} %, {self.words}; n = {self.n} {self.unit}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] ({told})"

    def turned(self) -> Estimate:
        """The same difference the other way round."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return replace(self, value=None if self.value is None else -self.value, low=low, high=high)

    def plain(self) -> dict[str, Any]:
        """As a mapping, for JSON."""
        return asdict(self)
