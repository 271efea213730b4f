"""Study files that are right: each spelling means the same, the schema agrees, and ten thousand runs are quick."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import lengthwise
from lengthwise.evaluation.cases import parse_lengths
from lengthwise.spec import Spec, SpecError
from lengthwise.study import StudyFile
from lengthwise.study.check import check
from lengthwise.study.file import BaseRunOptions, CrossedOptions, LearningRateRule, LinkedOptions, schema
from lengthwise.study.plan import Planned
from tests.study.conftest import tiny

STUDIES = [
    path for path in sorted((Path(lengthwise.__file__).parents[2] / "studies").glob("*.yaml")) if path.stem != "claims"
]
TEXT = """
name: both
question: Is it the same?
base: {model: "laptop:layers=2", training: {name: laptop, steps: 20}}
vary:
  encoding: [nope, {name: rope, fraction: 0.25}, [nope, rope]]
linked:
  - task: copy:variant=same:longest=4
  - {task: {name: sort, longest: 4}, seeds: 1}
seeds: [0, 7]
lr: {choose: [1e-3, 2E-3, 4.0e-3], groups: [["copy:longest=4:variant=same", "sort:longest=4"]]}
evaluations: [{lengths: "5-7,12"}]
"""


def read(tmp_path, text):
    (tmp_path / "study.yaml").write_text(text)
    return StudyFile.read(tmp_path / "study.yaml")


def ids(study):
    return [item.key for item in Planned(study).items({})[0]]


def simple(**fields):
    return StudyFile.of({"name": "a", "question": "b", "base": {"task": "copy:longest=4"}, **fields})


def test_yaml_and_python_give_the_same(tmp_path):
    written = read(tmp_path, TEXT)
    made = StudyFile(
        name="both",
        question="Is it the same?",
        base=BaseRunOptions(model="laptop:layers=2", training="laptop:steps=20"),
        vary=CrossedOptions(encoding=["nope", "rope:fraction=0.25", "nope,rope"]),
        linked=[LinkedOptions(task="copy:variant=same:longest=4"), LinkedOptions(task="sort:longest=4", seeds=1)],
        seeds=[0, 7],
        lr=LearningRateRule(choose=[0.001, 0.002, 0.004], groups=[["copy:longest=4:variant=same", "sort:longest=4"]]),
        evaluations=[{"lengths": "5-7,12"}],
    )
    assert made == written and Planned(made).points == Planned(written).points
    assert ids(made) == ids(written) and len(ids(made)) == 18
    assert StudyFile.of(made.model_dump()) == made


def test_a_mapping_and_a_string_give_the_same_cells_and_ids():
    both = [
        {"encoding": ["rope:theta=500.0:fraction=0.5", "nope"]},
        {"encoding": [{"name": "rope", "fraction": 0.5, "theta": 500.0}, {"name": "nope"}]},
    ]
    text, mapping = (simple(vary=vary) for vary in both)
    assert text == mapping and Planned(text).points == Planned(mapping).points and ids(text) == ids(mapping)
    base = {"task": "copy:longest=4", "model": "laptop:layers=2"}
    listed = [simple(base={**base, "encoding": one}) for one in ("nope,rope", ["nope", {"name": "rope"}])]
    assert listed[0] == listed[1] and ids(listed[0]) == ids(listed[1])
    assert ids(listed[0])[0].startswith("copy-nope+rope-s0-")


def test_a_number_without_a_point_before_its_exponent_is_a_number(tmp_path):
    """YAML 1.1 would read 1e-3 as a word."""
    study = read(tmp_path, TEXT)
    assert study.lr is not None and study.lr.choose == [0.001, 0.002, 0.004]
    text = "name: a\nquestion: b\nbase: {task: copy, encoding: rope, training: {name: laptop, lr: 5e-4}}\nseeds: 1\n"
    assert Spec.of(Planned(read(tmp_path, text)).points[0].training) == Spec("laptop", (("lr", 0.0005),))


def test_seeds_are_a_number_or_a_list():
    assert simple(vary={"encoding": ["nope"]}).seed_list == [0, 1, 2]
    assert simple(vary={"encoding": ["nope"]}, seeds=2) != simple(vary={"encoding": ["nope"]}, seeds=[0, 1])
    number, listed = (simple(vary={"encoding": ["nope"]}, seeds=seeds) for seeds in (2, [0, 1]))
    assert Planned(number).points == Planned(listed).points and ids(number) == ids(listed)
    assert [point.seed for point in Planned(simple(vary={"encoding": ["nope"]}, seeds=[9, 3])).points] == [9, 3]


def test_runs_come_seed_by_seed_and_a_pair_may_have_fewer_seeds(tmp_path):
    points = Planned(read(tmp_path, TEXT)).points
    copy, sort = "copy:longest=4:variant=same", "sort:longest=4"
    first = [(task, encoding, 0) for task in (copy, sort) for encoding in ("nope", "rope:fraction=0.25", "nope,rope")]
    assert [(point.task, point.encoding, point.seed) for point in points] == [
        *first,
        *((copy, encoding, 7) for encoding in ("nope", "rope:fraction=0.25", "nope,rope")),
    ]


def test_what_is_counted_is_what_is_made(tmp_path):
    study = read(tmp_path, TEXT)
    assert study.runs == len(Planned(study).points) == 9
    assert simple(vary={"encoding": ["nope", "t5"], "positions": ["offset", "abacus"]}, seeds=5).runs == 20


def test_lengths_are_listed_or_a_range():
    assert (
        parse_lengths("8, 16,32") == [8, 16, 32]
        and parse_lengths("17-19") == [17, 18, 19]
        and parse_lengths("3,5-6") == [3, 5, 6]
        and parse_lengths("64..4096:x2") == [64, 128, 256, 512, 1024, 2048, 4096]
        and parse_lengths("10, 20..80:x1.5") == [10, 20, 30, 45, 68]
    )
    for wrong in ("64..32:x2", "64..128:x1", "0..8:x2"):
        with pytest.raises(SpecError, match=r"is no ladder: write first..last:xfactor"):
            parse_lengths(wrong)


def test_a_rate_is_chosen_on_the_first_task_of_a_group():
    fields = {"base": {"encoding": "rope"}, "vary": {"task": ["copy:longest=4", "sort:longest=4", "parity"]}}
    planned = Planned(simple(**fields, lr={"choose": [0.001, 0.002], "groups": [["sort:longest=4", "copy:longest=4"]]}))
    assert sorted({point.task for point in planned.tuning}) == ["parity", "sort:longest=4"]
    some = Planned(planned.study, ["copy:longest=4"])
    assert [point.task for point in some.tuning] == ["sort:longest=4"] and {point.seed for point in some.tuning} == {
        1000
    }


# --- the schema ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator():
    """What an editor would do with the schema that the command prints."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with ray, which is not installed")
    command = [sys.executable, "-m", "lengthwise", "study", "schema"]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert printed == schema()
    jsonschema.Draft202012Validator.check_schema(printed)
    return jsonschema.Draft202012Validator(printed)


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_schema_and_the_reader_accept_every_study(validator, path):
    assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))
    assert StudyFile.read(path) == StudyFile.read(path.stem)


