"""Examples of tasks, audits of their splits, exports, and the lengths of a user's own texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part, Table, format_cell
from lengthwise.progress import Say, progress
from lengthwise.spec import Spec, SpecError, canonical
from lengthwise.task import TASKS, build_task

if TYPE_CHECKING:
    from lengthwise.corpora import LengthStatistics
    from lengthwise.foreign.harness import HarnessTask
    from lengthwise.task.audit import Audit, AuditRow
    from lengthwise.task.base import Task

_PROBLEMS = 8  # how many problems of an audit are printed


def _task(name: str, **options: str | None) -> tuple[Task, str]:
    """Return the task, and its name with the options that were given beside it."""
    spec = Spec.of(name)
    for key, value in options.items():
        if value is not None:
            if key in dict(spec.options):
                raise SpecError(f"{key} is given twice: in {name!r} and as --{key} {value}")
            spec = Spec(spec.name, (*spec.options, (key, value)))
    return build_task(spec), str(canonical("task", TASKS, spec))


@dataclass(frozen=True, repr=False)
class Examples(Display):
    """Examples of a task: prompt, steps and answer."""

    task: str
    split: str
    length: int
    unit: str
    chance: float
    examples: list[dict[str, Any]]
    ids: bool

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Each example with its token counts."""
        yield Part(
            f"{self.task}, {self.split}, length {self.length} ({self.unit}), chance {format_cell(self.chance)}", "bold"
        )
        yield Part("prompt, then steps if there are any, then answer", "dim")
        for one in self.examples:
            yield Part("")
            styles = {"prompt": "cyan", "steps": "yellow", "answer": "bold green"}
            yield from (Part(one[key], style) for key, style in styles.items() if one[key])
            what = f", {one['subgroup']}" if one["subgroup"] else ""
            told = (
                f"example {one['index']}{what}: {one['prompt_tokens']} prompt tokens, {one['answer_tokens']} to write"
            )
            yield Part(f"{told} (end token included)", "dim")
            if self.ids:
                yield Part(str(one["ids"]), "dim")

    def plain(self) -> object:
        """The examples with their token ids."""
        return {"task": self.task, "split": self.split, "length": self.length, "examples": self.examples}


def examples(
    task: str,
    length: int | None = None,
    count: int = 3,
    *,
    split: str = "train",
    seed: int = 0,
    scratchpad: str | None = None,
    protocol: str | None = None,
    tokenizer: str | None = None,
    ids: bool = False,
) -> Examples:
    """Return examples of a task, of its longest trained length or of the split's first one.

    >>> print(examples("parity", length=3).examples[0]["prompt"])
    1 1 1 =
    """
    from lengthwise.task.sets import check_split_length, instance_factory, lengths_of
    from lengthwise.task.vocabulary import join_symbols

    chosen, name = _task(task, scratchpad=scratchpad, protocol=protocol, tokenizer=tokenizer)
    if length is None:
        there = lengths_of(chosen, split)
        length = there[0] if there and chosen.longest not in there else chosen.longest
    check_split_length(chosen, split, length)
    make = instance_factory(chosen, split, length, seed)
    told = []
    for index in range(count):
        instance = make(index)
        example = chosen.to_example(instance)
        sequence, prompt = chosen.vocabulary.sequence(example.prompt, example.target, chosen.starts)
        told.append(
            {
                "index": index,
                "prompt": join_symbols(example.prompt),
                "steps": join_symbols(example.steps),
                "answer": join_symbols(example.answer),
                "subgroup": chosen.subgroup(instance),
                "prompt_tokens": prompt,
                "answer_tokens": len(sequence) - prompt,
                "ids": sequence,
            }
        )
    return Examples(name, split, length, chosen.unit, chosen.chance(length), told, ids)


