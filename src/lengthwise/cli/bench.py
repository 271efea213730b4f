"""`lengthwise bench`: what things cost on this machine."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.terminal import Json, app, print_table, say
from lengthwise.encoding.labels import unique_labels
from lengthwise.progress import progress
from lengthwise.spec import Spec, SpecError, canonical, specs

if TYPE_CHECKING:
    from lengthwise.timing.encodings import Row

bench = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")

TITLES = {"train": "training step", "forward": "forward pass", "generate": "cached generation, per token"}


@bench.callback()
def _top() -> None:
    pass


@bench.command()
def encodings(
    encodings: Annotated[
        str | None, typer.Option(help="commas separate several; all of the table unless given")
    ] = None,
    lengths: Annotated[str, typer.Option(help="tokens per sequence; commas separate several")] = "64,256",
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
    for title, lines in _tables(rows).items():
        say(title, "bold")
        print_table(lines, as_json=False)
    for row in rows:
        if row.skipped:
            say(f"skipped: {row.encoding}, {row.what} at {row.length}: {row.skipped}")
    say("× is the ratio to NoPE in the same rounds; --json has every number and the machine", "dim")


def _lengths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SpecError(f"--lengths are whole numbers, e.g. 64,256,1024, not {text!r}") from None


def _tables(rows: list[Row]) -> dict[str, list[dict[str, object]]]:
    """A table for each kind of work, with milliseconds and the ratio to NoPE at each length, and one of memory."""
    labels = unique_labels(list(dict.fromkeys(row.encoding for row in rows)))
    tables: dict[str, dict[str, dict[str, object]]] = {}
    for row in rows:
        name = labels[row.encoding]
        line = tables.setdefault(TITLES[row.what], {}).setdefault(name, {"encoding": name})
        shown = "skipped" if row.ms is None else f"{row.ms:,.0f}" if row.ms >= 100 else f"{row.ms:.3g}"
        line[f"ms at {row.length}"] = shown
        line[f"× at {row.length}"] = "" if row.ratio is None else f"{row.ratio:.2f}"
    for row in rows:
        if row.what == "train":
            name = labels[row.encoding]
            line = tables.setdefault("peak memory of a training step, MiB", {}).setdefault(name, {"encoding": name})
            line[f"at {row.length}"] = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
    return {title: list(lines.values()) for title, lines in tables.items()}
