"""What a model's configuration asks for, beside what is in force.

Frequencies are computed from the configuration by the formulas of transformers; a model whose own modules lost them on
the way (a scaling that is not applied, a base that was not read) differs from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from lengthwise.foreign.encodings import LayerEncoding, ModelEncodings, Rotation, ranges

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
    window: int | None = None
    chunk: int | None = None


def compare_with_configuration(found: ModelEncodings, model: nn.Module) -> list[Mismatch]:
    """Return what the configuration of a model asks for and its layers do not do; nothing if it has none."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "model_type"):
        return []
    by_text: dict[tuple[str, str, str], list[int]] = {}
    for number, layer in enumerate(found.layers):
        for line in _differences(request(config, number), layer, found.looked):
            by_text.setdefault(line, []).append(number)
    for name in unused_parameters(model):
        by_text.setdefault(("parameters", name, "changes nothing in the logits"), [])
    return [Mismatch(ranges(own), *line) for line, own in by_text.items()]


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
    without, bases = _get(config, "no_rope_layers"), _get(config, "layer_rope_theta")
    if alibi or (without and not without[number]) or (bases and not bases[number]):
        return Request(False, alibi=alibi, window=window, chunk=chunk)
    if config.model_type in NOPE_IN_FULL_ATTENTION and kind == "full_attention":
        return Request(False, window=window, chunk=chunk)
    frequencies, factor, changes = _rotation(config, kind, _head_width(config, number))
    return Request(bool(frequencies) or None, frequencies, factor, changes, window=window, chunk=chunk)


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
    elif wanted.frequencies and layer.rotation is not None:
        found += _rotation_differences(wanted, layer.rotation)
    in_force = layer.window or layer.chunk
    asked = wanted.window or wanted.chunk
    if asked != in_force and (asked or 0) < looked:
        found.append(("window", "all" if asked is None else str(asked), "all" if in_force is None else str(in_force)))
    return found


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


def unused_parameters(model: nn.Module) -> Sequence[str]:
    """Return the kinds of parameters that take no part in the logits, such as sinks that a backend drops."""
    import torch

    device = next(model.parameters()).device
    logits_BTV = model(torch.arange(3, 11, device=device)[None], use_cache=False).logits
    chosen = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    gradients = torch.autograd.grad(logits_BTV.float().square().sum(), [one for _, one in chosen], allow_unused=True)
    unused = [name for (name, _), gradient in zip(chosen, gradients, strict=True) if gradient is None]
    # An expert of a mixture that no token was sent to is no fault: only what is unused in every layer counts.
    kinds: dict[str, list[bool]] = {}
    for name, _ in chosen:
        kind = ".".join("*" if part.isdigit() else part for part in name.split("."))
        kinds.setdefault(kind, []).append(name in unused)
    return [kind for kind, all_unused in kinds.items() if all(all_unused) and "expert" not in kind]
