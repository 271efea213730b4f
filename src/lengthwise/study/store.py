"""Read a store of many runs: which are done, failed or running, their rows, and bundles to export and share.

`status`, resume and `rows` list each of `done/`, `failed/` and `leases/` once. No torch is imported.

    BUNDLE/bundle.json     what it is: version, study, how many runs
    BUNDLE/rows.parquet    the rows of every run
    BUNDLE/runs.jsonl      a line for each run: its done record, its run.json, some of its log
    BUNDLE/wrong.parquet   up to 20 wrong answers of each row
    BUNDLE/kinds.parquet   which examples the last weights got right, without their texts
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lengthwise.evaluation.rows import frame_from_parquet, frame_to_parquet, rows_to_frame
from lengthwise.folder import Folder
from lengthwise.run.lease import STORE, read_lease
from lengthwise.spec import SpecError, digest
from lengthwise.training.health import loss_spikes

if TYPE_CHECKING:
    import polars as pl

WRONG = 20
"""Wrong answers that a bundle keeps per row."""
_TOGETHER = 512
"""Files requested at once from a remote store."""


@dataclass(frozen=True)
class StoreState:
    """The state of a store at one moment."""

    done: frozenset[str]
    failed: Mapping[str, int]
    """Run → its last failed attempt; without runs that have a newer attempt."""
    leases: Mapping[str, Mapping[str, Any]]
    """Run → its newest lease, for runs that are neither done nor failed."""


class Store:
    """A store of runs: `Store("lengthwise-store").state()`."""

    def __init__(self, where: str | Path | Folder = STORE) -> None:
        self.folder = Folder(where)

    def __str__(self) -> str:
        return str(self.folder)

    def supports_exclusive_create(self) -> bool:
        """Test that creating an existing file is refused; without that, two drivers could do the same run twice."""
        name = f"probe-{uuid4().hex}"
        there = self.folder / "probes"
        try:
            return there.create(name, f"first {name}") and not there.create(name, f"second {name}")
        finally:
            there.remove(name)

    # --- what is there -----------------------------------------------------------------------------------------------

    def done(self) -> frozenset[str]:
        """Return the keys of finished runs and evaluations."""
        return frozenset((self.folder / "done").names())

    def state(self, wanted_keys: Iterable[str] | None = None) -> StoreState:
        """Return what is done, failed and leased; `wanted_keys` restricts it to these keys."""
        done = self.done()
        keys = None if wanted_keys is None else set(wanted_keys)
        failed: dict[str, int] = {}
        for name in (self.folder / "failed").names():
            key, _, number = name.rpartition(".")
            if number.isdigit() and key not in done and (keys is None or key in keys):
                failed[key] = max(failed.get(key, 0), int(number))
        leases: dict[str, Mapping[str, Any]] = {}
        open_keys = [
            key for key in (self.folder / "leases").names() if key not in done and (keys is None or key in keys)
        ]
        for key in open_keys:
            home = self.folder / "leases" / key
            numbers = [int(name) for name in home.names() if name.isdigit()]
            if not numbers:
                continue
            newest = max(numbers)
            if key in failed and failed[key] >= newest:
                continue
            failed.pop(key, None)  # a newer attempt has started
            leases[key] = {**read_lease(home, newest), "attempt": newest}
        return StoreState(done if keys is None else done & keys, failed, leases)

    def summaries(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the records in `done/` of those keys that are done."""
        return {key: json.loads(data) for key, data in self._read_many("done", keys).items() if data}

    def reasons(self, failed: Mapping[str, int]) -> dict[str, str]:
        """Return the reason of each failure, in one line."""
        return {key: told["why"] for key, told in self._failures(failed).items()}

    def diverged(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return those of these runs whose training diverged, with `step`, `parameter`, `last_loss` and `attempt`."""
        found = self._failures(self.state(keys).failed)
        return {
            key: {**told["diverged"], "attempt": told["attempt"]} for key, told in found.items() if "diverged" in told
        }

    def _failures(self, failed: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        found = self._read_many("failed", [f"{key}.{number}" for key, number in failed.items()])
        return {name.rpartition(".")[0]: json.loads(data) for name, data in found.items()}

    def _read_many(self, below: str, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of many small files; missing ones are left out."""
        home, found, listed = self.folder / below, {}, list(names)
        if home.local is not None:
            for name in listed:
                try:
                    found[name] = (home.local / name).read_bytes()
                except FileNotFoundError:
                    continue
            return found
        for start in range(0, len(listed), _TOGETHER):
            part = listed[start : start + _TOGETHER]
            answers = home.fs.cat([f"{home.path}/{name}" for name in part], on_error="return")
            for name in part:
                answer = answers.get(f"{home.path}/{name}")
                if isinstance(answer, bytes):
                    found[name] = answer
                elif answer is not None and not isinstance(answer, FileNotFoundError):
                    raise SpecError(f"{home}/{name} cannot be read: {answer}")
        return found

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, keys: Iterable[str], on_progress: Callable[[str], None] | None = None) -> pl.DataFrame:
        """Return the rows of those runs and evaluations that are done; many read together are cached in `rows/`."""
        import polars as pl

        wanted = list(dict.fromkeys(keys))
        done, kept = self.summaries(wanted), self._compacted()
        # A run that was deleted and rerun has a new token, so its old cached rows are not used.
        same = {key for key, told in done.items() if kept.get(key, ("", ""))[1] == told.get("token")}
        missing = {key: told for key, told in done.items() if key not in same}
        fresh = []
        for number, (key, summary) in enumerate(missing.items()):
            if on_progress is not None and number % 100 == 0:
                on_progress(f"reading rows: {number} of {len(missing)} runs")
            attempt_folder = self.attempt_folder(key, summary)
            fresh.append(frame_from_parquet(attempt_folder.read("rows.parquet")).with_columns(pl.lit(key).alias("key")))
        files: dict[str, list[str]] = {}
        for key in same:
            files.setdefault(kept[key][0], []).append(key)
        tables = [
            frame_from_parquet((self.folder / "rows").read(name)).filter(pl.col("key").is_in(own))
            for name, own in files.items()
        ]
        if fresh:
            new = pl.concat(fresh)
            if len(fresh) >= _COMPACT:
                self._keep(new, {key: told.get("token", "") for key, told in missing.items()})
            tables.append(new)
        if not tables:
            return rows_to_frame([])
        return pl.concat(tables).unique(subset=_KEYS, keep="first", maintain_order=True).drop("key")

    def attempt_folder(self, key: str, summary: Mapping[str, Any]) -> Folder:
        """Return the folder of the attempt that finished a run."""
        return self.folder / "runs" / key / str(summary["attempt"])

    def records(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return for each finished run its done record, its run.json and some of its log."""
        there = self.summaries(keys).items()
        return {
            key: {"key": key, "done": summary, **attempt_record(self.attempt_folder(key, summary))}
            for key, summary in there
        }

    def wrong_answers_and_outcomes(self, keys: Iterable[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return some wrong answers of these runs, and which examples their last weights got right."""
        import polars as pl

        wrong, kinds = [], []
        for key, summary in self.summaries(keys).items():
            predictions = frame_from_parquet(self.attempt_folder(key, summary).read("predictions.parquet"))
            wrong.append(sample_wrong_answers(predictions, key))
            kinds.append(outcome_kinds(predictions, key))
        return (pl.concat(wrong), pl.concat(kinds)) if wrong else (pl.DataFrame(), pl.DataFrame())

    def _compacted(self) -> dict[str, tuple[str, str]]:
        """Return for each key the compacted file that has it, and the token of the finished attempt."""
        found: dict[str, tuple[str, str]] = {}
        folder = self.folder / "rows"
        for name in folder.names():
            if name.endswith(".json"):
                for key, token in folder.json(name).items():
                    found[key] = (name.removesuffix(".json") + ".parquet", token)
        return found

    def _keep(self, rows: pl.DataFrame, tokens: Mapping[str, str]) -> None:
        """Write the rows of many runs to one file; the list of their keys is written last."""
        name = f"{digest(dict(tokens), bits=64):016x}"
        (self.folder / "rows").write(f"{name}.parquet", frame_to_parquet(rows))
        (self.folder / "rows").write(f"{name}.json", json.dumps(tokens))

    # --- bundles -----------------------------------------------------------------------------------------------------

    def export(
        self,
        to: str | Path | Folder,
        keys: Iterable[str] | None = None,
        study: str | None = None,
        on_progress: Callable[[str], None] | None = None,
        bundle: Bundle | None = None,
    ) -> int:
        """Write a bundle of finished runs (rows, run.json, some wrong answers; no weights). Return their number.

        Runs of the bundle `bundle` that are not done here are written too.
        """
        import polars as pl

        keys = None if keys is None else set(keys)
        state = self.state(keys)
        wanted, diverged = sorted(state.done), self.diverged(state.failed)
        if not wanted:
            raise SpecError(f"nothing of it is done in {self}; there is nothing to export")
        lines, wrong, kinds = [], [], []
        for key, told in sorted(diverged.items()):  # diverged runs are results too
            lines.append(json.dumps({"key": key, "diverged": told, **attempt_record(self.attempt_folder(key, told))}))
        for number, (key, summary) in enumerate(self.summaries(wanted).items()):
            if on_progress is not None and number % 20 == 0:
                on_progress(f"exporting: {number} of {len(wanted)}")
            attempt_folder = self.attempt_folder(key, summary)
            lines.append(json.dumps({"key": key, "done": summary, **attempt_record(attempt_folder)}))
            if attempt_folder.exists("predictions.parquet"):
                predictions = frame_from_parquet(attempt_folder.read("predictions.parquet"))
                wrong.append(sample_wrong_answers(predictions, key))
                kinds.append(outcome_kinds(predictions, key))
        target, rows, many = Folder(to), self.rows(wanted, on_progress), len(wanted)
        if bundle is not None:
            ours = {*wanted, *diverged}
            theirs = {key: line for key, line in bundle.lines.items() if key not in ours and (not keys or key in keys)}
            lines += map(json.dumps, theirs.values())
            many += sum("done" in line for line in theirs.values())
            rows = pl.concat([rows, bundle.rows.filter(pl.col("run").is_in({key.partition("~")[0] for key in theirs}))])
            rows = rows.unique(_KEYS, keep="first", maintain_order=True)
            for tables, more in zip((wrong, kinds), bundle.wrong_answers_and_outcomes(), strict=True):
                tables += [more.filter(pl.col("run").is_in(list(theirs)))] if more.width else []
        target.write("rows.parquet", frame_to_parquet(rows))
        target.write("runs.jsonl", "\n".join(lines) + "\n")
        for name, tables in (("wrong.parquet", wrong), ("kinds.parquet", kinds)):
            if tables:
                target.write(name, frame_to_parquet(pl.concat(tables)))
        target.write("bundle.json", json.dumps({"version": 1, "study": study, "runs": many}, indent=1))
        return many


_COMPACT = 32
"""The smallest number of newly read runs whose rows are cached together in a file."""
_KEYS = ["run", "evaluation", "checkpoint", "split", "length", "subgroup"]


def sample_wrong_answers(predictions: pl.DataFrame, run_key: str) -> pl.DataFrame:
    """Return up to 20 wrong answers for each evaluation, checkpoint, split and length."""
    import polars as pl

    where = ["evaluation", "checkpoint", "split", "length"]
    wrong = predictions.filter(pl.col("kind") != "right")
    return wrong.group_by(where, maintain_order=True).head(WRONG).with_columns(pl.lit(run_key).alias("run"))


def outcome_kinds(predictions: pl.DataFrame, run_key: str) -> pl.DataFrame:
    """Return the kind of outcome of each example with the last weights, as index ranges without texts."""
    import polars as pl

    kept = predictions.filter((pl.col("checkpoint") == "last") & (pl.col("evaluation") == "as trained"))
    return kept.select(pl.lit(run_key).alias("run"), "split", "length", "first", "last", "kind")


def attempt_record(attempt_folder: Folder) -> dict[str, Any]:
    """Return the bundle's record of an attempt: run.json, its end, about 20 losses along the way, and loss spikes."""
    found: dict[str, Any] = {"run": attempt_folder.json("run.json")}
    found["ends"] = attempt_folder.json("done") if attempt_folder.exists("done") else {}
    lines = attempt_folder.read("train.jsonl").decode().splitlines() if attempt_folder.exists("train.jsonl") else []
    losses = [(one["step"], one["loss"]) for one in map(json.loads, lines) if one.get("loss") is not None]
    found["log"] = [[step, round(loss, 5)] for step, loss in losses[:: max(1, len(losses) // _LOGGED)]]
    found["spikes"] = loss_spikes(losses)
    return found


_LOGGED = 20


class Bundle:
    """Reads a bundle; its runs count as done even without a store."""

    def __init__(self, where: str | Path) -> None:
        self.folder = Folder(where)
        if not self.folder.exists("bundle.json"):
            raise SpecError(f"{where} is no bundle: it has no bundle.json; lengthwise study export makes one")
        if self.folder.json("bundle.json").get("version") != 1:
            raise SpecError(f"{where} is a bundle of another version of lengthwise; export it again")

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """Key of each finished run → its line of runs.jsonl."""
        return {key: line for key, line in self.lines.items() if "done" in line}

    @property
    def diverged(self) -> dict[str, dict[str, Any]]:
        """Key of each diverged run → its `step`, `parameter`, `last_loss`."""
        return {key: line["diverged"] for key, line in self.lines.items() if "diverged" in line}

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """Key of each run, finished or diverged → its line of runs.jsonl."""
        lines = (json.loads(line) for line in self.folder.read("runs.jsonl").decode().splitlines())
        return {line["key"]: line for line in lines}

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Key of each finished run → its done record."""
        return {key: record["done"] for key, record in self.records.items()}

    @cached_property
    def rows(self) -> pl.DataFrame:
        """All rows of the bundle."""
        return frame_from_parquet(self.folder.read("rows.parquet"))

    def wrong_answers_and_outcomes(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return some wrong answers, and which examples the last weights got right."""
        import polars as pl

        names = ("wrong.parquet", "kinds.parquet")
        wrong, kinds = (
            frame_from_parquet(self.folder.read(name)) if self.folder.exists(name) else pl.DataFrame() for name in names
        )
        return wrong, kinds
