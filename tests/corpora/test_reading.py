"""Reading a corpus: every kind of file, and every mistake with its line."""

import gzip
import json
import subprocess
import sys

import polars as pl
import pytest

from lengthwise.corpora import read_texts
from lengthwise.corpora.reading import USUAL
from lengthwise.spec import SpecError


def write(path, *lines):
    """A file with one JSON value, or raw text, per line."""
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    body = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(body) if path.suffix == ".gz" else body)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a.jsonl.gz", "A.JSONL"])
def test_json_lines_hold_objects_or_strings(tmp_path, name):
    path = write(tmp_path / name, {"text": "one two"}, "", '"three"', {"text": "four", "id": 4})
    assert list(read_texts(path)) == ["one two", "three", "four"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md", "a"])
def test_text_has_a_document_per_line_and_blank_lines_are_skipped(tmp_path, name):
    path = write(tmp_path / name, "one two", "", " \t", "  three\u2028four\r", '{"text": "five"}')
    assert list(read_texts(path)) == ["one two", "  three\u2028four", '{"text": "five"}']


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n')
    assert list(read_texts(tmp_path / "a.jsonl")) == ["one"]


def test_parquet_is_read_in_slices_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("lengthwise.corpora.reading._ROWS", 7)
    rows = [f"row {i}" for i in range(20)]
    pl.DataFrame({"id": range(20), "text": rows}).write_parquet(tmp_path / "a.parquet", row_group_size=6)
    assert list(read_texts(tmp_path / "a.parquet")) == rows
    assert list(read_texts(tmp_path / "a.parquet", ["text", "id"]))[19] == "row 19 19"


def test_parquet_holds_messages_nulls_and_names_with_brackets(tmp_path):
    chat = [[{"role": "user", "content": "hi you"}, {"role": "assistant", "content": None}], None]
    path = tmp_path / "part[0]*.parquet"
    pl.DataFrame({"messages": chat}).write_parquet(path)
    assert list(read_texts(path)) == ["hi you", ""]


@pytest.mark.parametrize("usual", USUAL)
def test_usual_fields_are_found_and_joined_by_a_space(tmp_path, usual):
    document = {name: f"the {name}" for name in usual} | {"id": 7, "title": "no"}
    wanted = " ".join(f"the {name}" for name in usual)
    if usual == ("messages",):
        document["messages"] = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "messages"}]
    assert list(read_texts(write(tmp_path / "a.jsonl", document))) == [wanted]
    pl.DataFrame([document]).write_parquet(tmp_path / "a.parquet")
    assert list(read_texts(tmp_path / "a.parquet")) == [wanted]


