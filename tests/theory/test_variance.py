"""Chi et al.'s lemmas: what was published, what is right, and what a real decoder does at initialisation."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.spec import SpecError
from lengthwise.theory.lemmas import coordinate_rows, powers_of_two_up_to
from lengthwise.theory.variance import (
    Initialisation,
    lemma1_variance,
    lemma2_variance,
    lemma3_variance,
    logits_and_attention_output,
    mean_with_interval,
    power_law_exponent,
    second_moments_at_init,
    tapped_logits_and_attention_output,
)

CHI = Initialisation(768, 12, 0.02)
STARTS = [(CHI, 50), (Initialisation(256, 4, 0.05), 200), (Initialisation(128, 8, 0.06), 250)]


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_sampled_rows_are_those_of_the_decoder(mask):
    """The quick path is the decoder's own forward pass, associated otherwise."""
    start = Initialisation(48, 4, 0.15)
    decoder, x_RTD = start.decoder(3, mask).double(), start.draw(3, 2, 17).double()
    with torch.no_grad():
        quick, whole = (
            logits_and_attention_output(decoder, x_RTD, [0, 5, 16]),
            tapped_logits_and_attention_output(decoder, x_RTD, [0, 5, 16]),
        )
    for ours, its in zip(quick, whole, strict=True):
        torch.testing.assert_close(ours, its, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_whole_forward_pass_measures_the_same(figure):
    start, positions = Initialisation(64, 4, 0.07), [1, 4, 16, 64]
    whole, quick = (
        second_moments_at_init(start, positions, draws=60, sequences=8, whole_forward_pass=full)
        for full in (True, False)
    )
    np.testing.assert_allclose(whole["output"], quick["output"], rtol=1e-4)
    np.testing.assert_allclose(whole["logits"], quick["logits"], rtol=1e-4)
    mean, low, high = mean_with_interval(whole["logits"])
    figure(
        f"lemma 2 through the decoder's taps, {start}: {mean:.4g} [{low:.4g}, {high:.4g}], {lemma2_variance(start):.4g}"
    )
    assert mean == pytest.approx(lemma2_variance(start), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "count"), STARTS, ids=str)
def test_the_corrected_lemmas_hold(start, count, figure):
    positions = [1, 8, 64, 128]
    found = second_moments_at_init(start, positions, draws=count, sequences=2)
    mean, low, high = mean_with_interval(found["qkv"])
    assert mean == pytest.approx(lemma1_variance(start), rel=0.03)
    mean, low, high = mean_with_interval(found["logits"])
    figure(
        f"{start}, {count} draws: lemma 2 {mean:.4g} [{low:.4g}, {high:.4g}], corrected {lemma2_variance(start):.4g}, "
        f"published {lemma2_variance(start, 'as_published'):.4g} "
        f"({mean / lemma2_variance(start, 'as_published'):.2f} ×)"
    )
    assert mean == pytest.approx(lemma2_variance(start), rel=0.03)
    assert mean / lemma2_variance(start, "as_published") == pytest.approx(start.heads, rel=0.03)
    for place, m in enumerate(positions):
        mean, low, high = mean_with_interval(found["output"][:, place])
        exact = lemma3_variance(start, m, "exact")
        figure(
            f"{start}, m={m}: lemma 3 {mean:.4g} [{low:.4g}, {high:.4g}], exact {exact:.4g}, "
            f"{lemma3_variance(start, m):.4g}"
        )
        assert mean == pytest.approx(exact, rel=0.03)
        if m >= 64:
            assert mean == pytest.approx(lemma3_variance(start, m), rel=0.05)  # the closed form is for m ≫ e^s


@pytest.mark.slow
def test_other_initialisations_differ_only_in_their_variance(figure):
    start = Initialisation.pytorch(96, 4)
    found = second_moments_at_init(start, [1, 16, 128], draws=300, sequences=2)
    assert start.logit_variance == pytest.approx(1 / 9)
    assert found["logits"].mean() == pytest.approx(lemma2_variance(start), rel=0.03)
    for place, m in enumerate([1, 16, 128]):
        mean, low, high = mean_with_interval(found["output"][:, place])
        figure(
            f"{start}, m={m}: lemma 3 {mean:.4g} [{low:.4g}, {high:.4g}], "
            f"exact {lemma3_variance(start, m, 'exact'):.4g}"
        )
        assert mean == pytest.approx(lemma3_variance(start, m, "exact"), rel=0.03)


def test_the_decay_has_a_floor(figure):
    start = Initialisation(256, 4, 0.05)
    mean, low, high = mean_with_interval(second_moments_at_init(start, [4096], draws=50)["output"][:, 0])
    figure(
        f"floor, {start}, m=4096: {mean:.4g} [{low:.4g}, {high:.4g}], corrected {lemma3_variance(start, 4096):.4g}, "
        f"published {lemma3_variance(start, 4096, 'as_published'):.4g}"
    )
    assert mean == pytest.approx(lemma3_variance(start, 4096), rel=0.1)
    assert mean == pytest.approx(lemma3_variance(start, 4096, "exact"), rel=0.1)
    assert mean > 7 * lemma3_variance(start, 4096, "as_published")


