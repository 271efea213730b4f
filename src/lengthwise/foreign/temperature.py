"""Multiply attention logits by log n / log n_train in any torch model, n being the tokens that a query sees.

Queries are multiplied, in the product with the keys or in torch's fused attention, so that masks and biases stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lengthwise.foreign.recorder import AttentionCall, attention_modules, record_attention, states_before
from lengthwise.spec import SpecError

_PRODUCTS = {"matmul": 0, "__matmul__": 0, "bmm": 0, "baddbmm": 1}
"""Products of queries and keys, and which argument the queries are."""
_NAMES = {"baddbmm": ("batch1", "batch2")}
PROBE = 23
"""Tokens with which it is checked; few widths of heads are such a prime, so shapes tell what is what."""


CHECKED_LENGTH = 5
"""The trained length with which it is checked, well below the probe's."""


class _Scale(TorchFunctionMode):
    """Inside one attention module: multiplies the queries of its `number`-th product, or those of fused attention."""

    def __init__(self, trained_length: int, number: int | None) -> None:
        super().__init__()
        self.trained_length, self.number, self.products = trained_length, number, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name, given = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "scaled_dot_product_attention":
            args, given = self._changed(args, given, 0, ("query", "key"), fused=True)
        elif name in _PRODUCTS:
            if self.products == self.number:
                args, given = self._changed(args, given, _PRODUCTS[name], _NAMES.get(name, ("input", "other")))
            self.products += 1
        return func(*args, **given)

    def _changed(
        self, args: tuple[Any, ...], given: dict[str, Any], place: int, names: tuple[str, str], fused: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        q, k = (args[n] if n < len(args) else given[name] for n, name in zip((place, place + 1), names, strict=True))
        queries, keys = q.shape[-2], k.shape[-2] if fused else k.shape[-1]
        n_Q = torch.arange(keys - queries + 1, keys + 1, device=q.device, dtype=torch.float32)
        factor_Q1 = (n_Q.clamp(min=1).log() / log(self.trained_length)).clamp(min=1)[:, None]
        if place < len(args):
            return (*args[:place], q * factor_Q1.to(q), *args[place + 1 :]), given
        return args, {**given, names[0]: q * factor_Q1.to(q)}


class _Products(TorchFunctionMode):
    """Counts the products of one attention module up to its softmax: the last of them is that of queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.fits, self.number = 0, list[int](), list[int]()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        found, name = func(*args, **dict(kwargs or {})), getattr(func, "__name__", "")
        if name in _PRODUCTS:
            if found.shape[-2:] == (PROBE, PROBE):
                self.fits.append(self.products)
            self.products += 1
        elif name in {"softmax", "_softmax"} and self.fits:
            self.number.append(self.fits[-1])
        return found


@contextmanager
def scaled_queries(model: nn.Module, trained_length: int) -> Iterator[None]:
    """Multiply the logits of query n, counted from 1, by max(1, log n / log trained_length) in every attention module.

    What the modules then compute is read back, for a trained length that the probe exceeds; `SpecError` if it is not
    that. Keys in a cache count too.
    """
    modules, ids_BT = attention_modules(model), torch.arange(3, 3 + PROBE)[None]
    generator = torch.Generator().manual_seed(0)
    # All layers are given the same states before and after, so that each is seen alone.
    width = states_before(model, modules[0], ids_BT).shape[-1]
    states_BTD = torch.randn(1, PROBE, width, generator=generator)
    before = record_attention(model, ids_BT, states_BTD, modules)
    numbers = [_product_number(model, module, ids_BT) for module in modules]
    length = CHECKED_LENGTH
    with ExitStack() as stack:
        for module, number in zip(modules, numbers, strict=True):
            _inside(module, lambda number=number: _Scale(length, number), stack)
        _require_scaled(modules, before, record_attention(model, ids_BT, states_BTD, modules), length)
        length = trained_length
        yield


def _inside(module: nn.Module, make: Callable[[], TorchFunctionMode], stack: ExitStack) -> None:
    """Let torch's function mode see what this module computes, and nothing else."""
    entered: list[TorchFunctionMode] = []

    def enter(*_: object) -> None:
        entered.append(make())
        entered[-1].__enter__()

    def leave(*_: object) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    stack.callback(module.register_forward_pre_hook(enter).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)


def _product_number(model: nn.Module, module: nn.Module, ids_BT: Tensor) -> int | None:
    """Return which of the module's products is that of queries and keys; None if its attention is fused."""
    counter = _Products()
    with ExitStack() as stack:
        _inside(module, lambda: counter, stack)
        model(ids_BT.to(next(model.parameters()).device), use_cache=False)
    return counter.number[0] if counter.number else None


def _require_scaled(
    modules: Sequence[nn.Module], before: Sequence[AttentionCall], after: Sequence[AttentionCall], trained_length: int
) -> None:
    """Raise unless the queries of every module grew with n, and nothing else of them changed."""
    n_Q1 = torch.arange(1, PROBE + 1)[:, None]
    factor_Q1 = (n_Q1.log() / log(trained_length)).clamp(min=1)
    seen = {call.module for call in after}
    for old, new in zip(before, after, strict=True):
        wanted_BHQE = old.queries_BHQE * factor_Q1
        if not torch.allclose(new.queries_BHQE, wanted_BHQE, rtol=1e-2, atol=1e-3 * float(wanted_BHQE.abs().max())):
            raise SpecError(
                f"log_n did not take effect in {old.module}: its attention computes scores in a way that is not known "
                "here; load the model with attention eager or sdpa"
            )
    if len(seen) < len(modules):
        raise SpecError(f"log_n was seen in {len(seen)} of {len(modules)} layers; load the model with attention eager")
