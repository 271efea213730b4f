"""A driver does what is missing, records what fails, goes on where it was stopped, and shares a store with others."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import polars as pl
import pytest

import lengthwise as lw
from lengthwise.run import Run
from lengthwise.spec import SpecError
from lengthwise.study.add import chosen_tasks, with_added_encodings
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess, Processes
from lengthwise.study.plan import Planned
from lengthwise.study.proof import check_only_encoding_differs
from lengthwise.study.status import status
from lengthwise.study.store import Store
from lengthwise.study.work import Outcome, _code, do_job
from tests.damage import reseal_bundle
from tests.study.conftest import lengthwise, tiny

ROOT = Path(__file__).parents[2]
ORDER = ["run", "evaluation", "checkpoint", "split", "length", "subgroup"]


def driven(study, where, **options):
    planned, store = Planned(study), Store(where)
    return planned, store, Driver(planned, store, InProcess(), **options).run()


def rows_of(store: Store, keys) -> pl.DataFrame:
    return store.rows(keys).sort(ORDER)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    planned, store, tally = driven(tiny(), tmp_path_factory.mktemp("undisturbed"))
    assert len(tally.done) == tally.total == 4 and tally.here == 4
    return planned, store


def test_a_study_is_done_once(undisturbed):
    planned, store = undisturbed
    keys = [item.key for item in planned.items({})[0]]
    assert store.done() == set(keys)
    assert set(store.rows(keys)["run"]) == set(keys)
    again = Driver(planned, store, InProcess(lambda job, watch: pytest.fail("it was done"))).run()
    assert again.here == 0 and len(again.done) == 4
    found = status(planned, store)
    assert found.all_done and not found.missing and not found.running and found.seconds is not None


@pytest.mark.slow
def test_a_run_of_a_study_is_a_run(undisturbed, tmp_path):
    """Made by `lengthwise train` with the same options, it is the same run with the same rows."""
    planned, store = undisturbed
    item = planned.items({})[0][0]
    study = planned.study
    command = ["train", study.base.task, "--encoding", item.point.encoding, "--model", study.base.model]
    command += ["--training", study.base.training, "--seed", "0", "--threads", "1", "--store", tmp_path, "--json"]
    made = json.loads(lengthwise(*command).stdout)
    assert made["run"] == item.key
    theirs = Run.open(item.key, str(tmp_path)).rows().sort(ORDER)
    assert theirs.equals(rows_of(store, [item.key]))


@pytest.mark.slow
def test_what_fails_is_recorded_and_does_not_stop_the_study(tmp_path, monkeypatch):
    study, bad = tiny(), []

    def do(job, watch):
        if "alibi" in job.key and not bad:
            bad.append(job.key)
            monkeypatch.setattr("lengthwise.run.attempt.validate_decoder", lambda *_: 1 / 0)
            try:
                return do_job(job, watch)
            finally:
                monkeypatch.undo()
        return do_job(job, watch)

    planned, store = Planned(study), Store(tmp_path)
    tally = Driver(planned, store, InProcess(do)).run()
    assert len(tally.done) == 3 and list(tally.failed) == bad and "ZeroDivisionError" in tally.failed[bad[0]]
    assert "ZeroDivisionError" in (tmp_path / "runs" / bad[0] / "1" / "error.txt").read_text()
    found = status(planned, store)
    assert found.failed == tally.failed and not found.missing
    again = Driver(planned, store, InProcess()).run()  # run: not by itself
    assert again.here == 0 and list(again.failed) == bad
    retried = Driver(planned, store, InProcess(), retry=True).run()
    assert retried.here == 1 and not retried.failed and len(retried.done) == 4
    assert status(planned, store).all_done


@pytest.mark.slow
def test_two_drivers_at_once_do_no_run_twice(written, tmp_path, undisturbed):
    """Four processes, as a SLURM array would start them, over one store."""
    path, store = written(seeds=2), tmp_path / "store"
    command = [
        sys.executable,
        "-m",
        "lengthwise",
        "study",
        "run",
        str(path),
        "--inline",
        "--store",
        str(store),
        "--json",
    ]
    environment = {**os.environ, "LENGTHWISE_BEAT": "0.5"}
    going = [
        subprocess.Popen([*command, "--to", str(tmp_path / f"{n}")], stdout=subprocess.PIPE, env=environment, text=True)
        for n in range(4)
    ]
    told = [json.loads(process.communicate(timeout=200)[0]) for process in going]
    assert [one["done"] for one in told] == [4] * 4
    planned, apart = undisturbed
    keys = [item.key for item in planned.items({})[0]]
    attempts = [len(list((store / "leases" / key).iterdir())) for key in keys]
    assert attempts == [1] * 4, f"attempts {attempts}: a run was begun twice"
    assert rows_of(Store(store), keys).equals(rows_of(apart, keys))


@pytest.mark.slow
def test_a_study_file_that_is_edited_in_mid_run_is_read_at_the_next_start(written, tmp_path):
    """The file is read once, so what runs is what was checked; the next start does what was added."""
    file, told = written(), []

    def edit(words):
        if not told:
            written(vary={"encoding": ["nope", "rope"]})
        told.append(words)

    lw.Study.read(file).run(str(tmp_path / "store"), executor="inline", say=edit)
    first = sorted(path.name.split("-s")[0] for path in (tmp_path / "store" / "done").iterdir())
    assert told and first == ["copy-alibi", "copy-alibi", "copy-nope", "copy-nope"]
    again = lw.Study.read(file).run(str(tmp_path / "store"), executor="inline")
    assert again.tally.here == 2 and again.tally.done == {item.key for item in again.study.items()}
    assert len(list((tmp_path / "store" / "done").iterdir())) == 6, "nothing of the first start is lost"


@pytest.mark.slow
def test_two_drivers_of_different_versions_share_a_store_and_no_run(written, tmp_path, undisturbed):
    """A changed encoding has another version, so its runs have other ids; what has not changed is done once."""
    shutil.copytree(ROOT / "src", tmp_path / "later" / "src")
    (tmp_path / "later" / "studies").symlink_to(ROOT / "studies")
    alibi = tmp_path / "later" / "src" / "lengthwise" / "encoding" / "alibi.py"
    alibi.write_text(alibi.read_text().replace('    label = "ALiBi"', '    version = 2\n    label = "ALiBi"'))
    file, sources = written(), (ROOT / "src", tmp_path / "later" / "src")
    drivers = [
        subprocess.Popen(
            [sys.executable, "-m", "lengthwise", "study", "run", str(file), "--inline", "--quiet"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(source), "LENGTHWISE_BEAT": "0.5"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for source in sources
    ]  # fmt: skip
    for driver in drivers:
        told = driver.communicate(timeout=240)[0]
        assert driver.returncode == 0, told
    planned, expected = undisturbed
    store = Store(tmp_path / "lengthwise-store")
    ours = {item.key for item in planned.items({})[0]}
    assert ours < store.done() and len(store.done()) == 6, "nope twice, alibi twice for each version"
    assert rows_of(store, ours).equals(rows_of(expected, ours))
    leases = [json.loads(path.read_text()) for path in tmp_path.glob("lengthwise-store/leases/*/*")]
    assert len(leases) == 6, "no run was begun twice"


@pytest.mark.slow
def test_workers_without_ray_give_the_same_rows(written, tmp_path, undisturbed):
    path = written()
    ended = lengthwise(
        "study", "run", path, "--no-ray", "--workers", 2, "--store", tmp_path / "s", "--to", tmp_path, "--json"
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["done"] == told["of"] == 4 and not told["failed"]
    planned, apart = undisturbed
    keys = [item.key for item in planned.items({})[0]]
    assert rows_of(Store(tmp_path / "s"), keys).equals(rows_of(apart, keys))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")  # a pipe that is left open is a ResourceWarning
def test_a_worker_that_is_killed_is_replaced_and_the_rows_are_the_same(tmp_path, undisturbed, monkeypatch):
    """The second job's worker is killed with signal 9 while it trains; its run is taken over, and nothing is lost."""
    monkeypatch.setenv("LENGTHWISE_BEAT", "0.2")
    executor, killed = Processes(1), []
    begin = executor.submit

    def submit(job):
        begin(job)
        if job.key == keys[1] and not killed:
            (worker,) = executor._busy
            killed.append(worker.pid)
            until = time.monotonic() + 60
            while not (tmp_path / "leases" / job.key / "1").exists():
                assert time.monotonic() < until
                time.sleep(0.002)
            worker.kill()

    planned, apart = undisturbed
    keys = [item.key for item in planned.items({})[0]]
    monkeypatch.setattr(executor, "submit", submit)
    tally = Driver(planned, Store(tmp_path), executor).run()
    assert killed and len(tally.done) == 4 and not tally.failed
    attempts = [len(list((tmp_path / "leases" / key).iterdir())) for key in keys]
    assert attempts == [1, 2, 1, 1], "the run whose worker was killed was begun twice, no other"
    assert rows_of(Store(tmp_path), keys).equals(rows_of(apart, keys))


