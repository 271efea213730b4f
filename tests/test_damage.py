"""Damage by accident: a damaged file is named and never becomes another number; the other runs go on."""

import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise import folder
from lengthwise.checksums import FORMAT, Damaged, _seal, checksum, sealed
from lengthwise.evaluation.rows import frame_to_parquet, validate
from lengthwise.run.lease import Lease
from lengthwise.run.run import Run
from lengthwise.spec import SpecError
from lengthwise.study import drive
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess
from lengthwise.study.store import Store
from lengthwise.training.checkpoint import newest_checkpoint
from tests.damage import accident, raised_by_transformers, reseal_bundle
from tests.study.conftest import TINY
from tests.study.test_hosts import until


@pytest.fixture
def home(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "home")
    return tmp_path / "home"


def _runs(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "store" / "runs").iterdir() if "~" not in path.name)


def _hashed(*tables: object) -> str:
    return hashlib.sha256(b"".join(frame_to_parquet(one) for one in tables)).hexdigest()


def _weights(run: Run, checkpoint: str) -> str:
    weights = sorted(run.weights(checkpoint).items())
    return hashlib.sha256(b"".join(name.encode() + one.double().numpy().tobytes() for name, one in weights)).hexdigest()


def of_every_run(read):
    return lambda home: [read(Run.open(name, str(home / "store"))) for name in _runs(home)]


READ_STORE = {
    "rows of runs": of_every_run(lambda run: _hashed(run.rows())),
    "answers": of_every_run(lambda run: _hashed(run.predictions())),
    "last weights": of_every_run(lambda run: _weights(run, "last")),
    "weights at 50%": of_every_run(lambda run: _weights(run, "50%")),
    "options": of_every_run(lambda run: str(run)),
    "status": lambda home: lw.Study.read(home / "tiny.yaml").status(str(home / "store")).plain()["done"],
    "rows of the study": lambda home: _hashed(lw.Study.read(home / "tiny.yaml").rows(str(home / "store"))),
    "fsck": lambda home: lw.fsck(str(home / "store")).found,
}
READ_CHECKPOINT = {
    "newest checkpoint": lambda home: _newest(home),
    "going on": lambda home: _go_on(home),
    "fsck": lambda home: lw.fsck(str(home / "stopped")).found,
}
READ_EXPORTED = {"logits": lambda home: _logits(home), "tokens": lambda home: _tokens(home)}
READ_BUNDLE = {
    "rows": lambda home: _hashed(Bundle(home / "bundle").rows),
    "runs": lambda home: Bundle(home / "bundle").lines,
    "answers": lambda home: _hashed(*Bundle(home / "bundle").wrong_answers_and_outcomes()),
    "fsck": lambda home: lw.fsck(str(home / "bundle")).found,
}


def _newest(home: Path) -> tuple:
    (folder_of_run,) = (home / "stopped" / "runs").iterdir()
    found, torn = newest_checkpoint([folder.Folder(folder_of_run / "1" / "checkpoints")])
    for one in torn:
        warnings.warn(f"{one} is damaged", stacklevel=1)
    return (found.step, found.notes["kept"], sorted(found.tensors())) if found else (None,)


def _go_on(home: Path) -> str:
    """Train the stopped run to its end; the weights do not depend on which checkpoint was intact."""
    (record,) = (home / "stopped" / "runs").iterdir()
    options = json.loads((home / "store" / "runs" / record.name / "1" / "run.json").read_text())["options"]
    store = home / "going-on"
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(home / "stopped", store, symlinks=True)
    run = lw.train(
        options["task"], options["encoding"][0], model=TINY["base"]["model"], training=TINY["base"]["training"],
        seed=options["seed"], checkpoint_every=1, store=str(store), quiet=True,
    )  # fmt: skip
    return _weights(run, "last") + _hashed(run.rows())


def _logits(home: Path) -> bytes:
    import torch
    from transformers import AutoModelForCausalLM

    import lengthwise.hf  # noqa: F401

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(home / "exported")(torch.arange(6)[None]).logits.numpy().tobytes()


def _tokens(home: Path) -> tuple:
    from transformers import AutoTokenizer

    _logits(home)  # model and tokenizer are loaded together, and the model compares the checksums of both
    return tuple(AutoTokenizer.from_pretrained(home / "exported")("a b c").input_ids)


