"""Bundles: the finished runs of a store without their weights, to share and to commit.

BUNDLE/bundle.json     what it is: format, study, how many runs, and the checksums of its files
BUNDLE/rows.parquet    the rows of every run
BUNDLE/runs.jsonl      a line for each run: its done record, its run.json, some of its log
BUNDLE/wrong.parquet   up to 20 wrong answers of each row
BUNDLE/kinds.parquet   which examples the last weights got right, without their texts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lengthwise.checksums import FORMAT, Damaged, parsed, read_checked, read_sealed
from lengthwise.evaluation.rows import OUTCOME_KINDS, PREDICTIONS, read_predictions, read_rows
from lengthwise.folder import Folder, publishable, without_paths
from lengthwise.spec import SpecError, first_mistake
from lengthwise.training.health import Diverged, loss_spikes

if TYPE_CHECKING:
    import polars as pl

WRONG = 20
"""Wrong answers that a bundle keeps per row."""
LEFT_OUT = "left-out.txt"
"""The file that names what a bundle of the wheel lacks."""


T = TypeVar("T", bound=BaseModel)


class _Record(BaseModel):
    """Part of a record; fields that are not read are left alone."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Recorded(_Record):
    threads: int | None = None
    processes: int | None = None
    labels: dict[str, str] = {}


class _RunJson(_Record):
    options: dict[str, Any]
    recorded: _Recorded = _Recorded()


class _Validation(_Record):
    correct: int = Field(ge=0)
    examples: int = Field(gt=0)
    loss: float | None
    targets: int = Field(ge=0)


class _Ended(_Record):
    attempt: int = Field(1, ge=1)
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    cpu_seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    validation: _Validation | None = None


class _Checks(_Record):
    differences: int


class _Ends(_Record):
    checks: dict[str, _Checks] = {}


class _Diverged(_Record):
    step: int
    parameter: str | None = None
    last_loss: float | None = None


class _Failure(_Record):
    why: str = ""
    diverged: _Diverged | None = None


class _Line(_Record):
    key: str
    run: _RunJson
    done: _Ended | None = None
    diverged: _Diverged | None = None
    ends: _Ends = _Ends()
    log: list[list[float]] = []
    spikes: list[int] = []