@pytest.mark.slow
def test_ctrl_c_leaves_everything_to_go_on_with(written, tmp_path):
    path, store = (
        written(base={**tiny().base.model_dump(), "training": "laptop:steps=3000:batch_size=4"}),
        tmp_path / "s",
    )
    command = [sys.executable, "-m", "lengthwise", "study", "run", str(path), "--inline", "--store", str(store)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(store.glob("runs/*/1/checkpoints/*/manifest.json")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command goes on" in words
    assert "Traceback" not in words
    (lease,) = store.glob("leases/*/1")
    assert json.loads(lease.read_text())["state"] == "stopped"


@pytest.mark.slow
def test_an_evaluation_is_work_of_its_own_and_never_trains(tmp_path):
    study = tiny(seeds=1)
    planned, store, _ = driven(study, tmp_path)
    more = tiny(seeds=1, evaluations=[{"lengths": "4-6", "examples": 8}, {"temperature": "log-n"}])
    planned = Planned(more)
    jobs = []

    def do(job, watch):
        jobs.append(job)
        return do_job(job, watch)

    tally = Driver(planned, store, InProcess(do)).run()
    assert len(tally.done) == 6 and len(jobs) == 4 and all(job.evaluation is not None for job in jobs)
    rows = store.rows([item.key for item in planned.items({})[0]])
    names = set(rows["evaluation"])
    assert "as trained" in names and "examples=8" in names and any("log-n" in name for name in names)
    assert set(rows.filter(pl.col("evaluation") == "examples=8")["length"]) == {4, 5, 6}
    with pytest.raises(Exception, match="beginning of"):
        Run.open("copy", str(tmp_path))  # evaluations do not look like runs
    assert Run.open(planned.items({})[0][0].run_id, str(tmp_path)).done


# --- the learning rate -----------------------------------------------------------------------------------------------


def summary(correct: int, loss: float) -> dict:
    return {"attempt": 1, "validation": {"step": 1, "correct": correct, "examples": 1000, "loss": loss, "targets": 1}}


def tuning_scores(planned: Planned, *by_point: list[list[int]]) -> dict:
    """Records of all tuning runs; for each tuned point, the right answers of 1,000, rate by rate and seed by seed."""
    found = {}
    for items, rates in zip(planned.tuning.values(), by_point, strict=True):
        found |= {item.key: summary(right, 1) for item, right in zip(items, chain(*rates), strict=True)}
    return found


def test_the_rate_is_chosen_by_rule_and_equally_for_every_encoding():
    study = tiny(lr={"choose": [1e-3, 2e-3, 4e-3]})
    planned = Planned(study)
    assert planned.item_counts() == {"tuning": 12, "runs": 4, "evaluations": 0}
    tried = [item for items in planned.tuning.values() for item in items]
    assert {item.plan.seed for item in tried} == {1000, 1001} and {item.plan.training.steps for item in tried} == {2}
    for items in planned.tuning.values():  # T50: the same grid and budget
        assert [item.plan.training.lr for item in items] == [1e-3, 1e-3, 2e-3, 2e-3, 4e-3, 4e-3]
    items, waiting = planned.items({})
    assert [item.kind for item in items] == ["tuning"] * 12 and len(waiting) == 4
    # Means .995, .98 and .99: within .02 of the best, the middle one. Means .97, .94 and .9: the best.
    scores = tuning_scores(planned, [[1000, 990], [970, 990], [980, 1000]], [[990, 950], [1000, 880], [900, 900]])
    items, waiting = planned.items(scores)
    assert not waiting
    assert {item.plan.training.lr for item in items if item.point.encoding == "nope" and item.kind == "run"} == {2e-3}
    assert {item.plan.training.lr for item in items if item.point.encoding == "alibi" and item.kind == "run"} == {1e-3}
    nope, alibi = planned.learning_rate_choices(scores).values()
    assert not nope.lr_at_edge and alibi.lr_at_edge
    proof = check_only_encoding_differs(items)
    assert not proof.holds and list(proof.differs) == ["training.lr"]


def test_a_tuning_run_that_diverged_counts_as_nothing_right():
    planned = Planned(tiny(vary={"encoding": ["nope"]}, lr={"choose": [1e-3, 2e-3, 4e-3]}))
    scores = tuning_scores(planned, [[900, 900], [1000, 1000], [1000, 1000]])
    (items,) = planned.tuning.values()
    scores[items[2].key] = {"diverged": {"step": 7}}
    (choice,) = planned.learning_rate_choices(scores).values()
    assert choice.scores == (0.9, 0.5, 1.0) and choice.lr == 4e-3
    del scores[items[5].key]
    (choice,) = planned.learning_rate_choices(scores).values()
    assert choice.scores == (0.9, 0.5, None) and choice.lr is None


def test_tasks_of_a_group_share_the_rate_of_the_first():
    study = tiny(
        vary={"encoding": ["nope"], "task": ["copy:variant=same:longest=3", "copy:variant=same2:longest=3", "sort"]},
        base={key: value for key, value in tiny().base.model_dump().items() if key not in {"task", "encoding"}},
        lr={"groups": [["copy:longest=3:variant=same", "copy:longest=3:variant=same2"]]},
        seeds=1,
    )
    planned = Planned(study)
    assert [point.task for point in planned.tuning] == ["copy:longest=3:variant=same", "sort"]
    scores = tuning_scores(planned, *([[[1, 1], [999, 999], [1, 1]]] * 2))
    items, _ = planned.items(scores)
    assert {item.plan.training.lr for item in items if item.kind == "run"} == {2e-3}
    # Chosen for some tasks alone, the rate still comes from the first of the group.
    some, _ = Planned(study, tasks=["copy:longest=3:variant=same2"]).items(scores)
    assert [item.key for item in some if item.kind == "run"] == [
        item.key for item in items if "same2" in item.point.task
    ]


@pytest.mark.slow
def test_a_tuned_study_runs_from_end_to_end(tmp_path):
    planned, store, tally = driven(tiny(seeds=1, lr={"choose": [1e-3, 2e-3], "seeds": [1000]}), tmp_path)
    assert len(tally.done) == tally.total == 6 and not tally.waiting
    found = status(planned, store)
    assert found.all_done and all(choice.lr in {1e-3, 2e-3} for choice in found.choices)
    assert (
        set(store.rows([item.key for item in planned.items(store.summaries(store.done()))[0]])["run"]) == store.done()
    )


@pytest.mark.slow
def test_runs_whose_tuning_failed_wait_and_the_study_ends(tmp_path):
    def do(job, watch):
        return Outcome(job.key, "failed", "no") if "-s1000-" in job.key and "alibi" in job.key else do_job(job, watch)

    planned = Planned(tiny(seeds=1, lr={"choose": [1e-3, 2e-3], "seeds": [1000]}))
    tally = Driver(planned, Store(tmp_path), InProcess(do)).run()
    assert tally.waiting == 1 and len(tally.failed) == 2 and len(tally.done) == 3


@pytest.mark.slow
def test_runs_do_not_wait_for_a_tuning_run_that_diverged(tmp_path):
    """One of the rates is far too high: it counts as 0, and the study goes on with the other."""
    study = tiny(vary={"encoding": ["nope"]}, seeds=1, lr={"choose": [1e-3, 1e30], "seeds": [1000]})
    planned, store, tally = driven(study, tmp_path)
    (choice,) = status(planned, store).choices
    assert store.diverged(item.key for item in choice.tried) and choice.lr == 1e-3
    assert tally.waiting == 0 and len(tally.done) == 2 and len(tally.failed) == 1


def test_an_edited_temperature_is_another_evaluation(tmp_path):
    """Its source is part of the key, so that rows of the old code are not reported as those of the new."""
    own = tmp_path / "own.py"
    source = """from lengthwise.model.temperature import AttentionTemperature


class Root(AttentionTemperature):
    def factor(self, n_BQ, x_BQD):
        return (n_BQ ** POWER)[:, None, :, None]
"""

    def keys() -> set[str]:
        planned = Planned(tiny(evaluations=[{"temperature": f"{own}:Root"}]))
        items = [item for item in planned.items({})[0] if item.kind == "evaluation"]
        assert all(own.read_bytes() in files.values() for item in items for files in _code(item).values())
        assert all(_code(item) for item in items)
        return {item.key for item in items}

    own.write_text(source.replace("POWER", "0.5"))
    before = keys()
    own.write_text(source.replace("POWER", "0.25"))
    assert before and not before & keys()


# --- blind -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_blind_study_shows_seen_lengths_alone_until_its_last_run_has_ended(tmp_path):
    driven(tiny(seeds=1), tmp_path)  # half of the runs
    written = tmp_path / "blind.yaml"
    content = {**tiny(seeds=2, blind=True).model_dump(exclude_defaults=True), "name": "tiny"}
    written.write_text(json.dumps(content))
    study = lw.Study.read(written)
    for look in (lambda where: study.report(store=where, write=False), study.rows, study.finished_runs):
        with pytest.raises(SpecError, match=r"blind until its last run has ended, and 2 are left.*--learned"):
            look(str(tmp_path))
    lines = study.status(str(tmp_path), learned=True).learned
    assert len(lines) == 1 and set(lines[0]) == {"task", "nope", "alibi"} and lines[0]["nope"].endswith("of 1 learned")
    study.run(store=str(tmp_path), executor="inline")
    assert study.rows(str(tmp_path)).height and study.report(store=str(tmp_path), write=False).verdict


def test_a_blind_study_stays_closed_while_a_run_that_broke_down_can_be_done_again(tmp_path):
    written, store = tmp_path / "blind.yaml", str(tmp_path / "store")
    written.write_text(json.dumps({**tiny(seeds=1, blind=True).model_dump(exclude_defaults=True), "name": "tiny"}))
    study = lw.Study.read(written)
    study.run(store=store, executor="inline")
    (lost,) = (item.key for item in study.items(store) if item.point.encoding == "alibi")
    for path in Path(store).rglob(f"*{lost}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    Path(store, "failed").mkdir(exist_ok=True)
    Path(store, "failed", f"{lost}.1").write_text(json.dumps({"why": "the process was killed twice"}))
    for look in (lambda: study.report(store=store, write=False), lambda: study.rows(store)):
        with pytest.raises(SpecError, match="blind until its last run has ended, and 1 are left"):
            look()


def test_a_tuning_run_that_diverged_is_a_result_of_a_bundle_too(tmp_path):
    """Its runs count as done with the rate that the rule then chooses, nothing is dropped and nothing is done again."""
    content = {**tiny(seeds=1).model_dump(exclude_defaults=True), "name": "tiny"}
    content["lr"] = {"choose": [0.001, 1e30], "seeds": [1000]}
    content["base"] = {**content["base"], "training": f"{content['base']['training']}:grad_clip=1e30"}
    written, store, bundle = tmp_path / "tuned.yaml", str(tmp_path / "store"), tmp_path / "bundle"
    written.write_text(json.dumps(content))
    first = lw.Study.read(written)
    first.run(store=store, executor="inline")
    lw.export_bundle(store, bundle, study=str(written))
    lines = Bundle(bundle).lines
    assert len(lines) == 6 and len(Bundle(bundle).diverged) == 2
    again, empty = lw.Study.read(written, with_bundle=bundle), str(tmp_path / "empty")
    assert again.run(store=empty, executor="inline").tally.ended
    assert not list(Path(empty).glob("runs/*"))
    assert again.status(empty).runs.broken == 0 and again.rows(empty).height
    Path(empty).mkdir(exist_ok=True)
    lw.export_bundle(empty, tmp_path / "copy", study=str(written), with_bundles=[bundle])
    assert Bundle(tmp_path / "copy").lines == lines


def test_a_part_of_a_blind_study_that_is_done_is_not_shown_before_the_rest(tmp_path):
    tasks = ["copy:variant=same:longest=3", "reverse:longest=3"]
    vary = {"task": tasks, "encoding": ["nope", "alibi"]}
    written = tmp_path / "blind.yaml"
    content = {**tiny(seeds=1, blind=True).model_dump(exclude_defaults=True), "name": "tiny", "vary": vary}
    content["base"] = {key: value for key, value in content.get("base", {}).items() if key != "task"}
    written.write_text(json.dumps(content))
    part, store = lw.Study.read(written, tasks="copy"), str(tmp_path / "store")
    part.run(store=store, executor="inline")
    for look in (lambda: part.report(store=store, write=False), lambda: part.rows(store)):
        with pytest.raises(SpecError, match="blind until its last run has ended, and 2 are left"):
            look()
    lw.Study.read(written).run(store=store, executor="inline")
    assert part.rows(store).height


# --- the proof, the order --------------------------------------------------------------------------------------------


def test_between_encodings_only_the_encoding_differs_and_a_planted_difference_is_told():
    items, _ = Planned(tiny()).items({})
    proof = check_only_encoding_differs(items)
    assert proof.holds and proof.groups == 2 and proof.encodings == 2 and "has one hash" in proof.sentence
    paired = tiny(
        vary={},
        linked=[
            {"encoding": "nope", "training": "laptop:steps=4:batch_size=4"},
            {"encoding": "alibi", "training": "laptop:steps=9:batch_size=4"},
        ],
    )
    points = Planned(paired).items({})[0]
    # One label for both, as a careless author would write it.
    from dataclasses import replace

    items = [replace(item, point=replace(item.point, training="laptop")) for item in points]
    proof = check_only_encoding_differs(items)
    assert not proof.holds and "training.steps" in proof.sentence


def test_the_order_of_work_is_seed_by_seed():
    items, _ = Planned(tiny(seeds=3)).items({})
    assert [(item.point.seed, item.point.encoding) for item in items] == [
        (seed, name) for seed in range(3) for name in ("nope", "alibi")
    ]


# --- bundles, and one more encoding ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_its_store_a_study_goes_on_from_a_bundle(undisturbed, tmp_path):
    """Delete the store, continue from an exported bundle: the same rows at the end."""
    planned, apart = undisturbed
    keys = [item.key for item in planned.items({})[0]]
    part = Store(tmp_path / "part")
    Driver(Planned(tiny(seeds=1)), part, InProcess()).run()
    assert part.export(tmp_path / "bundle", study="tiny") == 2
    bundle = Bundle(tmp_path / "bundle")
    assert set(bundle.records) == part.done()
    wrong = pl.read_parquet(tmp_path / "bundle" / "wrong.parquet")
    assert (
        wrong.height and wrong.group_by("run", "evaluation", "checkpoint", "split", "length").len()["len"].max() <= 20
    )
    assert not [path for path in (tmp_path / "bundle").iterdir() if "safetensors" in path.name]
    fresh = Store(tmp_path / "fresh")
    tally = Driver(planned, fresh, InProcess(), given=bundle.summaries).run()
    assert tally.here == 2 and len(tally.done) == 4
    assert fresh.export(tmp_path / "whole", keys, "tiny", bundles=[bundle]) == 4
    whole = Bundle(tmp_path / "whole")
    assert set(whole.records) == set(keys) and whole.rows.sort(ORDER).equals(rows_of(apart, keys))
    apart.export(tmp_path / "apart", keys, "tiny")
    for mine, theirs in zip(
        whole.wrong_answers_and_outcomes(), Bundle(tmp_path / "apart").wrong_answers_and_outcomes(), strict=True
    ):
        assert mine.sort(mine.columns).equals(theirs.sort(theirs.columns))
    halves = [tmp_path / "one", tmp_path / "other"]
    for half, some in zip(halves, (keys[:3], keys[2:]), strict=True):  # one run is in both
        apart.export(half, some, "tiny")
    assert Store(tmp_path / "none").export(tmp_path / "merged", keys, "tiny", bundles=[*map(Bundle, halves)]) == 4
    merged = Bundle(tmp_path / "merged")
    assert merged.records == Bundle(tmp_path / "apart").records
    assert merged.rows.sort(ORDER).equals(rows_of(apart, keys))


@pytest.mark.slow
def test_a_bundle_is_checked_against_its_study_and_some_of_its_runs_are_executed_again(undisturbed, written, tmp_path):
    """A changed option, a changed row and a missing row are each found."""
    _, apart = undisturbed
    apart.export(tmp_path / "bundle", study="tiny")
    study = lw.Study.read(written())
    found = study.check(tmp_path / "bundle", rerun=1, store=str(tmp_path / "s"), executor="inline")
    assert not found.errors and "bit-equal" in str(found)
    assert found.against.runs == 4 and len(found.against.again.runs) == 1

    rows = pl.read_parquet(tmp_path / "bundle" / "rows.parquet")
    shutil.copytree(tmp_path / "bundle", tmp_path / "rows")
    (again,) = found.against.again.runs
    here = pl.when(pl.col("run").cast(pl.String) == again).then(pl.col("loss") + 1).otherwise(pl.col("loss"))
    rows.with_columns(here.alias("loss")).write_parquet(tmp_path / "rows" / "rows.parquet")
    reseal_bundle(tmp_path / "rows")
    assert not study.check(tmp_path / "rows").errors, "without executing anything a changed row is not seen"
    changed = study.check(tmp_path / "rows", rerun=1, store=str(tmp_path / "s"), executor="inline")
    assert not changed.against.again.equal and "not bit-equal" in changed.errors[0]
    rows.filter(pl.col("run").cast(pl.String) != again).write_parquet(tmp_path / "rows" / "rows.parquet")
    reseal_bundle(tmp_path / "rows")
    missing = study.check(tmp_path / "rows")
    assert missing.errors == [f"{again} has no rows"] and "4 runs of the bundle: 1 mistake" in str(missing)
    assert missing.plain()["against"] == str(tmp_path / "rows")

    runs = (tmp_path / "bundle" / "runs.jsonl").read_text()
    assert '"sets": 3' in runs
    (tmp_path / "bundle" / "runs.jsonl").write_text(runs.replace('"sets": 3, ', ""))  # as before it was recorded
    reseal_bundle(tmp_path / "bundle")
    with pytest.raises(SpecError, match="test sets of version 2, and this lengthwise has version 3"):
        study.check(tmp_path / "bundle", rerun=1, store=str(tmp_path / "s"), executor="inline")
    (tmp_path / "bundle" / "runs.jsonl").write_text(runs.replace('"lr": ', '"lr": 1', 1))
    reseal_bundle(tmp_path / "bundle")
    (mistake,) = study.check(tmp_path / "bundle").errors
    assert "its options give the id" in mistake
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    options = json.loads(runs.splitlines()[0])["run"]["options"]["encoding"]
    foreign = runs.replace(json.dumps(options), json.dumps([f"{tmp_path / 'evil.py'}:Evil"]), 1)
    (tmp_path / "bundle" / "runs.jsonl").write_text(foreign)
    reseal_bundle(tmp_path / "bundle")
    (mistake,) = study.check(tmp_path / "bundle").errors
    assert "its options name copy, consecutive, " in mistake and not (tmp_path / "ran").exists()
    (tmp_path / "bundle" / "runs.jsonl").write_text(runs.replace('"lr": ', '"learning_rate": ', 1))
    reseal_bundle(tmp_path / "bundle")
    (mistake,) = study.check(tmp_path / "bundle").errors
    assert "its options cannot be read" in mistake


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "results").glob("*/bundle.json")))
def test_the_id_of_every_committed_run_is_what_its_options_give(name):
    study = json.loads((ROOT / "results" / name / "bundle.json").read_text())["study"]
    found = lw.Study.read(study).check(ROOT / "results" / name)
    assert found.against.runs > 0 and not found.errors


