"""Changes of a model at test time that may let it work further, and that are taken back exactly.

`linear:factor=4` (position interpolation), `ntk:factor=4` and `yarn:factor=4` change the frequencies of RoPE; `log_n`
sharpens attention where there are more tokens than in training; `drop_rope:layers=[3,7]` turns nothing in these layers.
Each change is looked for in the model's behaviour before anything is measured with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from torch import Tensor, nn

from lengthwise.display import Display, Part
from lengthwise.foreign.encodings import ModelEncodings
from lengthwise.foreign.identify import identify
from lengthwise.foreign.losses import in_eval_mode, require_aligned_logits
from lengthwise.foreign.reach import checked_lengths, perplexity_rows, recall_rows, text_windows, usable_or_own
from lengthwise.foreign.recorder import attention_modules
from lengthwise.foreign.rows import Row
from lengthwise.foreign.temperature import scaled_queries
from lengthwise.progress import Say, progress
from lengthwise.spec import Spec, SpecError, did_you_mean

OPTIONS: dict[str, frozenset[str]] = {
    "linear": frozenset({"factor"}),
    "ntk": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "log_n": frozenset(),
    "drop_rope": frozenset({"layers"}),
}
"""The changes, and the options that each must have."""
UNCHANGED = "none"
"""The name of the model as it is, in rows."""
CLOSE = 0.03
"""Frequencies that were read back may differ by this share from what was asked for."""
FAST, SLOW = 32.0, 1.0
"""YaRN: pairs that turn more often than the first in the trained length stay, those below the second are slowed."""


@contextmanager
def changed(model: nn.Module, spec: str | Spec, trained_length: int) -> Iterator[None]:
    """Change a model as a spec says, e.g. `yarn:factor=4`, and take it back at the end, also after an exception.

    What the change does is read back from the model's behaviour; `SpecError` if it is not what was asked for.
    """
    spec = checked_change(spec)
    if trained_length < 2:
        raise SpecError(f"a change needs the trained length in tokens, at least 2, not {trained_length}")
    options = dict(spec.options)
    with ExitStack() as stack:
        # Reading back must not leave anything behind either: some models grow tables when they see far positions.
        stack.enter_context(restored(model))
        with in_eval_mode(model):
            if spec.name == "log_n":
                stack.enter_context(scaled_queries(model, trained_length))
            elif spec.name == "drop_rope":
                _drop_rope(model, _layers(options["layers"], str(spec)), stack)
            else:
                _scale_rope(model, spec.name, _factor(options["factor"], str(spec)), trained_length)
        yield


def checked_change(spec: str | Spec) -> Spec:
    """Return the spec of a change; an unknown name or option, or a missing one, is an error."""
    spec = Spec.of(spec)
    if spec.name not in OPTIONS:
        raise SpecError(f"unknown change {spec.name!r}.{did_you_mean(spec.name, OPTIONS)}")
    given, known = {key for key, _ in spec.options}, OPTIONS[spec.name]
    for key in sorted(given - known):
        raise SpecError(f"change {spec.name!r} has no option {key!r}.{did_you_mean(key, known) or ' It has none.'}")
    for key in sorted(known - given):
        example = {"factor": "factor=4", "layers": "layers=[3,7]"}[key]
        raise SpecError(f"change {spec.name!r} needs {key!r}; write {spec.name}:{example}")
    for key, value in spec.options:
        (_factor if key == "factor" else _layers)(value, str(spec))
    return spec


def _factor(value: object, spec: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value < 1e6:
        raise SpecError(f"in {spec!r}, factor says how many times longer texts are: a number above 1, e.g. factor=4")
    return float(value)


def _layers(value: object, spec: str) -> list[int]:
    """Read `[3,7]`, `3` or `3,7`."""
    listed = value.split(",") if isinstance(value, str) else value if isinstance(value, tuple) else [value]
    try:
        found = sorted({int(str(one)) for one in listed})
    except ValueError:
        found = []
    if not found or found[0] < 0:
        raise SpecError(f"in {spec!r}, layers are numbers from 0, e.g. layers=[3,7]")
    return found


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give every module that holds rotary frequencies back what it had: buffers, numbers and tables."""
    kept = []
    for module, _, _ in _rotary_buffers(model):
        buffers = {name: (one, one.clone()) for name, one in module.named_buffers(recurse=False)}
        plain = {name: one for name, one in vars(module).items() if isinstance(one, bool | int | float | Tensor)}
        kept.append((module, buffers, plain))
    try:
        yield
    finally:
        for module, buffers, plain in kept:
            for name in [*module._buffers]:
                if name not in buffers:
                    del module._buffers[name]
            for name, (buffer, values) in buffers.items():
                module._buffers[name] = buffer
                buffer.copy_(values)
            for name, one in [*vars(module).items()]:
                if isinstance(one, bool | int | float | Tensor) and name not in plain:
                    del vars(module)[name]
            vars(module).update(plain)


