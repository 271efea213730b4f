"""`lengthwise published`, `claims` and `cite`: the original study's numbers and claims, and whom to name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lengthwise as lw
from lengthwise.cli.study import STORE, StoreName, With
from lengthwise.cli.terminal import Json, app, show
from lengthwise.folder import OUTPUT
from lengthwise.spec import SpecError


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
    if figure is not None and topic is not None:
        raise SpecError(f"a topic ({topic}) and a figure ({figure}) are two commands")
    if figure is not None:
        show(lw.published_figure(figure, to), as_json)
    elif topic is not None:
        show(lw.published(topic), as_json)
    else:
        show(lw.published_topics(), as_json)


@app.command()
def claims(store: StoreName = STORE, with_: With = None, as_json: Json = False) -> None:
    """Check published claims against stored results.

    Each claim is decided by a rule that was committed before the results existed.
    """
    show(lw.claims(store, with_), as_json)


@app.command()
def cite(
    names: Annotated[
        list[str] | None, typer.Argument(help="encodings, positions, tasks, studies, or lengthwise; all may be mixed")
    ] = None,
) -> None:
    """Print the BibTeX of encodings, positions, tasks or a study.

    Without a name, it prints the BibTeX of lengthwise and of the original study.
    """
    print(lw.cite(names or ()))