MINE = '''
from lengthwise.encoding.alibi import Alibi
class Mine(Alibi):
    """ALiBi with twice the slope."""
    formula = None
    def slope_H(self, like):
        return 2 * super().slope_H(like)
'''


@pytest.mark.slow
def test_one_more_encoding_beside_committed_rows(written, tmp_path):
    path = written(seeds=2)
    (tmp_path / "my_pe.py").write_text(MINE)
    first = lengthwise(
        "study", "run", path, "--inline", "--store", tmp_path / "a", "--to", tmp_path / "f", cwd=tmp_path
    )
    assert first.returncode == 0, first.stderr
    assert lengthwise("study", "export", tmp_path / "a", "--to", tmp_path / "results" / "tiny").returncode == 0
    command = ["study", "run", path, "--inline", "--add", "my_pe.py:Mine", "--store", tmp_path / "b", "--json"]
    ended = lengthwise(*command, "--to", tmp_path / "g", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["done"] == 2, "only the new encoding's runs are made"
    assert "bit-equal" in told["guard"] and "3 committed runs" in told["guard"]
    (table,) = told["tasks"].values()
    assert {line["encoding"] for line in table} == {"NoPE", "ALiBi", "Mine"}
    assert all(line["every seed"].count(",") == 1 for line in table)
    # Committed rows that do not come out here: refused, unless accepted.
    bundle = tmp_path / "results" / "tiny" / "rows.parquet"
    (tmp_path / "results" / "tiny" / "kinds.parquet").unlink()  # it would tell that the rows were changed
    rows = pl.read_parquet(bundle)
    long, none = pl.col("length") > 3, ("correct_content", "early", "late", "wrong", "cut")
    rows.with_columns(
        pl.when(long).then(pl.col("examples")).otherwise(pl.col("correct")).alias("correct"),
        *(pl.when(long).then(0).otherwise(pl.col(name)).cast(pl.Int64).alias(name) for name in none),
    ).write_parquet(bundle)
    reseal_bundle(bundle.parent)
    refused = lengthwise(*command, "--to", tmp_path / "g", cwd=tmp_path)
    assert refused.returncode == 2 and "--accept" in refused.stderr and "Traceback" not in refused.stderr
    accepted = lengthwise(*command, "--to", tmp_path / "g", "--accept", cwd=tmp_path)
    assert accepted.returncode == 0 and "differ by up to" in json.loads(accepted.stdout)["guard"]


def test_an_added_name_may_be_written_in_any_order():
    study = with_added_encodings(tiny(), ["rope:theta=500.0:fraction=0.5"])
    assert study.encodings[-1] == "rope:fraction=0.5:theta=500.0"


@pytest.mark.slow
def test_a_run_that_kills_its_worker_ends_also_when_it_is_tried_again(tmp_path, monkeypatch):
    """The deaths after a retry count, or it would be retried for ever."""
    code = "import sys, pickle, os; from lengthwise.run.lease import Lease; from lengthwise.folder import Folder\n"
    code += "Lease.take(Folder(sys.argv[1]), sys.argv[2], retry_failed=sys.argv[3] == 'True'); os._exit(9)"
    tried = []

    def dies(job, watch):
        tried.append(job.again)
        assert len(tried) < 20, "it is retried for ever"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), job.key, str(job.again)], capture_output=True, check=False
        )
        return Outcome(job.key, "died") if done.returncode == 9 else Outcome(job.key, "failed", "died twice")

    planned, store = Planned(tiny(seeds=1, vary={"encoding": ["nope"]})), Store(tmp_path)
    first = Driver(planned, store, InProcess(dies)).run()
    assert len(first.failed) == 1 and len(tried) == 3
    again = Driver(planned, store, InProcess(dies), retry=True).run()
    assert len(again.failed) == 1 and tried[3:] == [True, False, False]


