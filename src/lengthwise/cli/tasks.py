"""`lengthwise show`, `audit`, `export`, `corpus` and `lengths`: what is learned, and a user's own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import lengthwise as lw
from lengthwise.cli.terminal import LARGEST_SEED, Json, app, show

Name = Annotated[str, typer.Argument(help="a task, e.g. copy:variant=random or my_task.py:Mine")]
Protocol = Annotated[str | None, typer.Option(help="ours or paper")]
Tokenizer = Annotated[str | None, typer.Option(help="a folder with a Hugging Face tokenizer")]


@app.command("show")
def show_(
    task: Name,
    length: Annotated[
        int | None, typer.Option(help="of the task's own unit; the longest trained on, or the split's first")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="how many")] = 3,
    split: Annotated[str, typer.Option(help="train, validation, test_seen, test_unseen, ...")] = "train",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="of the training set")] = 0,
    scratchpad: Annotated[str | None, typer.Option(help="none, full, minimal, full-input, ... or i1c1o1v0r1")] = None,
    protocol: Protocol = None,
    tokenizer: Tokenizer = None,
    ids: Annotated[bool, typer.Option("--ids", help="print the token ids too")] = False,
    as_json: Json = False,
) -> None:
    """Print examples of a task: prompt, steps and answer."""
    formats = {"scratchpad": scratchpad, "protocol": protocol, "tokenizer": tokenizer}
    show(lw.examples(task, length, examples, split=split, seed=seed, ids=ids, **formats), as_json)


@app.command()
def audit(task: Name, protocol: Protocol = None, tokenizer: Tokenizer = None, as_json: Json = False) -> None:
    """Count the examples of a task and what its splits share.

    It also prints chance accuracy, lengths of answers, and deviations from the original study.
    """
    found = lw.audit(task, protocol=protocol, tokenizer=tokenizer)
    show(found, as_json)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def export(
    task: Name,
    to: Annotated[Path, typer.Option(help="a new folder")],
    examples: Annotated[
        int | None, typer.Option(min=1, help="training examples, 10,000 if not given; paper has its own")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="of the training set")] = 0,
    scratchpad: Annotated[str | None, typer.Option(help="none, full, minimal, full-input, ...")] = None,
    protocol: Protocol = None,
    tokenizer: Tokenizer = None,
    as_json: Json = False,
) -> None:
    """Write a task as parquet for Hugging Face datasets.

    Read it with load_dataset(FOLDER).
    """
    formats = {"scratchpad": scratchpad, "protocol": protocol, "tokenizer": tokenizer}
    show(lw.export_task(task, to, examples=examples, seed=seed, **formats), as_json)


@app.command("export-lm-eval")
def export_lm_eval(
    task: Name,
    to: Annotated[Path, typer.Option(help="a folder, which must stay where it is")],
    lengths: Annotated[str | None, typer.Option(help="e.g. 4,8,16; those of our own tests, unless given")] = None,
    shots: Annotated[int, typer.Option(min=0, help="solved examples in a prompt")] = 4,
    examples: Annotated[int, typer.Option(min=1, help="questions for each length")] = 32,
    as_json: Json = False,
) -> None:
    """Write a task for EleutherAI's lm-evaluation-harness.

    Each length is a task of its own; the prompts are those of measure --task.
    """
    show(lw.export_lm_eval(task, to, lengths=lengths, shots=shots, examples=examples), as_json)


@app.command()
def lengths(
    file: Annotated[Path, typer.Argument(help="JSON lines, parquet, or a text with a document per line; also .gz")],
    tokenizer: Annotated[str | None, typer.Option(help="count its tokens instead of words: a folder")] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="the columns that count, e.g. --field prompt --field answer")
    ] = None,
    trained: Annotated[list[int] | None, typer.Option(help="training lengths: which share is longer?")] = None,
    upto: Annotated[int | None, typer.Option(min=1, help="the longest length drawn; the rest is counted")] = None,
    figure: Annotated[Path | None, typer.Option(help="also draw it: an .svg or .png file")] = None,
    as_json: Json = False,
) -> None:
    """Draw the length histogram of your own texts.

    Lengths are in words or tokens; it prints how much lies beyond a training length.
    """
    drawn = {"upto": upto, "figure": figure}
    show(lw.text_lengths(file, tokenizer=tokenizer, fields=field, trained=trained or (), **drawn), as_json)


@app.command()
def corpus(
    source: Annotated[str, typer.Argument(help="a folder, glob, dataset:NAME:SPLIT, list of files, or python-code")],
    to: Annotated[str, typer.Option(help="a folder or any fsspec path")],
    tokenizer: Annotated[str | None, typer.Option(help="a tokenizer.json; one is trained, unless given")] = None,
    vocabulary: Annotated[int, typer.Option(min=258, help="tokens of a tokenizer that is trained")] = 4096,
    field: Annotated[list[str] | None, typer.Option(help="columns of JSON lines, parquet, datasets")] = None,
    by_folder: Annotated[bool, typer.Option("--by-folder", help="a first folder is in one split")] = False,
    most_mb: Annotated[int | None, typer.Option(min=1, help="of python-code: how much")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; one per core")] = None,
    no_ray: Annotated[bool, typer.Option("--no-ray", help="processes in place of Ray Data")] = False,
    as_json: Json = False,
) -> None:
    """Prepare text for language models: token shards.

    Started again, it makes only the shards that are missing.
    """
    how: dict[str, Any] = {"tokenizer": tokenizer, "vocabulary": vocabulary, "fields": field, "most_mb": most_mb}
    how |= {"split_by_folder": by_folder, "workers": workers, "ray": False if no_ray else None}
    show(lw.prepare_corpus(source, to, **how), as_json)
