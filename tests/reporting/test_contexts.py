"""The rules for curves of loss by context, on planted losses."""

import json

import numpy as np
import polars as pl
import pytest

from lengthwise.evaluation.rows import rows_to_frame
from lengthwise.reporting.contexts import ContextPage, Curve
from lengthwise.study.plan import LearningRateChoice

DOCUMENTS = 40


def curve(trained=128, seeds=2, **by_context):
    """Losses of each document around the given means: half of the documents a nat harder than the others."""
    harder = np.where(np.arange(DOCUMENTS) % 2, 0.5, -0.5)
    losses = {int(name[1:]): np.tile(mean + harder, (seeds, 1)) for name, mean in by_context.items()}
    return Curve("text", "rope", "RoPE", trained, losses)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ({"c16": 5.0, "c128": 4.0, "c256": 4.04, "c512": 4.0}, "holds to 512, does not break"),
        ({"c16": 5.0, "c128": 4.0, "c256": 4.04, "c512": 4.2}, "holds to 256, does not break"),
        ({"c16": 5.0, "c128": 4.0, "c256": 4.2, "c512": 4.0}, "does not hold beyond it, does not break"),
        ({"c16": 5.0, "c128": 4.0, "c256": 4.06, "c512": 5.1}, "does not hold beyond it, breaks from 512"),
        ({"c16": 5.0, "c128": 4.0, "c256": np.inf}, "does not hold beyond it, breaks from 256"),
        ({"c16": 5.0, "c128": 4.0}, "not tested beyond the trained context"),
        ({"c128": 4.0, "c256": 4.0}, "no verdict: the trained context or 16 tokens was not measured"),
    ],
)
def test_what_the_rules_say(losses, verdict):
    assert curve(**losses).verdict == verdict


def test_a_curve_is_judged_only_if_the_trained_context_is_used():
    assert curve(c16=4.09, c128=4.0, c256=9.0).verdict.startswith("uses no context (16 tokens are worse by +0.090")
    assert curve(c16=4.11, c128=4.0, c256=9.0).verdict.endswith("breaks from 256")
    assert "not longer than 16" in curve(trained=16, c16=4.0, c32=4.0).verdict


def test_differences_are_those_of_documents_with_themselves():
    """Documents differ by a nat, and each loses between .00 and .08: the interval is that of the losses."""
    losses = curve(c16=5.0, c128=4.0).losses_CSD
    losses[256] = losses[128] + np.linspace(0, 0.08, DOCUMENTS)
    found = Curve("text", "rope", "RoPE", 128, losses).difference(256, 128)
    assert found.value == pytest.approx(0.04) and 0.03 < found.low < found.high < 0.05


class Study:
    name, question, deviations = "planted", "?", ()


class Found:
    """What a page asks of the findings."""

    study, tasks, trained, choices, diverged = Study(), ["text"], {"text": [128]}, [], {}
    encodings = ("nope", "rope", "rope,nope", "nope layers=2", "rope layers=2")
    planned, items, ended_runs = 2, (1, 2), []

    def __init__(self, rows):
        self.rows = rows

    def label(self, encoding):
        return encoding.replace("nope", "NoPE").replace("rope", "RoPE").replace(",", ", ")

    def short(self, task):
        return task


def page(losses, left_out=()):
    """A page of (encoding, evaluation, context) → loss, with ten documents and two seeds."""
    rows = [
        {"run": f"{encoding}{seed}", "checkpoint": "last", "evaluation": change, "length": context, "targets": 8}
        | {"subgroup": str(number), "loss": None if loss is None else 8 * (loss + number / 10)}
        for (encoding, change, context), loss in losses.items()
        for seed in (0, 1)
        for number in range(10)
        if (encoding, context, seed) not in left_out
    ]
    frame = rows_to_frame(rows)
    return ContextPage(
        Found(
            frame.with_columns(
                pl.lit("text").alias("task"),
                pl.col("run").str.head(-1).alias("encoding"),
                pl.col("run").str.tail(1).cast(pl.Int64).alias("seed"),
            )
        )
    )


