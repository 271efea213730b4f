"""`lengthwise analyze` as a user meets it, and what is said from its rows."""

import json
import math

import polars as pl
import pytest
from typer.testing import CliRunner

from lengthwise.analysis.divergence import DEFINITIONS, HEADS
from lengthwise.cli import app
from lengthwise.reporting.attention import attention_drawings
from lengthwise.reporting.divergences import (
    MEASURES,
    all_divergence_estimates,
    differences_from_reference,
    divergence_markdown,
    divergence_table,
    mean_over_lengths,
    nearest_encoding_sentence,
)
from lengthwise.run import train
from lengthwise.spec import SpecError

TASK = "copy:longest=2:variant=same"


def planted(gap: float) -> list[dict[str, object]]:
    """Rows in which T5 is so much farther from NoPE than NoPE from itself."""
    rows = []
    for encoding, base in (("nope", 0.2), ("t5", 0.2 + gap), ("alibi", 0.5)):
        for pairing, seed, other in [("record", s, t) for s in range(5) for t in range(5) if s != t] + [
            (kind, s, s) for kind in ("published", "floor", "change") for s in range(5)
        ]:
            for layer in range(2):
                for length in (1, 2):
                    value = base + 0.01 * (seed + other) + 0.1 * layer
                    labels = {"task": TASK, "pairing": pairing, "encoding": encoding, "seed": seed}
                    row = {**labels, "against": "nope", "against_seed": other, "layer": layer, "length": length}
                    rows.append({**row, "seen": True, "examples": 3} | dict.fromkeys(MEASURES, value))
    return rows


def test_the_measures_are_those_of_the_analysis():
    assert set(MEASURES) == {f"{definition} {heads}" for definition in DEFINITIONS for heads in HEADS}


