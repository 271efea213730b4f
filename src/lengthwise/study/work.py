"""Do one job in this process under a lease: a run, or an evaluation of a run."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lengthwise.checksums import checksum
from lengthwise.encoding import ENCODINGS
from lengthwise.evaluation.cases import parse_lengths
from lengthwise.folder import Folder, Unavailable, without_paths
from lengthwise.loading import GIVEN, files_of
from lengthwise.model.config import TEMPERATURES
from lengthwise.run.identity import Plan
from lengthwise.run.lease import Failed, Held, Lease, LeaseLost, StaleLeaseDetector
from lengthwise.spec import Spec, SpecError, one_line, parse_specs, resolve
from lengthwise.study.file import FurtherEvaluation, StudyFile
from lengthwise.study.plan import Item

State = Literal["done", "already", "held", "failed", "stopped", "lost", "died", "unavailable"]


@dataclass(frozen=True)
class Job:
    """A job as plain data, to be sent to a worker."""

    key: str
    store: str
    options: Mapping[str, Any]
    """The plan's options, as in run.json."""
    threads: int = 1
    device: str = "auto"
    checkpoint_every: int | None = None
    evaluation: Mapping[str, Any] | None = None
    start: Mapping[str, Any] | None = None
    """The options of the run whose weights this one starts from."""
    allow: Sequence[str] = ()
    """Parameters that may be missing or left over in these weights."""
    again: bool = False
    """Run it even if it has failed before."""
    code: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Name of a class from outside the package → its file and those it imports, for machines without these files."""

    def line(self) -> str:
        """Return the job as one line of text; `Job.read` reads it."""
        code = {
            name: {file: b64encode(data).decode() for file, data in files.items()} for name, files in self.code.items()
        }
        return json.dumps({**vars(self), "code": code})

    @classmethod
    def read(cls, line: str) -> Job:
        """Return the job that `line` wrote."""
        told = json.loads(line)
        code = {
            name: {file: b64decode(data) for file, data in files.items()} for name, files in told.pop("code").items()
        }
        return cls(**told, code=code)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job."""

    key: str
    state: State
    why: str = ""
    seconds: float = 0.0


def job_of(item: Item, study: StudyFile, store: Folder, retry_failed: bool = False, device: str = "auto") -> Job:
    """Return the job of an item, to be done on a device; a study that asks for GPUs is done on one, or not at all."""
    if study.resources.gpus and device == "auto":
        device = "accelerator"
    evaluation = None if item.evaluation is None else item.evaluation.model_dump(exclude_defaults=True)
    where = str(store.local.resolve()) if store.local is not None else str(store)
    return Job(
        item.key,
        where,
        item.plan.options(),
        threads=study.resources.threads,
        device=device,
        checkpoint_every=study.checkpoint_every,
        evaluation=evaluation,
        start=None if item.start is None else item.start.options(),
        allow=study.then[item.point.stage - 1].allow if item.start is not None else [],
        again=retry_failed,
        code=_code(item),
    )


def do_job(job: Job, stale_lease_detector: StaleLeaseDetector | None = None) -> Outcome:
    """Do the job unless it is done or another owner holds its lease; errors become an `Outcome`, never raised."""
    began = time.monotonic()

    def ends(state: State, why: str = "") -> Outcome:
        return Outcome(job.key, state, one_line(why)[:500], time.monotonic() - began)

    store = Folder(job.store)
    try:
        do = _train if job.evaluation is None else _evaluate
        return ends("done" if do(job, store, stale_lease_detector) else "already")
    except Held as error:
        return ends("held", str(error))
    except LeaseLost as error:
        return ends("lost", str(error))
    except Failed as error:
        return ends("failed", str(error))
    except Unavailable as error:
        return ends("unavailable", str(error))
    except (SystemExit, KeyboardInterrupt):
        return ends("stopped")
    except Exception as error:  # noqa: BLE001  one run's failure does not end the study
        return ends("failed", str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}")


def _train(job: Job, store: Folder, watch: StaleLeaseDetector | None) -> bool:
    import torch

    from lengthwise.device import Compute
    from lengthwise.run.execute import execute
    from lengthwise.run.run import Run

    torch.set_num_threads(job.threads)
    plan = Plan.read(_here(job, job.options))
    if plan.id != job.key:
        raise SpecError(
            f"run {job.key} would be {plan.id} here: this worker has another version of lengthwise, or other code or "
            "data from outside, than the driver"
        )

    def take() -> Lease | None:
        return Lease.take(store, job.key, watch, job.again)

    start_run = None
    if job.start is not None:
        before = Plan.read(_here(job, job.start))  # the driver's, not what the store says
        start_run = Run.open(str(store / "runs" / before.id), known_plan=before)
    how: dict[str, Any] = {"compute": Compute(job.device), "checkpoint_every": job.checkpoint_every, "quiet": True}
    return execute(plan, store, take, start_run, job.allow, **how).fresh


