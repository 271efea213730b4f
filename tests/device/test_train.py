"""A whole training on an accelerator: the results of the CPU, and nothing waits between log points."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
import torch

import lengthwise
import lengthwise as lw
from lengthwise.device import choose_device
from lengthwise.encoding import ENCODINGS, build_positions
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.training.batches import on_demand_blocks
from lengthwise.training.health import Diverged
from lengthwise.training.loop import Loop
from lengthwise.training.settings import Seeds, training_preset
from tests.device.pretend import KIND, Accelerator

TASK = "copy:variant=same:longest=2"
SMALL = {"model": "laptop:width=32:heads=2:feed_forward_width=64", "training": "laptop:validations=1:warmup=2"}


def loop(encoding="nope", positions="consecutive", device="cpu", **more) -> Loop:
    task, seeds = build_task(TASK), Seeds.of(0)
    known = {key: more.pop(key) for key in ("reads_at", "device_batch", "team") if key in more}
    training = training_preset("laptop", **{"steps": 12, "batch_size": 16, "warmup": 2, **more})
    config = preset("laptop", vocabulary=len(task.vocabulary), width=32, heads=2, feed_forward_width=64)
    supply = on_demand_blocks(lambda start, stop: training_block(task, start, stop, seeds.data))
    made = Decoder(config, encoding, seed=0).to(device)
    return Loop(made, supply, training, build_positions(positions).of(task), seeds, **known)


SCALED = ["rope:scaling=dynamic:trained=8", "rope:scaling=yarn:trained=8:factor=4.0"]


@pytest.mark.parametrize("spec", [*ENCODINGS, *SCALED])
def test_no_step_waits_between_log_points(spec):
    with Accelerator() as device:
        steps = iter(loop(spec, device=KIND, reads_at=lambda step: step == 8))
        next(steps)  # the first step makes the optimizer's state
        device.syncs = 0
        device.where.clear()
        told = [next(steps) for _ in range(6)]
        assert device.syncs == 0, device.where
        assert {one.loss for one in told} == {None}
        assert next(steps).loss is not None and device.syncs == 1


def test_a_step_that_reads_a_value_is_counted(monkeypatch):
    real = Loop._gradient

    def reading(self, feed, targets):
        loss = real(self, feed, targets)
        loss.item()
        return loss

    monkeypatch.setattr(Loop, "_gradient", reading)
    with Accelerator() as device:
        steps = iter(loop("rope", device=KIND, reads_at=lambda step: False))
        next(steps)
        device.syncs = 0
        next(steps)
        assert device.syncs == 1


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["consecutive", "randomized:limit=64"])
def test_losses_and_norms_are_those_of_the_cpu(positions):
    expected = [(one.loss, one.norm) for one in loop("rope", positions)]
    with Accelerator():
        found = [(one.loss, one.norm) for one in loop("rope", positions, device=KIND)]
    assert [a for a, _ in found] == pytest.approx([a for a, _ in expected], rel=1e-4)
    assert [b for _, b in found] == pytest.approx([b for _, b in expected], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", KIND])
def test_a_batch_in_parts_has_the_same_gradient(device):
    expected = [(one.loss, one.norm) for one in loop("rope", device="cpu")]
    with Accelerator():
        found = [(one.loss, one.norm) for one in loop("rope", device=device, device_batch=5)]
    assert [a for a, _ in found] == pytest.approx([a for a, _ in expected], rel=1e-4)
    assert [b for _, b in found] == pytest.approx([b for _, b in expected], rel=1e-3)


@pytest.mark.parametrize("reads_at", [lambda step: True, lambda step: step % 5 == 0])
def test_divergence_is_found_at_its_step_and_nothing_is_updated_after_it(monkeypatch, reads_at):
    """The rate of the third step is absurd, so the fourth loss is not finite."""
    from lengthwise.training.settings import Training

    real = Training.lr_at
    monkeypatch.setattr(Training, "lr_at", lambda self, step: 1e30 if step == 2 else real(self, step))
    with pytest.raises(Diverged) as expected:
        list(loop("nope"))
    with Accelerator():
        one = loop("nope", device=KIND, reads_at=reads_at)
        with pytest.raises(Diverged) as found:
            list(one)
    assert (found.value.step, found.value.parameter) == (expected.value.step, expected.value.parameter)


def same_rows(one, other) -> None:
    counts = ["checkpoint", "split", "length", "examples", "correct", "early", "late", "wrong", "cut"]
    assert one.rows().select(counts).equals(other.rows().select(counts))
    apart = (one.rows()["loss"] - other.rows()["loss"]).abs() / other.rows()["loss"]
    assert apart.max() < 1e-4


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A run on the CPU."""
    store = str(tmp_path_factory.mktemp("cpu"))
    return lw.train(TASK, "rope", steps=12, batch_size=16, store=store, device="cpu", quiet=True, **SMALL)


