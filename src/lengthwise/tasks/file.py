"""Anyone's own data: a file of prompts, answers and lengths, split by length."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from lengthwise.spec import SpecError
from lengthwise.tasks.task import Example, Task
from lengthwise.tasks.words import Words

COLUMNS = ("prompt", "answer", "length")


@dataclass(frozen=True, kw_only=True)
class File(Task):
    """`{"prompt": "turn left", "answer": "LEFT", "length": 1}`, a line or a row for each example

    `length` is whatever the file says, an integer; lengths up to `longest` are trained on, as often as the file has
    them. JSON lines or parquet. A symbol is a word, or a character with `by=characters` (`␣` is a space).
    """

    path: str
    longest: int = 0
    by: Literal["words", "characters"] = "words"

    unit: ClassVar[str] = "as the file says"
    shown: ClassVar[tuple[str, ...]] = (*Task.shown, "path", "by")

    def __post_init__(self) -> None:
        if self.longest == 0:
            low, high = self.lengths[0], self.lengths[-1]
            raise SpecError(f"{self.path!r} has lengths {low} to {high}; say up to which to train: longest=N")
        super().__post_init__()

    @cached_property
    def _rows(self) -> dict[int, tuple[tuple[str, str], ...]]:
        """Distinct (prompt, answer) pairs by length."""
        found: dict[int, dict[tuple[str, str], None]] = {}
        for number, row in enumerate(_read(Path(self.path)), 1):
            prompt, answer, length = (_column(self.path, number, row, name) for name in COLUMNS)
            if not isinstance(length, int) or isinstance(length, bool) or length < 0:
                raise SpecError(f"row {number} of {self.path!r}: length is {length!r}, not a whole number")
            for name, value in (("prompt", prompt), ("answer", answer)):
                if not isinstance(value, str) or not value.strip():
                    raise SpecError(f"row {number} of {self.path!r}: {name} is {value!r}, not a text")
            found.setdefault(length, {})[prompt, answer] = None
        if not found:
            raise SpecError(f"{self.path!r} has no rows")
        return {length: tuple(rows) for length, rows in sorted(found.items())}

    def key(self, *more: object, seed: int = 0) -> int:
        """The content counts, not where the file lies."""
        return super().key(self._content, *more, seed=seed)

    @cached_property
    def _content(self) -> str:
        return hashlib.blake2b(Path(self.path).read_bytes(), digest_size=16).hexdigest()

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        there = {
            symbol
            for rows in self._rows.values()
            for prompt, answer in rows
            for symbol in (*self._split(prompt), *self._split(answer))
        }
        return tuple(sorted(there))

    @cached_property
    def lengths(self) -> Sequence[int]:
        return tuple(self._rows)

    def listed(self, length: int) -> Sequence[tuple[str, str]]:
        return self._rows[length]

    def draw(self, words: Words, length: int) -> tuple[str, str]:
        return words.choice(self.listed(length), 1)[0]

    def render(self, instance: tuple[str, str]) -> Example:
        prompt, answer = instance
        return Example(self._split(prompt), self._split(answer))

    def _split(self, words: str) -> tuple[str, ...]:
        return tuple(words.replace(" ", "␣")) if self.by == "characters" else tuple(words.split())

    def check(self, instance: tuple[str, str], said: Sequence[str]) -> bool:
        """By any answer that the file has for the prompt."""
        return tuple(said) in self._answers[instance[0]]

    @cached_property
    def _answers(self) -> dict[str, set[tuple[str, ...]]]:
        answers: dict[str, set[tuple[str, ...]]] = {}
        for rows in self._rows.values():
            for prompt, answer in rows:
                answers.setdefault(prompt, set()).add(self._split(answer))
        return answers

    def worst(self, length: int) -> tuple[str, str]:
        return max(self.listed(length), key=lambda row: len(self._split(row[1])))

    def space(self, length: int) -> int:
        return len(self.listed(length))

    def weight(self, length: int) -> float:
        return float(self.space(length))

    def chance(self, length: int) -> float:
        answers = Counter(answer for _, answer in self.listed(length))
        return max(answers.values()) / self.space(length)


def _column(path: str, number: int, row: dict[str, Any], name: str) -> Any:  # noqa: ANN401 - checked by the caller
    if name not in row:
        raise SpecError(
            f"row {number} of {path!r} has no {name!r}; each needs prompt, answer and length; it has {', '.join(row)}"
        )
    return row[name]


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise SpecError(f"there is no file {str(path)!r}; give its path from the current directory")
    if path.suffix == ".parquet":
        import polars

        try:
            return polars.read_parquet(path).to_dicts()
        except (polars.exceptions.PolarsError, OSError) as error:
            raise SpecError(f"{str(path)!r} is no parquet file: {error}") from error
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise SpecError(f"line {number} of {str(path)!r} is no JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise SpecError(f"line {number} of {str(path)!r} is no JSON object")
            rows.append(row)
    return rows
