"""`lengthwise train`, `evaluate`, `compare` and `ask`: runs, and what they show."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table, say
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress
from lengthwise.spec import SpecError, specs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lengthwise.run import Run

TaskName = Annotated[str, typer.Argument(help="a task, e.g. copy:variant=same or my_task.py:Mine")]
RunName = Annotated[str, typer.Argument(help="a run: its folder, its id, or the beginning of its id")]
Positions = Annotated[str, typer.Option(help="the kind of positions, e.g. randomized:limit=256")]
Model = Annotated[str, typer.Option(help="a model preset, e.g. laptop:layers=3 or paper")]
Training = Annotated[str, typer.Option(help="a training preset, e.g. laptop:steps=500:lr=0.002 or paper")]
Store = Annotated[str, typer.Option(help="where runs are kept: a folder or any fsspec path")]
Threads = Annotated[int | None, typer.Option(min=1, help="threads of torch; recorded with the run")]
Allow = Annotated[
    list[str] | None, typer.Option(help="parameters that may be missing or left over, e.g. 'encodings.*'")
]
STORE = "lengthwise-store"


@app.command()
def train(
    task: TaskName,
    encoding: Annotated[str, typer.Option(help="an encoding; commas separate one per layer")] = "nope",
    positions: Positions = "consecutive",
    model: Model = "laptop",
    training: Training = "laptop",
    seed: Annotated[int, typer.Option(min=0, help="of initialisation, data, order and dropout")] = 0,
    stream: Annotated[list[str] | None, typer.Option(help="the seed of one stream alone, e.g. order=7")] = None,
    start: Annotated[str | None, typer.Option(help="begin with the weights of this run; @best for its best")] = None,
    allow: Allow = None,
    store: Store = STORE,
    threads: Threads = None,
    shard: Annotated[bool, typer.Option("--shard", help="shard the model over the processes (FSDP2)")] = False,
    checkpoint_every: Annotated[int | None, typer.Option(min=1, help="steps between checkpoints")] = None,
    logger: Annotated[list[str] | None, typer.Option(help="tensorboard or wandb")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    as_json: Json = False,
) -> None:
    """Train one run on short sequences, then test it on long ones.

    Started again, a run that is done is only shown; one that was stopped goes on. Exit code 75: stopped and saved.
    """
    from lengthwise.run import train as do

    run = do(
        task,
        encoding,
        positions=positions,
        model=model,
        training=training,
        seed=seed,
        streams=_streams(stream or []),
        start=start,
        allow=allow or (),
        store=store,
        threads=threads,
        shard=shard,
        checkpoint_every=checkpoint_every,
        loggers=logger or (),
        quiet=quiet,
    )
    if not _first_process():
        return
    if not run.fresh and not as_json:
        say(f"run {run.id} is done already; another --seed or --store makes another run")
    _show_run(run, as_json)


def _streams(given: list[str]) -> dict[str, int]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not value.isdigit():
            raise SpecError(f"a stream is written name=seed, e.g. order=7, not {one!r}")
        found[name] = int(value)
    return found


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _show_run(run: Run, as_json: bool) -> None:
    from lengthwise.cli.report import print_short
    from lengthwise.interface.comparison import compare as side_by_side

    found = side_by_side([run])
    if as_json:
        (line,) = found.table.to_dicts()
        summary = {"run": run.id, "folder": str(run.folder), "verdict": found.verdict, **line}
        (curve,) = found.curves().values()
        print(json.dumps({**summary, "checkpoints": run.checkpoints, "curve": curve[0]}, indent=2))
        return
    print_short(found.page)
    say(f"folder: {run.folder}")
    _warn(run.id, run.folder.json("done")["checks"])


def _warn(run: str, checked: Mapping[str, Mapping[str, int]]) -> None:
    for label, checks in checked.items():
        if checks["differences"]:
            say(
                f"{run}, {label}: decoding disagreed with one pass in {checks['differences']} of {checks['decoded']} "
                "checks, so everything was decoded; does the encoding pass lengthwise verify?",
                "bold red",
            )


@app.command()
def compare(
    task: TaskName,
    encodings: Annotated[str, typer.Option(help="encodings, separated by commas")] = "nope,alibi,rope",
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0, 1, ... of each")] = 3,
    positions: Positions = "consecutive",
    model: Model = "laptop",
    training: Training = "laptop",
    store: Store = STORE,
    threads: Threads = None,
    workers: Annotated[int | None, typer.Option(min=1, help="runs at a time, one thread each; one per core")] = None,
    to: Annotated[Path, typer.Option(help="the folder of the figure")] = OUTPUT,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    as_json: Json = False,
) -> None:
    """Train encodings side by side on one task and compare them.

    Each encoding is trained with each seed, on this machine; the figure shows accuracy against length.
    """
    if mixed := re.search(r"(?:^|,)\s*([0-9]+\s*\*|\[)", encodings):
        raise SpecError(
            f"compare cannot take a mixture of layers, as {mixed[1]!r} begins one in {encodings!r}: a name is for all "
            "layers. A study can: write vary: {encoding: [nope, '3*rope,nope']} into its file"
        )
    named = specs(encodings)
    if not named:
        raise SpecError("name encodings, e.g. --encodings nope,rope")
    if len(set(named)) < len(named):
        raise SpecError(f"{encodings!r} names an encoding twice; leave one out")
    from lengthwise.cli.report import print_short
    from lengthwise.interface.comparison import compare as side_by_side
    from lengthwise.run import Plan
    from lengthwise.training.health import Diverged

    plan = Plan.of(task, named[0], positions=positions, model=model, training=training, check=False)
    if plan.caution:
        print(f"lengthwise: {plan.caution}", file=sys.stderr)
    shared: dict[str, Any] = {"positions": positions, "model": model, "training": training, "store": store}
    with progress() if not quiet else nullcontext(lambda words: None) as tell:
        found = side_by_side(task, named, seeds=seeds, workers=workers, threads=threads or 1, say=tell, **shared)
    name = Path(to) / f"compare-{found.page.found.items[0].plan.task.name}"
    found.draw(to, name.name)
    if as_json:
        told = {**found.page.plain(), "curves": found.curves(), "figure": f"{name}.svg", "page": f"{name}.html"}
        print(json.dumps(told, indent=2))
        return
    print_short(found.page)
    for key, told in found.page.found.diverged.items():
        print(f"lengthwise: {Diverged.read(told, key)}", file=sys.stderr)
    for key, record in found.page.found.records.items():
        _warn(key, record["ends"].get("checks", {}))
    say(f"page: {name}.html; figure: {name}.svg, {name}.png")


@app.command()
def evaluate(
    run: RunName,
    lengths: Annotated[
        str | None, typer.Option(help="e.g. 8,16,32 or 17-40; all that are tested, unless given")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="another encoding at test time, e.g. rope:scaling=yarn:factor=4")
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(help="attention temperature at test time, e.g. log-n or yarn:factor=4")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    examples: Annotated[int | None, typer.Option(min=1, help="of each length; 256 unless given")] = None,
    allow: Allow = None,
    store: Store = STORE,
    save: Annotated[bool, typer.Option("--save", help="put the rows beside the run's own")] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a stored run again, without training.

    Lengths, encoding scaling and temperature may differ from those of training.
    """
    from lengthwise.run import Run
    from lengthwise.statistics.reach import reach
    from lengthwise.study.reading import lengths_of

    opened = Run.open(run, store)
    with progress() as tell:
        found = opened.evaluate(
            None if lengths is None else lengths_of(lengths),
            checkpoint=checkpoint,
            encoding=encoding,
            temperature=temperature,
            examples=examples,
            allow=allow or (),
            progress=tell,
        )
    if save:
        opened.keep(found)
    if as_json:
        print(json.dumps(found.rows.to_dicts(), indent=2))
        return
    print_table(found.table, False)
    told = f"{opened.id}, {found.rows['evaluation'][0]}, {checkpoint}"
    say(told if lengths is not None else f"{told}: reach {reach(found.rows)}")
    if encoding is not None:
        say("\n".join(found.effective), "dim")
    if not found.checks.holds:
        say("decoding disagreed with one pass: everything was decoded for real", "bold red")


