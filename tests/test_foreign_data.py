"""Stores, bundles and models from anybody are data: reading them runs no code and touches nothing outside them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise.consent import code_names
from lengthwise.folder import publishable
from lengthwise.spec import SpecError
from lengthwise.study.work import _unpacked
from tests.damage import reseal, reseal_bundle

SMALL = "laptop:width=32:heads=2:feed_forward_width=64:layers=1"
EVIL = "from pathlib import Path\n\n\nclass Evil:\n    Path({canary!r}).touch()\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    store = tmp_path_factory.mktemp("foreign") / "store"
    return lw.train("sort:longest=4", "nope", model=SMALL, steps=2, store=str(store), quiet=True)


@pytest.fixture
def foreign(trained, tmp_path, monkeypatch):
    """A function that changes options in the run.json of a copy of the run, and a file that says whether code ran."""
    monkeypatch.chdir(tmp_path)
    store, canary = tmp_path / "store", tmp_path / "canary"
    shutil.copytree(Path(trained.folder.path).parents[2], store)
    (tmp_path / "evil.py").write_text(EVIL.format(canary=str(canary)))
    (record,) = store.glob("runs/*/1/run.json")

    def change(**options):
        content = json.loads(record.read_text())
        model = {**content["options"]["model"], **options.pop("model", {})}
        record.write_text(json.dumps({**content, "options": {**content["options"], **options, "model": model}}))
        reseal(store)
        return str(record.parents[1])

    return change, canary


NAMED = {
    "task": {"task": "evil.py:Evil"},
    "task with options": {"task": {"name": "evil.py:Evil", "longest": 4}},
    "encoding": {"encoding": ["evil.py:Evil"]},
    "one layer": {"encoding": ["nope", {"name": "evil.py:Evil", "strength": 2}]},
    "module": {"encoding": ["evil:Evil"]},
    "positions": {"positions": "evil.py:Evil"},
    "temperature": {"model": {"temperature": "evil.py:Evil"}},
    "normaliser": {"model": {"normaliser": "evil.py:Evil"}},
}


@pytest.mark.parametrize("options", NAMED.values(), ids=NAMED)
def test_a_run_that_names_code_runs_none_unless_it_is_allowed(foreign, options):
    change, canary = foreign
    run = change(**options)
    for use in (
        lambda: lw.load_run(run).evaluate([2]),
        lambda: lw.evaluate(lw.load_run(run), lengths=[2]),
        lambda: lw.ask(run, "1 2"),
        lambda: lw.attention(run, "1 2"),
        lambda: lw.analyze([run]),
        lambda: lw.probe([run]),
        lambda: lw.export_model(run, "exported"),
        lambda: lw.summarize(run),
    ):
        with pytest.raises(SpecError, match=r"names code from outside the package \(evil"):
            use()
    assert not canary.exists()
    with pytest.raises(SpecError):  # allowed: it is loaded, and then refused for what it is
        lw.load_run(run, allow_code=True).decoder()
    assert canary.exists()


@pytest.mark.slow
def test_a_run_just_trained_with_a_class_of_ones_own_needs_no_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import lengthwise as lw\n\n\nclass Mine(lw.Encoding):\n    pass\n")
    run = lw.train("sort:longest=4", "mine.py:Mine", model=SMALL, steps=2, quiet=True)
    assert run.evaluate([2]).rows.height
    with pytest.raises(SpecError, match=r"names code from outside the package \(mine.py:Mine\)"):
        lw.load_run(run.id)
    with pytest.warns(UserWarning, match=f"run {run.id} runs code from outside the package: mine.py:Mine"):
        assert lw.load_run(run.id, allow_code=True).evaluate([2]).rows.height


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("rope:theta=500", []),
        ("copy:variant=same", []),
        ("a.py:B:x=1", ["a.py:B"]),
        ("nope,a.py:B", ["nope,a.py:B", "a.py:B"]),
        ("[a.py:B", ["[a.py:B"]),
        ({"name": "rope", "scaling": "p.q:C"}, ["p.q:C"]),
        (["nope", {"x": [{"y": "a.py:b.C"}]}], ["a.py:b.C"]),
        ({"path": "s3://bucket/file", "seed": 3, "none": None}, []),
    ],
)
def test_code_is_found_wherever_data_names_it(data, found):
    assert code_names(data) == found


@pytest.mark.slow
def test_allowed_code_is_compared_with_what_was_recorded_before_it_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = "import lengthwise as lw\n\n\nclass Mine(lw.Encoding):\n    pass\n"
    (tmp_path / "mine.py").write_text(mine)
    run = lw.train("sort:longest=4", "mine.py:Mine", model=SMALL, steps=2, quiet=True)
    (tmp_path / "mine.py").write_text(mine + "    from pathlib import Path\n    Path('canary').touch()\n")
    with pytest.raises(SpecError, match=r"was made with other code than mine\.py:Mine is now"):
        lw.load_run(run.id, allow_code=True).evaluate([2])
    assert not (tmp_path / "canary").exists()
    (tmp_path / "mine.py").write_text(mine + "# a comment\n")
    assert lw.load_run(run.id, allow_code=True).evaluate([2]).rows.height


@pytest.mark.parametrize("name", ["wicked.py:Evil", "wicked:Evil", {"name": "wicked.py:Evil", "strength": 2}], ids=str)
def test_a_hugging_face_folder_runs_no_code_unless_it_is_trusted(trained, tmp_path, monkeypatch, name):
    from transformers import AutoConfig, AutoModelForCausalLM

    import lengthwise.hf  # noqa: F401

    monkeypatch.chdir(tmp_path)
    lw.export_model(trained, "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "encodings": [name]}))
    reseal_bundle(tmp_path / "model")
    (tmp_path / "wicked.py").write_text(EVIL.format(canary=str(tmp_path / "canary")))
    for options in ({}, {"trust_remote_code": False}):
        with pytest.raises(SpecError, match="load it with trust_remote_code=True"):
            AutoModelForCausalLM.from_pretrained("model", **options)
    with pytest.raises(SpecError, match="load it with trust_remote_code=True"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"))
    with pytest.raises(SpecError, match=r"has changed since this model was saved|encoding"):
        AutoModelForCausalLM.from_pretrained("model", trust_remote_code=True)
    assert (tmp_path / "canary").exists() == (name == "wicked:Evil")  # a file's hash is compared before it is run


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["study", "run", "small.yaml", "--no-ray", "--workers", "2", "--quiet"],
        ["train", "sort:longest=4", "--model", SMALL, "--training", "laptop:steps=40:batch_size=512", "--quiet"],
    ],
    ids=["workers", "prefetching"],
)
def test_child_processes_import_nothing_from_the_current_folder(command, tmp_path):
    for name in ("numpy", "polars", "typer", "yaml"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('canary').touch()\n")
    base = {"task": "sort:longest=4", "model": SMALL, "training": "laptop:steps=2"}
    study = {"name": "small", "question": "?", "base": base, "vary": {"encoding": ["nope", "rope"]}, "seeds": 1}
    (tmp_path / "small.yaml").write_text(json.dumps(study))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lengthwise", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "canary").exists()


def test_code_for_workers_is_unpacked_where_nobody_else_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = _unpacked({"mine.py": b"x = 1\n", "beside.py": b"y = 2\n"})
    assert first.stat().st_mode & 0o777 == 0o700 and first.stat().st_uid == os.getuid()
    assert (first / "mine.py").read_text() == "x = 1\n" and (first / "beside.py").read_text() == "y = 2\n"
    assert _unpacked({"mine.py": b"x = 1\n", "beside.py": b"y = 2\n"}) == first
    assert _unpacked({"mine.py": b"x = 3\n"}) != first


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("s3://alice:s3cret@host/store", "s3://host/store"),
        ("ftp://alice:p@ss@host/a", "ftp://host/a"),
        ("/home/alice/stores/one", "one"),
        ("--store=/home/alice/stores/one", "--store=one"),
        ("~/mine.py:Mine", "mine.py:Mine"),
        ("file:path=/home/alice/data.jsonl:field=text", "file:path=data.jsonl:field=text"),
        ("studies/quickstart.yaml", "studies/quickstart.yaml"),
        ("copy:variant=same", "copy:variant=same"),
    ],
)
def test_no_password_and_no_path_of_the_machine_is_published(argument, told):
    assert publishable(argument) == told


def test_what_is_recorded_of_a_run_names_no_host_and_no_path(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/home/alice/bin/lengthwise", "train", "--store", "ftp://alice:s3cret@host/x"])
    made = lw.train("sort:longest=4", "nope", model=SMALL, steps=1, store=str(tmp_path / "store"), quiet=True)
    recorded = json.dumps(made.run_json["recorded"])
    assert "s3cret" not in recorded and "/home" not in recorded and 'host":' not in recorded
    for results in (Path(__file__).parents[1] / "results").glob("*/runs.jsonl"):
        content = results.read_text()
        assert '"host"' not in content and "/tmp/" not in content and "/home/" not in content, results


@pytest.mark.slow
def test_no_path_of_a_class_reaches_runs_bundles_and_pages(tmp_path, monkeypatch):
    home, work = tmp_path / "alice", tmp_path / "work"
    home.mkdir(), work.mkdir()
    (home / "mine.py").write_text("import lengthwise as lw\n\n\nclass Mine(lw.Encoding):\n    pass\n")
    monkeypatch.chdir(work)
    named = f"{home}/mine.py:Mine"
    study = lw.Study(task="sort:longest=4", encoding=["nope", named], seeds=1, model=SMALL, training="laptop:steps=2")
    study.run("store", executor="inline")
    study.report("page", store="store")
    lw.export_bundle("store", "bundle")
    for path in (*work.glob("store/runs/*/*/run.json"), work / "bundle" / "runs.jsonl", work / "page" / "index.html"):
        assert "alice" not in path.read_text(), path
    monkeypatch.chdir(home)
    (key,) = (path.name for path in (work / "store" / "runs").glob("sort-mine*"))
    assert lw.load_run(key, str(work / "store"), allow_code=True).evaluate([2]).rows.height


def test_git_is_not_started_in_a_foreign_folder(tmp_path, monkeypatch):
    """The configuration of a repository can name programs, which git starts."""
    shutil.copytree(Path(__file__).parents[1] / "results" / "quickstart", tmp_path / "foreign")
    folders, run = [], subprocess.run

    def noted(command, *more, **named):
        folders.append(str(named.get("cwd")))
        return run(command, *more, **named)

    monkeypatch.setattr(subprocess, "run", noted)
    lw.claims(store=str(tmp_path / "none"), results=tmp_path / "foreign")
    assert folders and not any(folder.startswith(str(tmp_path)) for folder in folders)
