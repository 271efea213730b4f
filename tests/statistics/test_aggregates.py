"""Means over tasks and differences: by hand, whatever the order, and never a p for a single task."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lengthwise.spec import SpecError
from lengthwise.statistics.aggregates import encoding_differences, mean_scores_over_tasks, task_difference
from lengthwise.statistics.estimate import OTHER_TASKS, THESE_TASKS
from lengthwise.statistics.flips import _VALUES, EXACT, _signs, holm_correction, sign_flip_tests
from lengthwise.statistics.intervals import at_level, mean_over_families, mean_over_tasks, task_family
from lengthwise.statistics.outcomes import example_variance, read_outcomes
from lengthwise.statistics.table import score_table
from lengthwise.task import PUBLISHED
from tests.statistics.planted import L, made, named, predictions, run


def sign_flips(differences):
    return sign_flip_tests([differences])[0]


def table(values: dict[tuple[str, str, int], float | None]) -> pl.DataFrame:
    """Scores without rows behind them."""
    lines = [{"task": t, "encoding": e, "seed": s, "unseen": value} for (t, e, s), value in values.items()]
    return pl.DataFrame(
        lines, schema={"task": pl.String, "encoding": pl.String, "seed": pl.Int64, "unseen": pl.Float64}
    )


# --- the two intervals -----------------------------------------------------------------------------------------------


def test_these_tasks_by_hand():
    one = mean_over_tasks({"a": [0.4, 0.6], "b": [0.5, 0.7]})
    assert one.value == pytest.approx(0.55) and one.df == pytest.approx(2)
    assert one.level is None and one.words.startswith(THESE_TASKS) and "fewer than 6 tasks" in one.words
    six = mean_over_tasks({name: [0.4, 0.6] for name in "abcdef"})
    assert six.level == 0.95 and six.words == THESE_TASKS
    assert one.half == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(0.005)) and (one.n, one.unit) == (
        4,
        "(task, seed) pairs",
    )
    noisy = mean_over_tasks({"a": [0.4, 0.6], "b": [0.5, 0.7]}, {"a": 0.004, "b": 0.0}, "binomial")
    assert noisy.examples == "binomial" and one.examples == "not counted"
    total, df = 0.01 + 0.01 + 0.004, 0.024**2 / (2 * 0.01**2)
    assert noisy.df == pytest.approx(df) and noisy.half == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(total) / 2)


def test_one_task_is_the_plain_t_interval():
    values = [0.3, 0.5, 0.9, 0.4]
    one = mean_over_tasks({"a": values})
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (one.low, one.high) == (pytest.approx(low), pytest.approx(high))


def test_one_seed_anywhere_means_no_seed_interval():
    for values in ({"a": [0.4]}, {"a": [0.4, 0.6], "b": [0.5]}):
        one = mean_over_tasks(values)
        assert one.value is not None and one.low is None and one.level is None and "no seed interval" in one.words
    assert mean_over_tasks({}).value is None and mean_over_tasks({"a": [0.5], "b": []}).value is None


def test_seeds_that_all_agree_say_so():
    one = mean_over_tasks({"a": [1.0, 1.0], "b": [0.0, 0.0]})
    assert one.low == one.high == 0.5 and one.df is None and "agree" in one.words


def test_other_tasks_are_families():
    values = {"copy:variant=same": 0.9, "copy:variant=random": 0.7, "sort:variant=single": 0.4, "parity": 0.6}
    values |= {"scan": 0.5, "reverse": 0.7}
    one = mean_over_families(values)
    means = [0.8, 0.4, 0.6, 0.5, 0.7]
    assert one.value == pytest.approx(0.6) and (one.n, one.unit, one.words) == (5, "task families", OTHER_TASKS)
    assert one.half == pytest.approx(stats.t.ppf(0.975, 4) * np.std(means, ddof=1) / math.sqrt(5))
    assert mean_over_families(values, family_of=str).n == 6
    del values["scan"]
    few = mean_over_families(values)
    assert few.low is None and few.n == 4 and "fewer than 5 task families" in few.words


def test_families_may_have_equal_weights():
    """Two copies and a sort: a half for sort, a quarter for each copy; the variance has the squares of these."""
    values = {"copy:variant=same": [0.4, 0.6], "copy:variant=random": [0.8, 0.8], "sort": [0.1, 0.3]}
    one = mean_over_tasks(
        values, {"copy:variant=same": 0.0, "copy:variant=random": 0.0, "sort": 0.004}, family_of=task_family
    )
    assert one.value == pytest.approx(0.25 * 0.5 + 0.25 * 0.8 + 0.5 * 0.2)
    seeds, total = (0.01 / 16, 0.0, 0.01 / 4), 0.01 / 16 + 0.01 / 4 + 0.004 / 4
    df = total**2 / sum(part**2 for part in seeds)
    assert one.df == pytest.approx(df) and one.half == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(total))
    equal = mean_over_tasks(values, family_of=str)
    assert equal == mean_over_tasks(values)


def test_an_interval_at_another_level():
    one = mean_over_tasks({name: [0.4, 0.6, 0.5] for name in "abcdef"})
    wider = at_level(one, 0.99)
    assert wider.value == one.value and wider.level == 0.99
    assert wider.half == pytest.approx(one.half * stats.t.ppf(0.995, one.df) / stats.t.ppf(0.975, one.df))
    none = mean_over_tasks({"a": [0.4]})
    assert at_level(none, 0.99) == none


def test_the_published_variants_are_of_ten_families():
    assert len(PUBLISHED) == 17 and len({task_family(task) for task in PUBLISHED}) == 10
    assert task_family("count") == "count" and task_family("my_task.py:Mine:alpha=2") == "my_task.py:Mine"


# --- the crossed term ------------------------------------------------------------------------------------------------


def test_the_crossed_term_by_hand():
    """Against the textbook's two-way analysis of variance."""
    dice = np.random.default_rng(0)
    for n, m in ((2, 5), (4, 30), (7, 11)):
        y = (dice.random((n, m)) < dice.random(m)).astype(float)
        seeds, items, all_of_it = y.mean(1, keepdims=True), y.mean(0, keepdims=True), y.mean()
        between = n * ((items - all_of_it) ** 2).sum() / (m - 1)
        both = ((y - seeds - items + all_of_it) ** 2).sum() / ((n - 1) * (m - 1))
        assert example_variance(y, [m]) == pytest.approx(max((between - both) / (n * m), 0))
    assert example_variance(np.array([[1.0, 0.0], [1.0, 0.0]]), [2]) == pytest.approx(0.25)
    assert (
        example_variance(np.array([[1.0, 0.0], [0.0, 1.0]]), [2]) == 0
    )  # all is between seed and example: nothing is left
    assert example_variance(np.array([[1.0, 0.0, 1.0, 1.0]]), [4]) == pytest.approx(0.25 / 4)  # one seed: all of it


