"""What an evaluation finds: each example and how the model's answer ended, rows, predictions, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lengthwise.display import Display, Part, Table
from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.rows import PREDICTIONS

if TYPE_CHECKING:
    import polars as pl

AS_TRAINED = "as trained"


@dataclass
class DecodingAgreement:
    """How the decoded sample compares with the pass."""

    decoded: int = 0
    near_ties: int = 0
    """Differences where the two best logits were within 1e-4 of each other."""
    differences: int = 0
    """Other differences, which show that the pass does not predict decoding."""

    @property
    def pass_agrees(self) -> bool:
        """Whether the pass agrees with decoding."""
        return self.differences == 0


@dataclass(frozen=True)
class CaseOutcome:
    """One evaluated example and how the model's answer ended: right, early, late, wrong or cut."""

    case: Case
    kind: str
    """right, early, late, wrong or cut."""
    content: bool | None
    """Whether it would be right if it knew where to stop; None if the pass cannot be trusted."""
    said: list[int]
    first_wrong: int | None
    loss: float


@dataclass(frozen=True, repr=False)
class EvaluationResult(Display):
    """The results of an evaluation."""

    rows: pl.DataFrame
    predictions: pl.DataFrame
    checks: DecodingAgreement
    judged: list[CaseOutcome]
    effective: list[str] = field(default_factory=list)
    """Each encoding that was used, with its options as the modules have them; where a run was evaluated."""

    @property
    def table(self) -> Table:
        """A line for each length: accuracy, and how many answers failed in which way."""
        named = ("split", "examples", "correct_content", "early", "late", "wrong", "cut")
        return Table(
            {"length": row["length"], "accuracy": round(row["correct"] / row["examples"], 4)}
            | {key: row[key] for key in named}
            for row in self.rows.iter_rows(named=True)
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table, and whether decoding confirmed it."""
        yield Part(self.table)
        if not self.checks.pass_agrees:
            yield Part("decoding disagreed with one pass: everything was decoded for real", "bold red")

    def plain(self) -> list[dict[str, object]]:
        """The rows."""
        return self.rows.to_dicts()


def predictions_frame(lines: Sequence[dict[str, object]]) -> pl.DataFrame:
    """Predictions as a table with the types of `PREDICTIONS`."""
    import polars as pl

    return pl.DataFrame(lines, schema={name: getattr(pl, kind) for name, kind in PREDICTIONS.items()})
