"""From rows to scores: each measure by hand, and missing stays missing."""

import polars as pl
import pytest

from lengthwise.spec import SpecError
from lengthwise.statistics.table import (
    MEASURES,
    accuracy_table,
    join_axis_labels,
    label_runs,
    learned_cells,
    score_table,
    tasks_learned_by_all,
)
from tests.statistics.planted import L, made, named, run

KEY = ("copy", "nope", 0)


def one_line(table: pl.DataFrame, key=KEY) -> dict:
    task, encoding, seed = key
    return table.row(
        by_predicate=(pl.col("task") == task) & (pl.col("encoding") == encoding) & (pl.col("seed") == seed), named=True
    )


def test_each_measure_by_hand():
    planted = {KEY: [1.0, 0.8, 0.6, 0.5]}
    told = one_line(score_table(made(planted, examples=100, chance=0.5, content=0.1, seen={KEY: 0.9}), named(planted)))
    assert told["unseen"] == pytest.approx(0.725) and told["micro"] == pytest.approx(0.725)
    assert told["corrected"] == pytest.approx((1 + 0.6 + 0.2 + 0) / 4)
    assert told["area"] == pytest.approx(0.725)  # every length is tested, so it is the mean
    assert told["content"] == pytest.approx((1 + 0.9 + 0.7 + 0.6) / 4)
    assert told["seen"] == pytest.approx(0.9)
    assert (told["examples"], told["correct"], told["lengths"]) == (400, 290, 4) and told["chance"] == pytest.approx(
        0.5
    )
    noise = (0 + 0.8 * 0.2 + 0.6 * 0.4 + 0.25) / 100 / 16
    assert told["noise_unseen"] == pytest.approx(noise) and told["noise_micro"] == pytest.approx(noise)
    assert told["noise_corrected"] == pytest.approx(4 * noise) and told["noise_seen"] == pytest.approx(0.09 / 100 / 4)


def test_the_area_counts_how_far_apart_lengths_are():
    """Lengths 5 and 8 after 4: the first stands for one step, the second for three."""
    planted = {KEY: [1.0, 0.8, 0.6, 0.2]}
    rows = made(planted).filter(~pl.col("length").is_in([L + 2, L + 3]))
    told = one_line(score_table(rows, named(planted)))
    assert told["area"] == pytest.approx((1.0 * 1 + 0.2 * 3) / 4) and told["unseen"] == pytest.approx(0.6)


def test_the_finer_cells_of_a_length_are_added_up():
    planted = {KEY: [1.0, 0.8, 0.6, 0.5]}
    rows = made(planted, examples=100)
    halves = pl.concat([rows.with_columns(pl.lit(name).alias("cell")) for name in ("1,4", "4,4")])
    assert accuracy_table(halves, named(planted))["examples"].unique().to_list() == [200]
    assert one_line(score_table(halves, named(planted)))["unseen"] == pytest.approx(0.725)


