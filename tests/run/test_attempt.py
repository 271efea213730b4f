"""A run leaves a folder that anyone can read again, is killed anywhere, and ends with the same bits."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import polars as pl
import pytest
import torch

from lengthwise.evaluation.cases import trained_cases
from lengthwise.folder import Folder
from lengthwise.run import STOPPED, Plan, Run, train
from lengthwise.run.resume import best_checkpoint_steps
from lengthwise.run.run import attempts_of
from lengthwise.spec import SpecError
from lengthwise.task.sets import instances, training_lengths_and_indices

GOLDEN = Path(__file__).parent.parent / "golden" / "ids.json"
TASK = "copy:variant=same:alphabet=40:longest=4"
MODEL = "laptop:width=32:heads=2:feed_forward_width=64:dropout=0.1"
TRAINING = "laptop:steps=60:batch_size=16:warmup=5:validations=4:validation_examples=40"
OPTIONS = {"model": MODEL, "training": TRAINING, "threads": 1, "quiet": True}


def small(store, encoding="rope", task=TASK, **options):
    return train(task, encoding, store=str(store), **{**OPTIONS, **options})


def left(run):
    """What must be equal bit for bit: weights, rows, predictions."""
    return {name: run.folder.read(name) for name in ("model.safetensors", "rows.parquet", "predictions.parquet")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small(tmp_path_factory.mktemp("store"))


@pytest.mark.slow
def test_the_folder_holds_all_that_was_promised(run):
    names = run.folder.names()
    assert {"run.json", "train.jsonl", "rows.parquet", "predictions.parquet", "model.safetensors", "done"} <= set(names)
    run_json = run.folder.json("run.json")
    assert run_json["id"] == run.id and run_json["options"]["seed"] == 0
    for key in ("lengthwise", "torch", "python", "cpu", "threads", "git"):
        assert key in run_json["recorded"]
    lines = [json.loads(line) for line in run.folder.read("train.jsonl").decode().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [10, 20, 30, 40, 50, 60]
    assert [line["step"] for line in lines if "exact_match" in line] == [15, 30, 45, 60]
    assert run.log() == sorted(lines, key=lambda line: (line["step"], "exact_match" in line))


def test_every_label_is_evaluated_at_every_length(run):
    rows = run.rows()
    assert set(rows["checkpoint"]) == {"last", "best", "earliest_best", "25%", "50%", "75%"}
    assert set(rows["run"]) == {run.id} and set(rows["evaluation"]) == {"as trained"}
    last = rows.filter((pl.col("checkpoint") == "last") & (pl.col("split") != "train"))
    assert last["length"].to_list() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16]
    assert last["seen"].sum() == 4
    assert run.checkpoints["50%"] == 30


def test_examples_that_were_trained_on_are_evaluated_beside_the_others(run):
    """64 of each length, or all that there are; the first ones of the run's own training set."""
    rows = run.rows().filter(pl.col("split") == "train")
    assert set(rows["checkpoint"]) == {"last", "best", "earliest_best"}  # not the stages, which have few examples
    last = rows.filter(pl.col("checkpoint") == "last")
    assert last["length"].to_list() == [1, 2, 3, 4] and last["seen"].all()
    training, task = run.plan.training, run.task
    drawn = list(zip(*training_lengths_and_indices(task, 0, training.steps * training.batch_size, 0), strict=True))
    for length, examples in last.select("length", "examples").iter_rows():
        mine = [index for n, index in drawn if n == length]
        trained = set(instances(task, "train", [length] * len(mine), mine, 0))
        assert examples == min(64, len(trained))
        cases = [case for case in trained_cases(task, len(drawn), 0) if case.length == length]
        assert len(cases) == examples and {case.instance for case in cases} <= trained


