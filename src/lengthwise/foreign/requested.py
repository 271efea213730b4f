"""What a model's configuration asks for, beside what is in force.

Frequencies are computed from the configuration by the formulas of transformers; a model whose own modules lost them on
the way (a scaling that is not applied, a base that was not read) differs from that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from typing import Any

from torch import nn

from lengthwise.foreign.encodings import LayerEncoding, ModelEncodings, Rotation, ranges
from lengthwise.foreign.identify import STRIDES, TOKENS
from lengthwise.foreign.recorder import vocabulary_size

NOPE_IN_FULL_ATTENTION = frozenset({"cohere2", "exaone4", "exaone4_5", "exaone_moe", "afmoe", "flint"})
"""Models whose layers with full attention have no rotation, which their configurations do not say."""
SAME_FREQUENCY = 1.5e-3
"""Frequencies closer than this, relative, are the same: bf16 rounds by up to .004, probing is exact to .0005."""
READ_WELL = 1e-3
"""Slower frequencies, in radians per position, are read less exactly; for those a difference of 5 % counts."""


@dataclass(frozen=True)
class Mismatch:
    """Something that the configuration asks for and that is not in force."""

    layers: str
    what: str
    requested: str
    in_force: str

    def sentence(self) -> str:
        """Say what is asked for and what is in force."""
        if not self.layers:
            return f"{self.what}: {self.requested} {self.in_force}."
        place = f"layer{'s' * (not self.layers.isdigit())} {self.layers}"
        return f"{self.what} of {place}: the configuration asks for {self.requested}, in force is {self.in_force}."

    def plain(self) -> dict[str, str]:
        """The mismatch as data."""
        return asdict(self)


@dataclass(frozen=True)
class Request:
    """What a configuration asks for in one layer."""

    rope: bool | None
    """None if the configuration does not say."""
    frequencies: tuple[float, ...] = ()
    factor: float | None = None
    changes_with_length: bool = False
    alibi: bool = False
    slopes: tuple[float, ...] = ()
    temperature: float = 1.0
    window: int | None = None
    chunk: int | None = None


def compare_with_configuration(found: ModelEncodings, model: nn.Module) -> list[Mismatch]:
    """Return what a model's configuration asks for and its layers do not do; empty without a configuration."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "model_type"):
        return []
    by_text: dict[tuple[str, str, str], list[int]] = {}
    for place, layer in enumerate(found.layers):
        number = place if layer.number is None else layer.number
        for line in _differences(request(config, number), layer, found.looked):
            by_text.setdefault(line, []).append(number)
    for name in unused_parameters(model, [layer.module for layer in found.layers]):
        by_text.setdefault(("parameters", name, "changes nothing in the logits"), [])
    if found.embedding == "none" and (table := _position_table(model)):
        by_text.setdefault(("positions", table, "changes nothing with the position"), [])
    return [Mismatch(ranges(own), *line) for line, own in by_text.items()]


_NOT_COMPARED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")


def differing_settings(port: nn.Module, reference: nn.Module) -> list[str]:
    """Return the settings in which the configurations of two models differ, but for names and versions."""
    configs = [getattr(model, "config", None) for model in (port, reference)]
    both = [_flat(one.to_dict()) if hasattr(one, "to_dict") else {} for one in configs]
    names = [name for name in dict.fromkeys((*both[0], *both[1])) if both[0].get(name) != both[1].get(name)]
    return [f"{name}: {both[0].get(name)}, in the reference {both[1].get(name)}" for name in names]


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The settings of a configuration, those inside a setting as `outer.inner`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}.")
        elif name not in _NOT_COMPARED:
            flat[f"{before}{name}"] = value
    return flat


def request(config: Any, number: int) -> Request:  # noqa: ANN401 (configurations have no common type)
    """Return what a configuration asks for in a layer."""
    config = getattr(config, "text_config", None) or config
    types = _get(config, "layer_types") or _get(config, "attention_layers")
    kind = types[number] if types else None
    window = chunk = None
    if kind is None or "sliding" in kind or kind == "local":
        wide = _get(config, "sliding_window") if kind != "local" else _get(config, "window_size")
        window = wide if isinstance(wide, int) and _get(config, "use_sliding_window") is not False else None
    elif "chunk" in kind:
        chunk = _get(config, "attention_chunk_size")
    alibi = bool(_get(config, "alibi")) or config.model_type == "bloom"
    if config.model_type == "mpt":
        alibi = bool(config.attn_config.alibi)
    if _get(config, "position_embedding_type") == "nope":
        return Request(False, window=window, chunk=chunk)
    without, bases = _get(config, "no_rope_layers"), _get(config, "layer_rope_theta")
    if alibi or (without and not without[number]) or (bases and not bases[number]):
        return Request(False, alibi=alibi, slopes=_slopes(config) if alibi else (), window=window, chunk=chunk)
    if config.model_type in NOPE_IN_FULL_ATTENTION and kind == "full_attention":
        return Request(False, window=window, chunk=chunk)
    frequencies, factor, changes = _rotation(config, kind, _head_width(config, number))
    return Request(
        bool(frequencies) or None,
        frequencies,
        factor,
        changes,
        temperature=_temperature(config),
        window=window,
        chunk=chunk,
    )