LOSSES = {("nope", "as trained", context): loss for context, loss in ((16, 5.0), (128, 4.9), (512, 4.9))}
LOSSES |= {("rope", "as trained", context): loss for context, loss in ((16, 5.0), (128, 4.0), (512, 6.0))}


def test_the_page_says_which_curves_hold_and_which_were_not_judged(tmp_path):
    further = {("rope", "temperature=log-n", 128): 4.1, ("rope", "temperature=log-n", 512): 4.1}
    found = page({**LOSSES, ("nope", "as trained", 128): 4.95, **further})
    assert (
        "NoPE: uses no context." in found.verdict and "RoPE: does not hold beyond it, breaks from 512." in found.verdict
    )
    assert "RoPE, temperature log-n: no verdict" in found.verdict
    found.write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == found.verdict


def test_a_loss_that_is_not_finite_is_shown_and_breaks_the_curve(tmp_path):
    found = page({**LOSSES, ("rope", "as trained", 512): None})
    assert "RoPE: does not hold beyond it, breaks from 512." in found.verdict
    assert found.warnings() == ["RoPE: the loss at 512 tokens is not finite."]
    assert found.loss_table()[1]["512"] == "not finite"
    found.write(tmp_path)
    assert (tmp_path / "index.html").is_file()


def test_a_context_without_all_seeds_is_left_out():
    found = page(LOSSES, left_out={("rope", 512, 1)})
    assert found.curves[1].contexts == [16, 128] and found.curves[0].contexts == [16, 128, 512]


def test_an_encoding_per_layer_is_a_trained_model_and_its_name_is_not_mistaken_for_two():
    mixed = {("rope,nope", "as trained", context): loss for context, loss in ((16, 5.0), (128, 4.0), (512, 6.0))}
    changed = {("rope", "temperature=log-n", context): 4.0 for context in (16, 128, 512)}
    found = page({**LOSSES, **mixed, **changed})
    assert "RoPE; RoPE, NoPE: does not hold beyond it, breaks from 512." in found.verdict
    figure = found.main_figure().figure()
    shown = {axes.get_title(): [line.get_text() for line in axes.get_legend().get_texts()] for axes in figure.axes}
    assert shown == {"as trained": ["NoPE", "RoPE", "RoPE, NoPE"], "changed at test time": ["RoPE, temperature log-n"]}


def test_models_are_compared_over_the_same_documents_with_the_first_of_their_size():
    small = {(f"{name} layers=2", "as trained", 128): loss for name, loss in (("nope", 5.5), ("rope", 5.4))}
    changed = {("rope", "temperature=log-n", context): 4.3 for context in (128, 512)}
    lines = page({**LOSSES, **small, **changed}).comparison_table()
    assert [(line["model"], line["minus"]) for line in lines] == [
        *(("RoPE", "NoPE"), ("RoPE, temperature log-n", "RoPE"), ("RoPE layers=2", "NoPE layers=2"))
    ]
    assert lines[0]["128"].startswith("-0.900 [") and lines[0]["512"].startswith("+1.100 [")
    assert lines[1]["16"] == "-" and lines[1]["128"].startswith("+0.300 [") and lines[1]["512"].startswith("-1.700 [")


def test_a_learning_rate_at_the_edge_is_flagged():
    found = page(LOSSES)
    rates, rest = (0.001, 0.002, 0.004), ("consecutive", "nano", "nano")
    found.found.choices = [
        LearningRateChoice("nope", "text", rest, (), rates, scores)
        for scores in ((-3.6, -3.5, -3.6), (-3.6, -3.5, -3.4))
    ]
    assert "1 of 2 learning rates lie at the edge of what was tried." in found.warnings()
    assert [line[""] for line in found.learning_rate_table()] == ["", "at the edge"]
