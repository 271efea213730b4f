"""Encodings side by side: time per training step, forward pass and generated token, and the ratio of each to NoPE's.

Measurements are interleaved: each round measures every encoding, in alternating order, and a ratio compares two
measurements of the same round. So other load on the machine affects all encodings alike. Results are medians over
rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from lengthwise.model import Decoder, DecoderConfig
from lengthwise.spec import Spec, SpecError
from lengthwise.timing.alone import CallCost, run_in_new_process
from lengthwise.timing.work import WHAT, Setting, Work

BASE = Spec("nope")
LEAST = 0.02
"""The minimum duration of a measurement in seconds; quicker work is repeated."""
TOGETHER = 2**30
"""The maximum bytes of all models of one round; more models are split into groups, each with NoPE."""
SMALLEST = 1.0
"""If NoPE's peak is below this many MiB, it is noise, and no ratio is computed."""


@dataclass(frozen=True)
class Row:
    """One encoding at one length: milliseconds (per step, pass or token), peak MiB, and their ratios to NoPE's."""

    encoding: str
    length: int
    what: str
    ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    """The smallest and the largest ratio of a round."""
    peak_mib: float | None = None
    peak_ratio: float | None = None
    rounds: int = 0
    skipped: str | None = None
    """Why it was not timed."""

    def to_json(self) -> dict[str, object]:
        """The row as plain data, with rounded numbers."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def time_encodings(
    config: DecoderConfig,
    encodings: Sequence[Spec],
    lengths: Sequence[int],
    *,
    batch_size: int = 8,
    rounds: int = 5,
    threads: int = 1,
    seconds_limit: float = 60.0,
    device: str = "auto",
    bf16: bool = False,
    on_progress: Callable[[str], None] = lambda words: None,
) -> list[Row]:
    """Measure every encoding, length and kind of work; NoPE is always included and comes first.

    `seconds_limit` is for all calls of one case; a case that would take longer is skipped, and its row says so.
    """
    import torch

    for name, value in {"batch": batch_size, "repeat": rounds, "threads": threads}.items():
        if value < 1:
            raise SpecError(f"{name} is at least 1, not {value}")
    if not seconds_limit > 0:
        raise SpecError(f"limit is a number of seconds above 0, not {seconds_limit}")
    if not lengths or min(lengths) < 2:
        raise SpecError(f"give lengths of at least 2 tokens, e.g. 64,256, not {list(lengths)}")
    listed = [BASE, *dict.fromkeys(spec for spec in encodings if spec != BASE)]
    sizes = {spec: _bytes(config, spec) for spec in listed}  # builds every model, so that a wrong name fails now
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        on_progress("starting")  # the first process also imports torch for all others
        first = Setting(config, BASE, WHAT[0], min(lengths), 1, device)
        run_in_new_process(first, threads, max(seconds_limit, 120.0))
        rows = []
        for length in dict.fromkeys(lengths):
            for what in WHAT:
                case = _Case(
                    config, what, length, batch_size, rounds, threads, seconds_limit, device, bf16, on_progress
                )
                rows += case.rows(listed, sizes)
    finally:
        torch.set_num_threads(before)
    order = {spec: place for place, spec in enumerate(map(str, listed))}
    return sorted(rows, key=lambda row: order[row.encoding])  # stable: lengths and kinds keep their order


def _bytes(config: DecoderConfig, spec: Spec) -> int:
    """Weights, gradients and AdamW's two moments, in fp32."""
    return 16 * Decoder(config, spec).parameter_count()


@dataclass(frozen=True)
class _Case:
    """One kind of work at one length, for all encodings."""

    config: DecoderConfig
    what: str
    length: int
    batch: int
    repeat: int
    threads: int
    limit: float
    device: str
    bf16: bool
    tell: Callable[[str], None]

    def rows(self, listed: list[Spec], sizes: dict[Spec, int]) -> list[Row]:
        once = {spec: self._alone(spec) for spec in listed}
        skipped = {spec: reason for spec in listed if (reason := self._too_long(once[spec]))}
        if BASE in skipped:  # no ratios without NoPE
            return [self._row(spec, once, skipped.get(spec) or f"nope: {skipped[BASE]}", [], []) for spec in listed]
        found: dict[Spec, Row] = {}
        for group in _groups([spec for spec in listed if spec not in skipped], sizes):
            rounds = self._rounds(group, once)
            for spec in group:
                if spec != BASE or BASE not in found:
                    found[spec] = self._row(spec, once, None, rounds[spec], rounds[BASE])
        for spec, reason in skipped.items():
            found[spec] = self._row(spec, once, reason, [], [])
        return [found[spec] for spec in listed]

    def _alone(self, spec: Spec) -> CallCost:
        self.tell(f"{spec}: memory, {self.what}, {self.length} tokens")
        return run_in_new_process(self._setting(spec), self.threads, self.limit)

    def _setting(self, spec: Spec) -> Setting:
        return Setting(self.config, spec, self.what, self.length, self.batch, self.device, self.bf16)

    def _too_long(self, once: CallCost) -> str | None:
        calls = self.repeat + 1  # the first one warms up
        if once.failed is None and calls * once.seconds > self.limit:
            return f"{calls} calls of about {once.seconds:.2g} s are more than the limit, {self.limit:g} s"
        return once.failed

    def _rounds(self, group: list[Spec], once: dict[Spec, CallCost]) -> dict[Spec, list[float]]:
        """Seconds per call in each round, for every encoding of a group."""
        works = {spec: Work(self._setting(spec)) for spec in group}
        # The same number of calls for each, so that interruptions affect all alike.
        times = min(20, math.ceil(LEAST / max(min(once[spec].seconds for spec in group), 1e-4)))
        for work in works.values():
            work()
        found: dict[Spec, list[float]] = {spec: [] for spec in group}
        for number in range(self.repeat):
            for spec in group if number % 2 == 0 else group[::-1]:
                self.tell(f"{spec}: {self.what}, {self.length} tokens, round {number + 1} of {self.repeat}")
                found[spec].append(sum(works[spec]() for _ in range(times)) / times)
        return found

    def _row(
        self, spec: Spec, once: dict[Spec, CallCost], skipped: str | None, seconds: list[float], base: list[float]
    ) -> Row:
        ratios = [one / other for one, other in zip(seconds, base, strict=True)]
        peak, base_peak = once[spec].peak_mib, once[BASE].peak_mib
        comparable = peak is not None and base_peak is not None and base_peak >= SMALLEST
        return Row(
            encoding=str(spec),
            length=self.length,
            what=self.what,
            ms=1000 * statistics.median(seconds) if seconds else None,
            ratio=statistics.median(ratios) if ratios else None,
            ratio_low=min(ratios, default=None),
            ratio_high=max(ratios, default=None),
            peak_mib=peak,
            peak_ratio=peak / base_peak if comparable and peak is not None and base_peak else None,
            rounds=len(seconds),
            skipped=skipped,
        )


def _groups(listed: list[Spec], sizes: dict[Spec, int]) -> list[list[Spec]]:
    """Encodings that fit into memory together, each group with NoPE first."""
    groups, held = [[BASE]], sizes[BASE]
    for spec in listed:
        if spec == BASE:
            continue
        if held + sizes[spec] > TOGETHER and len(groups[-1]) > 1:
            groups.append([BASE])
            held = sizes[BASE]
        groups[-1].append(spec)
        held += sizes[spec]
    return groups