@dataclass(frozen=True, repr=False)
class TaskAudit(Display):
    """The counts of a task's splits, what they share, and what is wrong with them."""

    found: Audit
    starts: bool

    @property
    def problems(self) -> list[str]:
        """Contradictions between the task's methods, and examples that splits share but must not."""
        return self.found.problems

    def plain(self) -> object:
        """All counts."""
        return self.found.to_json_dict()

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table of lengths, then what the splits share and lack."""
        found = self.found
        yield Part(
            f"{found.task}, protocol {found.protocol}, version {found.version}: a length counts {found.unit}; "
            f"{found.vocabulary:,} tokens in the vocabulary, {'a' if self.starts else 'no'} beginning token",
            "bold",
        )
        yield Part([_audit_line(line) for line in found.lines])
        yield Part("")
        for pair, count in found.overlap.items():
            style = "" if count == 0 else "bold red" if found.protocol == "ours" else "bold"
            seen = sum(line.examples for line in found.lines if line.split == pair.split(" and ")[1])
            yield Part(f"overlap of {pair}: {count:,} of {seen:,} examples", style)
        if found.protocol == "paper":
            yield Part("(the original samples with replacement; of its validation set, half is used in a run)")
        yield from map(Part, self._lacks())
        yield from (Part(f"{key}: {format_cell(value)}") for key, value in found.facts.items())
        yield from (Part(f"deviation: {deviation}") for deviation in found.deviations)
        yield from (Part(f"problem: {problem}", "bold red") for problem in found.problems[:_PROBLEMS])
        if len(found.problems) > _PROBLEMS:
            yield Part(f"... and {len(found.problems) - _PROBLEMS} more; all with --json")

    def _lacks(self) -> Iterator[str]:
        """Lengths that are exhausted or missing, and instances that no split has."""
        found = self.found
        by_split: dict[str, list[str]] = {}
        for split, length in found.exhausted:
            by_split.setdefault(split, []).append(str(length))
        if by_split:
            there = "; ".join(f"{split} {', '.join(lengths)}" for split, lengths in by_split.items())
            yield f"exhausted (fewer than 8, kept for training, left out of the seen-length score): {there}"
        elif found.protocol == "ours":
            yield "exhausted: none"
        for split, lengths in found.missing.items():
            whole = not any(line.split == split for line in found.lines)
            yield f"missing in {split}: {'all lengths, ' if whole else 'length '}{_spans(lengths)}"
        if found.unused:
            yield f"in no split: {found.unused:,} of its list"


def _audit_line(line: AuditRow) -> dict[str, Any]:
    few = ", ".join(f"{size} ({count})" for size, count in line.answers.items())
    return {
        "split": line.split,
        "length": line.length,
        "instances": f"{line.space:,}" if line.space < 10**9 else f"10^{log10(line.space):.1f}",
        "examples": line.examples,
        "distinct": f"{line.distinct:,}" + (" exhausted" if line.exhausted else ""),
        "chance": line.chance,
        "prompt tokens": _range(line.prompt_tokens),
        "answer tokens": few if len(line.answers) < 4 else _range(line.answer_tokens),
    }


def _range(pair: tuple[int, int]) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]}–{pair[1]}"


def _spans(numbers: list[int]) -> str:
    """Write ascending numbers with neighbours joined: `9–16, 20`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(map(_range, spans))


def audit(task: str, *, protocol: str | None = None, tokenizer: str | None = None, say: Say | None = None) -> TaskAudit:
    """Count the examples of a task and what its splits share.

    >>> audit("parity").problems
    []
    """
    from lengthwise.task.audit import audit as counted

    chosen, name = _task(task, protocol=protocol, tokenizer=tokenizer)
    with progress(say) as tell:
        return TaskAudit(counted(chosen, name, tell), chosen.starts)


def export_task(
    task: str,
    to: str | Path,
    *,
    examples: int | None = None,
    seed: int = 0,
    scratchpad: str | None = None,
    protocol: str | None = None,
    tokenizer: str | None = None,
    say: Say | None = None,
) -> Table:
    """Write a task as parquet for Hugging Face datasets, and return how many rows each split has.

    >>> export_task("sort:longest=4", "sort-data")
    """
    from lengthwise.task.export import write_task_dataset

    chosen, name = _task(task, scratchpad=scratchpad, protocol=protocol, tokenizer=tokenizer)
    with progress(say) as tell:
        written = write_task_dataset(chosen, name, Path(to), examples, seed, tell)
    return Table({"split": split, "rows": count} for split, count in written.items())


