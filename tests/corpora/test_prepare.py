"""Text to token shards: nothing is lost, nothing is made twice, and every damage is named."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import PathDistribution
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest
import tokenizers

from lengthwise.checksums import Damaged
from lengthwise.corpora import python_code
from lengthwise.corpora.documents import find_parts, split_of
from lengthwise.corpora.prepare import LIST, ShardJob, make_shard, prepare
from lengthwise.corpora.python_code import COLUMNS, LARGEST_SHARE, _limited, _sharing, _shingles, _sides
from lengthwise.corpora.shards import Corpus, shard_record
from lengthwise.corpora.tokens import START, Tokenizer
from lengthwise.folder import Folder
from lengthwise.spec import SpecError

HOW = {"vocabulary": 300, "validation": 0.15, "test": 0.3, "shard_size": 200_000}


def quiet(words):
    pass


def documents_of(corpus):
    """Key → text of all documents, decoded from the shards, and the split of each."""
    found, splits = {}, {}
    for split in ("train", "validation", "test"):
        for shard in corpus.shards(split):
            keys, starts = shard.documents
            for number, key in enumerate(keys):
                ids = shard.read(int(starts[number]), int(starts[number + 1]))
                assert ids[0] == corpus.tokenizer.start
                found[key], splits[key] = corpus.tokenizer.decode(ids.tolist()), split
    return found, splits


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_every_document_is_there_once_and_can_be_read_again(texts, corpus):
    found, splits = documents_of(Corpus(corpus))
    wanted = {str(path.relative_to(texts)): path.read_text("utf-8") for path in texts.rglob("*.py")}
    assert found == wanted
    assert all(splits[key] == split_of(key, 0.15, 0.3, False) for key in wanted)
    assert min(list(splits.values()).count(name) for name in ("train", "validation", "test")) > 3


def test_documents_are_in_the_order_of_their_keys(corpus):
    for split in ("train", "validation", "test"):
        keys = [key for shard in Corpus(corpus).shards(split) for key in shard.documents[0]]
        assert keys == sorted(keys) and keys


@pytest.mark.slow
def test_the_tokenizer_has_seen_training_documents_alone(texts, corpus, tmp_path):
    """A word that is in test documents alone becomes no token."""
    shutil.copytree(texts, tmp_path / "more")
    for path in (tmp_path / "more").rglob("*.py"):
        key = str(path.relative_to(tmp_path / "more"))
        if split_of(key, 0.15, 0.3, False) != "train":
            path.write_text("zqzqzq " * 2000)
    prepare(str(tmp_path / "more"), str(tmp_path / "out"), workers=1, say=quiet, **{**HOW, "vocabulary": 400})
    assert not [one for one in Corpus(tmp_path / "out").tokenizer.symbols if "zqz" in one]
    for path in (tmp_path / "more").rglob("*.py"):
        path.write_text("zqzqzq " * 2000)
    prepare(str(tmp_path / "more"), str(tmp_path / "seen"), workers=1, say=quiet, **{**HOW, "vocabulary": 400})
    assert [one for one in Corpus(tmp_path / "seen").tokenizer.symbols if "zqz" in one]


def test_text_that_spells_a_special_token_is_text():
    tokenizer = Tokenizer.train(["a text"], 300)
    (ids,) = tokenizer.encode([f"before {START} after"])
    assert (ids == tokenizer.start).sum() == 1 and tokenizer.decode(ids[1:].tolist()) == f"before {START} after"


def test_a_tokenizer_that_cuts_or_pads_does_neither_to_documents():
    plain = Tokenizer.train(["a text of some words"], 300)
    for kind, how in (("truncation", {"max_length": 3}), ("padding", {"length": 50})):
        made = tokenizers.Tokenizer.from_str(plain.data.decode())
        getattr(made, f"enable_{kind}")(**how)
        given = Tokenizer(made.to_str().encode())
        assert given.data != plain.data
        assert given.encode(["some words of a text"])[0].tolist() == plain.encode(["some words of a text"])[0].tolist()


def test_a_folder_is_in_one_split(texts, tmp_path):
    for number in range(30):
        (tmp_path / "in" / f"p{number}").mkdir(parents=True)
        for name in ("a", "b"):
            (tmp_path / "in" / f"p{number}" / f"{name}.txt").write_text(f"{number} {name} " * 50)
    prepare(str(tmp_path / "in"), str(tmp_path / "out"), split_by_folder=True, workers=1, say=quiet, **HOW)
    _, splits = documents_of(Corpus(tmp_path / "out"))
    sides = {}
    for key, split in splits.items():
        sides.setdefault(key.partition("/")[0], set()).add(split)
    assert len(sides) == 30 and all(len(own) == 1 for own in sides.values())


@pytest.mark.slow
def test_rows_of_tables_and_datasets_are_documents(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [f"row {number} has the text {number * number}" for number in range(200)]
    (tmp_path / "in").mkdir()
    lines = "\n".join(json.dumps({"body": row}) for row in rows)
    (tmp_path / "in" / "a.jsonl").write_text(lines)
    datasets.Dataset.from_dict({"body": rows}).save_to_disk(str(tmp_path / "set"))
    for source in (str(tmp_path / "in"), f"dataset:{tmp_path / 'set'}"):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        prepare(source, str(tmp_path / "out"), fields=["body"], workers=1, say=quiet, **HOW)
        found, splits = documents_of(Corpus(tmp_path / "out"))
        assert sorted(found.values()) == sorted(rows) and set(splits.values()) == {"train", "validation", "test"}


def test_a_source_that_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(SpecError, match="there are no files in 'nowhere") as raised:
        prepare("nowhere/*.txt", str(tmp_path / "out"), say=quiet)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_file_that_is_no_text_is_named(tmp_path, workers):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number}.txt").write_text("good " * 500)
    (tmp_path / "in" / "x.txt").write_bytes(b"bad \xff\xfe")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(Tokenizer.train(["good text"], 300).data)
    how = {**HOW, "shard_size": 1_000, "tokenizer": str(tokenizer)}
    with pytest.raises(SpecError, match=r"x\.txt is not UTF-8") as raised:
        prepare(str(tmp_path / "in"), str(tmp_path / "out"), workers=workers, ray=False, say=quiet, **how)
    assert "\n" not in str(raised.value)


# --- who makes it ----------------------------------------------------------------------------------------------------


def files_of(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}


@pytest.mark.slow
def test_processes_write_the_same_bytes(texts, corpus, tmp_path):
    made = prepare(str(texts), str(tmp_path / "out"), workers=2, ray=False, say=quiet, **HOW)
    assert made.new_shards > 2 and files_of(tmp_path / "out") == files_of(corpus)


@pytest.mark.evidence  # with a killed worker it is a slow test
def test_ray_data_writes_the_same_bytes(texts, corpus, tmp_path):
    pytest.importorskip("ray.data")
    made = prepare(str(texts), str(tmp_path / "out"), workers=2, ray=True, say=quiet, **HOW)
    assert made.new_shards > 2 and files_of(tmp_path / "out") == files_of(corpus)


def test_only_what_is_missing_is_made(texts, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "out")
    assert prepare(str(texts), str(tmp_path / "out"), workers=1, say=quiet, **HOW).new_shards == 0
    record = tmp_path / "out" / "shards" / "00001.json"
    record.write_text(record.read_text()[:-3])  # half a record counts as none
    assert prepare(str(texts), str(tmp_path / "out"), workers=1, say=quiet, **HOW).new_shards == 1
    assert files_of(tmp_path / "out") == files_of(corpus)


def test_another_source_does_not_go_into_a_finished_corpus(texts, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "out")
    shutil.copytree(texts, tmp_path / "in")
    first = next((tmp_path / "in").rglob("*.py"))
    first.write_text(first.read_text() + "\nchanged = True\n")
    with pytest.raises(SpecError, match="give another folder"):
        prepare(str(tmp_path / "in"), str(tmp_path / "out"), workers=1, say=quiet, **HOW)


SCRIPT = """
import sys, time
from lengthwise.corpora import prepare as module
make = module.make_shard
def slowly(job):
    time.sleep(0.4)
    return make(job)
