"""The theorems and lemmas about decoders without a positional encoding, run and measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part, Rows
from lengthwise.folder import Folder
from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from lengthwise.reporting.drawing import Drawing
    from lengthwise.theory.theorem1 import NormKind

NORMS = ("none", "rms", "layer")


@dataclass(frozen=True, repr=False)
class Demonstration(Display):
    """The measurements behind a theorem: `print` its tables, `write` its figures and all rows into a folder."""

    name: str
    tables: dict[str, Rows]
    """Title → table."""
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    """Further rows, which the figures show and `write` keeps."""
    draw: Callable[[], list[Drawing]] = list

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The tables with their titles, then the notes."""
        for number, (title, rows) in enumerate(self.tables.items()):
            yield Part(f"{chr(10) if number else ''}{title}", "bold")
            yield Part(rows)
        yield from (Part(f"\n{note}") for note in self.notes)

    def plain(self) -> dict[str, Any]:
        """The tables and all further rows."""
        return {**self.tables, **self.more}

    def write(self, to: str | Path) -> list[Path]:
        """Write the figures and all rows into a folder; return the paths of the figures."""
        paths = [path for drawing in self.draw() for path in drawing.write(to)]
        Folder(to).write(f"{self.name}.json", json.dumps(self.plain(), indent=1))
        return paths


def theorem1(
    tokens: int = 512,
    width: int = 64,
    *,
    norms: Sequence[str] = NORMS,
    dtypes: Sequence[str] = ("fp64", "fp32", "bf16"),
    sequences: int = 20,
    seed: int = 0,
    say: Say | None = None,
) -> Demonstration:
    """Theorem 1: one layer without an encoding counts its tokens; the weights of the proof are set and measured.

    >>> theorem1(tokens=16, dtypes=["fp64"], sequences=2).name
    'theorem1'
    """
    from lengthwise.reporting.theory import theorem1_drawing as drawn
    from lengthwise.theory import rows

    chosen = _norms(norms)
    with progress(say) as tell:
        table, curve = rows.theorem1_rows(
            tokens, width, norms=chosen, precisions=dtypes, sequences=sequences, seed=seed, on_progress=tell
        )
        small = min(tokens, 64)
        changes, said = (
            rows.construction_change_rows(max(small, 2), seed=seed),
            rows.failure_case_outputs(small, seed=seed),
        )
    at = 2 * small + 2
    end = next(row["says"] for row in said if row["case"] == "as built" and row["t"] == at)
    return Demonstration(
        "theorem1",
        {
            f"t in the state after layer 1, largest error of {sequences} random sequences": table,
            f"what it needs (T = {max(small, 2)}, fp64)": changes,
        },
        [f"beyond T it fails: built for {small} tokens it calls position {at} {end:.2f}, by 1 + 2T − T(T+1)/n"],
        {"curve": curve, "said": said},
        lambda: [drawn(curve, said)],
    )


def theorem2(
    tokens: int = 512,
    width: int = 64,
    *,
    norms: Sequence[str] = NORMS,
    dtypes: Sequence[str] = ("fp64", "fp32", "bf16"),
    scaled: bool = True,
    seed: int = 0,
    say: Say | None = None,
) -> Demonstration:
    """Theorem 2: a second layer can compute relative distances, an exact ALiBi and an exact T5 bias.

    >>> theorem2(tokens=16, dtypes=["fp64"])
    """
    from lengthwise.reporting.theory import theorem2_drawing as drawn
    from lengthwise.theory import rows

    chosen = _norms(norms)
    with progress(say) as tell:
        table = rows.theorem2_rows(
            tokens, width, norms=chosen, precisions=dtypes, scaled=scaled, seed=seed, on_progress=tell
        )
        remark, points = rows.theorem2_remark()
        imitated, by_distance = rows.bias_imitation_rows()
    return Demonstration(
        "theorem2",
        {
            "score without its content, layer 2, all pairs t ≥ i": table,
            "second layers that equal an encoding (fp64)": imitated,
            "the closing remark: is g(i) − g(t) a function of t − i?": remark,
        },
        more={"remark": points, "imitations": by_distance},
        draw=lambda: [drawn(by_distance, points)],
    )


def theory_horizon(dtypes: Sequence[str] = ("bf16", "fp16", "fp32"), *, say: Say | None = None) -> Demonstration:
    """How far theorem 1 counts at a precision and a width: the largest t that can be distinguished from t + 1.

    >>> theory_horizon(["bf16"])
    """
    from lengthwise.reporting.theory import horizon_drawing as drawn
    from lengthwise.theory import rows

    with progress(say) as tell:
        reach, price = rows.horizon_rows(dtypes, on_progress=tell), rows.units_needed_rows()
    return Demonstration(
        "horizon",
        {"the largest t that is still told from t + 1": reach, "units of the ReLU layer for T tokens": price},
        draw=lambda: [drawn(reach, price)],
    )


