"""What the engine costs: 870 runs that do nothing through a study's driver, beside 870 bare Ray tasks.

    python benchmarks/engine.py [--runs 870] [--workers 2] [--store DIR or s3://...]

A run that does nothing still takes a lease, writes run.json and rows.parquet, and finishes: every write is on the disk
before the next. The cluster is warm: both kinds are done once before they are timed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from lengthwise.checksums import checksum
from lengthwise.evaluation.rows import frame_to_parquet, rows_to_frame
from lengthwise.folder import Folder
from lengthwise.run.lease import Lease
from lengthwise.study.drive import Driver
from lengthwise.study.file import RunResources, StudyFile
from lengthwise.study.plan import Planned
from lengthwise.study.ray_executor import RayExecutor
from lengthwise.study.store import Store
from lengthwise.study.work import Job, Outcome


def nothing(job: Job) -> Outcome:
    """A run without the training: all that a run asks of the store, and no more."""
    began = time.perf_counter()
    lease = Lease.take(Folder(job.store), job.key)
    if lease is None:
        return Outcome(job.key, "already")
    with lease:
        files = {
            "run.json": json.dumps({"id": job.key, "options": dict(job.options), "token": job.key}).encode(),
            "rows.parquet": frame_to_parquet(rows_to_frame([])),
            "done": json.dumps({"validations": [], "token": job.key}).encode(),
        }
        for name, data in files.items():
            lease.folder.create(name, data)
        checksums = {f"{lease.number}/{name}": checksum(data) for name, data in files.items()}
        lease.finish({"seconds": 0.0, "validation": None}, checksums)
    return Outcome(job.key, "done", seconds=time.perf_counter() - began)


def bare(job: Job) -> Outcome:
    """The same task without a store."""
    return Outcome(job.key, "done")


class Clocked(Driver):
    """A driver that knows how long it took itself."""

    own = 0.0

    def _look(self) -> list[Any]:
        return self._timed(super()._look)

    def _begin(self, item: Any) -> None:  # noqa: ANN401
        self._timed(lambda: super(Clocked, self)._begin(item))

    def _ended(self, outcome: Outcome) -> bool:
        return self._timed(lambda: super(Clocked, self)._ended(outcome))

    def _timed(self, do: Callable[[], Any]) -> Any:  # noqa: ANN401
        began = time.perf_counter()
        try:
            return do()
        finally:
            self.own += time.perf_counter() - began


class Warm(RayExecutor):
    """A cluster that stays when the driver is done with it."""

    def close(self) -> None:
        self._refs.clear()


def study_of(runs: int) -> Planned:
    encodings = ["nope", "t5", "alibi", "rope", "sinusoidal"]
    return Planned(
        StudyFile.of(
            {
                "name": "nothing",
                "question": "What does the engine cost?",
                "base": {"task": "copy:variant=same", "model": "laptop", "training": "laptop:steps=1"},
                "vary": {"encoding": encodings},
                "seeds": runs // len(encodings),
            }
        )
    )


def bare_tasks(ray: Any, jobs: list[Job]) -> float:  # noqa: ANN401
    """Seconds of so many Ray tasks that do nothing, all given at once."""
    remote = ray.remote(max_calls=0)(bare).options(num_cpus=1, max_retries=0)
    began = time.perf_counter()
    ray.get([remote.remote(job) for job in jobs])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=870)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", default=None, help="a folder or s3://bucket/...; a temporary folder unless given")
    chosen = parser.parse_args()
    import ray

    from lengthwise.study.work import job_of

    engine = Warm(RunResources(), workers=chosen.workers, do=nothing)
    planned, warm = study_of(chosen.runs), study_of(20)
    plain, ours, inside, driver = [], [], [], []
    with tempfile.TemporaryDirectory() as there:
        where = chosen.store or there
        jobs = [job_of(item, planned.study, Folder(where)) for item in planned.items({})[0]]
        Driver(warm, Store(f"{where}/warm"), engine).run()
        bare_tasks(ray, jobs[:20])
        for number in range(chosen.rounds):
            plain.append(bare_tasks(ray, jobs))
            clocked = Clocked(planned, Store(f"{where}/{number}"), engine)
            began = time.perf_counter()
            tally = clocked.run()
            ours.append(time.perf_counter() - began)
            assert len(tally.done) == len(jobs) == tally.here
            inside.append(sum(tally.seconds) / chosen.workers)
            driver.append(clocked.own)
    ray.shutdown()
    many = len(jobs)
    found = {
        "runs": many,
        "bare task ms": 1e3 * median(plain) / many,
        "run ms": 1e3 * median(ours) / many,
        "more ms": 1e3 * (median(ours) - median(plain)) / many,
        "store ms": 1e3 * median(inside) / many,
        "driver ms": 1e3 * median(driver) / many,
    }
    found["ray and waiting ms"] = found["run ms"] - found["store ms"] - found["driver ms"]
    for name, value in found.items():
        print(f"{name:>20} {value:8.2f}")
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()
