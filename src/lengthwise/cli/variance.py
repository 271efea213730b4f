"""`lengthwise theory variance` and `order`: what a decoder without an encoding knows of positions, and by what."""

from __future__ import annotations

import json
from collections.abc import Callable
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

SORT, COPY = "sort:variant=single", "copy:variant=random"


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

    These are lemmas 1 to 4 of Chi et al. 2023. The published formulas and corrected ones stand beside what is measured.
    """
    from lengthwise.reporting.variance import variance as draw
    from lengthwise.theory.lemmas import every_lemma
    from lengthwise.theory.variance import Start

    start = Start.pytorch(width, heads) if pytorch else Start(width, heads, sigma)
    with progress() as tell:
        rows = every_lemma(start, tokens, count=draws, seed=seed, tell=tell)
    files = _written(draw(rows), to)
    if as_json:
        print(json.dumps({"rows": rows, "files": files}, indent=2))
        return
    print_table([_told(row) for row in rows if _telling(row, tokens)], False)
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


def _telling(row: dict[str, Any], tokens: int) -> bool:
    """Whether a row is printed: the file has all, the screen those that say something new."""
    return {
        "lemma 3": row["m"] in {1, 8, 64, tokens} and row["mask"] == "causal",
        "lemma 4": row["m"] == 16,
        "heads": row["heads"] in {1, 16},
        "floor": row["m"] == 4096,
        "property 1": row["sigma"] in {0.02, 0.05, 0.08, 0.11},
    }.get(row["part"], True)


def _told(row: dict[str, Any]) -> dict[str, object]:
    """A row as a person reads it: the numbers, and measured over predicted."""
    measured = row["measured"]

    def ratio(form: str) -> str:
        value = row[form]
        if value is None or abs(value) < 1e-9:
            return "-"
        return f"{measured / value:.3f}" if abs(measured / value) < 100 else f"{measured / value:.0f}"

    part = f"{row['part']} ({row['form'].replace('_', ' ')})" if "form" in row else row["part"]
    weights = "" if row["weights"] == "normal" else f", {row['weights']}"
    return {
        "of": part,
        "d, H, σ": f"{row['width']}, {row['heads']}, {row['sigma']:.3g}{weights}",
        "mask": row["mask"],
        "m": "-" if row["m"] is None else row["m"],
        "measured": f"{measured:.4g}",
        "99 % band": f"{row['low']:.4g} to {row['high']:.4g}",
        "/ as published": ratio("as_published"),
        "/ corrected": ratio("corrected"),
        "/ exact": ratio("exact"),
    }


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
    from lengthwise.reporting.variance import order as draw
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
        print_table(_by_length(learned), False)
        say("\nBy length, all trained; loss: what another order of the prompt adds to it, in nats.", style="dim")
    say(f"figure: {escape(', '.join(files))}", highlight=False)


def demonstrate(
    store: str,
    *,
    seed: int = 0,
    alphabet: int = 20,
    longest: int = 8,
    steps: int = 1500,
    model: str = "laptop",
    tell: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Train sort and copy under a prefix mask and, beside them, copy under a causal one, all without positions.

    `guess` is the best that knowing the symbols without their order gives; `shuffled` what another order of the prompt
    adds to the loss of a token of the answer, in nats.
    """
    import torch

    from lengthwise.evaluation.cases import cases
    from lengthwise.run import train
    from lengthwise.theory.order import guess_of_multiset, permuted_prompt

    rows = []
    for task, mask in ((SORT, "prefix"), (COPY, "prefix"), (COPY, "causal")):
        if tell is not None:
            tell(f"training {task} with a {mask} mask")
        run = train(
            f"{task}:alphabet={alphabet}:longest={longest}",
            "nope",
            model=f"{model}:mask={mask}",
            training=f"laptop:steps={steps}",
            seed=seed,
            store=store,
            quiet=True,
        )
        found = run.rows()
        decoder = run.subject()[0].eval()
        for row in found.filter((found["checkpoint"] == "last") & found["subgroup"].is_null()).iter_rows(named=True):
            copying, loss = run.task.name == "copy", None
            if row["seen"] and row["length"] > 1:
                asked = cases(run.task, row["split"], row["length"], examples=32)
                ids_BT = torch.tensor([case.ids for case in asked])
                loss = permuted_prompt(decoder, ids_BT, asked[0].prompt, seed=seed, begin=int(run.task.starts)).loss
            rows.append(
                {
                    "task": run.task.name,
                    "mask": mask,
                    "length": row["length"],
                    "seen": row["seen"],
                    "examples": row["examples"],
                    "correct": row["correct"],
                    "guess": guess_of_multiset(alphabet, row["length"]) if copying else None,
                    "shuffled": loss,
                }
            )
    return sorted(rows, key=lambda row: (row["task"], row["mask"], row["length"]))


def _by_length(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    seen = [row for row in rows if row["seen"]]
    table: list[dict[str, object]] = []
    for task, mask in dict.fromkeys((row["task"], row["mask"]) for row in seen):
        own = [row for row in seen if (row["task"], row["mask"]) == (task, mask)]
        table.append(
            {
                "exact match": f"{task}, {mask} mask",
                **{str(row["length"]): f"{row['correct'] / row['examples']:.3f}" for row in own},
                "loss by another order": f"{max(abs(row['shuffled'] or 0) for row in own):.2g} at most",
            }
        )
    guess: dict[str, object] = {str(row["length"]): f"{row['guess']:.3f}" for row in seen if row["guess"] is not None}
    return [*table, {"exact match": "copy, by its multiset", **guess, "loss by another order": ""}]


def _written(drawing: Drawing, to: Path) -> list[str]:
    return [str(path) for path in drawing.write(to)]