module.make_shard = slowly
module.prepare(sys.argv[1], sys.argv[2], workers=1, say=lambda words: None, **%r)
"""


@pytest.mark.slow
def test_a_killed_driver_loses_nothing_that_was_finished(texts, corpus, tmp_path, figure):
    place = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT % HOW, str(texts), str(place)])
    until = time.monotonic() + 60
    while len(list(place.glob("shards/*.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in place.glob("shards/*.json")}
    assert before and not (place / "corpus.json").exists()
    with pytest.raises(SpecError, match="there is no prepared corpus"):
        Corpus(place)
    made = prepare(str(texts), str(place), workers=1, say=quiet, **HOW)
    after = {path.name: path.stat().st_mtime_ns for path in place.glob("shards/*.json")}
    assert {name: after[name] for name in before} == before, "a finished shard was written again"
    assert files_of(place) == files_of(corpus)
    figure(f"driver killed with {len(before)} shards done: {made.new_shards} made afterwards, bytes as uninterrupted")


@pytest.mark.slow
@pytest.mark.parametrize("ray", [False, True], ids=["processes", "Ray Data"])
def test_a_killed_worker_loses_no_shard(texts, corpus, tmp_path, ray, figure):
    """Workers are killed with SIGKILL while they tokenize."""
    if ray:
        pytest.importorskip("ray.data")
    place, killed = tmp_path / "out", 0
    big = tmp_path / "in"
    for copy in range(6):
        shutil.copytree(texts, big / f"copy{copy}")
    how = {**HOW, "shard_size": 150_000}
    code = "import sys; from lengthwise.corpora.prepare import prepare; "
    code += f"prepare(sys.argv[1], sys.argv[2], workers=2, ray={ray}, say=lambda words: None, **{how!r})"
    process = subprocess.Popen([sys.executable, "-c", code, str(big), str(place)])
    chosen, until = random.Random(0), time.monotonic() + 200
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
        if killed < 3 and len(list(place.glob("shards/*.json"))) > 2 * killed:
            marks = ("ray::Map", "ray::_ray_row") if ray else ("lengthwise.corpora.prepare",)
            found = [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if any(mark in " ".join(child.cmdline()) for mark in marks)
            ]
            if found:
                os.kill(chosen.choice(found).pid, signal.SIGKILL)
                killed += 1
    assert process.wait(timeout=10) == 0 and killed == 3
    prepare(str(big), str(tmp_path / "calm"), workers=1, say=quiet, **how)
    assert files_of(place) == files_of(tmp_path / "calm")
    figure(f"{killed} workers killed ({'Ray Data' if ray else 'processes'}): every shard there, bytes as undisturbed")


# --- damage ----------------------------------------------------------------------------------------------------------


def test_damaged_tokens_are_named(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "out")
    file = tmp_path / "out" / "shards" / "00001-train.tokens"
    data = bytearray(file.read_bytes())
    data[1001] ^= 1
    file.write_bytes(bytes(data))
    shards = Corpus(tmp_path / "out").shards("train")
    shards[0].read(0, 100)
    with pytest.raises(Damaged, match=r"00001-train\.tokens at byte 0 is damaged"):
        shards[1].read(400, 600)
    file.write_bytes(bytes(data[:-2]))
    with pytest.raises(Damaged, match=r"00001-train\.tokens is damaged"):
        Corpus(tmp_path / "out").shards("train")[1].read(400, 600)


def test_a_damaged_shard_is_made_again_by_what_its_message_says(texts, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "out")
    file = tmp_path / "out" / "shards" / "00001-train.tokens"
    file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(Damaged, match=r"delete (.*00001\.json)") as told:
        Corpus(tmp_path / "out").shards("train")[1].read(400, 600)
    Path(re.search(r"delete (\S*00001\.json)", str(told.value))[1]).unlink()
    again = prepare(str(texts), str(tmp_path / "out"), workers=1, say=quiet, **HOW)
    assert again.new_shards == 1 and again.corpus.content == Corpus(corpus).content


def test_shards_of_other_documents_are_not_read_as_this_corpus(texts, corpus, tmp_path):
    """Prepared again with other documents into the same folder, and killed before the end."""
    shutil.copytree(corpus, tmp_path / "out")
    shutil.copytree(texts, tmp_path / "texts")
    for path in (tmp_path / "texts").rglob("*.py"):
        path.write_text(path.read_text(errors="replace")[::-1])
    (tmp_path / "given.json").write_bytes((tmp_path / "out" / "tokenizer.json").read_bytes())
    prepare(str(tmp_path / "texts"), str(tmp_path / "other"), workers=1, say=quiet, **HOW)
    for file in (tmp_path / "other" / "shards").iterdir():
        shutil.copy(file, tmp_path / "out" / "shards" / file.name)
    with pytest.raises(Damaged, match="is not of this corpus"):
        Corpus(tmp_path / "out").shards("train")[0].read(0, 10)


def test_other_fields_are_another_tokenizer(tmp_path):
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"code": f"def f{n}(): pass " * 60, "prose": f"the number {n} " * 60}) for n in range(60)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines))
    how = {"workers": 1, "say": quiet, **HOW}
    prepare(str(tmp_path / "in"), str(tmp_path / "out"), fields=["code"], **how)
    with pytest.raises(SpecError, match="another tokenizer or other documents"):
        prepare(str(tmp_path / "in"), str(tmp_path / "out"), fields=["prose"], **how)


@pytest.mark.parametrize("kind", ["table", "record"])
def test_a_damaged_table_or_record_is_named(corpus, tmp_path, kind):
    shutil.copytree(corpus, tmp_path / "out")
    shard = Corpus(corpus).shards("test")[0]
    name = f"{shard.name}.documents" if kind == "table" else f"{shard.number:05d}.json"
    file = tmp_path / "out" / "shards" / name
    file.write_bytes(file.read_bytes().replace(b"package0", b"package9").replace(b'"documents"', b'"Documents"'))
    with pytest.raises(Damaged, match=name):
        _ = Corpus(tmp_path / "out").shards("test")[0].documents


def test_another_tokenizer_in_the_folder_is_refused(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").write_bytes(Tokenizer.train(["other"], 300).data)
    with pytest.raises(Damaged, match="is not the tokenizer of this corpus"):
        _ = Corpus(tmp_path / "out").tokenizer


def test_jobs_are_text_and_depend_on_content_not_on_place(texts):
    parts = tuple(find_parts(str(texts)))
    job = ShardJob(3, parts, "here", "abc", ("text",), 0.1, 0.2, True)
    assert ShardJob.read(job.line()) == job
    assert job.digest == ShardJob(4, parts, "elsewhere", "abc", ("text",), 0.1, 0.2, True).digest
    assert job.digest != ShardJob(3, parts[1:], "here", "abc", ("text",), 0.1, 0.2, True).digest


# --- on S3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_corpus_on_s3_has_the_same_content_and_is_read_through_faults(texts, corpus, figure):
    for module in ("s3fs", "moto", "werkzeug"):
        pytest.importorskip(module)
    from tests.study.server import BUCKET, served

    with served() as door:
        place = f"s3://{BUCKET}/corpus"
        with door.faulty(methods=("PUT",), refused=0.2, lost=0.1) as counts:
            prepare(str(texts), place, workers=1, say=quiet, **HOW)
        remote, local = Corpus(place), Corpus(corpus)
        assert remote.content == local.content and sum(counts.values()) > 0
        with door.faulty(methods=("GET",), refused=0.2, lost=0.1) as counts:
            for split in ("train", "test"):
                for one, other in zip(remote.shards(split), local.shards(split), strict=True):
                    assert one.documents[0] == other.documents[0]
                    for start in range(0, one.tokens - 700, 9_000):
                        assert np.array_equal(one.read(start, start + 700), other.read(start, start + 700))
        figure(f"a corpus on S3, read with {dict(counts)}: every token as on this disk")
        name = "shards/00000-train.tokens"
        data = bytearray(Folder(place).read(name))
        data[77] ^= 1
        Folder(place).write(name, bytes(data))
        with pytest.raises(Damaged, match=r"00000-train.tokens at byte 0 is damaged"):
            Corpus(place).shards("train")[0].read(0, 10)


# --- Python code of this machine -------------------------------------------------------------------------------------


def test_packages_that_share_files_are_on_one_side():
    text = "\n".join(f"line number {n} of a shared file" for n in range(40)).encode()
    other = "\n".join(f"another line {n}, nothing shared" for n in range(40)).encode()
    shingles = {"a": [_shingles(text)], "b": [_shingles(other), _shingles(text[:-30])], "c": [_shingles(other[::-1])]}
    together = _sharing(shingles)
    assert together["a"] == together["b"] != together["c"]
    rows = [{"package": name, "bytes": 100} for name in "abc" for _ in range(10)]
    for share in (0.3, 0.4, 0.7):
        sides = _sides(rows, together, 0.1, share)
        assert set(sides) == set(together.values())


def test_no_package_has_more_than_its_share():
    packages = [f"p{n % 40}" for n in range(900)] + ["huge"] * 2000
    rows = [
        {"package": package, "path": str(n), "bytes": 100, "sha256": f"{n * 7919 % 1009:05d}"}
        for n, package in enumerate(packages)
    ]
    for most in (None, 40_000):
        kept = _limited(rows, most)
        total = sum(row["bytes"] for row in kept)
        own = sum(row["bytes"] for row in kept if row["package"] == "huge")
        assert 0.1 * total < own <= LARGEST_SHARE * total and (most is None or total <= most)


def test_of_two_packages_with_one_name_the_one_that_is_imported_is_listed(tmp_path, monkeypatch):
    """As in an environment that also sees the packages of another."""
    found = []
    for home, file in (("first", "new.py"), ("second", "old.py")):
        (info := tmp_path / home / "twice-1.0.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twice\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{file},,\n")
        (tmp_path / home / file).write_text("x = 1\n" * 500)
        found.append(PathDistribution(info))
    monkeypatch.setattr(python_code, "distributions", lambda: found)
    listed = {name: (root, files) for name, _, _, root, files in python_code._packages()}
    assert listed["twice"] == (tmp_path / "first", ["new.py"])
    assert python_code.locate({"twice": "1.0"})["twice"] == tmp_path / "first"
    expected = r"twice 2\.0 \(1\.0 is installed\), gone 3 \(not installed\).*twice==2\.0 gone==3"
    with pytest.raises(SpecError, match=expected):
        python_code.locate({"twice": "2.0", "gone": "3"})


@pytest.mark.slow
def test_python_code_of_this_machine_becomes_a_corpus_with_a_list_that_makes_it_again(tmp_path, figure):
    made = prepare("python-code", str(tmp_path / "one"), most_bytes=3_000_000, workers=1, say=quiet, vocabulary=512)
    listed = pl.read_parquet(tmp_path / "one" / LIST)
    assert listed.columns == list(COLUMNS) and listed["sha256"].n_unique() == listed.height
    sides = listed.group_by("package").agg(pl.col("split").n_unique())
    assert sides["split"].max() == 1 and set(listed["split"]) == {"train", "validation", "test"}
    assert not listed.filter(pl.col("path").str.contains("_vendor/|site-packages/")).height
    again = prepare(str(tmp_path / "one" / LIST), str(tmp_path / "two"), workers=1, say=quiet, vocabulary=512)
    assert again.corpus.content == made.corpus.content
    figure(f"{listed.height} files of {listed['package'].n_unique()} packages, content {made.corpus.content}")
    changed = listed.with_columns(pl.lit("0" * 64).alias("sha256"))
    changed.write_parquet(tmp_path / "wrong.parquet")
    with pytest.raises(SpecError, match="its content has changed"):
        prepare(str(tmp_path / "wrong.parquet"), str(tmp_path / "three"), workers=1, say=quiet, vocabulary=512)


def test_a_shard_is_found_by_its_job(corpus, texts):
    folder = Folder(corpus)
    record = shard_record(folder, 0)
    assert record is not None and shard_record(folder, 0, record["job"]) == record
    assert shard_record(folder, 0, "another") is None and shard_record(folder, 99) is None
    with pytest.raises(SpecError, match="another tokenizer"):
        make_shard(ShardJob(99, tuple(find_parts(str(texts))), corpus, "0" * 64, None, 0.1, 0.1, False))
