"""`lengthwise theory`: the theorems and lemmas on positions without an encoding, run and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import lengthwise as lw
from lengthwise.cli.terminal import LARGEST_SEED, Json, app, say, show
from lengthwise.folder import OUTPUT

theory = typer.Typer(
    help="Run the theorems and lemmas about NoPE as code.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(theory, name="theory")

Tokens = Annotated[int, typer.Option(max=16_384, help="T: tokens after BOS; positions are 1 to T + 1")]
Width = Annotated[int, typer.Option(max=16_384, help="the model's width, 4 or more")]
Norm = Annotated[str, typer.Option(help="none, rms, layer; several with commas")]
Dtype = Annotated[str, typer.Option(help="fp64, fp32, fp16, bf16; several with commas")]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="of the weights that are free, and of the tokens")]
To = Annotated[Path | None, typer.Option(help="write the figure and all rows into this folder")]
Folder = Annotated[Path, typer.Option(help="the folder of the figure and, beside it, its rows")]


@theory.command()
def theorem1(
    tokens: Tokens = 512,
    width: Width = 64,
    norm: Norm = "none,rms,layer",
    dtype: Dtype = "fp64,fp32,bf16",
    sequences: Annotated[int, typer.Option(min=1, max=100_000, help="random token sequences to try")] = 20,
    seed: Seed = 0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """Theorem 1: one layer without an encoding counts its tokens.

    The weights of the proof are set in the decoder, and the result is measured.
    """
    names = {"norms": _list(norm), "dtypes": _list(dtype)}
    _show(lw.theorem1(tokens, width, sequences=sequences, seed=seed, **names), to, as_json)


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
    names = {"norms": _list(norm), "dtypes": _list(dtype)}
    _show(lw.theorem2(tokens, width, scaled=scaled, seed=seed, **names), to, as_json)


@theory.command()
def horizon(dtype: Dtype = "bf16,fp16,fp32", to: To = None, as_json: Json = False) -> None:
    """How far theorem 1 counts at a given precision and width.

    The horizon is the largest t that can be distinguished from t + 1.
    """
    _show(lw.theory_horizon(_list(dtype)), to, as_json)


@theory.command()
def heads(
    tokens: Annotated[int, typer.Option(min=2, max=4096, help="tokens after BOS")] = 12,
    beta: Annotated[float, typer.Option(help="how sharp the heads are")] = 5.0,
    to: To = None,
    as_json: Json = False,
) -> None:
    """What two layers without an encoding can do and one cannot.

    That is to attend to a place, whatever the token there.
    """
    _show(lw.theory_heads(tokens, beta), to, as_json)


@theory.command()
def variance(
    width: Annotated[int, typer.Option(min=1, max=16_384, help="d, the width of the model")] = 768,
    heads: Annotated[int, typer.Option(min=1, help="H")] = 12,
    sigma: Annotated[float, typer.Option(min=0, help="σ of every matrix and embedding")] = 0.02,
    pytorch: Annotated[bool, typer.Option("--pytorch", help="PyTorch's default initialisation instead of σ")] = False,
    tokens: Annotated[int, typer.Option(min=2, max=16_384, help="L, the longest position of lemma 3")] = 512,
    draws: Annotated[int, typer.Option(min=2, help="initialisations behind every mean")] = 50,
    seed: Seed = 0,
    to: Folder = OUTPUT,
    as_json: Json = False,
) -> None:
    """Measure the variance of activations at initialisation.

    Lemmas 1 to 4 of Chi et al. 2023: the measured values next to the published and the corrected formulas.
    """
    made = lw.theory_variance(width, heads, sigma=sigma, pytorch=pytorch, tokens=tokens, draws=draws, seed=seed)
    _show(made, to, as_json)


@theory.command()
def order(
    tokens: Annotated[int, typer.Option(min=12, max=256, help="tokens of a sequence")] = 24,
    seed: Seed = 0,
    train: Annotated[
        bool, typer.Option("--train", help="also train three small models without positions (about 3 CPU minutes)")
    ] = False,
    store: Annotated[str, typer.Option(help="where the runs of --train are kept")] = "lengthwise-store",
    to: Folder = OUTPUT,
    as_json: Json = False,
) -> None:
    """What a decoder without positions knows of its input order.

    It depends on the mask and the depth.
    """
    _show(lw.theory_order(tokens, train=train, store=store, seed=seed), to, as_json)


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
    found = lw.theory_claims(draws, seed=seed)
    written = None if to is None else found.write(to)
    show(found, as_json)
    if written is not None and not as_json:
        say(f"\nrows: {written}")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _show(found: lw.Demonstration, to: Path | None, as_json: bool) -> None:
    """Print the tables; write the figures, and every row, where asked."""
    files = [] if to is None else [str(path) for path in found.write(to)]
    show(found, as_json, **({"files": files} if files else {}))
    if as_json:
        return
    if to is None:
        say("\n--to FOLDER draws the figure and writes all rows", "dim")
    else:
        say(f"\nfigure: {', '.join(files)}\nrows: {to / found.name}.json")
