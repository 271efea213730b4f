"""`lengthwise study report`: from stored rows to a page, a text, tables for a paper."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.study import STORE, Add, AllowCode, File, StoreName, Tasks, With, planned_of, status_of, study
from lengthwise.cli.terminal import Json, console, escape, print_table, working

if TYPE_CHECKING:
    from lengthwise.report.tables import Tables


@study.command()
def report(
    file: File,
    store: StoreName = STORE,
    with_: With = None,
    add: Add = None,
    tasks: Tasks = None,
    to: Annotated[Path | None, typer.Option("--to", help="the folder of the page; report-NAME unless given")] = None,
    text: Annotated[bool, typer.Option("--text", help="verdict and tables in the terminal; no files")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="also tables for a paper (booktabs)")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="also the figures as PDF, as wide as a page's columns")] = False,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Turn stored rows into a verdict with honest intervals, figures, and one self-contained page."""
    from lengthwise.report.findings import gather
    from lengthwise.report.page import Page
    from lengthwise.study.store import Bundle, Store

    planned = planned_of(file, add, tasks, allow_code)
    bundle = None if with_ is None else Bundle(with_)
    kept = Store(store)
    with working() as tell:
        failed = status_of(planned, kept, with_).failed
        found = gather(planned, kept, bundle, failed=failed, say=tell)
        tell("computing intervals")
        page = Page(found, command=_command(file, store, with_, add, tasks))
        if text or as_json:
            if as_json:
                print(json.dumps(page.plain(), indent=2))
            else:
                print_report(page)
            return
        tell("drawing")
        where = to or Path(f"report-{planned.study.name}")
        paths = page.write(where, pdf=pdf)
        if latex:
            from lengthwise.report.latex import latex as tables

            paths += tables(page, where)
    console().print(f"[bold]{escape(page.verdict)}[/]", highlight=False)
    console().print(
        f"page: {escape(str(where / 'index.html'))}; {len(paths) - 1} other files beside it", highlight=False
    )


def print_report(page: Tables) -> None:
    """The verdict and the tables in a terminal."""
    from lengthwise.report.words import verdict

    screen = console()
    screen.print(f"[bold]{escape(verdict(page.found, page.numbers))}[/]", highlight=False)
    for line in page.warnings():
        screen.print(escape(line), style="yellow", highlight=False)
    screen.print()
    print_table(page.rank_table(), False)
    screen.print(escape(page.rank_words()), style="dim", highlight=False)
    if page.numbers.differences:
        screen.print()
        print_table(page.difference_table(), False)
    for task in page.found.tasks if len(page.found.tasks) <= 3 else []:
        screen.print()
        screen.print(f"[bold]{escape(task)}[/]", highlight=False)
        print_table(page.task_table(task), False)


def _command(file: str, store: str, with_: Path | None, add: list[str] | None, tasks: str | None) -> str:
    """The commands that make the page again, from nothing."""
    more = [part for name in add or [] for part in ("--add", name)]
    more += ["--tasks", tasks] if tasks else []
    more += ["--with", str(with_)] if with_ else []
    run = shlex.join(["lengthwise", "study", "run", file, "--store", store, *more])
    return f"{run}\n{shlex.join(['lengthwise', 'study', 'report', file, '--store', store, *more])}"
