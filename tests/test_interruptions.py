"""A command that is stopped at any moment goes on when it is started again, and ends with the same bits."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.study.conftest import TINY

TRAINING = "laptop:steps=120:batch_size=32:validations=2:validation_examples=8"
MODEL = TINY["base"]["model"]
STUDY = {**TINY, "base": {**TINY["base"], "training": TRAINING}, "seeds": 1, "checkpoint_every": 20}
COMMANDS = {
    "train": ["train", TINY["base"]["task"], "--model", MODEL, "--training", TRAINING, "--checkpoint-every", "20"],
    "compare": [
        *("compare", TINY["base"]["task"], "--encodings", "nope,alibi", "--seeds", "1"),
        *("--model", MODEL, "--training", TRAINING, "--workers", "2"),
    ],
    "inline": ["study", "run", "tiny.yaml", "--inline"],
    "processes": ["study", "run", "tiny.yaml", "--no-ray", "--workers", "2"],
    "ray": ["study", "run", "tiny.yaml", "--workers", "2"],
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = {0: "finished", 75: "saved", 130: "Ctrl-C", **{-one: "before it began or in the report" for one in SIGNALS}}


def started(home: Path, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lengthwise", *command, "--quiet"],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # under nohup it would be ignored
        env={**os.environ, "LENGTHWISE_BEAT": "1"},
    )


def ended(process: subprocess.Popen[str], seconds: float = 200) -> tuple[int, str]:
    try:
        return process.returncode, process.communicate(timeout=seconds)[1]
    finally:
        process.kill()
        process.wait()


def left(store: Path) -> dict[str, dict[str, bytes]]:
    """What each finished run has left."""
    found = {}
    for done in store.glob("done/*"):
        attempt = store / "runs" / done.name / str(json.loads(done.read_text())["attempt"])
        found[done.name] = {
            name: (attempt / name).read_bytes() for name in ("rows.parquet", "predictions.parquet", "model.safetensors")
        }
    return found


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "moments"),
    [
        pytest.param("train", 2, marks=pytest.mark.slow),
        *(pytest.param(name, 30, marks=pytest.mark.evidence) for name in COMMANDS),
    ],
)
def test_a_command_stopped_at_a_random_moment_ends_with_the_same_bits(name, moments, tmp_path, figure):
    if name == "ray":
        pytest.importorskip("ray")
    home = tmp_path / "whole"
    home.mkdir()
    (home / "tiny.yaml").write_text(json.dumps(STUDY))
    began = time.monotonic()
    process = started(home, COMMANDS[name])
    told = ended(process)[1]
    assert process.returncode == 0, told
    seconds, whole = time.monotonic() - began, left(home / "lengthwise-store")
    assert len(whole) == (1 if name == "train" else 2)
    rng, codes = random.Random(name), Counter()
    for number in range(moments):
        here = tmp_path / f"moment-{number}"
        here.mkdir()
        shutil.copy(home / "tiny.yaml", here)
        sent, moment = SIGNALS[number % 3], rng.uniform(0, seconds)
        process = started(here, COMMANDS[name])
        time.sleep(moment)
        if sent == signal.SIGTERM:
            process.send_signal(sent)
        elif process.poll() is None:  # Ctrl-C and a closed terminal reach every process of the terminal
            os.killpg(process.pid, sent)
        told = ended(process)[1]
        words = f"{name}, {sent.name} after {moment:.1f} of {seconds:.1f} s: exit code {process.returncode}"
        assert process.returncode in STOPPED and "Traceback" not in told, f"{words}\n{told}"
        codes[sent.name, process.returncode] += 1
        process = started(here, COMMANDS[name])
        told = ended(process)[1]
        assert process.returncode == 0, f"{words}; then {process.returncode}\n{told}"
        assert left(here / "lengthwise-store") == whole, words
        shutil.rmtree(here)
    said = ", ".join(f"{one} → {code}: {count}" for (one, code), count in sorted(codes.items()))
    figure(f"{name}, {moments} moments in {seconds:.1f} s ({said}): bit-equal after starting again")