def _slopes(config: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Return ALiBi's slopes; none if the number of heads is no power of two, where models differ."""
    heads = _get(config, "n_heads") or _get(config, "n_head") or _get(config, "num_attention_heads")
    if not isinstance(heads, int) or heads & (heads - 1):
        return ()
    most = config.attn_config.alibi_bias_max if config.model_type == "mpt" else 8
    scale = (config.hidden_size // heads) ** -0.5 if config.model_type == "falcon" else 1.0
    return tuple(scale * 2 ** (-most * (head + 1) / heads) for head in range(heads))


def _temperature(config: Any) -> float:  # noqa: ANN401
    """Return by how much queries grow up to the farthest position probed, in models that say it (Ministral 3)."""
    own = _get(config, "rope_parameters") or {}
    beta, first = own.get("llama_4_scaling_beta"), own.get("original_max_position_embeddings")
    if not beta or not first:
        return 1.0
    return 1 + beta * log(1 + (TOKENS - 1) * STRIDES[-1] // first)


def _get(config: Any, name: str) -> Any:  # noqa: ANN401
    """Return a field of a configuration; None if it has none, or another for each layer."""
    try:
        return getattr(config, name, None)
    except (AttributeError, ValueError, RuntimeError, TypeError):
        return None


def _head_width(config: Any, number: int) -> int | None:  # noqa: ANN401
    """Return the width of the heads of a layer, which may have its own."""
    by_layer = _get(config, "per_layer_config")
    return _get(config if by_layer is None else by_layer[number], "head_dim")


def _rotation(config: Any, kind: str | None, own_width: int | None) -> tuple[tuple[float, ...], float | None, bool]:  # noqa: ANN401
    """Return frequencies, attention factor, and whether they change with the length."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    lanes = _get(config, "rotary_dim")
    parameters = _get(config, "rope_parameters")
    if not parameters:
        return (_frequencies(10_000.0, lanes), None, False) if isinstance(lanes, int) else ((), None, False)
    nested = any(isinstance(one, dict) for one in parameters.values())
    own = parameters.get(kind) if nested else parameters
    if not own:
        return (), None, False
    rope_type = own.get("rope_type", "default")
    if rope_type == "default":
        width = own_width or config.hidden_size // config.num_attention_heads
        return _frequencies(own["rope_theta"], int(width * own.get("partial_rotary_factor", 1.0))), 1.0, False
    if rope_type not in ROPE_INIT_FUNCTIONS:
        return (), None, False
    given = {"layer_type": kind} if nested else {}
    values, factor = ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=1, **given)
    turning = tuple(one for one in values.tolist() if one > 0)
    return turning, float(factor), rope_type in {"dynamic", "longrope"}


def _frequencies(theta: float, lanes: int) -> tuple[float, ...]:
    return tuple(theta ** (-2 * pair / lanes) for pair in range((lanes + 1) // 2))


def _differences(wanted: Request, layer: LayerEncoding, looked: int) -> list[tuple[str, str, str]]:
    """Return (what, requested, in force) for everything in which a layer differs from its request."""
    found = list[tuple[str, str, str]]()
    if wanted.rope is not None and wanted.rope != (layer.rotation is not None):
        found.append(("encoding", "rope" if wanted.rope else "alibi" if wanted.alibi else "nope", layer.name))
    elif wanted.alibi and not layer.slopes:
        found.append(("encoding", "alibi", layer.name))
    elif wanted.slopes and not _close(wanted.slopes, layer.slopes, 0.02):
        found.append(("slopes", _range(wanted.slopes), _range(layer.slopes)))
    elif wanted.frequencies and layer.rotation is not None:
        found += _rotation_differences(wanted, layer.rotation)
    asked_for = wanted.temperature != 1.0  # other models have temperatures of which their configurations say nothing
    if asked_for and layer.temperature is not None and abs(layer.temperature / wanted.temperature - 1) > 0.01:
        found.append(("temperature", f"up to × {wanted.temperature:.4g}", f"up to × {layer.temperature:.4g}"))
    asked, in_force = (wanted.window, wanted.chunk), (layer.window, layer.chunk)
    if asked != in_force and (wanted.window or wanted.chunk or 0) < looked:
        found.append(("window", _window(*asked), _window(*in_force)))
    return found


def _close(asked: Sequence[float], got: Sequence[float], most: float) -> bool:
    return len(asked) == len(got) and all(abs(one / other - 1) <= most for one, other in zip(got, asked, strict=True))


def _range(slopes: Sequence[float]) -> str:
    return f"{slopes[0]:.3g} to {slopes[-1]:.3g}"


def _window(window: int | None, chunk: int | None) -> str:
    return str(window) if window else f"chunks of {chunk}" if chunk else "all"


def _rotation_differences(wanted: Request, turned: Rotation) -> list[tuple[str, str, str]]:
    if len(wanted.frequencies) != len(turned.frequencies):
        return [("pairs of lanes that turn", str(len(wanted.frequencies)), str(len(turned.frequencies)))]
    if wanted.changes_with_length != turned.changes_with_length:
        words = {True: "changes with length", False: "the same at every length"}
        return [("scaling", words[wanted.changes_with_length], words[turned.changes_with_length])]
    worst = _first_difference(wanted, turned)
    if worst is not None:
        pairs, width = turned.pairs, turned.head_width
        asked = Rotation(wanted.frequencies, pairs, width, wanted.factor, wanted.changes_with_length)
        names = [f"theta {one.theta:.4g}, scaling {one.scaling}" for one in (asked, turned)]
        if names[0] == names[1]:
            names = [f"{one[worst]:.6g} for pair {worst}" for one in (wanted.frequencies, turned.frequencies)]
        return [("frequencies", names[0], names[1])]
    if wanted.factor is not None and turned.factor is not None and abs(turned.factor / wanted.factor - 1) > 0.01:
        return [("attention factor", f"{wanted.factor:.4g}", f"{turned.factor:.4g}")]
    return []


def _first_difference(wanted: Request, turned: Rotation) -> int | None:
    """Return the first pair of lanes that turns otherwise than requested."""
    for pair, (asked, got) in enumerate(zip(wanted.frequencies, turned.frequencies, strict=True)):
        if turned.changes_with_length and asked < 0.05:
            continue  # slow pairs are read at large positions, where they differ on purpose
        if abs(got / asked - 1) > (SAME_FREQUENCY if asked > READ_WELL else 0.05):
            return pair
    return None


def _position_table(model: nn.Module) -> str:
    """Return the name of a table that has a row for each position; nothing if there is none."""
    last = _get(model.config, "max_position_embeddings")
    sizes = {last, (last or 0) + 2} - {vocabulary_size(model)}  # OPT has two rows more
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings in sizes:
            return name
    return ""


def unused_parameters(model: nn.Module, attention: Sequence[str]) -> list[str]:
    """Return parameters of layers with attention that take no part in the logits, such as sinks that a backend drops.

    Experts of a mixture are left out: no token may have been sent to them.
    """
    import torch

    device, size = next(model.parameters()).device, vocabulary_size(model)
    layers = {found[1] for name in attention if (found := re.match(r"(.*?\.)\d+", name))}
    chosen = [(name, one) for name, one in model.named_parameters() if name.startswith(tuple(layers))]
    were = [one.requires_grad for _, one in chosen]
    try:
        with torch.enable_grad():
            for _, one in chosen:
                one.requires_grad_(True)
            logits_BTV = model(torch.arange(3, 11, device=device)[None] % size, use_cache=False).logits
            total = logits_BTV.float().square().sum()
            gradients = torch.autograd.grad(total, [one for _, one in chosen], allow_unused=True) if chosen else ()
    finally:
        for (_, one), before in zip(chosen, were, strict=True):
            one.requires_grad_(before)
    unused: dict[str, list[str]] = {}
    used = set[str]()
    for (name, _), gradient in zip(chosen, gradients, strict=True):
        kind = ".".join("*" if part.isdigit() else part for part in name.split("."))
        if gradient is None:
            unused.setdefault(kind, []).append(name)
        else:
            used.add(kind)
    return [kind if kind not in used else ", ".join(names) for kind, names in unused.items() if "expert" not in kind]
