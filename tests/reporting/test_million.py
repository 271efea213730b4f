"""A million rows: every verb that reads results, within a minute and 2 GB."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from lengthwise.checksums import checksum, sealed
from lengthwise.evaluation.rows import PREDICTIONS, frame_to_parquet, rows_to_frame
from lengthwise.study.bundle import outcome_kinds, sample_wrong_answers
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned

SECONDS, BYTES, EXAMPLES = 60, 2 * 2**30, 64
STUDY = {
    "name": "million",
    "question": "Is a million rows too many?",
    "base": {"model": "laptop", "training": "laptop:steps=10"},
    "vary": {
        "task": [
            "copy:longest=20:variant=same",
            "copy:longest=20:variant=random",
            "reverse:longest=20",
            "count:longest=20",
        ],
        "encoding": [
            "nope",
            "t5",
            "alibi",
            "rope",
            "rope:fraction=0.25",
            "sinusoidal",
            "learned",
            "kerple",
            "fire",
            "shaw",
        ],
    },
    "seeds": 210,
}
CHECKPOINTS = ("last", "best", "50%")


def rows_and_answers(number: int, key: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What a run might have found: it fails from some length on."""
    rows, answers = [], []
    for checkpoint in CHECKPOINTS:
        for length in range(1, 41):
            right = EXAMPLES if length <= 20 + number % 17 else number % 7
            split = "test_seen" if length <= 20 else "test_unseen"
            known = {"evaluation": "as trained", "checkpoint": checkpoint, "split": split, "length": length}
            counts = {
                "examples": EXAMPLES,
                "correct": right,
                "wrong": EXAMPLES - right,
                "early": 0,
                "late": 0,
                "cut": 0,
            }
            rows.append({"run": key, **known, **counts, "seen": length <= 20, "chance": 0.0, "loss": 1.0, "targets": 9})
            if right:
                answers.append({**known, "first": 0, "last": right - 1, "kind": "right"})
            if right < EXAMPLES:
                answers.append(
                    {**known, "first": right, "last": EXAMPLES - 1, "kind": "wrong", "prompt": "a", "said": "b"}
                )
    schema = {name: getattr(pl, kind) for name, kind in PREDICTIONS.items()}
    return rows_to_frame(rows), pl.DataFrame(answers, schema=schema)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A store and a bundle with a million rows."""
    place = tmp_path_factory.mktemp("million")
    (place / "million.yaml").write_text(json.dumps(STUDY))
    items = Planned(StudyFile.of(STUDY)).items({})[0]
    lines, tables, wrong, kinds = [], [], [], []
    for number, item in enumerate(items):
        rows, answers = rows_and_answers(number, item.key)
        attempt = place / "store" / "runs" / item.key / "1"
        attempt.mkdir(parents=True)
        run = {"id": item.key, "options": item.plan.options(), "identity": {}, "recorded": {"threads": 1}}
        ends = {"checkpoints": {"last": 10}, "kept": {}, "checks": {}, "validations": []}
        log = "".join(json.dumps({"step": step, "loss": 3 / step}) + "\n" for step in range(1, 11))
        content = {
            "run.json": json.dumps(run).encode(),
            "rows.parquet": frame_to_parquet(rows),
            "predictions.parquet": frame_to_parquet(answers),
            "train.jsonl": log.encode(),
        }
        files = {f"1/{name}": checksum(data) for name, data in content.items()}
        content["done"] = json.dumps(sealed({**ends, "id": item.key, "files": files})).encode()
        files["1/done"] = checksum(content["done"])
        for name, data in content.items():
            (attempt / name).write_bytes(data)
        done = sealed(
            {"attempt": 1, "seconds": 9.0, "validation": None, "token": item.key, "id": item.key, "files": files}
        )
        (place / "store" / "done").mkdir(exist_ok=True)
        (place / "store" / "done" / item.key).write_text(json.dumps(done))
        lines.append(
            json.dumps({"key": item.key, "done": done, "run": run, "ends": ends, "log": [[1, 3.0], [10, 0.3]]})
        )
        (
            tables.append(rows),
            wrong.append(sample_wrong_answers(answers.with_columns(run=pl.lit(item.key)))),
            kinds.append(outcome_kinds(answers.with_columns(run=pl.lit(item.key)))),
        )
    bundle = {"rows.parquet": frame_to_parquet(pl.concat(tables)), "runs.jsonl": ("\n".join(lines) + "\n").encode()}
    bundle |= {"wrong.parquet": frame_to_parquet(pl.concat(wrong)), "kinds.parquet": frame_to_parquet(pl.concat(kinds))}
    (place / "bundle").mkdir()
    for name, data in bundle.items():
        (place / "bundle" / name).write_bytes(data)
    described = {
        "study": "million",
        "runs": len(items),
        "files": {name: checksum(data) for name, data in bundle.items()},
    }
    (place / "bundle" / "bundle.json").write_text(json.dumps(sealed(described)))
    assert sum(table.height for table in tables) >= 1_000_000
    return place


VERBS = {
    "report of a store": ["study", "report", "million.yaml", "--store", "store"],
    "report of a bundle": ["study", "report", "million.yaml", "--store", "none", "--with", "bundle"],
    "report as text": ["study", "report", "million.yaml", "--store", "none", "--with", "bundle", "--text"],
    "report for a paper": [
        "study",
        "report",
        "million.yaml",
        "--store",
        "none",
        "--with",
        "bundle",
        "--latex",
        "--pdf",
    ],
    "rows of a store": ["study", "rows", "million.yaml", "--store", "store"],
    "rows of a bundle": ["study", "rows", "million.yaml", "--store", "none", "--with", "bundle"],
    "status": ["study", "status", "million.yaml", "--store", "store"],
    "plan": ["study", "plan", "million.yaml", "--store", "store"],
    "export": ["study", "export", "store", "--to", "out"],
    "merge": ["study", "export", "store", "--to", "out2", "--with", "bundle"],
    "check against": ["study", "check", "million.yaml", "--against", "bundle"],
    "fsck of a store": ["study", "fsck", "store"],
    "fsck of a bundle": ["study", "fsck", "bundle"],
    "claims": ["claims", "--store", "store", "--with", "bundle"],
}


@pytest.mark.evidence
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verb", VERBS)
def test_a_million_rows_take_less_than_a_minute_and_2_gb(home: Path, verb, figure):
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "lengthwise", *VERBS[verb]], cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    told = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, size = time.monotonic() - began, used.ru_maxrss * 1024
    figure(f"a million rows, {verb}: {seconds:.1f} s, {size / 2**30:.2f} GiB")
    assert process.returncode == 0, told[-2000:]
    assert seconds < SECONDS and size < BYTES
