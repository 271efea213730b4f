"""Record what each attention layer of any torch model computes: queries, keys, and the scores before the softmax.

Torch's function mode sees every operation, whatever the classes are called: in each module, the last product of queries
and keys before a softmax, and the scores that the softmax takes, with scale, bias, mask and sink; or the arguments of
torch's fused attention, from which the same is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lengthwise.device import HOST
from lengthwise.spec import SpecError

_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm"}
_SOFTMAXES = {"softmax", "_softmax"}


@dataclass
class AttentionCall:
    """One call of one attention layer."""

    module: str
    """The name of the module in which it happened."""
    queries_BHQE: Tensor
    keys_BHKE: Tensor
    """After everything that is done to queries and keys, rotation included."""
    scores_BHQK: Tensor
    """What the softmax takes, without the columns of sinks."""
    sinks_BHQS: Tensor
    """Further columns of the scores, which belong to no key."""
    values_BHKE: Tensor | None = None
    factors: list[Tensor] = field(default_factory=list, repr=False)
    """Tensors of the module that were multiplied by something, at the first position; one has the unrotated keys."""

    @property
    def products_BHQK(self) -> Tensor:
        """The scalar product of each query with each key, without scale, bias and mask."""
        return self.queries_BHQE @ self.keys_BHKE.mT


class _Recorder(TorchFunctionMode):
    """Sees every operation while a model is called on `tokens` tokens."""

    def __init__(self, batch: int, tokens: int, queries: int | None) -> None:
        super().__init__()
        self.batch, self.tokens = batch, tokens
        self.queries = tokens if queries is None else queries
        self.calls: list[AttentionCall] = []
        self.modules: list[str] = []
        self._products: dict[str, tuple[Tensor, Tensor]] = {}
        self._factors: dict[str, list[Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = dict(kwargs or {})
        found = func(*args, **kwargs)
        name, here = getattr(func, "__name__", ""), self.modules[-1] if self.modules else ""
        if not isinstance(found, Tensor):
            return found
        if name in {"mul", "__mul__", "__rmul__"} and found.ndim >= 3 and self.tokens in found.shape:
            for one in args[:2]:
                if isinstance(one, Tensor) and one.numel() == found.numel():
                    self._factors.setdefault(here, []).append(_at_first_position(one, self.tokens))
        elif self.calls and self.calls[-1].module == here and self.calls[-1].values_BHKE is None and name in _PRODUCTS:
            values = self._operands(name, args, kwargs)[1]
            self.calls[-1].values_BHKE = values.detach().to(HOST)
        elif name in _PRODUCTS and found.ndim >= 3 and found.shape[-2] == self.tokens == found.shape[-1]:
            self._products[here] = self._operands(name, args, kwargs)
        elif name == "scaled_dot_product_attention":
            self._fused_attention(here, *args, **kwargs)
        elif name in _SOFTMAXES and here in self._products and found.shape[-2] == self.tokens:
            self._attention(here, args[0] if args else kwargs["input"])
        return found

    def _operands(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        if name == "baddbmm":
            listed = [one for one in (*args[1:], kwargs.get("batch1"), kwargs.get("batch2")) if isinstance(one, Tensor)]
        else:
            listed = [one for one in (*args, kwargs.get("other"), kwargs.get("mat2")) if isinstance(one, Tensor)]
        return listed[0], listed[1]

    def _fused_attention(
        self,
        module: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Compute the scores of a fused kernel as its documentation defines them."""
        if query.shape[-2] != self.tokens or key.shape[-2] < self.tokens:
            return
        query = query[..., -self.queries :, :]
        if key.shape[-3] != query.shape[-3]:  # grouped heads
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            before = key.shape[-2] - scores.shape[-2]
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(before), -torch.inf)
        if attn_mask is not None:
            attn_mask = attn_mask if attn_mask.shape[-2] == 1 else attn_mask[..., -self.queries :, :]
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
        self._products[module] = query, key.mT
        self._attention(module, scores)
        if self.calls and self.calls[-1].module == module:
            self.calls[-1].values_BHKE = value.detach().to(HOST)

    def _attention(self, module: str, scores: Tensor) -> None:
        q, k = self._products.pop(module)
        kept = self.queries < self.tokens
        shape = (self.batch, -1)
        queries_BHQE, keys_BHKE, scores_BHQK = (
            one.reshape(*shape, *one.shape[-2:]).detach().to(HOST, copy=kept)  # a view would keep all queries
            for one, kept in (
                (q[..., -self.queries :, :], kept),
                (k.mT, False),
                (scores[..., -self.queries :, :], kept),
            )
        )
        keys = keys_BHKE.shape[2]
        if scores_BHQK.shape[1] != queries_BHQE.shape[1] or scores_BHQK.shape[-1] < keys:
            return  # a softmax of something else, such as the experts of a mixture
        call = AttentionCall(module, queries_BHQE, keys_BHKE, scores_BHQK[..., :keys], scores_BHQK[..., keys:])
        call.factors = self._factors.pop(module, [])
        self.calls.append(call)


