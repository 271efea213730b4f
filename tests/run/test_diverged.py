"""A run that diverges is a result: it fails loudly, is not tried again, and every report says so."""

import json

import polars as pl
import pytest

from lengthwise import train
from lengthwise.folder import Folder
from lengthwise.reporting.findings import collect_findings
from lengthwise.reporting.page import Page
from lengthwise.run.lease import Lease
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver
from lengthwise.study.executors import InProcess
from lengthwise.study.plan import Planned
from lengthwise.study.status import status
from lengthwise.study.store import Store
from lengthwise.training.health import Diverged
from tests.run.test_cli_runs import cli
from tests.study.conftest import tiny

SHRINKS = """import torch
from torch import nn

from lengthwise.encoding.base import Encoding


class Shrinks(Encoding):
    label = "Shrinking power"

    def __init__(self, geometry, *, start: float = 0.02) -> None:
        super().__init__(geometry)
        self.start = start
        self.p_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream) -> None:
        with torch.no_grad():
            self.p_H.fill_(self.start)

    def by_distance(self, distances_N):
        return -(distances_N.abs()[None] ** self.p_H[:, None])
"""
MODEL = "laptop:width=16:heads=2:head_width=8"
TRAINING = "laptop:steps=30:batch_size=8:lr=0.02:warmup=1:validations=1:validation_examples=8"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A study of which one encoding diverges in every seed, another in none."""
    there = tmp_path_factory.mktemp("diverged")
    (there / "shrinks.py").write_text(SHRINKS)
    bad = f"{there}/shrinks.py:Shrinks"
    base = {
        "task": "copy:variant=same:longest=3",
        "model": "laptop:width=16:heads=2:head_width=8",
        "training": TRAINING,
    }
    study = tiny(base=base, vary={"encoding": ["nope", bad]}, seeds=2)
    planned, store = Planned(study), Store(there / "store")
    tally = Driver(planned, store, InProcess()).run()
    return there, planned, store, tally, bad


@pytest.mark.slow
def test_it_fails_with_step_parameter_and_last_loss(place):
    there, _, store, tally, _ = place
    assert len(tally.done) == 2 and len(tally.failed) == 2
    assert all("diverged at step" in why and "encodings.0.p_H" in why for why in tally.failed.values())
    for key in tally.failed:
        told = store.diverged([key])[key]
        assert 0 < told["step"] <= 30 and told["last_loss"] > 0 and "p_H" in told["parameter"]
        log = [json.loads(line) for line in (there / "store/runs" / key / "1/train.jsonl").read_text().splitlines()]
        assert all(one["loss"] == one["loss"] for one in log), "nothing that is no number is written"
        assert not (there / "store/runs" / key / "1/done").exists()


def test_nobody_tries_it_again(place):
    there, planned, store, tally, bad = place
    key = next(iter(tally.failed))
    for again in (False, True):
        with pytest.raises(Diverged):
            Lease.take(Folder(there / "store"), key, retry_failed=again)
    retried = Driver(planned, store, InProcess(), retry=True).run()
    assert retried.failed.keys() == tally.failed.keys()
    assert len(list((there / "store/leases" / key).iterdir())) == 1, "no second attempt was begun"
    with pytest.raises(Diverged, match="It would diverge again"):
        train(
            planned.study.base.task,
            bad,
            model=planned.study.base.model,
            training=TRAINING,
            store=str(store),
            quiet=True,
        )
    assert status(planned, store).failed.keys() == tally.failed.keys()


def test_the_report_shows_it_as_diverged_and_never_as_zero(place, tmp_path):
    _, planned, store, tally, bad = place
    page = Page(collect_findings(planned, store, failed=tally.failed))
    assert not page.found.failed and len(page.found.diverged) == 2
    (line,) = [line for line in page.rank_table() if line["encoding"] == "Shrinks"]
    assert line["diverged"] == 2 and line["reach"] == "diverged" and line["seen"] == line["unseen, median seed"] == "–"
    assert page.encodings_best_first()[-1] == bad, "it ranks below all that have a value"
    assert "2 of 2 seeds" in page.warnings()[0] or any("2 runs diverged" in words for words in page.warnings())
    troubles = [line["what happened"] for line in page.training_problem_table()]
    assert sum("diverged at step" in words for words in troubles) == 2
    (pair,) = page.difference_table()
    assert pair["verdict"] == "not settled: " + f"{bad} diverged in 2 seeds"
    html = page.html()
    assert "diverged at step" in html and "Shrinks" in html
    plain = page.plain()
    assert len(plain["diverged"]) == 2 and plain["encodings"]["Shrinks"] == bad
    from lengthwise.reporting.latex import write_latex_tables

    assert "diverged" in write_latex_tables(page, tmp_path)[0].read_text()


def test_a_bundle_keeps_it(place, tmp_path):
    _, planned, store, tally, _ = place
    assert store.export(tmp_path / "bundle") == 2
    bundle = Bundle(tmp_path / "bundle")
    assert bundle.diverged.keys() == tally.failed.keys() and len(bundle.summaries) == 2
    page = Page(collect_findings(planned, None, bundle))
    assert page.found.diverged.keys() == tally.failed.keys()
    assert [line["diverged"] for line in page.rank_table()] == [0, 2]


def test_survivors_are_never_averaged_without_a_word():
    from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks, task_difference
    from lengthwise.statistics.cells import score_cells
    from lengthwise.statistics.ranks import rank_statistics
    from lengthwise.statistics.table import learned_cells, score_table
    from tests.statistics.planted import made, named

    planted = {(task, name, seed): 0.5 if name == "a" else 0.8 for task in "xy" for name in "ab" for seed in range(3)}
    labels = named(planted).with_columns(
        pl.when((pl.col("encoding") == "b") & (pl.col("seed") == 0)).then(430).alias("diverged").cast(pl.Int64)
    )
    lost = {key for key in planted if key[1] == "b" and key[2] == 0}
    table = score_table(made({key: None if key in lost else value for key, value in planted.items()}), labels)
    cell = score_cells(table)["x", "b"]
    assert cell.warning == "2 of 3 seeds; 1 diverged at step 430" and cell.median.words == cell.warning
    assert cell.median.value == pytest.approx(0.8) and cell.median.low is None, "the lowest of three has no value"
    assert cell.missing == 0 and cell.seeds == (0.8, 0.8)
    assert (
        mean_scores_over_tasks(table)["b"].diverged == (("x", 0), ("y", 0))
        and not mean_scores_over_tasks(table)["b"].missing
    )
    (pair,) = encoding_differences(table)
    assert not pair.settled and pair.verdict_text == "not settled: 2 runs diverged"
    one = task_difference(table, "x", "b", "a")
    assert not one.settled and one.verdict_text == "not settled: b diverged in 1 seed"
    # In the two queries of seed 0 it ranks last although its survivors are ahead.
    assert rank_statistics(table).mean_rank["b"].value == pytest.approx((2 + 1 + 1) / 3)
    told = {
        (task, name): got for task, name, got in learned_cells(table).select("task", "encoding", "learned").iter_rows()
    }
    assert told["x", "a"] and told["x", "b"], "2 of 3 is enough"


@pytest.mark.slow
def test_compare_goes_on_and_tells(tmp_path):
    (tmp_path / "shrinks.py").write_text(SHRINKS)
    fast = ["--model", MODEL, "--training", TRAINING, "--threads", "1", "--quiet"]
    done = cli(
        "compare", "copy:variant=same:longest=3", "--encodings", "nope,shrinks.py:Shrinks", "--seeds", "2", *fast,
        "--workers", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Shrinking power" in done.stdout or "Shrinks" in done.stdout
    assert "2 runs diverged" in done.stdout and "diverged at step" in done.stdout
    alone = cli("train", "copy:variant=same:longest=3", "--encoding", "shrinks.py:Shrinks", *fast, cwd=tmp_path)
    assert alone.returncode == 3 and "It would diverge again" in alone.stderr
