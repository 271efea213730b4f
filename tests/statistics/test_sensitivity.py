"""Does the order hang on a choice? Each choice, planted so that it decides."""

import time

import numpy as np
import polars as pl
import pytest

from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks
from lengthwise.statistics.cells import accuracy_cells
from lengthwise.statistics.ranks import mean_reciprocal_ranks, rank_statistics
from lengthwise.statistics.sensitivity import CHECKPOINTS, alternative_rankings, saturated_tasks
from lengthwise.statistics.table import accuracy_table, score_table
from tests.statistics.planted import made, named

TASKS = ("copy", "sort", "parity")


def study(**means: tuple[float, float, float]) -> dict:
    """Encoding → its accuracy on each task, the same for three seeds."""
    return {
        (task, name, seed): own[at] for name, own in means.items() for at, task in enumerate(TASKS) for seed in range(3)
    }


def by_name(found):
    return {one.name: one for one in found}


def test_one_task_that_decides_is_found():
    planted = study(a=(1.0, 0.4, 0.4), b=(0.1, 0.5, 0.5))
    found = by_name(alternative_rankings(made(planted), named(planted)))
    assert found["as it is"].order == (("a",), ("b",)) and not found["as it is"].changed
    assert found["without copy"].order == (("b",), ("a",)) and found["without copy"].leader_changed
    assert not found["without sort"].changed and found["without sort"].tasks == 2


def test_the_checkpoint_and_the_oracle_that_decide_are_found():
    last, best = study(a=(0.5, 0.5, 0.5), b=(0.4, 0.4, 0.4)), study(a=(0.5, 0.5, 0.5), b=(0.6, 0.6, 0.6))
    rows = pl.concat([made(last, content=0.0), made(best, checkpoint="best", content=0.0)])
    told = pl.when(pl.col("run").str.contains("-b-")).then(pl.col("examples")).otherwise(pl.col("correct_content"))
    rows = rows.with_columns(told.alias("correct_content"))
    found = by_name(alternative_rankings(rows, named(last)))
    assert found["checkpoint best"].changed and found["told where to stop"].leader_changed
    assert "checkpoint earliest_best" not in found  # it is not in these rows


def test_only_tasks_that_all_learned():
    planted = study(a=(0.9, 0.1, 0.2), b=(0.2, 0.3, 0.3))
    seen = {key: 0.5 if key[:2] == ("copy", "b") else 1.0 for key in planted}
    found = by_name(alternative_rankings(made(planted, seen=seen), named(planted)))
    learned = found["tasks that every encoding learned"]
    assert learned.tasks == 2 and learned.order == (("b",), ("a",)) and learned.changed
    nobody = by_name(alternative_rankings(made(planted, seen=dict.fromkeys(planted, 0.1)), named(planted)))
    empty = nobody["tasks that every encoding learned"]
    assert empty.tasks == 0 and empty.order == () and not empty.changed


def test_tasks_at_ceiling_or_floor_for_everybody_are_flagged():
    planted = study(a=(1.0, 0.0, 0.52), b=(0.99, 0.01, 0.49))
    rows, chance = made(planted, chance={"copy": 0.0, "sort": 0.0, "parity": 0.5}), named(planted)
    assert saturated_tasks(score_table(rows, chance)) == {"copy": "ceiling", "parity": "floor", "sort": "floor"}
    one_is_better = study(a=(1.0, 0.0, 0.9), b=(0.99, 0.4, 0.49))
    assert set(saturated_tasks(score_table(made(one_is_better), named(one_is_better)))) == {"copy"}
    found = by_name(alternative_rankings(made(one_is_better), named(one_is_better)))
    assert found["without tasks at ceiling or floor for everybody"].tasks == 2


def test_equal_encodings_stand_together_and_other_labels_are_a_choice():
    planted = study(a=(0.5, 0.5, 0.5), b=(0.5, 0.5, 0.5), c=(0.1, 0.1, 0.1))
    slow = {
        (task, "c" if name == "b" else "b" if name == "c" else name, seed): value
        for (task, name, seed), value in planted.items()
    }
    again = (pl.lit("slow ") + pl.col("run")).alias("run")
    rows = pl.concat([made(planted), made(slow).with_columns(again)])
    labels = named(slow).with_columns(again)
    found = by_name(alternative_rankings(rows, named(planted), {"rate 1e-3": labels}))
    assert found["as it is"].order == (("a", "b"), ("c",)) and found["rate 1e-3"].order == (("a", "c"), ("b",))
    assert found["rate 1e-3"].changed


def test_the_order_of_rows_changes_nothing():
    planted = study(a=(0.3, 0.7, 0.5), b=(0.4, 0.6, 0.1))
    rows, labels = made(planted, content=0.1), named(planted)
    again = alternative_rankings(
        rows.sample(fraction=1, shuffle=True, seed=1), labels.sample(fraction=1, shuffle=True, seed=2)
    )
    assert again == alternative_rankings(rows, labels)


@pytest.mark.slow
@pytest.mark.alone
def test_ten_thousand_runs_are_worked_out_in_seconds(figure):
    """50 tasks, 40 encodings, 5 seeds, 40 lengths, 3 checkpoints: all that a report asks for."""
    dice, lengths = np.random.default_rng(0), 40
    names = ["nope", "t5", "alibi", "rope", "sinusoidal", *(f"e{number}" for number in range(35))]
    keys = {(f"task{number}", name, seed): None for number in range(50) for name in names for seed in range(5)}
    labels = named(keys)
    length = np.tile(np.arange(1, lengths + 1), len(keys))
    share = np.where(
        length <= 20, 0.99, np.clip(np.repeat(dice.random(len(keys)), lengths) - 0.01 * (length - 20), 0, 1)
    )
    one = pl.DataFrame(
        {
            "run": np.repeat(labels["run"].to_numpy(), lengths),
            "evaluation": "as trained",
            "split": np.where(length <= 20, "test_seen", "test_unseen"),
            "seen": length <= 20,
            "length": length,
            "examples": np.full(len(length), 256),
            "correct": dice.binomial(256, share),
            "correct_content": dice.binomial(256, share),
            "chance": 0.01,
        }
    )
    rows = pl.concat([one.with_columns(pl.lit(rule).alias("checkpoint")) for rule in CHECKPOINTS])
    began = time.perf_counter()
    table = score_table(rows, labels)
    assert (
        len(accuracy_cells(accuracy_table(rows, labels), labels)) == 50 * 40 * lengths
        and len(mean_scores_over_tasks(table)) == 40
    )
    assert (
        len(encoding_differences(table)) == 780
        and mean_reciprocal_ranks(table).queries == 250
        and rank_statistics(table).queries == 250
    )
    assert len(alternative_rankings(rows, labels)) == 55
    took = time.perf_counter() - began
    figure(f"statistics of {len(keys):,} runs, {rows.height:,} rows, 780 pairs of encodings in {took:.1f} s")
    assert took < 30
