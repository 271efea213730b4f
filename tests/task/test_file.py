"""Anyone's own data, split by length."""

import gzip
import json
from collections import Counter

import polars
import pytest

from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.audit import audit
from lengthwise.task.block import training_block
from lengthwise.task.export import write_task_dataset
from lengthwise.task.sets import BUCKETS, buckets, evaluation_instances, instance_factory, lengths_of
from lengthwise.task.vocabulary import join_symbols


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
        parts = [set(evaluation_instances(task, split, length)) for split in ("train", "validation", "test_seen")]
        assert sum(map(len, parts)) == len(set().union(*parts))
        kept = [one for one in task.listed(length) if task.bucket(length, one) in BUCKETS["test_seen"]]
        assert set(kept) == parts[2]
    report = audit(task, "file")
    assert not report.problems
    assert set(report.overlap.values()) == {0}


def test_training_goes_through_the_list_again_and_again_in_another_order(data):
    task = build_task(f"file:path={data}:longest=4")
    make = instance_factory(task, "train", 3)
    many = len(evaluation_instances(task, "train", 3, 1000))
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
    instance = instance_factory(task, "train", 2)(0)
    assert "".join(task.to_example(instance).answer).replace("␣", " ") == instance[1]


def test_any_answer_the_file_has_for_a_prompt_is_right(tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "a", "answer": word, "length": 1}) for word in ("x", "y")))
    task = build_task(f"file:path={path}:longest=1")
    assert task.check(("a", "x"), ["y"])
    assert not task.check(("a", "x"), ["z"])


def written(path, table):
    path.write_text("\n".join(map(json.dumps, table)) + "\n")
    return path


def test_a_changed_file_is_another_task_in_the_same_process(data):
    spec = f"file:path={data}:longest=4"
    before = build_task(spec)
    old = evaluation_instances(before, "test_seen", 3)
    written(data, [{**row, "answer": "other"} for row in rows()])
    after = build_task(spec)
    assert before != after
    assert {answer for _, answer in evaluation_instances(after, "test_seen", 3)} == {"other"}
    assert evaluation_instances(before, "test_seen", 3) == old
    written(data, rows())
    assert build_task(spec) == before
    assert hash(build_task(spec)) == hash(before)


def split_of(task, length, instance):
    owners = [
        split
        for split in BUCKETS
        if length in lengths_of(task, split) and task.bucket(length, instance) in buckets(task, split)
    ]
    assert len(owners) <= 1
    return owners[0] if owners else None


def test_a_prompt_is_in_one_of_training_and_tests_whatever_its_white_space_and_length(tmp_path):
    table = [
        {"prompt": prompt, "answer": f"a{n} " * n, "length": n}
        for i in range(300)
        for n, prompt in ((1, f"ask w{i}"), (2, f"ask  w{i}"), (3, f" ask w{i} "), (6, f"ask\tw{i}"))
    ]
    for by in ("words", "characters"):
        task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=3:by={by}")
        found = {}
        for length in task.lengths:
            for instance in task.listed(length):
                found.setdefault(" ".join(instance[0].split()), set()).add(split_of(task, length, instance))
        assert len(found) == 300
        for splits in found.values():
            assert len(splits & {"train", "validation", "test_seen"}) == 1
            assert not splits & {"train", "validation"} or not splits & {"test_unseen", "dev_unseen", "test_far"}
        # A long row of a prompt that is trained on can be in no split, and an audit says so.
        assert audit(task, "file").unused == sum(None in splits for splits in found.values()) > 200


def test_no_row_is_wasted_and_all_far_lengths_are_tested(tmp_path):
    lengths = (1, 2, 3, 4, 7, 9, 10, 11, 50)
    table = [{"prompt": f"p{n} {i}", "answer": "x", "length": n} for n in lengths for i in range(100)]
    task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=4")
    assert lengths_of(task, "test_far") == [9, 10, 11, 50]
    assert audit(task, "file").unused == 0
    shares = Counter(split_of(task, 7, one) for one in task.listed(7))
    assert set(shares) == {"dev_unseen", "test_unseen"}
    assert 50 < shares["test_unseen"] < 83


def test_the_same_row_twice_is_one_example_and_counts_twice_in_the_weight(tmp_path):
    table = [{"prompt": f"p{i}", "answer": "x", "length": n} for n in (1, 2) for i in range(10)]
    table += [{"prompt": " p3 ", "answer": "x  ", "length": 2}] * 5
    task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=2")
    assert (task.space(1), task.space(2)) == (10, 10)
    assert (task.weight(1), task.weight(2)) == (10, 15)


