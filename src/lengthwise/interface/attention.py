"""`analyze`: what the heads of trained models attend to, and how the attention of two models differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.folder import Folder
from lengthwise.progress import Say, progress
from lengthwise.reporting.divergences import (
    all_divergence_estimates,
    differences_from_reference,
    divergence_markdown,
    divergence_table,
    mean_over_lengths,
    nearest_encoding_sentence,
    tasks_of,
)
from lengthwise.reporting.findings import short_task_name
from lengthwise.run.lease import STORE
from lengthwise.spec import SpecError, suggests
from lengthwise.training.settings import Dtype, mixed_precision

if TYPE_CHECKING:
    from lengthwise.analysis.attention import DecoderAttentionSource
    from lengthwise.analysis.pairing import ModelKey
    from lengthwise.model import Decoder
    from lengthwise.run import Run

Rows = list[dict[str, Any]]
FILES = ("divergence", "heads", "distances")
"""The rows of an analysis; each is written as a parquet file."""


@dataclass(frozen=True, repr=False)
class AttentionAnalysis(Display):
    """The attention of some runs as rows; `print` it, or `write` tables and figures into a folder."""

    divergence: Rows
    """Divergence between the attention of two models, by task, pair, layer and length."""
    heads: Rows
    """Entropy, distance and other statistics of each head, by task, model and length."""
    distances: Rows
    """Histograms of how far back heads attend."""
    reference: str = "nope"
    """The encoding that the others are compared with."""

    @classmethod
    def read(cls, folder: str | Path, reference: str = "nope") -> AttentionAnalysis:
        """Read the rows that `write` left in a folder."""
        import polars as pl

        found = {}
        for name in FILES:
            path = Path(folder) / f"{name}.parquet"
            if not path.exists():
                raise SpecError(f"there is no {path}; give the folder that lengthwise analyze --to wrote")
            found[name] = pl.read_parquet(path).to_dicts()
        return cls(**found, reference=_compared_with(found["divergence"], reference))

    @cached_property
    def mean_divergence(self) -> Rows:
        """Divergence averaged over seen and unseen lengths."""
        return mean_over_lengths(self.divergence, False)

    @cached_property
    def mean_divergence_seen(self) -> Rows:
        """Divergence averaged over seen lengths only."""
        return mean_over_lengths(self.divergence, True)

    @cached_property
    def tasks(self) -> dict[str, str]:
        """Each task → its short name, or its full name if two short names would be equal."""
        names = {task: short_task_name(task) for task in tasks_of(self.heads)}
        return names if len(set(names.values())) == len(names) else {task: task for task in names}

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """For each task what heads do and, where runs are compared, how far their attention is from the reference's."""
        from lengthwise.encoding.labels import label_of
        from lengthwise.reporting.attention import lengths_shown_in_words

        for task in self.tasks:
            yield Part(f"{task}: what heads do at {lengths_shown_in_words(self.heads, task)}", "bold")
            yield Part(self.head_table(task))
            yield Part(
                "mean over layers and heads, median and range of seeds; near: closer than .125 of the way back, far: "
                "from .875; of the largest weight alone, and of all weights\n",
                "dim",
            )
            if lines := self.divergence_table(task):
                yield Part(f"{task}: divergence from the attention of {label_of(self.reference)}", "bold")
                yield Part(lines)
                yield from [Part(words)] if (words := self.verdict(task)) else []
                yield Part(
                    "nats, mean over layers, examples and these lengths, 95 % for other seeds; the true one ends at "
                    ".693\n",
                    "dim",
                )

    def head_table(self, task: str) -> Rows:
        """What heads do, one line for each encoding: near or far attention, entropy, the first token."""
        from lengthwise.reporting.attention import attention_summary_table

        return attention_summary_table(self.heads, task)

    def divergence_table(self, task: str) -> Rows:
        """Divergence from the reference's attention, one line for each encoding."""
        return divergence_table(self.mean_divergence, task)

    def verdict(self, task: str) -> str:
        """The divergence in a sentence."""
        return nearest_encoding_sentence(self.mean_divergence, task, self.reference) or ""

    def plain(self) -> dict[str, Any]:
        """All tables as plain data that JSON can hold."""
        told = {name: [_finite(row) for row in rows] for name, rows in self._summaries.items()}
        heads = {task: self.head_table(task) for task in self.tasks}
        return {"divergence": told["summary"], "differences": told["differences"], "heads": heads}

    @cached_property
    def _summaries(self) -> dict[str, Rows]:
        parts = {"seen and unseen": self.mean_divergence, "seen": self.mean_divergence_seen}
        return {
            "summary": [
                {"lengths": lengths, **one} for lengths, part in parts.items() for one in all_divergence_estimates(part)
            ],
            "differences": [
                {"lengths": lengths, **one}
                for lengths, part in parts.items()
                for one in differences_from_reference(part, self.reference)
            ],
        }

    def write(self, to: str | Path) -> list[Path]:
        """Write rows, tables and figures into a folder; return the paths of the figures."""
        import polars as pl

        from lengthwise.evaluation.rows import frame_to_parquet
        from lengthwise.reporting.attention import attention_drawings

        folder = Folder(to)
        for name in FILES:  # first: they took minutes, and everything below can be made again from them
            folder.write(
                f"{name}.parquet", frame_to_parquet(pl.DataFrame(getattr(self, name), infer_schema_length=None))
            )
        for name, rows in self._summaries.items():
            if rows:
                frame = pl.DataFrame(rows, infer_schema_length=None)
                folder.write(f"{name}.csv", frame.write_csv(float_precision=6))
        if self.mean_divergence:
            pages = [
                divergence_markdown(self.mean_divergence, task, self.reference)
                for task in tasks_of(self.mean_divergence)
            ]
            pages += [
                divergence_markdown(self.mean_divergence_seen, task, self.reference, ", seen lengths alone")
                for task in tasks_of(self.mean_divergence_seen)
            ]
            folder.write("summary.md", "\n".join(pages))
        made = attention_drawings(self.mean_divergence, self.heads, self.distances, self.tasks)
        return [path for drawing in made for path in drawing.write(to)]