def outcomes(home: Path, below: str, verbs: dict, pairs: int, seed: int) -> Counter:
    """Damage files one at a time, read them by each verb, and count what happens; anything silent fails."""
    rng, found = random.Random(seed), Counter()
    whole = {name: read(home) for name, read in verbs.items()}
    kept = home.parent / "kept"
    shutil.copytree(home / below, kept)
    while found.total() < pairs:
        files = sorted(path for path in (home / below).rglob("*") if path.is_file())
        what = accident(files, rng)
        for name, read in verbs.items():
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    got = read(home)
                except SpecError:
                    found["refused"] += 1
                    continue
                except Exception as error:
                    if not raised_by_transformers(error):
                        raise AssertionError(f"{what}: {name} fell over") from error
                    found["refused"] += 1
                    continue
            if got == whole[name]:
                found["the same"] += 1
                continue
            # Without its record a run is simply not done, which every verb says.
            undone = what.startswith("delete") and "/store/done/" in what
            assert told or name == "fsck" or undone, f"{what}: {name} gave another result silently"
            found["said"] += 1
        shutil.rmtree(home / below)
        shutil.copytree(kept, home / below)
    return found


READ = {"store": READ_STORE, "bundle": READ_BUNDLE, "stopped": READ_CHECKPOINT, "exported": READ_EXPORTED}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("below", "verbs"), READ.items(), ids=READ)
@pytest.mark.parametrize("pairs", [16, pytest.param(1500, marks=pytest.mark.evidence)])
def test_no_accident_becomes_another_number(home, below, verbs, pairs, figure):
    found = outcomes(home, below, verbs, pairs, seed=3)
    figure(f"{below}, {found.total()} pairs of damage and verb: {dict(found)}")
    assert found["refused"] + found["said"]


@pytest.mark.slow
def test_a_damaged_run_is_made_again_with_the_same_bits_and_the_others_are_left_alone(home, monkeypatch):
    study, store = lw.Study.read(home / "tiny.yaml"), home / "store"
    before, first = study.rows(str(store)), _runs(home)[0]
    others = {path: path.stat().st_mtime_ns for path in (store / "done").iterdir() if not path.name.startswith(first)}
    rows = store / "runs" / first / "1" / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=f"{first} counts as not done"):
        left = study.rows(str(store))
    assert set(left.filter(left["run"] == first)["length"]) == {2}, "only those of the evaluation at length 2 are left"
    with pytest.warns(UserWarning, match=f"run {first} is damaged and is made again"):
        done = study.run(str(store), executor="inline")
    assert done.tally.here == 1 and (store / "runs" / first / "2" / "rows.parquet").exists()
    assert study.rows(str(store)).sort(before.columns).equals(before.sort(before.columns))
    assert others == {path: path.stat().st_mtime_ns for path in others}
    assert not lw.fsck(str(store)).found


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"attempt": "x"}', b'{"attempt": 1, "files": 3}', b"\xff\xfe"])
def test_a_bad_record_is_no_finished_run(home, content):
    study, store, first = lw.Study.read(home / "tiny.yaml"), home / "store", _runs(home)[0]
    total = study.status(str(store)).plain()["done"]
    (store / "done" / first).write_bytes(content)
    with pytest.warns(UserWarning, match=f"run {first} counts as not done"):
        assert study.status(str(store)).plain()["done"] == total - 1
    with pytest.warns(UserWarning, match=f"run {first} is damaged and is made again"):
        done = study.run(str(store), executor="inline")
    assert done.tally.here == 0, "its files are intact, so it is declared done again"
    assert study.status(str(store)).plain()["done"] == total


@pytest.mark.parametrize("how", ["torn", "missing", "another"])
def test_damaged_kept_weights_cost_steps_and_not_the_run(home, how):
    """They blocked a run for ever: the newest checkpoint refers to them, and every attempt began from it."""
    store, first = home / "store", _runs(home)[0]
    whole = Run.open(first, str(store))
    options, before = whole.run_json["options"], whole.rows()
    (store / "done" / first).unlink(), (store / "runs" / first / "1" / "done").unlink()
    kept = sorted((store / "runs" / first / "1" / "weights").iterdir())[-1]
    data = kept.read_bytes()
    if how == "missing":
        kept.unlink()
    else:
        kept.write_bytes(data[:100] if how == "torn" else data[:-1] + b"x")
    with pytest.warns(UserWarning, match="weights that it refers to"):
        again = lw.train(
            options["task"], options["encoding"][0], model=TINY["base"]["model"],
            training=TINY["base"]["training"], seed=options["seed"], checkpoint_every=1, store=str(store), quiet=True,
        )  # fmt: skip
    assert again.id == first and again.rows().drop("loss").equals(before.drop("loss"))