@pytest.mark.slow
def test_no_split_but_validation_is_seen_in_training(tmp_path, monkeypatch):
    from lengthwise.run import attempt, validation

    asked = []
    real = attempt.evaluate_decoder

    def spy(decoder, task, lengths=None, **options):
        asked.append(sorted({split for split, _ in options["splits"]}) if "splits" in options else "all")
        return real(decoder, task, lengths, **options)

    for module in (attempt, validation):
        monkeypatch.setattr(module, "evaluate_decoder", spy)
    small(tmp_path, training="laptop:steps=8:batch_size=8:validations=2")
    end = asked.index("all")
    assert asked[:end] == [["validation"]] * 2 and set(map(str, asked[end:])) == {"all"}


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(run, tmp_path):
    again, other = small(tmp_path), small(tmp_path, seed=1)
    assert left(again) == left(run)
    assert left(other)["model.safetensors"] != left(run)["model.safetensors"]
    assert again.id == run.id != other.id


def test_a_run_that_is_done_is_only_opened(run):
    before = run.folder.names()
    again = small(run.folder.parent.parent.parent)
    assert not again.fresh and again.folder.names() == before
    assert [attempt.leaf for attempt in attempts_of(run.folder.parent)] == ["1"]


def test_best_is_the_latest_of_equals_and_earliest_best_the_first():
    def at(step, correct, loss):
        return {"step": step, "correct": correct, "loss": loss}

    assert best_checkpoint_steps([at(1, 5, 1.0), at(2, 9, 0.5), at(3, 9, 0.4), at(4, 9, 0.4)]) == {
        "best": 4,
        "earliest_best": 2,
    }
    assert best_checkpoint_steps([at(1, 9, 0.1), at(2, 9, 0.5)]) == {"best": 1, "earliest_best": 1}


def test_weights_of_every_label_can_be_read(run):
    for label in run.checkpoints:
        assert run.decoder(label).config.width == 32
    assert not torch.equal(run.decoder("25%").embedding.weight, run.decoder("last").embedding.weight)


# --- killed anywhere -------------------------------------------------------------------------------------------------


def _child(store):
    small(store, checkpoint_every=7)


