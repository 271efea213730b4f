"""`lengthwise verify` and `lengthwise describe`: encodings and the decoder they meet in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table, say
from lengthwise.spec import Spec, SpecError, specs

if TYPE_CHECKING:
    from lengthwise.conformance import Report


@app.command()
def verify(
    encoding: Annotated[str, typer.Argument(help="a name, module:Class or file.py:Class; commas separate several")],
    positions: Annotated[str, typer.Option(help="the kind of positions to verify it under")] = "consecutive",
    only: Annotated[list[str] | None, typer.Option(help="run these checks only, e.g. T05,T13")] = None,
    every: Annotated[bool, typer.Option("--all", help="print every check, not only those that failed")] = False,
    as_json: Json = False,
) -> None:
    """Check that an encoding does what it claims.

    The checks cover padding, cache, precision, formulas, gradients, claims and a short training run.
    """
    named = specs(encoding)
    if not named:
        raise SpecError("name an encoding, e.g. lengthwise verify rope")
    from lengthwise.conformance import verify as run

    chosen = [id for text in only or () for id in text.replace(",", " ").split()] or None
    reports = [run(spec, positions=positions, only=chosen) for spec in named]
    if as_json:
        print(
            json.dumps([report.to_json() for report in reports] if len(reports) > 1 else reports[0].to_json(), indent=2)
        )
    else:
        for report in reports:
            print_verified(report, every or chosen is not None)
    if any(report.failed for report in reports):
        raise typer.Exit(1)


def print_verified(report: Report, every: bool = False) -> None:
    """Failures first, each with its cure, root causes before consequences; then, if asked for, every check."""
    from lengthwise.conformance import CHECKS

    screen = console()
    for result in (*report.failed, *report.warned):
        style = "bold red" if result.status == "fail" else "yellow"
        screen.print(f"[{style}]{result.id} {result.status}[/] {escape(result.sentence)}", highlight=False)
        screen.print(f"  found: {result.detail}", markup=False, highlight=False)
        if result.because:
            screen.print(f"  probably a consequence of {result.because}", style="dim", markup=False, highlight=False)
        else:
            screen.print(f"  mend:  {result.cure}", markup=False, highlight=False)
    if every:
        if report.failed or report.warned:
            screen.print()
        _print_every(report)
    counts = {status: sum(result.status == status for result in report.results) for status in _COLOURS}
    verdict = "does NOT conform" if report.failed else "conforms" if len(report.results) == len(CHECKS) else "passes"
    warned = f", {counts['warn']} warned" if counts["warn"] else ""
    told = (
        f"{report.encoding} {verdict}: {counts['pass']} passed{warned}, {counts['fail']} failed, "
        f"{counts['not applicable']} not applicable" + _asked(len(report.results), len(CHECKS))
    )
    say(told if every else f"{told}; --all shows every check")


_COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "not applicable": "dim"}


def _print_every(report: Report) -> None:
    from rich.table import Table

    table = Table(
        title=escape(f"{report.encoding}, {report.positions} positions"),
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for column in ("check", "", "what must hold", "found"):
        table.add_column(column, no_wrap=column in {"check", ""}, overflow="fold")
    for result in report.results:
        word = "n/a" if result.status == "not applicable" else result.status
        table.add_row(
            result.id,
            f"[{_COLOURS[result.status]}]{word}[/]",
            escape(result.sentence),
            escape(result.detail),
            style="dim" if word == "n/a" else "",
        )
    console().print(table)


def _asked(run: int, there_are: int) -> str:
    return "" if run == there_are else f" (of {there_are} checks, {run} asked for)"


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
    from lengthwise.model import Decoder
    from lengthwise.model import preset as config_of

    spec = Spec.of(preset)
    said = dict(spec.options).get("vocabulary")
    if said is not None and vocabulary is not None:
        raise SpecError(f"the vocabulary is given twice: in {preset!r} and as --vocabulary {vocabulary}")
    config = config_of(spec, vocabulary=said or vocabulary or 32_100)
    named = specs(encoding)
    decoder = Decoder(config, named if len(named) > 1 else encoding)
    told = decoder.describe()
    print_table([{"field": key, "value": value} for key, value in told.items()], as_json, told)