@pytest.mark.slow
def test_a_whole_run_is_that_of_the_cpu(here, tmp_path):
    with Accelerator():
        run = lw.train(TASK, "rope", steps=12, batch_size=16, store=str(tmp_path), device=KIND, quiet=True, **SMALL)
    assert run.id == here.id
    assert run.run_json["recorded"]["device"] == KIND and here.run_json["recorded"]["device"] == "cpu"
    same_rows(run, here)
    assert run.predictions().drop("first_wrong").equals(here.predictions().drop("first_wrong"))


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_bit_equal_on_the_device(tmp_path, monkeypatch):
    from lengthwise.run.stop import Stopped
    from lengthwise.training.checkpoint import save_checkpoint

    def stops(folder, step, *more):
        save_checkpoint(folder, step, *more)
        if step == 10:
            raise Stopped(step)

    asked = {"steps": 30, "batch_size": 8, "device": KIND, "quiet": True, "checkpoint_every": 10, **SMALL}
    with Accelerator():
        whole = lw.train(TASK, "t5", store=str(tmp_path / "whole"), **asked)
        with monkeypatch.context() as patch:
            patch.setattr("lengthwise.run.attempt.save_checkpoint", stops)
            with pytest.raises(Stopped):
                lw.train(TASK, "t5", store=str(tmp_path / "parts"), **asked)
        resumed = lw.train(TASK, "t5", store=str(tmp_path / "parts"), **asked)
    for name, value in whole.weights().items():
        assert torch.equal(value, resumed.weights()[name])
    assert resumed.rows().drop("run").equals(whole.rows().drop("run"))
    assert "continues" not in resumed.run_json["recorded"]
    here = lw.train(TASK, "t5", store=str(tmp_path / "cpu"), **{**asked, "device": "cpu"})
    same_rows(resumed, here)
    assert resumed.predictions().drop("first_wrong").equals(here.predictions().drop("first_wrong"))


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_says_so(tmp_path, monkeypatch):
    from lengthwise.run.stop import Stopped
    from lengthwise.training.checkpoint import save_checkpoint

    def stops(folder, step, *more):
        save_checkpoint(folder, step, *more)
        raise Stopped(step)

    asked = {"steps": 8, "batch_size": 8, "store": str(tmp_path), "quiet": True, "checkpoint_every": 4, **SMALL}
    with monkeypatch.context() as patch:
        patch.setattr("lengthwise.run.attempt.save_checkpoint", stops)
        with pytest.raises(Stopped):
            lw.train(TASK, "nope", device="cpu", **asked)
    with Accelerator():
        run = lw.train(TASK, "nope", device=KIND, **asked)
    assert run.run_json["recorded"]["continues"] == {"device": "cpu"}


def test_no_memory_left_says_what_to_halve(tmp_path):
    said = r"not enough memory for 64 rows at once; use --device-batch 32"
    with Accelerator(elements=20_000), pytest.raises(SpecError, match=said):
        lw.train(TASK, "nope", steps=3, batch_size=64, store=str(tmp_path), device=KIND, quiet=True, **SMALL)


# --- which device ----------------------------------------------------------------------------------------------------


def test_auto_prefers_an_accelerator_and_says_why(monkeypatch):
    assert str(choose_device("auto")) == "device cpu: auto found none of cuda, mps, xpu"
    monkeypatch.setattr("lengthwise.device.PREFERRED", ("cuda", KIND))
    assert str(choose_device("auto")) == f"device {KIND}:0: auto found it"
    assert choose_device("cpu").reason == "asked for"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "a device is auto, cpu, cuda, cuda:1, mps or xpu, not 'gpu'"),
        ("cuda", "there is no device cuda: this machine has none of that kind; use --device auto or --device cpu"),
        (f"{KIND}:3", f"there is no device {KIND}:3: this machine has 1 of that kind"),
    ],
)
def test_a_device_that_is_absent_is_refused(name, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        choose_device(name)


def test_each_local_rank_has_its_device(monkeypatch):
    monkeypatch.setattr("lengthwise.device.device_count", lambda kind: 4)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert choose_device("cuda").device == torch.device("cuda", 2)
    assert choose_device("cuda:1").device == torch.device("cuda", 1)


@pytest.mark.slow
def test_mixed_precision_is_another_run_and_the_device_is_not(tmp_path):
    asked = {"steps": 2, "batch_size": 8, "store": str(tmp_path), "quiet": True, **SMALL}
    plain = lw.train(TASK, "nope", **asked)
    assert lw.train(TASK, "nope", dtype="fp32", device="cpu", device_batch=3, **asked).id == plain.id
    mixed = lw.train(TASK, "nope", dtype="bf16", **asked)
    assert mixed.id != plain.id and mixed.run_json["options"]["training"]["autocast"]
    with pytest.raises(SpecError, match="dtype is auto, fp32 or bf16, not 'fp16'"):
        lw.train(TASK, "nope", dtype="fp16", **asked)


def test_no_other_file_names_a_kind_of_device():
    """But for the field `cpu` of run.json, the name of the processor."""
    root = Path(lengthwise.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"[\"'](cpu|cuda|mps|xpu)(:\d)?[\"']", line) and not re.search(r"\"cpu\": cpu_name|all_of\(", line)
    }
    assert found == {"device.py"}


