"""`lengthwise probe`: is a token's position in its hidden state, in which layer, and how did it get there?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lengthwise.cli.runs import STORE, Store
from lengthwise.cli.terminal import Json, app, console, escape, print_table
from lengthwise.folder import OUTPUT
from lengthwise.spec import SpecError

Rows = list[dict[str, Any]]


@app.command()
def probe(
    runs: Annotated[list[str] | None, typer.Argument(help="runs: folders, ids, or the beginnings of ids")] = None,
    study: Annotated[str | None, typer.Option(help="all finished runs of this study that are in the store")] = None,
    encodings: Annotated[str | None, typer.Option(help="only runs with these, e.g. nope,t5")] = None,
    kind: Annotated[Literal["linear", "mlp", "both"], typer.Option(help="the probe")] = "both",
    lengths: Annotated[str | None, typer.Option(help="test at these, e.g. 8,16,32; seen and unseen ones")] = None,
    documents: Annotated[
        str, typer.Option(help="task (its examples), random (tokens), random-no-start (and no start token); commas")
    ] = "task",
    root_m: Annotated[
        bool, typer.Option("--scale-by-root-m", help="probe again with attention's output multiplied by √m")
    ] = False,
    one_size: Annotated[
        bool, typer.Option("--one-size", help="probe again with attention's output of one size at every token")
    ] = False,
    spread: Annotated[bool, typer.Option("--spread", help="variance of attention's output by position")] = False,
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    store: Store = STORE,
    rows: Annotated[Path | None, typer.Option(help="show the rows of this folder again; no model is read")] = None,
    to: Annotated[Path, typer.Option(help="the folder of rows and figures")] = OUTPUT,
    as_json: Json = False,
) -> None:
    """Predict token positions from hidden states, layer by layer.

    Probes are trained on some documents and tested on others, at seen and at unseen lengths; beside each are the same
    model before training, places dealt out at random, and the embeddings (layer 0).
    """
    from lengthwise.interface.probing import ProbeResults
    from lengthwise.interface.probing import probe as probed
    from lengthwise.study.reading import lengths_of

    if rows is not None:
        if runs or study:
            raise SpecError("--rows shows rows that are there; leave out the runs, or leave out --rows")
        found = ProbeResults.read(rows)
    else:
        found = probed(
            _names(runs or [], study, encodings, store),
            kind=kind,
            lengths=None if lengths is None else lengths_of(lengths),
            documents=[one.strip() for one in documents.split(",")],
            root_m=root_m,
            one_size=one_size,
            spread=spread,
            checkpoint=checkpoint,
            store=store,
            to=to,
        )
    paths, tables = found.write(to), found.tables
    if as_json:
        told = [{"task": task, "documents": source, "lines": lines} for (task, source), lines in tables.items()]
        print(json.dumps({"tables": told, "spread": found.exponents, "figures": [str(p) for p in paths]}, indent=2))
        return
    screen = console()
    for (task, source), lines in tables.items():
        screen.print(f"[bold]{escape(task)}[/], {source} documents: mean error of the position, in tokens, by layer")
        print_table(lines, False)
        screen.print(escape(found.without(task, source)), style="dim", highlight=False)
        screen.print()
    if found.spreads:
        screen.print(
            "How the variance of attention's output goes with position m: its exponent (−1: as 1/m; 0: not at all), "
            "at the start → trained",
            highlight=False,
        )
        print_table(_beside(found.exponents), False)
    screen.print(f"figures: {', '.join(escape(str(path)) for path in paths)}", highlight=False)


def _names(runs: list[str], study: str | None, encodings: str | None, store: str) -> list[str]:
    if study is not None:
        from lengthwise.interface.study import Study

        return list(dict.fromkeys([*runs, *Study.read(study).finished_runs(store, encodings)]))
    if not runs:
        raise SpecError("name runs, or a study: lengthwise probe copy-nope-s0, or --study attention")
    if encodings is not None:
        raise SpecError("--encodings chooses among the runs of a study; give --study, or name the runs alone")
    return list(dict.fromkeys(runs))


def _beside(lines: Rows) -> Rows:
    """The exponents of the output with the layers beside each other."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        if line["quantity"] == "output":
            where = {key: line[key] for key in ("task", "documents", "encoding")}
            one = found.setdefault(tuple(where.values()), where)
            one[f"layer {line['layer']}"] = f"{line['at the start']} → {line['trained']}"
    return list(found.values())
