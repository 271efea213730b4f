"""`lengthwise theory`: the theorems and lemmas on positions without an encoding, run and measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, app, console, escape, print_table
from lengthwise.progress import progress
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.reporting.drawing import Drawing
    from lengthwise.theory.theorem1 import NormKind

theory = typer.Typer(
    help="Run the theorems and lemmas about NoPE as code.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(theory, name="theory")

Tokens = Annotated[int, typer.Option(help="T: tokens after BOS; positions are 1 to T + 1")]
Width = Annotated[int, typer.Option(help="the model's width, 4 or more")]
Norm = Annotated[str, typer.Option(help="none, rms, layer; several with commas")]
Dtype = Annotated[str, typer.Option(help="fp64, fp32, fp16, bf16; several with commas")]
Seed = Annotated[int, typer.Option(help="of the weights that are free, and of the tokens")]
To = Annotated[Path | None, typer.Option(help="write the figure and all rows into this folder")]


@theory.command()
def theorem1(
    tokens: Tokens = 512,
    width: Width = 64,
    norm: Norm = "none,rms,layer",
    dtype: Dtype = "fp64,fp32,bf16",
    sequences: Annotated[int, typer.Option(min=1, help="random token sequences to try")] = 20,
    seed: Seed = 0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Theorem 1: one layer without an encoding counts its tokens.

    The weights of the proof are set in the decoder, and the result is measured.
    """
    from lengthwise.theory import rows

    norms, precisions = _norms(norm), _list(dtype)
    with progress() as tell:
        table, curve = rows.theorem1(
            tokens, width, norms=norms, precisions=precisions, sequences=sequences, seed=seed, tell=tell
        )
        small = min(tokens, 64)
        changes, said = rows.changes(max(small, 2), seed=seed), rows.broken(small, seed=seed)
    tables = {
        f"t in the state after layer 1, largest error of {sequences} random sequences": table,
        f"what it needs (T = {max(small, 2)}, fp64)": changes,
    }
    from lengthwise.reporting.theory import theorem1 as drawn

    at = 2 * small + 2
    end = next(row["says"] for row in said if row["case"] == "as built" and row["t"] == at)
    note = f"beyond T it fails: built for {small} tokens it calls position {at} {end:.2f}, by 1 + 2T − T(T+1)/n"
    more = {"curve": curve, "said": said}
    _show("theorem1", tables, more, lambda: drawn(curve, said), to, as_json, note)


@theory.command()
def theorem2(
    tokens: Tokens = 512,
    width: Width = 64,
    norm: Norm = "none,rms,layer",
    dtype: Dtype = "fp64,fp32,bf16",
    scaled: Annotated[bool, typer.Option(help="attention scaled by 1/√h, or not, as in the proof")] = True,
    seed: Seed = 0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Theorem 2: a second layer can compute relative distances.

    It builds −(t − i) in the scores, an exact ALiBi and an exact T5 bias, and shows where they fail.
    """
    from lengthwise.theory import rows

    norms, precisions = _norms(norm), _list(dtype)
    with progress() as tell:
        table = rows.theorem2(tokens, width, norms=norms, precisions=precisions, scaled=scaled, seed=seed, tell=tell)
        remark, points = rows.remark()
        imitated, by_distance = rows.imitations()
    tables = {
        "score without its content, layer 2, all pairs t ≥ i": table,
        "second layers that equal an encoding (fp64)": imitated,
        "the closing remark: is g(i) − g(t) a function of t − i?": remark,
    }
    from lengthwise.reporting.theory import theorem2 as drawn

    more = {"remark": points, "imitations": by_distance}
    _show("theorem2", tables, more, lambda: drawn(by_distance, points), to, as_json)


@theory.command()
def horizon(
    dtype: Dtype = "bf16,fp16,fp32",
    to: To = None,
    as_json: Json = False,
) -> None:
    """How far theorem 1 counts at a given precision and width.

    The horizon is the largest t that can be distinguished from t + 1.
    """
    from lengthwise.theory import rows

    with progress() as tell:
        reach = rows.horizons(_list(dtype), tell=tell)
        price = rows.widths()
    from lengthwise.reporting.theory import horizon as drawn

    tables = {"the largest t that is still told from t + 1": reach, "units of the ReLU layer for T tokens": price}
    _show("horizon", tables, {}, lambda: drawn(reach, price), to, as_json)


@theory.command()
def heads(
    tokens: Annotated[int, typer.Option(min=2, help="tokens after BOS")] = 12,
    beta: Annotated[float, typer.Option(help="how sharp the heads are")] = 5.0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """What two layers without an encoding can do and one cannot.

    That is to attend to a place, whatever the token there.
    """
    from lengthwise.theory import rows

    if beta <= 0:
        raise SpecError(f"--beta is above 0, not {beta:g}")
    table, maps = rows.heads(tokens, beta)
    from lengthwise.reporting.theory import heads as drawn

    _show("heads", {"heads without positions": table}, {"maps": maps}, lambda: drawn(maps), to, as_json)


@theory.command()
def claims(
    draws: Annotated[int, typer.Option(min=2, help="initialisations behind every mean")] = 50,
    seed: Seed = 0,
    to: Annotated[Path | None, typer.Option(help="write claims.json, which `lengthwise claims` reads, there")] = None,
    as_json: Json = False,
) -> None:
    """Measure the published claims that need no trained model.

    They are measured at the size they name; this takes some minutes.
    """
    from lengthwise.folder import Folder
    from lengthwise.reporting.claims import judge, measured_as, read_claims
    from lengthwise.theory.claims import measured

    with progress() as tell:
        found = measured(draws=draws, seed=seed, tell=tell)
    if to is not None:
        Folder(to).write("claims.json", json.dumps({"draws": draws, "seed": seed, "claims": found}, indent=1))
    values = measured_as(found)
    made = [judge(claim, None, None, values).line() for claim in read_claims() if claim.id in values]
    if as_json:
        print(json.dumps({"rows": found, "claims": made}, indent=2))
        return
    print_table(made, False)
    if to is not None:
        console().print(f"\nrows: {escape(str(to / 'claims.json'))}", highlight=False)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _norms(text: str) -> list[NormKind]:
    found: list[NormKind] = []
    for part in _list(text):
        if part == "none" or part == "rms" or part == "layer":
            found.append(part)
        else:
            raise SpecError(f"--norm is none, rms or layer, or several of them with commas, not {part!r}")
    if not found:
        raise SpecError("--norm is empty; write none, rms or layer")
    return found


def _show(
    name: str,
    tables: dict[str, list[dict[str, Any]]],
    more: dict[str, list[dict[str, Any]]],
    draw: Callable[[], Drawing],
    to: Path | None,
    as_json: bool,
    note: str = "",
) -> None:
    """Print the tables; write the figure, and every row, where asked."""
    if as_json:
        print(json.dumps(tables, indent=2))
    else:
        screen = console()
        for number, (title, rows) in enumerate(tables.items()):
            screen.print(f"{chr(10) if number else ''}[bold]{escape(title)}[/]", highlight=False)
            print_table(rows, False)
        if note:
            screen.print(f"\n{note}", highlight=False)
        if to is None:
            screen.print("\n--to FOLDER draws the figure and writes all rows", style="dim", highlight=False)
    if to is None:
        return
    from lengthwise.folder import Folder

    paths = draw().write(to)
    Folder(to).write(f"{name}.json", json.dumps({**tables, **more}, indent=1))
    if not as_json:
        console().print(f"\nfigure: {paths[0]}\nrows: {to / name}.json", highlight=False)