def test_lengths_have_each_their_own_examples():
    dice = np.random.default_rng(1)
    first, second = ((dice.random((3, m)) < dice.random(m).round() * 0.8 + 0.1).astype(float) for m in (6, 20))
    whole = example_variance(np.hstack([first, second]), [6, 20])
    apart = []
    for part in (first, second):
        n, m = part.shape
        between = n * part.mean(0).var() * m / (m - 1)
        both = ((part - part.mean(1, keepdims=True) - part.mean(0) + part.mean()) ** 2).sum() / ((n - 1) * (m - 1))
        apart.append((between - both) / (n * m))
    assert whole == pytest.approx(sum(apart) / 4) and min(apart) > 0


@pytest.fixture
def answered():
    """A study with every outcome known: two encodings that find the same examples hard."""
    dice, right, planted = np.random.default_rng(2), {}, {}
    for task in ("copy", "sort", "parity"):
        hard = {length: dice.random(40) for length in range(L + 1, 2 * L + 1)}
        for encoding, skill in (("nope", 0.7), ("rope", 0.4)):
            for seed in range(4):
                own = {length: z < skill + dice.normal(0, 0.1) for length, z in hard.items()}
                right[run(task, encoding, seed)] = own
                planted[task, encoding, seed] = [float(one.mean()) for one in own.values()]
    return planted, right


def test_outcomes_narrow_the_interval_and_say_so(answered):
    planted, right = answered
    told, found = score_table(made(planted, examples=40), named(planted)), read_outcomes(predictions(right))
    for name, one in mean_scores_over_tasks(told, outcomes=found).items():
        without = mean_scores_over_tasks(told)[name]
        assert (one.seeds.examples, without.seeds.examples) == ("crossed", "binomial") and one.value == without.value
    (one,), (without,) = encoding_differences(told, outcomes=found), encoding_differences(told)
    assert (one.one, one.other, one.seeds.examples) == (
        "nope",
        "rope",
        "crossed",
    ) and one.seeds.half < without.seeds.half
    noise, by_seed = {}, {}
    for task in ("copy", "sort", "parity"):
        whole = {
            name: np.array([np.hstack(list(right[run(task, name, seed)].values())) for seed in range(4)], dtype=float)
            for name in ("nope", "rope")
        }
        apart = whole["nope"] - whole["rope"]
        noise[task], by_seed[task] = float(example_variance(apart, [40] * L)), apart.mean(axis=1).tolist()
    wanted = mean_over_tasks(by_seed, noise, "crossed")
    assert one.seeds.half == pytest.approx(wanted.half)