WRONG_ROWS = {
    "50 times as many right answers": ("correct", lambda column: column * 50 + 1, "do not add up"),
    "a missing count": ("examples", lambda column: column * None, "a count is missing or negative"),
    "lengths beyond any": ("length", lambda column: column * 10**11, "a length is not from 0 to a million"),
    "chance above 1": ("chance", lambda column: column + 1.5, "chance is no probability"),
    "an infinite loss": ("loss", lambda column: column + float("inf"), "a loss is no number from 0"),
    "no length seen or not": ("seen", lambda column: column & None, "`seen` is missing"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_rows_that_no_evaluation_writes_are_refused_however_consistent_the_bundle(home, case):
    import polars as pl

    column, change, told = WRONG_ROWS[case]
    path = home / "bundle" / "rows.parquet"
    pl.read_parquet(path).with_columns(change(pl.col(column)).alias(column)).write_parquet(path)
    reseal_bundle(home / "bundle")
    with pytest.raises(Damaged, match=told):
        _ = Bundle(home / "bundle").rows


def test_rows_that_are_there_twice_or_of_another_shape_are_refused(home):
    rows = Bundle(home / "bundle").rows
    with pytest.raises(Damaged, match="one is there twice"):
        validate(rows.vstack(rows[:1]), "here")
    with pytest.raises(Damaged, match="column 'cut' is missing or of another type"):
        validate(rows.drop("cut"), "here")
    with pytest.raises(Damaged, match="column 'length' is missing or of another type"):
        validate(rows.cast({"length": str}), "here")


def test_a_store_of_an_earlier_version_opens_with_one_warning_and_fsck_adds_checksums(home):
    store = home / "store"
    for path in [*store.glob("done/*"), *store.glob("runs/*/1/done")]:
        record = json.loads(path.read_text())
        path.write_text(json.dumps({key: record[key] for key in record.keys() - {"files", "format", "seal", "id"}}))
    study = lw.Study.read(home / "tiny.yaml")
    with pytest.warns(UserWarning, match="was written by an earlier version, without checksums") as told:
        rows, _ = study.rows(str(store)), study.rows(str(store))
    assert len([one for one in told if "earlier version" in str(one.message)]) == 1
    found = lw.fsck(str(store)).found
    assert len(found) == 8 and all("no checksums" in one.what for one in found)
    assert len(lw.fsck(str(store), repair=True).found) == 8
    assert not lw.fsck(str(store)).found and study.rows(str(store)).equals(rows)


def test_fsck_says_what_it_found_and_repairs_it(home, tmp_path):
    store, first = home / "store", _runs(home)[0]
    (store / "failed").mkdir(exist_ok=True)
    (store / "failed" / f"{first}.1").write_text("{")
    (store / "runs" / first / "1" / "checkpoints" / "000000004" / "state.safetensors").write_bytes(b"")
    (store / "runs" / first / "1" / "model.safetensors").write_bytes(b"")
    told = str(lw.fsck(str(store)))
    assert "3 findings" in told and "with --repair: set aside, so that the run is made again" in told
    lw.fsck(str(store), repair=True)
    left = lw.fsck(str(store)).found
    assert not left and not (store / "done" / first).exists()
    with pytest.raises(SpecError, match="there is no store and no bundle"):
        lw.fsck(str(tmp_path / "nowhere"))


@pytest.mark.slow
def test_a_full_disk_pauses_a_study_and_nothing_counts_as_failed(tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY))
    study, told, full = lw.Study.read(tmp_path / "tiny.yaml"), [], [False]
    whole = folder._partial

    def partial(target, data):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        full[0] = "checkpoints" in target and not any(words.startswith("paused") for words in told)
        return whole(target, data)

    def say(words):
        told.append(words)
        if words.startswith("paused"):
            full[0] = False

    monkeypatch.setattr(folder, "_partial", partial)
    monkeypatch.setattr(drive, "_PAUSE", 0.01)
    done = Driver(study.planned, Store(tmp_path / "store"), InProcess(), tell=say).run()
    assert any("the disk is full" in words for words in told)
    assert len(done.done) == 4 and not done.failed and not (tmp_path / "store" / "failed").exists()


def test_a_lost_reply_of_nfs_is_ones_own_file(tmp_path, monkeypatch):
    link = os.link

    def lost(source, target):
        link(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", lost)
    here = folder.Folder(tmp_path)
    assert here.create("a", b"mine") and not here.create("a", b"another")
    assert here.read("a") == b"mine"


@pytest.mark.slow
def test_workers_of_a_killed_parent_end_by_themselves(tmp_path):
    long = {**TINY, "base": {**TINY["base"], "training": "laptop:steps=200000:batch_size=4"}}
    (tmp_path / "long.yaml").write_text(json.dumps(long))
    command = [sys.executable, "-m", "lengthwise", "study", "run", "long.yaml", "--no-ray", "--workers", "2", "--quiet"]
    parent = subprocess.Popen(command, cwd=tmp_path)
    try:
        until(lambda: len(list(tmp_path.glob("lengthwise-store/runs/*/1/train.jsonl"))) == 2, 120, "two runs begin")
        workers = [int(json.loads(one.read_text())["process"]) for one in tmp_path.glob("lengthwise-store/leases/*/1")]
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 60, "the workers end")
    assert len(workers) == 2


@pytest.mark.slow
def test_a_study_from_a_pipe_is_run(tmp_path):
    command = [
        sys.executable,
        "-m",
        "lengthwise",
        "study",
        "run",
        "/dev/stdin",
        "--no-ray",
        "--workers",
        "1",
        "--quiet",
    ]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(TINY), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("lengthwise-store/done/*"))) == 4


