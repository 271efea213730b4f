"""Language models: what is predicted from what, and the same batches for any number of processes."""

import hashlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lengthwise as lw
from lengthwise.corpora.shards import Corpus
from lengthwise.evaluation.text import TARGETS, long_documents, row_losses
from lengthwise.folder import Folder
from lengthwise.model import Decoder, preset
from lengthwise.run import Plan
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.text import HIDDEN
from lengthwise.training.loop import total_loss
from lengthwise.training.settings import training_preset
from lengthwise.training.text import TextRows
from tests.training.test_parallel import launch_module

MODEL = "nano:width=32:layers=2:heads=2:head_width=16:feed_forward_width=48"
TRAINING = "nano:steps=12:batch_size=8:validations=2:validation_examples=8"


def task_of(corpus, **options):
    return build_task({"name": "text", "path": corpus, "longest": 32, **options})


def decoder_of(task, encoding="rope", **options):
    return Decoder(preset(MODEL, vocabulary=len(task.vocabulary), **options), encoding, seed=1)


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["causal", "masked"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_take_every_nth_row_of_the_same_batches(corpus, objective, ranks):
    task, training = task_of(corpus, objective=objective), training_preset(TRAINING)
    whole = list(TextRows(task, 3).batches(training, 2))
    parts = [list(TextRows(task, 3).batches(training, 2, rank, ranks)) for rank in range(ranks)]
    assert len(whole) == training.steps - 2
    for step, batch in enumerate(whole):
        assert batch.targets == int(batch.own.loss_BT.sum()) and batch.tokens == 8 * 32
        for rank in range(ranks):
            own = parts[rank][step]
            assert torch.equal(own.own.ids_BT, batch.own.ids_BT[rank::ranks])
            assert own.own.documents == batch.own.documents[rank::ranks]
            assert (own.targets, own.tokens) == (batch.targets, batch.tokens)
            if objective == "masked":
                assert torch.equal(own.own.hidden_BT, batch.own.hidden_BT[rank::ranks])


def test_a_batch_is_found_without_those_before_it(corpus):
    task, training = task_of(corpus), training_preset(TRAINING)
    late = next(iter(TextRows(task, 0).batches(training, 9)))
    from_start = list(TextRows(task, 0).batches(training))[9]
    assert torch.equal(late.own.ids_BT, from_start.own.ids_BT)
    other = next(iter(TextRows(task, 1).batches(training, 9)))
    assert not torch.equal(late.own.ids_BT, other.own.ids_BT)


def test_a_study_of_texts_is_planned_without_the_library_of_tokenizers(monkeypatch):
    """As where lengthwise is installed without extras: `study list` reads every recipe."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    task = build_task("text:path=context-corpus:longest=128")
    assert len(task.vocabulary) == 2048
    assert lw.Study.read("context-masked").plan("nowhere").counts["runs"] == 12
    with pytest.raises(SpecError, match=r"^a corpus needs an extra: pip install"):
        _ = task.vocabulary.symbols


def test_each_random_stream_decides_one_thing(corpus):
    """The order of the rows, and what is hidden from a masked language model."""
    task, training = task_of(corpus, objective="masked"), training_preset(TRAINING)

    def first(data, order):
        return next(iter(TextRows(task, data, order).batches(training))).own

    plain, other_order, other_data = first(0, 0), first(0, 7), first(7, 0)
    assert not torch.equal(other_order.ids_BT, plain.ids_BT)
    assert torch.equal(other_data.ids_BT, plain.ids_BT) and not torch.equal(other_data.hidden_BT, plain.hidden_BT)


def test_a_corpus_in_another_folder_is_the_same_task(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "elsewhere")
    one, other = (Plan.of({"name": "text", "path": path}, "rope") for path in (corpus, str(tmp_path / "elsewhere")))
    assert one.id == other.id
    assert Plan.of({"name": "text", "path": corpus, "longest": 64}, "rope").id != one.id


# --- the objective ---------------------------------------------------------------------------------------------------


def packed_rows(task):
    """Rows in which a document ends."""
    many = task.rows("train", 0).parts[0].count
    batch = TextRows(task, 0).batch(range(many))
    return [row for row in range(many) if len(batch.documents[row]) > 1], batch


def test_the_loss_is_that_of_the_next_token_of_each_document_alone(corpus):
    """Each document of a row is computed by itself; a start token is predicted from the document before it."""
    task = task_of(corpus)
    rows, batch = packed_rows(task)
    assert rows, "no row has two documents"
    decoder, chosen = decoder_of(task).double(), batch.rows(np.array(rows[:3]))
    found = float(total_loss(decoder, chosen).detach())
    wanted = 0.0
    for ids_T, lengths in zip(chosen.ids_BT, chosen.documents, strict=True):
        start = 0
        for length in lengths:
            logits_TV = decoder(ids_T[None, start : start + length])[0]
            own_N = ids_T[start + 1 : start + length + 1]
            wanted += float(F.cross_entropy(logits_TV, own_N, reduction="sum").detach())
            start += length
    assert found == pytest.approx(wanted, rel=1e-6)
    alone = chosen.rows(np.array([0]))
    leaking = total_loss(decoder, type(alone)(**{**vars(alone), "documents": [[task.longest]]}))
    assert abs(float(leaking) - float(total_loss(decoder, alone))) > 1e-6, "the documents must matter"


def test_what_is_hidden_from_a_masked_language_model(corpus):
    task = task_of(corpus, objective="masked", longest=64)
    batch = TextRows(task, 0).batch(range(400))
    mask, loss = task.corpora[0].tokenizer.mask, batch.loss_BT
    assert set(loss.sum(1).tolist()) == {round(HIDDEN * 64)}
    assert torch.equal(batch.hidden_BT[~loss], batch.ids_BT[~loss])
    hidden, own = batch.hidden_BT[loss], batch.ids_BT[loss]
    share = {"mask": float((hidden == mask).float().mean()), "same": float((hidden == own).float().mean())}
    assert abs(share["mask"] - 0.8) < 0.02 and abs(share["same"] - 0.1) < 0.02
    decoder = decoder_of(task, mask="bidirectional").double()
    found, (first, *_) = float(total_loss(decoder, batch.rows(np.arange(1))).detach()), batch.documents
    wanted, start = 0.0, 0
    for length in first:
        logits_TV = decoder(batch.hidden_BT[:1, start : start + length])[0]
        there = loss[0, start : start + length]
        wanted += float(
            F.cross_entropy(logits_TV[there], batch.ids_BT[0, start : start + length][there], reduction="sum")
        )
        start += length
    assert found == pytest.approx(wanted, rel=1e-6)


def test_without_positions_all_masks_of_a_sequence_get_the_same_logits(corpus, figure):
    """Haviv et al. 2022: why a masked language model fails without positions. With learned ones they differ."""
    task = task_of(corpus, objective="masked", longest=32)
    ids_BT = torch.from_numpy(np.stack([one.ids_T[:32] for one in long_documents(task, 40, 6)])).clone()
    mask = task.corpora[0].tokenizer.mask
    ids_BT[:, ::3] = mask
    for encoding, same in (("nope", True), ("learned:limit=64", False)):
        decoder = decoder_of(task, encoding, mask="bidirectional").double().eval()
        logits_BTV = decoder(ids_BT)[:, ::3]
        apart = float((logits_BTV - logits_BTV[:, :1]).abs().max())
        figure(f"largest difference between the logits of two masks of a sequence, {encoding}: {apart:.1e}")
        assert (apart < 1e-12) == same
    assert not torch.allclose(decoder(ids_BT)[0, 0], decoder(ids_BT)[1, 0]), "sequences must differ"


@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        ({}, f"{MODEL}:mask=bidirectional", "sees the tokens it must predict"),
        ({"objective": "masked"}, f"{MODEL}:mask=causal", "mask=causal"),
        ({}, f"{MODEL}:mask=prefix", "mask=prefix"),
        ({"longest": 4}, MODEL, "at least 16 tokens"),
        ({"weights": (1.0, 2.0)}, MODEL, "one weight for each of 1 corpora"),
        ({"longest": 1_000_000}, MODEL, "no train documents of"),
        ({"path": "nowhere"}, MODEL, "there is no prepared corpus in 'nowhere'"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(corpus, task, model, words):
    def plan_and_read():
        plan = Plan.of({"name": "text", "path": corpus, **task}, "nope", model=model, training=TRAINING)
        TextRows(plan.task, 0).batch(range(1))

    with pytest.raises(SpecError, match=words) as raised:
        plan_and_read()
    assert "\n" not in str(raised.value)


def test_positions_of_a_text_are_consecutive(corpus):
    with pytest.raises(SpecError, match="consecutive positions"):
        Plan.of({"name": "text", "path": corpus}, "rope", positions="randomized:limit=512")


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    store = str(tmp_path_factory.mktemp("store"))
    return lw.train(
        {"name": "text", "path": corpus, "longest": 32},
        "rope",
        model=MODEL,
        training=TRAINING,
        store=store,
        quiet=True,
        checkpoint_every=4,
    )


def test_the_rows_of_a_run_are_losses_computed_by_hand(run):
    """Each target is predicted from exactly so many tokens before it, at positions from 0."""
    rows, task, decoder = run.rows(), run.task, run.decoder().eval()
    assert rows["length"].unique().sort().to_list() == task.contexts and rows["targets"].unique().to_list() == [TARGETS]
    documents = long_documents(task, 4 * task.longest, 256)
    assert rows.filter(rows["length"] == 32).height == len(documents) > 5
    for context in (16, 40, 128):
        for number in (0, len(documents) - 1):
            ids, wanted = documents[number].ids_T, 0.0
            for place in range(4 * 32 + 1, 4 * 32 + 17, 2):
                before = torch.from_numpy(ids[place - context : place])[None]
                wanted -= float(decoder(before)[0, -1].log_softmax(-1)[ids[place]].detach())
            row = rows.filter((rows["length"] == context) & (rows["subgroup"] == str(number)))
            assert row["loss"].item() == pytest.approx(wanted, rel=1e-4)
    assert rows.filter(rows["length"] <= 32)["seen"].all() and not rows.filter(rows["length"] > 32)["seen"].any()


@pytest.fixture
def own_run(run, corpus, tmp_path, monkeypatch):
    """The run in a store of its own, where evaluations can be stored; a run names its corpus without its folder."""
    monkeypatch.chdir(Path(corpus).parent)
    shutil.copytree(run.folder.parent.parent.parent.local, tmp_path / "copied")
    return lw.load_run(run.id, str(tmp_path / "copied"))


def test_longer_contexts_have_targets_and_a_label_of_their_own(own_run):
    """They stand behind more tokens, in fewer documents; the rows of the run stay as they are."""
    run, before = own_run, own_run.rows()
    far = run.evaluate(lengths=[32, 1024])
    assert far.rows["evaluation"].unique().to_list() == ["targets behind 1024 tokens"]
    near = run.evaluate(lengths=[32, 128])
    run.store_evaluation(far)
    run.store_evaluation(near)
    after = run.rows()
    own = after.filter(after["evaluation"] == "as trained")
    assert own.sort("length", "subgroup").equals(before.sort("length", "subgroup"))
    warm = run.evaluate(lengths=[32, 1024], temperature="log-n")
    assert warm.rows["evaluation"].unique().to_list()[0].endswith(", targets behind 1024 tokens")


def test_a_summary_has_the_model_as_it_was_trained(own_run):
    before = str(lw.summarize(own_run))
    own_run.store_evaluation(own_run.evaluate(lengths=[32, 64], temperature="constant:factor=8.0"))
    assert str(lw.summarize(own_run)) == before


def test_the_validation_loss_is_that_of_the_validation_rows(run):
    last = run.ends["validations"][-1]
    loss, right, targets = row_losses(run.decoder(), run.task, "validation", 8)
    assert last["loss"] == pytest.approx(loss, rel=1e-6) and (last["correct"], last["targets"]) == (right, targets)


def test_a_learned_table_is_evaluated_within_its_limit(corpus, tmp_path):
    task = {"name": "text", "path": corpus, "longest": 32}
    how = {"model": MODEL, "training": TRAINING, "store": str(tmp_path), "quiet": True}
    found = lw.train(task, "learned:limit=48", **how).rows()["length"].unique().sort().to_list()
    assert found == [16, 32, 40, 44, 48]


def test_a_text_run_continues_bit_equal(run, corpus, tmp_path):
    """Stopped after 8 of 12 steps by taking away what came later."""
    shutil.copytree(run.folder.parent.parent.parent.local, tmp_path / "store")
    folder = tmp_path / "store" / "runs" / run.id / "1"
    for name in ("done", "model.safetensors", "rows.parquet", "predictions.parquet"):
        (folder / name).unlink()
    Folder(folder / "checkpoints").remove("000000012")
    (tmp_path / "store" / "done" / run.id).unlink()
    task = {"name": "text", "path": corpus, "longest": 32}
    how = {"model": MODEL, "training": TRAINING, "store": str(tmp_path / "store"), "quiet": True}
    again = lw.train(task, "rope", **how)
    assert again.folder.leaf == "2" and again.rows().equals(run.rows())
    assert all(torch.equal(value, again.weights()[name]) for name, value in run.weights().items())


def test_measures_of_a_run(run, figure):
    found = lw.measure_run(run, lengths=[16, 32, 64])
    assert set(found.values("retrieval")) == {16, 32, 64} and len(found.values("loss by segment")) == 8
    gap = found.values("shuffled prefix, change")[32]
    before, after = found.values("loss after the prefix")[32], found.values("loss after the shuffled prefix")[32]
    assert gap == pytest.approx(after - before)
    assert sum("perplexity, documents" in row["measure"] for row in found.rows) == 4 * 3
    assert "Loss by segment" in str(found)
    figure(f"a run of 12 steps: shuffled prefix {gap:+.3f} nats")


def test_one_layer_without_positions_does_not_see_the_order_of_a_prefix(corpus):
    from lengthwise.foreign.texts import shuffled_rows

    task = task_of(corpus)
    one, two = (decoder_of(task, "nope", layers=layers).double().eval() for layers in (1, 2))
    gaps = [{row["measure"]: row["value"] for row in shuffled_rows(own, task)} for own in (one, two)]
    assert abs(gaps[0]["shuffled prefix, change"]) < 1e-9 < 1e-4 < abs(gaps[1]["shuffled prefix, change"])


# --- several processes -----------------------------------------------------------------------------------------------


def consumed(store):
    """The hash of all rows that the processes of a run trained on, in the order of their numbers, and how many."""
    found = {}
    for path in Path(store).glob("consumed-*.jsonl"):
        for line in path.read_text().splitlines():
            number, content = json.loads(line)
            assert found.setdefault(number, content) == content, "one row has two contents"
    assert sorted(found) == list(range(len(found)))
    return hashlib.sha256("".join(found[number] for number in sorted(found)).encode()).hexdigest(), len(found)


STEPS = 50
LONGER = f"nano:steps={STEPS}:batch_size=8:validations=2:validation_examples=8:warmup=5"


def pretrain(corpus, store, processes, *more):
    arguments = [f"text:path={corpus}:longest=32", "--encoding", "rope", "--model", MODEL, "--training", LONGER]
    arguments += ["--store", str(store), "--threads", "1", "--checkpoint-every", "20", "--quiet", *more]
    return launch_module("tests.training.consumed", processes, arguments, {"LENGTHWISE_CONSUMED": str(store)})


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("first", "then"), [(2, 1), pytest.param(2, 4, marks=pytest.mark.evidence)], ids=["2→1", "2→4"]
)
def test_sharded_pretraining_goes_on_with_another_number_of_processes(corpus, tmp_path, first, then, figure):
    """FSDP2, killed after 40 of 50 steps and resumed: the same tokens in the same order, and nearly the same losses."""
    whole, _ = pretrain(corpus, tmp_path / "whole", 1)
    run, _ = pretrain(corpus, tmp_path / "parts", first, "--shard")
    folder = Path(run.folder.path)
    for name in ("done", "model.safetensors", "rows.parquet", "predictions.parquet"):
        (folder / name).unlink()
    Folder(folder / "checkpoints").remove(f"{STEPS:09d}")
    (folder.parents[2] / "done" / run.id).unlink()
    for path in (tmp_path / "parts").glob("consumed-*.jsonl"):  # what came after the checkpoint was not trained on
        lines = [line for line in path.read_text().splitlines() if json.loads(line)[0] < 40 * 8]
        path.write_text("".join(f"{line}\n" for line in lines))
    again, _ = pretrain(corpus, tmp_path / "parts", then, *(["--shard"] if then > 1 else []))
    assert again.folder.leaf == "2"
    one, other = consumed(tmp_path / "whole"), consumed(tmp_path / "parts")
    assert one == other and one[1] == STEPS * 8
    losses = {line["step"]: line["loss"] for line in whole.log() if "loss" in line}
    parts = {line["step"]: line["loss"] for line in [*run.log(), *again.log()] if "loss" in line}
    apart = {step: abs(loss - parts[step]) for step, loss in losses.items()}
    figure(
        f"FSDP2 {first}→{then} processes: stream {one[0][:16]} of {one[1]} rows identical; losses within "
        f"{apart[10]:.1e} at step 10, {max(apart.values()):.1e} of all"
    )
    assert apart[10] < 1e-5 and max(apart.values()) < 1e-3


@pytest.mark.slow
def test_a_damaged_shard_ends_training_with_its_name(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    name = Corpus(corpus).shards("train")[0].name
    file = tmp_path / "corpus" / "shards" / f"{name}.tokens"
    data = bytearray(file.read_bytes())
    data[:] = bytes(255 - byte for byte in data)
    file.write_bytes(bytes(data))
    arguments = [f"text:path={tmp_path / 'corpus'}:longest=32", "--model", MODEL, "--training", TRAINING]
    done = lw_command("train", *arguments, "--store", str(tmp_path / "store"), "--quiet")
    assert done.returncode == 2 and f"{name}.tokens at byte 0 is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def lw_command(*arguments):
    import subprocess

    return subprocess.run([sys.executable, "-m", "lengthwise", *arguments], capture_output=True, text=True, check=False)


# --- in a study ------------------------------------------------------------------------------------------------------


def test_the_learning_rate_is_chosen_by_the_validation_loss():
    from lengthwise.study.plan import _score

    def record(loss):
        return {"validation": {"step": 5, "correct": 1, "examples": 100, "loss": loss, "targets": 100}}

    scores = [_score(record(loss), "text") for loss in (400.0, 300.0, None)]
    assert scores == [-4.0, -3.0, -100.0] and _score({"diverged": {}}, "text") == -100.0
    assert Counter(map(type, scores)) == {float: 3} and _score(record(3.0), "copy") == 0.01


def test_computing_activations_again_changes_no_bit(corpus, run, tmp_path):
    task = {"name": "text", "path": corpus, "longest": 32}
    how = {"model": MODEL, "training": TRAINING, "store": str(tmp_path), "quiet": True}
    again = lw.train(task, "rope", recompute=True, **how)
    assert again.id == run.id and again.run_json["recorded"]["recompute"]
    assert all(torch.equal(value, again.weights()[name]) for name, value in run.weights().items())