@app.command()
def ask(
    run: RunName,
    prompt: Annotated[str, typer.Argument(help='what to ask, e.g. "3 1 2"')],
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    store: Store = STORE,
    as_json: Json = False,
) -> None:
    """Ask a trained model and print its answer and the right one.

    Where they differ, the first differing token is named.
    """
    from lengthwise.run import Run
    from lengthwise.run.ask import ask as put

    found = put(Run.open(run, store), prompt, checkpoint)
    if as_json:
        print(json.dumps(vars(found), indent=2))
        return
    screen = console()
    screen.print(f"asked  {escape(found.prompt)}  [dim]({found.where})[/]", highlight=False)
    here = found.parts if found.parts is not None else len(found.said)
    shown = f"{escape(' '.join(found.said[:here]))} [bold red]{escape(' '.join(found.said[here:]))}[/]"
    screen.print(f"said   {shown.strip()}{' [dim](never stopped)[/]' if found.cut else ''}", highlight=False)
    if found.right is None:
        screen.print("right  unknown: the task does not read this prompt", highlight=False)
        return
    screen.print(f"right  {escape(' '.join(found.right))}", highlight=False)
    if found.correct:
        screen.print("[green]right[/]")
    else:
        screen.print(f"[red]wrong[/]: they part at token {(found.parts or 0) + 1} of the answer", highlight=False)


@app.command("export-model")
def export_model(
    run: RunName,
    folder: Annotated[Path, typer.Argument(help="the folder to write")],
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    store: Store = STORE,
) -> None:
    """Write a run's model as a Hugging Face folder.

    The folder has the weights, the config with the end token, and the tokenizer.
    """
    from lengthwise.hf.export import export_model as write
    from lengthwise.hf.export import loading
    from lengthwise.run import Run

    opened = Run.open(run, store)
    prompt = write(opened.decoder(checkpoint).eval(), opened.task, opened.plan.positions, folder)
    say(f"{opened.id}, {checkpoint}: {folder}")
    say(loading(folder, prompt))
