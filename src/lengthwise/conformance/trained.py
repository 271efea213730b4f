"""A check of training: a formula may be finite at initialization, but not after a few updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.subject import Subject
from lengthwise.model import Decoder
from lengthwise.optimizer import AdamW

STEPS = 50
"""Updates, enough for Adam to move a parameter by fifty times the learning rate."""
RATE = 2e-3
"""The learning rate of the laptop's presets."""
ROWS = 16


@check(
    "S04",
    "Trained for 50 steps at the laptop's learning rate, values, logits and gradients stay finite; ten times the rate, "
    "or ten times as far, may warn.",
)
def check_trains(subject: Subject) -> Iterator[CheckCase]:
    most = subject.sequence_lengths(24)[-1]
    if most < 2:
        raise NotApplicable("it has room for one token only")
    for rate in (RATE, 10 * RATE):
        small = _Small(subject, most // 2)
        bad = small.train(rate)
        case = f"not finite after {STEPS} steps at a learning rate of {rate:g}: {bad}" if bad else f"rate {rate:g}"
        yield CheckCase(case, float(bad is not None), 0, warning=rate > RATE)
        if rate == RATE:
            bad = small.carried_on(10)
            case = f"its parameters, moved on as they went for ten times as many steps: {bad} is not finite"
            yield CheckCase(case, float(bad is not None), 0, warning=True)


class _Small:
    """A small decoder that is trained to repeat a random sequence."""

    def __init__(self, subject: Subject, half: int) -> None:
        self.subject, self.half = subject, half
        self.decoder = Decoder(subject.config.model_copy(update={"sigma": None}), subject.named, seed=0).train()
        self.start = {name: parameter.detach().clone() for name, parameter in self.decoder.named_parameters()}
        self.given = None if subject.model_counts_positions else subject.places(2 * half)[None].expand(ROWS, -1)

    def train(self, rate: float) -> str | None:
        """Train; returns the first thing that was not finite, and the step."""
        optimizer = AdamW(self.decoder.parameters(), lr=rate, weight_decay=0.0)
        for step in range(1, STEPS + 1):
            if (bad := self._computed(step)) is not None:
                return f"{bad} at step {step}"
            torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
            optimizer.step()
        return self._computed(STEPS + 1)

    def carried_on(self, times: int) -> str | None:
        """Extrapolate the change of the encodings' parameters in training; returns what is not finite there."""
        with torch.no_grad():
            for name, parameter in self.decoder.named_parameters():
                if name.startswith("encodings."):
                    parameter.add_((times - 1) * (parameter - self.start[name]))
        return self._computed(0)

    def _computed(self, step: int) -> str | None:
        """Compute the loss and its gradient on a fresh batch; returns the first thing that is not finite."""
        ids = [self.subject.ids(self.half, ROWS * step + row) for row in range(ROWS)]
        ids_BT = torch.stack(ids).repeat(1, 2)
        logits_BTV = self.decoder(ids_BT, positions_BT=self.given, budget=self.subject.budget)
        loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())
        self.decoder.zero_grad()
        loss.backward()
        named = sorted(self.decoder.named_parameters(), key=lambda item: not item[0].startswith("encodings."))
        looked = [(name, parameter.detach()) for name, parameter in named]
        looked += [(f"the gradient of {name}", p.grad) for name, p in named if p.grad is not None]
        return next((name for name, tensor in [*looked, ("the loss", loss)] if not tensor.isfinite().all()), None)