def test_outcomes_of_another_evaluation_are_refused(answered):
    planted, right = answered
    told = score_table(made(planted, examples=40), named(planted))
    name = run("copy", "nope", 0)
    wrong = {**right, name: {length: ~one for length, one in right[name].items()}}
    with pytest.raises(SpecError, match="two evaluations"):
        mean_scores_over_tasks(told, outcomes=read_outcomes(predictions(wrong)))


def test_some_of_the_predictions_are_refused_and_none_fall_back(answered):
    planted, right = answered
    told, lines = score_table(made(planted, examples=40), named(planted)), predictions(right)
    with pytest.raises(SpecError, match="not all there"):
        read_outcomes(lines.filter(pl.col("kind") != "right"))
    with pytest.raises(SpecError, match="not all there"):
        read_outcomes(pl.concat([lines, lines.head(1)]))
    only_nope = read_outcomes(lines.filter(pl.col("run").str.contains("nope")))
    found = mean_scores_over_tasks(told, outcomes=only_nope)
    assert found["nope"].seeds.examples == "crossed" and found["rope"].seeds.examples == "binomial"


def test_outcomes_are_read_from_what_an_examination_stores():
    """A model that is right on some: what its predictions say is what its rows say."""
    import torch

    from lengthwise.evaluation.cases import evaluation_cases
    from lengthwise.evaluation.result import evaluate_decoder
    from lengthwise.task import build_task

    task = build_task("parity")
    places = [("test_unseen", length) for length in (17, 20)]
    first = evaluation_cases(task, *places[0])[0]
    *_, last = first.ids[: first.prompt]  # what asks for the answer
    said, end = first.answer

    def model(ids_BT, lengths_B):  # the same answer to all, and then the end
        wanted_BT = torch.where(ids_BT == last, said, end)
        return torch.nn.functional.one_hot(wanted_BT, len(task.vocabulary)).float()

    seen = evaluate_decoder(model, task, splits=places, labels={"run": "r"})
    lines = seen.predictions.with_columns(pl.lit("r").alias("run"))
    found = read_outcomes(lines)
    shares = seen.rows.sort("length").select(pl.col("correct") / pl.col("examples")).to_series().to_list()
    assert found.lengths["r"] == tuple(seen.rows.sort("length").select("length", "examples").iter_rows())
    assert found.mean("r") == pytest.approx(np.mean(shares)) and 0 < np.mean(shares) < 1


# --- encodings -------------------------------------------------------------------------------------------------------


def test_a_task_that_one_encoding_lacks_is_left_out_of_all_and_listed():
    values = {(t, e, s): 0.5 for t in ("copy", "sort") for e in ("a", "b") for s in range(3)}
    values |= {("sort", "b", s): None for s in range(3)} | {("copy", "a", 1): None, ("copy", "a", 2): 0.8}
    found = mean_scores_over_tasks(table(values))
    assert found["a"].value == pytest.approx(0.65) and set(found["a"].by_task) == {"copy"} == set(found["b"].by_task)
    assert found["a"].left_out == ("sort",) and found["a"].missing == (("copy", 1),) and found["a"].seeds.n == 2
    assert len(found["b"].missing) == 3


def test_differences_are_paired_by_task_and_seed():
    """The seed decides everything, the encoding adds .1: paired, nothing of the seeds' spread is left."""
    values = {
        (t, e, s): 0.2 * s + add for t in ("copy", "sort") for e, add in (("a", 0.1), ("b", 0.0)) for s in range(4)
    }
    (one,) = encoding_differences(table(values))
    assert (one.one, one.other) == ("a", "b") and one.seeds.value == pytest.approx(0.1) and one.seeds.half < 1e-9
    values["copy", "b", 3] = None
    (one,) = encoding_differences(table(values))
    assert one.seeds.n == 7 and one.missing == (("copy", 3),) and one.seeds.value == pytest.approx(0.1)
    (turned,) = encoding_differences(table(values), pairs=[("b", "a")])
    assert turned.seeds.value == pytest.approx(-0.1) and turned.test == one.test


def test_settled_takes_the_interval_and_the_corrected_test():
    dice = np.random.default_rng(3)
    values = {
        (t, e, s): float(add + dice.normal(0, 0.05))
        for t in ("copy", "sort", "lego", "scan")
        for e, add in (("a", 0.5), ("b", 0.3), ("c", 0.29))
        for s in range(5)
    }
    found = {(one.one, one.other): one for one in encoding_differences(table(values))}
    assert found["a", "b"].settled and "settled for these tasks" in found["a", "b"].verdict_text
    close = found.get(("b", "c")) or found["c", "b"]
    assert not close.settled and close.verdict_text.startswith("not settled for these tasks")
    assert all(one.corrected >= one.test.p for one in found.values())
    two_pairs = {(t, e, 0): 0.9 if e == "a" else 0.1 for t in ("copy", "sort") for e in ("a", "b")}
    (few,) = encoding_differences(table(two_pairs))
    assert not few.settled and few.test.p == 0.5