# --- RoPE's frequencies ----------------------------------------------------------------------------------------------


def _rotary_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Return modules with their buffers of frequencies; a model may have one for each kind of layer."""
    return [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq") and "original" not in name
    ]


def _scale_rope(model: nn.Module, kind: str, factor: float, trained_length: int) -> None:
    """Replace the frequencies of every layer that turns, and the factor of cos and sin if YaRN has one."""
    buffers = _rotary_buffers(model)
    if not buffers:
        raise SpecError(
            f"{kind} has nothing to scale: no module of this model holds rotary frequencies in a buffer inv_freq; "
            "log_n needs none"
        )
    before = identify(model)
    if all(layer.rotation is None for layer in before.layers):
        raise SpecError(f"{kind} has nothing to scale: no layer of this model turns its keys; log_n needs no rotation")
    for number, layer in enumerate(before.layers):
        turned = layer.rotation
        if turned is not None and (turned.changes_with_length or turned.scaling != "none"):
            has = "a scaling that changes with the length" if turned.changes_with_length else turned.scaling
            raise SpecError(
                f"{kind} is defined for frequencies that are not scaled; layer {number} has {has} already: "
                "load the model without it"
            )
    grown = 0.1 * log(factor) + 1 if kind == "yarn" else 1.0
    wanted: list[Tensor] = []
    for module, name, buffer in buffers:
        scaled_F = scaled_frequencies(kind, buffer, factor, trained_length)
        buffer.copy_(scaled_F)
        wanted.append(scaled_F[scaled_F > 0].double().sort(descending=True).values)
        attribute = name.removesuffix("inv_freq") + "attention_scaling"
        if kind == "yarn" and isinstance(own := getattr(module, attribute, None), int | float):
            setattr(module, attribute, own * grown)
    _require_frequencies(kind, before, identify(model), wanted, grown)


def scaled_frequencies(kind: str, frequency_F: Tensor, factor: float, trained_length: int) -> Tensor:
    """Return the frequencies of a scaling, fastest first; those that are 0, of lanes that never turn, stay.

    `linear` divides all by the factor. `ntk` leaves the fastest and divides the slowest, with powers between. `yarn`
    leaves pairs that turn 32 times and more in the trained length, divides those that turn less than once, and takes
    a line over the pairs between, as its authors' code does (Peng et al. 2023, arXiv:2309.00071).
    """
    f_F = frequency_F.double()
    turning_F = f_F > 0
    pairs = int(turning_F.sum())
    if kind == "linear":
        return (f_F / factor).to(frequency_F)
    if pairs < 2:
        raise SpecError(f"{kind} needs at least two pairs of lanes that turn, here there is {pairs}: use linear")
    index_F = torch.arange(len(f_F), dtype=f_F.dtype, device=f_F.device)
    if kind == "ntk":
        return torch.where(turning_F, f_F / factor ** (index_F / (pairs - 1)), f_F).to(frequency_F)
    step = float((f_F[0] / f_F[pairs - 1]).log()) / (pairs - 1)  # ln θ / pairs of the whole head

    def pair(turns: float) -> float:
        return (log(trained_length / (turns * 2 * pi)) + float(f_F[0].log())) / step

    first, last = max(floor(pair(FAST)), 0), min(ceil(pair(SLOW)), 2 * pairs - 1)
    if last < first:
        raise SpecError(f"in {trained_length} tokens no pair turns once, so yarn cannot tell pairs apart: use linear")
    slowed_F = ((index_F - first) / max(last - first, 0.001)).clamp(0, 1)
    return (f_F * (1 - slowed_F) + f_F / factor * slowed_F).to(frequency_F)


def _require_frequencies(
    kind: str, before: ModelEncodings, after: ModelEncodings, wanted: Sequence[Tensor], grown: float
) -> None:
    """Raise unless each layer turns its keys by one of the wanted lists of frequencies, and lets them grow as asked."""
    for number, (old, new) in enumerate(zip(before.layers, after.layers, strict=True)):
        if old.rotation is None:
            continue
        found = [] if new.rotation is None else sorted(new.rotation.frequencies, reverse=True)
        # The slowest pairs may now be too slow to be seen.
        fits = any(
            len(one) >= len(found) > 0
            and all(abs(seen / float(own) - 1) < CLOSE for seen, own in zip(found, one, strict=False))
            for one in wanted
        )
        factors = None if new.rotation is None else (old.rotation.factor, new.rotation.factor)
        if fits and factors is not None and factors[0] is not None and factors[1] is not None:
            fits = abs(factors[1] / factors[0] / grown - 1) < CLOSE
        if not fits:
            raise SpecError(
                f"{kind} did not take effect in layer {number} ({old.module}): its keys turn as "
                f"{'before' if new.rotation == old.rotation else 'was not asked for'}. The model computes its angles "
                "elsewhere or overwrites them; this change cannot be made from outside"
            )


# --- layers without rotation -----------------------------------------------------------------------------------------


def _drop_rope(model: nn.Module, layers: Sequence[int], stack: ExitStack) -> None:
    """Give the attention of chosen layers angles of 0; cos keeps its factor."""
    modules, before = attention_modules(model), identify(model)
    for number in layers:
        if number >= len(modules):
            raise SpecError(f"there is no layer {number}: this model has layers 0 to {len(modules) - 1}")
        if before.layers[number].rotation is None:
            turning = [str(one) for one, layer in enumerate(before.layers) if layer.rotation is not None]
            raise SpecError(f"layer {number} turns nothing already; layers that turn: {', '.join(turning) or 'none'}")
    found: set[int] = set()

    def without_angles(number: int) -> Callable[..., tuple[Any, Any]]:
        def replace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            angles = kwargs.get("position_embeddings")
            if angles is not None:
                found.add(number)
                kwargs = {**kwargs, "position_embeddings": _zero_angles(angles)}
            return args, kwargs

        return replace

    for number in layers:
        hook = modules[number].register_forward_pre_hook(without_angles(number), with_kwargs=True)
        stack.callback(hook.remove)
    after = identify(model)
    for number, (old, new) in enumerate(zip(before.layers, after.layers, strict=True)):
        if number in layers and new.rotation is not None:
            where = "" if number in found else ", because its attention is given no position_embeddings"
            raise SpecError(f"the rotation of layer {number} ({old.module}) cannot be dropped from outside{where}")
        if number not in layers and (new.rotation is None) != (old.rotation is None):
            raise SpecError(f"dropping the rotation of other layers changed layer {number} ({old.module}) too")


def _zero_angles(angles: object) -> object:
    """Return cos and sin, or complex numbers, of angles of 0, as large as they were."""
    if isinstance(angles, Tensor):
        return angles.abs().to(angles)
    cos, sin = angles  # pyrefly: ignore
    return (cos**2 + sin**2).sqrt(), torch.zeros_like(sin)


# --- before and after ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ChangeComparison(Display):
    """Perplexity and retrieval by context, unchanged (`none`) and with each change, on the same targets and questions.

    Rows are those of `Reach`, with `change` first.
    """

    rows: tuple[Row, ...]
    trained_length: int
    refused: Mapping[str, str]
    """Changes that this model does not take, and why."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A table for perplexity and one for retrieval: a line for each change, a column for each length."""
        for measure, form in (("perplexity", ".4g"), ("retrieval", ".2f")):
            own = [row for row in self.rows if row["measure"] == measure]
            lines: dict[str, dict[str, str]] = {}
            for row in own:
                line = lines.setdefault(row["change"], {measure: row["change"]})
                line[f"{row['length']:,}"] = format(row["value"], form)
            yield Part(list(lines.values()))
        for name, reason in self.refused.items():
            yield Part(f"{name} was not measured: {reason}.")

    def plain(self) -> dict[str, object]:
        """The rows, and the changes that were refused."""
        rows = [dict(row) for row in self.rows]
        return {"trained_length": self.trained_length, "rows": rows, "refused": dict(self.refused)}


