"""`lengthwise list`: what there is."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated

import typer

from lengthwise.cli.terminal import Json, app, console, print_table
from lengthwise.spec import SpecError, did_you_mean, options, resolve, show


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="tasks, encodings, positions, presets, checks or studies")],
    markdown: Annotated[bool, typer.Option("--markdown", help="the encodings as a page of Markdown")] = False,
    as_json: Json = False,
) -> None:
    """List what there is."""
    tables = {
        "tasks": _tasks,
        "encodings": _encodings,
        "positions": _positions,
        "presets": _presets,
        "checks": _checks,
        "studies": _studies,
    }
    if what not in tables:
        raise SpecError(f"there is no list of {what!r}.{did_you_mean(what, tables)}")
    if markdown:
        if what != "encodings":
            raise SpecError("--markdown writes the catalogue of encodings: lengthwise list encodings --markdown")
        print(_catalogue(_encodings()))
        return
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
    print_table(rows, as_json)
    if what == "tasks" and not as_json:
        every = "protocol=ours (or paper, where listed), tokenizer=FOLDER, bos=true or false"
        console().print(f"\nevery task also takes: {every}; my_task.py:Mine is a task too", highlight=False)


_COMMON = ("protocol", "bos", "tokenizer")  # every task has these


def _tasks() -> list[dict[str, object]]:
    from lengthwise.task import PUBLISHED, TASKS

    published = {name.partition(":")[0] for name in PUBLISHED}
    rows: list[dict[str, object]] = []
    for name in TASKS:
        cls = resolve("task", TASKS, name)
        there = _defaults(cls)
        rows.append(
            {
                "name": name,
                "is": (sys.modules[cls.__module__].__doc__ or "").strip().splitlines()[0],
                "example": (cls.__doc__ or "").strip().splitlines()[0].replace("`", ""),
                "length": cls.unit,  # pyrefly: ignore[missing-attribute]
                "protocols": ["ours", "paper"] if name in published else ["ours"],
                "options": {key: value for key, value in there.items() if key not in _COMMON},
                "paper": cls.paper,  # pyrefly: ignore[missing-attribute]
            }
        )
    return rows


def _encodings() -> list[dict[str, object]]:
    from lengthwise.encoding import ENCODINGS, build_encoding
    from lengthwise.encoding.base import CLAIMS, Encoding
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


def _catalogue(rows: list[dict[str, object]]) -> str:
    """docs/catalogue.md: the table of encodings, then each one's own words."""
    from lengthwise.encoding import ENCODINGS

    lines = [
        "# Catalogue of encodings",
        "",
        "Written by `lengthwise list encodings --markdown`; parameters at 12 heads of 64 and width 768, per instance.",
        "[How they fit together](encodings.md) · [scalings, temperatures, mixtures](scaling.md)",
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


def _positions() -> list[dict[str, object]]:
    from lengthwise.encoding import POSITIONS

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


def _studies() -> list[dict[str, object]]:
    from lengthwise.cli.stored import studies

    return studies()


def _checks() -> list[dict[str, object]]:
    from lengthwise.conformance import checks

    return [{"id": id, "sentence": sentence} for id, sentence in sorted(checks().items())]


def _defaults(cls: type) -> dict[str, object]:
    """The options of a class with their defaults; `...` where one must be given."""
    return {name: "..." if item.default is item.empty else item.default for name, item in options(cls).items()}
