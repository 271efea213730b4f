"""`lengthwise study`: a question as a grid of runs; before it is run, running it, and what is there afterwards."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

import lengthwise as lw
from lengthwise.cli.terminal import Json, app, console, print_parts, print_table, progress_callback, say, show
from lengthwise.folder import OUTPUT, Folder
from lengthwise.spec import SpecError

study = typer.Typer(
    help="Plan, run and report a study: one question, many runs.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(study, name="study")

File = Annotated[str, typer.Argument(help="a study: a YAML file, or the name of a recipe, e.g. quickstart")]
StoreName = Annotated[str, typer.Option("--store", help="where runs are kept: a folder or any fsspec path")]
Dtype = Annotated[
    Literal["auto", "fp32", "bf16"], typer.Option(help="bf16: all runs in mixed precision, which makes other runs")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, mps or xpu; each worker has its own")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="the study may run code from outside the package")]
Add = Annotated[list[str] | None, typer.Option("--add", help="one more encoding, e.g. my_pe.py:Mine")]
Tasks = Annotated[str | None, typer.Option("--tasks", help="only these tasks, e.g. copy,sort; quick for four")]
With = Annotated[Path | None, typer.Option("--with", help="a bundle whose runs count as done")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="runs at a time; one per core")]
STORE = "lengthwise-store"


def _read(
    file: str,
    add: list[str] | None,
    tasks: str | None,
    with_: Path | None = None,
    allow_code: bool = False,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
) -> lw.Study:
    return lw.Study.read(file, add=add or (), tasks=tasks, with_bundle=with_, dtype=dtype, allow_code=allow_code)


@study.command()
def check(
    file: File,
    add: Add = None,
    tasks: Tasks = None,
    against: Annotated[Path | None, typer.Option(help="a bundle whose ids are recomputed, e.g. results/glance")] = None,
    rerun: Annotated[int, typer.Option(min=0, help="how many of its runs to execute again and compare")] = 0,
    store: StoreName = STORE,
    workers: Workers = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Find every mistake of a study before anything starts.

    One of each distinct task, encoding and model is built. With --against, the id of every run of a bundle is computed
    again from its options; with --rerun, some of its runs are executed again and their rows compared bit for bit.
    """
    found = _read(file, add, tasks, None, allow_code).check(against, rerun=rerun, store=store, workers=workers)
    if as_json or not found.errors:
        show(found, as_json)
    else:
        for error in found.errors:
            print(f"lengthwise: error: {error}", file=sys.stderr)
        if found.against is not None:
            say(str(found.against))
    if found.errors:
        raise typer.Exit(2)


@study.command()
def plan(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    every: Annotated[bool, typer.Option("--all", help="every run, not the first twenty")] = False,
    as_json: Json = False,
) -> None:
    """Print the runs of a study and which of them are done.

    It also proves that only the encoding differs between compared runs.
    """
    show(_read(file, add, tasks, with_, allow_code).plan(store, every), as_json)


