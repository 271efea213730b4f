"""`lengthwise show`, `audit`, `export` and `lengths`: what is learned, and what a user's own texts are like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.terminal import Json, app, cell, console, escape, print_table
from lengthwise.progress import progress
from lengthwise.spec import Spec, SpecError

if TYPE_CHECKING:
    from lengthwise.task.audit import Audit
    from lengthwise.task.base import Task

Name = Annotated[str, typer.Argument(help="a task, e.g. copy:variant=random or my_task.py:Mine")]
Protocol = Annotated[str | None, typer.Option(help="ours or paper")]
_PROBLEMS = 8
Tokenizer = Annotated[str | None, typer.Option(help="a folder with a Hugging Face tokenizer")]


def _task(name: str, **options: str | None) -> tuple[Task, str]:
    """The task, and its name with the options that were given beside it."""
    from lengthwise.spec import canonical
    from lengthwise.task import TASKS, build_task

    spec = Spec.of(name)
    for key, value in options.items():
        if value is not None:
            if key in dict(spec.options):
                raise SpecError(f"{key} is given twice: in {name!r} and as --{key} {value}")
            spec = Spec(spec.name, (*spec.options, (key, value)))
    return build_task(spec), str(canonical("task", TASKS, spec))


@app.command()
def show(
    task: Name,
    length: Annotated[
        int | None, typer.Option(help="of the task's own unit; the longest trained on, or the split's first")
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="how many")] = 3,
    split: Annotated[str, typer.Option(help="train, validation, test_seen, test_unseen, ...")] = "train",
    seed: Annotated[int, typer.Option(help="of the training set")] = 0,
    scratchpad: Annotated[str | None, typer.Option(help="none, full, minimal, full-input, ... or i1c1o1v0r1")] = None,
    protocol: Protocol = None,
    tokenizer: Tokenizer = None,
    ids: Annotated[bool, typer.Option("--ids", help="print the token ids too")] = False,
    as_json: Json = False,
) -> None:
    """Print examples of a task: prompt, steps and answer."""
    from lengthwise.task.sets import belongs, lengths_of, maker
    from lengthwise.task.vocabulary import text

    chosen, name = _task(task, scratchpad=scratchpad, protocol=protocol, tokenizer=tokenizer)
    if length is None:
        there = lengths_of(chosen, split)
        length = there[0] if there and chosen.longest not in there else chosen.longest
    belongs(chosen, split, length)
    make = maker(chosen, split, length, seed)
    told = []
    for index in range(examples):
        instance = make(index)
        example = chosen.render(instance)
        sequence, prompt = chosen.vocabulary.sequence(example.prompt, example.target, chosen.starts)
        told.append(
            {
                "index": index,
                "prompt": text(example.prompt),
                "steps": text(example.steps),
                "answer": text(example.answer),
                "subgroup": chosen.subgroup(instance),
                "prompt_tokens": prompt,
                "answer_tokens": len(sequence) - prompt,
                "ids": sequence,
            }
        )
    if as_json:
        print(json.dumps({"task": name, "split": split, "length": length, "examples": told}, indent=2))
        return
    screen = console()
    screen.print(
        f"[bold]{escape(name)}[/], {split}, length {length} ({chosen.unit}), chance {cell(chosen.chance(length))}"
    )
    screen.print("[cyan]prompt[/]  [yellow]steps[/]  [bold green]answer[/]")
    for one in told:
        parts = [f"[cyan]{escape(str(one['prompt']))}[/]"]
        if one["steps"]:
            parts.append(f"[yellow]{escape(str(one['steps']))}[/]")
        parts.append(f"[bold green]{escape(str(one['answer']))}[/]")
        screen.print("\n" + "\n".join(parts), highlight=False)
        what = f", {one['subgroup']}" if one["subgroup"] else ""
        screen.print(
            f"[dim]example {one['index']}{what}: {one['prompt_tokens']} prompt tokens, "
            f"{one['answer_tokens']} to write (end token included)[/]",
            highlight=False,
        )
        if ids:
            screen.print(f"[dim]{one['ids']}[/]", highlight=False)


@app.command()
def audit(task: Name, protocol: Protocol = None, tokenizer: Tokenizer = None, as_json: Json = False) -> None:
    """Count the examples of a task and what its splits share.

    It also prints chance accuracy, lengths of answers, and deviations from the original study.
    """
    from lengthwise.task.audit import audit as run

    chosen, name = _task(task, protocol=protocol, tokenizer=tokenizer)
    with progress() as tell:
        report = run(chosen, name, tell)
    if as_json:
        print(json.dumps(report.mapping(), indent=2))
    else:
        _print_audit(report, chosen)
    if report.problems:
        raise typer.Exit(1)


def _print_audit(report: Audit, task: Task) -> None:
    screen = console()
    screen.print(
        f"[bold]{escape(report.task)}[/], protocol {report.protocol}, version {report.version}: a length counts "
        f"{report.unit}; {report.vocabulary:,} tokens in the vocabulary, "
        f"{'a' if task.starts else 'no'} beginning token"
    )
    rows: list[dict[str, object]] = [
        {
            "split": line.split,
            "length": line.length,
            "instances": f"{line.space:,}" if line.space < 10**9 else f"10^{log10(line.space):.1f}",
            "examples": line.examples,
            "distinct": f"{line.distinct:,}" + (" exhausted" if line.exhausted else ""),
            "chance": line.chance,
            "prompt tokens": _range(line.prompt_tokens),
            "answer tokens": ", ".join(f"{size} ({count})" for size, count in line.answers.items())
            if len(line.answers) < 4
            else _range(line.answer_tokens),
        }
        for line in report.lines
    ]
    print_table(rows, False)
    screen.print()
    for pair, count in report.overlap.items():
        style = "" if count == 0 else "[bold red]" if report.protocol == "ours" else "[bold]"
        seen = sum(line.examples for line in report.lines if line.split == pair.split(" and ")[1])
        screen.print(f"{style}overlap of {pair}: {count:,} of {seen:,} examples{'[/]' if style else ''}")
    if report.protocol == "paper":
        screen.print("(the original samples with replacement; of its validation set, half is used in a run)")
    if report.exhausted:
        by_split: dict[str, list[str]] = {}
        for split, length in report.exhausted:
            by_split.setdefault(split, []).append(str(length))
        there = "; ".join(f"{split} {', '.join(lengths)}" for split, lengths in by_split.items())
        screen.print(f"exhausted (fewer than 8, kept for training, left out of the seen-length score): {there}")
    elif report.protocol == "ours":
        screen.print("exhausted: none")
    for split, lengths in report.missing.items():
        whole = not any(line.split == split for line in report.lines)
        screen.print(f"missing in {split}: {'all lengths, ' if whole else 'length '}{_spans(lengths)}")
    if report.unused:
        screen.print(f"in no split: {report.unused:,} of its list")
    for key, value in report.facts.items():
        screen.print(f"{key}: {escape(cell(value))}")
    for deviation in report.deviations:
        screen.print(f"deviation: {escape(deviation)}")
    for problem in report.problems[:_PROBLEMS]:
        screen.print(f"[bold red]problem:[/] {escape(problem)}")
    if len(report.problems) > _PROBLEMS:
        screen.print(f"... and {len(report.problems) - _PROBLEMS} more; all with --json")


def _range(pair: tuple[int, int]) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]}–{pair[1]}"


def _spans(numbers: list[int]) -> str:
    """Ascending numbers, neighbours joined: `9–16, 20`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(map(_range, spans))


