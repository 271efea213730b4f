"""The verdicts on rotary frequencies follow the rules of the study file: planted curves give each of them."""

import math
from dataclasses import replace

import polars as pl
import pytest

from lengthwise.reporting.claims import StudyResults
from lengthwise.reporting.frequencies import ALL_PAIRS, frequency_curve, frequency_verdicts, period_of
from lengthwise.reporting.numbers import compute_numbers
from lengthwise.study.file import StudyFile
from tests.reporting.made import findings


@pytest.fixture(scope="module")
def both() -> list[StudyResults]:
    made = [findings(StudyFile.read(name)) for name in ("frequencies", "frequencies-lengths")]
    return [StudyResults(found, compute_numbers(found)) for found in made]


def planted(results: StudyResults, value) -> StudyResults:
    """The results with other scores: `value(encoding, L)`, a little different for each seed."""
    scores, trained = results.numbers.scores, results.findings.trained
    made = [
        value(name, trained[task][0]) + 0.001 * (seed % 3)
        for task, name, seed in scores.select("task", "encoding", "seed").iter_rows()
    ]
    learned = scores.with_columns(pl.Series("unseen", made), learned=pl.lit(value=True))
    return StudyResults(results.findings, replace(results.numbers, scores=learned))


def band(harm: float, moves: bool = True):
    """Harm where the period is near 2.5 training lengths (or near 40 tokens, if the band does not move)."""

    def value(name: str, longest: int) -> float:
        if name in {"nope", *ALL_PAIRS}:
            return 0.9
        if (period := period_of(name)) is None:
            return 0.0
        apart = math.log(period / (2.5 * longest if moves else 40))
        return 0.9 - harm * math.exp(-((apart / 1.6) ** 4))

    return value


def words(results, value, lengths=True) -> dict[str, str]:
    first, second = (planted(one, value) for one in results)
    return {one.name: one.word for one in frequency_verdicts(first, second if lengths else None)}


def test_the_period_of_one_pair():
    assert period_of("rope:fraction=0.125") == pytest.approx(2 * math.pi)
    assert period_of("rope:factor=10.0:fraction=0.125:scaling=linear") == pytest.approx(20 * math.pi)
    for other in ("nope", "rope", *ALL_PAIRS, "rope:fraction=0.25", "rope:fraction=0.125:theta=10.0", "rope,nope"):
        assert period_of(other) is None


def test_the_arms_of_the_study_are_known(both):
    names = both[0].findings.encodings
    assert set(ALL_PAIRS) <= set(names)
    periods = sorted(round(period) for name in names if (period := period_of(name)))
    assert periods == [6, 11, 20, 35, 63, 199, 628, 6283]


def test_a_band_of_harm_gives_the_predicted_verdicts(both):
    found = words(both, band(0.85))
    assert found["P2"] == "holds" and found["P3"] == "holds"
    assert found["unseen angles"] == "refuted" and found["dose"] == "refuted"


def test_no_harm_refutes_the_second_prediction_and_no_rival(both):
    found = words(both, lambda name, longest: 0.9)
    assert found["P1"] == "holds" and found["P2"] == "does not hold"
    assert found["unseen angles"] == found["dose"] == "not refuted"


def test_unseen_angles_are_judged_on_copy_same_alone(both):
    """Period 20 does harm on copy random alone, where the prediction was not made."""

    def value(name: str, longest: int) -> float:
        return 0.1 if longest == 10 and 15 < (period_of(name) or 0) < 25 else 0.9

    assert words(both, value)["unseen angles"] == "not refuted"


def test_a_band_that_stays_refutes_the_third(both):
    assert words(both, band(0.85, moves=False))["P3"] == "does not hold"
    assert words(both, band(0.85), lengths=False)["P3"] == "not tested here"


def test_harm_everywhere_refutes_the_first(both):
    assert words(both, lambda name, longest: 0.9 if name == "nope" else 0.1)["P1"] == "does not hold"


def test_where_nope_has_nothing_to_lose_nothing_is_decided(both):
    assert set(words(both, lambda name, longest: 0.1).values()) == {"not tested here"}


def test_the_curve_has_every_run(both):
    drawing = frequency_curve(*both)
    assert drawing.data.height == 180 + 42 and "<svg" in drawing.svg()
