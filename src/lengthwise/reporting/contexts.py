"""The report of language models: loss by context, with the rules that say whether a curve holds or breaks.

A curve is judged if its loss at the trained context is at least .1 nat below its loss with 16 tokens. It holds at a
context if its loss there is at most .05 nat above its loss at the trained one, and breaks if it is above that with 16
tokens. Each by a 95 % interval over documents, each of which is compared with itself, averaged over seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.display import Part
from lengthwise.evaluation.outcomes import AS_TRAINED
from lengthwise.folder import Folder
from lengthwise.reporting.drawing import Drawing
from lengthwise.reporting.findings import Findings
from lengthwise.reporting.page import parts_page
from lengthwise.reporting.palette import FAINT, colour, dash, marker
from lengthwise.statistics.intervals import t_quantile
from lengthwise.study.plan import LearningRateChoice

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

SHORT, USES, SLACK = 16, 0.1, 0.05
"""The context that a longer one must beat, by how many nats, and how many nats a curve that holds may lose."""


@dataclass(frozen=True)
class Difference:
    """A difference of two losses in nats, with its 95 % interval over documents."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Curve:
    """The loss of one model at each context."""

    task: str
    encoding: str
    """Its name in the study, also of what was changed at test time."""
    label: str
    trained: int
    losses_CSD: Mapping[int, np.ndarray]
    """Context → the mean loss of each document (columns) under each seed (rows)."""
    evaluation: str = AS_TRAINED
    """What was changed at test time."""

    @property
    def changed(self) -> bool:
        """Whether the model was changed at test time."""
        return self.evaluation != AS_TRAINED

    @property
    def contexts(self) -> list[int]:
        """The contexts, ascending."""
        return sorted(self.losses_CSD)

    def loss(self, context: int) -> float:
        """The mean loss per token in nats."""
        return float(self.losses_CSD[context].mean())

    def seeds(self, context: int) -> np.ndarray:
        """The mean loss of each seed."""
        return self.losses_CSD[context].mean(1)

    def difference(self, context: int, other: int) -> Difference:
        """The loss at one context minus that at another, over documents."""
        return paired_difference(self.losses_CSD[context], self.losses_CSD[other])

    @cached_property
    def gain(self) -> Difference | None:
        """By how much the trained context beats 16 tokens; None if one of the two was not measured."""
        there = SHORT in self.losses_CSD and self.trained in self.losses_CSD
        return self.difference(SHORT, self.trained) if there else None

    @property
    def uses_context(self) -> bool:
        """Whether the trained context is better than 16 tokens by enough to judge the curve."""
        return self.gain is not None and self.gain.value >= USES and self.gain.low > 0

    def word(self, context: int) -> str:
        """`holds`, `breaks` or `between` at a context beyond the trained one."""
        if self.difference(context, self.trained).high <= SLACK:
            return "holds"
        return "breaks" if self.difference(context, SHORT).low > 0 else "between"

    @property
    def lost(self) -> list[int]:
        """The contexts at which the loss of a document is not finite."""
        return [context for context in self.contexts if not isfinite(self.loss(context))]

    @property
    def beyond(self) -> list[int]:
        """The contexts beyond the trained one."""
        return [context for context in self.contexts if context > self.trained]

    @property
    def holds_to(self) -> int:
        """The longest context up to which it holds at every tested one."""
        last = self.trained
        for context in self.beyond:
            if self.word(context) != "holds":
                break
            last = context
        return last

    @property
    def breaks_from(self) -> int | None:
        """The shortest context at which it breaks."""
        return next((context for context in self.beyond if self.word(context) == "breaks"), None)

    @property
    def verdict(self) -> str:
        """What the rules say, in a few words."""
        if self.gain is None:
            return "no verdict: the trained context or 16 tokens was not measured"
        if not self.uses_context:
            if self.trained <= SHORT:
                return f"no verdict: a trained context of {self.trained} is not longer than {SHORT} tokens"
            return f"uses no context (16 tokens are worse by {self.gain} nats)"
        if not self.beyond:
            return "not tested beyond the trained context"
        told = f"holds to {self.holds_to:,}" if self.holds_to > self.trained else "does not hold beyond it"
        return f"{told}, {'does not break' if self.breaks_from is None else f'breaks from {self.breaks_from:,}'}"


