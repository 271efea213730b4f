"""Ways of calling a model that must give the same logits: padded, in a batch, with a cache, in chunks, packed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthwise.foreign.recorder import vocabulary_size
from lengthwise.spec import SpecError, one_line

SAME = 1e-3
"""Logits that differ by less than this, in standard deviations of the logits, count as the same; float32 gives 2e-5."""
TOKENS = 40
"""Tokens of a probe."""


REFUSALS = (NotImplementedError, ValueError, TypeError)
"""What a model raises that has no such input."""


_USUAL = ("attention_mask", "position_ids", "past_key_values")
_CALLED = (
    "a model is called as forward(input_ids, attention_mask, position_ids, past_key_values, use_cache) and returns an "
    "object with .logits, as Hugging Face's do"
)


def inputs_of(model: nn.Module) -> set[str]:
    """Return the names of the inputs of a forward pass; `**` stands for any other."""
    listed = inspect.signature(model.forward).parameters.values()
    return {"**" if one.kind is inspect.Parameter.VAR_KEYWORD else one.name for one in listed}


class NotOffered(Exception):
    """The model has no such way of being called."""


class Failed(Exception):
    """The model raised an error in a way of being called that it has."""


@dataclass(frozen=True)
class Probe:
    """A model, the tokens it is probed with, and their logits in a single plain call."""

    model: nn.Module
    ids_BT: Tensor
    logits_BTV: Tensor

    @classmethod
    def of(cls, model: nn.Module, ids_T: Tensor | None = None, tokens: int = TOKENS) -> Probe:
        """Call the model once, on the given tokens or on random ones."""
        device = next(model.parameters()).device
        if not {"use_cache", "**"} & inputs_of(model):
            raise SpecError(f"{type(model).__name__}.forward has no use_cache; {_CALLED}")
        if ids_T is None:
            size = vocabulary_size(model)
            ids_T = torch.randint(min(3, size - 1), size, (tokens,), generator=torch.Generator().manual_seed(0))
        ids_BT = ids_T[None].to(device)
        with torch.no_grad():
            found = model(ids_BT, use_cache=False)
            if not hasattr(found, "logits"):
                raise SpecError(f"{type(model).__name__} returns {type(found).__name__} without .logits; {_CALLED}")
            return cls(model, ids_BT, found.logits.float())

    @property
    def takes(self) -> set[str]:
        """The inputs of the model's forward pass: those it names; the usual ones in a wrapper that names none."""
        named = inputs_of(self.model)
        return named | set(_USUAL) if "**" in named and not named & set(_USUAL) else named

    def change(self, logits_BTV: Tensor, first: int = 0) -> float:
        """Return by how much logits from the token `first` on differ from those of the plain call."""
        wanted_BTV = self.logits_BTV[:, first : first + logits_BTV.shape[1]]
        if not bool(torch.isfinite(logits_BTV).all()):
            return float("inf")
        return float((logits_BTV.float() - wanted_BTV).abs().max() / self.logits_BTV.std().clamp(min=1e-12))


Cases = Iterator[tuple[str, float]]


@contextmanager
def offered(
    what: str, refusals: tuple[type[Exception], ...] = (NotImplementedError, ValueError, TypeError)
) -> Iterator[None]:
    """Tell a model that refuses a call, which is no fault, from one that fails in it."""
    try:
        yield
    except NotOffered:
        raise
    except refusals as error:
        raise NotOffered(f"{what}: {one_line(str(error))[:120]}") from None
    except Exception as error:  # noqa: BLE001 (whatever a model raises is its fault: the plain call worked)
        raise Failed(f"{what} raises {type(error).__name__}: {one_line(str(error))[:120]}") from None


def _padded(probe: Probe, before: int) -> dict[str, Tensor]:
    """Return the inputs of the probe behind `before` padding tokens, with positions as `generate` counts them."""
    pad_BT = probe.ids_BT[:, :1].expand(-1, before)  # a real token: a mask must not depend on ids
    ids_BT = torch.cat([pad_BT, probe.ids_BT], 1)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[:, :before] = 0
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    if "position_ids" in probe.takes:
        inputs["position_ids"] = (mask_BT.cumsum(1) - 1).clamp(min=0)
    return inputs


def padding_cases(probe: Probe) -> Cases:
    if "attention_mask" not in probe.takes:
        raise NotOffered("forward takes no attention_mask")
    for before in (1, 2, 7, 19):
        with offered("padding"):
            logits_BTV = probe.model(**_padded(probe, before), use_cache=False).logits[:, before:]
        yield f"{before} padding token{'s' * (before > 1)} before the text", probe.change(logits_BTV)


