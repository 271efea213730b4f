"""Anyone's own data: a file of prompts, answers and lengths, split by prompt and by length."""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Literal

from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Example, Task
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import END
from lengthwise.task.vocabulary import escape_symbol

COLUMNS = ("prompt", "answer", "length")
Row = tuple[str, ...]
"""Prompt and answer, and steps if the file has any."""


@dataclass(frozen=True, kw_only=True)
class File(Task):
    """`{"prompt": "turn left", "answer": "LEFT", "length": 1}`, a line or a row for each example

    `length` is the integer that the file gives; lengths up to `longest` are trained on, in proportion to their rows in
    the file. The file is JSON lines (also `.gz`) or parquet. A symbol is a word, or with `by=characters` a character
    (`␣` is a space). The text of an optional column `steps` is written before the answer.
    """

    path: str
    longest: int = 0
    by: Literal["words", "characters"] = "words"

    version: ClassVar[int] = 2
    unit: ClassVar[str] = "as the file says"
    shown: ClassVar[tuple[str, ...]] = (*Task.shown, "path", "by")
    content_at_several_lengths: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.longest == 0:
            low, high = self.lengths[0], self.lengths[-1]
            raise SpecError(f"{self.path!r} has lengths {low} to {high}; say up to which to train: longest=N")
        if self.longest not in self.lengths:
            nearest = min(self.lengths, key=lambda other: abs(other - self.longest))
            raise SpecError(f"{self.path!r} has no rows of length {self.longest}; the nearest is longest={nearest}")
        super().__post_init__()

    @cached_property
    def _read(self) -> tuple[str, dict[int, Counter[Row]]]:
        """The hash of the file, and the count of each distinct row, by length."""
        path, found = Path(self.path), dict[int, Counter[Row]]()
        if path.is_dir():
            within = sorted(one.name for one in path.iterdir() if one.suffix in {".jsonl", ".parquet"})
            raise SpecError(
                f"{self.path!r} is a folder; name one file in it, e.g. path={path / (within or ['mine.jsonl'])[0]}"
            )
        if not path.is_file():
            raise SpecError(f"there is no file {self.path!r}; give its path from the current directory")
        read = path.read_bytes()
        for number, row in enumerate(_parsed(path, read), 1):
            prompt, answer, length = (_column(self.path, number, row, name) for name in COLUMNS)
            if not isinstance(length, int) or isinstance(length, bool):
                raise SpecError(f"row {number} of {self.path!r}: length is {length!r}, not a whole number")
            if length < 0:
                raise SpecError(f"row {number} of {self.path!r}: length is {length}; lengths are 0 or more")
            for name, value in (("prompt", prompt), ("answer", answer)):
                if not isinstance(value, str):
                    raise SpecError(f"row {number} of {self.path!r}: {name} is {value!r}, not a text")
                if not value.strip():
                    raise SpecError(f"row {number} of {self.path!r}: {name} is empty; fill it, or leave the row out")
            steps = row.get("steps") or ""
            if not isinstance(steps, str):
                raise SpecError(f"row {number} of {self.path!r}: steps is {steps!r}, not a text")
            texts = (prompt, answer, *((steps,) if steps.strip() else ()))
            # If symbols are words, texts that differ only in white space are the same to a model.
            kept = texts if self.by == "characters" else tuple(map(_spaced, texts))
            found.setdefault(length, Counter())[kept] += 1
        if not found:
            raise SpecError(f"{self.path!r} has no rows")
        return hashlib.blake2b(read, digest_size=16).hexdigest(), dict(sorted(found.items()))

    @property
    def _rows(self) -> dict[int, Counter[Row]]:
        return self._read[1]

    @property
    def content(self) -> str:
        return f"{super().content} {self._read[0]}"

    def key(self, *more: object, seed: int = 0) -> int:
        """Return the random key, which depends on the file's content and not on its path."""
        return super().key(self._read[0], *more, seed=seed)

    def bucket(self, length: int, instance: Row) -> int:
        """Hash the prompt and its shortest length, so that no prompt is both trained on and tested.

        A prompt with shortest length up to `longest` is never in `dev_unseen`, one beyond `longest` never in training,
        one beyond twice `longest` always in a test split. The only unused rows are long rows of a prompt whose
        shortest row puts it into a split that has no such length.
        """
        prompt = _seen_as(instance[0])
        number, shortest = digest("file", prompt), self._shortest[prompt]
        if shortest > 2 * self.longest:
            return 90 + number % 10
        if shortest > self.longest:
            return 85 + number % 15
        return number % 95 if number % 95 < 85 else number % 95 + 5

    @cached_property
    def _shortest(self) -> dict[str, int]:
        """The shortest length of each prompt."""
        longest_first = reversed(self._rows.items())
        return {_seen_as(row[0]): length for length, rows in longest_first for row in rows}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        there: set[str] = set()
        for rows in self._rows.values():
            for row in rows:
                example = self.to_example(row)
                there.update(example.prompt, example.target)
        return tuple(sorted(there))

    @cached_property
    def lengths(self) -> Sequence[int]:
        return tuple(self._rows)

    @property
    def far(self) -> Sequence[int]:
        return self.lengths

    def listed(self, length: int) -> Sequence[Row]:
        if length not in self._lists:
            self._lists[length] = tuple(self._rows[length])
        return self._lists[length]

    @cached_property
    def _lists(self) -> dict[int, tuple[Row, ...]]:
        return {}

    def draw(self, rng: RandomSource, length: int) -> Row:
        return rng.choice(self.listed(length), 1)[0]

    def to_example(self, instance: Row) -> Example:
        prompt, answer, *steps = instance
        return Example(self._split(prompt), self._split(answer), self._thought(steps[0]) if steps else ())

    def _split(self, words: str) -> tuple[str, ...]:
        return tuple(words.replace(" ", "␣")) if self.by == "characters" else tuple(map(escape_symbol, words.split()))

    def _thought(self, steps: str) -> tuple[str, ...]:
        return self._split(steps.rstrip() + " " if self.by == "characters" else steps)

    @property
    def judged(self) -> bool:
        """True with the word-level vocabulary: a prompt may have several answers, and steps before them."""
        return self.hf_tokenizer is None

    def check(self, instance: Row, output: Sequence[str]) -> bool:
        """Accept any answer the file has for the prompt; steps must equal the file's, unless they end in `Thus,`."""
        end, steps = self._thought(END), self.to_example(instance).steps
        answers = self._answers[instance[0]]
        if not steps:
            return tuple(output) in answers
        if steps[-len(end) :] != end:
            return tuple(output[: len(steps)]) == steps and tuple(output[len(steps) :]) in answers
        ends = (at + len(end) for at in range(len(output)) if tuple(output[at : at + len(end)]) == end)
        return tuple(output[next(ends, 0) :]) in answers

    @cached_property
    def _answers(self) -> dict[str, set[tuple[str, ...]]]:
        answers: dict[str, set[tuple[str, ...]]] = {}
        for rows in self._rows.values():
            for prompt, answer, *_ in rows:
                answers.setdefault(prompt, set()).add(self._split(answer))
        return answers

    def longest_answer_instance(self, length: int) -> Row:
        return max(self.listed(length), key=lambda row: len(self.to_example(row).target))

    def space(self, length: int) -> int:
        return len(self._rows[length])

    def weight(self, length: int) -> float:
        """Return the number of rows of this length in the file, duplicates included."""
        return float(self._rows[length].total())

    def chance(self, length: int) -> float:
        """Return the largest share of examples for which one fixed answer is correct; a prompt may have several."""
        passed = Counter(answer for prompt, *_ in self._rows[length] for answer in self._answers[prompt])
        return max(passed.values()) / self.space(length)