def test_a_failure_that_nobody_recorded_is_not_tried_for_ever(tmp_path):
    """A worker that cannot even begin, beside a lease that somebody let go."""
    from lengthwise.run.lease import Lease

    planned, store, tried = Planned(tiny(seeds=1, vary={"encoding": ["nope"]})), Store(tmp_path), []
    Lease.take(store.folder, planned.items({})[0][0].key).release("stopped")

    def refuses(job, watch):
        tried.append(job.key)
        assert len(tried) < 10
        return Outcome(job.key, "failed", "another version")

    assert len(Driver(planned, store, InProcess(refuses)).run().failed) == 1 and len(tried) == 1


@pytest.mark.slow
def test_an_edited_encoding_at_test_time_is_another_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = []
    for factor in ("2 *", "3 *"):
        Path("my_pe.py").write_text(MINE.replace("2 *", factor))
        items, _ = Planned(tiny(seeds=1, evaluations=[{"encoding": "my_pe.py:Mine"}])).items({})
        keys.append([item.key for item in items if item.kind == "evaluation"])
    assert not set(keys[0]) & set(keys[1])


@pytest.mark.slow
def test_rows_of_a_run_that_was_made_again_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("lengthwise.study.store._COMPACT", 1)
    planned, store, _ = driven(tiny(seeds=1), tmp_path)
    keys = [item.key for item in planned.items({})[0]]
    assert store.rows(keys).height and (tmp_path / "rows").exists()
    for kind in ("done", "runs", "leases"):
        path = tmp_path / kind / keys[0]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert set(store.rows(keys)["run"]) == set(keys[1:]), "what is not done has no rows"
    Driver(planned, store, InProcess()).run()
    assert set(store.rows(keys)["run"]) == set(keys)


