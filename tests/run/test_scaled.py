"""What one does to a trained run: another scaling, temperature or mixture, by name, and the rows say which."""

import pytest
import torch

from lengthwise.evaluation import decoding
from lengthwise.evaluation.cases import seen_cases
from lengthwise.run import train
from lengthwise.run.identity import Plan
from lengthwise.spec import SpecError
from tests.run.test_cli_runs import cli

TASK = "copy:variant=same:alphabet=40:longest=4"
MODEL = "laptop:width=32:heads=2:feed_forward_width=64"
TRAINING = "laptop:steps=40:batch_size=16:warmup=5:validations=1:validation_examples=20"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return train(TASK, "rope", model=MODEL, training=TRAINING, threads=1, quiet=True, store=str(store))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("rope:scaling=yarn:factor=2", "rope:factor=2:scaling=yarn:trained=15"),
        ("rope:scaling=dynamic", "rope:scaling=dynamic:trained=15"),
        ("rope:scaling=ntk", "rope:scaling=ntk:trained=15"),
        ("rope:scaling=ntk:factor=2", None),
        ("rope:scaling=llama3:factor=2:trained=12", None),
        ("rope:p=0.75", None),
        ("rope:scaling=null", None),
        ("rope:scaling=null,rope:scaling=ntk", "rope:scaling=null,rope:scaling=ntk:trained=15"),
        ("rope,nope", None),
        ("rope:scaling=yarn:factor=2,local:window=4", "rope:factor=2:scaling=yarn:trained=15,local:window=4"),
        ("nope", None),
    ],
)
def test_a_rope_run_is_evaluated_under_it_and_the_rows_say_so(run, encoding, told):
    found = run.evaluate([3, 12], encoding=encoding, examples=8)
    assert set(found.rows["evaluation"]) == {f"encoding={told or encoding} examples=8"}
    assert found.checks.pass_agrees and found.checks.decoded > 0
    assert len(found.effective) == (2 if "," in encoding else 1)


def test_a_scaling_that_stretches_nothing_changes_no_count(run):
    plain = run.evaluate([3, 12], examples=16).rows
    same = run.evaluate([3, 12], encoding="rope:scaling=dynamic:trained=999", examples=16).rows
    assert same.drop("evaluation").equals(plain.drop("evaluation"))
    loss = run.evaluate([12], encoding="rope:scaling=linear:factor=8", examples=16).rows["loss"]
    assert loss[0] != plain["loss"][1]


def test_the_published_dynamic_scaling_is_decoded_for_real_without_a_cache(run, monkeypatch):
    spec = "rope:scaling=dynamic:trained=6:length=seen"

    def no_cache(*_):
        raise AssertionError("a cache was used")

    monkeypatch.setattr(decoding, "_side_by_side", no_cache)
    found = run.evaluate([2, 3, 12], encoding=spec, examples=8)
    assert found.rows["correct_content"].to_list() == [None] * 3  # one pass cannot tell
    decoder, task = run.decoder(encoding=spec).eval(), run.task
    for one in found.judged[::3]:
        ids, said = one.case.ids[: one.case.prompt], []
        while len(said) < one.case.limit and said[-1:] != [task.vocabulary.eos]:
            with torch.no_grad():
                said.append(int(decoder(torch.tensor([ids + said]))[0, -1].argmax()))
        assert one.said == said or (one.kind == "right" and one.case.answer == said)


def test_temperatures_at_test_time(run):
    found = run.evaluate([12], temperature="yarn:factor=4", examples=8)
    assert set(found.rows["evaluation"]) == {"temperature=yarn:factor=4 examples=8"}
    both = run.evaluate([12], encoding="rope,nope", temperature="log-n:layers=nope", examples=8)
    assert set(both.rows["evaluation"]) == {"encoding=rope,nope temperature=log-n:layers=nope:trained=10 examples=8"}
    with pytest.raises(SpecError, match="write it with layers=all"):
        run.evaluate([12], temperature="llama4")


def test_the_command_prints_what_is_in_force(run, tmp_path):
    store = ["--store", str(run.folder.parent.parent.parent), "--lengths", "3", "--examples", "8"]
    done = cli("evaluate", run.id, "--encoding", "rope:scaling=yarn:factor=2", *store, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "encoding=rope:factor=2:scaling=yarn:trained=15 examples=8, last" in said
    assert "layers 0, 1: rope theta=10000.0 fraction=1.0" in said and "scaling=yarn factor=2.0 trained=15" in said
    wrong = cli("evaluate", run.id, "--encoding", "rope:factor=2", *store, cwd=tmp_path)
    assert wrong.returncode and "'factor' belongs to a scaling" in wrong.stderr and "Traceback" not in wrong.stderr
    twice = cli("compare", TASK, "--encodings", "rope,rope", cwd=tmp_path)
    assert twice.returncode and "names an encoding twice" in twice.stderr
    for mixture in ("3*rope,nope", "[3*rope,nope],nope", "nope, 2 * rope"):
        done = cli("compare", TASK, "--encodings", mixture, cwd=tmp_path)
        said = " ".join(done.stderr.split())
        assert done.returncode and "compare cannot take a mixture" in said and "A study can: write vary" in said
        assert "twice" not in said and "2*[" not in said


@pytest.mark.slow
def test_a_mixture_is_trained_by_its_list(tmp_path):
    options = {"model": MODEL, "training": "laptop:steps=4:batch_size=8:warmup=1:validations=1:validation_examples=8"}
    mixed = train(TASK, "local:window=4,nope", threads=1, quiet=True, store=str(tmp_path), **options)
    assert mixed.id.startswith("copy-local+nope-s0-") and mixed.done
    again = mixed.evaluate([3], encoding="local:window=6,nope", examples=8)
    assert again.effective[0].startswith("layer 0: local window=6 ")


@pytest.mark.parametrize("task", ["scan", "pcfg", "addition:longest=6:spaces=0.3:reversed=all", "copy:longest=4"])
def test_no_seen_example_is_stretched(task):
    """The longest prompt is not always that of the longest answer."""
    plan = Plan.of(task, "rope")
    assert plan.longest_budget() == max(case.budget for case in seen_cases(plan.task))
