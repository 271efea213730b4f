"""Three ways to fail, undone: nothing changes where nothing should, and what was planted comes back."""

import polars as pl
import pytest
import torch

import lengthwise as lw
from lengthwise.analysis.interventions import (
    CONDITIONS,
    _counted,
    intervention_rows,
    refuse_unsqueezable,
    squeezed_positions,
)
from lengthwise.interface.interventions import Recovered
from lengthwise.model import Decoder, preset
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError
from lengthwise.task import build_task

MODEL = "laptop:width=32:heads=2:feed_forward_width=64"


def decoder_of(encoding, **options):
    return Decoder(preset(MODEL, vocabulary=20, **options), encoding, seed=1).double().eval()


@pytest.mark.parametrize("encoding", ["nope", "rope", "alibi", "t5", "sinusoidal", "fire", "local:window=3"])
@torch.no_grad()
def test_squeezed_positions_are_those_that_are_given_in_their_place(encoding):
    """By one half: at even positions 0, 2, 4, ... every encoding sees 0, 1, 2, ..."""
    decoder, ids_BT = decoder_of(encoding), torch.arange(3, 13)[None]
    plain = decoder(ids_BT)
    with squeezed_positions(decoder, 0.5):
        found = decoder(ids_BT, positions_BT=2 * torch.arange(10)[None])
        halved = decoder(ids_BT)
    assert torch.allclose(found, plain, atol=1e-9)
    assert torch.allclose(halved, plain, atol=1e-12) == (encoding == "nope")
    assert torch.equal(decoder(ids_BT), plain), "nothing of it is left"


@pytest.mark.parametrize("encoding", ["inkling", "transformer_xl", "dape"])
def test_an_encoding_whose_positions_cannot_be_squeezed_is_refused(encoding):
    with pytest.raises(SpecError, match="cannot be squeezed"):
        refuse_unsqueezable(decoder_of(encoding))


@pytest.mark.parametrize("encoding", ["nope", "rope", "alibi", "t5", "learned:limit=8", "cope", "fire", "forgetting"])
def test_others_are_not(encoding):
    refuse_unsqueezable(decoder_of(encoding))


def test_nothing_is_squeezed_at_trained_lengths_and_nope_is_not_changed_by_it():
    task = build_task("copy:variant=same:longest=4")
    config = preset(MODEL, vocabulary=len(task.vocabulary))
    plain = Decoder(config, "nope", seed=0).eval()
    warmer = Decoder(config.model_copy(update={"temperature": "log-n:trained=10"}), "nope", seed=0).eval()
    rows = intervention_rows(plain, warmer, task, 10)
    assert {row["condition"] for row in rows if row["seen"]} == {c for c in CONDITIONS if "squeeze" not in c}
    assert {row["condition"] for row in rows if not row["seen"]} == set(CONDITIONS)
    for row in rows:
        if "squeeze" in row["condition"]:
            same = row["condition"].replace(" + squeeze", "").replace("squeeze", "")
            (other,) = [one for one in rows if one["length"] == row["length"] and one["condition"] == same]
            assert other["correct"] == row["correct"]


def planted(unseen, stop=0.0, entropy=0.0, squeeze=0.0, cost=0.0):
    """Rows of five seeds in which each cause recovers so much of the loss."""
    rows = []
    for seed in range(5):
        for condition in CONDITIONS:
            gain = sum(
                share
                for name, share in (("stop", stop), ("entropy", entropy), ("squeeze", squeeze))
                if name in condition
            )
            for length, seen in ((4, True), (8, False)):
                right = 1.0 - cost * ("entropy" in condition) if seen else unseen + gain * (1 - unseen)
                count = round(1000 * right) + (seed if not seen else 0)
                rows.append({"task": "sort", "encoding": "rope", "seed": seed, "length": length, "seen": seen,
                             "condition": condition, "examples": 1000, "correct": count})  # fmt: skip
    return Recovered(rows).table[0]


def test_a_told_end_is_left_out_where_answers_cannot_be_judged_without_their_own():
    found = pl.DataFrame({"examples": [10, 10], "correct": [3, 4], "correct_content": [None, None]})
    assert [row["condition"] for row in _counted(found, 5, "test_unseen", ["squeeze"])] == ["squeeze"]


