"""Read a store of many runs: which are done, failed or running, their rows, and bundles to export and share.

`status`, resume and `rows` list each of `done/`, `failed/` and `leases/` once. No torch is imported.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lengthwise.checksums import Damaged, check_seal, checksum, compare, parsed, read_checked, read_sealed, sealed
from lengthwise.evaluation.rows import (
    KEYS,
    frame_from_parquet,
    frame_to_parquet,
    read_rows,
    rows_to_frame,
    validate_predictions,
    validate_runs,
)
from lengthwise.folder import Folder, Missing, readable_errors
from lengthwise.run.lease import STORE, check_done_record, read_lease
from lengthwise.spec import SpecError, digest
from lengthwise.study.bundle import (
    Bundle,
    attempt_record,
    check_failure,
    check_record,
    outcome_kinds,
    sample_wrong_answers,
)

if TYPE_CHECKING:
    import polars as pl

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
        self.damaged: dict[str, str] = {}
        """Finished runs that were found damaged, and why; they count as not done."""

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
        return frozenset((self.folder / "done").names()) - self.damaged.keys()

    def state(self, wanted_keys: Iterable[str] | None = None) -> StoreState:
        """Return what is done, failed and leased; `wanted_keys` restricts it to these keys."""
        done = self.done()
        keys = None if wanted_keys is None else set(wanted_keys)
        failed: dict[str, int] = {}
        for name in (self.folder / "failed").names():
            key, _, number = name.rpartition(".")
            if number.isdecimal() and key not in done and (keys is None or key in keys):
                failed[key] = max(failed.get(key, 0), int(number))
        leases: dict[str, Mapping[str, Any]] = {}
        open_keys = [
            key for key in (self.folder / "leases").names() if key not in done and (keys is None or key in keys)
        ]
        for key in open_keys:
            home = self.folder / "leases" / key
            numbers = [int(name) for name in home.names() if name.isdecimal()]
            if not numbers:
                continue
            newest = max(numbers)
            if key in failed and failed[key] >= newest:
                continue
            failed.pop(key, None)  # a newer attempt has started
            leases[key] = {**read_lease(home, newest), "attempt": newest}
        return StoreState(done if keys is None else done & keys, failed, leases)

    def summaries(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the records in `done/` of those keys that are done; a damaged one is named and left out."""
        found: dict[str, dict[str, Any]] = {}
        for key, data in self._read_many("done", (key for key in keys if key not in self.damaged)).items():
            with self._leaving_out(key):
                record = check_seal(parsed(data, f"{self}/done/{key}"), f"{self}/done/{key}")
                found[key] = check_done_record(record, key, f"{self}/done")
        return found

    @contextmanager
    def _leaving_out(self, key: str) -> Iterator[None]:
        """Count a run that is found damaged as not done, and say so once; the others go on."""
        try:
            yield
        except Damaged as error:
            if key not in self.damaged:
                self.damaged[key] = str(error)
                warnings.warn(f"{error}; run {key} counts as not done", stacklevel=3)

    def check(self, keys: Iterable[str], every_file: bool = False) -> dict[str, str]:
        """Compare the files of these finished runs with their checksums; return the damaged runs, and why.

        Rows, answers and run.json are read, or `every_file`. What is damaged counts as not done from now on.
        """
        few = ("run.json", "rows.parquet", "predictions.parquet")
        records, waiting = self.summaries(keys), list[tuple[str, str]]()
        for key, record in records.items():
            own = [f"{record['attempt']}/{name}" for name in few]
            waiting += [(key, path) for path in (record.get("files", own) if every_file else own)]
        together = 1 if every_file else _TOGETHER  # weights are large
        for start in range(0, len(waiting), together):
            part = waiting[start : start + together]
            content = self._read_many("runs", [f"{key}/{path}" for key, path in part])
            for key, path in part:
                home = self.folder / "runs" / key
                with self._leaving_out(key):
                    data = compare(content.get(f"{key}/{path}"), home, path, records[key].get("files"))
                    if path.endswith("/run.json") and parsed(data, f"{home}/{path}").get("id") != key.partition("~")[0]:
                        raise Damaged(f"{home}/{path} is that of another run")
        return self.damaged

    def read_file(self, key: str, record: Mapping[str, Any], name: str) -> bytes:
        """Read a file of the attempt that finished a run, and compare its checksum."""
        home, path = self.folder / "runs" / key, f"{record['attempt']}/{name}"
        return read_checked(home, path, record.get("files"), str(self))

    def reasons(self, failed: Mapping[str, int]) -> dict[str, str]:
        """Return the reason of each failure, in one line."""
        return {key: told["why"] for key, told in self._failures(failed).items()}

    def diverged(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return those of these runs whose training diverged, with `step`, `parameter`, `last_loss` and `attempt`."""
        found = self._failures(self.state(keys).failed)
        return {
            key: {**told["diverged"], "attempt": told["attempt"]} for key, told in found.items() if "diverged" in told
        }

    def ended_records(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the records of those tuning runs that are done, and of those that diverged."""
        wanted = list(keys)
        found = self.summaries(wanted)
        lost = self.diverged(key for key in wanted if key not in found) if len(found) < len(wanted) else {}
        return {**found, **{key: {"diverged": told} for key, told in lost.items()}}

    def _failures(self, failed: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        found = self._read_many("failed", [f"{key}.{number}" for key, number in failed.items()])
        told: dict[str, dict[str, Any]] = {}
        for name, data in found.items():
            key, _, number = name.rpartition(".")
            told[key] = {"why": "the record of its failure is damaged", "attempt": int(number)}
            with suppress(Damaged):
                told[key] |= check_failure(parsed(data, name), name)
        return told

    def _read_many(self, below: str, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of many small files; missing ones are left out."""
        home, found, listed = self.folder / below, {}, list(names)
        if home.local is not None:
            for name in listed:
                with suppress(Missing):
                    found[name] = home.read(name)
            return found
        for start in range(0, len(listed), _TOGETHER):
            part = listed[start : start + _TOGETHER]
            with readable_errors("read", str(home)):
                answers = home.fs.cat([f"{home.path}/{name}" for name in part], on_error="return")
            for name in part:
                answer = answers.get(f"{home.path}/{name}")
                if isinstance(answer, bytes):
                    found[name] = answer
                elif answer is not None and not isinstance(answer, FileNotFoundError):
                    with readable_errors("read", f"{home}/{name}"):
                        raise answer
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
        files: dict[str, list[str]] = {}
        for key in same:
            files.setdefault(kept[key][0], []).append(key)
        tables = [
            read_rows((self.folder / "rows").read(name), f"{self}/rows/{name}").filter(pl.col("key").is_in(own))
            for name, own in files.items()
        ]
        if missing:
            new = self._read_rows(missing, on_progress)
            read = set(new["key"])
            if len(read) >= _COMPACT:  # not those that were found damaged: they may be restored
                self._keep(new, {key: told.get("token", "") for key, told in missing.items() if key in read})
            tables.append(new)
        if not tables:
            return rows_to_frame([])
        return pl.concat(tables).unique(subset=KEYS, keep="first", maintain_order=True).drop("key")

    def _read_rows(
        self, summaries: Mapping[str, Mapping[str, Any]], on_progress: Callable[[str], None] | None
    ) -> pl.DataFrame:
        """Return the rows of these runs with their keys; a damaged run is named and left out."""
        tables: dict[str, pl.DataFrame] = {}
        for number, (key, summary) in enumerate(summaries.items()):
            if on_progress is not None and number % 100 == 0:
                on_progress(f"reading rows: {number} of {len(summaries)} runs")
            with self._leaving_out(key):
                data = self.read_file(key, summary, "rows.parquet")
                tables[key] = frame_from_parquet(data, f"{self.folder}/runs/{key}")
        with suppress(Damaged):
            return validate_runs(tables, str(self))
        whole: dict[str, pl.DataFrame] = {}
        for key, table in tables.items():
            with self._leaving_out(key):
                validate_runs({key: table}, f"{self.folder}/runs/{key}")
                whole[key] = table
        return validate_runs(whole, str(self))

    def _record(self, key: str, summary: Mapping[str, Any]) -> dict[str, Any]:
        attempt = self.folder / "runs" / key / str(summary["attempt"])
        return attempt_record(attempt, lambda name: self.read_file(key, summary, name))

    def _answers(self, summaries: Mapping[str, Mapping[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return some wrong answers of these runs, and which examples their last weights got right."""
        tables = {
            key: frame_from_parquet(self.read_file(key, summary, "predictions.parquet"), f"{self}/runs/{key}")
            for key, summary in summaries.items()
        }
        source = f"{self}/runs" if len(tables) > 1 else f"{self}/runs/{next(iter(tables))}"
        predictions = validate_predictions(tables, source)
        return sample_wrong_answers(predictions), outcome_kinds(predictions)

    def records(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return for each finished run its done record, its run.json and some of its log."""
        found: dict[str, dict[str, Any]] = {}
        for key, summary in self.summaries(keys).items():
            with self._leaving_out(key):
                found[key] = check_record(
                    {"key": key, "done": summary, **self._record(key, summary)}, f"{self}/runs/{key}"
                )
        return found

    def wrong_answers_and_outcomes(self, keys: Iterable[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return some wrong answers of these runs, and which examples their last weights got right."""
        import polars as pl

        found = list[tuple[pl.DataFrame, pl.DataFrame]]()
        for part in _in_parts(self.summaries(keys)):
            try:
                found.append(self._answers(part))
            except Damaged:  # find out whose
                for key, summary in part.items():
                    with self._leaving_out(key):
                        found.append(self._answers({key: summary}))
        wrong, kinds = ([pair[side] for pair in found] for side in (0, 1))
        return (pl.concat(wrong), pl.concat(kinds)) if found else (pl.DataFrame(), pl.DataFrame())

    def _compacted(self) -> dict[str, tuple[str, str]]:
        """Return for each key the compacted file that has it, and the token of the finished attempt."""
        found: dict[str, tuple[str, str]] = {}
        folder = self.folder / "rows"
        for name in folder.names():
            if name.endswith(".json"):
                file = name.removesuffix(".json") + ".parquet"
                with suppress(SpecError, KeyError, AttributeError):  # a cache that is damaged or older is not used
                    kept = read_sealed(folder, name)
                    read_checked(folder, file, kept["files"], str(self))
                    found |= {key: (file, token) for key, token in kept["tokens"].items()}
        return found

    def _keep(self, rows: pl.DataFrame, tokens: Mapping[str, str]) -> None:
        """Write the rows of many runs to one file; the list of their keys is written last."""
        name = f"{digest(dict(tokens), bits=64):016x}"
        data = frame_to_parquet(rows)
        (self.folder / "rows").write(f"{name}.parquet", data)
        content = sealed({"tokens": dict(tokens), "files": {f"{name}.parquet": checksum(data)}})
        (self.folder / "rows").write(f"{name}.json", json.dumps(content))

    # --- bundles -----------------------------------------------------------------------------------------------------

    def export(
        self,
        to: str | Path | Folder,
        keys: Iterable[str] | None = None,
        study: str | None = None,
        on_progress: Callable[[str], None] | None = None,
        bundles: Sequence[Bundle] = (),
    ) -> int:
        """Write a bundle of finished runs (rows, run.json, some wrong answers; no weights). Return their number.

        Runs of `bundles` that are not done here are written too; a run is taken from the first that has it.
        """
        import polars as pl

        keys = None if keys is None else set(keys)
        state = self.state(keys)
        self.check(state.done)
        answers = [[table] for table in self.wrong_answers_and_outcomes(sorted(state.done))]
        wanted, diverged = sorted(state.done - self.damaged.keys()), self.diverged(state.failed)
        given = {key for bundle in bundles for key in bundle.lines}
        if not wanted and not (given if keys is None else given & keys):
            raise SpecError(f"nothing of it is done in {self}; there is nothing to export")
        lines = []
        for key, told in sorted(diverged.items()):  # diverged runs are results too
            attempt = self.folder / "runs" / key / str(told["attempt"])  # no checksums are kept of what failed
            lines.append(json.dumps({"key": key, "diverged": told, **attempt_record(attempt, attempt.read)}))
        for number, (key, summary) in enumerate(self.summaries(wanted).items()):
            if on_progress is not None and number % 20 == 0:
                on_progress(f"exporting: {number} of {len(wanted)}")
            record = {"key": key, "done": summary, **self._record(key, summary)}
            lines.append(json.dumps(check_record(record, f"{self}/runs/{key}")))
        target, rows, many = Folder(to), self.rows(wanted, on_progress), len(wanted)
        ours = {*wanted, *diverged}
        for bundle in bundles:
            theirs = {
                key: line for key, line in bundle.lines.items() if key not in ours and (keys is None or key in keys)
            }
            ours |= {*theirs}
            lines += map(json.dumps, theirs.values())
            many += sum("done" in line for line in theirs.values())
            rows = pl.concat([rows, bundle.rows.filter(pl.col("run").is_in({key.partition("~")[0] for key in theirs}))])
            for tables, more in zip(answers, bundle.wrong_answers_and_outcomes(), strict=True):
                tables += [more.filter(pl.col("run").is_in(list(theirs)))] if more.width else []
        rows = rows.unique(KEYS, keep="first", maintain_order=True) if bundles else rows
        files = {"rows.parquet": frame_to_parquet(rows), "runs.jsonl": ("\n".join(lines) + "\n").encode()}
        for name, tables in zip(("wrong.parquet", "kinds.parquet"), answers, strict=True):
            files[name] = frame_to_parquet(pl.concat(tables))
        for name, data in files.items():
            target.write(name, data)
        described = {"study": study, "runs": many, "files": {name: checksum(data) for name, data in files.items()}}
        target.write("bundle.json", json.dumps(sealed(described), indent=1))
        return many


def _in_parts(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Yield the summaries of a few hundred runs at a time: their predictions fit into memory."""
    listed = list(summaries.items())
    for start in range(0, len(listed), _TOGETHER):
        yield dict(listed[start : start + _TOGETHER])


_COMPACT = 32
"""The smallest number of newly read runs whose rows are cached together in a file."""