def paired_difference(one_SD: np.ndarray, other_SD: np.ndarray) -> Difference:
    """Return the mean of one table of losses minus that of another, over the same documents."""
    if not np.isfinite(one_SD).all():
        return Difference(inf, inf, inf)  # a loss that is not finite is above every other
    if not np.isfinite(other_SD).all():
        return Difference(-inf, -inf, -inf)
    gaps_D = one_SD.mean(0) - other_SD.mean(0)
    value, many = float(gaps_D.mean()), len(gaps_D)
    half = float(t_quantile(many - 1, 0.95)) * float(gaps_D.std(ddof=1)) / sqrt(many)
    return Difference(value, value - half, value + half)


class ContextPage:
    """The report page of a study of language models: `ContextPage(found).write("report")`."""

    def __init__(self, found: Findings, command: str = "") -> None:
        self.found, self._command = found, command

    @cached_property
    def curves(self) -> list[Curve]:
        """A curve for each task, encoding and change at test time, in the study's order."""
        import polars as pl

        rows = self.found.rows.filter(pl.col("checkpoint") == "last").with_columns(pl.col("loss").fill_null(inf))
        keys = ("task", "encoding", "evaluation")
        order = {name: number for number, name in enumerate(self.found.encodings)}
        groups = rows.partition_by(*keys, as_dict=True, maintain_order=True)
        listed = sorted(groups.items(), key=lambda pair: (self.found.tasks.index(pair[0][0]), order[pair[0][1]]))
        return [self._curve(str(task), str(encoding), str(change), own) for (task, encoding, change), own in listed]

    def _curve(self, task: str, encoding: str, evaluation: str, rows: pl.DataFrame) -> Curve:
        import polars as pl

        losses: dict[int, np.ndarray] = {}
        measured = rows.select("seed", "subgroup").n_unique()
        for (context,), own in rows.partition_by("length", as_dict=True).items():
            if len(own) == measured:  # with every document under every seed
                table = own.with_columns((pl.col("loss") / pl.col("targets")).alias("mean")).sort("seed", "subgroup")
                losses[int(context)] = table["mean"].to_numpy().reshape(own["seed"].n_unique(), -1)
        changed = "" if evaluation == AS_TRAINED else f", {evaluation.replace('=', ' ', 1)}"
        label = self.found.label(encoding) + changed
        return Curve(task, encoding, label, self.found.trained[task][0], losses, evaluation)

    @property
    def verdict(self) -> str:
        """Which curves hold and which break, a sentence for each group."""
        told: dict[str, list[str]] = {}
        for curve in self.curves:
            if curve.losses_CSD.keys() - {curve.trained}:
                words = curve.verdict.partition(" (16 tokens")[0]  # without its own numbers
                told.setdefault(words, []).append(curve.label)
        if not told:
            return "In-context losses only."
        return " ".join(f"{'; '.join(names)}: {words}." for words, names in told.items())

    def warnings(self) -> list[str]:
        """What is missing."""
        left = self.found.planned - len(self.found.items)
        told = [f"{left} of {self.found.planned} runs are not done."] if left else []
        told += [f"{key} diverged at step {one['step']}." for key, one in self.found.diverged.items()]
        lost = {
            f"{curve.label}: the loss at {one:,} tokens is not finite." for curve in self.curves for one in curve.lost
        }
        edge = sum(choice.lr is not None and choice.lr_at_edge for choice in self.found.choices)
        if edge:
            told.append(f"{edge} of {len(self.found.choices)} learning rates lie at the edge of what was tried.")
        return told + sorted(lost)

    def loss_table(self) -> list[dict[str, Any]]:
        """The loss at each context, in nats per token, over all seeds."""
        contexts = sorted({context for curve in self.curves for context in curve.contexts})
        return [
            {"task": self._task(curve), "model": curve.label}
            | {str(one): _shown(curve.loss(one)) if one in curve.losses_CSD else None for one in contexts}
            for curve in self.curves
        ]

    def verdict_table(self) -> list[dict[str, Any]]:
        """What the trained context gains, how seeds differ, and what the rules say."""
        lines = []
        for curve in self.curves:
            seeds = curve.seeds(curve.trained) if curve.trained in curve.losses_CSD else np.zeros(0)
            spread = f"{seeds.min():.3f} to {seeds.max():.3f}" if len(seeds) else "-"
            gain = "-" if curve.gain is None else str(curve.gain)
            lines.append(
                {"task": self._task(curve), "model": curve.label, "loss of each seed, trained context": spread}
                | {"16 tokens − trained context": gain, "verdict": curve.verdict}
            )
        return lines

    def change_table(self) -> list[dict[str, Any]]:
        """The loss beyond the trained context minus that at it, with intervals over documents."""
        contexts = sorted({context for curve in self.curves for context in curve.beyond})
        return [
            {"task": self._task(curve), "model": curve.label}
            | {str(one): str(curve.difference(one, curve.trained)) if one in curve.beyond else "-" for one in contexts}
            for curve in self.curves
            if curve.beyond and curve.trained in curve.losses_CSD
        ]

    def comparison_table(self) -> list[dict[str, Any]]:
        """The loss of each model minus that of its reference at the same context, with intervals over documents.

        A model changed at test time is compared with itself as trained, others with the study's first of their size.
        """
        lines = []
        for curve in self.curves:
            other = self._reference(curve)
            shared = [] if other is None else [one for one in curve.contexts if one in other.losses_CSD]
            if other is not None and shared:
                gaps = {one: str(paired_difference(curve.losses_CSD[one], other.losses_CSD[one])) for one in shared}
                lines.append(({"task": self._task(curve), "model": curve.label, "minus": other.label}, gaps))
        contexts = sorted({one for _, gaps in lines for one in gaps})
        return [line | {str(one): gaps.get(one, "-") for one in contexts} for line, gaps in lines]

    def _reference(self, curve: Curve) -> Curve | None:
        own = [one for one in self._of(curve.task) if not one.changed]
        if curve.changed:
            return next((one for one in own if one.encoding == curve.encoding), None)
        alike = [one for one in own if one.encoding.partition(" ")[2] == curve.encoding.partition(" ")[2]]  # the model
        first = (own if len(alike) == 1 else alike)[0]
        return None if first is curve else first

    def learning_rate_table(self) -> list[dict[str, Any]]:
        """The validation loss with each learning rate, and the one that the rule chose."""
        return [_rate_line(choice) for choice in self.found.choices]

    def _task(self, curve: Curve) -> str:
        return self.found.short(curve.task)

    def named_tables(self) -> dict[str, list[dict[str, Any]]]:
        """All tables by their names."""
        return {
            "losses": self.loss_table(),
            "verdicts": self.verdict_table(),
            "changes": self.change_table(),
            "comparisons": self.comparison_table(),
        }

    def short_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict and the losses."""
        yield Part(self.verdict, "bold")
        yield from (Part(line, "yellow") for line in self.warnings())
        yield Part(self.loss_table())
        yield Part("Loss per token in nats, the same target tokens at every context.", "dim")

    def all_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict and all tables."""
        yield from self.short_parts(width)
        yield from (Part(""), Part(self.verdict_table()))
        if changes := self.change_table():
            yield from (Part(""), Part(changes))

    @cached_property
    def drawings(self) -> list[Drawing]:
        """A figure of the curves for each task."""
        return [self._drawing(task) for task in self.found.tasks if any(curve.beyond for curve in self._of(task))]

    def _of(self, task: str) -> list[Curve]:
        return [curve for curve in self.curves if curve.task == task]

    def main_figure(self) -> Drawing:
        """The curves of the first task."""
        return self.drawings[0]

    def _drawing(self, task: str) -> Drawing:
        import polars as pl

        lines = [
            {"model": curve.label, "encoding": curve.encoding, "context": one, "loss": curve.loss(one)}
            | {"lowest seed": float(curve.seeds(one).min()), "highest seed": float(curve.seeds(one).max())}
            for curve in self._of(task)
            for one in curve.contexts
        ]
        alt = "Loss by context: " + "; ".join(f"{curve.label} {curve.verdict}" for curve in self._of(task)) + "."
        trained, name = self.found.trained[task][0], f"contexts-{self.found.tasks.index(task)}"
        return Drawing(name, alt, pl.DataFrame(lines), lambda width: _painted(self._of(task), trained, width), True)

    def html(self) -> str:
        """Return the page as HTML."""
        study = self.found.study
        about = [Part(study.question), Part(self.verdict, "bold"), *(Part(line, "red") for line in self.warnings())]
        rules = [Part(" ".join((__doc__ or "").split("\n\n")[1].split()), "dim")]
        again = [Part(self._command)] if self._command else []
        sections: dict[str, Sequence[Part]] = {
            "Verdict": about,
            "Loss by context, nats per token": [Part(self.loss_table())],
            "What the rules say": [Part(self.verdict_table()), *rules],
            "Beyond the trained context": [Part(self.change_table())],
            "Beside another model, nats": [Part(self.comparison_table())],
            "Learning rates": [Part(self.learning_rate_table())],
            "Known deviations": [Part(one) for one in study.deviations],
            "Make it again": again,
        }
        shown = {name: [part for part in parts if part.content] for name, parts in sections.items()}
        return parts_page(study.name, {name: parts for name, parts in shown.items() if parts}, self.drawings)

    def write(self, to: str | Path, with_figures: bool = True, pdf: bool = False) -> list[Path]:
        """Write `index.html`, `report.json`, and figures with their data."""
        folder, paths = Folder(to), [Path(to) / "index.html"]
        folder.write("index.html", self.html())
        for drawing in self.drawings if with_figures else []:
            paths += drawing.write(Path(to) / "figures", ("svg", "pdf") if pdf else ("svg",))
        folder.write("report.json", json.dumps(self.plain(), indent=1))
        return [*paths, Path(to) / "report.json"]

    def plain(self) -> dict[str, Any]:
        """The verdict and the tables as plain data."""
        return {
            "study": self.found.study.name,
            "verdict": self.verdict,
            "warnings": self.warnings(),
            **self.named_tables(),
        }