def export_lm_eval(
    task: str,
    to: str | Path,
    *,
    lengths: Sequence[int] | str | None = None,
    shots: int = 4,
    examples: int | None = 32,
) -> HarnessTask:
    """Write a task for EleutherAI's lm-evaluation-harness, one harness task for each length, and say how to run it.

    The prompts, with `shots` solved examples, are those of `measure(model, task=...)`; `lengths` are those at which
    our own runs are tested, unless given.

    >>> export_lm_eval("copy", "copy-lm-eval", lengths=[4, 8]).group
    'lengthwise_copy_random_4shot'
    """
    from lengthwise.foreign.harness import write_lm_eval_task

    return write_lm_eval_task(task, lengths, to, shots, examples)


@dataclass(frozen=True, repr=False)
class TextLengths(Display):
    """The lengths of a file's documents."""

    name: str
    found: LengthStatistics
    fields: list[str]
    """The fields that were counted, if the file has fields."""
    upto: int | None
    figure: Path | None

    def plain(self) -> object:
        """All statistics."""
        return {**self.found.to_json_dict(longest_shown=self.upto), "fields": self.fields}

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Statistics, and the histogram as bars."""
        from lengthwise.corpora import histogram_bars
        from lengthwise.corpora.drawing import format_percent

        found = self.found
        told = f"{self.name}: {found.documents:,} documents, {found.total:,} {found.unit}; mean {found.mean:,.1f}, "
        yield Part(f"{told}min {found.min:,}, max {found.max:,}", "bold")
        if self.fields:
            yield Part(f"counted: {', '.join(self.fields)}")
        yield Part("quantiles: " + ", ".join(f"{share} % {length:,}" for share, length in found.quantiles.items()))
        for length, share in found.beyond.items():
            yield Part(f"longer than {length:,}: {format_percent(share)} of the documents")
        yield Part("")
        yield from (
            Part(line, wrap=False) for line in histogram_bars(found, width=min(width, 100), longest_shown=self.upto)
        )
        if self.figure is not None:
            yield Part(f"\nwritten: {self.figure}", wrap=False)


def text_lengths(
    file: str | Path,
    *,
    tokenizer: str | None = None,
    fields: Sequence[str] | None = None,
    trained: Sequence[int] = (),
    upto: int | None = None,
    figure: str | Path | None = None,
    say: Say | None = None,
) -> TextLengths:
    """Measure the lengths of a file's documents in words or tokens, and the share beyond each training length.

    >>> text_lengths("corpus.jsonl", trained=[512])
    """
    from lengthwise.corpora import count_words, measure_lengths, read_texts
    from lengthwise.corpora import write_histogram_figure as draw

    path, drawn = Path(file), None if figure is None else Path(figure)
    if path.suffix in {".csv", ".tsv"}:
        raise SpecError(
            f"{str(file)!r} is a table; write it as parquet or JSON lines, so that its columns can be named"
        )
    unit, count = "words", count_words
    if tokenizer is not None:
        from lengthwise.task.tokenizer import HuggingFaceTokenizer

        unit, count = "tokens", HuggingFaceTokenizer(tokenizer).count
    counted: list[str] = []
    with progress(say) as tell:
        lengths = _counted(map(count, read_texts(path, fields, counted.extend)), tell)
        found = measure_lengths(lengths, trained, unit)
    if drawn is not None:
        draw(found, drawn, f"{path.name}, {found.documents:,} documents", longest_shown=upto)
    return TextLengths(path.name, found, counted, upto, drawn)


def _counted(counts: Iterable[int], tell: Say) -> Iterator[int]:
    """Pass counts on, and say how many there were."""
    for done, count in enumerate(counts, 1):
        if done % 20_000 == 0:
            tell(f"{done:,} documents")
        yield count