def _evaluate(job: Job, store: Folder, watch: StaleLeaseDetector | None) -> bool:
    import torch

    from lengthwise.evaluation.rows import frame_to_parquet
    from lengthwise.run.run import Run

    torch.set_num_threads(job.threads)
    lease, began = Lease.take(store, job.key, watch, job.again), time.monotonic()
    if lease is None:
        return False
    with lease:
        try:
            plan = Plan.read(_here(job, job.options))  # the driver's, not what the store says
            run = Run.open(str(store / "runs" / job.key.partition("~")[0]), known_plan=plan)
            asked = FurtherEvaluation.model_validate(_here(job, job.evaluation or {}))
            record = {**run.run_json, "of": run.id, "evaluation": job.evaluation}
            lease.folder.create("run.json", json.dumps(without_paths(record)))
            found = run.evaluate(
                None if asked.lengths is None else parse_lengths(asked.lengths),
                **asked.model_dump(exclude={"lengths", "of"}),
                device=job.device,
            )
            tables = {"rows.parquet": found.rows, "predictions.parquet": found.predictions}
            written = {name: frame_to_parquet(table) for name, table in tables.items()}
            for name, data in written.items():
                lease.folder.write(name, data)
            written["run.json"] = lease.folder.read("run.json")
            files = {f"{lease.number}/{name}": checksum(data) for name, data in written.items()}
            lease.finish({"seconds": round(time.monotonic() - began, 3)}, files)
        except (LeaseLost, SystemExit, KeyboardInterrupt, Unavailable):
            with suppress(SpecError):
                lease.release("stopped")
            raise
        except Exception as error:
            with suppress(SpecError):
                lease.folder.write("error.txt", traceback.format_exc())
                lease.fail(str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}")
            raise
    return True


# --- code from outside -----------------------------------------------------------------------------------------------


def _code(item: Item) -> dict[str, dict[str, bytes]]:
    """Return the source files of an item's classes from outside the package, to send them with the job."""
    found: dict[str, dict[str, bytes]] = {}
    named = item.plan.outside_classes()
    named += [] if item.start is None else item.start.outside_classes()
    for spec in parse_specs(item.evaluation.encoding or "") if item.evaluation is not None else []:
        if spec.name not in ENCODINGS:
            named.append((resolve("encoding", ENCODINGS, spec.name), spec))
    if item.evaluation is not None and item.evaluation.temperature:
        temperature = Spec.of(item.evaluation.temperature)
        if temperature.name not in TEMPERATURES:
            named.append((resolve("temperature", TEMPERATURES, temperature.name), temperature))
    for cls, spec in named:
        where = spec.name.rpartition(":")[0]
        if where.endswith(".py") or where == "__main__":
            found[spec.name] = files_of(cls)
    return found


def _here(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's options; classes whose file is missing or different here are loaded from the job's files."""
    text = json.dumps(dict(options))
    for name, files in sorted(job.code.items(), key=lambda one: -len(one[0])):  # Mine2 before Mine
        where, _, cls = name.rpartition(":")
        own, here = next(iter(files)), Path(where)
        if name not in GIVEN and not (here.is_file() and here.read_bytes() == files[own]):
            text = text.replace(json.dumps(name)[1:-1], json.dumps(f"{_unpacked(files) / own}:{cls}")[1:-1])
    return json.loads(text)


def _unpacked(files: Mapping[str, bytes]) -> Path:
    """Write these files to a private temporary folder, once for each process, and return it.

    Nobody else can write there: a folder with a name that can be guessed could have been filled by another user.
    """
    mark = hashlib.blake2b(digest_size=8)
    for name, data in sorted(files.items()):
        mark.update(name.encode() + b"\0" + data)
    if mark.hexdigest() not in _UNPACKED:
        held = tempfile.TemporaryDirectory(prefix="lengthwise-code-")  # mode 0700, removed when the process ends
        for name, data in files.items():
            Folder(held.name).write(name, data)
        _UNPACKED[mark.hexdigest()] = held
    return Path(_UNPACKED[mark.hexdigest()].name)


_UNPACKED: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""Hash of the files of a class → the folder that they were unpacked to."""
