"""`recover`: how much of what is lost beyond the trained lengths comes back when one cause of failure is undone?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from lengthwise.analysis.interventions import CONDITIONS, Row, intervention_rows
from lengthwise.display import Display, Part
from lengthwise.encoding.labels import label_of
from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import SpecError
from lengthwise.statistics.pairs import mean_over_seed_pairs

if TYPE_CHECKING:
    from lengthwise.run.run import Run
    from lengthwise.statistics.estimate import Estimate

COSTS, HALF, AT_LEAST, LOST = 0.02, 0.5, 0.25, 0.1
"""The most that an intervention may cost at seen lengths, the share that a cause must recover alone, the lowest end of
its interval, and the least loss that can be recovered."""


@dataclass(frozen=True, repr=False)
class Recovered(Display):
    """What undoing each cause recovers, by task and encoding."""

    rows: Sequence[Row]
    """Task, encoding, seed, length, seen, condition, examples, correct."""

    def score(self, task: str, encoding: str, seed: int, condition: str, seen: bool) -> float:
        """Mean exact match over seen or unseen lengths; squeezing changes nothing where nothing is longer."""
        there = [row for row in self.rows if (row["task"], row["encoding"], row["seed"]) == (task, encoding, seed)]
        by_length: dict[int, dict[str, float]] = {}
        for row in there:
            if row["seen"] == seen:
                by_length.setdefault(row["length"], {})[row["condition"]] = row["correct"] / row["examples"]
        plain = condition.replace(" + squeeze", "").replace("squeeze", "")
        values = [own.get(condition, own.get(plain, float("nan"))) for own in by_length.values()]
        return sum(values) / len(values)

    @property
    def table(self) -> list[dict[str, Any]]:
        """A line for each task and encoding: seen, unseen, and the share that each condition recovers."""
        lines = []
        for task, encoding in dict.fromkeys((row["task"], row["encoding"]) for row in self.rows):
            seeds = sorted({row["seed"] for row in self.rows if (row["task"], row["encoding"]) == (task, encoding)})
            seen, unseen = (
                sum(self.score(task, encoding, seed, "", side) for seed in seeds) / len(seeds) for side in (True, False)
            )
            line = {"task": task, "encoding": label_of(encoding), "seen": round(seen, 3), "unseen": round(unseen, 3)}
            shares = {name: self._share(task, encoding, seeds, name) for name in CONDITIONS[1:]}
            causes = [name for name in CONDITIONS[1:4] if _accounts(shares[name])]
            told = {name: _told(share) for name, share in shares.items()}
            lines.append({**line, **told, "accounts for the loss": ", ".join(causes) or "none alone"})
        return lines

    def _share(self, task: str, encoding: str, seeds: Sequence[int], condition: str) -> Estimate | str:
        """The mean gain over the mean loss, or why there is none; a seed may have lost nothing."""
        scores = [
            [self.score(task, encoding, seed, which, side) for which in ("", condition) for side in (True, False)]
            for seed in seeds
        ]
        seen, unseen, changed_seen, changed = (sum(column) / len(seeds) for column in zip(*scores, strict=True))
        lost, gained = seen - unseen, changed - unseen
        if lost < LOST:
            return "nothing lost"
        if isnan(changed_seen) or isnan(changed):
            return "not measured"
        if changed_seen < seen - COSTS:
            return "costs at seen lengths"
        # A ratio of means, to first order: each seed adds what its gain is beyond its loss's share.
        share = gained / lost
        return mean_over_seed_pairs(
            {
                (seed, seed): share + (now - before - share * (known - before)) / lost
                for seed, (known, before, _, now) in zip(seeds, scores, strict=True)
            }
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table, and what its columns are."""
        yield Part(self.table)
        yield Part(
            "Share of (seen − unseen) that comes back, with the interval over seeds. stop: told where to stop; "
            "entropy: scores times log n / log n trained beyond the trained length; squeeze: positions squeezed into "
            "the trained range. None of them changes what the model reads at trained lengths. A cause accounts for the "
            f"loss if alone it recovers {HALF:.0%}, interval above {AT_LEAST:.0%}.",
            "dim",
        )

    def plain(self) -> dict[str, Any]:
        """The table and all rows."""
        return {"table": self.table, "rows": list(self.rows)}


def _accounts(share: Estimate | str) -> bool:
    return (
        not isinstance(share, str)
        and share.value is not None
        and share.value >= HALF
        and share.low is not None
        and share.low > AT_LEAST
    )


def _told(share: Estimate | str) -> str:
    if isinstance(share, str) or share.value is None:
        return share if isinstance(share, str) else share.words
    interval = "" if share.low is None or share.high is None else f" [{share.low:.2f}, {share.high:.2f}]"
    return f"{share.value:.2f}{interval}"


def recover(runs: Iterable[Run | str], *, store: str = STORE, say: Say | None = None) -> Recovered:
    """Undo three causes of failure at test time, alone and together, and say what each recovers.

    Causes are not knowing when to stop, attention that spreads over more tokens, and positions beyond the trained ones.
    The weights stay as they are.

    >>> print(recover(["copy-nope-s0", "copy-rope-s0"]))
    """
    from lengthwise.run.run import Run

    opened = [Run.of(run, store) for run in runs]
    if not opened:
        raise SpecError("there is nothing to recover: give at least one run")
    rows = list[Row]()
    with progress(say) as tell:
        for number, run in enumerate(opened, 1):
            tell(f"{number} of {len(opened)}: {run.id}")
            if str(run.plan.positions_spec) != "consecutive":
                raise SpecError(f"run {run.id} has {run.plan.positions_spec} positions, which cannot be squeezed")
            if run.plan.model.temperature != "constant":
                raise SpecError(
                    f"run {run.id} has its own temperature, which this would replace; give runs without one"
                )
            tokens = run.max_training_sequence_length()
            name = ",".join(map(str, run.plan.encoding_specs))
            marks = {"task": str(run.plan.task_spec), "encoding": name, "seed": run.plan.seed}
            if any(row.items() >= marks.items() for row in rows):
                raise SpecError(f"two runs have the same task, encoding and seed, one is {run.id}; give one of them")
            warmer = run.decoder(temperature=f"log-n:trained={tokens}:bias=true")
            found = intervention_rows(run.decoder().eval(), warmer.eval(), run.task, tokens)
            rows += [{**marks, **row} for row in found]
    return Recovered(rows)
