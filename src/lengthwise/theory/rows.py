"""Measurements of the constructions in the decoder, as plain rows for tables, figures and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lengthwise.spec import SpecError
from lengthwise.theory import horizon, objection
from lengthwise.theory.theorem1 import Constructed, NormKind, construct_theorem1_decoder, extrapolated_position
from lengthwise.theory.theorem2 import (
    alibi_slopes,
    construct_theorem2_decoder,
    pairwise_distances,
    relative_bias_decoder,
    second_layer_scores,
    t5_bias,
    unevenness,
)

Rows = list[dict[str, Any]]
OnProgress = Callable[[str], None]

BATCH = 10


def ignore_progress(words: str) -> None:
    """Ignore a progress message: the default of `on_progress`."""


def theorem1_rows(
    tokens: int = 512,
    width: int = 64,
    *,
    norms: Sequence[NormKind] = ("none", "rms", "layer"),
    precisions: Sequence[str] = ("fp64", "fp32", "bf16"),
    sequences: int = 100,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Rows, Rows]:
    """Return a row for each norm and precision, and the largest error in ranges of positions, for the figure."""
    table, curve = [], []
    t_T = torch.arange(1, max(tokens, 0) + 2, dtype=torch.float64)
    for norm in norms:
        for precision in precisions:
            made = construct_theorem1_decoder(tokens, width, norm=norm, seed=seed, dtype=horizon.dtype_named(precision))
            head_T, position_T = torch.zeros_like(t_T), torch.zeros_like(t_T)
            wrong = 0
            for low in range(0, sequences, BATCH):
                on_progress(f"theorem 1: {norm}, {precision}, {low} of {sequences} sequences")
                ids = made.draw(min(BATCH, sequences - low), seed=seed + low)
                tap_outputs = made.tap_outputs(ids, "layers.0.heads", "layers.0.residual")
                head = tap_outputs["layers.0.heads"][:, 0, :, 0].double()
                position = tap_outputs["layers.0.residual"][..., 2].double()
                head_T = torch.maximum(head_T, (head - 1 / t_T).abs().amax(0))
                position_T = torch.maximum(position_T, (position - t_T).abs().amax(0))
                wrong += int((position.round() != t_T).sum())
            table.append(
                {
                    "norm": norm,
                    "precision": precision,
                    "positions": tokens + 1,
                    "units": made.decoder.config.feed_forward_width,
                    "sequences": sequences,
                    "error of 1/t": float(head_T.max()),
                    "error of t": float(position_T.max()),
                    "rounds to t": 1 - wrong / (sequences * (tokens + 1)),
                }
            )
            edges = _spaced(tokens + 1)
            curve += [
                {"norm": norm, "precision": precision, "t": high, "error": float(position_T[low:high].max())}
                for low, high in zip([0, *edges], edges, strict=False)
            ]
    return table, curve


def _spaced(end: int, points: int = 60) -> list[int]:
    """Return integers from 1 to `end`, evenly spaced on a logarithmic scale."""
    return sorted({round(end ** (k / points)) for k in range(points + 1)})


def failure_case_outputs(tokens: int = 64, width: int = 16, seed: int = 0) -> Rows:
    """Return the decoder's output at positions 1, ..., 2T + 2: as built, without BOS, without the causal mask."""
    made = construct_theorem1_decoder(tokens, width, seed=seed)
    open_ = construct_theorem1_decoder(tokens, width, seed=seed, mask="bidirectional")
    length = 2 * tokens + 2
    ids = made.draw(1, seed=seed, length=length)
    rows: Rows = []
    for case, said_T in (
        ("as built", made.positions(ids)[0]),
        ("without BOS", made.positions(ids[:, 1:])[0]),
        ("without the causal mask", open_.positions(ids)[0]),
    ):
        rows += [{"case": case, "t": t, "says": float(value)} for t, value in enumerate(said_T.tolist(), 1)]
    rows += [
        {"case": "closed form", "t": n, "says": float(extrapolated_position(tokens, n))}
        for n in range(tokens + 1, length + 1)
    ]
    return rows


