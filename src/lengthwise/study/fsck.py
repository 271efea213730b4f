"""Find and repair damage in a store or a bundle: every file that has a checksum is read and compared."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lengthwise.checksums import Damaged, checksum, parsed, read_sealed, sealed
from lengthwise.evaluation.rows import read_predictions, read_rows
from lengthwise.folder import Folder, Missing
from lengthwise.run.acquire import declare_finished, finished_attempt
from lengthwise.run.lease import mark_damaged
from lengthwise.run.run import attempts_of
from lengthwise.spec import SpecError
from lengthwise.study.bundle import Bundle
from lengthwise.study.store import Store
from lengthwise.training.checkpoint import is_complete


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong, and what was done or can be done about it."""

    where: str
    what: str
    repair: str
    """What `--repair` does."""


def check_store(store: Store, repair: bool) -> Iterator[Damage]:
    """Yield what is wrong in a store, after repairing it if that is asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # everything that would be warned of is listed here
        yield from _done(store, repair)
        yield from _unreadable(store.folder / "failed", "the record of a failure", repair)
        for key in (store.folder / "leases").names():
            yield from _unreadable(store.folder / "leases" / key, "a lease", repair)
        for key in (store.folder / "runs").names():
            yield from _attempts(store, key, repair)


def _done(store: Store, repair: bool) -> Iterator[Damage]:
    keys = sorted((store.folder / "done").names())
    damaged = dict(store.check(keys, every_file=True))
    for key, why in damaged.items():
        if repair:
            mark_damaged(store.folder, key, why)
        yield Damage(f"done/{key}", why, "set aside, so that the run is made again")
    for key, record in store.summaries(keys).items():
        if "files" not in record:
            attempt = store.folder / "runs" / key / str(record["attempt"])
            try:
                if repair:
                    _seal(store, key, attempt, record)
            except Damaged as error:
                mark_damaged(store.folder, key, str(error))
                yield Damage(f"done/{key}", str(error), "set aside, so that the run is made again")
                continue
            yield Damage(f"done/{key}", "there are no checksums: it is of an earlier version", "checksums are added")


def _seal(store: Store, key: str, attempt: Folder, record: dict[str, Any]) -> None:
    """Add the checksums of the files as they are, after looking whether rows and answers can be read."""
    names = ["run.json", "rows.parquet", "predictions.parquet"]
    _, files = finished_attempt(attempt) if attempt.exists("done") else ({}, {})
    try:
        content = {name: attempt.read(name) for name in names}
    except Missing as error:
        raise Damaged(str(error)) from error
    if parsed(content["run.json"], f"{attempt}/run.json").get("id") != key.partition("~")[0]:
        raise Damaged(f"{attempt}/run.json is that of another run")
    read_rows(content["rows.parquet"], f"{attempt}/rows.parquet")
    read_predictions(content["predictions.parquet"], f"{attempt}/predictions.parquet")
    files |= {f"{attempt.leaf}/{name}": checksum(data) for name, data in content.items()}
    (store.folder / "done").write(key, json.dumps(sealed({**record, "id": key, "files": files})))


def _unreadable(folder: Folder, what: str, repair: bool) -> Iterator[Damage]:
    for name in folder.names():
        try:
            read_sealed(folder, name)
        except Damaged as error:
            if repair:
                folder.remove(name)
            yield Damage(f"{folder.leaf}/{name}", f"{what} cannot be read: {error}", "removed")


def _attempts(store: Store, key: str, repair: bool) -> Iterator[Damage]:
    home = store.folder / "runs" / key
    for attempt in attempts_of(home):
        checkpoints = attempt / "checkpoints"
        for name in checkpoints.names():
            if not name.isdecimal() or not is_complete(checkpoints / name):
                if repair:
                    checkpoints.remove(name)
                where = f"runs/{key}/{attempt.leaf}/checkpoints/{name}"
                yield Damage(where, "the checkpoint is not complete", "removed; an earlier one is used")
    if "~" not in key and not (store.folder / "done").exists(key) and _intact(home):
        if repair:
            declare_finished(store.folder, key)
        yield Damage(f"runs/{key}", "it is finished, but not declared done", "declared done")


def _intact(home: Folder) -> bool:
    """Whether an attempt has finished, and its files are what it recorded."""
    for attempt in attempts_of(home):
        with suppress(Damaged):
            if attempt.exists("done") and finished_attempt(attempt):
                return True
    return False


def check_bundle(folder: Folder, repair: bool) -> Iterator[Damage]:
    """Yield what is wrong in a bundle; one of an earlier version gets checksums if that is asked for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bundle = Bundle(str(folder))
            bundle.lines, bundle.rows, bundle.wrong_answers_and_outcomes()
    except SpecError as error:
        yield Damage(folder.name, str(error), "nothing: export it again, or get another copy")
        return
    record = read_sealed(folder, "bundle.json")
    if "files" not in record:
        names = [
            name for name in ("rows.parquet", "runs.jsonl", "wrong.parquet", "kinds.parquet") if folder.exists(name)
        ]
        if repair:
            files = {name: checksum(folder.read(name)) for name in names}
            described = {"study": record.get("study"), "runs": record.get("runs"), "files": files}
            folder.write("bundle.json", json.dumps(sealed(described), indent=1) + "\n")
        yield Damage("bundle.json", "there are no checksums: it is of an earlier version", "checksums are added")