@pytest.mark.parametrize(
    "change", [("attempt", 2), ("seconds", 1.5), ("id", "another"), ("validation", None), ("seal", "0")]
)
def test_a_changed_record_is_not_believed(home, change):
    store, first = Store(home / "store"), _runs(home)[0]
    record = json.loads((home / "store" / "done" / first).read_text())
    assert set(store.summaries([first])) == {first}
    (home / "store" / "done" / first).write_text(json.dumps({**record, change[0]: change[1]}))
    with pytest.warns(UserWarning, match="it is not what was recorded"):
        assert not store.summaries([first])


def test_a_checkpoint_under_the_name_of_another_step_is_not_used(home):
    checkpoints = folder.Folder(next((home / "store").glob("runs/*/1/checkpoints")))
    last = newest_checkpoint([checkpoints])[0].step
    shutil.move(f"{checkpoints}/{last:09d}", f"{checkpoints}/{last + 1:09d}")
    assert newest_checkpoint([checkpoints])[0].step == last - 1


def test_a_later_format_is_refused_and_not_taken_for_damage(home):
    """Two drivers of different versions may share a store; the earlier one must not make the later one's runs again."""
    store, first = home / "store", _runs(home)[0]
    record = json.loads((store / "done" / first).read_text())
    later = {**{key: value for key, value in record.items() if key != "seal"}, "format": FORMAT + 1}
    (store / "done" / first).write_text(json.dumps({**later, "seal": _seal(later)}))
    study, before = lw.Study.read(home / "tiny.yaml"), (store / "done" / first).read_bytes()
    for use in (study.status, study.rows, study.run, lambda where: lw.fsck(where, repair=True)):
        with pytest.raises(SpecError, match=r"was written by a later version of lengthwise \(format 3"):
            use(str(store))
    assert (store / "done" / first).read_bytes() == before and not (store / "damaged").exists()


@pytest.mark.slow
def test_only_weights_of_attempts_are_taken_from_what_a_checkpoint_says(home):
    """They may be deleted later, so a checkpoint must not name any other file."""
    stopped = home / "stopped"
    (manifest,) = stopped.glob("runs/*/1/checkpoints/000000004/manifest.json")
    record = json.loads(manifest.read_text())
    (step,) = {one["step"] for one in record["notes"]["validations"]}
    record["notes"]["kept"][str(step)] = "1/checkpoints/000000003/state.safetensors"
    data = (manifest.parents[2] / "checkpoints/000000003/state.safetensors").read_bytes()
    record["notes"]["files"] = {path: checksum(data) for path in record["notes"]["kept"].values()}
    manifest.write_text(json.dumps(sealed({key: record[key] for key in record.keys() - {"seal", "format"}})))
    with pytest.warns(UserWarning, match="000000004 is not used: it or weights that it refers to are damaged"):
        assert _go_on(home)