def construction_change_rows(tokens: int = 64, width: int = 16, seed: int = 0) -> Rows:
    """Change the constructed decoder or its input in several ways; return the largest error of its position t for each.

    Errors are in float64; they show what the construction depends on.
    """
    t_T = torch.arange(1, tokens + 2, dtype=torch.float64)
    built = construct_theorem1_decoder(tokens, width, seed=seed)
    ids = built.draw(4, seed=seed)
    again = ids.clone()
    again[:, tokens // 2] = ids[:, 0]  # BOS once more in the middle
    cases: list[tuple[str, Tensor]] = [
        ("as built", built.positions(ids)),
        ("W_Q 100 times as large", _sharpened(tokens, width, seed).positions(ids)),
        (
            "RMSNorm, other heads silent",
            construct_theorem1_decoder(tokens, width, norm="rms", seed=seed).positions(ids),
        ),
        (
            "RMSNorm, other heads speak",
            construct_theorem1_decoder(tokens, width, norm="rms", other_heads_scale=1.0, seed=seed).positions(ids),
        ),
        (
            "RMSNorm, other heads speak, anchor 10,000",
            construct_theorem1_decoder(
                tokens, width, norm="rms", other_heads_scale=1.0, anchor_size=10_000, seed=seed
            ).positions(ids),
        ),
        ("a second BOS in the middle", built.positions(again)),
        ("without BOS", built.positions(torch.cat([ids[:, 1:], ids[:, 1:2]], 1))),
        (
            "without the causal mask",
            construct_theorem1_decoder(tokens, width, mask="bidirectional", seed=seed).positions(ids),
        ),
    ]
    return [{"change": name, "error of t": float((said - t_T).abs().max())} for name, said in cases]


@torch.no_grad()
def _sharpened(tokens: int, width: int, seed: int) -> Constructed:
    made = construct_theorem1_decoder(tokens, width, seed=seed)
    for name, parameter in made.decoder.named_parameters():
        if name.endswith("layers.0.attention.q.weight"):
            parameter.mul_(100)
    return made


def theorem2_rows(
    tokens: int = 512,
    width: int = 64,
    *,
    norms: Sequence[NormKind] = ("none", "rms", "layer"),
    precisions: Sequence[str] = ("fp64", "fp32", "bf16"),
    scaled: bool = True,
    seed: int = 0,
    on_progress: OnProgress = ignore_progress,
) -> Rows:
    """Return, for each norm and precision, the largest error of the relative term over all pairs t ≥ i."""
    table = []
    for norm in norms:
        for precision in precisions:
            on_progress(f"theorem 2: {norm}, {precision}")
            made = construct_theorem2_decoder(
                tokens, width, norm=norm, scaled=scaled, seed=seed, dtype=horizon.dtype_named(precision)
            )
            found = second_layer_scores(made, made.draw(1, seed=seed))
            scale = made.decoder.config.scale
            error_HQK = (found.relative_BHQK[0].double() + pairwise_distances(tokens + 1) * scale).tril().abs()
            table.append(
                {
                    "norm": norm,
                    "precision": precision,
                    "pairs": (tokens + 1) * (tokens + 2) // 2,
                    "f_rel": f"−(t − i) / {round(1 / scale, 3):g}" if scaled else "−(t − i)",
                    "largest |content|": float(found.content_BHQK.abs().max()),
                    "error of f_rel": float(error_HQK.max()),
                }
            )
    return table


FUNCTIONS: dict[str, Callable[[int, int], float]] = {
    "t": lambda t, n: t,
    "3 − 2t": lambda t, n: 3 - 2 * t,
    "t² / T": lambda t, n: t * t / (n - 1),
    "10 log t": lambda t, n: 10 * math.log(t),
}
"""Functions of the position that the first layer may write; the first two are affine."""


def theorem2_remark(tokens: int = 64, width: int = 16) -> tuple[Rows, Rows]:
    """Test the remark after Theorem 2: the spread of g(i) − g(t) at equal distance for each g, and figure points."""
    table, points = [], []
    for name, g in FUNCTIONS.items():
        made = construct_theorem2_decoder(
            tokens,
            width,
            heads=1,
            head_width=2,
            content_scale=0.0,
            scaled=False,
            position_function=lambda t, g=g: g(t, tokens + 1),
        )
        logits_QK = second_layer_scores(made, made.draw(1)).relative_BHQK[0, 0]
        uneven = unevenness(logits_QK)
        table.append({"g": name, "spread along a distance": uneven, "relative": uneven < 1e-9})
        for distance in range(0, tokens + 1, 4):
            diagonal = logits_QK.diagonal(-distance)
            points.append(
                {"g": name, "distance": distance, "low": float(diagonal.min()), "high": float(diagonal.max())}
            )
    return table, points


def bias_imitation_rows(tokens: int = 127, heads: int = 8) -> tuple[Rows, Rows]:
    """Return the largest error of second layers that reproduce ALiBi and a T5 bias exactly, and both by distance."""
    n, table, points = tokens + 1, [], []

    def add(name: str, logits_HQK: Tensor, bias_HN: Tensor) -> None:
        wanted_HQK = bias_HN[:, pairwise_distances(n).long().clamp(min=0)]
        error = float((logits_HQK - wanted_HQK).tril().abs().max())
        table.append({"imitates": name, "positions": n, "heads": len(bias_HN), "error of the bias": error})
        last_HN = logits_HQK[:, -1].flip(-1)  # of the last query, by distance
        for head in range(min(2, len(bias_HN))):
            points.extend(
                {
                    "imitates": name,
                    "head": head + 1,
                    "distance": d,
                    "bias": float(bias_HN[head, d]),
                    "logit": float(last_HN[head, d]),
                }
                for d in range(n)
            )

    slopes = alibi_slopes(heads)
    made = construct_theorem2_decoder(
        tokens, 16, heads=heads, head_width=2, slopes=slopes, content_scale=0.0, scaled=False
    )
    slope_H1 = torch.tensor(slopes, dtype=torch.float64)[:, None]
    add("alibi", second_layer_scores(made, made.draw(1)).logits_BHQK[0], -slope_H1 * torch.arange(n))
    bias_HN = t5_bias(tokens)
    made = relative_bias_decoder(bias_HN)
    add("t5", second_layer_scores(made, made.draw(1)).logits_BHQK[0], bias_HN)
    return table, points


def horizon_rows(
    precisions: Iterable[str] = ("bf16", "fp16", "fp32"), on_progress: OnProgress = ignore_progress
) -> Rows:
    """Return up to which t each precision distinguishes t from t + 1, predicted and measured in the decoder."""
    table = []
    for precision in precisions:
        dtype = horizon.dtype_named(precision)
        if dtype == torch.float64:
            raise SpecError("fp64 tells positions apart beyond 10⁷; measure bf16, fp16 or fp32")
        on_progress(f"horizon: {precision}")
        alike, far = horizon.reciprocal_horizon(dtype), horizon.predicted_count_horizon(dtype)
        tokens = min(2 * far, 2600)
        apart, right, _ = horizon.layer_horizon(dtype, tokens)
        if dtype == torch.float32:  # too long for a full run: use a prefilled cache, around the predicted tie
            said = horizon.head_outputs_from(dtype, alike - 1, 4)
            head = alike if [a == b for a, b in pairwise(said)] == [False, False, True] else None
            count = horizon.count_horizon(dtype, start=far - 1000)
        else:
            head, count = horizon.head_horizon(dtype, tokens), horizon.count_horizon(dtype)
        table.append(
            {
                "precision": precision,
                "bits": horizon.BITS[dtype],
                "from 1/t, sure": horizon.predicted_reciprocal_horizon(dtype),
                "from 1/t, rounded": alike,
                "from 1/t, decoder": head,
                "from t, predicted": far,
                "from t, decoder": count,
                "whole layer, apart": apart if apart is not None else f"> {tokens}",
                "whole layer, right": right if right <= tokens else f"> {tokens}",
            }
        )
    return table


def units_needed_rows(lengths: Iterable[int] = (20, 100, 400, 1600)) -> Rows:
    """Return the units needed for T tokens: for exact t, and for values that round to t (measured in the decoder)."""
    table = []
    for tokens in lengths:
        made = horizon.approximate_theorem1_decoder(tokens)
        said_T = made.positions(made.draw(1))[0]
        t_T = torch.arange(1, tokens + 2, dtype=torch.float64)
        table.append(
            {
                "T": tokens,
                "units, exact": tokens,
                "units, rounded": made.decoder.config.feed_forward_width,
                "√T": math.sqrt(tokens),
                "largest error": float((said_T - t_T).abs().max()),
                "all round to t": bool((said_T.round() == t_T).all()),
            }
        )
    return table


def two_layer_head_rows(tokens: int = 12, beta: float = 5.0) -> tuple[Rows, Rows]:
    """Return a table on equal tokens in one layer and on diagonal and previous-token heads in two, and both maps."""
    one = max(max(objection.equal_token_weight_gaps("nope", layers=1, seed=seed)) for seed in range(20))
    two = max(objection.equal_token_weight_gaps("nope", layers=2, seed=seed)[1] for seed in range(20))
    rope = max(max(objection.equal_token_weight_gaps("rope", layers=1, seed=seed)) for seed in range(20))
    equal = "[bos, x, x]: largest |α₃₃ − α₃₂| of 20 random models"
    table: Rows = [
        {"what": f"{equal}, layer 1", "predicted": 0.0, "decoder": one},
        {"what": f"{equal}, layer 2", "predicted": None, "decoder": two},
        {"what": f"{equal}, rope, layer 1", "predicted": None, "decoder": rope},
    ]
    maps: Rows = []
    for name, made, formula, back in (
        ("diagonal", objection.diagonal_decoder(tokens, beta), objection.diagonal_weight, 0),
        ("previous", objection.previous_token_decoder(tokens, beta), objection.previous_token_weight, 1),
    ):
        weights_QK = objection.second_layer_weights(made, made.draw(1))[0]
        t = tokens + 1
        table.append(
            {
                "what": f"{name} head, β = {beta:g}: weight on token t − {back} at t = {t}",
                "predicted": formula(beta, t),
                "decoder": float(weights_QK[t - 1, t - 1 - back]),
            }
        )
        maps += [
            {"head": name, "query": q + 1, "key": k + 1, "weight": float(weights_QK[q, k])}
            for q in range(t)
            for k in range(q + 1)
        ]
    return table, maps
