"""`lengthwise list`: what there is."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from lengthwise.cli.terminal import Json, app, console, print_table
from lengthwise.spec import SpecError, did_you_mean, resolve, show


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="tasks, encodings, positions, presets, checks or studies")],
    markdown: Annotated[bool, typer.Option("--markdown", help="the encodings as a page of Markdown")] = False,
    as_json: Json = False,
) -> None:
    """List tasks, encodings, presets, checks or studies."""
    from lengthwise.interface import catalog

    tables = {
        "tasks": catalog.tasks,
        "encodings": catalog.encodings,
        "positions": catalog.positions,
        "presets": catalog.presets,
        "checks": _checks,
        "studies": catalog.studies,
    }
    if what not in tables:
        raise SpecError(f"there is no list of {what!r}.{did_you_mean(what, tables)}")
    if markdown:
        if what != "encodings":
            raise SpecError("--markdown writes the catalogue of encodings: lengthwise list encodings --markdown")
        print(_catalogue(catalog.encodings()))
        return
    rows = list(tables[what]())
    if not as_json:
        if what == "presets":  # more fields than a screen is wide: one row each
            names = [str(row.pop("name")) for row in rows]
            rows = [
                {"field": field, **{n: row[field] for n, row in zip(names, rows, strict=True)}} for field in rows[0]
            ]
        for row in rows:
            if isinstance(claims := row.get("claims"), dict):
                row["claims"] = [f"limit {item}" if key == "limit" else key for key, item in claims.items() if item]
    print_table(rows, as_json)
    if what == "tasks" and not as_json:
        every = "protocol=ours (or paper, where listed), tokenizer=FOLDER, bos=true or false"
        console().print(f"\nevery task also takes: {every}; my_task.py:Mine is a task too", highlight=False)


def _catalogue(rows: list[dict[str, object]]) -> str:
    """A page: the table of encodings, then each one's own words."""
    from lengthwise.encoding import ENCODINGS

    lines = [
        "# Catalogue of encodings",
        "",
        "Written by `lengthwise list encodings --markdown`; parameters at 12 heads of 64 and width 768, per instance.",
        "",
        "| encoding | acts on | claims | parameters | paper |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        claims = row["claims"]
        assert isinstance(claims, dict) and isinstance(row["acts on"], list)
        said = [f"limit {item:,}" if key == "limit" else f"`{key}`" for key, item in claims.items() if item]
        cells = (f"[`{row['name']}`](#{row['name']})", ", ".join(row["acts on"]), ", ".join(said))
        lines.append(f"| {' | '.join(cells)} | {row['parameters']:,} | {row['paper']} |")
    for row in rows:
        words = inspect.getdoc(resolve("encoding", ENCODINGS, str(row["name"]))) or ""
        lines += ["", f"## {row['name']}", "", words]
        if isinstance(row["options"], dict) and row["options"]:
            given = [
                f"`{key}`" + ("" if value is None else f" = {show(value)}") for key, value in row["options"].items()
            ]
            lines += ["", f"Options (and what they are unless given): {', '.join(given)}"]
    return "\n".join(lines)


def _checks() -> list[dict[str, object]]:
    from lengthwise.conformance import checks

    return [{"id": id, "sentence": sentence} for id, sentence in sorted(checks().items())]