def _at_first_position(tensor: Tensor, tokens: int) -> Tensor:
    """Return all values at the first position; complex ones as pairs of real ones."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    axis = next(place for place, size in enumerate(tensor.shape) if size == tokens)
    return tensor.select(axis, 0).detach().flatten().to(HOST)


@torch.no_grad()
def record_attention(
    model: nn.Module,
    ids_BT: Tensor,
    states_BTD: Tensor | None = None,
    modules: Sequence[nn.Module] = (),
    *,
    positions_BT: Tensor | None = None,
    queries: int | None = None,
) -> list[AttentionCall]:
    """Call a model and return what its attention layers computed, in the order of their calls.

    With `states_BTD`, the attention `modules` take these hidden states instead of their own. If all tokens of a row
    have the same state, what differs between them comes from their positions alone. Of a long text only the last
    `queries` are kept, since all its scores would not fit into memory.
    """
    recorder, device = _Recorder(ids_BT.shape[0], ids_BT.shape[1], queries), next(model.parameters()).device
    given = {} if positions_BT is None else {"position_ids": positions_BT.to(device)}
    if positions_BT is not None:  # without a mask, positions with gaps are taken for packed documents
        given["attention_mask"] = torch.ones_like(given["position_ids"])
    with _in_module_order(model, recorder.modules), _given_states(modules, states_BTD), recorder:
        model(ids_BT.to(device), use_cache=False, **given)
    return recorder.calls


@contextmanager
def _in_module_order(model: nn.Module, modules: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are being called, the innermost last."""

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: modules.append(name)

    def leave(*_: object) -> None:
        modules.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(name)).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield
    modules.clear()


@contextmanager
def _given_states(modules: Sequence[nn.Module], states_BTD: Tensor | None) -> Iterator[None]:
    """Replace the hidden states that these modules take."""

    def replaced(value: object) -> object:
        if states_BTD is None or not isinstance(value, Tensor) or value.shape != states_BTD.shape:
            return value
        return states_BTD.to(value).contiguous() if value.is_floating_point() else value

    def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tuple(map(replaced, args)), {name: replaced(value) for name, value in kwargs.items()}

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(replace, with_kwargs=True).remove)
        yield


@contextmanager
def kept_outputs(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Keep the output of each module."""
    held: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor):
            held[module] = first.detach().to(HOST)

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_hook(keep).remove)
        yield held


def vocabulary_size(model: nn.Module) -> int:
    """Return the number of tokens that a model knows."""
    try:
        return model.get_input_embeddings().num_embeddings  # pyrefly: ignore
    except (AttributeError, NotImplementedError):
        return getattr(getattr(model, "config", None), "vocab_size", 100)


def attention_modules(model: nn.Module, tokens: int = 7) -> list[nn.Module]:
    """Return the modules in which attention is computed, found by calling the model on a few tokens."""
    calls = record_attention(model, torch.arange(3, 3 + tokens)[None] % vocabulary_size(model))
    if not calls:
        raise SpecError(
            "no attention was seen in this model: it has none, or kernels of other libraries, which show no scores; "
            "then load it with attention eager or sdpa"
        )
    return [model.get_submodule(name) for name in dict.fromkeys(call.module for call in calls)]


def first_layer(model: nn.Module, attention: nn.Module) -> nn.Module:
    """Return the first of the layers to which an attention module belongs: its norm comes after its input."""
    name = next(name for name, module in model.named_modules() if module is attention)
    layer = re.match(r"(.*?\.)\d+", name)
    return attention if layer is None else model.get_submodule(f"{layer[1]}0")


def states_before(model: nn.Module, module: nn.Module, ids_BT: Tensor) -> Tensor:
    """Return the hidden states that a module takes."""
    held: list[Tensor] = []

    def look(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for one in (*args, *kwargs.values()):
            if isinstance(one, Tensor) and one.shape[:2] == ids_BT.shape and one.ndim == 3 and one.is_floating_point():
                held.append(one.detach().to(HOST))

    hook = module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        record_attention(model, ids_BT)
    finally:
        hook.remove()
    return held[0]
