"""Claims are decided by their committed rule: on planted rows each verdict can be had."""

from dataclasses import replace

import polars as pl
import pytest

from lengthwise.folder import last_commit_date, shipped_file_path
from lengthwise.reporting.analysis_claims import attention_estimates, scratchpad_estimates
from lengthwise.reporting.claims import COMPUTED, Claim, Rule, StudyResults, judge_claim, read_claims, sign_changes
from lengthwise.reporting.numbers import compute_numbers
from lengthwise.spec import SpecError
from lengthwise.statistics.estimate import Estimate
from lengthwise.study.add import find_committed_file
from lengthwise.study.file import StudyFile
from lengthwise.study.reading import shipped_studies
from tests.reporting.made import FIVE, TASKS, findings, study

SIX = [*TASKS, "copy:longest=8:variant=random", "copy:longest=8:variant=replace", "reverse:longest=8"]
FOUND = findings(study(SIX, FIVE, seeds=5))


def results(found) -> dict[str, StudyResults]:
    return {"made": StudyResults(found, compute_numbers(found))}


HERE = results(FOUND)


def with_scores(change) -> dict[str, StudyResults]:
    """The results with other scores; `change` gets the table of scores and returns another one."""
    return {"made": StudyResults(FOUND, replace(HERE["made"].numbers, scores=change(HERE["made"].numbers.scores)))}


def claim(
    measure="mean_unseen", encodings=("nope",), against=("sinusoidal",), tasks="all", settings=(), **rule
) -> Claim:
    return Claim.model_validate(
        {
            "id": "X",
            "claim": "one is ahead",
            "source": "nowhere",
            "published": "-",
            "study": "made",
            "measure": measure,
            "encodings": list(encodings),
            "against": list(against),
            "tasks": tasks,
            "settings": list(settings),
            "rule": rule or {"above": 0},
        }
    )


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (claim(), "holds"),
        (claim(encodings=["sinusoidal"], against=["nope"]), "does not hold"),
        (claim(encodings=["nope"], against=["t5", "sinusoidal"], above=0.3), "does not hold"),
        (claim(measure="mrr", encodings=["nope"], against=["sinusoidal"]), "holds"),
        (claim(measure="mrr", encodings=["sinusoidal"], against=["nope"], above=0), "does not hold"),
        (claim(measure="learned", encodings=["nope", "t5"], against=[]), "holds"),
        (claim(encodings=["nope", "alibi", "sinusoidal"], against=[], order=True), "holds"),
        (claim(encodings=["sinusoidal", "alibi", "nope"], against=[], order=True), "does not hold"),
        (claim(against=["alibi"], within=[-1, 1]), "holds"),
        (claim(encodings=["fire"]), "not tested here"),
        (claim(tasks=["addition"]), "not tested here"),
        (claim(measure="analysis"), "not tested here"),
        (claim(**{"not tested here": "no time"}), "not tested here"),
    ],
)
def test_each_verdict_can_be_had(made, word):
    found = judge_claim(made, HERE)
    assert found.word == word, found
    assert found.ours


def test_a_claim_about_all_tasks_is_not_judged_on_some():
    from lengthwise.study.plan import Planned

    made = study(TASKS, FIVE, seeds=3)
    some = [item for item in Planned(made).items({})[0] if item.point.task != TASKS[0]]
    found = findings(made, some)
    assert judge_claim(claim(), results(found)).ours == "only 2 of its 3 tasks are there"


def test_an_interval_across_the_bound_settles_nothing():
    across = Estimate(0.01, -0.05, 0.07, 0.95, 3, "seeds", "t", "words")
    assert Rule(above=0).interval_verdict(across) == 0 and Rule(within=[-1, 1]).interval_verdict(across) == 1
    alone = Estimate(0.5, None, None, None, 1, "seed", "t", "no seed interval")
    assert Rule(above=0).interval_verdict(alone) == 0
    one = findings(study(TASKS[:1], FIVE, seeds=1))
    assert judge_claim(claim(), results(one)).word == "not settled"


def test_below_six_tasks_an_interval_settles_nothing():
    few = findings(study(TASKS, FIVE, seeds=5))
    assert judge_claim(claim(), results(few)).word == "not settled"
    assert judge_claim(claim(), HERE).word == "holds"


def test_below_six_tasks_agreement_of_all_seeds_settles_nothing_either():
    agreed = Estimate(1.0, 1.0, 1.0, None, 2, "tasks", "t", "words")
    assert Rule(above=0).interval_verdict(agreed) == 0
    assert Rule(above=0).interval_verdict(replace(agreed, recipe=COMPUTED)) == 1


def test_a_claim_with_diverged_runs_is_not_settled():
    lost = (pl.col("encoding") == "nope") & (pl.col("seed") > 0)
    some = with_scores(lambda table: table.with_columns(diverged=pl.when(lost).then(5)))
    found = judge_claim(claim(), some)
    assert (found.word, found.ours) == ("not settled", "24 of its runs diverged, and the means leave them out")
    assert judge_claim(claim(encodings=["t5"]), some).word == "holds"


