"""Checkpoints are whole or do not count."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lengthwise.folder import Folder
from lengthwise.spec import SpecError
from lengthwise.training.checkpoint import MANIFEST, STATE, newest_checkpoint, save_checkpoint
from lengthwise.training.parallel import DistributedProcesses


def tensors(step):
    return {"model.a": torch.full((3, 3), float(step)), "exp_avg.a": torch.ones(2)}


@pytest.fixture
def place(tmp_path):
    folder = Folder(tmp_path) / "checkpoints"
    for step in (10, 20, 30):
        save_checkpoint(folder, step, tensors(step), {"step": step})
    return folder


def test_the_newest_is_found_and_two_are_kept(place):
    assert place.names() == ["000000020", "000000030"]
    found, torn = newest_checkpoint([place])
    assert found.step == 30 and found.notes == {"step": 30} and torn == []
    assert torch.equal(found.tensors()["model.a"], tensors(30)["model.a"])


@pytest.mark.parametrize("how", ["no manifest", "half a manifest", "short", "flipped", "no file", "empty"])
def test_a_torn_checkpoint_is_detected_and_the_previous_one_used(place, how):
    here = place.local / "000000030"
    state, manifest = here / STATE, here / MANIFEST
    data = state.read_bytes()
    if how == "no manifest":
        manifest.unlink()
    elif how == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif how == "short":
        state.write_bytes(data[:-1])
    elif how == "flipped":
        state.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "no file":
        state.unlink()
    else:
        state.write_bytes(b"")
    found, torn = newest_checkpoint([place])
    assert found.step == 20 and [name.endswith("000000030") for name in torn] == [True]


def test_notes_are_sealed_too(place):
    """The notes name files that are later removed, so a changed note makes the checkpoint incomplete."""
    manifest = place.local / "000000030" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"step": 30\n', '"step": 31\n'))
    assert newest_checkpoint([place])[0].step == 20


def test_a_pickled_checkpoint_is_refused_and_not_read(tmp_path):
    """Sharded checkpoints were pickled once. Anybody can make one whose manifest is complete: it is not opened."""
    here, canary = tmp_path / "000000010", tmp_path / "canary"

    class Evil:
        def __reduce__(self):
            return Path.touch, (canary,)

    here.mkdir()
    (here / ".metadata").write_bytes(pickle.dumps(Evil()))
    (here / MANIFEST).write_text(json.dumps({"version": 1, "step": 10, "files": {}, "notes": {}}))
    found, _ = newest_checkpoint([Folder(tmp_path)])
    with pytest.raises(SpecError, match="pickled"):
        found.tensors()
    assert not canary.exists()


def test_a_part_of_a_tensor_that_does_not_fit_is_refused(tmp_path):
    folder = Folder(tmp_path)
    save_checkpoint(folder, 1, {"a": torch.ones(4, 2)}, {}, DistributedProcesses(shard=True))
    (file,) = [name for name in (folder / "000000001").names() if name != MANIFEST]
    found, _ = newest_checkpoint([folder])
    assert torch.equal(found.tensors()["a"], torch.ones(4, 2))
    for part in ({"shape": [4, 3], "begin": 0}, {"shape": [4, 2], "begin": 1}, {"shape": [4, 2], "begin": -1}):
        with pytest.raises(SpecError, match="does not fit"):
            replace(found, shards={file: {"a": part}}).tensors()


def test_the_newest_of_several_attempts_counts(tmp_path):
    places = [Folder(tmp_path) / name for name in ("1", "2")]
    save_checkpoint(places[0], 50, tensors(50), {})
    save_checkpoint(places[1], 40, tensors(40), {})
    assert newest_checkpoint(places)[0].step == 50
    assert newest_checkpoint([Folder(tmp_path) / "none"]) == (None, [])


def test_any_fsspec_path(tmp_path):
    folder = Folder("memory://checkpoints-test")
    save_checkpoint(folder, 5, tensors(5), {"a": 1})
    found, _ = newest_checkpoint([folder])
    assert found.step == 5 and torch.equal(found.tensors()["model.a"], tensors(5)["model.a"])
    folder.fs.rm(folder.path, recursive=True)


def test_a_folder_creates_a_name_once(tmp_path):
    for folder in (Folder(tmp_path), Folder("memory://create-test")):
        assert folder.create("a/b", "one") and not folder.create("a/b", "two")
        assert folder.read("a/b") == b"one"
        folder.append("log", "x\n")
        folder.append("log", "y\n")
        assert folder.read("log") == b"x\ny\n"
        folder.remove("log")
        folder.remove("log")
        assert folder.names() == ["a"]
        with pytest.raises(SpecError, match="there is no"):
            folder.read("log")


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/passwd", "..", "", "a\0b"])
def test_a_name_that_leads_out_of_a_folder_is_refused(tmp_path, name):
    (tmp_path / "out").mkdir()
    for folder in (Folder(tmp_path / "in"), Folder("memory://inside")):
        for use in (folder.read, folder.remove, folder.__truediv__, lambda name, f=folder: f.write(name, "x")):
            with pytest.raises(SpecError, match="no name of a file inside"):
                use(name)
    assert (tmp_path / "out").exists()


def test_a_link_that_leads_out_of_a_folder_is_not_followed(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("kept")
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "real")  # the folder that the user names may be a link itself
    store = Folder(tmp_path / "store")
    store.write("runs/a", "own")
    (tmp_path / "real" / "runs" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "real" / "runs" / "inner").symlink_to(tmp_path / "real" / "runs" / "a")
    assert store.read("runs/inner") == b"own"
    for use in ((store / "runs").read, (store / "runs").remove, lambda name: (store / "runs").write(name, "changed")):
        with pytest.raises(SpecError, match="leads out of"):
            use("link/file")
    with pytest.raises(SpecError, match="leads out of"):
        (store / "runs" / "link").read("file")
    assert (tmp_path / "victim" / "file").read_text() == "kept"