def test_chance_counts_all_answers_that_pass(tmp_path):
    table = [{"prompt": "a", "answer": word, "length": 1} for word in "xyz"]
    table.append({"prompt": "b", "answer": "w", "length": 1})
    task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=1")
    assert task.chance(1) == 3 / 4  # `x` passes for each of the three rows of `a`


def test_words_that_begin_with_hashes_survive(tmp_path):
    prompt, answer = "a ##b c\\##d \\##e ### ##", "## ##x"
    table = [{"prompt": prompt, "answer": answer, "length": 1}]
    task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=1")
    example = task.to_example((prompt, answer))
    assert (join_symbols(example.prompt), join_symbols(example.answer)) == (prompt, answer)
    assert example.text == f"{prompt} {answer}"
    assert task.check((prompt, answer), example.target)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["words", "characters"])
def test_steps_of_an_export_are_written_before_the_answer(tmp_path, by):
    source = build_task("addition:scratchpad=full")
    write_task_dataset(source, "addition", tmp_path / "there", 200)
    task = build_task(f"file:path={tmp_path / 'there' / 'train.parquet'}:longest=8:by={by}")
    instance = instance_factory(task, "train", 3)(0)
    _, answer, steps = instance
    target = task.to_example(instance).target
    shown = "".join(target).replace("␣", " ") if by == "characters" else join_symbols(target)
    assert shown == f"{steps} {answer}"
    assert steps.endswith("Thus,")
    assert task.check(instance, target)
    assert task.check(instance, target[3:])  # steps are not scored, the answer is
    assert not task.check(instance, target[:-1])
    assert not audit(task, "file").problems


def test_steps_without_a_mark_must_be_the_files(tmp_path):
    table = [{"prompt": "a", "answer": "x", "length": 1, "steps": "one two"}]
    table.append({"prompt": "b", "answer": "y", "length": 1, "steps": None})
    task = build_task(f"file:path={written(tmp_path / 'a.jsonl', table)}:longest=1")
    assert task.to_example(task.listed(1)[0]).target == ("one", "two", "x")
    assert task.check(task.listed(1)[0], ["one", "two", "x"])
    assert not task.check(task.listed(1)[0], ["two", "one", "x"])
    assert task.listed(1)[1] == ("b", "y")


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "a.jsonl"
    table = [{"prompt": "a\u2028b\u0085c", "answer": "x", "length": 1}] * 2
    path.write_text("\r\n".join(json.dumps(row, ensure_ascii=False) for row in table), newline="")
    assert build_task(f"file:path={path}:longest=1").weight(1) == 2
    path.write_bytes(b"\xff\n")
    with pytest.raises(SpecError, match="is not UTF-8"):
        build_task(f"file:path={path}:longest=1")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"prompt": "a", "answer": "b"}', "row 1 of .* has no 'length'; .* it has prompt, answer"),
        ('{"prompt": "a", "answer": "b", "length": "3"}', "length is '3', not a whole number"),
        ('{"prompt": "a", "answer": "", "length": 3}', "answer is empty; fill it, or leave the row out"),
        ('{"prompt": "a", "answer": "b", "length": -1}', "length is -1; lengths are 0 or more"),
        ('{"prompt": "a", "answer": "b", "length": 3}\n{oops', "line 2 of .* is no JSON"),
        ("[1]", "line 1 of .* is no JSON object"),
        ('{"prompt": "a", "answer": "b", "length": 3, "steps": 7}', "steps is 7, not a text"),
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
    with pytest.raises(SpecError, match="has no rows of length 99; the nearest is longest=8"):
        build_task(f"file:path={data}:longest=99")
    with pytest.raises(SpecError, match=r"is a folder; name one file in it, e.g. path=.*data.jsonl"):
        build_task(f"file:path={tmp_path}:longest=3")


def test_a_packed_file_and_one_with_a_byte_order_mark_are_read(data, tmp_path):
    packed, marked, broken = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl", tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(data.read_bytes()))
    marked.write_text(data.read_text(), encoding="utf-8-sig")
    broken.write_bytes(packed.read_bytes()[:-20])
    plain = build_task(f"file:path={data}:longest=4")
    for path in (packed, marked):
        assert build_task(f"file:path={path}:longest=4").listed(3) == plain.listed(3)
    with pytest.raises(SpecError, match="is no whole gzip file"):
        build_task(f"file:path={broken}:longest=4")


def test_another_encoding_is_named_by_its_line(data):
    with data.open("ab") as file:
        file.write('{"prompt": "café", "answer": "b", "length": 1}'.encode("latin1"))
    with pytest.raises(SpecError, match=r"is not UTF-8 \(line 401: .*\); convert it, e.g. iconv"):
        build_task(f"file:path={data}:longest=4")
