"""What `plan`, `status`, `run` and `list` say agrees, and is said before anything takes time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import lengthwise as lw
from lengthwise.device import choose_device
from lengthwise.folder import Folder
from lengthwise.interface.results import reproducing_commands
from lengthwise.spec import SpecError
from lengthwise.study.cost import expected_seconds
from lengthwise.study.drive import Driver, Tally, item_without_seed, remaining_seconds
from lengthwise.study.executors import InProcess, Processes
from lengthwise.study.file import StudyFile
from lengthwise.study.launch import executor_of
from lengthwise.study.plan import Planned
from lengthwise.study.proof import check_only_encoding_differs
from lengthwise.study.store import Store
from lengthwise.study.work import job_of
from tests.run.test_cli_runs import cli
from tests.study.conftest import TINY, tiny

BROKEN = """import torch

from lengthwise.encoding.base import Encoding


class Broken(Encoding):
    def bias(self, query_positions_BQ, key_positions_BK):
        query = torch.arange(query_positions_BQ.shape[1]).to(query_positions_BQ)
        distance_BQK = query[None, :, None] - key_positions_BK[:, None, :]
        return -distance_BQK.abs().sqrt()[:, None].expand(-1, self.geometry.heads, -1, -1)
"""
SOUND = """from lengthwise.encoding.base import Encoding


class Sound(Encoding):
    def by_distance(self, distances_N):
        return -distances_N.abs().sqrt().expand(self.geometry.heads, -1)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a study file, the bundle of its runs under results/, and two encodings of one's own."""
    there = tmp_path_factory.mktemp("words")
    (there / "tiny.yaml").write_text(json.dumps(TINY))
    (there / "broken.py").write_text(BROKEN)
    (there / "sound.py").write_text(SOUND)
    store = Store(there / "made")
    Driver(Planned(tiny()), store, InProcess()).run()
    store.export(there / "results" / "tiny")
    return there


@pytest.mark.slow
def test_plan_finds_committed_results_as_run_does_and_says_where_they_are(place):
    told = cli("study", "plan", "tiny.yaml", "--add", "sound.py:Sound", cwd=place)
    assert told.returncode == 0, told.stderr
    assert "6 runs; 0 done in lengthwise-store, 4 in results/tiny" in told.stdout
    plain = cli("study", "plan", "tiny.yaml", cwd=place)
    assert "4 runs; 0 done in lengthwise-store" in plain.stdout, "without --add a study is run from its beginning"


def test_status_speaks_of_the_guard_that_run_begins_with(place):
    told = cli("study", "status", "tiny.yaml", "--add", "sound.py:Sound", cwd=place)
    assert "4 of 6 done, 0 running, 0 failed (0 done in lengthwise-store, 4 in results/tiny)" in told.stdout
    assert "committed runs that are made again first, as a guard:" in told.stdout and "0 of 3 done" in told.stdout
    plain = json.loads(cli("study", "status", "tiny.yaml", "--add", "sound.py:Sound", "--json", cwd=place).stdout)
    assert plain["done"] == 4 and plain["guard"]["total"] == 3 and plain["guard"]["running"] == []


@pytest.mark.slow
def test_an_encoding_that_does_not_conform_is_not_trained(place, tmp_path):
    options = ["--store", str(tmp_path / "store"), "--to", str(tmp_path), "--inline", "--quiet"]
    told = cli("study", "run", "tiny.yaml", "--add", "broken.py:Broken", *options, cwd=place)
    assert told.returncode == 2 and "does not conform, so it is not trained" in told.stderr
    assert "--skip-verify" in told.stderr and "T06 fail" in told.stderr
    assert not (tmp_path / "store" / "runs").exists()
    anyway = cli("study", "run", "tiny.yaml", "--add", "broken.py:Broken", "--skip-verify", *options, cwd=place)
    assert anyway.returncode == 0, anyway.stderr
    assert "every row is bit-equal" in anyway.stdout and (tmp_path / "report-tiny" / "index.html").exists()
    from_plan = cli("study", "status", "tiny.yaml", "--add", "broken.py:Broken", *options[:2], cwd=place)
    assert "6 of 6 done" in from_plan.stdout and "as a guard" not in from_plan.stdout


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_study_that_asks_for_gpus_is_refused_where_there_is_none(executor, written, tmp_path):
    study = lw.Study.read(written(resources={"gpus": 0.25}))
    with pytest.raises(SpecError, match=r"asks for 0\.25 GPU, and torch finds 0 here"):
        study.run(str(tmp_path / "store"), executor=executor)
    assert not (tmp_path / "store" / "done").exists()
    with pytest.raises(SpecError, match=r"gpus is a part of one, e\.g\. 0\.25, or a whole number, not 1\.5"):
        tiny(resources={"gpus": 1.5})


