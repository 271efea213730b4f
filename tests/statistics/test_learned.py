"""One definition of learned, by hand: the mean, the test at each length, chance, and how many runs make a cell."""

import polars as pl
import pytest

from lengthwise.reporting.page import Page
from lengthwise.statistics.learned import MEAN, RULE, WEAK, counts_by_length, enough_runs_learned, learned_runs
from lengthwise.statistics.reach import run_scores
from tests.reporting.made import TASKS, findings, study


def rows(*cells: tuple[int, int], chance: float = 0.0) -> pl.DataFrame:
    """Seen lengths 1, 2, ... of one run: (correct, examples) of each."""
    return pl.DataFrame(
        {
            "run": ["r"] * len(cells),
            "evaluation": ["as trained"] * len(cells),
            "checkpoint": ["last"] * len(cells),
            "split": ["test_seen"] * len(cells),
            "seen": [True] * len(cells),
            "length": list(range(1, len(cells) + 1)),
            "examples": [examples for _, examples in cells],
            "correct": [correct for correct, _ in cells],
            "chance": [chance] * len(cells),
        }
    )


def learned(table: pl.DataFrame) -> bool:
    return learned_runs(counts_by_length(table))["learned"].item()


def test_the_mean_and_each_length_decide():
    assert learned(rows((256, 256), (256, 256)))
    assert learned(rows((256, 256), (231, 256))), "231 of 256 is .902, and the mean .951"
    assert not learned(rows((240, 256), (240, 256))), "the mean is .9375"
    # 1.0 five times and .77 once: the mean is .96, but 197 of 256 is far below .9.
    assert not learned(rows(*[(256, 256)] * 5, (197, 256)))


def test_a_length_fails_only_where_it_is_significantly_below():
    from scipy.special import bdtr

    few = [(24, 24)] * 15
    assert bdtr(20, 24, 0.9) > 0.05 / 16, "20 of 24 may be .9 by chance"
    assert learned(rows(*few, (20, 24))) and not learned(rows(*few, (14, 24)))
    # The same share of more examples is no chance: 83 % of 256.
    assert not learned(rows(*[(256, 256)] * 15, (213, 256)))


def test_accuracy_is_counted_from_chance_where_guessing_gets_more_than_a_tenth():
    assert not learned(rows((243, 256), (243, 256), chance=0.5)), ".949 is .9 of the way from .5"
    assert learned(rows((250, 256), (251, 256), chance=0.5))
    assert learned(rows((250, 256), (251, 256), chance=0.05))


def test_exhausted_lengths_do_not_count_and_weak_ones_are_named():
    table = counts_by_length(rows((0, 7), (40, 40), (256, 256)))
    assert table["length"].to_list() == [2, 3]
    (line,) = learned_runs(table).to_dicts()
    assert line == {"run": "r", "learned": True, "weak": [2]} and WEAK == 50


@pytest.mark.parametrize(
    ("runs", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5), (9, 8), (10, 8), (20, 16)]
)
def test_a_cell_is_learned_by_enough_of_its_runs(runs, needed):
    assert enough_runs_learned(needed, runs) and not enough_runs_learned(needed - 1, runs)


def test_the_page_has_one_definition_and_prints_it():
    page = Page(findings(study(TASKS[:1])))
    assert RULE in page.html().replace("&#39;", "'") and f"{MEAN:.2f}".lstrip("0") in RULE
    lines = run_scores(page.found.rows)
    by_hand = dict(lines.select("run", "learned").iter_rows())
    by_scores = dict(page.numbers.scores.select("run", "learned").iter_rows())
    assert by_hand == by_scores, "reach, ranks and scores say the same of every run"
    reached = {run: length is not None for run, length in lines.select("run", "reach").iter_rows()}
    assert reached == by_hand
