"""How far the count reaches: precision, and width."""

import pytest
import torch

from lengthwise.spec import SpecError
from lengthwise.theory import horizon, rows


@pytest.mark.parametrize(("name", "sure", "count"), [("bf16", 180, 255), ("fp16", 1447, 2047)])
def test_short_precisions_end_where_predicted(name, sure, count, figure):
    dtype = horizon.dtype_named(name)
    assert horizon.predicted_reciprocal_horizon(dtype) == sure
    rounded, head = horizon.reciprocal_horizon(dtype), horizon.head_horizon(dtype, 2 * count)
    figure(f"{name}: 1/t tells positions apart to {sure} for sure, {rounded} as rounded, {head} in the decoder")
    assert sure <= rounded < 1.06 * sure
    assert head is not None
    assert sure <= head < 1.06 * sure
    assert horizon.count_horizon(dtype) == horizon.predicted_count_horizon(dtype) == count


def test_the_whole_layer_ends_before_its_parts(figure):
    for name, tokens in (("bf16", 512), ("fp16", 2600)):
        dtype = horizon.dtype_named(name)
        apart, right, error = horizon.layer_horizon(dtype, tokens)
        figure(f"{name}, whole layer: told apart to {apart}, right integer to {right}, off by {error:g} at most")
        assert apart is not None
        assert right <= apart <= horizon.predicted_count_horizon(dtype)
        # 1/t rounded by one part in 2^p moves t by t / 2^p: at most half of 2^p is right.
        assert 0.25 < right / 2 ** (horizon.BITS[dtype] - 1) <= 1


@pytest.mark.slow
def test_fp32_ends_at_eleven_million_in_the_decoder_itself(figure):
    """After a cache of 11,864,335 tokens: two neighbours are told apart, the next two are not."""
    last = horizon.reciprocal_horizon(torch.float32)
    assert horizon.predicted_reciprocal_horizon(torch.float32) == 11_863_282
    assert last == 11_864_337
    said = horizon.head_outputs_from(torch.float32, last - 1, 4)
    figure(f"fp32: the head says {said[0]:.10g}, ... at positions {last - 1:,} to {last + 2:,}")
    assert said[0] != said[1] != said[2] == said[3]
    assert said[1] == pytest.approx(1 / last, rel=1e-7)
    assert horizon.count_horizon(torch.float32, start=2**24 - 50) == 2**24 - 1


def test_the_cache_that_was_filled_is_the_cache_that_would_be():
    """The short cut to far positions, against a sequence that was really run."""
    from lengthwise.theory.theorem1 import construct_theorem1_decoder

    made = construct_theorem1_decoder(1, 4, heads=1, head_width=1, dtype=torch.float32)
    run = made.head(made.draw(1, length=60))[0, 49:53]
    assert torch.equal(torch.tensor(horizon.head_outputs_from(torch.float32, 50, 4)), run)


@pytest.mark.parametrize(("tokens", "units"), [(20, 4), (100, 10), (400, 20), (1600, 40)])
def test_about_root_t_units_round_to_the_right_integer(tokens, units):
    (row,) = rows.units_needed_rows([tokens])
    assert row["units, rounded"] == units
    assert row["all round to t"]
    assert 0.4 < row["largest error"] < 0.5
    # One unit fewer, and the widest of equal steps of √t errs by more than a half.
    assert ((tokens + 1) ** 0.5 - 1) ** 2 / (2 * (units - 1) ** 2) > 0.5


def test_the_broken_line_cannot_be_rounder_with_fewer_knots():
    made = horizon.approximate_theorem1_decoder(100)
    feed = made.decoder.layers[0].feed_forward
    with torch.no_grad():
        feed.down.weight[2, 3] = 0  # take one unit away
    said = made.positions(made.draw(1))[0]
    assert not bool((said.round() == torch.arange(1, 102)).all())


def test_an_unknown_precision_is_said():
    with pytest.raises(SpecError, match="fp64, fp32, fp16, bf16"):
        horizon.dtype_named("int8")
    with pytest.raises(SpecError, match="beyond"):
        rows.horizon_rows(["fp64"])