@pytest.mark.parametrize(
    "fields",
    [
        {"sedes": 3},
        {"base": {"tsk": "copy"}},
        {"seeds": -1},
        {"seeds": []},
        {"name": "Good"},
        {"lr": {"choose": [1.0]}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_reader_refuses(validator, fields):
    good = {"name": "good", "question": "b", "base": {"task": "copy", "encoding": "rope"}}
    assert not list(validator.iter_errors(good))
    assert list(validator.iter_errors({**good, **fields}))
    with pytest.raises(ValueError):
        StudyFile.of({**good, **fields})


def test_the_schema_knows_both_spellings_of_a_name(validator):
    good = {"name": "good", "question": "b", "base": {"task": {"name": "copy"}, "encoding": ["rope", {"name": "nope"}]}}
    assert not list(validator.iter_errors(good))
    assert list(validator.iter_errors({**good, "base": {"task": 3, "encoding": "rope"}}))


# --- ten thousand runs -----------------------------------------------------------------------------------------------

BIG = """
name: big
question: Is it quick?
vary:
  task: [copy:variant=same, copy:variant=random, reverse:variant=once, addition, sort:variant=single, summation,
    parity, count, modular, flipflop]
  encoding: [nope, t5, alibi, rope, "rope:fraction=0.25", "rope:fraction=0.5", sinusoidal, "t5:buckets=16",
    "rope:theta=500.0", "learned:limit=4096"]
seeds: 100
"""
RUN = """
import sys
from lengthwise.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A study of ten thousand runs, of which nine thousand are done."""
    place = tmp_path_factory.mktemp("big")
    (place / "big.yaml").write_text(BIG)
    found = ids(StudyFile.read(place / "big.yaml"))
    assert len(set(found)) == 10_000
    done = place / "lengthwise-store" / "done"
    done.mkdir(parents=True)
    for key in found[:9000]:
        (done / key).write_text('{"attempt": 1, "seconds": 1.0, "validation": null, "token": "x"}')
    return place


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("command", "limit", "said", "torch"),
    [
        ("check", 9.0, "big is sound: 10,000 runs", True),
        ("plan", 5.0, "10,000 runs; 9,000 done in lengthwise-store", False),
        ("status", 5.0, "big in lengthwise-store: 9,000 of 10,000 done", False),
    ],
)
def test_ten_thousand_runs_are_quick(big, figure, command, limit, said, torch):
    """Plan and status take 2 to 3 s on a laptop; the limits leave room for a machine of half its speed."""
    arguments = [sys.executable, "-c", RUN, "study", command, "big.yaml"]
    tries = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(arguments, cwd=big, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert done.stderr.strip() == str(torch), "torch is imported for building alone"
        tries.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    seconds = min(tries)
    figure(f"study {command} of 10,000 runs: {seconds:.2f} s of a core, the best of three, limit {limit:g} s")
    assert seconds < limit


@pytest.mark.slow
@pytest.mark.alone
def test_ten_thousand_runs_with_groups_of_tasks_are_quick(figure):
    """Each run's tuning run is found by its labels, not by looking at all runs."""
    tasks = [f"copy:longest={longest}" for longest in range(4, 14)]
    fields = {"base": {}, "vary": {"task": tasks, "encoding": yaml.safe_load(BIG)["vary"]["encoding"]}, "seeds": 100}
    planned = Planned(simple(**fields, lr={"choose": [0.001, 0.002], "groups": [tasks]}))
    began = time.process_time()
    items, waiting = planned.items({})
    seconds = time.process_time() - began
    figure(f"items of 10,000 runs that wait for 40 tuning runs: {seconds:.2f} s, limit 3 s")
    assert (len(items), len(waiting)) == (40, 10_000) and seconds < 3


def test_a_plan_made_of_anothers_is_the_one_that_is_made_alone():
    study = simple(vary={"encoding": ["rope", "nope"]}, seeds=[5, 2])
    for point in Planned(study).points:
        assert Planned(study).plan(point).id == Planned(study)._plan(point, {}).id
    planned = Planned(study)
    assert [planned.plan(point).id for point in planned.points] == [
        planned._plan(point, {}).id for point in planned.points
    ]
    point = planned.points[0]
    assert planned.plan(point, steps=3).training.steps == 3 and planned.plan(point).training.steps != 3


MIXED = {
    "base": {
        "task": "copy:variant=same:longest=20",
        "model": "laptop:width=16:heads=2:head_width=8:layers=4",
        "training": "laptop:steps=4:batch_size=4:validations=1:validation_examples=8",
    },
    "vary": {"encoding": ["rope", "3*rope,nope", "stick_breaking", "t5"]},
    "seeds": 1,
}


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"encoding": "rope:scaling=dynamic:factor=0.5"}, ["evaluations.0, rope: ", "factor"]),
        ({"temperature": "llama4:floor=4"}, ["evaluations.0, rope: temperature", "layers=all"]),
        ({"encoding": "xpos:base=0.5"}, ["evaluations.0, rope: 'xpos:base=0.5' has positions up to 30", "larger base"]),
        ({"encoding": "rope"}, ["evaluations.0, t5: the weights of a run with t5", "left over: encodings.0.table"]),
        ({"encoding": "learned", "allow": ["encodings.*"]}, ["evaluations.0, t5: encodings.0.table is (32, 2)"]),
        ({"encoding": "nope", "allow": ["encodings.*"]}, []),
        ({"encoding": "xpos:base=0.5", "lengths": "3", "allow": ["encodings.*"]}, []),
        ({"encoding": "rope:scaling=yarn:factor=2", "allow": ["encodings.*"]}, []),
        ({"encoding": "3*rope,nope", "temperature": "llama4:floor=4", "allow": ["encodings.*"]}, []),
        ({"temperature": "log-n"}, []),
    ],
)
def test_an_evaluation_that_would_fail_after_all_training_is_told_before(evaluation, said):
    told = check(Planned(tiny(**MIXED, evaluations=[evaluation])))
    assert bool(told) == bool(said)
    for words in said:
        assert any(words in line for line in told), told
    assert len(told) <= 2