@pytest.mark.parametrize("target", ["victim", "victim/precious", "loop"])
def test_a_link_that_leads_out_is_not_followed(tmp_path, target):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("mine")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(inside / "link" if target == "loop" else tmp_path / target)
    here = folder.Folder(inside)
    names = ["link", "link/precious"] if target == "victim" else ["link"]
    for name in names if target != "loop" else ():
        for use in (
            here.read,
            here.remove,
            here.exists,
            lambda name: here.write(name, "x"),
            lambda name: here.append(name, "x"),
        ):
            with pytest.raises(SpecError, match="leads out of"):
                use(name)
    with pytest.raises(SpecError):
        here.read("link")
    assert (tmp_path / "victim" / "precious").read_text() == "mine"


def test_a_length_that_is_called_seen_and_was_not_is_refused(home):
    import polars as pl

    path = home / "bundle" / "rows.parquet"
    pl.read_parquet(path).with_columns(pl.lit(True).alias("seen")).write_parquet(path)
    reseal_bundle(home / "bundle")
    study = lw.Study.read(home / "tiny.yaml", with_bundle=home / "bundle")
    with pytest.raises(Damaged, match="of copy:longest=3:variant=same is called seen"):
        study.report(store=str(home / "none"), write=False)


def test_counts_that_no_model_has_to_give_may_be_missing(home):
    """`correct_content` is not known where every answer was decoded, and a loss may not be finite."""
    import polars as pl

    rows = Bundle(home / "bundle").rows
    for name in ("correct_content", "targets", "loss", "chance", "subgroup"):
        assert validate(rows.with_columns(pl.lit(None).cast(rows.schema[name]).alias(name)), "here").height


def test_a_run_that_was_damaged_when_rows_were_cached_comes_back_when_it_is_restored(home, monkeypatch):
    monkeypatch.setattr("lengthwise.study.store._COMPACT", 2)
    store, keys = home / "store", _runs(home)
    rows = store / "runs" / keys[0] / "1" / "rows.parquet"
    data = rows.read_bytes()
    rows.write_bytes(data[:-9])
    with pytest.warns(UserWarning, match="counts as not done"):
        assert keys[0] not in set(Store(store).rows(keys)["run"])
    rows.write_bytes(data)
    assert set(Store(store).rows(keys)["run"]) == set(keys)


def test_a_checkpoint_that_cannot_be_reached_is_not_called_damaged(home, monkeypatch):
    """Otherwise an outage would make a run again, or delete what `fsck --repair` could not read."""
    read = folder.Folder.read

    def away(self, name):
        if name.endswith("state.safetensors"):
            raise folder.Unavailable("cannot read it: the server is away")
        return read(self, name)

    monkeypatch.setattr(folder.Folder, "read", away)
    with pytest.raises(folder.Unavailable):
        _go_on(home)
    with pytest.raises(folder.Unavailable):
        lw.fsck(str(home / "stopped"), repair=True)
    monkeypatch.undo()
    assert len(list((home / "stopped").glob("runs/*/1/checkpoints/*"))) == 2
    assert not (home / "going-on" / "failed").exists(), "an outage is no failure"


@pytest.mark.parametrize(
    ("error", "where", "kind"),
    [
        (OSError(errno.ESTALE, "stale file handle"), "store", folder.Unavailable),
        (OSError(errno.EHOSTUNREACH, "no route to host"), "store", folder.Unavailable),
        (ConnectionResetError("reset"), "store", folder.Unavailable),
        (OSError(errno.EIO, "slow down"), "s3://bucket/store", folder.Unavailable),
        (OSError(errno.EIO, "bad sector"), "store", SpecError),
        (OSError(errno.EISDIR, "is a directory"), "s3://bucket/store", SpecError),
    ],
)
def test_only_trouble_that_passes_pauses_a_study(error, where, kind):
    with pytest.raises(SpecError) as raised, folder.readable_errors("read", where):
        raise error
    assert type(raised.value) is kind


def test_a_store_that_cannot_be_read_for_a_moment_pauses_the_driver(home, monkeypatch):
    """The driver reads the store between runs; an outage in that moment must not end the study."""
    state, calls, said = Store.state, [], []

    def away_once(self):
        calls.append(None)
        if len(calls) == 1:
            raise folder.Unavailable("cannot read the store: the server is away")
        return state(self)

    monkeypatch.setattr(Store, "state", away_once)
    monkeypatch.setattr(drive, "_PAUSE", 0.01)
    tally = Driver(
        lw.Study.read(home / "tiny.yaml").planned, Store(home / "store"), InProcess(), tell=said.append
    ).run()
    assert not tally.failed and len(calls) > 1
    assert any("paused" in words and "the server is away" in words for words in said)


