"""An estimate with all that is needed to check it: value, interval, sample size, unit and method."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Examples = Literal["crossed", "binomial", "not counted"]
"""How the test set's noise was computed: from each example's outcomes, from p(1 − p) / m, or not at all."""

NO_SEEDS = "no seed interval: one seed"
THESE_TASKS = "these tasks, other seeds"
OTHER_TASKS = "other tasks like these"


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval from `low` to `high` at confidence level `level`.

    e.g. `Estimate(.54, .50, .58, .95, 51, "(task, seed) pairs", "t stratified by task", THESE_TASKS)`. `value` is None
    if there are no data, `low` and `high` are None if there is no interval, and `level` is None if its level is not
    known or nothing is random; `words` says why.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float | None
    n: int
    """The sample size, in `unit`."""
    unit: str
    recipe: str
    words: str
    measure: str = ""
    """What was measured, e.g. `unseen`."""
    examples: Examples = "not counted"
    """How the interval includes the test set's noise."""
    df: float | None = None
    """Degrees of freedom of a t interval."""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and it does not contain 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.value is None:
            return f"missing ({self.words})"
        if self.low is None or self.high is None:
            return f"{self.value:.3f} ({self.words}; n = {self.n} {self.unit})"
        level = "" if self.level is None else f"{100 * self.level:.4g} %, "
        told = f"{level}{self.words}; n = {self.n} {self.unit}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] ({told})"

    def negated(self) -> Estimate:
        """Return the difference with the opposite sign."""
        low, high = None if self.high is None else -self.high, None if self.low is None else -self.low
        return replace(self, value=None if self.value is None else -self.value, low=low, high=high)

    def plain(self) -> dict[str, Any]:
        """Return the estimate as a mapping, for JSON."""
        return asdict(self)