# --- what is done with a run -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_evaluated_analyzed_and_probed_as_on_the_cpu(here):
    def everything(device) -> list[pl.DataFrame]:
        evaluated = here.evaluate([2, 3], device=device)
        analyzed = lw.analyze([here], lengths=[2, 3], examples=2, device=device)
        probed = lw.probe([here], kind="linear", lengths=[2, 4], device=device)
        return [evaluated.rows, pl.DataFrame(analyzed.heads), pl.DataFrame(probed.rows)]

    expected = everything("cpu")
    with Accelerator():
        found = everything(KIND)
    for one, other in zip(found, expected, strict=True):
        numbers = [name for name, kind in other.schema.items() if kind.is_float()]
        assert one.drop(numbers).equals(other.drop(numbers))
        for name in numbers:
            assert one[name].to_list() == pytest.approx(other[name].to_list(), rel=1e-3, abs=1e-3, nan_ok=True), name


@pytest.mark.slow
def test_the_selftest_passes_and_finds_a_wrong_kernel(tmp_path, monkeypatch):
    from lengthwise.interface import selftest as parts
    from lengthwise.model.norm import Norm

    monkeypatch.setattr(parts, "SIZES", parts.SIZES[:1])
    with Accelerator():
        found = lw.selftest(KIND, encodings=["rope"])
        assert found.passed and found.device == f"{KIND}:0" and found.resumes_bit_equal, found
        real = Norm.forward
        monkeypatch.setattr(Norm, "forward", lambda self, x: real(self, x) * (1.001 if x.device.type == KIND else 1.0))
        wrong = lw.selftest(KIND, encodings=["rope"])
    assert not wrong.passed and any("rope: logits is off by" in one for one in wrong.failed)
    assert json.loads(wrong.write(tmp_path / "told.json").read_text())["passed"] is False


def test_forward_passes_in_bf16_are_near_and_are_labelled(here):
    plain, mixed = here.evaluate([2], device="cpu"), here.evaluate([2], device="cpu", dtype="bf16")
    assert plain.rows["evaluation"][0] == "as trained" and mixed.rows["evaluation"][0] == "dtype=bf16"
    loss, other = (one.rows["loss"].to_list() for one in (plain, mixed))
    assert other != loss and other == pytest.approx(loss, rel=0.05, nan_ok=True)
    heads = [lw.analyze([here], lengths=[2], examples=2, device="cpu", dtype=dtype).heads for dtype in ("fp32", "bf16")]
    entropy = [[row["entropy"] for row in rows] for rows in heads]
    assert entropy[0] != entropy[1] and entropy[0] == pytest.approx(entropy[1], abs=0.05, nan_ok=True)
    with pytest.raises(SpecError, match="dtype is auto, fp32 or bf16, not 'fp16'"):
        here.evaluate([2], dtype="fp16")


def test_an_accelerator_decodes_several_tokens_before_they_are_read(here, monkeypatch):
    from lengthwise.evaluation import decoding

    def reads(ahead: int) -> tuple[int, list[str]]:
        monkeypatch.setattr(decoding, "AHEAD", ahead)
        with Accelerator() as device:
            rows = here.evaluate([3], decoding="real", device=KIND)
            return sum(name == "_to_copy" for name in device.where), rows.predictions["answer"].to_list()

    (each, answers), (some, same) = reads(1), reads(8)
    assert same == answers == here.evaluate([3], decoding="real", device="cpu").predictions["answer"].to_list()
    assert some < each


def test_decoding_takes_as_many_rows_as_fit(here, monkeypatch):
    from lengthwise.evaluation import decoding

    decoder = here.decoder()
    assert decoding.rows_that_fit(decoder, 100) == decoding.ROWS
    row = 100 * decoding.bytes_per_token(decoder.config) + 8 * decoder.config.heads * 100**2
    monkeypatch.setattr(decoding, "free_bytes", lambda device: int(2 * 7.5 * row))
    assert decoding.rows_that_fit(decoder, 100) == 7
    monkeypatch.setattr(decoding, "free_bytes", lambda device: 0)
    assert decoding.rows_that_fit(decoder, 100) == 1
    one_by_one = here.evaluate([3], decoding="real", device="cpu").predictions
    monkeypatch.undo()
    assert one_by_one.equals(here.evaluate([3], decoding="real", device="cpu").predictions)