def test_a_run_that_was_given_a_gpu_is_not_trained_on_the_cpu():
    study = tiny(resources={"gpus": 0.25})
    item = Planned(study).items({})[0][0]
    job = job_of(item, study, Folder("nowhere"))
    assert job.device == "accelerator" and job_of(item, tiny(), Folder("nowhere")).device == "auto"
    with pytest.raises(SpecError, match="was given a GPU, but torch finds none of cuda, mps, xpu here"):
        choose_device(job.device)


def test_workers_take_gpus_in_turn(monkeypatch):
    seen = []

    def started(*more, env, **rest):
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        raise ZeroDivisionError

    monkeypatch.setattr("subprocess.Popen", started)
    workers = Processes(3, ["0", "2"])
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            workers._started()
    assert seen == ["0", "2", "0"]


def test_studies_are_listed_and_two_tasks_are_answered_about_tasks(tmp_path):
    told = cli("study", "list", "--json", cwd=tmp_path)
    names = {line["study"]: line for line in json.loads(told.stdout)}
    assert names["quickstart"]["runs"] == 15 and names["quickstart"]["results"] is True
    assert json.loads(cli("list", "studies", "--json", cwd=tmp_path).stdout) == list(names.values())
    wrong = cli("compare", "copy,sort", cwd=tmp_path)
    assert wrong.returncode == 2 and "A run has one task; a study takes several" in wrong.stderr


def test_the_time_left_is_known_before_the_first_run_ends():
    planned = Planned(tiny())
    items = planned.items({})[0]
    seconds = expected_seconds([item.plan for item in items])
    assert seconds.keys() == {item.key for item in items} and all(0 < one < 60 for one in seconds.values())
    expected = {item_without_seed(item): seconds[item.key] for item in items}
    whole = remaining_seconds(expected, items, 0)
    assert whole == pytest.approx(sum(seconds.values()))
    assert remaining_seconds(expected, items[:2], 2) == pytest.approx(whole, rel=0.5)
    tally = Tally(total=4, remaining=240.0)
    assert tally.sentence(2) == "0 of 4 done, 2 running, about 2 min left"
    assert tally.sentence(2, running_seconds=100) == "0 of 4 done, 2 running, about 70 s left"
    tally.seconds, tally.foreseen = [30.0], 10.0  # the first took three times what was expected
    assert tally.sentence(2) == "0 of 4 done, 2 running, about 6 min left"


def test_the_time_left_counts_down_while_runs_run_and_stops_at_what_was_expected(monkeypatch, tmp_path):
    planned, clock = Planned(tiny()), [100.0]
    monkeypatch.setattr("lengthwise.study.drive.time.monotonic", lambda: clock[0])

    class Busy:
        def submit(self, job):
            pass

    first, second, *_ = planned.items({})[0]
    driver = Driver(
        planned,
        Store(str(tmp_path)),
        Busy(),
        expected={item_without_seed(first): 60.0, item_without_seed(second): 60.0},
    )
    driver._begin(first)
    clock[0] += 20
    driver._begin(second)
    clock[0] += 10
    assert driver._spent() == 30 + 10
    clock[0] += 1000
    assert driver._spent() == 60 + 60


def test_a_report_and_a_cost_say_what_they_are_doing():
    """Both take long for a large study; without progress they look as if they hung."""
    study, told = lw.Study.read("quickstart"), []
    study.report(write=False, say=told.append)
    assert "computing intervals and drawing" in told
    study.cost("a100", say=told.append)
    assert any(words.startswith("counting sort:") for words in told)


def test_one_seed_is_one_group_of_runs():
    planned = Planned(StudyFile.of({**TINY, "seeds": 1}))
    assert "among the runs of 2 encodings" in check_only_encoding_differs(planned.items({})[0]).sentence