def test_a_lease_that_could_not_be_released_is_released_with_the_next_one(tmp_path, monkeypatch):
    """Otherwise the attempt would count as one whose process died, and three of those fail the run."""
    store, write = folder.Folder(tmp_path), folder.Folder.write
    lease = Lease.take(store, "a")
    assert lease is not None

    def away(self, name, data):
        raise folder.Unavailable("cannot write it: the server is away")

    monkeypatch.setattr(folder.Folder, "write", away)
    with pytest.raises(folder.Unavailable):
        lease.release("stopped")
    monkeypatch.setattr(folder.Folder, "write", write)
    assert json.loads((tmp_path / "leases" / "a" / "1").read_text())["state"] != "stopped"
    other = Lease.take(store, "b")
    assert other is not None
    other.release("stopped")
    assert json.loads((tmp_path / "leases" / "a" / "1").read_text())["state"] == "stopped"


def test_a_store_that_stays_away_does_not_stop_work_on_another_one(tmp_path, monkeypatch):
    away, here, write = folder.Folder(tmp_path / "away"), folder.Folder(tmp_path / "here"), folder.Folder.write
    lease = Lease.take(away, "a")
    assert lease is not None

    def refuse(self, name, data):
        if str(self).startswith(str(away)):
            raise folder.Unavailable("cannot write it: the server is away")
        return write(self, name, data)

    monkeypatch.setattr(folder.Folder, "write", refuse)
    with pytest.raises(folder.Unavailable):
        lease.release("stopped")
    other = Lease.take(here, "b")
    assert other is not None
    other.release("stopped")
    monkeypatch.setattr(folder.Folder, "write", write)
    Lease.take(here, "c").release("stopped")
    assert json.loads((tmp_path / "away" / "leases" / "a" / "1").read_text())["state"] == "stopped"


def test_a_table_with_too_many_lines_is_not_read_into_memory(home, monkeypatch):
    monkeypatch.setattr("lengthwise.evaluation.rows._MOST_ROWS", 3)
    with pytest.raises(Damaged, match="more than the 3 that are read"):
        assert Bundle(home / "bundle").rows


@pytest.mark.parametrize("shard", ["../victim.safetensors", "/tmp/victim.safetensors", "pytorch_model.bin", 3])
def test_a_model_folder_names_no_weights_outside_it(home, shard):
    pytest.importorskip("transformers")
    index = {"metadata": {}, "weight_map": {"embedding.weight": shard}}
    (home / "exported" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Damaged, match="no safetensors file of this folder"):
        _logits(home)


def test_a_pipe_in_a_model_folder_is_not_waited_for(home):
    pytest.importorskip("transformers")
    os.mkfifo(home / "exported" / "extra.safetensors")
    with pytest.raises(Damaged, match="is not a regular file"):
        _logits(home)


@pytest.mark.slow
def test_a_report_of_a_foreign_bundle_starts_no_git(home, monkeypatch):
    """The configuration of a foreign repository can name programs to run."""
    subprocess.run(["git", "init", "-q", str(home)], check=True)
    started, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *words, **more: started.append(more["cwd"]) or run(*words, **more))
    study = lw.Study.read(home / "tiny.yaml", with_bundle=home / "bundle")
    study.report(home / "page", store=str(home / "none"))
    assert (home / "page" / "index.html").is_file()
    assert not [folder for folder in started if Path(folder).resolve().is_relative_to(home.resolve())]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/home/me/pe.py:Mine:strength=2", "pe.py:Mine:strength=2"),
        ("3*~/pe.py:Mine,nope", "3*pe.py:Mine,nope"),
        ("file:path=/data/a b/x.jsonl:longest=4", "file:path=x.jsonl:longest=4"),
        ("my.py:Mine:operators=*/%", "my.py:Mine:operators=*/%"),
        ("my.py:Mine:regex=(a|/b)", "my.py:Mine:regex=(a|/b)"),
        ("rope:theta=500.0", "rope:theta=500.0"),
    ],
)
def test_only_folders_of_files_are_left_out_of_options(text, told):
    assert folder.without_paths(text) == told
    assert folder.without_paths({"name": "file", "path": "/data/x.jsonl"}) == {"name": "file", "path": "x.jsonl"}
