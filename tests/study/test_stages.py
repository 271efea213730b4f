"""Stages of a study: runs that start from the weights of other runs, and pseudo-labels."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

import lengthwise as lw
from lengthwise.encoding import build_positions
from lengthwise.evaluation.cases import evaluation_cases, trained_cases
from lengthwise.reporting.findings import encoding_label_by_run
from lengthwise.run import Run
from lengthwise.run.pseudo_labels import PseudoLabels, _labelled, _majority, pseudo_label
from lengthwise.spec import SpecError
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from lengthwise.study.proof import check_only_encoding_differs
from lengthwise.study.status import status
from lengthwise.study.store import Store
from lengthwise.study.work import Outcome, do_job
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.task.sets import longer_instance_factory
from tests.study.test_drive import ORDER

TRAINING = "laptop:steps=6:batch_size=8:validations=1"
STAGES = {
    "name": "stages",
    "question": "Does it help to drop the rotation?",
    "base": {"task": "copy:variant=same:longest=3", "model": "laptop:layers=1:width=16:heads=2", "training": TRAINING},
    "vary": {"encoding": ["rope", "alibi"]},
    "then": [
        {"after": "rope", "encoding": "nope", "training": "laptop:steps=3:batch_size=8:validations=1"},
        {"training": "laptop:steps=4:batch_size=8:validations=1:pseudo_labels_up_to=5:pseudo_examples=20"},
    ],
    "seeds": [0],
}


def staged(**changes) -> Planned:
    return Planned(StudyFile.of({**STAGES, **changes}))


def written(folder: Path, **changes) -> lw.Study:
    (folder / "stages.yaml").write_text(yaml.safe_dump({**STAGES, **changes}))
    return lw.Study.read(folder / "stages.yaml")


def driven(planned: Planned, where, **options):
    do = options.pop("do", do_job)
    return Driver(planned, Store(where), InProcess(do), **options).run()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    planned, where = staged(), tmp_path_factory.mktemp("stages")
    tally = driven(planned, where)
    assert tally.ended and not tally.failed and tally.here == 5
    return planned, Store(where)


def test_a_stage_starts_from_the_weights_of_the_one_before(done):
    planned, store = done
    items, waiting = planned.items({})
    assert not waiting
    assert [(item.point.stage, item.point.encoding) for item in items] == [
        *((0, "rope"), (1, "nope"), (2, "nope"), (0, "alibi"), (2, "alibi"))
    ]
    first, dropped, third, *_ = items
    assert dict(dropped.plan.start) == {"run": first.key, "checkpoint": "last"}
    assert dict(third.plan.start)["run"] == dropped.key
    # The same run by hand: start from the first run's weights, with the second's encoding.
    how = {"model": STAGES["base"]["model"], "training": STAGES["then"][0]["training"], "quiet": True, "threads": 1}
    start = str(store.folder / "runs" / first.key)
    by_hand = lw.train(STAGES["base"]["task"], "nope", seed=0, start=start, store=str(store.folder), **how)
    theirs, ours = (run.weights() for run in (Run.open(dropped.key, str(store.folder)), by_hand))
    assert all(theirs[name].equal(ours[name]) for name in ours)
    scratch = lw.train(STAGES["base"]["task"], "nope", seed=0, store=str(store.folder), **how)
    assert not all(theirs[name].equal(value) for name, value in scratch.weights().items())


def test_rows_and_reports_name_the_stage(done, tmp_path):
    planned, store = done
    items = planned.items({})[0]
    names = encoding_label_by_run(items)
    study = written(tmp_path)
    labels = study.findings(str(store.folder)).labels
    assert labels["rope → nope stage 2"] == "RoPE → NoPE stage 2" and labels["alibi stage 2"] == "ALiBi stage 2"
    assert [names[item.key] for item in items] == [
        *("rope", "rope → nope stage 1", "rope → nope stage 2", "alibi", "alibi stage 2")
    ]
    assert not check_only_encoding_differs(items).holds  # at stage 2, RoPE has had one stage more than ALiBi
    assert check_only_encoding_differs(staged(then=STAGES["then"][1:]).items({})[0]).holds
    assert "RoPE → NoPE stage 2" in str(study.report(store=str(store.folder), write=False))
    assert study.plan().runs[1]["stage"] == 1


@pytest.mark.slow
def test_a_study_of_stages_goes_on_where_it_was_stopped(done, tmp_path):
    planned, whole = done
    left = 3

    def stops(job, watch):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return do_job(job, watch)

    with pytest.raises(KeyboardInterrupt):
        driven(planned, tmp_path, do=stops)
    assert len(status(planned, Store(tmp_path)).done) == 3
    assert driven(planned, tmp_path).here == 2
    keys = [item.key for item in planned.items({})[0]]
    assert Store(tmp_path).rows(keys).sort(ORDER).equals(whole.rows(keys).sort(ORDER))


@pytest.mark.slow
def test_a_bundle_without_weights_is_continued_by_doing_the_earlier_stages_again(done, tmp_path):
    planned, whole = done
    items = planned.items({})[0]
    whole.export(tmp_path / "bundle", [item.key for item in items[:2]])
    given = Bundle(tmp_path / "bundle").summaries
    tally = driven(planned, tmp_path / "store", given=given)
    assert tally.ended and tally.here == 5  # the third stage of rope needs both weights before it
    whole.export(tmp_path / "more", [item.key for item in items[:3]])
    tally = driven(planned, tmp_path / "other", given=Bundle(tmp_path / "more").summaries)
    assert tally.ended and tally.here == 2


def test_what_follows_a_failed_run_has_failed_too(tmp_path):
    planned = staged()
    first = planned.items({})[0][0].key

    def fails(job, watch):
        return Outcome(job.key, "failed", "a planted failure") if job.key == first else do_job(job, watch)

    tally = driven(planned, tmp_path, do=fails)
    assert tally.ended and tally.here == 2 and len(tally.failed) == 3
    assert [why for why in tally.failed.values() if first in why] == [f"it starts from {first}, which has failed"]


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ([{"after": "rop"}], "then.0.after: 'rop' is no encoding of the study"),
        ([{"encodng": "nope"}], "Did you mean 'encoding'?"),
    ],
)
def test_a_mistake_in_a_stage_is_told_with_its_place(then, told):
    with pytest.raises(SpecError, match=told.replace("?", r"\?")):
        staged(then=then)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"encoding": "nopee"}, "then.0.encoding: unknown encoding 'nopee'"),
        (
            {"model": "laptop:layers=1:width=32:heads=2"},
            "then.0, copy:longest=3:variant=same, rope: ",
        ),
        ({"encoding": "learned:limit=64"}, "(in a study, allow: [...])"),
        ({"training": "laptop:pseudo_examples=5"}, "pseudo_examples does nothing without pseudo_labels_up_to"),
        ({"training": "laptop:pseudo_labels_up_to=3"}, "lengths up to 3 have correct labels; write 4 or more"),
    ],
)
def test_check_finds_stages_that_cannot_be_done(then, told, tmp_path):
    errors = written(tmp_path, then=[then]).check().errors
    assert any(told in error for error in errors), errors


def test_the_first_stage_has_no_pseudo_labels():
    with pytest.raises(SpecError, match="pseudo_labels_up_to needs a run to start from"):
        lw.train("copy:variant=same:longest=3", training="laptop:steps=2:pseudo_labels_up_to=5", quiet=True)


def test_a_chosen_rate_goes_on_in_later_stages_and_they_are_not_tuned():
    tasks = ["copy:variant=same:longest=3", "copy:variant=same:longest=2"]
    base = {"model": STAGES["base"]["model"], "training": TRAINING}
    planned = staged(
        base=base,
        vary={"task": tasks, "encoding": ["rope", "nope"]},
        lr={"choose": [0.001, 0.004], "groups": [tasks], "seeds": [7]},
        then=[{"after": "rope", "encoding": "nope"}, {"after": "nope", "training": f"{TRAINING}:lr=0.5"}],
    )
    tuned = [item for tried in planned.tuning.values() for item in tried]
    assert len({item.key for item in tuned}) == len(tuned) == 4 and not any(item.plan.start for item in tuned)
    right = {item.key: 3 if item.plan.training.lr == 0.004 else 1 for item in tuned}
    told = {key: {"validation": {"correct": many, "examples": 3}} for key, many in right.items()}
    items, waiting = planned.items(told)
    runs = [item for item in items if item.kind == "run"]
    assert not waiting and len(runs) == 2 * (3 + 2)
    assert {(item.point.stage, item.plan.training.lr) for item in runs} == {(0, 0.004), (1, 0.004), (2, 0.5)}


def test_stages_that_differ_only_in_what_they_started_from_have_different_names(tmp_path):
    trainings = [TRAINING, f"{TRAINING}:lr=0.01"]
    base = {key: value for key, value in STAGES["base"].items() if key != "training"}
    vary = {"encoding": ["rope"], "training": trainings}
    items, _ = staged(base=base, vary=vary, then=[{"training": f"{TRAINING}:lr=0.1"}]).items({})
    names = encoding_label_by_run(items)
    assert len(set(names.values())) == 4


def test_a_name_says_only_what_varies_within_a_task():
    linked = [
        {"task": task, "encoding": "nape", "model": f"laptop:layers={layers}:heads=8:head_width=8{option}"}
        for task, layers in (("sort:longest=8", 2), ("reverse:longest=8", 3))
        for option in ("", ":normaliser=entmax")
    ]
    study = StudyFile.of({"name": "n", "question": "?", "base": {"training": TRAINING}, "linked": linked, "seeds": [0]})
    names = encoding_label_by_run(Planned(study).items({})[0])
    assert list(names.values()) == ["nape", "nape normaliser=entmax"] * 2
    positions = {"encoding": ["rope"], "positions": ["consecutive", "randomized:limit=64"]}
    names = encoding_label_by_run(staged(vary=positions, then=[]).items({})[0])
    assert list(names.values()) == ["rope consecutive", "rope randomized:limit=64"]


def test_seen_lengths_count_a_diverged_run_as_not_learned(tmp_path):
    base = {key: value for key, value in STAGES["base"].items() if key != "training"}
    vary = {"encoding": ["rope"], "training": [TRAINING, f"{TRAINING}:lr=1e30:grad_clip=1e30"]}
    assert len(driven(staged(base=base, vary=vary, then=[]), tmp_path).failed) == 1
    study = written(tmp_path, base=base, vary=vary, then=[])
    (line,) = study.status(str(tmp_path), learned=True).learned
    assert set(line) == {"task", "rope", "rope grad_clip=1e+30:lr=1e+30"}
    assert line["rope grad_clip=1e+30:lr=1e+30"] == "diverged, 0 of 1 learned"


def test_evaluations_of_a_diverged_run_do_not_keep_a_blind_study_closed(tmp_path):
    base = {**STAGES["base"], "training": f"{TRAINING}:lr=1e30:grad_clip=1e30"}
    changes = {"blind": True, "base": base, "then": [], "evaluations": [{"of": "rope", "temperature": "log-n"}]}
    planned = staged(**changes)
    assert status(planned, Store(tmp_path)).left == 3
    driven(planned, tmp_path)
    found = status(planned, Store(tmp_path))
    assert found.left == 0 and found.ended and len(found.ended_items) == 2


def test_a_blind_study_opens_when_what_follows_a_diverged_run_cannot_be_done(tmp_path):
    planned = staged(blind=True, base={**STAGES["base"], "training": f"{TRAINING}:lr=1e30:grad_clip=1e30"})
    tally = driven(planned, tmp_path)
    assert tally.ended and len(tally.failed) == 5
    (tmp_path / "stages.yaml").write_text(yaml.safe_dump(planned.study.model_dump(exclude_defaults=True)))
    with pytest.raises(SpecError, match="every run of stages that ended diverged"):
        lw.Study.read(tmp_path / "stages.yaml").report(store=str(tmp_path))


def test_a_failure_that_is_mended_elsewhere_lets_later_stages_begin(tmp_path):
    planned = staged(then=STAGES["then"][:1], vary={"encoding": ["rope"]})
    first, second = planned.items({})[0]
    driver = Driver(planned, Store(tmp_path), InProcess())
    driver.tally.failed[first.key] = "planted"
    items = [first, second]
    driver._failures(items, Store(tmp_path).state())
    assert set(driver.tally.failed) == {first.key, second.key}
    del driver.tally.failed[first.key]
    driver._failures(items, Store(tmp_path).state())
    assert not driver.tally.failed


@pytest.mark.slow
def test_evaluations_of_a_run_that_is_done_again_are_done_again_too(tmp_path):
    changed = {"vary": {"encoding": ["rope"]}, "evaluations": [{"examples": 4}]}
    first = staged(**changed, then=[])
    driven(first, tmp_path / "one")
    Store(tmp_path / "one").export(tmp_path / "bundle")
    given = Bundle(tmp_path / "bundle").summaries
    longer = staged(**changed, then=STAGES["then"][:1])
    told = status(longer, Store(tmp_path / "two"), given)
    assert not told.done and len(told.missing) == 4
    tally = driven(longer, tmp_path / "two", given=given)
    assert tally.ended and tally.here == 4
    rows = Store(tmp_path / "two").rows([item.key for item in longer.items({})[0]])
    assert set(rows["evaluation"]) == {"as trained", "examples=4"} and rows["run"].n_unique() == 2


# --- pseudo-labels ---------------------------------------------------------------------------------------------------


def test_a_label_needs_two_of_three_votes_an_end_and_the_usual_length(monkeypatch):
    assert _majority([[1, 2], [1, 2], [3]]) == [1, 2]
    assert _majority([[1], [2], [3]]) is None and _majority([[], [], [3]]) is None
    task = build_task("copy:variant=same:longest=3")
    end = task.vocabulary.eos
    usual = [7, 7, 7, end]
    answers = {0: usual, 1: usual, 2: usual, 3: [7, end], 4: [7, 7, 7, 7], 5: [9, 9, 9, 9, end]}

    def decode_function(decoder, positions, eos):
        def decode(asked, begun):
            assert all(len(case.ids) == case.prompt for case in asked)  # the right answer is not there
            said = [answers[case.index] for case in asked]
            return [[8, end], *said[1:]] if decoder == "dissents on the first" else said

        return decode

    monkeypatch.setattr("lengthwise.run.pseudo_labels.decoder_decode_function", decode_function)
    positions = build_positions("consecutive")
    kept, counts = _labelled(["a", "b", "dissents on the first"], task, positions, 5, 6, seed=0)
    assert counts == {"drawn": 6, "kept": 4, "right": 0}  # not the answer that is too short, nor the endless one
    assert [ids[prompt:] for ids, prompt in kept] == [answers[0], answers[1], answers[2], answers[5]]
    kept, _ = _labelled(["a", "dissents on the first", "dissents on the first"], task, positions, 5, 6, seed=0)
    assert [ids[prompt:] for ids, prompt in kept] == [usual, usual, answers[5]]


def test_labelled_inputs_are_in_no_test_set():
    task = build_task("sort:longest=3")
    make = longer_instance_factory(task, 5, seed=3)
    drawn = {make(index) for index in range(300)}
    tested = {case.instance for case in evaluation_cases(task, "test_unseen", 5)}
    assert len(drawn) > 250 and not drawn & tested
    assert all(85 <= task.bucket(5, one) < 90 for one in drawn)
    assert drawn != {longer_instance_factory(task, 5, seed=4)(index) for index in range(300)}


def test_training_mixes_correct_and_pseudo_labels():
    task = build_task("copy:variant=same:longest=3")
    labels = PseudoLabels({4: [([1, 9, 9, 2], 2)], 5: [], 6: [([1, 8, 8, 8, 2], 2), ([1, 7, 7, 7, 2], 2)]}, {}, task)
    block = labels.block(100, 1100, seed=1)
    counts = dict(zip(*np.unique(block.lengths_N, return_counts=True), strict=True))
    assert set(counts) == {1, 2, 3, 4, 6}  # nothing of length 5 was kept
    assert all(150 < count < 250 for count in counts.values())
    at = block.lengths_N == 4
    assert block.batch(np.flatnonzero(at)[:1]).ids_BT.tolist() == [[1, 9, 9, 2]]
    own = training_block(task, 100, 1100, seed=1)
    first = int(np.flatnonzero(block.lengths_N <= 3)[0])
    assert block.batch([first]).ids_BT.tolist() == own.batch([first]).ids_BT.tolist()
    again = labels.block(600, 700, seed=1)  # independent of how examples are grouped
    assert again.batch(slice(0, 100)).ids_BT.tolist() == block.batch(slice(500, 600)).ids_BT.tolist()
    none = PseudoLabels({4: []}, {}, task).block(0, 10, seed=1)
    assert none.ids.tolist() == training_block(task, 0, 10, seed=1).ids.tolist()


def test_labels_do_not_depend_on_the_right_answers(done, monkeypatch):
    planned, store = done
    item = planned.items({})[0][4]
    start = Run.open(item.start_id, str(store.folder))
    made = pseudo_label(item.plan, start)
    task = item.plan.task
    honest = type(task).to_example

    def wrong(self, instance):
        example = honest(self, instance)
        return type(example)(example.prompt, example.prompt[:1]) if len(example.prompt) > 3 else example

    monkeypatch.setattr(type(task), "to_example", wrong)
    assert pseudo_label(item.plan, start).examples == made.examples


def test_check_looks_at_every_chain_of_stages(tmp_path):
    vary = {"encoding": ["rope", "learned:limit=64"]}
    assert any("left over" in one for one in written(tmp_path, vary=vary, then=[{"encoding": "nope"}]).check().errors)


@pytest.mark.slow
def test_lengths_of_two_and_three_digits_can_be_labelled_and_continued(tmp_path):
    stage = {"training": f"{TRAINING}:pseudo_labels_up_to=10:pseudo_examples=4"}
    base = {**STAGES["base"], "task": "copy:variant=same:longest=8"}
    planned = staged(base=base, vary={"encoding": ["nope"]}, then=[stage, {"training": TRAINING}])
    tally = driven(planned, tmp_path)
    assert not tally.failed and tally.here == 3


def test_the_paper_protocol_has_no_longer_inputs_to_label(done):
    _, store = done
    run = next(path.name for path in (Path(str(store.folder)) / "runs").iterdir())
    with pytest.raises(SpecError, match="any longer input may be a test input"):
        lw.train("parity:protocol=paper", start=run, store=str(store.folder), training="laptop:pseudo_labels_up_to=99")


def test_what_was_replaced_does_not_count_as_trained_on():
    task = build_task("copy:variant=same:longest=3")
    labels = PseudoLabels({4: [([1, 9, 9, 2], 2)] * 3, 5: [([1, 8, 8, 8, 2], 2)]}, {}, task)
    used = {index for index in range(200) if labels.replaces(index, 1) is None}
    assert 80 < len(used) < 160
    cases = trained_cases(task, 200, 1, lambda index: index in used)
    block = labels.block(0, 200, 1)
    trained = {tuple(block.batch([row]).ids_BT[0].tolist()) for row in used}
    assert cases and all(tuple(case.ids) in trained for case in cases)
    every = trained_cases(task, 200, 1)
    assert not all(tuple(case.ids) in trained for case in every)


def test_the_number_of_labels_is_recorded(done):
    planned, store = done
    item = planned.items({})[0][4]
    run = Run.open(item.key, str(store.folder))
    told = json.loads(run.folder.read("done"))["pseudo_labels"]
    assert {length: one["drawn"] for length, one in told.items()} == {"4": 20, "5": 20}
    assert set(run.rows().filter(pl.col("seen"))["length"]) <= {1, 2, 3}  # longer lengths still count as unseen