def test_lengths_with_unlike_numbers_of_examples_tell_micro_from_mean():
    planted = {KEY: [1.0, 0.0, 0.0, 0.0]}
    few = pl.when(pl.col("length") > L + 1).then(pl.col("examples") // 4).otherwise(pl.col("examples"))
    told = one_line(score_table(made(planted).with_columns(few.alias("examples")), named(planted)))
    assert told["unseen"] == pytest.approx(0.25) and told["micro"] == pytest.approx(1 / 1.75)


# --- missing ---------------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_done_is_null_and_no_zero():
    planted = {KEY: 0.5, ("copy", "nope", 1): None, ("copy", "rope", 0): 0.25}
    table = score_table(made(planted), named(planted))
    assert table.height == 3
    gone = one_line(table, ("copy", "nope", 1))
    assert all(gone[name] is None for name in (*MEASURES, "examples", "correct", "chance", "noise_unseen"))


def test_a_run_that_was_asked_fewer_lengths_has_no_score():
    """Planted: the hardest length of one run is lost; a mean over the rest would put it ahead."""
    planted = {KEY: [1.0, 0.9, 0.8, 0.0], ("copy", "rope", 0): [1.0, 0.9, 0.8, 0.0]}
    rows = made(planted)
    lost = rows.filter(~((pl.col("run") == run(*KEY)) & (pl.col("length") == 2 * L)))
    table = score_table(lost, named(planted))
    assert one_line(table)["unseen"] is None and one_line(table)["lengths"] == 3 and one_line(table)["seen"] == 1.0
    assert one_line(table, ("copy", "rope", 0))["unseen"] == pytest.approx(0.675)
    seen_lost = rows.filter(~((pl.col("run") == run(*KEY)) & (pl.col("length") == 1)))
    assert one_line(score_table(seen_lost, named(planted)))["seen"] is None


def test_what_is_not_known_at_one_length_is_not_known_of_the_mean():
    planted = {KEY: [1.0, 0.8, 0.6, 0.5]}
    rows = made(planted, content=0.1, chance=0.1)
    at = pl.col("length") == 2 * L
    unknown = rows.with_columns(
        pl.when(at).then(None).otherwise(pl.col("correct_content")).alias("correct_content"),
        pl.when(at).then(None).otherwise(pl.col("chance")).alias("chance"),
    )
    told = one_line(score_table(unknown, named(planted)))
    assert told["content"] is None and told["corrected"] is None and told["chance"] is None
    assert told["unseen"] == pytest.approx(0.725)
    unseen_alone = one_line(score_table(rows.filter(~pl.col("seen")), named(planted)))
    assert unseen_alone["area"] is None and unseen_alone["seen"] is None  # L is not known


def test_other_checkpoints_and_evaluations_are_apart():
    planted = {KEY: 0.5}
    rows = pl.concat([made(planted), made({KEY: 0.75}, checkpoint="best")])
    rows = pl.concat([rows, made({KEY: 0.0}).with_columns(pl.lit("positions=offset").alias("evaluation"))])
    assert one_line(score_table(rows, named(planted)))["unseen"] == 0.5
    assert one_line(score_table(rows, named(planted), checkpoint="best"))["unseen"] == 0.75
    assert one_line(score_table(rows, named(planted), evaluation="positions=offset"))["unseen"] == 0.0
    assert one_line(score_table(rows, named(planted), checkpoint="25%"))["unseen"] is None


def test_far_and_development_lengths_are_in_no_mean():
    planted = {KEY: 1.0}
    rows = made(planted)
    more = rows.filter(pl.col("length") == 2 * L).with_columns(pl.lit(0, pl.Int64).alias("correct"))
    far = more.with_columns(pl.lit("test_far").alias("split"), pl.lit(16, pl.Int64).alias("length"))
    dev = more.with_columns(pl.lit("dev_unseen").alias("split"))
    table = score_table(pl.concat([rows, far, dev]), named(planted))
    assert one_line(table)["unseen"] == 1.0
    assert set(accuracy_table(pl.concat([rows, far, dev]), named(planted))["split"]) == {
        "test_seen",
        "test_unseen",
        "test_far",
    }


# --- learned ---------------------------------------------------------------------------------------------------------


def test_learned_is_the_median_seed_at_seen_lengths():
    keys = [("copy", "nope", seed) for seed in range(3)] + [("copy", "rope", seed) for seed in range(3)]
    planted = dict.fromkeys(keys, 0.5)
    seen = dict(zip(keys, (0.99, 0.96, 0.4, 0.99, 0.9, 0.9), strict=True))
    table = score_table(made(planted, seen=seen), named(planted))
    assert dict(learned_cells(table).select("encoding", "learned").iter_rows()) == {"nope": True, "rope": False}
    assert tasks_learned_by_all(table) == []
    assert tasks_learned_by_all(table.filter(pl.col("encoding") == "nope")) == ["copy"]


def test_the_seen_score_of_the_papers_protocol_is_on_validation():
    planted = {KEY: 0.5, ("sort", "nope", 0): 0.5}
    own = made({KEY: 0.5}, seen={KEY: 0.5})
    beside = made({KEY: 0.5}, seen_split="validation")  # a task with test_seen keeps to it
    paper = made({("sort", "nope", 0): 0.5}, seen={("sort", "nope", 0): 0.96}, seen_split="validation")
    rows = pl.concat([own, beside.filter(pl.col("seen")), paper])
    table = score_table(rows, named(planted))
    assert one_line(table)["seen"] == 0.5 and one_line(table, ("sort", "nope", 0))["seen"] == 0.96


def test_a_cell_without_seen_rows_is_neither_learned_nor_not():
    planted = {KEY: 0.5}
    table = score_table(made(planted).filter(~pl.col("seen")), named(planted))
    assert learned_cells(table)["learned"].to_list() == [None] and tasks_learned_by_all(table) == []


# --- labels ----------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_name_are_refused_until_the_axis_is_named():
    planted = {KEY: 0.5}
    twice = pl.concat([named(planted), named(planted).with_columns(pl.lit("other").alias("run"))])
    twice = twice.with_columns(positions=pl.Series(["consecutive", "randomized"]))
    with pytest.raises(SpecError, match="more than one run"):
        score_table(made(planted), twice)
    both = score_table(made(planted), join_axis_labels(twice, ["encoding", "positions"]))
    assert both["encoding"].to_list() == ["nope, consecutive", "nope, randomized"]
    with pytest.raises(SpecError, match="no axis"):
        join_axis_labels(twice, ["encoding", "colour"])


def test_labels_of_a_planned_study():
    from lengthwise.study.file import StudyFile
    from lengthwise.study.plan import Planned

    study = StudyFile.model_validate(
        {"name": "s", "question": "q", "vary": {"task": ["copy", "parity"], "encoding": ["nope", "rope"]}, "seeds": 2}
    )
    found = label_runs(*Planned(study).items({}))
    columns = ["run", "task", "encoding", "positions", "model", "training", "seed", "stage"]
    assert found.height == 8 and found.columns == columns
    assert set(found["encoding"]) == {"nope", "rope"} and found["run"].n_unique() == 8
    waiting = label_runs([], Planned(study).points)
    assert waiting["run"].null_count() == 8
    assert score_table(made({KEY: 0.5}), waiting)["unseen"].null_count() == 8


def test_the_order_of_rows_and_labels_changes_no_bit():
    planted = {
        ("copy", name, seed): [0.1 * seed, 0.3, 0.7 / (seed + 1), 0.123] for name in ("a", "b") for seed in range(3)
    }
    rows, said = made(planted, chance=0.1, content=0.05), named(planted)
    for seed in range(5):
        again = score_table(
            rows.sample(fraction=1, shuffle=True, seed=seed), said.sample(fraction=1, shuffle=True, seed=seed)
        )
        assert again.equals(score_table(rows, said))
