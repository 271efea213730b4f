"""Checks of an encoding's state: it consists of parameters only, and the seed alone determines them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lengthwise.conformance.check import CheckCase, check
from lengthwise.conformance.subject import SMALL, Subject, relative_error
from lengthwise.device import HOST

INTERNAL = ("_parameters", "_buffers", "_modules")
"""Where `nn.Module` itself keeps tensors."""


@check("S01", "It keeps no constants: no buffer and no tensor but its parameters, before and after a forward pass.")
@torch.no_grad()
def check_no_constants(subject: Subject) -> Iterator[CheckCase]:
    decoder = subject.fresh_decoder()
    for when in ("when built", "after a forward pass"):
        for index, part in enumerate(decoder.encodings):
            for name, _ in part.named_buffers():
                yield CheckCase(f"buffer {name} of encoding {index}, {when}", 1, 0)
            for module in part.modules():
                kept = [name for name, value in vars(module).items() if name not in INTERNAL and _holds_tensor(value)]
                yield CheckCase(f"tensors kept as attributes {when}: {', '.join(kept) or 'none'}", len(kept), 0)
        n = subject.sequence_lengths(9)[-1]
        subject.unbatched_logits(decoder, subject.ids(n), subject.places(n))


def _holds_tensor(value: object) -> bool:
    if isinstance(value, dict):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, list | tuple | set):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, Tensor)


@check("S02", "Its parameters are all of its state: a model built anew and given them has the same logits.")
@torch.no_grad()
def check_reloads(subject: Subject) -> Iterator[CheckCase]:
    n = subject.sequence_lengths(9)[-1]
    ids, places = subject.ids(n), subject.places(n)
    saved = subject.fresh_decoder(seed=0)
    truth = subject.unbatched_logits(saved, ids, places)
    # Allocate without initializing and fill with NaN, like a loader that allocates first and reads later.
    other = subject.fresh_decoder(seed=1).to_empty(device=HOST)
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.fill_(float("nan"))
    other.load_state_dict(saved.state_dict(), strict=True)
    yield CheckCase(
        f"{n} tokens after loading the state", relative_error(subject.unbatched_logits(other, ids, places), truth), 0
    )


@check("S03", "A seed decides its parameters, not the global generator; the model's other weights are those of NoPE.")
@torch.no_grad()
def check_seeded_parameters(subject: Subject) -> Iterator[CheckCase]:
    torch_state = torch.get_rng_state()
    try:
        made = []
        for global_seed in (0, 1):
            torch.manual_seed(global_seed)
            made.append(dict(subject.fresh_decoder(seed=7).named_parameters()))
    finally:
        torch.set_rng_state(torch_state)
    plain = dict(subject.fresh_decoder(seed=7, encoding="nope").named_parameters())
    for name, parameter in made[0].items():
        yield CheckCase(f"{name} drawn twice with one seed", relative_error(made[1][name], parameter), 0)
        yield CheckCase(f"{name}: not finite", int((~parameter.isfinite()).sum()), 0)
        scalar = float(parameter.ndim == 0)
        yield CheckCase(f"{name} has no dimension, so FSDP cannot shard it: make it torch.empty(1)", scalar, 0)
        if name in plain:
            yield CheckCase(f"{name} beside NoPE's", relative_error(parameter, plain[name]), 0)
    # Initial values may be the same for every seed (frequencies, slopes), but random ones must come from the stream.
    for draw in _foreign_draws(subject):
        yield CheckCase(f"initialize draws with {draw}, and not from its stream", 1, 0)


def _foreign_draws(subject: Subject) -> list[str]:
    """The random functions that `initialize` calls with a generator that is not from its stream."""
    part, given = subject.build_uninitialised_encoding(SMALL.geometry), []

    def stream(name: str) -> torch.Generator:
        given.append(torch.Generator().manual_seed(len(name)))
        return given[-1]

    held, kept = random.getstate(), np.random.get_state()
    try:
        random.seed("unlike any other"), np.random.seed(987654321)  # detects re-seeding too
        words, numbers, watch = random.getstate(), _numpy_state(), _Draws(given)
        with watch:
            part.initialize(stream)
        moved = {"Python's random": random.getstate() != words, "numpy.random": _numpy_state() != numbers}
    finally:
        random.setstate(held), np.random.set_state(kept)
    return [*watch.found, *(name for name, drawn in moved.items() if drawn)]


def _numpy_state() -> tuple[list[int], int]:
    """The state of numpy's global generator."""
    _, key, place, *_ = np.random.get_state()
    return [int(value) for value in key], int(place)


class _Draws(TorchDispatchMode):
    """Records random operations that draw from none of the given generators."""

    def __init__(self, given: list[torch.Generator]) -> None:
        super().__init__()
        self.given, self.found = given, dict[str, None]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = [one.get_state().clone() for one in self.given]
        made = func(*args, **(kwargs or {}))
        if all(torch.equal(state, one.get_state()) for state, one in zip(before, self.given, strict=True)):
            self.found[f"torch's {func.overloadpacket.__name__}"] = None
        return made