def compare_changes(
    model: nn.Module,
    ids_T: Tensor,
    lengths: Sequence[int],
    specs: Sequence[str | Spec],
    *,
    trained_length: int,
    usable_ids: Sequence[int] | None = None,
    windows: int = 4,
    seed: int = 0,
    say: Say | None = None,
) -> ChangeComparison:
    """Measure a model's perplexity and retrieval as it is and with each change, on the same targets and questions.

    A change that the model does not take is listed with the reason; a change that is misspelt is an error.
    """
    asked = [checked_change(spec) for spec in specs]
    lengths, ids_T = checked_lengths(lengths), ids_T.to(torch.long)
    usable, windows_WT = usable_or_own(usable_ids, ids_T), text_windows(ids_T, lengths[-1], windows)
    rows, refused = list[Row](), dict[str, str]()
    with in_eval_mode(model), progress(say) as tell:
        require_aligned_logits(model, ids_T)
        for spec in (None, *asked):
            name = UNCHANGED if spec is None else str(spec)

            def tell_which(words: str, name: str = name) -> None:
                tell(f"{name}: {words}")

            with ExitStack() as stack:
                try:
                    if spec is not None:
                        stack.enter_context(changed(model, spec, trained_length))
                except SpecError as error:
                    refused[name] = str(error)
                    continue
                own = perplexity_rows(model, windows_WT, lengths, tell_which)
                own += recall_rows(model, ids_T, lengths, ("retrieval",), usable, seed, tell_which)
                rows += [{"change": name, **row} for row in own]
    return ChangeComparison(tuple(rows), trained_length, refused)