def _spaced(words: str) -> str:
    return " ".join(words.split())


def _seen_as(prompt: str) -> str:
    """Return the prompt with white space normalized, so that prompts that look the same to a model are equal."""
    return _spaced(prompt.replace("␣", " "))


def _column(path: str, number: int, row: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - checked by the caller
    if name not in row:
        raise SpecError(
            f"row {number} of {path!r} has no {name!r}; each needs prompt, answer and length; it has {', '.join(row)}"
        )
    return row[name]


def _parsed(path: Path, read: bytes) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        import polars

        try:
            return polars.read_parquet(BytesIO(read)).to_dicts()
        except (polars.exceptions.PolarsError, OSError) as error:
            raise SpecError(f"{str(path)!r} is no parquet file: {error}") from error
    if path.suffix == ".gz":
        try:
            read = gzip.decompress(read)
        except (OSError, EOFError, zlib.error) as error:
            raise SpecError(f"{str(path)!r} is no whole gzip file: {error}") from error
    try:
        # Do not use splitlines: it would also split at U+2028 inside a text.
        lines = read.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = read.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{str(path)!r} is not UTF-8 (line {line}: {error.reason}); convert it, e.g. "
            f"iconv -f latin1 -t utf-8 {path.name} > utf8.jsonl"
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise SpecError(f"line {number} of {str(path)!r} is no JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise SpecError(f"line {number} of {str(path)!r} is no JSON object; write an object per line")
            rows.append(row)
    return rows