def check_failure(record: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the record of a failed run if what is read from it has the right types."""
    _validated(_Failure, record, source)
    return record


def _validated(kind: type[T], record: dict[str, Any], source: str) -> T:
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        where, _, reason = first_mistake(error)
        raise Damaged(f"{source} is damaged: {where or 'a line'} of a run's record: {reason}") from error


def check_record(record: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the record of a run if what is read from it has the right types; raises `Damaged` otherwise."""
    line = _validated(_Line, record, source)
    if (line.done is None) == (line.diverged is None):
        raise Damaged(f"{source} is damaged: run {line.key} must be either done or diverged")
    if any(len(pair) != 2 for pair in line.log):
        raise Damaged(f"{source} is damaged: the log of run {line.key} has no pairs of step and loss")
    return record


def sample_wrong_answers(predictions: pl.DataFrame) -> pl.DataFrame:
    """Return up to 20 wrong answers of each run, evaluation, checkpoint, split and length."""
    import polars as pl

    where = ["run", "evaluation", "checkpoint", "split", "length"]
    wrong = predictions.filter(pl.col("kind") != "right")
    return wrong.group_by(where, maintain_order=True).head(WRONG).select(*PREDICTIONS, "run")


def outcome_kinds(predictions: pl.DataFrame) -> pl.DataFrame:
    """Return the kind of outcome of each example with each run's last weights, as index ranges without texts."""
    import polars as pl

    kept = predictions.filter((pl.col("checkpoint") == "last") & (pl.col("evaluation") == "as trained"))
    return kept.select("run", "split", "length", "first", "last", "kind")


def attempt_record(attempt: Folder, read: Callable[[str], bytes]) -> dict[str, Any]:
    """Return the bundle's record of an attempt: run.json, its end, about 20 losses along the way, and loss spikes."""
    found: dict[str, Any] = {"run": _published(parsed(read("run.json"), f"{attempt}/run.json"))}
    found["ends"] = parsed(read("done"), f"{attempt}/done") if attempt.exists("done") else {}
    log = read("train.jsonl").decode(errors="replace") if attempt.exists("train.jsonl") else ""
    try:
        lines = [parsed(line, f"{attempt}/train.jsonl") for line in log.splitlines()]
        losses = [(int(one["step"]), float(one["loss"])) for one in lines if one.get("loss") is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{attempt}/train.jsonl is damaged: a line has no step and loss") from error
    found["log"] = [[step, round(loss, 5)] for step, loss in losses[:: max(1, len(losses) // _LOGGED)]]
    found["spikes"] = loss_spikes(losses)
    return found


def _published(record: dict[str, Any]) -> dict[str, Any]:
    """Return run.json as it is shared: without the host, without passwords and without paths of the machine."""
    recorded = {key: value for key, value in record.get("recorded", {}).items() if key != "host"}
    if isinstance(command := recorded.get("command"), list):
        recorded["command"] = [publishable(str(one)) for one in command]
    return {**record, "options": without_paths(record.get("options")), "recorded": recorded}


_LOGGED = 20


def done_and_diverged(
    ended_records: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Split the records of a bundle's runs into those that are done, and why the others diverged."""
    done = {key: record for key, record in ended_records.items() if "diverged" not in record}
    lost = {key: record["diverged"] for key, record in ended_records.items() if "diverged" in record}
    return done, {key: str(Diverged.read(told)) for key, told in lost.items()}


class Bundle:
    """Reads a bundle; its runs count as done even without a store."""

    def __init__(self, where: str | Path) -> None:
        self.folder = Folder(where)
        if not self.folder.exists("bundle.json"):
            raise SpecError(f"{where} is no bundle: it has no bundle.json; lengthwise study export makes one")
        record = read_sealed(self.folder, "bundle.json")
        if record.get("version", 1) != 1 or record.get("format", FORMAT) != FORMAT:
            raise SpecError(f"{where} is a bundle of another version of lengthwise; export it again")
        self._files = record.get("files")

    def _read(self, name: str) -> bytes:
        return read_checked(self.folder, name, self._files, str(self.folder))

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Key of each finished run → its line of runs.jsonl."""
        return {key: line for key, line in self.lines.items() if line.get("done") is not None}

    @property
    def diverged(self) -> dict[str, dict[str, Any]]:
        """Key of each diverged run → its `step`, `parameter`, `last_loss`."""
        return {key: line["diverged"] for key, line in self.lines.items() if line.get("diverged") is not None}

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """Key of each run, finished or diverged → its line of runs.jsonl."""
        source, found = f"{self.folder}/runs.jsonl", {}
        for text in self._read("runs.jsonl").decode(errors="replace").splitlines():
            line = check_record(parsed(text, source), source)
            found[line["key"]] = line
        return found

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Key of each finished run → its done record."""
        return {key: record["done"] for key, record in self.records.items()}

    @property
    def ended_records(self) -> dict[str, dict[str, Any]]:
        """Key of each run → its done record, or that it diverged."""
        return {**self.summaries, **{key: {"diverged": told} for key, told in self.diverged.items()}}

    @cached_property
    def rows(self) -> pl.DataFrame:
        """All rows of the bundle."""
        return read_rows(self._read("rows.parquet"), f"{self.folder}/rows.parquet")

    def wrong_answers_and_outcomes(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return some wrong answers, and which examples the last weights got right."""
        import polars as pl

        columns = {"wrong.parquet": {**PREDICTIONS, "run": "String"}, "kinds.parquet": OUTCOME_KINDS}
        wrong, kinds = (
            read_predictions(self._read(name), f"{self.folder}/{name}", kind) if self._has(name) else pl.DataFrame()
            for name, kind in columns.items()
        )
        return wrong, kinds

    def _has(self, name: str) -> bool:
        """Whether the bundle has this file, or had it when it was written; the wheel's leave out wrong answers."""
        if self.folder.exists(name):
            return True
        left_out = self.folder.read(LEFT_OUT).decode().split() if self.folder.exists(LEFT_OUT) else []
        return name in (self._files or {}) and name not in left_out
