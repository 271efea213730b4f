"""The command line: verbs. Everything heavy is imported inside the verb that needs it."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise import __version__
from lengthwise.spec import Spec, SpecError, did_you_mean, options, resolve, show, specs

if TYPE_CHECKING:
    from lengthwise.verify import Report

app = typer.Typer(
    name="lengthwise",
    help="How far beyond its training length does a decoder-only Transformer still work?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of a table.")]


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without − or ≥ shows ?, not a traceback
    try:
        app()
    except SpecError as error:
        print(f"lengthwise: error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; that is no error.
        sys.stderr.close()
        sys.exit(0)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """How far beyond its training length does a decoder-only Transformer still work?"""
    if version:
        print(f"lengthwise {__version__}")
        raise typer.Exit


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="encodings, positions, presets or checks")], as_json: Json = False
) -> None:
    """List what there is."""
    tables = {"encodings": _encodings, "positions": _positions, "presets": _presets, "checks": _checks}
    if what not in tables:
        raise SpecError(f"there is no list of {what!r}.{did_you_mean(what, tables)}")
    rows = tables[what]()
    if not as_json:
        if what == "presets":  # more fields than a screen is wide: one row each
            names = [str(row.pop("name")) for row in rows]
            rows = [
                {"field": field, **{n: row[field] for n, row in zip(names, rows, strict=True)}} for field in rows[0]
            ]
        for row in rows:
            if isinstance(claims := row.get("claims"), dict):
                row["claims"] = [f"limit {item}" if key == "limit" else key for key, item in claims.items() if item]
    _print_table(rows, as_json)


def _encodings() -> list[dict[str, object]]:
    from lengthwise.encodings import ENCODINGS, build_encoding
    from lengthwise.encodings.encoding import CLAIMS, Encoding
    from lengthwise.model import preset

    geometry = preset("paper", vocabulary=1).geometry
    rows: list[dict[str, object]] = []
    for name in ENCODINGS:
        encoding = build_encoding(name, geometry)
        assert isinstance(encoding, Encoding)
        claims = {key: getattr(encoding, key) for key in CLAIMS}
        rows.append(
            {
                "name": name,
                "acts on": encoding.acts() or ["nothing"],
                "options": _defaults(type(encoding)),
                # At the size of the published study: 12 heads of 64, width 768.
                "parameters": sum(parameter.numel() for parameter in encoding.parameters()),
                "claims": claims,
                "paper": encoding.paper,
            }
        )
    return rows


def _positions() -> list[dict[str, object]]:
    from lengthwise.encodings import POSITIONS

    rows: list[dict[str, object]] = []
    for name in POSITIONS:
        cls = resolve("positions", POSITIONS, name)
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        rows.append({"name": name, "is": summary, "options": _defaults(cls), "paper": getattr(cls, "paper", "")})
    return rows


def _presets() -> list[dict[str, object]]:
    from lengthwise.model import PRESETS, preset

    rows: list[dict[str, object]] = []
    for name in PRESETS:
        config = preset(name, vocabulary=1)
        fields = {**config.model_dump(exclude={"vocabulary"}), "attention_scale": config.scale}
        if config.initial == "normal":
            fields["sigma"] = config.initial_sigma
        rows.append({"name": name, **fields})
    return rows


def _checks() -> list[dict[str, object]]:
    from lengthwise.verify import checks

    return [{"id": id, "sentence": sentence} for id, sentence in sorted(checks().items())]


def _defaults(cls: type) -> dict[str, object]:
    """The options of a class with their defaults; `...` where one must be given."""
    return {name: "..." if item.default is item.empty else item.default for name, item in options(cls).items()}


@app.command()
def verify(
    encoding: Annotated[str, typer.Argument(help="a name, module:Class or file.py:Class; commas separate several")],
    positions: Annotated[str, typer.Option(help="the kind of positions to verify it under")] = "consecutive",
    only: Annotated[list[str] | None, typer.Option(help="run these checks only, e.g. T05,T13")] = None,
    as_json: Json = False,
) -> None:
    """Check that an encoding is what it says: padding, cache, precision, formulas, gradients, claims."""
    named = specs(encoding)
    if not named:
        raise SpecError("name an encoding, e.g. lengthwise verify rope")
    from lengthwise.verify import verify as run

    chosen = [id for text in only or () for id in text.replace(",", " ").split()] or None
    reports = [run(spec, positions=positions, only=chosen) for spec in named]
    if as_json:
        print(
            json.dumps([report.to_json() for report in reports] if len(reports) > 1 else reports[0].to_json(), indent=2)
        )
    else:
        for report in reports:
            _print_report(report)
    if any(report.failed for report in reports):
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    from rich.table import Table

    from lengthwise.verify import CHECKS

    colour = {"pass": "green", "fail": "bold red", "not applicable": "dim"}
    table = Table(
        title=f"{report.encoding}, {report.positions} positions", title_justify="left", box=None, pad_edge=False
    )
    for column in ("check", "", "what must hold", "found"):
        table.add_column(column, no_wrap=column in {"check", ""}, overflow="fold")
    for result in report.results:
        style = colour[result.status]
        word = "n/a" if result.status == "not applicable" else result.status
        table.add_row(
            result.id,
            f"[{style}]{word}[/]",
            _escape(result.sentence),
            _escape(result.detail),
            style="dim" if word == "n/a" else "",
        )
    _console().print(table)
    if report.failed:
        first = report.failed[0]
        _console().print(f"[bold red]{first.id}[/] {_escape(first.sentence)} [bold]{_escape(first.detail)}[/]")
    counts = {status: sum(result.status == status for result in report.results) for status in colour}
    verdict = "does NOT conform" if report.failed else "conforms" if len(report.results) == len(CHECKS) else "passes"
    _console().print(
        f"{_escape(report.encoding)} {verdict}: {counts['pass']} passed, {counts['fail']} failed, "
        f"{counts['not applicable']} not applicable" + _asked(len(report.results), len(CHECKS))
    )


def _asked(run: int, there_are: int) -> str:
    return "" if run == there_are else f" (of {there_are} checks, {run} asked for)"


@app.command()
def describe(
    preset: Annotated[str, typer.Argument(help="a preset, e.g. laptop:layers=3")],
    encoding: Annotated[str, typer.Option(help="the encoding; commas separate one per layer")] = "nope",
    vocabulary: Annotated[int | None, typer.Option(help="distinct tokens; 32,100 unless the preset says")] = None,
    as_json: Json = False,
) -> None:
    """Say what a model is made of: fields, parameters, initial scale, ratio of positions to embeddings."""
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
    _print_table([{"field": key, "value": value} for key, value in told.items()], as_json, told)


def _print_table(rows: list[dict[str, object]], as_json: bool, plain: object = None) -> None:
    if as_json:
        print(json.dumps(rows if plain is None else plain, indent=2))
        return
    from rich.table import Table

    console = _console()
    wide = sum(max(len(_cell(row.get(column))) for row in rows) + 2 for column in rows[0])
    if wide > 1.6 * console.width:  # columns would break inside words: a paragraph for each row instead
        for row in rows:
            first, *rest = row
            console.print(f"[bold]{_escape(_cell(row[first]))}[/]")
            for column in rest:
                if _cell(row[column]):
                    console.print(f"  {column}: {_escape(_cell(row[column]))}")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_escape(_cell(row.get(column))) for column in rows[0]))
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={show(item)}" for key, item in value.items())  # as they are typed
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "none" if value is None else str(value)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _console():  # noqa: ANN202 - rich is imported only when something is printed
    from rich.console import Console

    # A pipe has no width of its own.
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=160)


if __name__ == "__main__":
    main()
