"""Runs from the command line: what they print, what they draw, and what a user may do wrong."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from lengthwise.cli import main

MODEL = "laptop:width=32:heads=2:feed_forward_width=64"
TRAINING = "laptop:steps=30:batch_size=16:warmup=5:validations=2:validation_examples=40"
FAST = ["--model", MODEL, "--training", TRAINING, "--threads", "1", "--quiet"]
TASK = "copy:variant=same:alphabet=120:longest=4"


def cli(*arguments, cwd, columns="120"):
    """The command line in this process: torch is imported once, not for every command."""
    out, err = io.StringIO(), io.StringIO()
    before, argv = Path.cwd(), sys.argv
    try:
        os.chdir(cwd)
        sys.argv = ["lengthwise", *arguments]
        with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", columns)
            try:
                main()
                code = 0
            except SystemExit as left:
                code = left.code or 0
    finally:
        os.chdir(before)
        sys.argv = argv
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with one run in it."""
    there = tmp_path_factory.mktemp("user")
    command = [sys.executable, "-m", "lengthwise", "train", TASK, "--encoding", "rope", *FAST]
    done = subprocess.run(command, cwd=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return there


def run_of(place):
    (folder,) = (place / "lengthwise-store" / "runs").glob("copy-rope-s0-*")
    return folder.name


@pytest.mark.slow
def test_train_says_what_was_seen_and_a_second_time_that_it_is_done(place):
    again = cli("train", TASK, "--encoding", "rope", *FAST, cwd=place)
    assert again.returncode == 0
    assert f"run {run_of(place)} is done already" in again.stdout
    assert "RoPE on copy" in again.stdout and "reach not learned" in again.stdout
    assert "|" in again.stdout and "not learned" in again.stdout
    told = json.loads(cli("train", TASK, "--encoding", "rope", *FAST, "--json", cwd=place).stdout)
    assert told["run"] == run_of(place) and told["checkpoints"]["last"] == 30 and len(told["curve"]) == 11


@pytest.mark.slow
def test_compare_trains_draws_and_tells(place):
    arguments = [
        "compare",
        TASK,
        "--encodings",
        "rope,nope",
        "--seeds",
        "2",
        *FAST,
        "--to",
        "figures",
        "--workers",
        "2",
    ]
    done = cli(*arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Nothing can be said about longer lengths: no encoding learned copy same up to 4 ")
    assert "RoPE (0 of 2 seeds learned" in done.stdout and "page: figures/compare-copy.html" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120
    for name in ("svg", "png", "json"):
        assert (place / "figures" / f"compare-copy.{name}").stat().st_size > 1000
    svg = (place / "figures" / "compare-copy.svg").read_text()
    for words in ("trained up to 4", "length (symbols)", "exact match", "RoPE", "NoPE"):
        assert words in svg
    page = (place / "figures" / "compare-copy.html").read_text()
    again = re.search(r"lengthwise compare .* --model laptop:\S*width=32\S* --training laptop:\S*steps=30\S*", page)
    assert again is not None, "the command that makes it again is whole"
    assert "no encoding learned it" in page and "furthest: " not in page
    # One line for every seed and one for the median, of each encoding; drawn again, it is the same file.
    told = json.loads((place / "figures" / "compare-copy.json").read_text())
    assert {name: len(seeds) for name, seeds in told["curves"].items()} == {"rope": 2, "nope": 2}
    again = cli(*arguments, cwd=place)
    assert (place / "figures" / "compare-copy.svg").read_text() == svg and again.stdout == done.stdout


@pytest.mark.slow
def test_runs_made_together_are_those_made_one_after_the_other(place, tmp_path):
    arguments = ["compare", TASK, "--encodings", "rope,nope", "--seeds", "2", *FAST, "--to", str(tmp_path)]
    alone = cli(*arguments, "--store", str(tmp_path / "store"), "--workers", "1", cwd=place)
    assert alone.returncode == 0, alone.stderr
    together = cli(*arguments, cwd=place)
    assert together.stdout == alone.stdout


@pytest.mark.slow
def test_evaluate_takes_lengths_an_encoding_and_a_scale(place):
    run = run_of(place)
    rows = json.loads(cli("evaluate", run, "--lengths", "2,5-7", "--json", cwd=place).stdout)
    assert [row["length"] for row in rows] == [2, 5, 6, 7] and {row["evaluation"] for row in rows} == {"as trained"}
    other = cli("evaluate", run, "--encoding", "nope", "--temperature", "log-n", "--checkpoint", "best", cwd=place)
    assert "encoding=nope temperature=log-n:trained=10, best: reach" in other.stdout
    assert "--allow encodings.0.*" in cli("evaluate", run, "--encoding", "t5", cwd=place).stderr
    allowed = cli("evaluate", run, "--encoding", "t5", "--allow", "encodings.*", "--lengths", "3", cwd=place)
    assert allowed.returncode == 0


def test_ask_shows_where_answers_part(place):
    done = cli("ask", "copy-rope-s0", "a a a", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "asked  a a a [SEP]  (length 3, as in training)" in done.stdout and "right  a a a" in done.stdout
    told = json.loads(cli("ask", "copy-rope-s0", "aaaaaa", "--json", cwd=place).stdout)
    assert told["right"] == ["a"] * 6 and told["where"] == "length 6, trained up to 4"
    assert told["correct"] == (told["said"] == told["right"]) == (told["first_difference"] is None)


@pytest.mark.slow
def test_new_then_verify_then_compare(place):
    assert cli("new", "encoding", "mine", cwd=place).returncode == 0
    verified = cli("verify", "mine.py:Mine", cwd=place)
    assert verified.returncode == 0 and "mine.py:Mine conforms" in verified.stdout
    done = cli("compare", TASK, "--encodings", "mine.py:Mine,nope", "--seeds", "1", *FAST, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "Mine" in done.stdout and "There is one seed: no seed interval." in done.stdout
    assert cli("new", "task", "majority", cwd=place).returncode == 0
    done = cli("compare", "majority.py:Majority", "--encodings", "nope", "--seeds", "1", *FAST, cwd=place)
    assert done.returncode == 0, done.stderr
    tests = [sys.executable, "-m", "pytest", "-q", "test_mine.py", "test_majority.py"]
    assert subprocess.run(tests, cwd=place, check=False, capture_output=True).returncode == 0


BROKEN = "from lengthwise.encoding.base import Encoding\n\n\nclass Mine(Encoding)\n    pass\n"
RAISES = """from lengthwise.encoding.base import Encoding


class Mine(Encoding):
    def by_distance(self, distances_N):
        return distances_N.nonsense()
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", TASK, "--encoding", "rope:tehta=1"], "has no option 'tehta'. Did you mean 'theta'?"),
        (["train", "copyy"], "unknown task 'copyy'. Did you mean 'copy'?"),
        (["train", TASK, "--training", "laptop:stepz=1"], "has no option 'stepz'. Did you mean 'steps'?"),
        (["train", TASK, "--model", "laptop:widht=1"], "has no option 'widht'. Did you mean 'width'?"),
        (["train", TASK, "--stream", "order"], "a stream is written name=seed"),
        (["train", TASK, "--stream", "ordr=1"], "there is no random stream 'ordr'"),
        (["train", "sort:longest=1"], "sort has no length 1 (items) to train up to; write longest=2"),
        (["train", TASK, "--encoding", "learned:limit=8"], "'learned:limit=8' has positions up to 7"),
        (["train", TASK, "--encoding", "broken.py:Mine"], "line 4: expected ':': class Mine(Encoding)"),
        (["train", TASK, "--encoding", "raises.py:Mine", *FAST], "line 6"),
        (["train", TASK, "--start", "nobody"], "there is no run 'nobody'"),
        (["train", TASK, "--logger", "wandbb", *FAST], "there is no logger 'wandbb'. Did you mean 'wandb'?"),
        (["train", TASK, "--store", "afile/store", *FAST], "cannot write afile/store"),
        (["train", TASK, "--store", "nosuch://x", *FAST], "'nosuch://x' cannot be opened"),
        (["compare", TASK, "--encodings", ""], "name encodings"),
        (["compare", TASK, "--encodings", "nope,ropee"], "unknown encoding 'ropee'. Did you mean 'rope'?"),
        (
            ["compare", TASK, "--encodings", "rope", "--seeds", "1", *FAST, "--to", "afile"],
            "cannot write afile/compare-copy.svg",
        ),
        (["evaluate", "copy-rope-s0", "--lengths", "0"], "copy has no length 0 (symbols); the nearest is 1"),
        (["evaluate", "copy-rope-s0", "--lengths", "a-b"], "lengths are written 8,16,32, 17-40 or 64..4096:x2"),
        (["evaluate", "copy-rope-s0", "--checkpoint", "first"], "has no checkpoint 'first'"),
        (["evaluate", "nothing"], "there is no run 'nothing'"),
        (["evaluate", "damaged"], "damaged/run.json is damaged"),
        (["evaluate", "empty"], "'empty' is no run: it has no run.json"),
        (["ask", "copy-rope-s0", "a ♥"], "copy does not know '♥'"),
        (["ask", "copy-rope-s0", " "], "ask something"),
        (["new", "encodng", "x"], "there is no new 'encodng'. Did you mean 'encoding'?"),
        (["new", "encoding", "X-y"], "a name is lower-case letters"),
        (["new", "encoding", "broken"], "broken.py is there already"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_a_users_mistake_is_one_line_and_exit_code_2(place, arguments, said):
    (place / "broken.py").write_text(BROKEN)
    (place / "raises.py").write_text(RAISES)
    (place / "afile").write_text("")
    (place / "empty").mkdir(exist_ok=True)
    (place / "damaged").mkdir(exist_ok=True)
    (place / "damaged" / "run.json").write_text('{"id": ')
    done = cli(*arguments, cwd=place)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("lengthwise: error: ") and len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.slow
def test_a_full_disk_is_told_in_one_line(tmp_path):
    """On a disk of 300 kB: the run begins, a checkpoint does not fit."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a small disk cannot be mounted")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f"mount -t tmpfs -o size=300k tmpfs {disk} && exec {sys.executable} -m lengthwise train {TASK} "
    command += f"{' '.join(FAST)} --store {disk}/store"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no permission to mount a small disk")
    assert done.returncode == 2, done.stderr
    assert "the disk is full; free some room, then run it again" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unreadable_folder_is_told_in_one_line(place, monkeypatch, capsys):
    from lengthwise.folder import Folder

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    fs = type(Folder(place).fs)
    monkeypatch.setattr(fs, "exists", refuse)
    monkeypatch.setattr(sys, "argv", ["lengthwise", "evaluate", str(place / "lengthwise-store")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "permission denied; give another folder" in capsys.readouterr().err


def test_help_names_the_exit_code_of_a_stopped_run(place):
    assert "Exit code 75" in cli("train", "--help", cwd=place).stdout
