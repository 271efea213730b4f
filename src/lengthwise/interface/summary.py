"""`summarize`: what one run learned and how far it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.encoding.labels import label_of
from lengthwise.evaluation.outcomes import AS_TRAINED
from lengthwise.reporting.bars import accuracy_bar
from lengthwise.run.lease import STORE
from lengthwise.task.text import Text

if TYPE_CHECKING:
    from lengthwise.run import Run


@dataclass(frozen=True, repr=False)
class RunSummary(Display):
    """Accuracy at seen and unseen lengths, reach, and accuracy by length."""

    run: Run
    seen: float | None
    """Mean accuracy over the seen lengths; None if none of them has enough test examples."""
    unseen: float | None
    learned: bool
    reach: int | None
    """None if the seen lengths were not learned."""
    at_least: bool
    """Whether accuracy still holds at the longest tested length."""
    curve: dict[int, float]
    """Length → accuracy."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A sentence, the curve as a line of blocks, and answers that could not be trusted."""
        plan = self.run.plan
        if isinstance(plan.task, Text):
            yield from self._text_parts()
            return
        name = label_of(",".join(map(str, plan.encoding_specs)))
        reach = "not learned" if self.reach is None else f"{'≥ ' if self.at_least else ''}{self.reach}"
        scores = {"seen": self.seen, "unseen": self.unseen}
        told = [f"{score:.3f} at {which} lengths" for which, score in scores.items() if score is not None]
        yield Part(
            f"{name} on {plan.task_spec}, seed {plan.seed}: {', '.join(told)}; reach {reach}", "bold", wrap=False
        )
        yield Part(accuracy_bar(self.curve, plan.task.longest, width - 1), wrap=False)
        yield Part("exact match by length, ▁ 0 to █ 1; | ends what was trained", "dim")
        for label, checks in self.run.ends["checks"].items():
            if checks["differences"]:
                yield Part(disagreement_sentence(self.run.id, label, checks), "bold red")
        yield Part(f"folder: {self.run.folder}", wrap=False)

    def _text_parts(self) -> Iterator[Part]:
        """Loss and perplexity of a language model by context."""
        import polars as pl

        from lengthwise.evaluation.text import context_table

        rows = self.run.rows().filter((pl.col("evaluation") == AS_TRAINED) & (pl.col("checkpoint") == "last"))
        name = label_of(",".join(map(str, self.run.plan.encoding_specs)))
        yield Part(f"{name} on {self.run.plan.task_spec}, seed {self.run.plan.seed}", "bold", wrap=False)
        yield Part(context_table(rows))
        yield Part(
            f"trained on contexts of {self.run.plan.task.longest} tokens; each has the same target tokens", "dim"
        )
        yield Part(f"folder: {self.run.folder}", wrap=False)

    def plain(self) -> dict[str, Any]:
        """All numbers."""
        told = {"run": self.run.id, "folder": str(self.run.folder), "seen": self.seen, "unseen": self.unseen}
        told |= {"learned": self.learned, "reach": self.reach, "at_least": self.at_least}
        return {**told, "checkpoints": self.run.checkpoints, "curve": self.curve}


def disagreement_sentence(run: str, label: str, checks: dict[str, int]) -> str:
    """Say that decoding and one pass gave different answers."""
    return (
        f"{run}, {label}: decoding disagreed with one pass in {checks['differences']} of {checks['decoded']} checks, "
        "so everything was decoded; does the encoding pass lengthwise verify?"
    )


def summarize(run: Run | str, *, store: str = STORE, allow_code: bool = False) -> RunSummary:
    """Return what a run learned: accuracy at seen and unseen lengths, and its reach.

    >>> print(summarize("copy-nope-s0"))
    """
    from lengthwise.run import Run
    from lengthwise.statistics.learned import counts_by_length, scored_rows_filter
    from lengthwise.statistics.reach import run_scores

    opened = Run.of(run, store, allow_code)
    rows = opened.rows()
    (line,) = run_scores(rows).to_dicts()
    curve = dict(counts_by_length(rows.filter(scored_rows_filter())).select("length", "accuracy").iter_rows())
    reach = line["reach"]
    at_least = bool(line["beyond"]) and reach is not None
    return RunSummary(opened, line["seen"], line["unseen"], bool(line["learned"]), reach, at_least, curve)
