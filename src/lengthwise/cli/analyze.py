"""`lengthwise analyze`: what the heads of trained models attend to, and whose attention resembles whose."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.terminal import Json, app, console, print_table, say
from lengthwise.folder import OUTPUT
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.interface.attention import AttentionAnalysis

STORE = "lengthwise-store"


@app.command()
def analyze(
    runs: Annotated[list[str] | None, typer.Argument(help="runs: their folders, ids, or beginnings of ids")] = None,
    against: Annotated[str | None, typer.Option(help="the run that each is compared with")] = None,
    study: Annotated[str | None, typer.Option("--study", help="all finished runs of this study")] = None,
    rows: Annotated[Path | None, typer.Option("--rows", help="draw again from the rows in this folder")] = None,
    store: Annotated[str, typer.Option(help="where runs are kept: a folder or any fsspec path")] = STORE,
    reference: Annotated[str, typer.Option(help="the encoding that all others are compared with")] = "nope",
    lengths: Annotated[
        str | None, typer.Option(help="e.g. 8,16,32 or 17-40; all that are tested, unless given")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="of each length")] = 10,
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    to: Annotated[Path, typer.Option("--to", help="the folder of rows and figures")] = OUTPUT / "attention",
    allow_code: Annotated[bool, typer.Option("--allow-code", help="the study may run code from outside")] = False,
    as_json: Json = False,
) -> None:
    """Measure what attention heads look at, and how far back.

    Two or more runs are also compared: whose attention resembles whose.

    Several runs of one task are compared with those of the reference encoding that have another seed; untrained models
    and each model's own first weights give the scale. A comparison is of seen and unseen lengths, not of far ones.
    """
    given = [name for name, value in (("runs", runs), ("--study", study), ("--rows", rows)) if value]
    if len(given) != 1:
        raise SpecError("name runs, or a study with --study, or a folder of rows with --rows; one of the three")
    if against is not None and not runs:
        raise SpecError("--against goes with runs: lengthwise analyze RUN --against RUN")
    from lengthwise.interface.attention import AttentionAnalysis
    from lengthwise.interface.attention import analyze as analyzed
    from lengthwise.interface.study import Study
    from lengthwise.study.reading import lengths_of

    if rows is not None:
        found = AttentionAnalysis.read(rows, reference)
    else:
        names = list(runs or [])
        if study is not None:
            asked = Study.read(study, allow_code=allow_code)
            names = asked.finished_runs(store, say=lambda words: print(words, file=sys.stderr))
        found = analyzed(
            names,
            against=against,
            reference=reference,
            lengths=None if lengths is None else lengths_of(lengths),
            examples=examples,
            checkpoint=checkpoint,
            store=store,
        )
    _show(found, to, as_json)


@app.command()
def attention(
    run: Annotated[str, typer.Argument(help="a run: its folder, its id, or the beginning of its id")],
    prompt: Annotated[str, typer.Argument(help='what to ask, e.g. "3 1 2"')],
    to: Annotated[Path, typer.Option("--to", help="the SVG file")] = OUTPUT / "attention.svg",
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    store: Annotated[str, typer.Option(help="where runs are kept: a folder or any fsspec path")] = STORE,
) -> None:
    """Draw the attention weights of one prompt as heat maps.

    There is one heat map for each layer and head, with the tokens of prompt and answer as labels.
    """
    from lengthwise.folder import Folder
    from lengthwise.interface.attention import finished
    from lengthwise.reporting.attention import heat_maps
    from lengthwise.run.ask import attention as read

    found = read(finished(run, store), prompt, checkpoint)
    drawing = heat_maps(found.tokens, found.prompt, found.weights_LHQK, found.title)
    Folder(to.parent).write(to.name, drawing.svg())
    layers, heads, tokens, _ = found.weights_LHQK.shape
    say(f"{' '.join(found.tokens)}\n{found.title}: {layers} layers × {heads} heads, {tokens} tokens: {to}")


def _show(found: AttentionAnalysis, to: Path, as_json: bool) -> None:
    from lengthwise.encoding.labels import label_of
    from lengthwise.reporting.attention import lengths_shown

    paths = found.write(to)
    if as_json:
        print(json.dumps(found.plain() | {"figures": [str(path) for path in paths]}, indent=2))
        return
    screen = console()
    for task in found.tasks:
        say(f"{task}: what heads do at {lengths_shown(found.heads, task)}", "bold")
        print_table(found.head_table(task), False)
        screen.print(
            "mean over layers and heads, median and range of seeds; near: closer than .125 of the way back, far: from "
            ".875; of the largest weight alone, and of all weights",
            style="dim",
            highlight=False,
        )
        screen.print()
        if lines := found.divergence_table(task):
            say(f"{task}: divergence from the attention of {label_of(found.reference)}", "bold")
            print_table(lines, False)
            if words := found.verdict(task):
                say(words)
            screen.print(
                "nats, mean over layers, examples and these lengths, 95 % for other seeds; the true one ends at .693",
                style="dim",
                highlight=False,
            )
            screen.print()
    say(f"rows and figures: {to} ({len(list(to.iterdir()))} files)")
