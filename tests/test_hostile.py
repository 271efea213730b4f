"""Data that somebody has changed on purpose, with checksums that fit: no code is run, nothing outside is touched."""

import os
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import pytest

import lengthwise as lw
from lengthwise.spec import SpecError
from tests.damage import accident, hostile, raised_by_transformers, reseal, reseal_bundle
from tests.test_damage import READ, _runs
from tests.test_foreign_data import EVIL

FIRST = {
    "evaluate": lambda run: run.evaluate([2], examples=2),
    "summarize": lambda run: str(lw.summarize(run)),
    "ask": lambda run: lw.ask(run, "a a"),
    "log": lambda run: run.log(),
}


def _study(home: Path) -> lw.Study:
    return lw.Study.read(home / "tiny.yaml")


USE = {
    "store": {
        **READ["store"],
        **{
            name: (lambda home, use=use: use(lw.load_run(_runs(home)[0], str(home / "store"))))
            for name, use in FIRST.items()
        },
        "report": lambda home: str(_study(home).report(store=str(home / "store"), write=False)),
        "export": lambda home: lw.export_bundle(str(home / "store"), home / "out" / "exported"),
        "repair": lambda home: lw.fsck(str(home / "store"), repair=True),
    },
    "bundle": {
        **READ["bundle"],
        "report": lambda home: str(
            lw.Study.read(home / "tiny.yaml", with_bundle=home / "bundle").report(store=str(home / "none"), write=False)
        ),
        "check": lambda home: str(_study(home).check(home / "bundle")),
        "merge": lambda home: lw.export_bundle(
            str(home / "store"), home / "out" / "merged", with_bundles=[home / "bundle"]
        ),
        "repair": lambda home: lw.fsck(str(home / "bundle"), repair=True),
    },
    "stopped": READ["stopped"],
    "exported": READ["exported"],
}


