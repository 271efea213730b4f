"""`lengthwise bench`: what things cost on this machine."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.terminal import Json, app, print_table, say
from lengthwise.progress import progress
from lengthwise.spec import Spec, SpecError, canonical, specs

if TYPE_CHECKING:
    from lengthwise.timing.encodings import Row

bench = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")

UNIT = {"train": "ms/step", "forward": "ms/pass", "generate": "ms/token"}


@bench.callback()
def _top() -> None:
    pass


@bench.command()
def encodings(
    encodings: Annotated[
        str | None, typer.Option(help="commas separate several; all of the table unless given")
    ] = None,
    lengths: Annotated[str, typer.Option(help="tokens per sequence; commas separate several")] = "64,256,1024",
    model: Annotated[str, typer.Option(help="a preset, e.g. laptop:layers=3")] = "laptop",
    batch: Annotated[int, typer.Option(help="sequences per call")] = 8,
    repeat: Annotated[int, typer.Option(help="rounds; medians of them are shown")] = 5,
    threads: Annotated[int, typer.Option(help="threads of PyTorch")] = 1,
    limit: Annotated[
        float, typer.Option(help="seconds for one encoding, length and kind of work; more is skipped")
    ] = 60,
    as_json: Json = False,
) -> None:
    """Measure time and memory of each encoding against NoPE.

    It times a training step, a forward pass and cached generation.
    """
    from lengthwise.encoding import ENCODINGS
    from lengthwise.model.config import preset
    from lengthwise.run.machine import cpu_name
    from lengthwise.timing.encodings import side_by_side

    named = specs(encodings) if encodings is not None else [Spec(name) for name in ENCODINGS]
    if not named:
        raise SpecError("name an encoding, e.g. --encodings rope,alibi")
    spec = Spec.of(model)
    said = dict(spec.options).get("vocabulary")
    config = preset(spec) if said is not None else preset(spec, vocabulary=32)
    known = [canonical("encoding", ENCODINGS, one, arguments=1) for one in named]
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > (os.cpu_count() or 1) / 2:
        print(f"the machine is busy (load {load:.1f} on {os.cpu_count()} cores): times are noisy", file=sys.stderr)
    with progress() as tell:
        rows = side_by_side(
            config, known, _lengths(lengths), batch=batch, repeat=repeat, threads=threads, limit=limit, tell=tell
        )
    told = {
        "bench": "encodings",
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "load": None if load is None else round(load, 2),
        "model": str(spec),
        "batch": batch,
        "repeat": repeat,
        "threads": threads,
        "rows": [row.to_json() for row in rows],
    }
    if as_json:
        print(json.dumps(told, indent=2))
        return
    print_table(_table(rows), as_json=False)
    for row in rows:
        if row.skipped:
            say(f"skipped: {row.encoding}, {row.what} at {row.length}: {row.skipped}")
    say("× is the ratio to nope in the same rounds; --json has every number and the machine", "dim")


def _lengths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SpecError(f"--lengths are whole numbers, e.g. 64,256,1024, not {text!r}") from None


def _table(rows: list[Row]) -> list[dict[str, object]]:
    """A line for each encoding and length: each kind of work with its time, memory and ratios."""
    lines: dict[tuple[str, int], dict[str, object]] = {}
    for row in rows:
        line = lines.setdefault((row.encoding, row.length), {"encoding": row.encoding, "length": row.length})
        # The unit names the column, so that a line is read without a legend.
        line[f"{row.what} {UNIT[row.what]}"] = "" if row.ms is None else f"{row.ms:.3g}"
        line[f"× {row.what}"] = "skipped" if row.ratio is None else f"{row.ratio:.2f}"
        line[f"MiB {row.what}"] = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
    return list(lines.values())