@pytest.mark.parametrize("against", [["sinusoidal"], []])
def test_a_claim_is_judged_on_all_of_its_tasks_or_not_at_all(against):
    lost = (pl.col("encoding") == "nope") & (pl.col("task") == TASKS[1])
    some = with_scores(lambda table: table.with_columns(unseen=pl.when(lost).then(None).otherwise("unseen")))
    found = judge_claim(claim(encodings=["nope", "t5"], against=against, above=-1), some)
    assert found.word == "not tested here" and "sort" in found.ours


def test_a_cell_that_was_not_run_is_not_one_that_did_not_learn():
    none = (pl.col("encoding") == "t5") & (pl.col("task") == TASKS[1])
    some = with_scores(lambda table: table.with_columns(learned=pl.when(none).then(None).otherwise("learned")))
    found = judge_claim(claim(measure="learned", encodings=["nope", "t5"], against=[]), some)
    assert (found.word, found.ours) == ("not tested here", "not run: T5 on sort")


def test_a_claim_that_only_one_weighting_supports_depends_on_it():
    """Three of six tasks are copies: ahead on them alone, T5 is ahead by tasks, and not by families."""
    mixed = with_scores(
        lambda table: table.with_columns(
            unseen=pl.when(pl.col("encoding") != "t5")
            .then(0.5)
            .when(pl.col("task").str.contains("copy"))
            .then(0.75)
            .otherwise(0.3)
        ).with_columns(noise_unseen=pl.lit(1e-6))
    )
    made = judge_claim(claim(encodings=["t5"], against=["nope"]), mixed)
    assert made.word == "depends on the weighting" and "families equal" in made.ours


def test_one_pair_of_many_refutes_only_after_holm():
    """An interval that lies below 0 at 95 % and not at 98.75 %, among four pairs."""
    border = Estimate(-0.1, -0.19, -0.01, 0.95, 30, "pairs", "t", "words", df=20.0)
    above = Estimate(0.5, 0.4, 0.6, 0.95, 30, "pairs", "t", "words", df=20.0)
    alone = judge_claim(claim(measure="analysis"), None, {"X": [("a", border)]})
    many = judge_claim(claim(measure="analysis"), None, {"X": [("a", border), *(("b", above),) * 3]})
    assert (alone.word, many.word) == ("does not hold", "not settled")


def test_learned_is_judged_task_by_task():
    some = with_scores(
        lambda table: table.with_columns(
            learned=pl.col("learned") & ~((pl.col("encoding") == "t5") & (pl.col("task") == TASKS[1]))
        )
    )
    made = judge_claim(claim(measure="learned", encodings=["nope", "t5"], against=[]), some)
    assert made.word == "does not hold" and made.ours == "not learned in 1 of 12: T5 on sort"
    beside = judge_claim(claim(against=["t5"], above=-1), some)
    assert beside.word == "holds"  # learned or not, every task counts
    assert beside.more == ["on the 5 of 6 tasks that all of them learned: not settled"]  # fewer than six


def test_a_claim_that_turns_at_another_setting_holds_at_this_one_only():
    varied = study(TASKS[:1], ["nope", "sinusoidal"], seeds=3)
    varied = varied.model_copy(
        update={"name": "scale", "base": varied.base.model_copy(update={"model": "laptop:sigma=0.02"})}
    )
    found = findings(varied)
    same = {**HERE, "scale": StudyResults(found, compute_numbers(found))}
    asked = claim(settings=["scale"])
    kept = judge_claim(asked, same)
    assert kept.word == "holds" and kept.more[-1] == "other settings (scale): no sign changes"
    numbers = compute_numbers(found)
    flipped = numbers.scores.with_columns(unseen=1 - pl.col("unseen"))
    turned = judge_claim(asked, {**HERE, "scale": StudyResults(found, replace(numbers, scores=flipped))})
    assert turned.word == "holds at this setting only" and "laptop:sigma=0.02" in turned.more[-1]
    assert (
        judge_claim(asked, HERE).more[-1] == "other settings (scale): not judged on this page; type lengthwise claims"
    )
    incomplete = flipped.filter((pl.col("seed") < 2) | (pl.col("encoding") == "nope"))
    part = judge_claim(asked, {**HERE, "scale": StudyResults(found, replace(numbers, scores=incomplete))})
    assert part.word == "holds"  # a planned seed may come out differently yet
    alone = replace(numbers, scores=numbers.scores.filter(pl.col("encoding") == "nope"))
    empty = judge_claim(asked, {**HERE, "scale": StudyResults(found, alone)})
    assert empty.more[-1] == "other settings (scale): nothing to compare"


