"""Checkpoints are whole or do not count."""

import pytest
import torch

from lengthwise.folder import Folder
from lengthwise.spec import SpecError
from lengthwise.training.checkpoint import MANIFEST, STATE, newest_checkpoint, save_checkpoint


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
    assert torch.equal(found.tensors(dict)["model.a"], tensors(30)["model.a"])


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
    assert found.step == 5 and torch.equal(found.tensors(dict)["model.a"], tensors(5)["model.a"])
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
