"""The check of RoPE: which coordinates it rotates, by which angle, at which length."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lengthwise.conformance.check import CheckCase, check
from lengthwise.conformance.formulas import RopeVariant, rope_frequencies, rotate_by_rope
from lengthwise.conformance.mathematics import _claims, _vectors
from lengthwise.conformance.subject import BUDGET, SMALL, Subject, relative_error


@check("T12", "RoPE turns each pair by position × its frequency, scaled as it says at any length, in its layout.")
@torch.no_grad()
def check_rope_formula(subject: Subject) -> Iterator[CheckCase]:
    _claims(subject, "rope")
    variant = RopeVariant.of(subject.encoding)
    said = ", ".join(f"{key}={value}" for key, value in vars(variant).items() if value is not None)
    if variant.window is not None:
        for distance in (0, 1, variant.window - 1, variant.window, variant.window + 1):
            query = torch.tensor([[float(distance)]], dtype=torch.float64)
            bias = subject.encoding.checked_bias(query, query * 0)
            wrong = float(bool((bias != (0 if distance < variant.window else -torch.inf)).any()))
            yield CheckCase(f"a key at distance {distance} of a window of {variant.window} positions", wrong, 0)
    for head_width in (8, 16, 64):
        geometry = SMALL.model_copy(update={"head_width": head_width}).geometry
        turned = round(variant.fraction * head_width)
        fits = turned % 2 == 0 and max(variant.fixed, default=-1) < turned // 2
        if not fits or (variant.long is not None and turned // 2 != len(variant.long)):
            continue  # pairs do not fit, or there are no factors for them
        encoding = subject.build_initialised_encoding(geometry).double()
        x = _vectors(1, head_width).double()
        heads = x[0, :, 0].tolist()
        for length in (BUDGET,) if variant.scaling is None else (2, BUDGET, 4096):
            frequencies, magnitude = rope_frequencies(head_width, length, variant)
            for position in (0, 1, 2, 100, 4095):
                places = torch.tensor([[position]], dtype=torch.float64)
                state = encoding.prepare(places, places, torch.tensor([length]))
                wanted = [rotate_by_rope(h, position, frequencies, magnitude, variant.interleaved) for h in heads]
                wanted = torch.tensor(wanted, dtype=torch.float64)
                for name, got in zip(("query", "key"), encoding.rotate(x, x, state), strict=True):
                    # Phases in fp32 are allowed; their error is about position × 2^-24.
                    case = f"{name} of width {head_width} at position {position} of {length} tokens ({said})"
                    yield CheckCase(case, relative_error(got[0, :, 0], wanted), max(1e-6, position * 1.2e-7))
