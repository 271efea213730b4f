"""`lengthwise analyze`: what the heads of trained models attend to, and whose attention resembles whose."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, app, console, print_table, say
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.analysis.attention import DecoderSource
    from lengthwise.analysis.pairing import Model
    from lengthwise.run import Run

Rows = list[dict[str, Any]]
STORE = "lengthwise-store"
FILES = ("divergence", "heads", "distances")
"""The rows of an analysis, each a parquet file."""


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
    if rows is not None:
        found = {name: _read(rows, name) for name in FILES}
    else:
        with progress() as tell:
            opened = _opened(runs or [], study, store, allow_code, tell)
            other = None if against is None else _open(against, store)
            from lengthwise.study.reading import lengths_of

            wanted = None if lengths is None else lengths_of(lengths)
            found = _analysed(opened, other, reference, wanted, examples, checkpoint, tell)
    given_to = [row["against"] for row in found["divergence"] if row["pairing"] == "given"]
    _show(found, given_to[0] if given_to else reference, to, as_json)


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
    from lengthwise.reporting.attention import heat_maps
    from lengthwise.run.ask import attention as read

    found = read(_open(run, store), prompt, checkpoint)
    drawing = heat_maps(found.tokens, found.prompt, found.weights_LHQK, found.title)
    Folder(to.parent).write(to.name, drawing.svg())
    layers, heads, tokens, _ = found.weights_LHQK.shape
    say(f"{' '.join(found.tokens)}\n{found.title}: {layers} layers × {heads} heads, {tokens} tokens: {to}")


# --- runs -> rows ----------------------------------------------------------------------------------------------------


def _open(name: str, store: str) -> Run:
    from lengthwise.run import Run

    run = Run.open(name, store)
    if not run.done:
        raise SpecError(f"run {run.id} is not finished; start it again, it goes on where it was stopped")
    return run


def _opened(
    runs: Sequence[str], study: str | None, store: str, allow_code: bool, tell: Callable[[str], None]
) -> list[Run]:
    if study is None:
        return [_open(name, store) for name in runs]
    from lengthwise.cli.study import opened
    from lengthwise.study.store import Store

    asked = opened(study, allow_code=allow_code)
    items, _ = asked.items(store)
    wanted = dict.fromkeys(item.run for item in items if item.kind == "run")
    done = Store(store).done()
    there = [name for name in wanted if name in done]
    if not there:
        raise SpecError(f"nothing of {asked.name} is done in {store}; lengthwise study run {study} does it")
    if len(there) < len(wanted):
        told = f"{len(there)} of {len(wanted)} runs of {asked.name} are done; only these are analysed"
        print(told, file=sys.stderr)
    tell(f"opening {len(there)} runs")
    return [_open(name, store) for name in there]


def _analysed(
    runs: Sequence[Run],
    against: Run | None,
    reference: str,
    lengths: list[int] | None,
    examples: int,
    checkpoint: str,
    tell: Callable[[str], None],
) -> dict[str, Rows]:
    import torch

    from lengthwise.analysis.attention import DecoderSource, batches
    from lengthwise.analysis.pairing import Model, Pairing, pairings
    from lengthwise.analysis.together import compare, describe

    torch.set_num_threads(1)  # models in lockstep run in threads of their own already
    found: dict[str, Rows] = {name: [] for name in FILES}
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(str(run.plan.task_spec), []).append(run)
    if against is not None and set(tasks) != {str(against.plan.task_spec)}:
        raise SpecError(f"runs are compared on one task; {against.id} learned {against.plan.task_spec}")
    for task, own in tasks.items():
        models = _models(own, checkpoint)
        trained = dict(models)
        pairs: list[Pairing] = []
        first = {model.untrained: _untrained(run) for model, run in zip(trained, own, strict=True)}
        if against is not None:
            fixed = Model(_name(against), against.plan.seed)
            if fixed in trained:  # alike in encoding and seed: they differ in something else
                if against.id in {run.id for run in own}:
                    raise SpecError(f"{against.id} would be compared with itself; name another run with --against")
                fixed = Model(f"{fixed.encoding} ({against.id.rpartition('-')[2][:6]})", fixed.seed)
            trained[fixed] = DecoderSource(against.decoder(checkpoint), against.plan.positions)
            first[fixed.untrained] = _untrained(against)
            pairs = [Pairing("given", model, fixed) for model in models]
            pairs += [Pairing("change", model, model.untrained) for model in trained]
        elif any(model.encoding == reference for model in trained) and len(trained) > 1:
            pairs = pairings([(model.encoding, model.seed) for model in trained], reference)
        models = {**trained, **first}
        limits = [limit for run in (*own, *([against] if against else [])) if (limit := run.plan.limit()) is not None]
        given = batches(own[0].task, lengths, examples, min(limits, default=None))
        heads, distances = describe(trained, given, tell, task=task)
        found["heads"] += heads
        found["distances"] += distances
        if pairs:
            near = [batch for batch in given if batch.length is None or batch.length <= 2 * own[0].task.longest]
            found["divergence"] += compare(models, pairs, near or given, tell, task=task)
    return found


def _models(runs: Sequence[Run], checkpoint: str) -> dict[Model, DecoderSource]:
    from lengthwise.analysis.attention import DecoderSource
    from lengthwise.analysis.pairing import Model

    found: dict[Model, DecoderSource] = {}
    for run in runs:
        model = Model(_name(run), run.plan.seed)
        if model in found:
            raise SpecError(
                f"two of these runs are {model.encoding}, seed {model.seed}; they differ in something else, so compare "
                f"them alone: lengthwise analyze {run.id} --against the other"
            )
        found[model] = DecoderSource(run.decoder(checkpoint), run.plan.positions)
    return found


def _name(run: Run) -> str:
    return ",".join(map(str, run.plan.encoding_specs))


def _untrained(run: Run) -> DecoderSource:
    from lengthwise.analysis.attention import DecoderSource

    return DecoderSource(run.plan.decoder(), run.plan.positions)


# --- rows -> what is shown -------------------------------------------------------------------------------------------


def _read(folder: Path, name: str) -> Rows:
    import polars as pl

    path = folder / f"{name}.parquet"
    if not path.exists():
        raise SpecError(f"there is no {path}; give the folder that lengthwise analyze --to wrote")
    return pl.read_parquet(path).to_dicts()


def _show(found: dict[str, Rows], reference: str, to: Path, as_json: bool) -> None:
    from lengthwise.encoding.labels import label_of
    from lengthwise.folder import Folder
    from lengthwise.reporting.attention import drawings, lengths_shown, modes
    from lengthwise.reporting.divergences import differences, markdown, over_lengths, sentence, summary, table, tasks_of
    from lengthwise.reporting.findings import short

    _write_rows(to, found)  # first: they took minutes, and whatever fails below can be done again from them
    told, seen = (over_lengths(found["divergence"], only) for only in (False, True))
    tasks = {task: short(task) for task in tasks_of(found["heads"])}
    if len(set(tasks.values())) < len(tasks):
        tasks = {task: task for task in tasks}
    parts = {"seen and unseen": told, "seen": seen}
    numbers = [{"lengths": lengths, **one} for lengths, part in parts.items() for one in summary(part)]
    gaps = [{"lengths": lengths, **one} for lengths, part in parts.items() for one in differences(part, reference)]
    _write_said(to, numbers, gaps)
    if told:
        pages = [markdown(told, task, reference) for task in tasks_of(told)]
        pages += [markdown(seen, task, reference, ", seen lengths alone") for task in tasks_of(seen)]
        Folder(to).write("summary.md", "\n".join(pages))
    paths = [
        path for drawing in drawings(told, found["heads"], found["distances"], tasks) for path in drawing.write(to)
    ]
    if as_json:
        heads = {task: modes(found["heads"], task) for task in tasks}
        plain = {"divergence": _plain(numbers), "differences": _plain(gaps), "heads": heads}
        print(json.dumps(plain | {"figures": [str(path) for path in paths]}, indent=2))
        return
    screen = console()
    for task in tasks:
        say(f"{task}: what heads do at {lengths_shown(found['heads'], task)}", "bold")
        print_table(modes(found["heads"], task), False)
        screen.print(
            "mean over layers and heads, median and range of seeds; near: closer than .125 of the way back, far: from "
            ".875; of the largest weight alone, and of all weights",
            style="dim",
            highlight=False,
        )
        screen.print()
        lines = table(told, task)
        if lines:
            say(f"{task}: divergence from the attention of {label_of(reference)}", "bold")
            print_table(lines, False)
            if words := sentence(told, task, reference):
                say(words)
            screen.print(
                "nats, mean over layers, examples and these lengths, 95 % for other seeds; the true one ends at .693",
                style="dim",
                highlight=False,
            )
            screen.print()
    say(f"rows and figures: {to} ({len(list(to.iterdir()))} files)")


def _write_rows(to: Path, found: dict[str, Rows]) -> None:
    import polars as pl

    from lengthwise.evaluation.rows import to_parquet
    from lengthwise.folder import Folder

    for name, listed in found.items():
        Folder(to).write(f"{name}.parquet", to_parquet(pl.DataFrame(listed, infer_schema_length=None)))


def _write_said(to: Path, numbers: Rows, gaps: Rows) -> None:
    """What is said of the rows, as CSV."""
    import polars as pl

    from lengthwise.folder import Folder

    for name, listed in (("summary", numbers), ("differences", gaps)):
        if listed:
            Folder(to).write(f"{name}.csv", pl.DataFrame(listed, infer_schema_length=None).write_csv(float_precision=6))


def _plain(rows: Rows) -> Rows:
    """JSON has no infinity."""
    return [
        {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]
