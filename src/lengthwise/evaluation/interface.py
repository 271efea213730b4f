"""`evaluate`: rows of a run on its own task, or of any model on any task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from lengthwise.encoding.positions import Positions
from lengthwise.evaluation.result import evaluate_decoder
from lengthwise.evaluation.subject import HasTask
from lengthwise.spec import Spec, SpecError, suggests
from lengthwise.task import build_task
from lengthwise.task.base import Task

if TYPE_CHECKING:
    import polars as pl


@suggests
def evaluate(
    model: object,
    task: str | Task | None = None,
    lengths: Sequence[int] | str | None = None,
    *,
    another_task: bool = False,
    splits: Iterable[tuple[str, int]] | None = None,
    examples: int | None = None,
    positions: Positions | str | None = None,
    decoding: str = "checked",
    labels: dict[str, str | None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Rows of a model on a task: `evaluate(run, lengths=[8, 16, 32])`, `evaluate(decoder, "copy", [8, 16, 32])`.

    `model` is a run, our decoder, or any callable from (ids_BT, lengths_B) to logits (B, T, V), such as
    `lambda ids, lengths: network(ids).logits`. A run is evaluated on its own task; another one, or one with other
    trained lengths, must be asked for by `another_task=True`, and its rows say so in `evaluation`. `decoding` is as in
    `evaluate_decoder`.

    >>> from lengthwise.model import Decoder, preset
    >>> from lengthwise.task import build_task
    >>> symbols = build_task("sort").vocabulary.symbols
    >>> decoder = Decoder(preset("laptop", vocabulary=len(symbols)), "nope")
    >>> evaluate(decoder, "sort", [4, 8], examples=8)
    """
    if task is None:
        if not isinstance(model, HasTask):
            raise SpecError("a model that is no run has no task of its own; name one, e.g. evaluate(model, 'copy')")
        task = model.task
    elif isinstance(model, HasTask):
        task, labels = _agreed(model, task, another_task, labels)
    found = evaluate_decoder(
        model,
        task,
        lengths,
        splits=splits,
        examples=examples,
        positions=positions,
        decoding=decoding,
        labels=labels,
        on_progress=progress,
    )
    return found.rows


def _agreed(
    run: HasTask, task: str | Task, another: bool, labels: dict[str, str | None] | None
) -> tuple[Task, dict[str, str | None] | None]:
    """The task to evaluate a run on; options that a name omits are the run's, and another task must be asked for."""
    own = Spec.of(run.task_name)
    if isinstance(task, str):
        given = Spec.of(task)
        if given.name == own.name:  # omitted options are those of the run
            given = Spec(own.name, tuple({**dict(own.options), **dict(given.options)}.items()))
        asked, name = (run.task if given == own else build_task(given)), str(given)
    else:
        asked, name = task, task.name
    if asked == run.task:
        return asked, labels
    if not another:
        seen = "" if asked.longest == run.task.longest else f" (up to {run.task.longest}, not {asked.longest})"
        raise SpecError(
            f"the run was trained on {own}{seen}, not on {name}: seen and unseen lengths would be labelled wrongly. "
            "Leave the task out, or give another_task=True, and the rows will say so"
        )
    return asked, {"evaluation": f"task={name}", **(labels or {})}
