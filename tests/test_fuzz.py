"""Command lines made by a grammar of verbs, options and odd values: none ends in a traceback, hangs or takes much."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
import typer

import lengthwise
from lengthwise.cli import app, main
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.spec import SpecError, resolve
from lengthwise.task import TASKS

SECONDS, BYTES = 10, 2 * 2**30
PROCESSES = 2
ODD = [
    "",
    " ",
    "²",
    "1e999",
    "-1",
    "0",
    "nan",
    "9223372036854775808",
    "x" * 300,
    "../..",
    "a=b",
    ":",
    "::",
    ",",
    "[",
    "3*[",
]
ODD += [
    "*",
    "?",
    "é∑\U0001f600",
    "1,2,",
    "5-2",
    "1-1000000000",
    "None",
    "true",
    "{}",
    "[]",
    "%s",
    "$HOME",
    "-",
    "--",
    "@best",
]
ODD += [
    "1e-400",
    "0x10",
    "1_000",
    "٣",
    "\u202e",
    "\x1b[31m",
    "'",
    '"',
    "\\",
    "/",
    "/dev/null",
    "~",
    "s3://",
    "memory://x",
]
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "16",
    "64",
    "1000",
    "1000000",
    "1000000000",
    "99999999999999999999",
    "-1",
    "-5",
    "0.5",
]
NUMBERS += ["1e9", "²", "", "True", "inf"]
LENGTHS = ["2", "2,3", "1-4", "0", "2,2", "1000000", "4-2", "1-100000000", "-3", "a", ""]


def leaves(command, names=()):
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from leaves(below, (*names, name))
    else:
        yield names, command


class Grammar:
    """Makes command lines; `home` has a study, its store and its bundle."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.rng = home, random.Random(seed)
        verbs = leaves(typer.main.get_command(app))
        # What only measures, for as long as it says, is left out.
        self.verbs = [(names, one) for names, one in verbs if names[0] not in {"bench", "selftest"}]
        self.runs = sorted(path.name for path in (home / "store" / "runs").iterdir())
        self.options = {
            **{name: list(resolve("encoding", ENCODINGS, name).__annotations__) for name in ENCODINGS},
            **{name: list(resolve("task", TASKS, name).__annotations__) for name in TASKS},
        }

    def pick(self, *values):
        return self.rng.choice(values)

    def spec(self, names, keys=()):
        name = self.pick(*names)
        known = [*keys, *self.options.get(name, ()), "longest", "theta", "nonsense"]
        for _ in range(self.pick(0, 0, 1, 1, 2)):
            value = self.pick(*NUMBERS, *ODD) if self.rng.random() < 0.7 else self.pick("true", "log", "yarn", "same")
            name += f":{self.pick(*known)}={value}"
        return name

    def value(self, name):
        if self.rng.random() < 0.12:
            return self.pick(*ODD)

        def encodings():
            return self.spec(ENCODINGS)

        made = {
            "task": lambda: self.spec(TASKS),
            "encoding": encodings,
            "add": encodings,
            "encodings": lambda: ",".join(encodings() for _ in range(self.pick(1, 2, 3))),
            "positions": lambda: self.spec(POSITIONS, ["limit"]),
            "model": lambda: self.spec(
                ["laptop", "paper"], ["width", "layers", "heads", "vocabulary", "temperature", "dropout", "mask"]
            ),
            "preset": lambda: self.spec(["laptop", "paper"], ["width", "layers", "heads"]),
            "training": lambda: self.spec(
                ["laptop", "paper"], ["steps", "lr", "batch_size", "rate", "warmup", "validations", "eps"]
            ),
            "temperature": lambda: self.spec(["constant", "log-n", "yarn", "llama4"], ["factor", "trained"]),
            "run": lambda: self.pick(*self.runs, self.runs[0][:6], "zzz"),
            "runs": lambda: self.pick(*self.runs, "zzz"),
            "against": lambda: self.pick(*self.runs, str(self.home / "bundle")),
            "reference": lambda: self.pick("last", "recent", "peers"),
            "start": lambda: self.pick(*self.runs, f"{self.runs[0]}@best", "zzz@last"),
            "prompt": lambda: self.pick("a a", "b c a", "a " * 400, "zz", "1 2"),
            "checkpoint": lambda: self.pick("last", "best", "25%", "zzz"),
            "file": lambda: self.pick(
                str(self.home / "tiny.yaml"), "quickstart", "glance", "zzz", str(self.home / "store")
            ),
            "study": lambda: self.pick(str(self.home / "tiny.yaml"), "glance", "zzz"),
            "where": lambda: self.pick(str(self.home / "store"), str(self.home / "bundle"), str(self.home), "zzz"),
            "with_": lambda: self.pick(str(self.home / "bundle"), str(self.home / "store"), "zzz"),
            "store": lambda: self.pick(str(self.home / "store"), str(self.home / "store"), "zzz", "memory://fuzz"),
            "tasks": lambda: self.pick("copy", "quick", "sort,copy", "zzz"),
            "to": lambda: self.pick("out", "out/deep/er", "/dev/null/x", "tiny.yaml"),
            "folder": lambda: self.pick("out", "/dev/null/x"),
            "rows": lambda: self.pick("rows.parquet", "zzz"),
            "stream": lambda: self.pick("order=7", "order=²", "zzz=1", "data=99999999999999999999"),
            "only": lambda: self.pick("T05", "T05,T12", "zzz"),
            "what": lambda: self.pick("encodings", "tasks", "positions", "presets", "zzz"),
            "topic": lambda: self.pick("mrr", "accuracy", "zzz"),
            "names": lambda: self.pick(*ENCODINGS, *TASKS, "pcfg:longest=*", "zzz"),
            "kind": lambda: self.pick("encoding", "task", "mlp", "zzz"),
            "name": lambda: self.pick("Mine", "class", "a b", "x/y"),
            "lengths": lambda: self.pick(*LENGTHS),
            "scratchpad": lambda: self.pick("none", "full", "minimal", "zzz"),
            "protocol": lambda: self.pick("fair", "paper", "zzz"),
            "split": lambda: self.pick("train", "test_seen", "test_unseen", "zzz"),
            "on": lambda: self.pick("here", "a100", "zzz"),
            "logger": lambda: self.pick("tensorboard", "wandb", "zzz"),
            "address": lambda: self.pick("zzz", "127.0.0.1:1"),
            "norm": lambda: self.pick("none", "rms", "layer", "zzz"),
            # The theory verbs measure as many as they are asked for, and say how far they are.
            "draws": lambda: "2",
            "sequences": lambda: "2",
            "dtype": lambda: self.pick("float32", "float64", "bfloat16", "zzz"),
        }
        return made[name]() if name in made else self.pick(*NUMBERS)

    def line(self):
        names, command = self.pick(*self.verbs)
        line = list(names)
        for one in command.params:
            argument = one.param_type_name == "argument"
            needed = argument or one.required or one.name in {"draws", "sequences"}
            if one.name == "help" or not (needed or self.rng.random() < 0.25):
                continue
            if one.name in {"watch", "shard", "train"}:  # they wait, or want a team, or train
                continue
            if argument:
                line += [self.value(one.name) for _ in range(self.pick(1, 1, 2) if one.nargs == -1 else 1)]
            elif getattr(one, "is_flag", False):
                line.append(one.opts[-1])
            else:
                line += [one.opts[-1], self.value(one.name)]
        return line