@suggests
def analyze(
    runs: Sequence[Run | str],
    *,
    against: Run | str | None = None,
    reference: str = "nope",
    lengths: Sequence[int] | str | None = None,
    examples: int = 10,
    checkpoint: str = "last",
    store: str = STORE,
    device: str = "auto",
    dtype: Dtype = "auto",
    allow_code: bool = False,
    say: Say | None = None,
) -> AttentionAnalysis:
    """Measure what attention heads look at and how far back; compare the attention of several runs.

    Runs of one task are compared with those of the `reference` encoding that have another seed, or each with the run
    `against`. Untrained models and each model's own initial weights give the scale.

    >>> found = analyze(["copy-nope-s0", "copy-rope-s0"], against="copy-nope-s1")
    >>> found.write("attention")
    """
    import torch

    opened = [open_finished_run(run, store, allow_code) for run in runs]
    other = None if against is None else open_finished_run(against, store, allow_code)
    if not opened:
        raise SpecError("there is nothing to analyze: give at least one run")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models run in threads of their own
    found: dict[str, Rows] = {name: [] for name in FILES}
    try:
        with progress(say) as tell:
            for own in _by_task(opened, other).values():
                asked = (reference, lengths, examples, checkpoint, (device, bool(mixed_precision(dtype))))
                for name, rows in _analyzed(own, other, *asked, tell).items():
                    found[name] += rows
    finally:
        torch.set_num_threads(threads)
    return AttentionAnalysis(**found, reference=_compared_with(found["divergence"], reference))


def open_finished_run(run: Run | str, store: str = STORE, allow_code: bool = False) -> Run:
    """Open a run by its folder, its id or the beginning of its id; refuse one that is not finished."""
    from lengthwise.run import Run

    opened = Run.of(run, store, allow_code)
    if not opened.done:
        raise SpecError(f"run {opened.id} is not finished; start it again, it goes on where it was stopped")
    return opened


