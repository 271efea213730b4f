"""Write a task as parquet files that Hugging Face `datasets` reads: one file per split, and a card listing them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lengthwise import __version__
from lengthwise.spec import SpecError
from lengthwise.task.base import Instance, Task
from lengthwise.task.sets import (
    evaluation_instances,
    instances,
    lengths_of,
    paper_split_rows,
    splits,
    training_lengths_and_indices,
)
from lengthwise.task.vocabulary import Vocabulary, join_symbols

EXAMPLES = 10_000
"""The default number of training examples."""
COLUMNS = {
    "prompt": "what the model reads, as a text",
    "answer": "what it should write, without the steps",
    "steps": "the scratchpad that comes before the answer; empty without one",
    "length": "the length of the example, in the task's unit",
    "index": "the example's number: in training that of the run, elsewhere its place in the set of its length",
    "subgroup": "a finer unit beside the length, e.g. `3-by-2` digits; empty where there is none",
    "prompt_tokens": "how many of `ids` are the prompt's, the beginning token included",
    "answer_tokens": "how many are written: steps, answer and end token",
    "ids": "the whole sequence as token ids",
}
_PARTIAL = ".lengthwise-export-"


def write_task_dataset(
    task: Task,
    name: str,
    to: Path,
    examples: int | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, int]:
    """Write all splits into a folder, or nothing if anything fails; return the number of rows of each split.

    `examples` and `seed` are those of training, by default 10,000 and 0; they are refused under `protocol=paper`.
    """
    if task.protocol == "paper" and (examples is not None or seed):
        given = "examples" if examples is not None else "seed"
        raise SpecError(f"the original study has its own training set; leave out {given} under protocol paper")
    many = EXAMPLES if examples is None else examples
    try:
        with _whole(to) as folder:
            written = _write(task, folder, many, seed, on_progress)
            (folder / "README.md").write_text(_card(task, name, to, written, many, seed), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write to {str(to)!r}: {error.strerror or error}; give another folder") from error
    return written


@contextmanager
def _whole(to: Path) -> Iterator[Path]:
    """Yield a temporary folder whose content is moved to `to` at the end, so that a failure leaves nothing behind."""
    if to.is_file():
        raise SpecError(f"{str(to)!r} is a file; give a new folder")
    there = to.exists()
    if there and any(not one.name.startswith(_PARTIAL) for one in to.iterdir()):
        raise SpecError(f"{str(to)!r} is not empty; give a new folder")
    to = to.resolve()
    above = to if there else to.parent  # an existing folder may be the only one that is writable
    partial = above / f"{_PARTIAL}{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        yield partial
        if there:
            for one in partial.iterdir():
                one.rename(to / one.name)
        else:
            partial.rename(to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    task: Task, folder: Path, examples: int, seed: int, progress: Callable[[str], None] | None
) -> dict[str, int]:
    import polars

    written = {}
    for split in splits(task):
        if progress is not None:
            progress(split)
        table = [_row(task, length, index, instance) for length, index, instance in _all(task, split, examples, seed)]
        if table:
            polars.DataFrame(table, infer_schema_length=None).write_parquet(folder / f"{split}.parquet")
            written[split] = len(table)
    if isinstance(task.vocabulary, Vocabulary):
        symbols = json.dumps(task.vocabulary.symbols, ensure_ascii=False, indent=0)
        (folder / "vocabulary.json").write_text(symbols + "\n", encoding="utf-8")
    return written


def _all(task: Task, split: str, examples: int, seed: int) -> Iterable[tuple[int, int, Instance]]:
    if split != "train":
        for length in lengths_of(task, split):
            for index, instance in enumerate(evaluation_instances(task, split, length)):
                yield length, index, instance
        return
    length_N, index_N = (
        paper_split_rows(task, split)
        if task.protocol == "paper"
        else training_lengths_and_indices(task, 0, examples, seed)
    )
    lengths, indices = length_N.tolist(), index_N.tolist()
    yield from zip(lengths, indices, instances(task, split, lengths, indices, seed), strict=True)


def _row(task: Task, length: int, index: int, instance: Instance) -> dict[str, object]:
    example = task.to_example(instance)
    ids, prompt = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    return {
        "prompt": join_symbols(example.prompt),
        "answer": join_symbols(example.answer),
        "steps": join_symbols(example.steps),
        "length": length,
        "index": index,
        "subgroup": task.subgroup(instance) or "",
        "prompt_tokens": prompt,
        "answer_tokens": len(ids) - prompt,
        "ids": ids,
    }


def _card(task: Task, name: str, to: Path, written: dict[str, int], examples: int, seed: int) -> str:
    files = "".join(f"  - split: {split}\n    path: {split}.parquet\n" for split in written)
    counts = "".join(f"| {split} | {count:,} |\n" for split, count in written.items())
    columns = "".join(f"| `{column}` | {meaning} |\n" for column, meaning in COLUMNS.items())
    training = [] if task.protocol == "paper" else ["--examples", str(examples), "--seed", str(seed)]
    command = shlex.join(["lengthwise", "export", name, "--to", to.name or str(to), *training])
    ids = (
        "`vocabulary.json` lists the symbol of each id, beginning with id 0."
        if isinstance(task.vocabulary, Vocabulary)
        else f"Ids are those of the tokenizer {task.tokenizer}."
    )
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n\n"
        f"# {name}\n\n```\n{command}\n```\n\n"
        f"Written by lengthwise {__version__}; protocol {task.protocol}, version {task.version} of the task. "
        f"A length counts {task.unit}. {ids}\n\n| split | rows |\n|---|---|\n{counts}\n"
        f"| column | meaning |\n|---|---|\n{columns}"
    )