@study.command()
def cost(
    file: File,
    on: Annotated[str, typer.Option("--on", help="this machine, or an accelerator: a100, h100, l4, ...")] = "here",
    workers: Workers = None,
    add: Add = None,
    tasks: Tasks = None,
    dtype: Dtype = "auto",
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Estimate the FLOPs, memory, disk and hours of a study."""
    show(_read(file, add, tasks, None, allow_code, dtype).cost(on, workers), as_json)


@study.command()
def run(
    context: typer.Context,
    file: File,
    store: StoreName = STORE,
    add: Add = None,
    tasks: Tasks = None,
    with_: With = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="report although committed runs come out differently here")
    ] = False,
    inline: Annotated[bool, typer.Option("--inline", help="one run at a time, in this process, without Ray")] = False,
    workers: Workers = None,
    address: Annotated[str | None, typer.Option("--address", help="a Ray cluster that is there, e.g. auto")] = None,
    no_ray: Annotated[
        bool, typer.Option("--no-ray", help="processes in place of Ray, as where it is not installed")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    allow_code: AllowCode = False,
    skip_verify: Annotated[bool, typer.Option("--skip-verify", help="run added encodings that fail verify")] = False,
    to: Annotated[Path, typer.Option("--to", help="the folder of the figures")] = OUTPUT,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study, then report.

    It runs on Ray where that is installed, and in worker processes otherwise. Started again, it does only what is
    missing.

    Exit code 0: complete; 1: some runs failed; 75: stopped and saved.
    """
    executor: Literal["inline", "processes", "auto"] = "processes" if no_ray and address is None else "auto"
    ended = _read(file, add, tasks, with_, allow_code, dtype).run(
        store,
        workers=workers,
        executor="inline" if inline else executor,
        address=address,
        device=device,
        retry=context.info_name == "retry",
        accept_differences=accept,
        verify=not skip_verify,
        say=progress_callback(quiet),
    )
    try:
        made = ended.report(to / f"report-{ended.study.name}", progress_callback(quiet))
    except SpecError as error:  # nothing is done, or a blind study is not complete
        show(ended, as_json)
        say(str(error))
        raise typer.Exit(0 if ended.all_done else 1) from None
    if as_json:
        print(json.dumps({**ended.plain(), **made.plain(), "page": str(made.path)}, indent=2))
    else:
        print_parts(made.page.short_parts(console().width))
        if learning_rate_table := made.page.learning_rate_table():
            say("learning rates, chosen at seen lengths with other seeds:", "bold")
            print_table(learning_rate_table)
        say(f"page: {made.path}")
        show(ended)
    if not ended.all_done:
        raise typer.Exit(1)


study.command("retry", help="Run a study and try its failed runs once more.")(run)


@study.command()
def report(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="the folder of the page [default: lengthwise-output/report-NAME]")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="verdict and tables in the terminal; no files")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="also tables for a paper (booktabs)")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="also the figures as PDF, as wide as a page's columns")] = False,
    dtype: Dtype = "auto",
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Turn stored rows into a verdict, figures and one HTML page."""
    asked = _read(file, add, tasks, with_, allow_code, dtype)
    show(asked.report(to, store=store, pdf=pdf, latex=latex, write=not (text or as_json)), as_json)


@study.command()
def status(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    watch: Annotated[bool, typer.Option("--watch", help="look again every two seconds, until it is complete")] = False,
    learned: Annotated[bool, typer.Option("--learned", help="also which tasks are learned, at seen lengths")] = False,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Print which runs are done, running, failed or missing."""
    asked = _read(file, add, tasks, with_, allow_code, dtype)
    while True:
        found = asked.status(store, learned)
        if watch and as_json:
            print(json.dumps(found.plain()))
        else:
            if watch and sys.stdout.isatty():
                console().clear()
            show(found, as_json)
        if not watch or found.ended:
            return
        time.sleep(2)


@study.command()
def rows(
    file: File,
    to: Annotated[Path, typer.Option("--to", help="the parquet file")] = OUTPUT / "rows.parquet",
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Write the rows of all finished runs into one parquet file."""
    show(lw.write_rows(_read(file, add, tasks, with_, allow_code), to, store), as_json)


@study.command()
def export(
    store: Annotated[str, typer.Argument(help="the store")],
    to: Annotated[Path, typer.Option("--to", help="the folder of the bundle")],
    of: Annotated[str | None, typer.Option("--study", help="only what this study needs")] = None,
    with_: Annotated[list[Path] | None, typer.Option("--with", help="add a bundle's runs; may repeat")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Write a bundle: rows and run descriptions, without weights.

    It also has up to 20 wrong answers of each row.
    """
    show(lw.export_bundle(store, to, study=of, with_bundles=with_ or (), allow_code=allow_code), as_json)


@study.command()
def fsck(
    where: Annotated[str, typer.Argument(help="a store or a bundle")],
    repair: Annotated[bool, typer.Option("--repair", help="set aside what is damaged, add missing checksums")] = False,
    as_json: Json = False,
) -> None:
    """Find damaged files in a store or a bundle.

    Every file that has a checksum is read. The exit code is 1 if something was found and not repaired.
    """
    found = lw.fsck(where, repair=repair)
    show(found, as_json)
    if found.found and not repair:
        raise typer.Exit(1)


@study.command("list")
def list_(as_json: Json = False) -> None:
    """List the studies that ship with lengthwise.

    For each: what it asks, how many runs it has, and whether its results are here.
    """
    show(lw.studies(), as_json)


@study.command()
def schema(
    to: Annotated[Path | None, typer.Option("--to", help="a file; without it, it is printed")] = None,
) -> None:
    """Print the JSON schema of a study file, for editors."""
    text = lw.study_schema()
    if to is None:
        print(text, end="")
    else:
        Folder(to.parent).write(to.name, text)