def test_what_is_said_of_rows():
    told = mean_over_lengths(planted(0.1))
    assert len(told) * 2 == len(planted(0.1))
    (t5,) = [
        one for one in differences_from_reference(told) if one["encoding"] == "t5" and one["measure"] == "true matching"
    ]
    assert t5["difference"] == pytest.approx(0.1) and t5["low"] == pytest.approx(0.1)
    lines = {line["encoding"]: line for line in divergence_table(told, TASK)}
    assert lines["NoPE"]["true, heads matched"].startswith("0.290 ± ")  # .2 + .01 (2 + 2) + .05
    assert lines["T5"]["published"] == "0.263"
    assert (
        "true, heads matched: T5 (+0.100 [0.100, 0.100] against NoPE with another seed: farther)"
        in nearest_encoding_sentence(told, TASK)
    )
    assert "nearer" in nearest_encoding_sentence(mean_over_lengths(planted(-0.1)), TASK)
    page = divergence_markdown(told, TASK)
    assert page.count("| T5 |") == 5  # four pairings and the differences
    assert "| T5 | +0.100 [+0.100, +0.100] |" in page
    per_layer = [one for one in all_divergence_estimates(told) if one["layer"] == 1 and one["encoding"] == "nope"]
    assert {one["published"] for one in per_layer} == {None}
    assert per_layer[0]["value"] == pytest.approx(0.34)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two seeds of two encodings, trained for two steps."""
    where = str(tmp_path_factory.mktemp("analyze") / "store")
    ids = {
        (encoding, seed): train(
            TASK, encoding, training="laptop:steps=2:batch_size=4", seed=seed, store=where, quiet=True
        ).id
        for encoding in ("nope", "t5")
        for seed in range(2)
    }
    return where, ids


def call(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["analyze", *arguments], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


@pytest.mark.slow
def test_several_runs_are_compared_and_drawn_again_from_their_rows(store, tmp_path):
    where, ids = store
    text = call(*ids.values(), "--store", where, "--to", str(tmp_path / "a"), "--examples", "2")
    assert "what heads do at unseen lengths" in text and "divergence from the attention of NoPE" in text
    rows = pl.read_parquet(tmp_path / "a" / "divergence.parquet")
    # record: 2 seeds of each with the other seed; published 4, floor 4, change 4; 2 layers; lengths 1 to 4.
    assert rows.height == (4 + 4 + 4 + 4) * 2 * 4
    assert rows["length"].max() == 4  # far ones are not compared
    same = rows.filter(pl.col("pairing") == "change")["true same"]
    assert 0 < same.max() < 0.05  # two steps from the first weights
    heads = pl.read_parquet(tmp_path / "a" / "heads.parquet")
    assert heads["length"].max() > 4 and heads.filter(pl.col("head") == 3).height
    told = json.loads(call("--rows", str(tmp_path / "a"), "--to", str(tmp_path / "b"), "--json"))
    assert {one["encoding"] for one in told["divergence"]} == {"nope", "t5"}
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert len([name for name in names if name.endswith(".svg")]) == 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
def test_one_run_against_another(store, tmp_path):
    where, ids = store
    told = json.loads(
        call(ids["t5", 0], "--against", ids["nope", 1], "--store", where, "--to", str(tmp_path), "--json")
    )
    assert {one["pairing"] for one in told["divergence"]} == {"given", "change"}
    assert all(one["low"] is None for one in told["divergence"])  # one seed
    assert all(isinstance(one["value"], float) and math.isfinite(one["value"]) for one in told["divergence"])
    text = call(ids["t5", 0], "--store", where, "--to", str(tmp_path), "--lengths", "2,4")
    assert "divergence" not in text and "T5" in text
    assert "what heads do at unseen lengths" in text
    seen = call(ids["t5", 0], "--store", where, "--to", str(tmp_path), "--lengths", "1,2")
    assert "what heads do at seen lengths" in seen and "unseen" not in seen


@pytest.mark.slow
def test_the_run_that_is_compared_with_is_named_drawn_and_summarised(store, tmp_path):
    """The table, the page and the figures name both runs, and a pair that was not published has no number."""
    where, ids = store
    text = call(ids["nope", 0], "--against", ids["t5", 0], "--store", where, "--to", str(tmp_path))
    assert "divergence from the attention of T5" in text
    assert len([line for line in text.splitlines() if line.startswith("NoPE ") and " T5 " in line]) == 1
    assert "0.26" not in text, "the published values are of other pairs"
    page = (tmp_path / "summary.md").read_text()
    assert "M with T5, the run that was named:" in page and "| NoPE |  |" in page
    for name in ("distance", "length"):
        figure = (tmp_path / f"attention-{name}-copy-same.svg").read_text()
        assert "NoPE" in figure and "T5" in figure
    with pytest.raises(SpecError, match="compared with itself"):
        call(ids["nope", 0], "--against", ids["nope", 0], "--store", where, "--to", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name runs, or a study"),
        (["--rows", "nowhere"], "there is no nowhere/divergence.parquet"),
        (["--study", "attention", "--against", "x"], "--against goes with runs"),
        (["nothing", "--store", "nowhere"], "there is no run 'nothing'"),
    ],
)
def test_mistakes_are_told(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=message):
        CliRunner().invoke(app, ["analyze", *arguments], catch_exceptions=False)


def test_figures_are_drawn_from_rows_alone():
    distances = [
        {"task": TASK, "encoding": "nope", "seed": 0, "trained": True, "layer": 0, "distance": bin / 40}
        | {"argmax": 1.0, "weight": 1.0}
        for bin in range(40)
    ]
    heads = [
        {"task": TASK, "encoding": "nope", "seed": 0, "trained": True, "length": length, "seen": length < 3}
        | dict.fromkeys(("relative_entropy", "sink", "relative_distance", "distance"), 0.5)
        for length in range(1, 5)
    ]
    made = attention_drawings(mean_over_lengths(planted(0.0)), heads, distances, {TASK: "copy same"})
    assert [drawing.name for drawing in made] == [
        "attention-divergence-copy-same", "attention-distance-copy-same", "attention-length-copy-same",
    ]  # fmt: skip
    assert all("<svg" in drawing.svg() for drawing in made)
