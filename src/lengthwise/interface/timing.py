"""`bench`: time and memory of each encoding against NoPE, on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.labels import unique_labels
from lengthwise.progress import Say, progress
from lengthwise.spec import Spec, SpecError, canonical, parse_specs
from lengthwise.training.settings import Dtype, mixed_precision

if TYPE_CHECKING:
    from lengthwise.timing.encodings import Row

_TITLES = {"train": "training step", "forward": "forward pass", "generate": "cached generation, per token"}
_MEMORY = "peak memory of a training step, MiB"


@dataclass(frozen=True, repr=False)
class EncodingTimes(Display):
    """Milliseconds, ratios to NoPE, and peak memory."""

    rows: list[Row]
    machine: dict[str, Any]
    """CPU, torch, load, and the settings of the measurement."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return a table for each kind of work, with milliseconds and the ratio to NoPE by length; one of memory."""
        labels = unique_labels(list(dict.fromkeys(row.encoding for row in self.rows)))
        tables: dict[str, dict[str, dict[str, Any]]] = {}
        for row in self.rows:
            name = labels[row.encoding]
            line = tables.setdefault(_TITLES[row.what], {}).setdefault(name, {"encoding": name})
            shown = "skipped" if row.ms is None else f"{row.ms:,.0f}" if row.ms >= 100 else f"{row.ms:.3g}"
            line[f"ms at {row.length}"] = shown
            line[f"× at {row.length}"] = "" if row.ratio is None else f"{row.ratio:.2f}"
        for row in self.rows:
            if row.what == "train":
                name = labels[row.encoding]
                line = tables.setdefault(_MEMORY, {}).setdefault(name, {"encoding": name})
                line[f"at {row.length}"] = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
        return {title: list(lines.values()) for title, lines in tables.items()}

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The tables, and what was skipped."""
        for title, lines in self.tables().items():
            yield Part(title, "bold")
            yield Part(lines)
        for row in self.rows:
            if row.skipped:
                yield Part(f"skipped: {row.encoding}, {row.what} at {row.length}: {row.skipped}")
        yield Part("× is the ratio to NoPE in the same rounds; --json has every number and the machine", "dim")

    def plain(self) -> dict[str, Any]:
        """Every number, and the machine."""
        return {"bench": "encodings", **self.machine, "rows": [row.to_json() for row in self.rows]}


def bench(
    encodings: str | Sequence[str | Spec] | None = None,
    lengths: str | Sequence[int] = (64, 256),
    *,
    model: str = "laptop",
    batch: int = 8,
    repeat: int = 5,
    threads: int = 1,
    limit: float = 60,
    device: str = "auto",
    dtype: Dtype = "auto",
    say: Say | None = None,
) -> EncodingTimes:
    """Time a training step, a forward pass and cached generation of each encoding, side by side with NoPE.

    >>> bench(["rope"], [64])
    """
    import torch

    from lengthwise.device import choose_device, device_name
    from lengthwise.evaluation.cases import parse_lengths
    from lengthwise.model.config import preset
    from lengthwise.run.machine import cpu_name
    from lengthwise.timing.encodings import time_encodings

    chosen = choose_device(device).device
    lengths = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    listed = parse_specs(encodings) if isinstance(encodings, str) else encodings
    named = [Spec.of(one) for one in (ENCODINGS if listed is None else listed)]
    if not named:
        raise SpecError("name an encoding, e.g. --encodings rope,alibi")
    spec = Spec.of(model)
    said = dict(spec.options).get("vocabulary")
    config = preset(spec) if said is not None else preset(spec, vocabulary=32)
    known = [canonical("encoding", ENCODINGS, one, positional_count=1) for one in named]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > (os.cpu_count() or 1) / 2:
        warnings.warn(f"the machine is busy (load {load:.1f} on {os.cpu_count()} cores): times are noisy", stacklevel=2)
    with progress(say) as tell:
        rows = time_encodings(
            config,
            known,
            lengths,
            batch_size=batch,
            rounds=repeat,
            threads=threads,
            seconds_limit=limit,
            device=str(chosen),
            bf16=bool(mixed_precision(dtype)),
            on_progress=tell,
        )
    machine = {"cpu": cpu_name(), "torch": torch.__version__, "load": None if load is None else round(load, 2)}
    machine |= {"device": str(chosen), "device_name": device_name(chosen)}
    how = {"model": str(spec), "batch": batch, "repeat": repeat, "threads": threads, "dtype": dtype}
    return EncodingTimes(rows, {**machine, **how})