def killed(store, kills, rng, seconds):
    """Start the run again and again, each time killed −9 after a random time, `kills` times or until it is done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.run.test_attempt"])
    done = 0
    while done < kills:
        child = context.Process(target=_child, args=(str(store),))
        child.start()
        child.join(rng.uniform(0.05, seconds))
        if child.exitcode is not None:
            assert child.exitcode == 0
            break
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        done += 1
    return done


def survives(run, tmp_path, kills, figure):
    rng, total, stores = random.Random(kills), 0, 0
    while total < kills:
        store = tmp_path / str(stores)
        total += killed(store, min(7, kills - total), rng, 2.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a checkpoint that the kill tore
            assert left(small(store, checkpoint_every=7)) == left(run)
        stores += 1
    attempts = [len(attempts_of((Folder(tmp_path) / str(n)) / "runs" / run.id)) for n in range(stores)]
    figure(f"killed −9 {total} times over {stores} runs ({attempts} attempts): weights, rows and predictions bit-equal")


def test_killed_and_started_again_it_ends_with_the_same_bits(run, tmp_path, figure):
    survives(run, tmp_path, 3, figure)


@pytest.mark.evidence
@pytest.mark.timeout(600)
def test_killed_twenty_times_it_ends_with_the_same_bits(run, tmp_path, figure):
    survives(run, tmp_path, 20, figure)


@pytest.mark.slow
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(run, tmp_path):
    class Away(Exception):
        pass

    from lengthwise.training import loop

    real = loop.Loop.advance

    def dies(self, *feed):
        if self.step == 33:
            raise Away
        return real(self, *feed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "advance", dies)
        with pytest.raises(Away):
            small(tmp_path, checkpoint_every=10)
    first = attempts_of(Folder(tmp_path) / "runs" / run.id)[0]
    assert "Away" in first.read("error.txt").decode()
    state = Path(first.path) / "checkpoints" / "000000030" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="000000030 is not used: it or weights"):
        again = small(tmp_path, checkpoint_every=10)
    assert left(again) == left(run) and again.folder.leaf == "2"
    assert [line["step"] for line in again.log() if "loss" in line] == [10, 20, 30, 40, 50, 60]


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_its_code(run, tmp_path):
    command = [sys.executable, "-m", "lengthwise", "train", TASK, "--encoding", "rope", "--model", MODEL]
    command += ["--training", TRAINING.replace("steps=60", "steps=200000"), "--store", str(tmp_path), "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _until(lambda: list(tmp_path.glob("runs/*/1/train.jsonl")), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == STOPPED == 75
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
    (attempt,) = tmp_path.glob("runs/*/1")
    (newest,) = sorted((attempt / "checkpoints").iterdir())[-1:]
    assert (newest / "manifest.json").exists() and not (attempt / "done").exists()
    with pytest.raises(SpecError, match="is not finished; start it again"):
        Run.open(str(attempt)).rows()


@pytest.mark.slow
def test_a_run_that_somebody_is_at_is_not_started_twice(tmp_path):
    command = [sys.executable, "-m", "lengthwise", "train", TASK, "--encoding", "rope", "--model", MODEL]
    command += ["--training", TRAINING.replace("steps=60", "steps=200000"), "--store", str(tmp_path), "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: list(tmp_path.glob("runs/*/1/run.json")), process)
        with pytest.raises(SpecError, match=f"is being run by process {process.pid} on this machine"):
            small(tmp_path, training=TRAINING.replace("steps=60", "steps=200000"))
    finally:
        process.kill()
        process.wait()


def _until(holds, process):
    for _ in range(600):
        if holds():
            return
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("it did not begin in a minute")


# --- begun from another run ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_can_begin_with_another_runs_weights(run, tmp_path):
    store = str(run.folder.parent.parent.parent)
    learned = small(store, "learned")
    with pytest.raises(SpecError, match=r"left over: encodings.0.table. .*--allow encodings.0.\*"):
        small(store, "nope", start=learned.id)
    dropped = small(store, "nope", start=f"{learned.id}@best", allow=["encodings.*"])
    assert dropped.done and dropped.run_json["options"]["start"]["run"] == learned.id
    scratch = small(store, "nope")
    assert dropped.id != scratch.id
    # It began where the other ended: its first losses are lower.
    assert dropped.log()[0]["loss"] < scratch.log()[0]["loss"]
    with pytest.raises(SpecError, match=r"missing: encodings\.0\.table"):
        small(store, "t5", start=run.id)


def test_stored_weights_are_evaluated_with_another_encoding_without_training(run):
    anew = run.evaluate([3, 5, 20], encoding="nope", temperature="log-n")
    assert set(anew.rows["evaluation"]) == {"encoding=nope temperature=log-n:trained=10"}
    assert anew.rows["split"].to_list() == ["test_seen", "test_unseen", "test_far"]
    as_trained = run.evaluate([3, 5])
    last = (pl.col("checkpoint") == "last") & (pl.col("split") != "train")
    stored = run.rows().filter(last & pl.col("length").is_in([3, 5]))
    # In another batch the loss differs in its last digits; what is counted does not.
    assert as_trained.rows.drop("loss").equals(stored.drop("loss"))
    assert as_trained.rows["loss"].to_list() == pytest.approx(stored["loss"].to_list(), rel=1e-5)
    before = len(run.rows())
    run.store_evaluation(anew)
    run.store_evaluation(anew)
    assert len(run.rows()) == before + 3


def test_a_run_is_found_by_its_folder_and_the_beginning_of_its_id(run):
    store = str(run.folder.parent.parent.parent)
    for where in (str(run.folder), str(run.folder.parent), run.id, run.id[:-6]):
        assert Run.open(where, store).id == run.id
    with pytest.raises(SpecError, match="there is no run 'copy-rop-s0'"):
        Run.open("copy-rop-s0", store)
    small(store, "nope", training="laptop:steps=4:batch_size=8:validations=1")
    with pytest.raises(SpecError, match="is the beginning of"):
        Run.open("copy", store)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": "x"}', '{"id": "x", "options": {"task": "copy"}}'])
def test_a_damaged_record_is_told_in_one_line(run, tmp_path, content):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "run.json").write_text(content)
    with pytest.raises(SpecError, match=r"run\.json is damaged"):
        Run.open(str(folder))


@pytest.mark.slow
def test_any_fsspec_path():
    run = small("memory://run-test", training="laptop:steps=12:batch_size=8:validations=2")
    assert run.done and len(run.log()) == 4
    assert Run.open("memory://run-test/runs/" + run.id).rows().equals(run.rows())
    Folder("memory://run-test").fs.rm("/run-test", recursive=True)


# --- identity --------------------------------------------------------------------------------------------------------

PLANS = {
    **{
        f"{task} {encoding}": (task, encoding, {})
        for task in ("copy:variant=same", "sort", "addition", "scan")
        for encoding in ("nope", "rope", "t5", "alibi", "sinusoidal", "learned")
    },
    "seed": ("copy", "rope", {"seed": 7}),
    "stream": ("copy", "rope", {"streams": {"order": 7}}),
    "positions": ("copy", "rope", {"positions": "randomized:limit=256"}),
    "mixed": ("copy", "rope,nope,rope", {}),
    "deep": ("copy", "rope", {"model": "laptop:layers=5"}),
    "paper": (
        "copy:variant=same:protocol=paper",
        "rope:fraction=0.25:interleaved=true",
        {"model": "paper:width=96", "training": "paper"},
    ),
}


def test_ids_are_those_that_were_pinned():
    found = {name: Plan.of(task, encoding, **options).id for name, (task, encoding, options) in PLANS.items()}
    assert len(set(found.values())) == len(found) == 30
    assert found == json.loads(GOLDEN.read_text())


def test_what_is_the_default_is_no_part_of_an_id():
    plain = Plan.of("copy:variant=same", "rope")
    same = Plan.of(
        {"name": "copy", "variant": "same", "longest": 16, "bos": None},
        "rope:theta=10000.0",
        model="laptop:layers=2:norm=rms",
        training="laptop:warmup=100",
        streams={"order": 0},
    )
    assert same.id == plain.id
    assert "warmup" not in plain.identity()["training"]


def test_a_plan_is_read_as_it_was_written():
    plan = Plan.of("copy", "rope,nope,rope", seed=3, streams={"data": 1}, positions="randomized:limit=99")
    assert Plan.read(json.loads(json.dumps(plan.options()))) == plan


@pytest.mark.slow
def test_the_source_of_outside_code_is_part_of_the_id(tmp_path):
    file = tmp_path / "pe.py"
    file.write_text("from lengthwise.encoding.base import Encoding\n\n\nclass Mine(Encoding):\n    pass\n")
    first = Plan.of("copy", f"{file}:Mine")
    moved = tmp_path / "other.py"
    moved.write_bytes(file.read_bytes())
    assert Plan.of("copy", f"{moved}:Mine").id == first.id
    file.write_text(file.read_text() + "    x = 1\n")
    assert Plan.of("copy", f"{file}:Mine").id != first.id
    assert first.id.startswith("copy-mine-s0-")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("copy", "learned:limit=8"), "has positions up to 7, copy of length 10 needs .*; write learned:limit="),
        (("copy", "xpos:base=0.1"), "has positions up to 5, .*; write xpos with a larger base$"),
        (("copy", "rope,local,xpos:base=0.1"), "; write xpos with a larger base$"),
        (("copy", "rope", {"seed": -1}), "a seed is a whole number from 0"),
        (("copy", "rope", {"streams": {"ordr": 1}}), "there is no random stream 'ordr'. Did you mean 'order'"),
        (("copy", "learned:limit=64", {"positions": "randomized:limit=128"}), "needs 127"),
        (("copy", ""), "name an encoding"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(arguments, said):
    task, encoding, *options = arguments
    with pytest.raises(SpecError, match=said):
        Plan.of(task, encoding, **(options[0] if options else {}))


@pytest.mark.parametrize("task", ["copy:variant=same", "sort:variant=single:longest=8", "addition:longest=4", "parity"])
def test_a_scaling_by_length_leaves_seen_lengths_alone(task):
    """`trained` is filled in as the budget of the longest trained sequence, not as its tokens, which are fewer."""
    from lengthwise.evaluation.cases import evaluation_cases
    from lengthwise.run.run import with_trained_length

    plan = Plan.of(task, "rope")
    budgets = [case.budget for case in evaluation_cases(plan.task, "test_seen", plan.task.longest)]
    assert plan.longest_budget() == max(budgets) > len(plan.longest_training_ids())
    asked = with_trained_length("rope:scaling=yarn", plan.longest_budget)
    assert asked == f"rope:scaling=yarn:trained={max(budgets)}"