def test_tasks_are_chosen_by_name():
    study = tiny(
        vary={"encoding": ["nope"], "task": ["copy:variant=same", "copy:variant=random", "sort", "parity", "count"]},
        base={"model": "laptop"},
        quick=["sort"],
    )
    assert chosen_tasks(study, "quick") == ["sort"]
    assert chosen_tasks(study, "copy,parity") == ["copy:variant=same", "copy:variant=random", "parity"]
    with pytest.raises(Exception, match="no task 'sorting'"):
        chosen_tasks(study, "sorting")
    assert with_added_encodings(study, ["rope"]).encodings == ["nope", "rope"]


@pytest.mark.slow
def test_a_worker_gets_the_code_it_does_not_have(tmp_path, monkeypatch):
    """The file is sent along: a worker in another folder, or on another machine, makes the same run."""
    from lengthwise.study.work import job_of

    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir(), elsewhere.mkdir()
    (there / "my_pe.py").write_text(
        MINE.replace("2 *", "FACTOR *").replace("\nclass", "\nfrom factor import FACTOR\nclass")
    )
    (there / "factor.py").write_text("FACTOR = 2")
    monkeypatch.chdir(there)
    item = Planned(tiny(seeds=1, vary={"encoding": ["my_pe.py:Mine"]})).items({})[0][0]
    job = job_of(item, tiny(), Store(tmp_path / "s").folder)
    assert set(job.code["my_pe.py:Mine"]) == {"my_pe.py", "factor.py"}
    monkeypatch.chdir(elsewhere)
    assert do_job(job).state == "done"
    assert (Path(tmp_path / "s") / "done" / item.key).exists()