@app.command()
def export(
    task: Name,
    to: Annotated[Path, typer.Option(help="a new folder")],
    examples: Annotated[
        int | None, typer.Option(min=1, help="training examples, 10,000 if not given; paper has its own")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the training set")] = 0,
    scratchpad: Annotated[str | None, typer.Option(help="none, full, minimal, full-input, ...")] = None,
    protocol: Protocol = None,
    tokenizer: Tokenizer = None,
    as_json: Json = False,
) -> None:
    """Write a task as parquet for Hugging Face datasets.

    Read it with load_dataset(FOLDER).
    """
    from lengthwise.task.export import export as run

    chosen, name = _task(task, scratchpad=scratchpad, protocol=protocol, tokenizer=tokenizer)
    with progress() as tell:
        written = run(chosen, name, to, examples, seed, tell)
    print_table([{"split": split, "rows": count} for split, count in written.items()], as_json, written)


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
    from lengthwise.corpora import bars, measure, texts, words
    from lengthwise.corpora import figure as draw
    from lengthwise.corpora.drawing import percent

    if file.suffix in {".csv", ".tsv"}:
        raise SpecError(
            f"{str(file)!r} is a table; write it as parquet or JSON lines, so that its columns can be named"
        )
    if tokenizer is None:
        unit, count = "words", words
    else:
        from lengthwise.task.tokenizer import HuggingFaceTokenizer

        unit, count = "tokens", HuggingFaceTokenizer(tokenizer).count
    counted: list[str] = []
    with progress() as tell:
        found = measure(_told(map(count, texts(file, field, counted.extend)), tell), trained or (), unit)
    if figure is not None:
        draw(found, figure, f"{file.name}, {found.documents:,} documents", upto=upto)
    if as_json:
        print(json.dumps({**found.mapping(upto=upto), "fields": counted}, indent=2))
        return
    screen = console()
    screen.print(
        f"[bold]{escape(file.name)}[/]: {found.documents:,} documents, {found.total:,} {unit}; mean {found.mean:,.1f}, "
        f"min {found.min:,}, max {found.max:,}"
    )
    if counted:
        screen.print(f"counted: {escape(', '.join(counted))}")
    screen.print("quantiles: " + ", ".join(f"{share} % {length:,}" for share, length in found.quantiles.items()))
    for length, share in found.beyond.items():
        screen.print(f"longer than {length:,}: [bold]{percent(share)}[/] of the documents")
    screen.print()
    for line in bars(found, width=min(screen.width, 100), upto=upto):
        screen.print(escape(line), highlight=False, no_wrap=True)
    if figure is not None:
        screen.print(f"\nwritten: {escape(str(figure))}")


def _told(counts: Iterable[int], tell: Callable[[str], None]) -> Iterator[int]:
    for done, count in enumerate(counts, 1):
        if done % 20_000 == 0:
            tell(f"{done:,} documents")
        yield count
