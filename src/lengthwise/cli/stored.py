"""`lengthwise study`, what is there: status, rows, export, schema."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.study import (
    STORE,
    Add,
    AllowCode,
    File,
    StoreName,
    Tasks,
    With,
    done_where,
    opened,
    print_failed,
    study,
)
from lengthwise.cli.terminal import Json, console, escape, print_table, say
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.interface.study import Study
    from lengthwise.study.status import Status


@study.command()
def status(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    allow_code: AllowCode = False,
    watch: Annotated[bool, typer.Option("--watch", help="look again every two seconds, until it is complete")] = False,
    as_json: Json = False,
) -> None:
    """Print which runs are done, running, failed or missing."""
    asked = opened(file, add, tasks, with_, allow_code)
    while True:
        found, guard = asked.status(store), asked.guard_status(store)
        if as_json:
            told = _told(asked, found) | ({} if guard is None else {"guard": _counted(guard)})
            print(json.dumps(told, indent=None if watch else 2))
        else:
            if watch and sys.stdout.isatty():
                console().clear()
            _print_status(asked, found, store, asked.counted())
            if guard is not None and not guard.complete:
                say("committed runs that are made again first, as a guard:")
                _print_status(asked, guard, f"{store}/guard", None)
        going = found.running or found.missing or found.waiting
        if not watch or not going:
            return
        time.sleep(2)


def _counted(found: Status) -> dict[str, Any]:
    return {"total": found.total, "done": len(found.done), "running": found.running, "failed": found.failed}


def _told(asked: Study, found: Status) -> dict[str, Any]:
    return {
        "study": asked.name,
        **_counted(found),
        "missing": len(found.missing) + found.waiting,
        "seconds left": found.left,
        "encodings": found.table,
    }


def _print_status(asked: Study, found: Status, store: str, with_: Path | None) -> None:
    from lengthwise.study.drive import minutes

    told = f"{len(found.done):,} of {found.total:,} done, {len(found.running)} running, {len(found.failed)} failed"
    told += "" if found.left is None else f", about {minutes(found.left)} left"
    where = "" if with_ is None else f" ({done_where(found, store, with_)})"
    say(f"{asked.name} in {store}: {told}{where}", "bold")
    print_table(found.table, False)
    lines: list[dict[str, object]] = []
    for one in found.running[:20]:
        steps = f"{one['step']:,} of {one['steps']:,}" if "step" in one else "beginning"
        left = minutes(one["left"]) if "left" in one else ""
        lines.append({"running": one["run"], "step": steps, "left": left, "by": one["who"]})
    if lines:
        print_table(lines, False)
    print_failed(found.failed, 0)


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
    from lengthwise.evaluation.rows import to_parquet
    from lengthwise.folder import Folder

    with progress() as tell:
        found = opened(file, add, tasks, with_, allow_code).rows(store, tell)
    Folder(to.parent).write(to.name, to_parquet(found))
    told = {"rows": found.height, "runs": found["run"].n_unique(), "file": str(to)}
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        console().print(f"{told['rows']:,} rows of {told['runs']:,} runs: {escape(str(to))}", highlight=False)


@study.command()
def export(
    store: Annotated[str, typer.Argument(help="the store")],
    to: Annotated[Path, typer.Option("--to", help="the folder of the bundle")],
    of: Annotated[str | None, typer.Option("--study", help="only what this study needs")] = None,
    with_: Annotated[Path | None, typer.Option("--with", help="a bundle whose other runs are written too")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Write a bundle: rows and run descriptions, without weights.

    It also has up to 20 wrong answers of each row.
    """
    from lengthwise.study.store import Bundle, Store

    kept, keys, name = Store(store), None, None
    if not kept.folder.exists():
        raise SpecError(f"there is no store {store!r}; give the folder that --store named")
    if of is not None:
        asked = opened(of, with_=with_, allow_code=allow_code)
        keys, name = [item.key for item in asked.items(store)[0]], asked.name
    with progress() as tell:
        many = kept.export(to, keys, name, tell, None if with_ is None else Bundle(with_))
    if as_json:
        print(json.dumps({"runs": many, "folder": str(to)}, indent=2))
    else:
        console().print(f"{many:,} runs in {escape(str(to))}; study run --with {escape(str(to))} takes them as done")


@study.command("list")
def list_(as_json: Json = False) -> None:
    """List the studies that ship with lengthwise.

    For each: what it asks, how many runs it has, and whether its results are here.
    """
    from lengthwise.interface.catalog import studies

    print_table(list(studies()), as_json)


@study.command()
def schema(
    to: Annotated[Path | None, typer.Option("--to", help="a file; without it, it is printed")] = None,
) -> None:
    """Print the JSON schema of a study file, for editors."""
    from lengthwise.folder import Folder
    from lengthwise.study.file import schema as made

    text = json.dumps(made(), indent=2) + "\n"
    if to is None:
        print(text, end="")
    else:
        Folder(to.parent).write(to.name, text)
