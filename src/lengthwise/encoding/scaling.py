"""Scalings of RoPE's frequencies for sequences longer than the trained ones.

Each scaling gets RoPE's frequencies, fastest first, and a stretch factor s: a number, or one per row if it depends on
the length. At s = 1 each scaling but LongRoPE, which has factors for short sequences too, equals RoPE bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lengthwise.device import widest_float, without_waiting
from lengthwise.spec import SpecError

Kind = Literal["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]

USES: dict[str, set[str]] = {
    "linear": {"factor", "trained", "length"},
    "ntk": {"factor", "trained", "length"},
    "dynamic": {"factor", "trained", "length"},
    "yarn": {"factor", "trained", "length", "slow", "fast", "attention_factor"},
    "llama3": {"factor", "trained", "length", "slow", "fast"},
    "longrope": {"factor", "trained", "length", "attention_factor", "short", "long"},
}
"""The options each scaling reads; any other option would be ignored, so it is an error."""

FAST = {"yarn": 32.0, "llama3": 4.0}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A way to change frequencies, e.g. `rope:scaling=yarn:factor=4:trained=64`.

    s is `factor`, or max(1, length / `trained`) if no factor is given; the length is the sequence's budget.
    """

    kind: Kind
    theta: float
    pairs: int
    factor: float | None
    trained: int | None
    slow: float
    """A pair that turns fewer times than this within `trained` tokens is stretched by s (yarn, llama3)."""
    fast: float
    """A pair that turns more often than this is not changed; between `slow` and `fast` it is stretched in part."""
    attention_factor: float | None
    short: tuple[float, ...] | None = None
    """By how much each pair is slowed up to `trained` tokens (longrope)."""
    long: tuple[float, ...] | None = None
    """By how much each pair is slowed beyond `trained` tokens (longrope)."""

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies depend on the length of the sequence."""
        return self.kind in {"dynamic", "longrope"} or self.factor is None

    def stretch(self, length_B: Tensor) -> Tensor | float:
        """s: a number, or (B, 1)."""
        if not self.depends_on_length:
            assert self.factor is not None
            return self.factor
        assert self.trained is not None
        ratio_B1 = length_B.to(widest_float(length_B.device))[:, None] / self.trained
        if self.kind == "dynamic" and self.factor is not None:
            ratio_B1 = self.factor * ratio_B1 - (self.factor - 1)
        return ratio_B1.clamp(min=1)

    def frequencies(self, frequency_F: Tensor, stretch: Tensor | float) -> Tensor:
        """The changed frequencies: (F,), or (B, F) where s depends on the row."""
        if isinstance(stretch, Tensor):
            stretch = stretch.to(frequency_F)
        if self.kind == "linear":
            return frequency_F / stretch
        if self.kind in {"ntk", "dynamic"}:
            return ntk(frequency_F, stretch)
        if self.kind == "longrope":
            assert self.short is not None and self.long is not None
            short_F, long_F = (
                without_waiting(torch.tensor(part, dtype=frequency_F.dtype), frequency_F.device)
                for part in (self.short, self.long)
            )
            return frequency_F / torch.where(torch.as_tensor(stretch) > 1, long_F, short_F)
        assert self.trained is not None
        left_F = yarn_kept_share(self, frequency_F) if self.kind == "yarn" else llama3_kept_share(self, frequency_F)
        # This order of operations gives exactly the original frequency for a stretch of 1.
        return frequency_F * (left_F + (1 - left_F) / stretch)

    def magnitude(self, stretch: Tensor | float) -> Tensor | float:
        """The factor on cos and sin; scores are multiplied by its square."""
        if self.kind not in {"yarn", "longrope"}:
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            assert self.factor is not None and self.trained is not None
            return math.sqrt(1 + math.log(self.factor) / math.log(self.trained))
        return 0.1 * (stretch.log() if isinstance(stretch, Tensor) else math.log(max(stretch, 1.0))) + 1


def ntk(frequency_F: Tensor, stretch: Tensor | float) -> Tensor:
    """RoPE with theta · s^(d / (d − 2)): the fastest pair is left as it is, the slowest is slowed by s.

    bloc97 2023 (reddit, r/LocalLLaMA). Written as its effect on each pair, f · s^(−k / (pairs − 1)).
    """
    pairs = len(frequency_F)
    share_F = torch.arange(pairs, device=frequency_F.device, dtype=frequency_F.dtype) / (pairs - 1)
    return frequency_F / stretch**share_F


def yarn_kept_share(scaling: Scaling, frequency_F: Tensor) -> Tensor:
    """The share of each frequency that YaRN keeps: a linear ramp over the pair index, between whole indices.

    Peng et al. 2023, arXiv:2309.00071, as in the authors' code; in their text the ramp is over turns, as in `llama3`.
    """
    first, last = yarn_ramp_bounds(scaling)
    index_F = torch.arange(len(frequency_F), device=frequency_F.device, dtype=frequency_F.dtype)
    # If both ends are the same pair, it is the last pair that is not changed.
    return 1 - ((index_F - first) / max(last - first, 0.001)).clamp(0, 1)


def yarn_ramp_bounds(scaling: Scaling) -> tuple[int, int]:
    """The pair indices at which YaRN's ramp begins and ends."""
    assert scaling.trained is not None

    def pair(turns: float) -> float:
        return scaling.pairs * math.log(scaling.trained / (turns * 2 * math.pi)) / math.log(scaling.theta)  # pyrefly: ignore

    # The upper bound counts coordinates, as in the authors' code, although pairs are meant.
    return max(math.floor(pair(scaling.fast)), 0), min(math.ceil(pair(scaling.slow)), 2 * scaling.pairs - 1)


