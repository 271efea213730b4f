"""`lengthwise leaderboard`: rank the entries, check one, make one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lengthwise as lw
from lengthwise.cli.study import STORE, StoreName, Workers
from lengthwise.cli.terminal import Json, app, show

leaderboard = typer.Typer(help="Rank encodings, check an entry, make one.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(leaderboard, name="leaderboard")


@leaderboard.command("show")
def show_(
    root: Annotated[Path, typer.Argument(help="the folder of the entries")] = Path("leaderboard"),
    markdown: Annotated[bool, typer.Option("--markdown", help="the table as Markdown")] = False,
    as_json: Json = False,
) -> None:
    """Rank all entries. None of their code is executed."""
    found = lw.standings(root)
    if markdown:
        print(found.markdown())
    else:
        show(found, as_json)


@leaderboard.command()
def check(
    folder: Annotated[Path, typer.Argument(help="an entry, e.g. leaderboard/nope")],
    no_run: Annotated[bool, typer.Option("--no-run", help="execute nothing: no verify, no run made again")] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="the entry's encoding.py may be executed")] = False,
    choice: Annotated[int | None, typer.Option(help="a seed for the choice of the runs made again")] = None,
    as_json: Json = False,
) -> None:
    """Check an entry of the leaderboard.

    Files, card, ids, seeds, learning rates and rows are checked without executing its code. Then the encoding is
    verified and one randomly chosen run of each task family is made again; its own code needs --allow-code.
    """
    found = lw.check_entry(folder, execute=not no_run, allow_code=allow_code, choice=choice)
    show(found, as_json)
    if found.errors:
        raise typer.Exit(1)


@leaderboard.command()
def submit(
    encoding: Annotated[str, typer.Argument(help="file.py:Class, or an encoding of the package")],
    authors: Annotated[str, typer.Option(help="who made it")],
    name: Annotated[str | None, typer.Option(help="the folder's name; the class's without it")] = None,
    link: Annotated[str, typer.Option(help="a paper or a repository, https://...")] = "",
    tried: Annotated[int, typer.Option(min=1, help="how many variants of it you trained, this one included")] = 1,
    looked: Annotated[bool, typer.Option("--looked-at-unseen", help="you saw unseen lengths of these tasks")] = False,
    root: Annotated[Path, typer.Option(help="the folder of the entries")] = Path("leaderboard"),
    store: StoreName = STORE,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Make an entry: verify, do all runs, write the folder to commit.

    Started again, it does only what is missing.
    """
    how = {"authors": authors, "name": name, "link": link, "root": root}
    made = lw.submit_entry(encoding, **how, variants_tried=tried, looked_at_unseen=looked, store=store, workers=workers)
    show(made, as_json)
    if made.check.errors:
        raise typer.Exit(1)
