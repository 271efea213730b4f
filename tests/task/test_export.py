"""A folder that others read: whole or not there, and it says how it was made."""

import json
import os
from pathlib import Path

import polars
import pytest

from lengthwise import __version__
from lengthwise.corpora import read_texts
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.export import COLUMNS, write_task_dataset
from tests.test_cli import run


@pytest.mark.slow
def test_what_fails_halfway_leaves_nothing_behind_and_can_be_tried_again(tmp_path):
    task, to = build_task("parity"), tmp_path / "deep" / "there"

    def fail(split):
        if split == "test_seen":
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            write_task_dataset(task, "parity", to, 10, on_progress=fail)
        assert not to.exists()
    assert write_task_dataset(task, "parity", to, 10)["train"] == 10
    assert sorted(os.listdir(to.parent)) == ["there"]


@pytest.mark.slow
def test_an_empty_folder_that_is_there_is_filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".lengthwise-export-1").mkdir()  # of one that was killed
    write_task_dataset(build_task("parity"), "parity", tmp_path, 10)
    assert {"README.md", "vocabulary.json", "train.parquet"} <= set(os.listdir(tmp_path))
    assert f".lengthwise-export-{os.getpid()}" not in os.listdir(tmp_path)


def test_it_says_how_it_was_made_and_what_its_ids_and_columns_are(tmp_path):
    name, to = "addition:longest=4", tmp_path / "a folder"
    write_task_dataset(build_task(name), name, to, 20, seed=7)
    card = (to / "README.md").read_text()
    assert "lengthwise export addition:longest=4 --to 'a folder' --examples 20 --seed 7\n" in card
    assert f"lengthwise {__version__};" in card
    table = polars.read_parquet(to / "train.parquet")
    assert list(COLUMNS) == table.columns
    assert all(f"| `{column}` |" in card for column in table.columns)
    symbols = json.loads((to / "vocabulary.json").read_text())
    row = table.row(0, named=True)
    shown = [symbols[number] for number in row["ids"]]
    assert shown == ["<bos>", *row["prompt"].split(), *row["answer"].split(), "<eos>"]


@pytest.mark.parametrize("given", [{"examples": 5}, {"seed": 3}])
def test_the_originals_training_set_is_as_it_is(tmp_path, given):
    with pytest.raises(SpecError, match=f"leave out {next(iter(given))} under protocol paper"):
        write_task_dataset(build_task("parity:protocol=paper"), "parity", tmp_path / "there", **given)
    assert not list(tmp_path.iterdir())


def test_where_it_cannot_write_is_told(tmp_path):
    task, file = build_task("parity"), tmp_path / "file"
    file.write_text("")
    for to, said in ((file, "is a file; give a new folder"), (file / "x", "Not a directory; give another folder")):
        with pytest.raises(SpecError, match=said):
            write_task_dataset(task, "parity", to, 10)
    with pytest.raises(SpecError, match="cannot write to '/proc/x': "):
        write_task_dataset(task, "parity", Path("/proc/x"), 10)
    assert not list(tmp_path.glob(".*"))


def test_a_folder_one_may_not_write_into(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # root, who may run this, may write anywhere
    with pytest.raises(SpecError, match="Permission denied; give another folder"):
        write_task_dataset(build_task("parity"), "parity", tmp_path / "x", 10)


@pytest.mark.slow
def test_lengths_count_the_steps_of_an_export_and_say_so(tmp_path):
    write_task_dataset(build_task("parity:scratchpad=full"), "parity", tmp_path / "there", 10)
    path, told = tmp_path / "there" / "train.parquet", []
    found = list(read_texts(path, None, told.extend))
    row = polars.read_parquet(path).row(0, named=True)
    assert found[0] == f"{row['prompt']} {row['steps']} {row['answer']}"
    assert told == ["prompt", "steps", "answer"]
    assert "counted: prompt, steps, answer\n" in run("lengths", str(path)).stdout


def test_show_takes_the_first_length_that_a_split_has_where_it_has_not_the_longest(tmp_path):
    for split, length in (("train", 8), ("test_seen", 8), ("test_unseen", 9), ("test_far", 20)):
        assert f"{split}, length {length} (digits)" in run("show", "addition", "--split", split).stdout