def test_a_planted_cause_is_named_and_a_costly_one_is_not_interpreted():
    assert planted(0.2, stop=0.7)["accounts for the loss"] == "stop"
    assert planted(0.2, stop=0.3, squeeze=0.6)["accounts for the loss"] == "squeeze"
    assert planted(0.2, stop=0.3)["accounts for the loss"] == "none alone"
    assert planted(0.2, entropy=0.9, cost=0.03)["entropy"] == "costs at seen lengths"
    assert planted(0.95)["stop"] == "nothing lost"
    assert planted(0.2, stop=0.25, entropy=0.25)["stop + entropy"].startswith("0.50")


def test_a_seed_that_lost_nothing_does_not_hide_what_the_others_lost():
    rows = []
    for seed, unseen in enumerate((1.0, 0.3, 0.2)):
        for condition in CONDITIONS:
            for length, seen in ((4, True), (8, False)):
                right = 1.0 if seen or "stop" in condition else unseen
                rows.append({"task": "sort", "encoding": "nope", "seed": seed, "length": length, "seen": seen,
                             "condition": condition, "examples": 1000, "correct": round(1000 * right)})  # fmt: skip
    line = Recovered(rows).table[0]
    assert line["unseen"] == 0.5 and line["stop"].startswith("1.00") and line["accounts for the loss"] == "stop"
    assert line["squeeze"].startswith("0.00")


@torch.no_grad()
def test_the_entropy_of_all_scores_is_undone_also_of_a_bias():
    """ALiBi's scores, bias included, times the factor of each query."""
    plain, ids_BT = decoder_of("alibi", layers=1), torch.arange(3, 13)[None]
    warm = decoder_of("alibi", layers=1, temperature="log-n:trained=4:bias=true")
    scores, weights = Recorder(), Recorder()
    plain(ids_BT, taps={"layers.0.weights": scores})
    warm(ids_BT, taps={"layers.0.weights": weights})
    factor_Q = (torch.arange(1, 11).double().log() / torch.tensor(4.0).double().log()).clamp(min=1)
    wanted = torch.softmax(scores["layers.0.weights"].log() * factor_Q[:, None], -1)  # softmax drops constants of a row
    assert torch.allclose(weights["layers.0.weights"], wanted, atol=1e-9)


@torch.no_grad()
def test_whole_distances_stay_whole_when_they_are_squeezed():
    """13/22 in fp32 times 22 is a little below 13, and T5 rounds down."""
    decoder, seen = decoder_of("t5"), []
    part = decoder.encodings[0]
    plain = part.checked_by_distance
    part.checked_by_distance = lambda distances, *rest: seen.append(distances) or plain(distances, *rest)
    with squeezed_positions(decoder, 13 / 22):
        part.checked_by_distance(torch.arange(23.0))
    assert float(seen[0][22]) == 13.0


@pytest.mark.slow
def test_recover_reads_runs_and_the_told_end_is_that_of_the_report(tmp_path):
    run = lw.train("copy:variant=same:longest=4", "nope", model=MODEL, steps=60, store=str(tmp_path), quiet=True)
    found = lw.recover([run])
    rows = run.rows().filter((run.rows()["checkpoint"] == "last") & (run.rows()["split"] == "test_unseen"))
    for row in found.rows:
        if row["condition"] == "stop" and not row["seen"]:
            assert row["correct"] == rows.filter(rows["length"] == row["length"])["correct_content"].sum()
    assert "Share of (seen" in str(found) and found.plain()["table"][0]["task"].startswith("copy")


def test_a_run_with_its_own_temperature_is_refused(tmp_path):
    """It would be replaced, so that nothing could be said of what a temperature recovers."""
    model = "laptop:width=16:heads=2:head_width=8:layers=1:temperature=[constant:factor=4.0]"
    run = lw.train("copy:variant=same:longest=3", "nope", model=model, steps=2, store=str(tmp_path), quiet=True)
    with pytest.raises(SpecError, match="has its own temperature"):
        lw.recover([run])
