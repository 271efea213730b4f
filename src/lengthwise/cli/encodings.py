"""`lengthwise list`, `verify`, `describe`, `new`, `bench`, `measure` and `doctor`: encodings and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import lengthwise as lw
from lengthwise.cli.runs import STORE, Device, ForwardDtype, Store
from lengthwise.cli.terminal import Json, app, print_table, say, show
from lengthwise.spec import SpecError, did_you_mean, parse_specs

_TABLES = (
    *("tasks", "encodings", "positions", "normalisers", "temperatures", "recipes", "presets", "checks", "studies"),
)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help=", ".join(_TABLES))],
    markdown: Annotated[bool, typer.Option("--markdown", help="the encodings as a page of Markdown")] = False,
    as_json: Json = False,
) -> None:
    """List tasks, encodings, normalisers, recipes or studies."""
    if what not in _TABLES:
        raise SpecError(f"there is no list of {what!r}.{did_you_mean(what, _TABLES)}")
    if markdown and what != "encodings":
        raise SpecError("--markdown writes the catalogue of encodings: lengthwise list encodings --markdown")
    if markdown:
        print(lw.encodings().markdown_page())
    else:
        show(getattr(lw, what)(), as_json)


@app.command()
def verify(
    encoding: Annotated[str, typer.Argument(help="a name, module:Class or file.py:Class; commas separate several")],
    positions: Annotated[str, typer.Option(help="the kind of positions to verify it under")] = "consecutive",
    normaliser: Annotated[str, typer.Option(help="the normaliser of the models, e.g. sink")] = "softmax",
    temperature: Annotated[str, typer.Option(help="their attention temperature, e.g. ssmax")] = "constant",
    only: Annotated[list[str] | None, typer.Option(help="run these checks only, e.g. T05,T13")] = None,
    every: Annotated[bool, typer.Option("--all", help="print every check, not only those that failed")] = False,
    as_json: Json = False,
) -> None:
    """Check that an encoding does what it claims.

    The checks cover padding, cache, precision, formulas, gradients, claims and a short training run.
    """
    named = parse_specs(encoding)
    if not named:
        raise SpecError("name an encoding, e.g. lengthwise verify rope")
    chosen = [id for text in only or () for id in text.replace(",", " ").split()] or None
    given = {"positions": positions, "normaliser": normaliser, "temperature": temperature, "only": chosen}
    reports = [lw.verify(spec, **given) for spec in named]
    if as_json:
        told = [report.plain() for report in reports]
        print(json.dumps(told if len(told) > 1 else told[0], indent=2))
    for report in [] if as_json else reports:
        show(report)
        if every or chosen is not None:
            say(f"{report.encoding}, {report.positions} positions", "bold")
            print_table(report.table)
        else:
            say("--all shows every check", "dim")
    if any(report.failed for report in reports):
        raise typer.Exit(1)


@app.command()
def describe(
    preset: Annotated[str, typer.Argument(help="a preset, e.g. laptop:layers=3")],
    encoding: Annotated[str, typer.Option(help="the encoding; commas separate one per layer")] = "nope",
    vocabulary: Annotated[int | None, typer.Option(help="distinct tokens; 32,100 unless the preset says")] = None,
    as_json: Json = False,
) -> None:
    """Print what a model is made of and its parameter counts.

    It also prints the scale of the initial weights and of positions relative to embeddings.
    """
    show(lw.describe(preset, encoding, vocabulary), as_json)


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="encoding or task")],
    name: Annotated[str, typer.Argument(help="its name, e.g. mine")],
    to: Annotated[Path, typer.Option(help="the folder to write into")] = Path("."),
) -> None:
    """Write a template for a new encoding or task, with its test.

    It also prints the command that compares it with others.
    """
    show(lw.write_template(kind, name, to))


bench = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")


@bench.callback()
def _top() -> None:
    pass


@bench.command("encodings")
def bench_encodings(
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
    device: Device = "auto",
    dtype: ForwardDtype = "auto",
    as_json: Json = False,
) -> None:
    """Measure time and memory of each encoding against NoPE.

    It times a training step, a forward pass and cached generation.
    """
    how = {"batch": batch, "repeat": repeat, "threads": threads}
    show(lw.bench(encodings, lengths, model=model, limit=limit, device=device, dtype=dtype, **how), as_json)


ModelFolder = Annotated[str, typer.Argument(help="the folder of a Hugging Face model, with safetensors")]
AttentionKind = Annotated[str | None, typer.Option(help="eager or sdpa; the model's default, unless given")]
Flex = Annotated[bool, typer.Option("--flex", help="compare FlexAttention too, which compiles for a minute")]


@app.command()
def measure(
    model: ModelFolder,
    lengths: Annotated[str | None, typer.Option(help="contexts in tokens, e.g. 256..4096:x2: how far it works")] = None,
    text: Annotated[Path | None, typer.Option(help="a text to read; Python's own library, unless given")] = None,
    change: Annotated[
        list[str] | None, typer.Option(help="a change at test time, e.g. yarn:factor=4; repeat it for several")
    ] = None,
    task: Annotated[str | None, typer.Option(help="one of our tasks, asked with solved examples in the prompt")] = None,
    shots: Annotated[int, typer.Option(min=0, help="solved examples in a prompt of --task")] = 4,
    to: Annotated[Path | None, typer.Option(help="write a page with figures into this folder")] = None,
    attention: AttentionKind = None,
    flex: Flex = False,
    store: Store = STORE,
    as_json: Json = False,
) -> None:
    """Say what positions do in a model, and if its code is right.

    All is found by probing the model and compared with its configuration. Nothing is downloaded, and no code of the
    folder is run. With --lengths, perplexity, retrieval and more are measured up to that context. The id of a run of
    the task text is a model too: how far it works is measured on its corpus.
    """
    if model.startswith("text-"):
        return show(lw.measure_run(model, lengths=lengths, store=store), as_json)
    how = {"attention": attention, "flex": flex, "task": task, "shots": shots}
    show(lw.measure(model, lengths=lengths, text=text, changes=change or [], to=to, **how), as_json)


@app.command()
def doctor(
    model: ModelFolder,
    against: Annotated[str | None, typer.Option(help="another implementation with the same weights")] = None,
    attention: AttentionKind = None,
    flex: Flex = False,
    as_json: Json = False,
) -> None:
    """Say whether it is a model that fails, or the code around it.

    One thing after the other is toggled: padding, batch, cache, chunks, packing, dtype, backend, reloading. The exit
    code is 1 if something is wrong.
    """
    found = lw.doctor(model, against=against, attention=attention, flex=flex)
    show(found, as_json)
    if not found.healthy:
        raise typer.Exit(1)