@pytest.fixture
def home(finished, tmp_path, monkeypatch):
    """What a user has, beside a file of code that must not run and a folder that must not be touched."""
    place = tmp_path / "home"
    shutil.copytree(finished, place)
    (tmp_path / "evil.py").write_text(EVIL.format(canary=str(tmp_path / "canary")))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text('{"a": 1}')
    (place / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LENGTHWISE_BEAT", "0.2")  # a lease that claims to be alive is waited for
    return place


def outside(home: Path, below: str) -> dict[str, bytes]:
    """Every file that is not the one that was opened, nor where output was asked for."""
    inside = {home / below, home / "out", home / "going-on", home.parent / "kept"}
    return {
        str(path): path.read_bytes()
        for path in home.parent.rglob("*")
        if path.is_file() and not any(path.is_relative_to(one) for one in inside) and "__pycache__" not in path.parts
    }


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("below", USE)
@pytest.mark.parametrize("pairs", [16, pytest.param(1500, marks=pytest.mark.evidence)])
def test_whatever_foreign_data_says_no_code_runs_and_nothing_outside_changes(home, below, pairs, figure):
    rng, found, slowest, wrong = Random(below), Counter(), 0.0, []
    kept, before = home.parent / "kept", outside(home, below)
    shutil.copytree(home / below, kept)
    while found.total() < pairs:
        files = sorted(path for path in (home / below).rglob("*") if path.is_file())
        what = hostile(files, rng, home.parent / "canary", home.parent / "victim")
        (reseal if (home / below / "done").is_dir() or below == "stopped" else reseal_bundle)(home / below)
        for name, use in USE[below].items():
            began = time.monotonic()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    use(home)
                    found["opened"] += 1
                except SpecError:
                    found["refused"] += 1
                except Exception as error:  # noqa: BLE001
                    if not raised_by_transformers(error):
                        last = "".join(traceback.format_exception(error)[-4:])
                        wrong.append(f"{name} after {what}:\n{last}")
                    found["refused by transformers"] += 1
            slowest = max(slowest, time.monotonic() - began)
            assert outside(home, below) == before, f"{what}: {name}"
        shutil.rmtree(home / below), shutil.rmtree(home / "out"), (home / "out").mkdir()
        shutil.copytree(kept, home / below)
    figure(f"hostile {below}, {found.total()} pairs, slowest {slowest:.1f} s: {dict(found)}")
    assert not wrong, f"{len(wrong)} tracebacks, e.g.\n" + "\n".join(wrong[:10])
    assert slowest < 10 and found["refused"]


LINES = {
    "store": [
        ["study", "status", "tiny.yaml", "--store", "store"],
        ["study", "plan", "tiny.yaml", "--store", "store"],
        ["study", "report", "tiny.yaml", "--store", "store", "--text"],
        ["study", "report", "tiny.yaml", "--store", "store", "--json"],
        ["study", "rows", "tiny.yaml", "--store", "store", "--to", "out/rows.parquet"],
        ["study", "export", "store", "--to", "out/bundle"],
        ["study", "fsck", "store"],
        ["study", "fsck", "store", "--repair"],
        ["study", "run", "tiny.yaml", "--store", "store", "--inline", "--quiet", "--to", "out"],
        ["evaluate", "RUN", "--store", "store", "--lengths", "2", "--json"],
        ["ask", "RUN", "a a", "--store", "store"],
        ["attention", "RUN", "a a", "--store", "store", "--to", "out/attention.svg"],
        ["export-model", "RUN", "out/model", "--store", "store"],
    ],
    "bundle": [
        ["study", "report", "tiny.yaml", "--store", "none", "--with", "bundle", "--text"],
        ["study", "status", "tiny.yaml", "--store", "none", "--with", "bundle"],
        ["study", "check", "tiny.yaml", "--against", "bundle"],
        ["study", "export", "store", "--to", "out/merged", "--with", "bundle"],
        ["study", "fsck", "bundle"],
        ["claims", "--with", "bundle"],
    ],
    "stopped": [
        ["study", "fsck", "stopped"],
        ["study", "status", "tiny.yaml", "--store", "stopped"],
        ["study", "run", "tiny.yaml", "--store", "stopped", "--inline", "--quiet", "--to", "out"],
    ],
}


def through_the_command_line(home: Path, line: list[str]) -> tuple[int, str, str]:
    run = _runs(home)[0]
    environment = {**os.environ, "LENGTHWISE_BEAT": "0.2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "lengthwise", *(run if word == "RUN" else word for word in line)],
        cwd=home, capture_output=True, text=True, check=False, env=environment, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "pairs", [pytest.param(8, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.evidence)]
)
def test_the_command_line_on_damaged_and_hostile_data(home, pairs, figure):
    @cache
    def whole(line: tuple[str, ...]) -> str:
        """What is printed of intact data."""
        clean = home.parent / f"clean-{abs(hash(line))}"
        shutil.copytree(home, clean, dirs_exist_ok=True)
        return through_the_command_line(clean, list(line))[1]

    def pair(number: int) -> str:
        rng = Random(number)
        below = rng.choice(["store", "store", "bundle", "stopped"])
        line, mine = rng.choice(LINES[below]), home.parent / f"pair-{number}"
        shutil.copytree(home, mine / "home")
        (mine / "evil.py").write_text(EVIL.format(canary=str(mine / "canary")))
        shutil.copytree(home.parent / "victim", mine / "victim")
        before = outside(mine / "home", below)
        files = sorted(path for path in (mine / "home" / below).rglob("*") if path.is_file())
        by_accident = number % 2 == 0
        if by_accident:
            what = accident(files, rng)
        else:
            what = hostile(files, rng, mine / "canary", mine / "victim")
            (reseal_bundle if below == "bundle" else reseal)(mine / "home" / below)
        code, out, told = through_the_command_line(mine / "home", line)
        words = f"{what}: {' '.join(line)} → {code}\n{out[-2000:]}\n{told[-2000:]}"
        assert code in {0, 1, 2, 3, 75} and "Traceback" not in told + out, words
        ours = {
            name for name in outside(mine / "home", below) if not name.startswith(str(mine / "home" / "lengthwise-"))
        }
        assert ours == set(before) and not (mine / "canary").exists(), words
        kind = "refused" if code else "the same" if out == whole(tuple(line)) else "said" if told else "different"
        # Without its record a run is simply not done; an unreadable lease is shown as one of an unknown machine.
        undone = (what.startswith("delete") and "/store/done/" in what) or "/leases/" in what
        if kind == "different" and by_accident and not undone and "fsck" not in line:
            raise AssertionError(f"silent: {words}\n--- whole\n{whole(tuple(line))[-2000:]}")
        shutil.rmtree(mine)
        return f"{'accident' if by_accident else 'hostile'}, {kind}"

    with ThreadPoolExecutor(2) as pool:
        found = Counter(pool.map(pair, range(pairs)))
    figure(f"{pairs} pairs through the command line: {dict(sorted(found.items()))}")
