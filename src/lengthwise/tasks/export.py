"""A task as parquet files that Hugging Face `datasets` reads: one file per split, and a card that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from lengthwise.spec import SpecError
from lengthwise.tasks.sets import evaluation, instances, lengths_of, rows, splits, training
from lengthwise.tasks.task import Instance, Task
from lengthwise.tasks.vocabulary import text


def export(
    task: Task, name: str, to: Path, examples: int, seed: int = 0, progress: Callable[[str], None] | None = None
) -> dict[str, int]:
    """Write all splits into a folder; the rows of each. `examples` is for training: under `paper` it has its own."""
    import polars

    if to.exists() and any(to.iterdir()):
        raise SpecError(f"{str(to)!r} is not empty; give a new folder")
    to.mkdir(parents=True, exist_ok=True)
    written = {}
    for split in splits(task):
        if progress is not None:
            progress(split)
        table = [_row(task, length, index, instance) for length, index, instance in _all(task, split, examples, seed)]
        if table:
            polars.DataFrame(table, infer_schema_length=None).write_parquet(to / f"{split}.parquet")
            written[split] = len(table)
    (to / "README.md").write_text(_card(task, name, written))
    return written


def _all(task: Task, split: str, examples: int, seed: int) -> Iterable[tuple[int, int, Instance]]:
    if split != "train":
        for length in lengths_of(task, split):
            for index, instance in enumerate(evaluation(task, split, length)):
                yield length, index, instance
        return
    length_N, index_N = rows(task, split) if task.protocol == "paper" else training(task, 0, examples, seed)
    lengths, indices = length_N.tolist(), index_N.tolist()
    yield from zip(lengths, indices, instances(task, split, lengths, indices, seed), strict=True)


def _row(task: Task, length: int, index: int, instance: Instance) -> dict[str, object]:
    example = task.render(instance)
    ids, prompt = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    return {
        "prompt": text(example.prompt),
        "answer": text(example.answer),
        "steps": text(example.steps),
        "length": length,
        "index": index,
        "cell": task.cell(instance) or "",
        "prompt_tokens": prompt,
        "answer_tokens": len(ids) - prompt,
        "ids": ids,
    }


def _card(task: Task, name: str, written: dict[str, int]) -> str:
    files = "".join(f"  - split: {split}\n    path: {split}.parquet\n" for split in written)
    counts = "".join(f"| {split} | {count:,} |\n" for split, count in written.items())
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n\n"
        f"# {name}\n\n`lengthwise export {name}`; protocol {task.protocol}, version {task.version}. "
        f"A length counts {task.unit}.\n\n| split | rows |\n|---|---|\n{counts}"
    )