def batch_cases(probe: Probe) -> Cases:
    others_BT = probe.ids_BT.flip(1).repeat(3, 1)
    with offered("a batch of several rows"):
        logits_BTV = probe.model(torch.cat([probe.ids_BT, others_BT]), use_cache=False).logits[:1]
    yield "a batch of 4 rows", probe.change(logits_BTV)
    if "attention_mask" in probe.takes:
        half = probe.ids_BT.shape[1] // 2
        mask_BT = torch.ones_like(probe.ids_BT)
        mask_BT[:, half:] = 0
        with offered("padding on the right"):
            logits_BTV = probe.model(probe.ids_BT, attention_mask=mask_BT, use_cache=False).logits[:, :half]
        yield "padding on the right", probe.change(logits_BTV)


def _in_chunks(model: nn.Module, inputs: dict[str, Tensor], sizes: Sequence[int]) -> list[Tensor] | None:
    """Call the model on one chunk after the other with its cache; None if it has none. The mask covers all so far."""
    parts: list[Tensor] = []
    cache, done = None, 0
    for size in sizes:
        now = {name: value[:, done : done + size] for name, value in inputs.items()}
        if "attention_mask" in inputs:
            now["attention_mask"] = inputs["attention_mask"][:, : done + size]
        found = model(**now, **({} if cache is None else {"past_key_values": cache}), use_cache=True)
        cache = getattr(found, "past_key_values", None)
        if cache is None:
            return None
        parts.append(found.logits)
        done += size
    return parts


def chunks_cases(probe: Probe, chunks: Sequence[int], padded: bool) -> Cases:
    tokens = probe.ids_BT.shape[1]
    if "past_key_values" not in probe.takes:
        raise NotOffered("forward takes no past_key_values")
    for chunk in chunks:
        size = chunk if chunk > 0 else tokens + chunk
        sizes = [min(size, tokens - start) for start in range(0, tokens, size)]
        name = "one token at a time" if size == 1 else f"chunks of {size} tokens"
        for given in ("", *((", position_ids given",) if "position_ids" in probe.takes else ())):
            place_BT = torch.arange(tokens, device=probe.ids_BT.device)[None]
            inputs = {"input_ids": probe.ids_BT, **({"position_ids": place_BT} if given else {})}
            with offered(name):
                parts = _in_chunks(probe.model, inputs, sizes)
            if parts is None:
                raise NotOffered("the model returns no cache")
            yield name + given, probe.change(torch.cat(parts, 1))
    if padded:
        half = tokens // 2
        with offered("padding and a cache"):
            parts = _in_chunks(probe.model, _padded(probe, 2), [2 + half, chunks[0]])
        if parts is not None:
            yield f"2 padding tokens, {half} tokens, then {chunks[0]} with the cache", probe.change(parts[-1], half)


def packed_cases(probe: Probe) -> Cases:
    """Two documents in a row; the second must not see the first. Either position ids or a 4-D mask must do it."""
    if "position_ids" not in probe.takes:
        raise NotOffered("forward takes no position_ids")
    first = 5
    packed_BT = torch.cat([probe.ids_BT[:, -first:], probe.ids_BT], 1)
    tokens = packed_BT.shape[1]
    place_T = torch.cat([torch.arange(first), torch.arange(tokens - first)]).to(packed_BT.device)
    with offered("packing"):
        by_positions_BTV = probe.model(packed_BT, position_ids=place_T[None], use_cache=False).logits[:, first:]
    leak = probe.change(by_positions_BTV)
    if leak <= SAME:
        yield "positions that restart", leak
        return
    first, tokens = 2, 7  # fewer than any window, which a 4-D mask would replace
    packed_BT = torch.cat([probe.ids_BT[:, -first:], probe.ids_BT], 1)[:, :tokens]
    own_QK = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    own_QK[first:, :first] = False
    mask_BHQK = torch.zeros(1, 1, tokens, tokens).masked_fill(~own_QK, torch.finfo(torch.float32).min)
    place_T = torch.cat([torch.arange(first), torch.arange(tokens - first)]).to(packed_BT.device)
    try:
        logits_BTV = probe.model(
            packed_BT, attention_mask=mask_BHQK.to(probe.logits_BTV), position_ids=place_T[None], use_cache=False
        ).logits[:, first:]
    except Exception:  # noqa: BLE001
        raise NotOffered(f"position ids alone leak ({leak:.2g}), a 4-D mask is refused") from None
    change = probe.change(logits_BTV)
    if change > SAME and any("conv" in name for name, _ in probe.model.named_modules()):
        raise NotOffered(f"a convolution carries over from one document to the next ({change:.2g})")
    yield "a 4-D mask", change