@pytest.mark.slow
def test_only_the_causal_mask_makes_it_decay(figure):
    start, positions = Initialisation(256, 4, 0.03), powers_of_two_up_to(256)
    found = {
        mask: second_moments_at_init(start, positions, draws=50, mask=mask)["output"]
        for mask in ("causal", "bidirectional")
    }
    slopes = {
        mask: mean_with_interval(np.array([power_law_exponent(positions, row) for row in rows]))
        for mask, rows in found.items()
    }
    for mask, (mean, low, high) in slopes.items():
        figure(f"exponent of the decay, {start}, {mask}: {mean:.4f} [{low:.4f}, {high:.4f}]")
    assert slopes["bidirectional"][0] == pytest.approx(0, abs=0.05)
    assert slopes["causal"][0] == pytest.approx(-1, abs=0.05)
    assert found["bidirectional"].mean() == pytest.approx(lemma3_variance(start, 256, "exact"), rel=0.03)


@pytest.mark.parametrize("sigma", [0.08, 0.11])
def test_where_property_1_fails_the_exact_law_still_holds(sigma, figure):
    start = Initialisation(256, 4, sigma)
    found = second_moments_at_init(start, [64], draws=120, sequences=2)
    mean, _, high = mean_with_interval(found["output"][:, 0])
    forms = {form: mean / lemma3_variance(start, 64, form) for form in ("as_published", "corrected", "exact")}
    told = ", ".join(f"/ {form} {ratio:.3g}" for form, ratio in forms.items())
    entropy, noise = found["entropy"].mean(), (high - mean) / mean
    figure(f"{start}, s={start.logit_variance:.2f}, entropy {entropy:.2f}: {told}; ±{noise:.2f}")
    assert forms["exact"] == pytest.approx(1, abs=0.06)
    assert forms["as_published"] > 5 and forms["corrected"] < 0.5


@pytest.mark.slow
def test_lemma_4_keeps_the_heads_apart(figure):
    rows = coordinate_rows(Initialisation(256, 4, 0.05), [1, 4, 16, 64], draws=60)
    for row in rows:
        figure(
            f"lemma 4, m={row['m']}, {row['form']}: slope {row['measured']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        )
    found = {(row["form"], row["m"]): row["measured"] for row in rows}
    assert all(found["corrected", m] == pytest.approx(1, abs=0.03) for m in (1, 4, 16, 64))
    assert all(found["as_published", m] < 0.96 for m in (4, 16))


def test_the_numbers_of_the_paper():
    assert lemma1_variance(CHI) == pytest.approx(0.3072)
    assert lemma2_variance(CHI, "as_published") / 64 == pytest.approx(0.00786, rel=1e-3)
    assert lemma2_variance(CHI) / 64 == pytest.approx(0.0944, rel=1e-3)
    assert (
        lemma3_variance(CHI, 1, "exact")
        == pytest.approx(lemma3_variance(CHI, 1, "as_published"))
        == pytest.approx(CHI.logit_variance)
    )
    assert power_law_exponent([1, 2, 4], [1, 0.5, 0.25]) == pytest.approx(-1)


def test_the_exact_law_is_a_mean_over_softmaxes():
    """Against brute force: Σ a² of softmaxes of normal numbers."""
    z = torch.randn(200_000, 5, generator=torch.Generator().manual_seed(0)) * 0.7
    brute = float(z.softmax(-1).square().sum(-1).mean())
    wide = Initialisation(
        10**6, 1, (0.49 / 10**12) ** 0.25
    )  # one wide head: τ² does not vary, nor does the floor count
    assert lemma3_variance(wide, 5, "exact") / wide.logit_variance == pytest.approx(brute, rel=0.005)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Initialisation(10, 3, 0.1), "multiple"),
        (lambda: Initialisation(12, 3, 0.0), "above 0"),
        (lambda: Initialisation(64, 4, 1.0), "give a smaller σ"),
        (lambda: second_moments_at_init(Initialisation(12, 3, 0.1), [0, 4]), "from 1 to 4"),
        (lambda: second_moments_at_init(Initialisation(12, 3, 0.1), [4], draws=1), "two draws"),
        (lambda: powers_of_two_up_to(1), "two positions"),
    ],
)
def test_mistakes_are_told(make, words):
    with pytest.raises(SpecError, match=words):
        make()


@pytest.mark.slow
def test_the_command_prints_writes_and_draws(tmp_path):
    small = ["--width", "16", "--heads", "2", "--tokens", "8", "--draws", "2", "--to", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, ["theory", "variance", *small])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["part"] for row in rows} >= {"lemma 1", "lemma 2", "lemma 3", "lemma 4", "floor", "property 1"}
    assert (tmp_path / "theory-variance.svg").exists()
    assert len((tmp_path / "theory-variance.csv").read_text().splitlines()) == len(rows) + 1
