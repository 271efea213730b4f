"""Claims are decided by their committed rule: on planted rows each verdict can be had."""

import pytest

from lengthwise.reporting.claims import Claim, Rule, judge_claim, last_commit_date, read_claims
from lengthwise.reporting.numbers import compute_numbers
from lengthwise.spec import SpecError
from lengthwise.statistics.estimate import Estimate
from lengthwise.study.reading import recipes, shipped_file_path
from tests.reporting.made import FIVE, TASKS, findings, study

FOUND = findings(study(TASKS, FIVE, seeds=5))
HERE = compute_numbers(FOUND)


def claim(measure="mean_unseen", encodings=("nope",), against=("sinusoidal",), tasks="all", **rule) -> Claim:
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
        (claim(measure="seen", against=[], above=0.9), "holds"),
        (claim(measure="seen", encodings=["sinusoidal"], against=[], above=0.999), "does not hold"),
        (claim(encodings=["nope", "alibi", "sinusoidal"], against=[], order=True), "holds"),
        (claim(encodings=["sinusoidal", "alibi", "nope"], against=[], order=True), "does not hold"),
        (claim(against=["alibi"], within=[-1, 1]), "holds"),
        (claim(encodings=["rope"]), "not tested here"),
        (claim(tasks=["addition"]), "not tested here"),
        (claim(measure="analysis"), "not tested here"),
        (claim(**{"not tested here": "no time"}), "not tested here"),
    ],
)
def test_each_verdict_can_be_had(made, word):
    found = judge_claim(made, FOUND, HERE)
    assert found.word == word, found
    assert found.ours


def test_a_claim_about_all_tasks_is_not_judged_on_some():
    from lengthwise.study.plan import Planned

    made = study(TASKS, FIVE, seeds=3)
    some = [item for item in Planned(made).items({})[0] if item.point.task != TASKS[0]]
    found = findings(made, some)
    assert judge_claim(claim(), found, compute_numbers(found)).ours == "only 2 of its 3 tasks are there"


def test_an_interval_across_the_bound_settles_nothing():
    across = Estimate(0.01, -0.05, 0.07, 0.95, 3, "seeds", "t", "words")
    assert Rule(above=0).interval_verdict(across) == 0 and Rule(within=[-1, 1]).interval_verdict(across) == 1
    alone = Estimate(0.5, None, None, None, 1, "seed", "t", "no seed interval")
    assert Rule(above=0).interval_verdict(alone) == 0
    one = findings(study(TASKS[:1], FIVE, seeds=1))
    assert judge_claim(claim(), one, compute_numbers(one)).word == "not settled"


def test_a_task_is_meant_by_its_name_and_the_options_that_are_written():
    made = claim(tasks=["sort", "copy:variant=same"])
    assert made.about("sort:longest=6") and made.about("copy:longest=8:variant=same")
    assert not made.about("copy:longest=8:variant=random") and not made.about("parity")


def test_the_claims_that_ship_are_sound():
    made = read_claims()
    assert {f"C{n}" for n in range(1, 8)} <= {one.id for one in made} and len({one.id for one in made}) == len(made)
    for one in made:
        assert one.study is None or one.study in recipes()
        assert judge_claim(one, None, None).word == "not tested here"


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