def test_a_single_task_has_an_interval_and_settled_but_no_p():
    values = {("copy", e, s): v for e, vs in (("a", (0.9, 0.8, 0.7)), ("b", (0.5, 0.5, 0.4))) for s, v in enumerate(vs)}
    one = task_difference(table(values), "copy", "a", "b")
    assert one.median.value == pytest.approx(0.3) and (one.median.low, one.median.high) == (
        pytest.approx(0.3),
        pytest.approx(0.4),
    )
    assert not one.settled and one.verdict_text == "all 3 seeds agree; the smallest difference is .30"
    floor = {("copy", e, s): 0.0 for e in ("a", "b") for s in range(3)}
    assert task_difference(table(floor), "copy", "a", "b").verdict_text == "no difference in any seed"
    more = {("copy", e, s): 0.8 + 0.01 * s if e == "a" else 0.1 for e in ("a", "b") for s in range(5)}
    assert task_difference(table(more), "copy", "a", "b").settled
    assert not {"p", "test", "corrected"} & set(dir(one))
    (alone,) = encoding_differences(table(values))
    assert alone.test is None and alone.corrected is None and not alone.settled
    with pytest.raises(SpecError, match="two tasks"):
        sign_flips({"copy": [0.4, 0.3, 0.3]})
    with pytest.raises(SpecError, match="two tasks"):
        sign_flips({"copy": [0.4, 0.3, 0.3], "sort": []})


# --- sign flips ------------------------------------------------------------------------------------------------------


def test_sign_flips_by_hand():
    assert sign_flips({"a": [0.1, 0.2, 0.3], "b": [0.1, 0.2, 0.3]}).p == 2 / 64
    values = {"a": [0.3, -0.1, 0.2], "b": [0.05, 0.4]}
    weighted = [v / len(own) for own in values.values() for v in own]
    seen = abs(sum(weighted))
    hits = sum(
        abs(sum(s * v for s, v in zip(signs, weighted, strict=True))) >= seen - 1e-12
        for signs in itertools.product((1, -1), repeat=5)
    )
    found = sign_flips(values)
    assert found.p == hits / 32 and found.exact and found.patterns == 32


def test_drawn_patterns_agree_with_all_of_them(monkeypatch):
    from lengthwise.statistics import flips

    dice = np.random.default_rng(4)
    values = {str(task): dice.normal(0.25, 0.5, 3).tolist() for task in range(4)}
    exact = sign_flips(values)
    monkeypatch.setattr(flips, "EXACT", 0)
    flips._signs.cache_clear()
    drawn = sign_flips(values)
    flips._signs.cache_clear()
    assert not drawn.exact and abs(drawn.p - exact.p) < 4 * math.sqrt(exact.p / flips.DRAWN)


def test_under_no_difference_the_p_is_uniform():
    dice = np.random.default_rng(5)
    ps = [
        sign_flips({"a": dice.normal(0, 1, 4).tolist(), "b": dice.standard_cauchy(4).tolist()}).p for _ in range(2000)
    ]
    for share in (0.05, 0.2, 0.5):
        assert np.mean(np.array(ps) <= share) <= share + 3 * math.sqrt(share / 2000)


def test_many_pairs_are_drawn_in_bounded_memory():
    dice = np.random.default_rng(6)
    found = sign_flips({str(task): dice.normal(0.0, 1, 10).tolist() for task in range(60)})
    assert found.n == 600 > EXACT and found.patterns == 20_000 and not found.exact
    assert _signs(600, 0, _VALUES // 600).nbytes <= 40e6
    assert 0 < found.p <= 1


def test_holm():
    assert holm_correction([0.01, 0.04, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]
    assert holm_correction([0.5, 0.9]) == [1.0, 1.0] and holm_correction([]) == []


# --- whatever the order ----------------------------------------------------------------------------------------------

SCORES = st.dictionaries(
    st.tuples(
        st.sampled_from(["copy", "sort", "lego:x=1", "copy:variant=same"]), st.sampled_from("abc"), st.integers(0, 4)
    ),
    st.none() | st.floats(0, 1),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.integers(0, 1000))
def test_listing_order_changes_no_number(values, seed):
    one = table(values)
    other = one.sample(fraction=1, shuffle=True, seed=seed)
    assert mean_scores_over_tasks(one) == mean_scores_over_tasks(other)
    assert encoding_differences(one) == encoding_differences(other)
    assert encoding_differences(one, encodings=["a", "b"]) == encoding_differences(other, encodings=["b", "a"])