def _shown(loss: float) -> float | str:
    return round(loss, 3) if isfinite(loss) else "not finite"


def _rate_line(choice: LearningRateChoice) -> dict[str, Any]:
    scores = {f"{lr:g}": score and round(-score, 4) for lr, score in zip(choice.rates, choice.scores, strict=True)}
    return {"encoding": choice.encoding, "task": choice.group, "model": choice.rest[1], **scores} | {
        "chosen": choice.lr,
        "": "at the edge" if choice.lr is not None and choice.lr_at_edge else "",
    }


def _painted(curves: Sequence[Curve], trained: int, width: float) -> Figure:
    import matplotlib.pyplot as plt

    changed = sorted({curve.changed for curve in curves})
    figure, panels = plt.subplots(
        1, len(changed), figsize=(width, 0.5 * width), layout="constrained", sharey=True, squeeze=False
    )
    for axes, which in zip(panels[0], changed, strict=True):
        shown = [curve for curve in curves if curve.changed == which]
        looks = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "v"), ((0, (5, 1)), "D"))
        for number, curve in enumerate(shown):
            line, dot = looks[number % len(looks)] if which else (dash(curve.encoding), marker(curve.encoding))
            paint = f"C{number}" if which else colour(curve.encoding)
            ends = [curve.seeds(one) for one in curve.contexts]
            axes.fill_between(curve.contexts, [e.min() for e in ends], [e.max() for e in ends], color=paint, alpha=0.15)
            losses = [curve.loss(one) for one in curve.contexts]
            axes.plot(curve.contexts, losses, color=paint, linestyle=line, marker=dot, markersize=4, label=curve.label)
        ticks = sorted({context for curve in shown for context in curve.contexts})
        axes.set(xscale="log", xlabel="tokens of context", title="changed at test time" if which else "as trained")
        axes.set_xticks([one for one in ticks if one <= trained or one % trained == 0])
        axes.get_xaxis().set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.minorticks_off()
        axes.axvline(trained, color=FAINT, linewidth=0.8, linestyle="--")
        axes.legend(fontsize="x-small")
    losses = {(curve.label, one): curve.loss(one) for curve in curves for one in curve.contexts}
    finite = {key: loss for key, loss in losses.items() if isfinite(loss)}
    top = max((loss for (_, one), loss in finite.items() if one == SHORT), default=max(finite.values(), default=1.0))
    low = min(finite.values(), default=0.0)
    panels[0][0].set(ylabel="loss per token, nats", ylim=(low - 0.1, top + 1.0))
    return figure