def test_runs_of_the_main_study_are_no_other_setting():
    """Seeds 0 to 2 alone are against the claim, and they are also runs of the other study."""
    scores = HERE["made"].numbers.scores
    early = (pl.col("seed") < 3) & (pl.col("task") == TASKS[0]) & (pl.col("encoding") == "nope")
    against = pl.when(early).then(0.0).otherwise(pl.col("unseen")).alias("unseen")
    lower = pl.when(early).then(0.0).otherwise(1.0)
    made = scores.with_columns(pl.when(pl.col("task") == TASKS[0]).then(lower).otherwise(against).alias("unseen"))
    made = made.with_columns(pl.when(pl.col("encoding") == "sinusoidal").then(0.1).otherwise("unseen").alias("unseen"))
    main = StudyResults(FOUND, replace(HERE["made"].numbers, scores=made))
    items = [item for item in FOUND.items if item.point.seed < 3 and item.point.task == TASKS[0]]
    other = StudyResults(replace(FOUND, items=items, wanted=items), main.numbers)
    assert sign_changes(claim(), main, other) == (0, [])
    renamed = [replace(item, key=f"{item.key}-other") for item in items]
    moved = made.with_columns((pl.col("run") + "-other").alias("run"))
    apart = StudyResults(replace(FOUND, items=renamed, wanted=renamed), replace(main.numbers, scores=moved))
    compared, found = sign_changes(claim(), main, apart)
    assert compared == 1 and len(found) == 1


def test_claims_about_attention_are_judged_from_the_committed_analysis(tmp_path):
    folder = find_committed_file("attention")
    made = attention_estimates(folder, read_claims())
    assert set(made) == {"C4", "C6", "C6-alibi"} and len(made["C4"]) == 2 * 3  # two tasks, three encodings
    for one in read_claims():
        if one.id in made:
            assert judge_claim(one, None, made).word in {"holds", "does not hold", "not settled"}
    assert attention_estimates(tmp_path, read_claims()) == {}


def test_a_task_is_meant_by_its_name_and_the_options_that_are_written():
    made = claim(tasks=["sort", "copy:variant=same"])
    assert made.about("sort:longest=6") and made.about("copy:longest=8:variant=same")
    assert not made.about("copy:longest=8:variant=random") and not made.about("parity")


def test_the_claims_that_ship_are_sound():
    made = read_claims()
    assert {f"C{n}" for n in range(1, 8)} <= {one.id for one in made} and len({one.id for one in made}) == len(made)
    for one in made:
        assert one.study is None or one.study in shipped_studies()
        assert judge_claim(one).word == "not tested here"


def test_a_rule_is_one_rule(tmp_path):
    with pytest.raises(ValueError, match="exactly one of: above"):
        Rule(above=0, below=1)
    file = tmp_path / "claims.yaml"
    file.write_text("claims:\n  - {id: a}\n")
    with pytest.raises(SpecError, match=r"claims.yaml: claim"):
        read_claims(file)


def test_the_day_of_a_rule_is_known_in_a_checkout(tmp_path):
    assert last_commit_date(tmp_path / "no") is None
    assert last_commit_date(shipped_file_path("claims.yaml")) is None or last_commit_date(
        shipped_file_path("claims.yaml")
    ).startswith("20")


@pytest.fixture(scope="module")
def pads() -> StudyResults:
    return results(findings(StudyFile.read("laptop-scratchpads")))["made"]


@pytest.mark.parametrize(
    ("full", "none", "addition", "parity"),
    [
        (0.5, 0.2, "holds", "does not hold"),
        (0.2, 0.5, "does not hold", "holds"),
        (0.09, 0.01, "at the floor", "at the floor"),
    ],
)
def test_scratchpads_are_compared_encoding_by_encoding_unless_all_are_at_the_floor(pads, full, none, addition, parity):
    scores, listed = pads.numbers.scores, [one for one in read_claims() if one.id.startswith("C5")]
    made = [
        (full if "scratchpad=full" in task else 0.0 if "scratchpad=minimal" in task else none) + 0.001 * (seed % 3)
        for task, seed in scores.select("task", "seed").iter_rows()
    ]
    above, parity_task = pl.Series("corrected", made) * 1.0, pl.col("task").str.contains("parity")
    scores = scores.with_columns(above, pl.when(parity_task).then(0.5 + above / 2).otherwise(above).alias("unseen"))
    planted = StudyResults(pads.findings, replace(pads.numbers, scores=scores))
    estimates = scratchpad_estimates(planted, listed)
    assert [judge_claim(one, {}, estimates).word for one in listed] == [addition, parity]
    assert all(len(found) == (3 if addition != "at the floor" else 0) for found in estimates.values())
    lacking = replace(pads.numbers, scores=planted.numbers.scores.filter(~pl.col("task").str.contains("full")))
    assert not scratchpad_estimates(StudyResults(pads.findings, lacking), listed)
