"""`lengthwise study report`: from stored rows to a page, a text, tables for a paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.study import STORE, Add, AllowCode, File, StoreName, Tasks, With, opened, study
from lengthwise.cli.terminal import Json, app, console, print_table, say
from lengthwise.progress import progress
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.reporting.findings import Findings
    from lengthwise.reporting.tables import Tables


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
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Turn stored rows into a verdict, figures and one HTML page."""
    asked = opened(file, add, tasks, with_, allow_code)
    with progress() as tell:
        tell("computing intervals and drawing")
        made = asked.report(to, store=store, pdf=pdf, latex=latex, write=not (text or as_json), say=tell)
        if as_json:
            print(json.dumps(made.page.plain(), indent=2))
        elif text:
            print_report(made.page)
        if made.path is None:
            return
    console().print(made.verdict, style="bold", markup=False, highlight=False)
    say(f"page: {made.path}; {len(made.files) - 1} other files beside it")


@app.command()
def claims(
    store: StoreName = STORE,
    with_: With = None,
    as_json: Json = False,
) -> None:
    """Check published claims against stored results.

    Each claim is decided by a rule that was committed before the results existed.
    """
    from lengthwise.reporting.claims import committed_on, judge, read_claims, read_measured
    from lengthwise.reporting.findings import gather
    from lengthwise.reporting.numbers import numbers
    from lengthwise.study.add import committed, in_results
    from lengthwise.study.file import StudyFile
    from lengthwise.study.plan import Planned
    from lengthwise.study.reading import recipes, shipped
    from lengthwise.study.store import Bundle, Store

    listed, rows = read_claims(), dict[str, Any]()
    dates = {"claims": committed_on(shipped("claims.yaml"))}
    for name in dict.fromkeys(claim.study for claim in listed if claim.study in recipes()):
        study = StudyFile.read(str(name))
        where = with_ or committed(study)
        try:
            found = gather(Planned(study), Store(store), None if where is None else Bundle(where))
        except SpecError:
            continue  # nothing of it is done: its claims are not tested
        rows[str(name)] = (found, numbers(found))
        dates[f"rows of {name}"] = None if where is None else committed_on(Path(where) / "rows.parquet")
    theory = in_results("theory/claims.json")
    measured = None if theory is None else read_measured(theory)
    if theory is not None:
        dates["measurements of theory"] = committed_on(theory)
    made = [judge(claim, *rows.get(claim.study or "", (None, None)), measured=measured) for claim in listed]
    if as_json:
        print(json.dumps({"committed": dates, "claims": [one.line() for one in made]}, indent=2))
        return
    print_table([{**one.line(), "source": one.claim.source} for one in made], False)
    told = ", ".join(f"{what} {when or 'not committed'}" for what, when in dates.items())
    say(f"committed: {told}", "dim")


def print_short(page: Tables) -> None:
    """The verdict, the curves of up to three tasks, and one table: what fits a screen of 80 columns."""
    from lengthwise.reporting.words import verdict

    screen = console()
    screen.print(verdict(page.found, page.numbers), style="bold", markup=False, highlight=False)
    for line in page.warnings():
        screen.print(line, style="yellow", markup=False, highlight=False)
    for task in page.found.tasks if len(page.found.tasks) <= 3 else []:
        print_bars(page.found, task)
    screen.print()
    print_table(page.rank_table(), False)


def print_bars(found: Findings, task: str) -> None:
    """The median seed's accuracy against length, as rows of blocks."""
    from lengthwise.reporting.bars import accuracy_bars

    screen = console()
    screen.print()
    for line in accuracy_bars(found, task, min(screen.width, 80)):
        screen.print(line, markup=False, highlight=False, no_wrap=True)
    words = f"{found.short(task)}: exact match by length, ▁ 0 to █ 1; | ends what was trained"
    screen.print(words, style="dim", markup=False, highlight=False)


def print_report(page: Tables) -> None:
    """The verdict and all tables."""
    screen = console()
    print_short(page)
    screen.print(page.rank_words(), style="dim", markup=False, highlight=False)
    if page.numbers.differences:
        screen.print()
        print_table(page.difference_table(), False)
        screen.print(page.difference_words(), style="dim", markup=False, highlight=False)
    if troubles := page.training_table():
        screen.print()
        print_table(troubles, False)
    for task in page.found.tasks if len(page.found.tasks) <= 3 else []:
        screen.print()
        say(task, "bold")
        print_table(page.task_table(task), False)
