"""Anyone's own data, split by length."""

import json

import polars
import pytest

from lengthwise.spec import SpecError
from lengthwise.tasks import build_task
from lengthwise.tasks.audit import audit
from lengthwise.tasks.block import training_block
from lengthwise.tasks.sets import BUCKETS, evaluation, lengths_of, maker


def rows(count=400):
    return [
        {"prompt": f"say w{i} {n} times", "answer": " ".join([f"w{i}"] * n), "length": n}
        for n in range(1, 9)
        for i in range(count // 8)
    ]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, rows())) + "\n")
    return path


def test_it_is_split_by_length_and_by_content(data):
    task = build_task(f"file:path={data}:longest=4")
    assert lengths_of(task, "train") == [1, 2, 3, 4]
    assert lengths_of(task, "test_unseen") == [5, 6, 7, 8]
    for length in (1, 4):
        parts = [set(evaluation(task, split, length)) for split in ("train", "validation", "test_seen")]
        assert sum(map(len, parts)) == len(set().union(*parts))
        kept = [one for one in task.listed(length) if task.bucket(length, one) in BUCKETS["test_seen"]]
        assert set(kept) == parts[2]
    report = audit(task, "file")
    assert not report.problems
    assert set(report.overlap.values()) == {0}


def test_training_goes_through_the_list_again_and_again_in_another_order(data):
    task = build_task(f"file:path={data}:longest=4")
    make = maker(task, "train", 3)
    many = len(evaluation(task, "train", 3, 1000))
    first, second = ([make(turn * many + place) for place in range(many)] for turn in (0, 1))
    assert set(first) == set(second)
    assert len(set(first)) == many
    assert first != second


def test_parquet_is_the_same_as_json_lines(data, tmp_path):
    polars.DataFrame(rows()).write_parquet(tmp_path / "data.parquet")
    one, other = (build_task(f"file:path={tmp_path}/data.{end}:longest=4") for end in ("jsonl", "parquet"))
    assert one.symbols == other.symbols
    assert set(one.listed(2)) == set(other.listed(2))


def test_the_content_counts_and_not_the_path(data, tmp_path):
    other = tmp_path / "elsewhere.jsonl"
    other.write_text(data.read_text())
    one, two = (training_block(build_task(f"file:path={path}:longest=4"), 0, 100).ids for path in (data, other))
    assert (one == two).all()
    other.write_text("\n".join(map(json.dumps, rows(480))))
    assert build_task(f"file:path={data}:longest=4").key() != build_task(f"file:path={other}:longest=4").key()


def test_characters_go_there_and_back(data):
    task = build_task(f"file:path={data}:longest=4:by=characters")
    instance = maker(task, "train", 2)(0)
    assert "".join(task.render(instance).answer).replace("␣", " ") == instance[1]


def test_any_answer_the_file_has_for_a_prompt_is_right(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "a", "answer": word, "length": 1}) for word in ("x", "y")))
    task = build_task(f"file:path={path}:longest=1")
    assert task.check(("a", "x"), ["y"])
    assert not task.check(("a", "x"), ["z"])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"prompt": "a", "answer": "b"}', "row 1 of .* has no 'length'; .* it has prompt, answer"),
        ('{"prompt": "a", "answer": "b", "length": "3"}', "length is '3', not a whole number"),
        ('{"prompt": "a", "answer": "", "length": 3}', "answer is '', not a text"),
        ('{"prompt": "a", "answer": "b", "length": 3}\n{oops', "line 2 of .* is no JSON"),
        ("[1]", "line 1 of .* is no JSON object"),
        ("", "has no rows"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path, lines, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(lines)
    with pytest.raises(SpecError, match=said):
        build_task(f"file:path={path}:longest=3")


def test_what_is_missing_is_told(data, tmp_path):
    with pytest.raises(SpecError, match="needs 'path'"):
        build_task("file")
    with pytest.raises(SpecError, match="lengths 1 to 8; say up to which to train: longest=N"):
        build_task(f"file:path={data}")
    with pytest.raises(SpecError, match="there is no file"):
        build_task(f"file:path={tmp_path}/none.jsonl:longest=3")
    with pytest.raises(SpecError, match=r"no longest 99 .* the nearest is 8"):
        build_task(f"file:path={data}:longest=99")
