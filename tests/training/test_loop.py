"""The loop: schedules, gradients, streams, state."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lengthwise.encoding import ENCODINGS, build_positions
from lengthwise.model import Decoder, preset
from lengthwise.optimizer import AdamW
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.training.batches import on_demand_blocks, training_batches
from lengthwise.training.loggers import Loggers
from lengthwise.training.loop import Loop, total_loss
from lengthwise.training.settings import Seeds, training_preset

GOLDEN = Path(__file__).parent.parent / "golden" / "losses.json"


def loop(
    name="addition", encoding="nope", seeds=None, model="laptop:width=32:heads=2:feed_forward_width=64", **options
):
    task, seeds = build_task(name), seeds or Seeds.of(0)
    training = training_preset("laptop", **{"steps": 20, "batch_size": 16, "warmup": 5, **options})
    decoder = Decoder(preset(model, vocabulary=len(task.vocabulary)), encoding, seed=seeds.init)
    supply = on_demand_blocks(lambda start, stop: training_block(task, start, stop, seeds.data))
    return Loop(decoder, supply, training, build_positions("consecutive"), seeds)


def weights(one):
    return {name: value.clone() for name, value in one.decoder.state_dict().items()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_rates_rise_and_fall_as_the_schedules_say():
    cosine = training_preset("laptop", steps=110, warmup=10, lr=1.0, min_lr=0.1)
    assert [cosine.lr_at(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert cosine.lr_at(60) == pytest.approx(0.55)
    assert cosine.lr_at(109) == pytest.approx(0.1, abs=1e-3)
    linear = training_preset("laptop", steps=110, warmup=10, lr=1.0, schedule="linear")
    assert [linear.lr_at(step) for step in (10, 60, 109)] == pytest.approx([1.0, 0.5, 0.01])
    assert training_preset("laptop", schedule="constant", warmup=0).lr_at(1999) == 1e-3


def test_the_paper_preset_is_the_published_training():
    paper = training_preset("paper")
    assert (paper.steps, paper.batch_size, paper.lr, paper.weight_decay, paper.grad_clip) == (
        40_000,
        64,
        3e-5,
        0.05,
        1.0,
    )
    assert (paper.schedule, paper.warmup, paper.min_lr, paper.beta1, paper.beta2) == ("linear", 2400, 1e-7, 0.9, 0.999)
    assert paper.decay_norms and paper.batching == "mixed"
    assert paper.validation_steps == list(range(2000, 40_001, 2000))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("laptp", "unknown training 'laptp'. Did you mean 'laptop'?"),
        ("laptop:stepz=3", "has no option 'stepz'. Did you mean 'steps'?"),
        ("laptop:steps=0", "option 'steps' of training 'laptop' cannot be 0"),
        ("laptop:batching=big", "cannot be 'big'"),
    ],
)
def test_a_training_that_cannot_be_is_refused(spec, said):
    with pytest.raises(SpecError, match=said):
        training_preset(spec)


def test_the_loss_is_that_of_all_logits_where_there_are_targets():
    one = loop()
    feed = next(training_batches(one.supply, one.training, one.positions, one.seeds))
    logits_BTV = one.decoder(feed.ids_BT[:, :-1], lengths=(feed.tokens_B - 1).tolist())
    targets_BT = torch.where(feed.loss_BT, feed.ids_BT, -100)[:, 1:]
    whole = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=-100, reduction="sum")
    assert total_loss(one.decoder, feed).item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize("parts", [2, 3, 16])
def test_accumulation_has_the_gradient_of_the_whole_batch(parts):
    one, other = loop(steps=3), loop(steps=3, accumulation=parts)
    told = [list(one), list(other)]
    assert [a.loss for a in told[0]] == pytest.approx([b.loss for b in told[1]], rel=1e-4)
    assert [a.norm for a in told[0]] == pytest.approx([b.norm for b in told[1]], rel=1e-3)


def test_norms_are_not_decayed_unless_the_paper_says_so():
    groups = loop(weight_decay=0.1).optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(parameter.ndim == 1 for parameter in groups[1]["params"])
    assert [group["weight_decay"] for group in loop(weight_decay=0.1, decay_norms=True).optimizer.param_groups] == [0.1]


def test_gradients_are_clipped():
    one = loop(grad_clip=1e-3, steps=1)
    (told,) = one
    norm = torch.nn.utils.get_total_norm([p.grad for p in one.decoder.parameters()])
    assert told.norm > 0.1 and float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_bf16_autocast_trains_to_about_the_same_loss():
    plain, half = list(loop(steps=30)), list(loop(steps=30, autocast=True))
    assert half[-1].loss == pytest.approx(plain[-1].loss, rel=0.1) and half[-1].loss != plain[-1].loss


DROPOUT = "laptop:width=32:heads=2:feed_forward_width=64:dropout=0.1:attention_dropout=0.1"


def test_the_same_seed_gives_the_same_bits_and_each_stream_only_its_own():
    runs = {
        name: loop(model=DROPOUT, steps=8, seeds=seeds)
        for name, seeds in {
            "once": Seeds.of(0),
            "again": Seeds.of(0),
            "init": Seeds.of(0, init=1),
            "data": Seeds.of(0, data=1),
            "order": Seeds.of(0, order=1),
            "dropout": Seeds.of(0, dropout=1),
        }.items()
    }
    start = {name: weights(one) for name, one in runs.items()}
    assert [name for name in runs if not equal(start[name], start["once"])] == ["init"]
    for one in runs.values():
        torch.manual_seed(len(start))  # nobody's random state matters
        list(one)
    end = {name: weights(one) for name, one in runs.items()}
    assert [name for name in runs if equal(end[name], end["once"])] == ["once", "again"]


def test_an_evaluation_of_the_model_inside_a_wrapper_does_not_switch_dropout_off():
    """DDP wraps the decoder; an evaluation in between sets the decoder alone to eval mode."""

    class Wrapper(torch.nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.inside = inside

        def forward(self, *arguments, **options):
            return self.inside(*arguments, **options)

    how = {"model": "laptop:width=32:heads=2:feed_forward_width=64:dropout=0.5"}
    plain, wrapped = loop(**how), loop(**how)
    wrapped.module = Wrapper(wrapped.decoder)
    losses = {}
    for name, one in (("plain", plain), ("wrapped", wrapped)):
        metrics = iter(one)
        next(metrics)
        one.decoder.eval()
        losses[name] = next(metrics).loss
        assert one.decoder.training
    assert losses["plain"] == losses["wrapped"]


def test_a_loop_goes_on_from_its_state_bit_for_bit():
    whole = loop(model=DROPOUT, encoding="t5", steps=12)
    list(whole)
    for stop in (0, 1, 7):
        first = loop(model=DROPOUT, encoding="t5", steps=12)
        for _ in zip(first, range(stop), strict=False):
            pass
        steps = first.step
        held = {name: value.clone() for name, value in first.tensors().items()}
        second = loop(model=DROPOUT, encoding="t5", steps=12)
        second.load(held, steps)
        list(second)
        assert equal(weights(second), weights(whole))


def test_encodings_see_the_same_batches_in_the_same_order():
    seen = []
    for name in ENCODINGS:
        one = loop(encoding=name, steps=6)
        seen.append([feed.ids_BT for feed in training_batches(one.supply, one.training, one.positions, one.seeds)])
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


@pytest.mark.parametrize("encoding", json.loads(GOLDEN.read_text()))
def test_losses_are_those_that_were_pinned(encoding):
    """Change them only with `version` of Encoding, Training or Decoder, and a line in CHANGELOG.md."""
    losses = [told.loss for told in loop(encoding=encoding, steps=20)]
    pinned = json.loads(GOLDEN.read_text())
    assert [losses[0], losses[9], losses[19]] == pytest.approx(pinned[encoding], abs=1e-4)


class Broken:
    def log(self, step, numbers):
        raise RuntimeError("the server is away")

    def close(self):
        raise RuntimeError("the server is away")


class Good:
    def __init__(self):
        self.heard = []

    def log(self, step, numbers):
        self.heard.append(step)

    def close(self):
        self.heard.append("closed")


def test_a_logger_that_breaks_is_left_out_and_the_others_go_on():
    good = Good()
    loggers = Loggers([Broken(), good])
    with pytest.warns(UserWarning, match="Broken is left out of this run: RuntimeError: the server is away"):
        loggers.log(1, {"loss": 1.0})
    loggers.log(2, {"loss": 1.0})
    loggers.close()
    assert good.heard == [1, 2, "closed"]


def test_an_unknown_logger_is_an_error_and_one_that_is_not_installed_a_warning(tmp_path, monkeypatch):
    with pytest.raises(SpecError, match=r"there is no logger 'wandbb'\. Did you mean 'wandb'"):
        Loggers.of(["wandbb"], str(tmp_path), "run")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.warns(UserWarning, match="wandb is left out"):
        Loggers.of(["wandb"], str(tmp_path), "run").log(1, {"loss": 1.0})


def test_tensorboard_hears_what_was_said(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = Loggers.of(["tensorboard"], str(tmp_path), "run")
    for step, loss in enumerate((3.0, 2.0, 1.0)):
        loggers.log(step, {"loss": loss})
    loggers.close()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_the_optimizer_is_pytorchs():
    made = []
    for cls in (AdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        layer = torch.nn.Linear(5, 3)
        optimizer = cls([{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias]}], lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            layer(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        made.append((*layer.parameters(), *(one["exp_avg"] for one in optimizer.state.values())))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*made, strict=True))


@pytest.mark.slow
def test_training_does_not_import_pytorchs_compiler():
    code = "import sys; from tests.training.test_loop import loop; list(loop(steps=2));"
    code += "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
