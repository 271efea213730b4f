"""`lengthwise analyze`, `attention` and `probe`: what heads attend to, and where positions are in hidden states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import lengthwise as lw
from lengthwise.cli.runs import STORE, AllowCode, Checkpoint, Device, ForwardDtype, Lengths, RunName, Store
from lengthwise.cli.terminal import Json, app, say, show
from lengthwise.folder import OUTPUT
from lengthwise.spec import SpecError

Runs = Annotated[list[str] | None, typer.Argument(help="runs: their folders, ids, or the beginnings of ids")]
StudyName = Annotated[str | None, typer.Option("--study", help="all finished runs of this study")]


@app.command()
def analyze(
    runs: Runs = None,
    against: Annotated[str | None, typer.Option(help="the run that each is compared with")] = None,
    study: StudyName = None,
    rows: Annotated[Path | None, typer.Option("--rows", help="draw again from the rows in this folder")] = None,
    store: Store = STORE,
    reference: Annotated[str, typer.Option(help="the encoding that all others are compared with")] = "nope",
    lengths: Lengths = None,
    examples: Annotated[int, typer.Option(min=1, help="of each length")] = 10,
    checkpoint: Checkpoint = "last",
    device: Device = "auto",
    dtype: ForwardDtype = "auto",
    to: Annotated[Path, typer.Option("--to", help="the folder of rows and figures")] = OUTPUT / "attention",
    allow_code: AllowCode = False,
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
    how = {"against": against, "reference": reference, "examples": examples, "checkpoint": checkpoint}
    how |= {"store": store, "device": device, "dtype": dtype}
    if rows is not None:
        found = lw.AttentionAnalysis.read(rows, reference)
    else:
        names = _names(runs, study, store, allow_code=allow_code)
        found = lw.analyze(names, lengths=lengths, allow_code=allow_code, **how)  # pyrefly: ignore[bad-argument-type]
    paths = found.write(to)
    show(found, as_json, figures=[str(path) for path in paths])
    if not as_json:
        say(f"rows and figures: {to} ({len(list(to.iterdir()))} files)")


@app.command()
def attention(
    run: RunName,
    prompt: Annotated[str, typer.Argument(help='what to ask, e.g. "3 1 2"')],
    to: Annotated[Path, typer.Option("--to", help="the SVG file")] = OUTPUT / "attention.svg",
    checkpoint: Checkpoint = "last",
    store: Store = STORE,
    allow_code: AllowCode = False,
) -> None:
    """Draw the attention weights of one prompt as heat maps.

    There is one heat map for each layer and head, with the tokens of prompt and answer as labels.
    """
    found = lw.attention(run, prompt, checkpoint=checkpoint, store=store, allow_code=allow_code)
    found.write(to)
    show(found)
    say(f"figure: {to}")


@app.command()
def probe(
    runs: Runs = None,
    study: StudyName = None,
    encodings: Annotated[str | None, typer.Option(help="only runs with these, e.g. nope,t5")] = None,
    kind: Annotated[Literal["linear", "mlp", "both"], typer.Option(help="the probe")] = "both",
    lengths: Annotated[str | None, typer.Option(help="test at these, e.g. 8,16,32; seen and unseen ones")] = None,
    documents: Annotated[
        str, typer.Option(help="task (its examples), random (tokens), random-no-start (and no start token); commas")
    ] = "task",
    root_m: Annotated[
        bool, typer.Option("--scale-by-root-m", help="probe again with attention's output multiplied by √m")
    ] = False,
    equalise_output_norm: Annotated[
        bool,
        typer.Option("--equalise-output-norm", help="probe again with attention's output of one size at every token"),
    ] = False,
    spread: Annotated[bool, typer.Option("--spread", help="variance of attention's output by position")] = False,
    checkpoint: Checkpoint = "last",
    store: Store = STORE,
    rows: Annotated[Path | None, typer.Option(help="show the rows of this folder again; no model is read")] = None,
    to: Annotated[Path, typer.Option(help="the folder of rows and figures")] = OUTPUT,
    device: Device = "auto",
    dtype: ForwardDtype = "auto",
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Predict token positions from hidden states, layer by layer.

    Probes are trained on some documents and tested on others, at seen and at unseen lengths; beside each are the same
    model before training, places dealt out at random, and the embeddings (layer 0).
    """
    if rows is not None and (runs or study):
        raise SpecError("--rows shows rows that are there; leave out the runs, or leave out --rows")
    if rows is not None:
        found = lw.ProbeResults.read(rows)
    else:
        if not runs and study is None:
            raise SpecError("name runs, or a study: lengthwise probe copy-nope-s0, or --study attention")
        if encodings is not None and study is None:
            raise SpecError("--encodings chooses among the runs of a study; give --study, or name the runs alone")
        found = lw.probe(
            _names(runs, study, store, encodings, allow_code),
            kind=kind,
            lengths=lengths,
            documents=[one.strip() for one in documents.split(",")],
            root_m=root_m,
            equalise_output_norm=equalise_output_norm,
            spread=spread,
            checkpoint=checkpoint,
            store=store,
            device=device,
            dtype=dtype,
            allow_code=allow_code,
            to=to,
        )
    paths = [str(path) for path in found.write(to)]
    show(found, as_json, figures=paths)
    if not as_json:
        say(f"figures: {', '.join(paths)}")


def _names(
    runs: list[str] | None, study: str | None, store: str, encodings: str | None = None, allow_code: bool = False
) -> list[str]:
    """The runs that were named, and those of the study."""
    found = list(runs or [])
    if study is not None:
        asked = lw.Study.read(study, allow_code=allow_code)
        found += asked.finished_runs(store, encodings, say=lambda words: print(words, file=sys.stderr))
    return list(dict.fromkeys(found))
