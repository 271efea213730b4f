"""`lengthwise published` and `cite`: the original study's numbers and figures, and whom to name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table
from lengthwise.folder import OUTPUT
from lengthwise.spec import Spec, SpecError, did_you_mean


@app.command()
def published(
    topic: Annotated[
        str | None, typer.Argument(help="accuracy, mrr, scratchpads, attention, lengths or perplexity")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="draw this figure of the original again: 1, 2, 4, 6, 7, A.1, E.2, ...")
    ] = None,
    to: Annotated[Path, typer.Option(help="the folder of the figure")] = OUTPUT,
    as_json: Json = False,
) -> None:
    """Print or redraw the original study's numbers.

    Each number comes with its source and its known defects. Nothing is trained.
    """
    if figure is not None:
        if topic is not None:
            raise SpecError(f"a topic ({topic}) and a figure ({figure}) are two commands")
        _draw(figure, to, as_json)
        return
    from lengthwise.publication import CODE, ENCODINGS, PAPER, TOPICS, tables

    if topic is None:
        from lengthwise.reporting.published import FIGURES

        rows: list[dict[str, object]] = [{"topic": name, "has": words} for name, words in TOPICS.items()]
        figures: list[dict[str, object]] = [{"figure": name, "shows": title} for name, (title, _) in FIGURES.items()]
        if as_json:
            print(json.dumps({"source": PAPER, "code": CODE, "topics": rows, "figures": figures}, indent=2))
            return
        print_table(rows, False)
        console().print()
        print_table(figures, False)
        console().print(f"\n{PAPER}; {CODE}", highlight=False)
        return
    found = tables(topic)
    if as_json:
        print(json.dumps([asdict(table) for table in found], indent=2))
        return
    screen = console()
    for number, table in enumerate(found):
        screen.print(
            f"{chr(10) if number else ''}[bold]{escape(table.what)}[/] ({escape(table.unit)})", highlight=False
        )
        rows = [{ENCODINGS.get(key, key): _said(key, row[key], table.digits) for key in row} for row in table.rows]
        print_table(rows, False)
        screen.print(f"source: {escape(table.source)}", highlight=False)
        for defect in table.defects:
            screen.print(f"  [yellow]![/] {escape(defect)}", highlight=False)
    if any(name in row for table in found for row in table.rows for name in ENCODINGS):
        named = ", ".join(f"{label} is {name}" for name, label in ENCODINGS.items())
        screen.print(f"\n{named}", style="dim", highlight=False)


def _said(key: str, value: object, digits: int) -> object:
    """Shares without their zero, all of one width; the name of an encoding as it was published."""
    from lengthwise.publication import ENCODINGS

    if isinstance(value, float):
        return f"{value:.{digits}f}".removeprefix("0") if value < 2 else f"{value:#.4g}"
    if isinstance(value, tuple):
        return " ".join(str(_said(key, part, digits)) for part in value)
    if value is None:
        return "-"
    return ENCODINGS.get(str(value), value) if key == "encoding" else value


def _draw(figure: str, to: Path, as_json: bool) -> None:
    from lengthwise.publication import PAPER
    from lengthwise.reporting.published import FIGURES, draw

    paths = [str(path) for path in draw(figure, to)]
    if as_json:
        told = {"figure": figure, "shows": FIGURES[figure][0], "source": PAPER, "files": paths}
        print(json.dumps(told, indent=2))
        return
    screen = console()
    screen.print(f"Figure {figure} of {PAPER}: {FIGURES[figure][0]}", highlight=False)
    screen.print(f"figure: {', '.join(escape(path) for path in paths)}", highlight=False)


@app.command()
def cite(
    names: Annotated[
        list[str] | None, typer.Argument(help="encodings, positions, tasks, studies, or lengthwise; all may be mixed")
    ] = None,
) -> None:
    """Print the BibTeX of encodings, positions, tasks or a study.

    Without a name, it prints the BibTeX of lengthwise and of the original study.
    """
    from lengthwise.publication.citations import STUDY, entries, itself, numbers_in, short_entry

    wanted: list[str] = []  # arXiv numbers, and papers that have none here
    for name in names or ["lengthwise"]:
        for paper in _papers(name):
            wanted += [number for number in numbers_in(paper) if number in entries()] or [paper]
    if not names:
        wanted.append(STUDY)
    found = []
    for one in dict.fromkeys(wanted):
        found.append(itself() if one == "lengthwise" else entries().get(one) or short_entry(one) or f"% {one}")
    print("\n\n".join(found))


def _papers(name: str, outside: bool = True) -> list[str]:
    """What a name rests on: the `paper` of a class, those of everything in a study, or `lengthwise` itself."""
    from lengthwise.encoding import ENCODINGS, POSITIONS
    from lengthwise.encoding.signature import canonical_encoding, outline
    from lengthwise.publication.citations import STUDY, VARIANTS
    from lengthwise.spec import canonical, resolve, specs
    from lengthwise.study.file import StudyFile
    from lengthwise.study.reading import recipes
    from lengthwise.task import TASKS

    if name == "lengthwise":
        return ["lengthwise"]
    if name in recipes() or name.endswith((".yaml", ".yml")):
        study = StudyFile.read(name)
        parts = [str(spec) for one in (*study.encodings, *study.positions, *study.tasks) for spec in specs(one)]
        # A study's code from outside is not loaded for the sake of a name.
        return ["lengthwise", f"arXiv:{STUDY}", *(paper for part in parts for paper in _papers(part, outside=False))]
    if len(listed := list(dict.fromkeys(specs(name)))) > 1 or "*" in name:
        return [paper for spec in listed for paper in _papers(str(spec), outside)]
    spec = Spec.of(name)
    further: list[str] = []
    if spec.name in ENCODINGS:
        chosen = canonical_encoding(spec)  # an option that does not exist is told
        cls = outline(spec.name)
        if spec.name == "rope":
            kept = [(VARIANTS.get(key, {}), value) for key, value in chosen.options]
            further = [papers[key] for papers, value in kept for key in (value, None) if key in papers]
    elif spec.name in TASKS:
        if spec.options:  # a bare `file` names no file, and need not
            canonical("task", TASKS, spec)
        cls = resolve("task", TASKS, spec.name)
    elif spec.name in POSITIONS:
        if spec.options:
            canonical("positions", POSITIONS, spec)
        cls = resolve("positions", POSITIONS, spec.name)
    elif ":" in spec.name or spec.name.endswith(".py"):
        cls = resolve("encoding or task", {}, spec.name) if outside else object
    else:
        known = [*ENCODINGS, *TASKS, *POSITIONS, *recipes(), "lengthwise"]
        raise SpecError(f"there is nothing to cite under {name!r}.{did_you_mean(name, known)}")
    if spec.name == "consecutive":
        return ["consecutive: 0, 1, 2, ... is nobody's"] if outside else []
    return [getattr(cls, "paper", "") or f"{name}: names no publication; cite where it comes from", *further]
