"""What a reader of the diff found once, and must not come back."""

import json

import polars as pl
import pytest

from lengthwise.interface.comparison import compare
from lengthwise.run import Plan, Run, train
from lengthwise.run.resume import best_checkpoint_steps
from lengthwise.spec import SpecError
from lengthwise.statistics.reach import Reach, reach

OPTIONS = {
    "model": "laptop:width=32:heads=2:feed_forward_width=64",
    "training": "laptop:steps=6:batch_size=8:validations=1:validation_examples=20",
    "threads": 1,
    "quiet": True,
}
TASK = "copy:variant=same:alphabet=120:longest=3"
MINE = """from lengthwise.encoding.base import Encoding
{head}

class Mine(Encoding):
    def by_distance(self, distances_N):
        return -{slope} * distances_N.abs().expand(self.geometry.heads, -1)
"""


def jsonl(path, answer):
    rows = [{"prompt": f"say {n}", "answer": f"{answer}{n % 7}", "length": 1 + n % 6} for n in range(200)]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_an_id_knows_the_content_of_a_file_and_not_its_place(tmp_path):
    one, other, moved = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    jsonl(one, "x")
    jsonl(other, "y")
    moved.write_bytes(one.read_bytes())
    ids = [Plan.of(f"file:path={path}:longest=3", "nope").id for path in (one, other, moved)]
    assert ids[0] == ids[2] != ids[1]


def test_an_id_knows_the_neighbours_of_outside_code_and_keeps_them_apart(tmp_path):
    ids, built = [], []
    for name, slope in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "slopes_of_mine.py").write_text(f"SLOPE = {slope}\n")
        file = tmp_path / name / "pe.py"
        file.write_text(MINE.format(head="from slopes_of_mine import SLOPE\n", slope="SLOPE"))
        plan = Plan.of(TASK, f"{file}:Mine")
        ids.append(plan.id)
        built.append(plan.decoder()._encodings()[0].by_distance.__globals__["SLOPE"])
    assert ids[0] != ids[1] and built == [1.0, 2.0]


@pytest.mark.slow
def test_weights_are_not_used_with_code_that_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pe.py"
    file.write_text(MINE.format(head="", slope=1.0))
    run = train(TASK, f"{file}:Mine", store=str(tmp_path), **OPTIONS)
    assert run.evaluate([2]).rows.height
    file.write_text(MINE.format(head="", slope=5.0))
    opened = Run.open(run.id, str(tmp_path), allow_code=True)
    assert opened.rows().height  # what was measured can be read
    with pytest.raises(SpecError, match=r"was made with other code than .*pe\.py:Mine is now"):
        opened.evaluate([2])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(TASK, "rope", store=str(tmp_path_factory.mktemp("store")), **OPTIONS)


def test_the_same_evaluation_twice_is_not_more_examples(run):
    before = run.rows()
    run.store_evaluation(run.evaluate())
    order = ["checkpoint", "split", "length"]
    assert run.rows().drop("loss").sort(order).equals(before.drop("loss").sort(order))


@pytest.mark.slow
def test_one_run_given_twice_is_one_seed_and_other_streams_are_no_seed(run):
    assert compare([run, run]).table["seeds"].to_list() == [1]
    store = str(run.folder.parent.parent.parent)
    other = train(TASK, "rope", store=store, streams={"order": 7}, **OPTIONS)
    table = compare([run, other]).table
    assert table["seeds"].to_list() == [1, 1]
    assert any(name.startswith("RoPE") and "order=7" in name for name in table["encoding"])
    model = f"{OPTIONS['model']}:temperature=[log-n:trained=16]"
    warm = train(TASK, "rope", store=store, **{**OPTIONS, "model": model})
    assert set(compare([run, warm]).table["encoding"]) == {
        *("RoPE temperature=constant", "RoPE temperature=[log-n:trained=16]")
    }


def test_other_symbols_are_refused(run):
    from lengthwise import evaluate

    with pytest.raises(SpecError, match="trained with other symbols"):
        evaluate(run, "copy:variant=same:alphabet=60:longest=3", [2], another_task=True)
    rows = evaluate(run, TASK, [2], positions="offset:limit=64")
    assert set(rows["run"]) == {run.id} and set(rows["evaluation"]) == {"positions=offset:limit=64"}


def test_a_loss_that_is_no_number_is_never_best():
    def at(step, loss):
        return {"step": step, "correct": 0, "loss": loss}

    assert best_checkpoint_steps([at(1, 9.0), at(2, None)])["best"] == 1


@pytest.mark.parametrize(
    ("accuracies", "chance", "found"),
    [
        ([1, 1, 1, 1], 0.0, Reach(4, beyond=True)),
        ([1, 1, 1, 0.5], 0.0, Reach(3)),
        ([1, 1, 0.5, 1], 0.0, Reach(2)),
        ([1, 0.5, 1, 1], 0.0, Reach(None)),
        ([1, 1, 0.95, 0.94], 0.5, Reach(3)),  # 0.95 is 0.9 of the way from chance
        ([1, 1, 0.9, 0.9], 0.05, Reach(4, beyond=True)),
        ([1, 1, 1, 1], 1.0, Reach(4, beyond=True)),
    ],
)
def test_reach(accuracies, chance, found):
    rows = pl.DataFrame(
        {
            "length": [1, 2, 3, 4],
            "seen": [True, True, False, False],
            "split": ["test_seen"] * 2 + ["test_unseen"] * 2,
            "examples": [100] * 4,
            "correct": [round(100 * value) for value in accuracies],
            "chance": [chance] * 4,
        }
    )
    assert reach(rows) == found


def test_an_exhausted_seen_length_does_not_count_against_a_run():
    rows = pl.DataFrame(
        {
            "length": [1, 2, 3],
            "seen": [True, True, False],
            "split": ["test_seen", "test_seen", "test_unseen"],
            "examples": [4, 100, 100],
            "correct": [0, 100, 0],
            "chance": [0.0] * 3,
        }
    )
    assert reach(rows) == Reach(2)


def test_the_answer_of_a_file_with_steps_counts(tmp_path):
    from lengthwise.evaluation import evaluate_decoder
    from lengthwise.task import build_task
    from tests.evaluation.test_evaluate import answering

    file = tmp_path / "steps.jsonl"
    rows = [{"prompt": f"ask {n}", "steps": "x y Thus,", "answer": f"{n % 7}", "length": 1 + n % 4} for n in range(300)]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = build_task(f"file:path={file}:longest=2")
    x, y = task.vocabulary.ids(["x", "y"])

    def swapped(case):
        return [{x: y, y: x}.get(word, word) for word in case.answer]

    found = evaluate_decoder(answering(task, swapped), task, [1, 2])
    assert found.rows["correct"].sum() == found.rows["examples"].sum() > 0


@pytest.mark.parametrize(
    "name",
    [
        *(f"copy:variant={variant}" for variant in ("same", "same2", "replace", "random", "random2")),
        *("reverse", "sort", "sort:variant=multi", "summation", "parity", "count", "addition", "parity:protocol=paper"),
    ],
)
def test_what_a_task_asks_it_can_read(name):
    from lengthwise.task import build_task
    from lengthwise.task.sets import evaluation_instances

    task = build_task(name)
    split = "validation" if task.protocol == "paper" else "test_seen"
    for length in (task.longest, task.longest - 1):
        for instance in evaluation_instances(task, split, length)[:20]:
            assert task.parse_prompt(task.to_example(instance).prompt) == (length, instance)
