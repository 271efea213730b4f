"""Is it the model, or the code around it? And where do two implementations of one model part?

Both are given the same hidden states in every layer, so that each layer is compared by itself: an error in one layer
does not make all later ones look wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from lengthwise.device import HOST
from lengthwise.foreign.identify import HIDDEN, STRIDES, score_scale, without_row_mean
from lengthwise.foreign.recorder import (
    AttentionCall,
    attention_modules,
    first_layer,
    kept_outputs,
    record_attention,
    states_before,
    vocabulary_size,
)
from lengthwise.spec import SpecError

TOKENS, ROWS = 40, 3
SAME = 1e-3
"""A relative difference below this counts as none."""


@dataclass(frozen=True)
class FirstDifference:
    """The first place at which two implementations of one model differ."""

    layer: int | None
    """None if it is before the first layer or outside of attention."""
    quantity: str
    """`embeddings`, `mask`, `scale`, `sink`, `queries and keys`, `temperature`, `angles`, `bias`, `output` of attention
    (values, projection), or `outside attention` (norms, feed-forward layers)."""
    position: int
    change: float
    """How much it differs there, relative to the size of the quantity."""
    detail: str = ""

    def sentence(self) -> str:
        """Say where they part."""
        place = "" if self.layer is None else f" in layer {self.layer}"
        more = f" ({self.detail})" if self.detail else ""
        return (
            f"They first differ{place}: {self.quantity}, from position {self.position} on, by {self.change:.2g}{more}."
        )

    def plain(self) -> dict[str, object]:
        """The parting as data."""
        return asdict(self)


@torch.no_grad()
def first_difference(port: nn.Module, reference: nn.Module) -> FirstDifference | None:
    """Return where a port of a model first differs from its reference, which has the same weights; None if nowhere."""
    size = min(vocabulary_size(port), vocabulary_size(reference))
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(min(3, size - 1), size, (ROWS, TOKENS), generator=generator)
    sides = [(one, attention_modules(one)) for one in (port, reference)]
    counts = [len(modules) for _, modules in sides]
    if counts[0] != counts[1]:
        raise SpecError(f"these are not two implementations of one model: {counts[0]} and {counts[1]} attention layers")
    embedded = [states_before(model, first_layer(model, modules[0]), ids_BT) for model, modules in sides]
    states = [states_before(model, modules[0], ids_BT) for model, modules in sides]
    if states[0].shape != states[1].shape:
        widths = [one.shape[2] for one in states]
        raise SpecError(f"these are not two implementations of one model: widths {widths[0]} and {widths[1]}")
    if found := _difference(None, "embeddings", embedded, torch.arange(TOKENS)):
        return found
    given_BTD = torch.randn(states[0].shape, generator=generator)
    recorded = list[tuple[int, list[list[AttentionCall]], list[list[Tensor]]]]()
    for stride in STRIDES:
        try:
            both = [_attention(model, modules, ids_BT, given_BTD, stride) for model, modules in sides]
        except (IndexError, RuntimeError, ValueError, TypeError):  # past the end of a table, or no such argument
            break
        recorded.append((stride, [calls for calls, _ in both], [outputs for _, outputs in both]))
    for layer in range(counts[0]):
        for stride, calls, outputs in recorded:
            place_T = torch.arange(TOKENS) * stride
            if found := _in_layer(layer, calls[0][layer], calls[1][layer], place_T):
                return found
            if found := _difference(layer, "output", [one[layer] for one in outputs], place_T):
                return found
    for layer in range(1, counts[0]):
        inputs = [states_before(model, modules[layer], ids_BT) for model, modules in sides]
        if found := _difference(layer - 1, "outside attention", inputs, torch.arange(TOKENS)):
            return found
    logits = [model(ids_BT.to(next(model.parameters()).device), use_cache=False).logits.to(HOST) for model, _ in sides]
    return _difference(counts[0] - 1, "outside attention", logits, torch.arange(TOKENS))


def _attention(
    model: nn.Module, modules: Sequence[nn.Module], ids_BT: Tensor, states_BTD: Tensor, stride: int
) -> tuple[list[AttentionCall], list[Tensor]]:
    """Return what each attention layer computes from the same states, and its output."""
    places_BT = None if stride == 1 else (torch.arange(TOKENS) * stride)[None].expand(ROWS, TOKENS)
    with kept_outputs(modules) as outputs:
        calls = record_attention(model, ids_BT, states_BTD, modules, positions_BT=places_BT)
    return calls, [outputs[module] for module in modules]


def _difference(layer: int | None, quantity: str, both: Sequence[Tensor], place_T: Tensor) -> FirstDifference | None:
    """Return the first position at which two tensors differ by more than rounding."""
    port_BTX, reference_BTX = both
    size = float(reference_BTX.double().std().clamp(min=1e-12))
    change_T = (port_BTX.double() - reference_BTX.double()).abs().flatten(2).amax((0, 2)) / size
    change_T = change_T.nan_to_num(nan=float("inf"))
    if float(change_T.max()) <= SAME:
        return None
    first = int((change_T > SAME).int().argmax())
    return FirstDifference(layer, quantity, int(place_T[first]), float(change_T[first]))


def _in_layer(layer: int, port: AttentionCall, reference: AttentionCall, place_T: Tensor) -> FirstDifference | None:
    """Compare mask, sink and scores of a layer; if scores differ, say which part of them does."""
    seen_BHQK, other_BHQK = (one.scores_BHQK > HIDDEN for one in (port, reference))
    if bool((seen_BHQK != other_BHQK).any()):
        query = int((seen_BHQK != other_BHQK).any(-1).any(0).any(0).int().argmax())
        counts = [int(one[0, 0, query].sum()) for one in (seen_BHQK, other_BHQK)]
        detail = f"sees {counts[0]} keys, the reference {counts[1]}"
        return FirstDifference(layer, "mask", int(place_T[query]), abs(counts[0] - counts[1]), detail)
    if port.sinks_BHQS.shape != reference.sinks_BHQS.shape:
        detail = f"{port.sinks_BHQS.shape[-1]} columns, the reference has {reference.sinks_BHQS.shape[-1]}"
        return FirstDifference(layer, "sink", 0, 1.0, detail)
    if port.sinks_BHQS.numel():
        sinks = [one.sinks_BHQS.transpose(1, 2) for one in (port, reference)]
        if found := _difference(layer, "sink", sinks, place_T):
            return found
    scores = [
        without_row_mean(one.scores_BHQK.double(), seen_BHQK).transpose(1, 2) for one in (port, reference)
    ]  # a constant in a row changes no softmax
    found = _difference(layer, "scores", scores, place_T)
    return found and _cause(layer, port, reference, place_T, found)


def _cause(
    layer: int, port: AttentionCall, reference: AttentionCall, place_T: Tensor, parting: FirstDifference
) -> FirstDifference:
    """Say why scores differ. Turning a query and a key of one position by one angle does not change their product."""
    scales = [score_scale(one) for one in (port, reference)]
    if (difference := float((scales[0] / scales[1] - 1).abs().max())) > SAME:
        return FirstDifference(layer, "scale", int(place_T[0]), difference)
    own = [_diagonal(one) for one in (port, reference)]
    seen_BHQK = reference.scores_BHQK > HIDDEN
    if at_own := _difference(layer, "temperature", own, place_T):
        start = at_own.position == int(place_T[0])
        return at_own if not start else FirstDifference(layer, "queries and keys", at_own.position, at_own.change)
    products = [
        (score_scale(one)[:, None, None] * one.products_BHQK.double()).masked_fill(~seen_BHQK, 0.0).transpose(1, 2)
        for one in (port, reference)
    ]
    return _difference(layer, "angles", products, place_T) or FirstDifference(
        layer, "bias", parting.position, parting.change
    )


def _diagonal(call: AttentionCall) -> Tensor:
    """Return the scaled product of each query with the key of its own position, as (batch, position, head)."""
    product_BHQ = (call.queries_BHQE.double() * call.keys_BHKE.double()).sum(-1)
    return (product_BHQ * score_scale(call)[:, None]).transpose(1, 2)