def test_the_first_of_the_usual_fields_that_are_all_there_wins(tmp_path):
    assert list(read_texts(write(tmp_path / "a.jsonl", {"target": "t", "input": "i", "text": "x"}))) == ["x"]
    alpaca = {"instruction": "a", "input": "b", "output": "c"}
    assert list(read_texts(write(tmp_path / "a.jsonl", alpaca))) == ["a b c"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("a  b", "a  b"),
        (None, ""),
        (4, "4"),
        (0.5, "0.5"),
        (True, "true"),
        (["a", None, "", "b"], "a b"),
        ([{"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, {"from": "gpt", "value": "c"}], "a b c"),
    ],
)
def test_what_a_field_may_hold(tmp_path, value, wanted):
    path = write(tmp_path / "a.jsonl", {"here": value, "empty": ""})
    assert list(read_texts(path, ["here", "empty"])) == [wanted]


TEXT = {"text": "one"}
MISTAKES = [
    ("broken.jsonl", [TEXT, "", "{'text': 'two'}"], None, r"'.*broken.jsonl', line 3 is not JSON: "),
    ("array.json", ['[{"text": "one"}]'], None, r"line 1 is neither an object nor a string; .* jq -c '\.\[\]' array"),
    ("pretty.json", ["{", '"text": "one"', "}"], None, r"line 1 is not JSON: .* jq -c \. pretty.json"),
    ("pretty.json", ["[", '{"text": "one"}', "]"], None, r"line 1 is not JSON: .* jq -c '\.\[\]' pretty.json"),
    ("number.jsonl", ["7"], None, "line 1 is neither an object nor a string"),
    ("deep.jsonl", ["[" * 100_000], None, "line 1 is not JSON"),
    ("typo.jsonl", [TEXT], ["txet"], "line 1 has no field 'txet'. Did you mean 'text'?"),
    ("typo.jsonl", [TEXT], ["body"], "line 1 has no field 'body'. Available: text."),
    ("later.jsonl", [TEXT, {"texts": "two"}], None, "line 2 has no field 'text', .* Did you mean 'texts'?"),
    ("unusual.jsonl", [{"body": "one"}], None, "line 1 has no text, .*: name the fields. Available: body."),
    ("string.jsonl", ['"one"'], ["text"], "line 1 is a string and has no field 'text'"),
    ("nested.jsonl", [{"text": {"en": "one"}}], None, "line 1, field 'text' holds an object, not text"),
    ("image.jsonl", [{"messages": [{"content": [{"image": "x"}]}]}], None, "neither 'content', 'text' nor 'value'"),
    ("fields.txt", ["one"], ["text"], "is read as text, a document per line, and has no fields; leave 'text' out"),
    ("twice.jsonl", [TEXT], ["text", "text"], "field 'text' is given twice"),
    ("none.jsonl", [TEXT], [], "no field is named"),
    ("empty.txt", [], None, "holds no documents"),
    ("empty.txt", ["", " "], None, "holds no documents"),
    ("empty.jsonl", [], None, "holds no documents"),
    ("empty.jsonl.gz", [], None, "holds no documents"),
]


@pytest.mark.parametrize(("name", "lines", "fields", "message"), MISTAKES, ids=lambda value: str(value)[:24])
def test_a_mistake_is_one_clear_line(tmp_path, name, lines, fields, message):
    path = write(tmp_path / name, *lines)
    with pytest.raises(SpecError, match=message) as caught:
        list(read_texts(path, fields))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_told_before_anything_is_read(tmp_path):
    with pytest.raises(SpecError, match=r"there is no file '.*gone.jsonl'"):
        read_texts(tmp_path / "gone.jsonl")
    with pytest.raises(SpecError, match="is a directory"):
        read_texts(tmp_path)


def test_what_is_not_utf8_names_its_line(tmp_path):
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(b'"one"\n\n"caf\xe9"\n')
        with pytest.raises(SpecError, match="line 3 is not UTF-8"):
            list(read_texts(tmp_path / name))


def test_a_broken_gzip_file_is_told(tmp_path):
    whole = gzip.compress(b"".join(b"line %d\n" % i for i in range(5000)))
    for name, body in [("plain.txt.gz", b"one\n"), ("cut.txt.gz", whole[:-500])]:
        (tmp_path / name).write_bytes(body)
        with pytest.raises(SpecError, match="cannot be read after line"):
            list(read_texts(tmp_path / name))


def test_mistakes_with_parquet(tmp_path):
    pl.DataFrame({"text": ["one"], "day": [b"x"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SpecError, match=r"a.parquet' has no field 'txt'. Did you mean 'text'?"):
        list(read_texts(tmp_path / "a.parquet", ["txt"]))
    with pytest.raises(SpecError, match="row 1, field 'day' holds a value of type bytes"):
        list(read_texts(tmp_path / "a.parquet", ["day"]))
    pl.DataFrame({"text": []}).write_parquet(tmp_path / "empty.parquet")
    with pytest.raises(SpecError, match="holds no documents"):
        list(read_texts(tmp_path / "empty.parquet"))
    for body in (b"", b"hello", b"PAR1 nonsense PAR1"):
        (tmp_path / "bad.parquet").write_bytes(body)
        with pytest.raises(SpecError, match=r"bad.parquet' cannot be read as parquet"):
            list(read_texts(tmp_path / "bad.parquet"))


def test_a_file_is_streamed(tmp_path):
    path = write(tmp_path / "a.jsonl", TEXT, "broken")
    stream = read_texts(path)
    assert next(stream) == "one"  # the second line is not read yet
    with pytest.raises(SpecError, match="line 2"):
        next(stream)


def test_nothing_heavy_is_imported_unasked():
    code = "import sys, lengthwise.corpora; print(*{'torch', 'polars', 'matplotlib'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
