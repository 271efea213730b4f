"""Text to token shards: a Ray Data job where Ray is installed, worker processes otherwise.

A shard is made by one job from a fixed list of parts, so it is the same whoever makes it. What is finished is never
made again: a killed worker loses the shard it was working on, a killed driver nothing that was finished.
"""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from lengthwise.corpora.documents import SPLITS, Part, find_parts, grouped, split_of
from lengthwise.corpora.python_code import list_python_code
from lengthwise.corpora.shards import CORPUS, Corpus, shard_record, write_corpus, write_shard
from lengthwise.corpora.tokens import FILE, Tokenizer
from lengthwise.folder import Folder
from lengthwise.progress import Say
from lengthwise.spec import SpecError, digest, one_line

PYTHON, LIST = "python-code", "files.parquet"
"""The source that is the Python code of this machine, and the list of its files that is written for it."""
SAMPLE = 20_000_000
"""Characters of training documents that a tokenizer is trained on."""
_TOGETHER = 64
"""Documents that are tokenized in one call."""
_TRIES = 3
"""How often a job is given to a worker before preparing fails."""


@dataclass(frozen=True)
class ShardJob:
    """One shard to make, as plain data that can be sent to a worker."""

    number: int
    parts: tuple[Part, ...]
    to: str
    tokenizer: str
    """The hash of the corpus's tokenizer."""
    fields: tuple[str, ...] | None
    validation: float
    test: float
    split_by_folder: bool

    @cached_property
    def digest(self) -> str:
        """A hash of everything that decides the content of the shard, but not of where it is."""
        parts = [(part.key, part.size, part.version, part.rows, part.split) for part in self.parts]
        shares = (self.fields, self.validation, self.test, self.split_by_folder)
        return f"{digest('shard', parts, self.tokenizer, shares, bits=64):016x}"

    def line(self) -> str:
        """Return the job as one line of text; `ShardJob.read` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> ShardJob:
        """Return the job that `line` wrote."""
        told: dict[str, Any] = json.loads(line)
        for part in told["parts"]:
            part["rows"] = part["rows"] and tuple(part["rows"])
        told["parts"] = tuple(Part(**part) for part in told["parts"])
        told["fields"] = told["fields"] and tuple(told["fields"])
        return cls(**told)


def make_shard(job: ShardJob) -> int:
    """Tokenize the documents of a job and write its shard, unless it is there; return its number of tokens."""
    folder = Folder(job.to)
    if shard_record(folder, job.number, job.digest) is None:
        tokenizer = _tokenizer(job.to, job.tokenizer)
        found: dict[str, list[tuple[str, np.ndarray]]] = {}
        waiting, characters = list[tuple[str, str, str]](), 0

        def encode() -> None:
            ids = tokenizer.encode([text for _, _, text in waiting])
            for (split, key, _), own in zip(waiting, ids, strict=True):
                found.setdefault(split, []).append((key, own))
            waiting.clear()

        for part in job.parts:
            for document in part.documents(job.fields):
                split = part.split or split_of(document.key, job.validation, job.test, job.split_by_folder)
                waiting.append((split, document.key, document.text))
                characters += len(document.text)
                if len(waiting) == _TOGETHER:
                    encode()
        if waiting:
            encode()
        write_shard(folder, job.number, job.digest, {name: found[name] for name in SPLITS if name in found}, characters)
    record = shard_record(folder, job.number, job.digest)
    assert record is not None
    return sum(split["tokens"] for split in record["splits"].values())


@lru_cache(maxsize=4)
def _tokenizer(place: str, digest: str) -> Tokenizer:
    found = Tokenizer(Folder(place).read(FILE))
    if found.digest != digest:
        raise SpecError(f"{place}/{FILE} is another tokenizer than the one that this corpus was begun with")
    return found


@dataclass(frozen=True)
class Preparation:
    """A corpus that was prepared, and how fast."""

    corpus: Corpus
    new_shards: int
    """Shards that were made now; the others were there."""
    tokens: int
    """Tokens of the new shards."""
    seconds: float
    """The time that the new shards took, without training the tokenizer."""


def prepare(
    source: str,
    to: str,
    *,
    tokenizer: str | None = None,
    vocabulary: int = 4096,
    suffixes: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    validation: float = 0.01,
    test: float = 0.05,
    split_by_folder: bool = False,
    shard_size: int = 64_000_000,
    most_bytes: int | None = None,
    workers: int | None = None,
    ray: bool | None = None,
    say: Say,
) -> Preparation:
    """Prepare a corpus, or what is missing of it."""
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise SpecError(f"validation and test are shares that leave some for training, not {validation} and {test}")
    if vocabulary < 258:
        raise SpecError(f"a vocabulary has at least 258 tokens (256 bytes, start and mask), not {vocabulary}")
    say("listing documents")
    folder = Folder(to)
    if source == PYTHON:
        source = _list_of_python_code(folder, most_bytes)
    parts = find_parts(source, suffixes)
    used = _given_or_trained(folder, parts, tokenizer, vocabulary, fields, (validation, test, split_by_folder), say)
    wanted = None if fields is None else tuple(fields)
    jobs = [
        ShardJob(number, tuple(group), to, used.digest, wanted, validation, test, split_by_folder)
        for number, group in enumerate(grouped(parts, shard_size))
    ]
    missing = [job for job in jobs if shard_record(folder, job.number, job.digest) is None]
    began, tokens = time.monotonic(), 0
    for done, count in enumerate(_made(missing, workers, ray), 1):
        tokens += count
        speed = tokens / (time.monotonic() - began)
        say(f"{len(jobs) - len(missing) + done} of {len(jobs)} shards, {speed:,.0f} tokens per second")
    seconds = time.monotonic() - began
    write_corpus(folder, [job.digest for job in jobs], {"tokenizer": used.digest, "vocabulary": len(used)})
    return Preparation(Corpus(folder), len(missing), tokens, seconds)


def _list_of_python_code(folder: Folder, most_bytes: int | None) -> str:
    """Write the list of the Python files of this machine into the corpus's folder, unless there is one."""
    if folder.local is None:
        raise SpecError(f"the list of Python files is written to a local folder, not {folder}; prepare it here first")
    if not folder.exists(LIST):
        listed = io.BytesIO()
        list_python_code(most_bytes).write_parquet(listed, compression="zstd", compression_level=19)
        folder.write(LIST, listed.getvalue())
    return str(folder.local / LIST)