def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what trains, evaluates, measures or starts workers."""
    from lengthwise.run import attempt, run
    from lengthwise.study import cost, drive, launch, machines
    from lengthwise.theory import claims

    def refuse(*more, **named):
        raise SpecError("stub")

    monkeypatch.setattr(attempt.Attempt, "run", lambda *more: None)
    monkeypatch.setattr(run, "evaluate_decoder", refuse)
    monkeypatch.setattr(drive.Driver, "run", refuse)
    monkeypatch.setattr(launch, "executor_of", lambda *more: None)
    monkeypatch.setattr(cost, "expected_seconds", refuse)
    monkeypatch.setattr(machines, "_seconds_per_step", lambda *more: 0.01)
    monkeypatch.setattr(claims, "_lemmas", lambda *more: refuse())


def outcome(line: list[str], said: Path) -> tuple[int, str, float, int]:
    """Run a command line in a forked process: its exit code, what it said on stderr, its seconds and its bytes."""
    began, process = time.monotonic(), os.fork()
    if process == 0:
        code = 70
        try:
            with open(said, "w") as file, open(os.devnull, "w") as nowhere:
                os.dup2(file.fileno(), 2), os.dup2(nowhere.fileno(), 1)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                signal.alarm(4 * SECONDS)
                sys.argv = ["lengthwise", *line]
                try:
                    main()
                    code = 0
                except SystemExit as ended:
                    code = ended.code if isinstance(ended.code, int) else bool(ended.code)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                sys.stdout.flush(), sys.stderr.flush()
        finally:
            os._exit(code)
    _, status, used = os.wait4(process, 0)
    told = said.read_text(errors="replace") if said.exists() else ""
    # On a machine that others use too, the seconds of the processor are what it takes.
    seconds = min(time.monotonic() - began, used.ru_utime + used.ru_stime)
    return os.waitstatus_to_exitcode(status), told, seconds, used.ru_maxrss * 1024


def fuzz(home: Path, many: int, seed: int) -> dict[str, object]:
    """Try so many command lines that get past parsing; return what was counted, and what went wrong."""
    torch.set_num_threads(1)
    stub(pytest.MonkeyPatch())
    grammar, codes, wrong, unparsed, slow, large = Grammar(home, seed), Counter(), [], 0, 0.0, 0
    while codes.total() < many:
        line = grammar.line()
        code, told, seconds, used = outcome(line, home.parent / f"said-{seed}")
        if code == 2 and "Usage:" in told:
            unparsed += 1
            continue
        codes[code] += 1
        slow, large = max(slow, seconds), max(large, used)
        if "Traceback" in told or code not in {0, 1, 2, 3} or seconds > SECONDS or used > BYTES:
            last = told.strip().splitlines()[-6:] if "Traceback" in told else told.strip().splitlines()[-1:]
            wrong.append(f"{line} → {code}, {seconds:.1f} s, {used / 2**30:.1f} GiB: {last}")
    return {"codes": codes, "unparsed": unparsed, "slow": slow, "large": large, "wrong": wrong}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "many", [pytest.param(40, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.evidence)]
)
def test_no_command_line_ends_in_a_traceback_or_takes_long(finished, tmp_path, many, figure):
    # In processes of their own, because polars does not work in a process forked from one that has used it; they import
    # the lengthwise that is tested here, wherever it lies.
    paths = [str(Path(__file__).parents[1]), str(Path(lengthwise.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    started = []
    for number in range(PROCESSES):
        shutil.copytree(finished, tmp_path / str(number) / "home")
        command = [sys.executable, "-m", "tests.test_fuzz", str(tmp_path / str(number) / "home")]
        started.append(
            subprocess.Popen(
                [*command, str(many // PROCESSES), str(many + number)],
                cwd=tmp_path / str(number),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    found = []
    for process in started:
        told, error = process.communicate()
        assert process.returncode == 0, error[-5000:]
        found.append(json.loads(told))
    codes = sum((Counter(one["codes"]) for one in found), Counter())
    wrong = [line for one in found for line in one["wrong"]]
    slowest, largest = max(one["slow"] for one in found), max(one["large"] for one in found) / 2**30
    figure(
        f"{codes.total()} command lines past parsing ({sum(one['unparsed'] for one in found)} not), exit codes "
        f"{dict(sorted(codes.items()))}, slowest {slowest:.1f} s, largest {largest:.2f} GiB: {len(wrong)} wrong"
    )
    for line in wrong:
        figure(line)
    assert not wrong


if __name__ == "__main__":
    print(json.dumps(fuzz(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
