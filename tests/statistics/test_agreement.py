"""Does one table of scores predict another? On tables whose answer is known."""

import numpy as np
import pytest

from lengthwise.publication.accuracy import UNSEEN
from lengthwise.reporting.agreement import paired_values
from lengthwise.reporting.numbers import compute_numbers
from lengthwise.statistics.agreement import agreement, kendall, spearman
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from tests.reporting.made import findings

NAMES = ["nope", "t5", "alibi", "rope", "sinusoidal"]
TASKS = ["copy:variant=same", "copy:variant=random", "reverse", "sort", "summation", "parity", "scan", "addition"]


def table(rule):
    return {task: {name: rule(t, n) for n, name in enumerate(NAMES)} for t, task in enumerate(TASKS)}


def test_the_same_order_in_every_task_agrees_fully():
    theirs = table(lambda t, n: 0.9 - 0.2 * n + 0.01 * t)
    found = agreement(table(lambda t, n: 0.8 - 0.01 * n), theirs)
    assert found.tau.value == pytest.approx(1) and found.tau.n == 7  # families
    assert (found.clear_pairs, found.same_sign) == (8 * 10, 8 * 10)
    turned = agreement(table(lambda t, n: 0.1 + 0.1 * n), theirs)
    assert turned.tau.value == pytest.approx(-1) and turned.same_sign == 0


def test_families_weigh_equally_and_tasks_without_order_are_left_out():
    theirs = table(lambda t, n: 0.9 - 0.2 * n)
    ours = table(lambda t, n: 0.5 if t == 7 else (0.9 - 0.1 * n) * (1 if t > 1 else -1))
    found = agreement(ours, theirs)
    assert found.without_order == ("addition",) and set(found.taus) == set(TASKS) - {"addition"}
    assert found.tau.value == pytest.approx((-1 + 5) / 6), "both variants of copy are one family"


def test_small_published_gaps_are_not_asked_about():
    theirs = table(lambda t, n: 0.5 + 0.02 * n)
    assert agreement(table(lambda t, n: 0.1 * n), theirs).clear_pairs == 0


def test_means_alone_explain_what_is_pooled():
    """Easy tasks and good encodings correlate although no order within a task is predicted."""
    rng = np.random.Generator(np.random.Philox(key=1))
    theirs = table(lambda t, n: t / 10)
    noise = rng.random((len(TASKS), len(NAMES)))
    found = agreement(table(lambda t, n: t / 10 + 0.02 * noise[t, n]), table(lambda t, n: t / 10 + 0.02 * noise[t, -n]))
    assert found.pooled > 0.9 and found.by_means > 0.9 and abs(found.tau.value) < 0.6
    assert agreement(theirs, {}).tau.value is None and agreement(theirs, {}).pooled is None


@pytest.mark.slow
def test_correlations_of_orders_are_those_of_scipy():
    from scipy.stats import kendalltau, spearmanr

    dice = np.random.default_rng(0)
    for size in (2, 3, 5, 40):
        for levels in (2, 4, 1000):  # few levels have many ties
            one, other = dice.integers(0, levels, size) / 7, dice.integers(0, levels, size) / 7
            if len({*one}) > 1 and len({*other}) > 1:
                assert kendall(one, other) == pytest.approx(kendalltau(one, other, variant="b").statistic, abs=1e-12)
                assert spearman(one, other) == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)


def test_rotary_is_compared_on_each_task_by_its_own_head_width():
    """The laptop's RoPE is the published Rotary in heads of 16, and not on addition, whose heads are 32 wide."""
    study = StudyFile.read("laptop")
    planned = Planned(study)
    items = [
        item
        for item in planned.runs_at_preset_lr(planned.points)
        if item.point.seed < 12 and item.point.task.startswith(("copy:longest=16", "addition"))
    ]
    found = findings(study, items)
    ours, published = paired_values(found, compute_numbers(found))
    (copying,) = [task for task in ours if task.startswith("copy")]
    (addition,) = [task for task in ours if task.startswith("addition")]
    assert "rope" in ours[copying] and "rope" not in ours[addition] and len(ours[addition]) == 4
    assert published[copying]["rope"] == UNSEEN["copy:variant=same"]["rope:fraction=0.25:interleaved=true"]
