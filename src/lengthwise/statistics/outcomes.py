"""The test set's share of the noise, estimated from each example's outcome under each seed.

All runs of a task answer the same examples, so examples are crossed with seeds. The mean of n seeds × m examples has
the variance σ²_seed/n + σ²_example/m + σ²_both/(nm). The variance between seeds covers the first and the last term;
the crossed term, (MS_example − MS_both)/(nm), estimates the remaining one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.spec import SpecError

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Whether each run answered each example of one split correctly, shortest length first."""

    right: dict[str, NDArray[np.bool_]]
    """Run → whether each example is right."""
    lengths: dict[str, tuple[tuple[int, int], ...]]
    """Run → (length, examples) of each length."""

    def test_set_variance(self, runs: Sequence[str], subtracted_runs: Sequence[str] = ()) -> float | None:
        """Return the crossed term of the mean over lengths of these runs, or of these minus `subtracted_runs`, paired.

        Return None if outcomes are missing; the caller then uses the binomial variance.
        """
        if any(run not in self.right for run in (*runs, *subtracted_runs)):
            return None
        if len({self.lengths[run] for run in (*runs, *subtracted_runs)}) != 1:
            raise SpecError(f"{runs[0]} and others of its task were not asked the same examples")
        right_SN = np.array([self.right[run] for run in runs], dtype=np.float64)
        if subtracted_runs:
            right_SN -= np.array([self.right[run] for run in subtracted_runs], dtype=np.float64)
        return float(example_variance(right_SN, [many for _, many in self.lengths[runs[0]]]))

    def mean(self, run: str) -> float:
        """Return the mean over lengths of a run's accuracy."""
        parts = np.split(self.right[run], np.cumsum([many for _, many in self.lengths[run]])[:-1])
        return float(np.mean([part.mean() for part in parts]))


def read_outcomes(
    prediction_rows: pl.DataFrame, checkpoint: str = "last", evaluation: str = "as trained", split: str = "test_unseen"
) -> Outcomes:
    """Return the outcomes in predictions (`run, checkpoint, split, length, first, last, kind`); a line is a range.

    Raises if an example is missing or duplicated: a sample of wrong answers does not tell how many were right.
    """
    import polars as pl

    kept = prediction_rows.filter((pl.col("checkpoint") == checkpoint) & (pl.col("split") == split))
    if "evaluation" in prediction_rows.columns:
        kept = kept.filter(pl.col("evaluation") == evaluation)
    kept = kept.sort("run", "length", "first")
    right, lengths = {}, {}
    for (run,), own in kept.partition_by("run", as_dict=True, maintain_order=True).items():
        first, last = own["first"].to_numpy(), own["last"].to_numpy()
        many = last - first + 1
        length = own["length"].to_numpy()
        begins = np.flatnonzero(np.diff(length, prepend=length[0] - 1))
        follows = np.where(np.isin(np.arange(len(first)), begins), 0, np.roll(last, 1) + 1)
        if (many < 1).any() or (first != follows).any():
            at = int(length[int(np.flatnonzero((many < 1) | (first != follows))[0])])
            raise SpecError(f"{run}: the examples of length {at} are not all there, each once; outcomes need them all")
        right[str(run)] = np.repeat((own["kind"] == "right").to_numpy(), many)
        counts = np.add.reduceat(many, begins)
        lengths[str(run)] = tuple(zip(length[begins].tolist(), counts.tolist(), strict=True))
    return Outcomes(right, lengths)


def example_variance(right_SN: NDArray[np.float64], examples_per_length: Sequence[int]) -> NDArray[np.float64]:
    """Return the variance of the mean over lengths due to the examples; `right_SN` is seeds × examples.

    With one seed it is all of the variance between examples, since the two terms cannot be separated. It is never below
    0. Leading axes are batched. e.g. two seeds that are right on the same one of two examples give .25.
    """
    seeds = right_SN.shape[-2]
    begins = np.concatenate([[0], np.cumsum(examples_per_length)[:-1]])
    m_L = np.asarray(examples_per_length, dtype=np.float64)
    by_example_N = right_SN.mean(axis=-2)
    by_seed_SL = np.add.reduceat(right_SN, begins, axis=-1) / m_L
    mean_L = by_seed_SL.mean(axis=-2)
    between_L = seeds * (np.add.reduceat(by_example_N**2, begins, axis=-1) - m_L * mean_L**2)
    seeds_L = m_L * ((by_seed_SL - mean_L[..., None, :]) ** 2).sum(axis=-2)
    all_L = np.add.reduceat((right_SN**2).sum(axis=-2), begins, axis=-1) - seeds * m_L * mean_L**2
    free_L = np.maximum(m_L - 1, 1)  # a single example has no variance: its term is 0
    both_L = (all_L - between_L - seeds_L) / (free_L * (seeds - 1)) if seeds > 1 else 0.0
    term_L = (between_L / free_L - both_L) / (seeds * m_L)
    return np.maximum(term_L.sum(axis=-1) / len(examples_per_length) ** 2, 0.0)
