"""`lengthwise theory variance` and `order`: what a decoder without an encoding knows of positions, and by what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.cli.terminal import Json, console, escape, print_table
from lengthwise.cli.theory import theory
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress

if TYPE_CHECKING:
    from lengthwise.reporting.drawing import Drawing

To = Annotated[Path, typer.Option(help="the folder of the figure and, beside it, its rows")]


@theory.command()
def variance(
    width: Annotated[int, typer.Option(help="d, the width of the model")] = 768,
    heads: Annotated[int, typer.Option(help="H")] = 12,
    sigma: Annotated[float, typer.Option(help="σ of every matrix and embedding")] = 0.02,
    pytorch: Annotated[bool, typer.Option("--pytorch", help="PyTorch's default initialisation instead of σ")] = False,
    tokens: Annotated[int, typer.Option(min=2, help="L, the longest position of lemma 3")] = 512,
    draws: Annotated[int, typer.Option(min=2, help="initialisations behind every mean")] = 50,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    to: To = OUTPUT,
    as_json: Json = False,
) -> None:
    """Measure the variance of activations at initialisation.

    Lemmas 1 to 4 of Chi et al. 2023: the measured values next to the published and the corrected formulas.
    """
    from lengthwise.reporting.variance import lemma_table
    from lengthwise.reporting.variance import variance as draw
    from lengthwise.theory.lemmas import lemma_rows
    from lengthwise.theory.variance import Initialisation

    start = Initialisation.pytorch(width, heads) if pytorch else Initialisation(width, heads, sigma)
    with progress() as tell:
        rows = lemma_rows(start, tokens, count=draws, seed=seed, tell=tell)
    files = _written(draw(rows), to)
    if as_json:
        print(json.dumps({"rows": rows, "files": files}, indent=2))
        return
    print_table(lemma_table(rows, tokens), False)
    say = console().print
    say(
        f"\nMean of {draws} draws with its 99 % band; then the mean over each prediction, 1 where it is right.",
        style="dim",
    )
    say(
        "lemma 4: the share that is there of the differences it predicts between coordinates, 1 where it is right.",
        style="dim",
    )
    say(f"figure: {escape(', '.join(files))}", highlight=False)


@theory.command()
def order(
    tokens: Annotated[int, typer.Option(min=12, help="tokens of a sequence")] = 24,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    train: Annotated[
        bool, typer.Option("--train", help="also train three small models without positions (about 3 CPU minutes)")
    ] = False,
    store: Annotated[str, typer.Option(help="where the runs of --train are kept")] = "lengthwise-store",
    to: To = OUTPUT,
    as_json: Json = False,
) -> None:
    """What a decoder without positions knows of its input order.

    It depends on the mask and the depth.
    """
    from lengthwise.interface.order import demonstrate
    from lengthwise.reporting.variance import order as draw
    from lengthwise.reporting.variance import order_table
    from lengthwise.reporting.variance import trained as draw_trained
    from lengthwise.theory.order import every_check

    rows = every_check(tokens, seed=seed)
    files = _written(draw(rows), to)
    learned: list[dict[str, Any]] = []
    if train:
        with progress() as tell:
            learned = demonstrate(store, seed=seed, tell=tell)
        files += _written(draw_trained(learned), to)
    if as_json:
        print(json.dumps({"rows": rows, "trained": learned, "files": files}, indent=2))
        return
    print_table([{**row, "change": f"{row['change']:.1e}"} for row in rows], False)
    say = console().print
    say("\nchange: the largest change of a logit over their standard deviation, in float64.", style="dim")
    if learned:
        say("")
        print_table(order_table(learned), False)
        say("\nBy length, all trained; loss: what another order of the prompt adds to it, in nats.", style="dim")
    say(f"figure: {escape(', '.join(files))}", highlight=False)


def _written(drawing: Drawing, to: Path) -> list[str]:
    return [str(path) for path in drawing.write(to)]