def _compared_with(rows: Rows, reference: str) -> str:
    """The encoding of the run that was given with `against`, or the reference."""
    return next((row["against"] for row in rows if row["pairing"] == "given"), reference)


def _by_task(runs: Sequence[Run], against: Run | None) -> dict[str, list[Run]]:
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(str(run.plan.task_spec), []).append(run)
    if against is not None and set(tasks) != {str(against.plan.task_spec)}:
        raise SpecError(f"runs are compared on one task; {against.id} learned {against.plan.task_spec}")
    return tasks


def _analyzed(
    runs: Sequence[Run],
    against: Run | None,
    reference: str,
    lengths: Sequence[int] | str | None,
    examples: int,
    checkpoint: str,
    where: tuple[str, bool],
    tell: Say,
) -> dict[str, Rows]:
    """Analyze runs of one task."""
    from lengthwise.analysis.attention import task_batches
    from lengthwise.analysis.pairing import ModelKey, ModelPair, pairings
    from lengthwise.analysis.together import compare_attention, describe_attention

    task = str(runs[0].plan.task_spec)
    models = _models(runs, checkpoint, where)
    trained = dict(models)
    pairs: list[ModelPair] = []
    first = {model.untrained: _untrained(run, where) for model, run in zip(trained, runs, strict=True)}
    if against is not None:
        fixed = ModelKey(_name(against), against.plan.seed)
        if fixed in trained:  # alike in encoding and seed: they differ in something else
            if against.id in {run.id for run in runs}:
                raise SpecError(f"{against.id} would be compared with itself; name another run with --against")
            fixed = ModelKey(f"{fixed.encoding} ({against.id.rpartition('-')[2][:6]})", fixed.seed)
        trained[fixed] = _source(against, against.decoder(checkpoint), where)
        first[fixed.untrained] = _untrained(against, where)
        pairs = [ModelPair("given", model, fixed) for model in models]
        pairs += [ModelPair("change", model, model.untrained) for model in trained]
    elif any(model.encoding == reference for model in trained) and len(trained) > 1:
        pairs = pairings([(model.encoding, model.seed) for model in trained], reference)
    limits = [limit for run in (*runs, *([against] if against else [])) if (limit := run.plan.limit()) is not None]
    given = task_batches(runs[0].task, lengths, examples, min(limits, default=None))
    heads, distances = describe_attention(trained, given, tell, task=task)
    near = [batch for batch in given if batch.length is None or batch.length <= 2 * runs[0].task.longest]
    divergence = compare_attention({**trained, **first}, pairs, near or given, tell, task=task) if pairs else []
    return {"divergence": divergence, "heads": heads, "distances": distances}


def _models(runs: Sequence[Run], checkpoint: str, where: tuple[str, bool]) -> dict[ModelKey, DecoderAttentionSource]:
    from lengthwise.analysis.pairing import ModelKey

    found: dict[ModelKey, DecoderAttentionSource] = {}
    for run in runs:
        model = ModelKey(_name(run), run.plan.seed)
        if model in found:
            raise SpecError(
                f"two of these runs are {model.encoding}, seed {model.seed}; they differ in something else, so compare "
                f"them alone: lengthwise analyze {run.id} --against the other"
            )
        found[model] = _source(run, run.decoder(checkpoint), where)
    return found


def _name(run: Run) -> str:
    return ",".join(map(str, run.plan.encoding_specs))


def _untrained(run: Run, where: tuple[str, bool]) -> DecoderAttentionSource:
    return _source(run, run.plan.decoder(), where)


def _source(run: Run, decoder: Decoder, where: tuple[str, bool]) -> DecoderAttentionSource:
    """The decoder on a device of this name, in mixed precision or not."""
    from lengthwise.analysis.attention import DecoderAttentionSource
    from lengthwise.device import place

    return DecoderAttentionSource(place(decoder, *where), run.plan.positions)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """The row without infinities, which JSON does not have."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