def _given_or_trained(
    folder: Folder,
    parts: Sequence[Part],
    given: str | None,
    vocabulary: int,
    fields: Sequence[str] | None,
    shares: tuple[float, float, bool],
    say: Say,
) -> Tokenizer:
    """Return the corpus's tokenizer: the one that is there, the given one, or one that is trained now."""
    read = None if fields is None else list(fields)
    recipe = digest([(part.key, part.version) for part in parts], vocabulary, shares, read, bits=64)
    used = None if given is None else Tokenizer.read(given)
    told = f"trained {recipe:016x}" if used is None else f"given {used.digest}"
    if folder.exists(FILE) and folder.exists(f"{FILE}.made"):
        if folder.read(f"{FILE}.made").decode() == told:
            return Tokenizer(folder.read(FILE))
        if folder.exists(CORPUS):
            raise SpecError(f"{folder} is a corpus with another tokenizer or other documents; give another folder")
    if used is None:
        say("training a tokenizer")
        used = Tokenizer.train(_sample(parts, fields, shares), vocabulary)
    folder.write(FILE, used.data)
    folder.write(f"{FILE}.made", told)
    return used


def _sample(parts: Sequence[Part], fields: Sequence[str] | None, shares: tuple[float, float, bool]) -> Iterator[str]:
    """The texts of training documents in the order of a hash, up to so many characters."""
    left = SAMPLE
    for part in sorted(parts, key=lambda part: digest("sample", part.key)):
        for document in part.documents(fields):
            if (part.split or split_of(document.key, *shares)) == "train":
                yield document.text
                left -= len(document.text)
                if left <= 0:
                    return


# --- who does it -----------------------------------------------------------------------------------------------------


def _made(jobs: Sequence[ShardJob], workers: int | None, ray: bool | None) -> Iterator[int]:
    """Do the jobs, and yield the tokens of each when it is finished."""
    workers = min(workers or os.cpu_count() or 1, max(len(jobs), 1))
    there = importlib.util.find_spec("ray") is not None and importlib.util.find_spec("pyarrow") is not None
    if ray and not there:
        raise SpecError("Ray Data is not installed: pip install 'lengthwise[corpora]', or leave --ray out")
    if not jobs:
        return
    if workers == 1 and not ray:
        yield from map(make_shard, jobs)
    else:
        yield from _with_ray(jobs, workers) if ray or (ray is None and there) else _in_processes(jobs, workers)


def _with_ray(jobs: Sequence[ShardJob], workers: int) -> Iterator[int]:
    """Do the jobs as tasks of a Ray Data pipeline; one whose worker or node dies is done again by another."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.data
    from ray.data import DataContext

    started = not ray.is_initialized()
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not os.environ.get("RAY_ADDRESS"):  # a cluster of its own
        how |= {"address": "local", "num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        how["object_store_memory"] = 200_000_000
    if started:
        ray.init(**how)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    DataContext.get_current().enable_progress_bars = False
    try:
        lines = ray.data.from_items([{"job": job.line()} for job in jobs], override_num_blocks=len(jobs))
        done = lines.map(_ray_row, compute=ray.data.TaskPoolStrategy(size=workers))
        for row in done.iter_rows():
            yield row["tokens"]
    except (ray.exceptions.RayTaskError, ray.exceptions.RayError) as error:
        raise SpecError(f"preparing failed: {_reason(str(error))}") from error
    finally:
        if started:
            ray.shutdown()


def _ray_row(row: dict[str, str]) -> dict[str, int]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return {"tokens": make_shard(ShardJob.read(row["job"]))}


def _reason(told: str) -> str:
    """The last line of a worker's traceback."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    named = [line for line in lines if "SpecError:" in line or "Error:" in line]
    return one_line((named or lines or ["no reason given"])[-1].rpartition("SpecError: ")[2])[:300]


def _in_processes(jobs: Sequence[ShardJob], workers: int) -> Iterator[int]:
    """Do the jobs in processes, each started by a thread; one whose process dies is done again, a few times."""
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[int]] = {pool.submit(_in_process, job) for job in jobs}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        finally:
            for one in running:
                one.cancel()


def _in_process(job: ShardJob) -> int:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    told = ""
    for _ in range(_TRIES):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "lengthwise.corpora.prepare"],
            input=job.line(),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if done.returncode == 0:
            return int(done.stdout)
        told = done.stderr.strip() or f"its process ended with signal {-done.returncode}"
        if done.returncode == SpecError.exit_code:
            break
    raise SpecError(f"shard {job.number} cannot be made: {_reason(told)}")


if __name__ == "__main__":
    try:
        print(make_shard(ShardJob.read(sys.stdin.read())))  # noqa: T201
    except SpecError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(SpecError.exit_code)
