"""A training that is not healthy says so: what diverges ends at once, spikes and plateaus are found in its log."""

import math

import pytest
import torch
from torch import nn

from lengthwise.encoding.base import Encoding
from lengthwise.training.health import Diverged, is_on_plateau, loss_spikes
from tests.training.test_loop import loop


class Shrinking(Encoding):
    """A power whose exponent runs below 0, where 0 ** p is infinite; `fall` is how fast."""

    def __init__(self, geometry) -> None:
        super().__init__(geometry)
        self.p_H = nn.Parameter(torch.empty(geometry.heads))

    def initialize(self, stream) -> None:
        with torch.no_grad():
            self.p_H.fill_(0.02)

    def by_distance(self, distances_N):
        return -(distances_N.abs()[None] ** self.p_H[:, None])


class BadGradient(Shrinking):
    """Finite outputs whose gradient is not: sqrt at 0."""

    def by_distance(self, distances_N):
        return -(self.p_H[:, None] * 0 * distances_N.abs()).sqrt()


def test_a_loss_that_is_not_finite_ends_the_training_and_names_the_encoding():
    one = loop("copy:longest=4", Shrinking, lr=0.02, steps=60)
    seen = []
    with pytest.raises(Diverged) as caught:
        seen.extend(one)
    last = seen[-1]
    error = caught.value
    assert error.step == last.step + 1 == one.step + 1 and error.last_loss == last.loss
    assert error.parameter == "what the encoding makes of encodings.0.p_H"
    assert all(value.isfinite().all() for value in one.decoder.state_dict().values()), "nothing was applied after it"
    assert str(error).startswith(f"diverged at step {error.step}: what the encoding makes of encodings.0.p_H is not ")
    assert Diverged.read(error.record(), "copy-x-s0-1").record() == error.record()
    assert "try a lower learning rate" in str(Diverged.read(error.record(), "copy-x-s0-1"))


def test_a_gradient_that_is_not_finite_is_named_before_clipping_spreads_it():
    one = loop("copy:longest=4", BadGradient)
    with pytest.raises(Diverged) as caught:
        next(iter(one))
    assert caught.value.parameter == "the gradient of encodings.0.p_H" and caught.value.step == 1
    assert caught.value.last_loss is None


def test_weights_that_the_last_update_made_infinite_are_found():
    one = loop("copy:longest=4", steps=2)
    steps = iter(one)
    next(steps), next(steps)
    with torch.no_grad():
        one.decoder.embedding.weight[0, 0] = math.inf
    with pytest.raises(Diverged, match=r"embedding\.weight is not finite"):
        next(steps)


def test_a_spike_is_found_and_noise_is_none():
    calm = [[step, 3.0 * 0.97**step + 0.05 * (step % 2)] for step in range(1, 100)]
    assert loss_spikes(calm) == []
    assert loss_spikes([*calm[:50], [51, 2.5], [52, 2.4], *calm[52:]]) == [51]
    assert loss_spikes([*calm[:50], [51, math.nan], *calm[51:]]) == [51], "what is no number is a spike"
    assert loss_spikes(calm[:3]) == []


def test_a_plateau_is_a_loss_that_never_fell():
    assert is_on_plateau([[step, 2.3] for step in range(10, 1010, 10)])
    assert not is_on_plateau([[step, 2.3 * 0.995**step] for step in range(10, 1010, 10)])
    late = [[step, 2.3 if step < 900 else 0.1] for step in range(10, 1010, 10)]
    assert not is_on_plateau(late), "it left late, but it left"