def test_a_longer_run_is_expected_to_take_longer():
    short, long = (
        Planned(
            StudyFile.of({**TINY, "base": {**TINY["base"], "training": f"laptop:steps={n}:batch_size=4:validations=1"}})
        )
        for n in (10, 1000)
    )
    plans = [planned.plan(planned.points[0]) for planned in (short, long)]
    seconds = expected_seconds(plans)
    assert seconds[plans[1].id] > 1.5 * seconds[plans[0].id]


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["in training", "in evaluation"])
def test_ctrl_c_says_how_far_it_is_and_the_same_command_goes_on(tmp_path, again):
    """The first is stopped while it trains; the second while it evaluates, after training was over."""
    steps = 4 if again else 4000
    training = f"laptop:steps={steps}:batch_size=8:validations=1:validation_examples=8"
    command = [sys.executable, "-m", "lengthwise", "train", "copy:variant=same:longest=16", "--training", training]
    process = subprocess.Popen(
        [*command, "--threads", "1"], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "LENGTHWISE_BEAT": "0.2"},
    )  # fmt: skip
    wanted = "*/1/model.safetensors" if again else "*/1/checkpoints/*/manifest.json"
    until = time.monotonic() + 120
    while not list((tmp_path / "lengthwise-store" / "runs").glob(wanted)) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 75 and "Traceback" not in said
    assert f"stopped: saved at step {'4' if again else ''}" in said and "the same command goes on" in said


def test_how_many_runs_fit_on_a_gpu_is_said_if_more_fit_than_are_placed(monkeypatch):
    from lengthwise.study.cost import gpu_memory_of_run
    from lengthwise.study.launch import gpu_suggestion
    from lengthwise.study.machines import gpu_share

    def said(**resources) -> str | None:
        return gpu_suggestion(Planned(tiny(resources=resources)))

    assert said() is None  # there is no GPU here
    needed = max(gpu_memory_of_run(Planned(tiny()).plan(point)) for point in Planned(tiny()).points)
    monkeypatch.setattr("lengthwise.device.gpu_bytes", lambda: int(6.5 * needed))
    assert "6 fit on a GPU" in said() and "not placed on GPUs" in said()
    assert "4 on a GPU" in said(gpus=0.25) and "resources: {gpus: 0.166}" in said(gpus=0.25)
    assert said(gpus=0.166) is None and said(gpus=2) is None
    monkeypatch.setattr("lengthwise.device.gpu_bytes", lambda: int(1.5 * needed))
    assert said() is None
    assert all(int(1 / gpu_share(runs)) == runs for runs in range(1, 20))


def test_a_worker_sees_as_many_gpus_as_its_run_asks_for(monkeypatch):
    monkeypatch.setattr("lengthwise.device.visible_gpus", lambda: ["0", "1", "2", "3", "4"])
    whole = executor_of("processes", tiny(resources={"gpus": 2}).resources)
    assert (whole.slots, whole._gpus) == (2, ["0,1", "2,3"])
    parts = executor_of("processes", tiny(resources={"gpus": 0.5}).resources, workers=3)
    assert (parts.slots, parts._gpus) == (3, ["0", "1", "2", "3", "4"])


def test_a_study_in_another_precision_has_other_runs(written, tmp_path):
    plain, mixed, same = (lw.Study.read(written(), dtype=dtype) for dtype in ("auto", "bf16", "fp32"))
    ids = [{item.key for item in one.items(str(tmp_path))} for one in (plain, mixed, same)]
    assert ids[0] == ids[2] and not ids[0] & ids[1] and len(ids[1]) == len(ids[0])
    assert all(item.plan.training.autocast for item in mixed.items(str(tmp_path)))
    assert "--dtype bf16" in reproducing_commands(mixed) and "--dtype" not in reproducing_commands(plain)
    linked = lw.Study.read("laptop", dtype="bf16")
    assert all(linked.planned.plan(point).training.autocast for point in linked.planned.points[:3])
    some = written(
        base={**TINY["base"], "training": "laptop:steps=3"},
        vary={"encoding": ["nope", "rope"]},
        linked=[{"task": "copy", "training": "laptop:steps=4"}, {"task": "sort"}],
    )
    partly = lw.Study.read(some, dtype="bf16").planned
    assert [partly.plan(point).training.autocast for point in partly.points] == [True] * len(partly.points)
    again = lw.Study.read(mixed, tasks="quick")
    assert again.dtype == "bf16" and {item.key for item in again.items(str(tmp_path))} <= ids[1]
    with pytest.raises(SpecError, match="dtype is auto, fp32 or bf16, not 'fp16'"):
        lw.Study.read(written(), dtype="fp16")


def test_an_estimate_for_an_accelerator_says_what_it_assumes(written):
    told = str(lw.Study.read(written()).cost("t4"))
    assert "assumed of NVIDIA T4: 40% of its published peak (8.1 TFLOP/s" in told and "it has no bf16" in told
    assert "nothing was measured on one" in told and "such runs fit into its" in told