def theory_heads(tokens: int = 12, beta: float = 5.0) -> Demonstration:
    """What two layers without an encoding can do and one cannot: attend to a place, whatever the token there.

    >>> theory_heads(tokens=6).name
    'heads'
    """
    from lengthwise.reporting.theory import head_drawing as drawn
    from lengthwise.theory import rows

    if beta <= 0:
        raise SpecError(f"--beta is above 0, not {beta:g}")
    table, maps = rows.two_layer_head_rows(tokens, beta)
    return Demonstration("heads", {"heads without positions": table}, more={"maps": maps}, draw=lambda: [drawn(maps)])


def theory_variance(
    width: int = 768,
    heads: int = 12,
    *,
    sigma: float = 0.02,
    pytorch: bool = False,
    tokens: int = 512,
    draws: int = 50,
    seed: int = 0,
    say: Say | None = None,
) -> Demonstration:
    """Measure the variance of activations at initialisation: lemmas 1 to 4 of Chi et al. 2023.

    >>> theory_variance(width=64, heads=4, tokens=32, draws=2)
    """
    from lengthwise.reporting.variance import lemma_table
    from lengthwise.reporting.variance import variance_drawing as drawn
    from lengthwise.theory.lemmas import lemma_rows
    from lengthwise.theory.variance import Initialisation

    start = Initialisation.pytorch(width, heads) if pytorch else Initialisation(width, heads, sigma)
    with progress(say) as tell:
        rows = lemma_rows(start, tokens, draws=draws, seed=seed, on_progress=tell)
    return Demonstration(
        "variance",
        {"Lemmas of Chi et al. 2023, measured and predicted": lemma_table(rows, tokens)},
        [
            f"Mean of {draws} draws with its 99 % band; then the mean over each prediction, 1 where it is right.",
            "lemma 4: the share that is there of the differences it predicts between coordinates, 1 where it is right.",
        ],
        {"rows": rows},
        lambda: [drawn(rows)],
    )


def theory_order(
    tokens: int = 24, *, train: bool = False, store: str = STORE, seed: int = 0, say: Say | None = None
) -> Demonstration:
    """What a decoder without positions knows of its input order, by mask and depth; `train` trains three small models.

    >>> theory_order(tokens=12).name
    'order'
    """
    from lengthwise.interface.order import train_order_models
    from lengthwise.reporting.variance import order_effect_drawing as drawn
    from lengthwise.reporting.variance import order_table
    from lengthwise.reporting.variance import trained_accuracy_drawing as drawn_trained
    from lengthwise.theory.order import order_check_rows

    rows, learned = order_check_rows(tokens, seed=seed), list[dict[str, Any]]()
    tables: dict[str, Rows] = {"What changes a logit": [{**row, "change": f"{row['change']:.1e}"} for row in rows]}
    notes = ["change: the largest change of a logit over their standard deviation, in float64."]
    if train:
        with progress(say) as tell:
            learned = train_order_models(store, seed=seed, on_progress=tell)
        tables["What three trained models learned of the order"] = order_table(learned)
        notes.append("By length, all trained; loss: what another order of the prompt adds to it, in nats.")
    return Demonstration(
        "order",
        tables,
        notes,
        {"rows": rows, "trained": learned},
        lambda: [drawn(rows), *([drawn_trained(learned)] if learned else [])],
    )


@dataclass(frozen=True, repr=False)
class TheoryClaims(Display):
    """The published claims that need no trained model, measured."""

    rows: dict[str, list[dict[str, Any]]]
    """Id of each claim → what was measured."""
    draws: int
    seed: int

    def claim_verdict_rows(self) -> list[dict[str, Any]]:
        """Return a line for each claim that was measured."""
        from lengthwise.reporting.claims import claim_estimates, judge_claim, read_claims

        values = claim_estimates(self.rows)
        return [judge_claim(claim, None, values).line() for claim in read_claims() if claim.id in values]

    def display_parts(self, width: int = 80) -> list[Part]:
        """A line for each claim."""
        return [Part(self.claim_verdict_rows())]

    def plain(self) -> dict[str, Any]:
        """The measurements and the judged claims."""
        return {"rows": self.rows, "claims": self.claim_verdict_rows()}

    def write(self, to: str | Path) -> Path:
        """Write claims.json, which `lengthwise claims` reads, into a folder."""
        told = {"draws": self.draws, "seed": self.seed, "claims": self.rows}
        Folder(to).write("claims.json", json.dumps(told, indent=1))
        return Path(to) / "claims.json"


def theory_claims(draws: int = 50, *, seed: int = 0, say: Say | None = None) -> TheoryClaims:
    """Measure the published claims that need no trained model, at the size they name; this takes some minutes.

    >>> theory_claims(draws=2)
    """
    from lengthwise.theory.claims import measure_claims

    with progress(say) as tell:
        return TheoryClaims(measure_claims(draws=draws, seed=seed, on_progress=tell), draws, seed)


def _norms(names: Sequence[str]) -> list[NormKind]:
    found: list[NormKind] = []
    for name in names:
        if name == "none" or name == "rms" or name == "layer":
            found.append(name)
        else:
            raise SpecError(f"--norm is none, rms or layer, or several of them with commas, not {name!r}")
    if not found:
        raise SpecError("--norm is empty; write none, rms or layer")
    return found