def llama3_kept_share(scaling: Scaling, frequency_F: Tensor) -> Tensor:
    """The share of each frequency that Llama 3.1 keeps: a linear ramp over the turns within `trained` tokens."""
    assert scaling.trained is not None
    turns_F = frequency_F * (scaling.trained / (2 * math.pi))
    return ((turns_F - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)


def build_scaling(
    kind: Kind | None,
    *,
    theta: float,
    pairs: int,
    factor: float | None,
    trained: int | None,
    slow: float | None,
    fast: float | None,
    attention_factor: float | None,
    length: str,
    short: tuple[float, ...] | None = None,
    long: tuple[float, ...] | None = None,
) -> Scaling | None:
    """Build the scaling from rope's options; missing, invalid or unused options are errors."""
    options = {"factor": factor, "trained": trained, "slow": slow, "fast": fast, "attention_factor": attention_factor}
    options |= {"short": short, "long": long}
    given = {name for name, value in options.items() if value is not None} | (
        {"length"} if length != "budget" else set()
    )
    if kind is None:
        if given:
            (name, *_) = sorted(given)
            raise SpecError(f"rope's {name!r} belongs to a scaling; write e.g. rope:scaling=yarn:factor=4:trained=64")
        return None
    for name in sorted(given - USES[kind]):
        raise SpecError(f"rope's scaling {kind!r} has no option {name!r}; it has {', '.join(sorted(USES[kind]))}")
    made = Scaling(
        kind=kind,
        theta=theta,
        pairs=pairs,
        factor=factor,
        trained=trained,
        slow=1.0 if slow is None else slow,
        fast=FAST.get(kind, 1.0) if fast is None else fast,
        attention_factor=attention_factor,
        short=short,
        long=long,
    )
    _check(made, length)
    return made


def _check(made: Scaling, length: str) -> None:
    kind, trained = made.kind, made.trained
    if made.factor is not None and not 1 <= made.factor < math.inf:
        raise SpecError(f"rope's factor stretches to longer sequences, so it is at least 1, not {made.factor}")
    if trained is not None and trained < 2:
        raise SpecError(f"rope's trained is the training length in tokens, at least 2, not {trained}")
    if kind == "longrope":
        _check_longrope(made)
    if trained is None and (made.depends_on_length or kind in FAST):
        raise SpecError(
            f"rope's scaling {kind!r} needs the training length in tokens; write trained=..., e.g. trained=64"
        )
    if trained is not None and not (made.depends_on_length or kind in FAST):
        raise SpecError(f"rope's scaling {kind!r} with a factor does not read 'trained'; leave one of them out")
    if length != "budget" and not made.depends_on_length:
        raise SpecError(f"rope's length={length} is for scalings that depend on it: leave out factor, or use dynamic")
    if made.pairs < 2 and kind in {"ntk", "dynamic"}:
        raise SpecError(f"rope's scaling {kind!r} needs at least two pairs of coordinates, here there is {made.pairs}")
    if not made.pairs:
        raise SpecError(f"rope's scaling {kind!r} has nothing to scale: no pair is turned")
    if kind in FAST and not 0 < made.slow < made.fast < math.inf:
        raise SpecError(f"rope's slow and fast are turns, 0 < slow < fast, not slow={made.slow} and fast={made.fast}")
    if kind == "yarn":
        if made.theta <= 1:
            raise SpecError(f"rope's scaling 'yarn' needs a theta above 1, not {made.theta}")
        first, last = yarn_ramp_bounds(made)
        if last < first:
            raise SpecError(
                f"in {trained} tokens no pair turns {made.slow:g} times, so 'yarn' has nothing to tell pairs apart by; "
                "use a smaller slow, or scaling=linear"
            )
    if made.attention_factor is not None and not 0 < made.attention_factor < math.inf:
        raise SpecError(f"rope's attention_factor is above 0, not {made.attention_factor}")


def _check_longrope(made: Scaling) -> None:
    for name, factors in (("short", made.short), ("long", made.long)):
        if factors is None or len(factors) != made.pairs or not all(0 < one < math.inf for one in factors):
            raise SpecError(
                f"rope's scaling 'longrope' needs {name}, a list of {made.pairs} factors above 0, one per pair, "
                f"from the model's configuration; write {name}=[1.0,...]"
            )
    if made.factor is None:
        raise SpecError("rope's scaling 'longrope' needs factor, the longest length divided by trained")
