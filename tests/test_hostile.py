"""Data that somebody has changed on purpose, with checksums that fit: no code is run, nothing outside is touched."""

import shutil
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import lengthwise as lw
from lengthwise.spec import SpecError
from tests.damage import hostile, raised_by_transformers, reseal, reseal_bundle
from tests.test_damage import READ, _runs, finished, of_every_run  # noqa: F401
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
            lw.Study.read(home / "tiny.yaml", results=home / "bundle").report(store=str(home / "none"), write=False)
        ),
        "check": lambda home: str(_study(home).check(home / "bundle")),
        "merge": lambda home: lw.export_bundle(str(home / "store"), home / "out" / "merged", results=home / "bundle"),
        "repair": lambda home: lw.fsck(str(home / "bundle"), repair=True),
    },
    "stopped": READ["stopped"],
    "exported": READ["exported"],
}


@pytest.fixture
def home(finished, tmp_path, monkeypatch):  # noqa: F811
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
@pytest.mark.parametrize("pairs", [60, pytest.param(1500, marks=pytest.mark.evidence)])
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
