"""Faults that ports of models had in public, planted into healthy ones: each gives (model, reference or None)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from tests.foreign.zoo import build


def _wrap(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """Replace a method by `changed(original, *args, **kwargs)`, with its signature."""
    original = getattr(owner, name)

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return changed(original, *args, **kwargs)

    setattr(owner, name, method)


@contextmanager
def _other_function(model: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of the file that has a model's code."""
    names = sys.modules[type(model).__module__].__dict__
    before = names[name]
    names[name] = function
    try:
        yield
    finally:
        names[name] = before


def _cached(kwargs: dict[str, Any]) -> int:
    """Return the tokens in the cache of a call."""
    cache = kwargs.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


def blind_to_padding(name: str) -> tuple[nn.Module, None]:
    """Positions count padding: those given are not used."""
    model = build(name)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        ids_BT = kwargs.get("input_ids", args[0] if args else None)
        done = _cached(kwargs)
        kwargs["position_ids"] = torch.arange(done, done + ids_BT.shape[1])[None].expand_as(ids_BT)
        return original(*args, **kwargs)

    _wrap(model, "forward", forward)
    return model, None


def no_alibi_with_a_cache(name: str) -> tuple[nn.Module, None]:
    """ALiBi is zero as soon as there is a cache."""
    model = build(name)
    built = {"bloom": "_get_alibi_slopes", "mpt": "build_mpt_alibi_tensor", "falcon": "build_alibi_tensor"}[name]

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bias = sys.modules[type(model).__module__].__dict__[built]
        done = _cached(kwargs)
        with _other_function(model, built, lambda *a, **k: bias(*a, **k) * (0.0 if done else 1.0)):
            return original(*args, **kwargs)

    _wrap(model, "forward", forward)
    return model, None


def bf16_angles(name: str) -> tuple[nn.Module, None]:
    """Angles are computed in the dtype of the activations."""
    model = build(name)

    class Rotary(type(model.model.rotary_emb)):  # a copy of the model has it too
        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            angle_BTE = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
            both_BTE = torch.cat([angle_BTE, angle_BTE], -1)
            return both_BTE.cos(), both_BTE.sin()

    model.model.rotary_emb.__class__ = Rotary
    return model, None


def lost_scaling(name: str) -> tuple[nn.Module, None]:
    """The scaling that the configuration asks for is not applied."""
    model = build(name)
    rotary = model.model.rotary_emb
    lanes = 2 * rotary.inv_freq.numel()
    theta = model.config.rope_parameters["rope_theta"]
    rotary.inv_freq.copy_(theta ** (-torch.arange(0, lanes, 2) / lanes))
    rotary.attention_scaling = 1.0
    return model, None


def wrong_lanes(name: str) -> tuple[nn.Module, nn.Module]:
    """Neighbouring lanes turn together, where lanes half a head apart should."""
    model, reference = build(name), build(name)

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: object) -> tuple[Tensor, Tensor]:
        cos, sin = (one[..., : one.shape[-1] // 2].repeat_interleave(2, -1)[:, None] for one in (cos, sin))

        def quarter(x: Tensor) -> Tensor:
            return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)

        return q * cos + quarter(q) * sin, k * cos + quarter(k) * sin

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _other_function(model, "apply_rotary_pos_emb", turned):
            return original(*args, **kwargs)

    _wrap(model, "forward", forward)
    return model, reference


def wider_window(name: str) -> tuple[nn.Module, None]:
    """A query sees one key more than the configuration says."""
    model = build(name)
    model.model.config = deepcopy(model.config)
    model.model.config.sliding_window += 1
    return model, None


def dropped_sink(name: str) -> tuple[nn.Module, None]:
    """Attention takes the sinks and does not use them."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    model = build(name)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _other_function(model, "eager_attention_forward", eager_attention_forward):
            return original(*args, **kwargs)

    _wrap(model, "forward", forward)
    return model, None


def rotation_in_a_nope_layer(name: str) -> tuple[nn.Module, None]:
    """A layer without positions turns its keys all the same."""
    model = build(name)
    attention = model.model.layers[3].self_attn
    if name == "cohere2":
        attention.sliding_window = 8  # it turns where it has one; the mask is made elsewhere
    elif name == "exaone4":
        attention.is_sliding = True
    else:
        attention.use_rope = 1
    return model, None


def off_by_one_in_chunks(name: str) -> tuple[nn.Module, None]:
    """The positions of a chunk start one too late."""
    model = build(name)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        ids_BT = kwargs.get("input_ids", args[0] if args else None)
        if (done := _cached(kwargs)) and ids_BT.shape[1] > 1:
            kwargs["position_ids"] = torch.arange(done + 1, done + 1 + ids_BT.shape[1])[None]
        return original(*args, **kwargs)

    _wrap(model, "forward", forward)
    return model, None


FAULTS: dict[str, tuple[Callable[[str], tuple[nn.Module, nn.Module | None]], tuple[str, ...], str]] = {
    # fault → (how it is planted, architectures, what the doctor says)
    "left-pad-blind positions": (blind_to_padding, ("gpt2", "opt", "gpt-neo", "xglm"), "left padding"),
    "dropped ALiBi under the cache": (no_alibi_with_a_cache, ("bloom", "mpt", "falcon"), "cache"),
    "bf16 angles": (bf16_angles, ("llama", "mistral", "qwen3", "smollm3"), "dtype"),
    "lost scaling": (lost_scaling, ("llama, yarn", "llama, llama3", "llama, linear", "gpt-oss"), "frequencies"),
    "wrong lanes": (wrong_lanes, ("llama", "mistral", "smollm3", "qwen3"), "angles"),
    "off-by-one window": (wider_window, ("mistral", "gemma3", "olmo3", "cohere2", "gpt-oss"), "window"),
    "dropped sink": (dropped_sink, ("gpt-oss", "granite-swa", "flint"), "parameters"),
    "RoPE in a NoPE layer": (rotation_in_a_nope_layer, ("smollm3", "cohere2", "exaone4"), "encoding"),
    "off-by-one in chunked prefill": (off_by_one_in_chunks, ("llama", "gpt2", "mistral"), "chunked prefill"),
}
