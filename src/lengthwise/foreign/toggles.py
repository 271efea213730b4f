"""Is the code around a model right? Each toggle calls it in two ways that must give the same logits.

Padding, cache, chunks, packing, dtype, attention backend and reloading change nothing in a correct implementation. A
toggle says how much the logits changed, in standard deviations of the logits, and the smallest case in which they did.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lengthwise.foreign.calls import (
    SAME,
    Cases,
    Failed,
    NotOffered,
    Probe,
    batch_cases,
    chunks_cases,
    offered,
    packed_cases,
    padding_cases,
)
from lengthwise.foreign.recorder import attention_modules, record_attention, states_before
from lengthwise.spec import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAR = 61
"""Distance between positions that are far apart."""
RELOADED = 2_000_000_000
"""Models with more parameters are not written to disk."""
_SUPPORTS = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn"}
RIGHT, WRONG, NOT_OFFERED = "right", "wrong", "not offered"


@dataclass(frozen=True)
class Toggle:
    """What one toggle found."""

    name: str
    answer: str
    """`right`, `wrong`, or `not offered` by this model, which is no fault."""
    change: float | None = None
    """The largest change, of a logit in standard deviations; None if nothing was compared."""
    case: str = ""
    """The smallest case that fails, or why it is not offered."""
    resembles: str = ""
    """A public bug with the same symptom."""
    quantity: str = "logits"
    """What was compared."""

    def sentence(self, follows: bool = False) -> str:
        """Say what is wrong; or that it follows from a configuration that is not in force, as stated before."""
        size = {
            "logits": f": logits change by {self.change:.2g} standard deviations",
            "keys": f": keys change by {self.change:.0%}",
        }.get(self.quantity, "")
        if follows:
            return f"{self.name}: {self.case}{size}. This follows from the line above: only the configuration is saved."
        return f"{self.name}: {self.case}{size}. A public bug with this symptom: {self.resembles}."

    def plain(self) -> dict[str, object]:
        """The toggle as data."""
        return asdict(self)


def check_toggles(
    probe: Probe,
    *,
    relative: bool = False,
    flex: bool = False,
    said: Callable[[str], None] = lambda _: None,
) -> list[Toggle]:
    """Toggle one thing after the other.

    Only distances count in a model that is `relative`, so that it must not change with all positions shifted. `flex`
    also tries FlexAttention, which takes a minute to compile on a CPU.
    """
    found = list[Toggle]()

    def padded() -> bool:  # a fault of padding alone is not blamed on the cache
        return next(one for one in found if one.name == "left padding").answer == RIGHT

    backends = ("eager", "sdpa", *(("flex_attention",) if flex else ()))
    steps: list[tuple[str, Callable[[], Cases], str]] = [
        ("call history", lambda: _history(probe), "transformers#27227: scaling is not set back after a long text"),
        ("left padding", lambda: padding_cases(probe), "transformers#22161, nnsight#672: positions count padding"),
        ("batch", lambda: batch_cases(probe), "transformers#28385: results depend on the batch"),
        (
            "cache",
            lambda: chunks_cases(probe, (1,), padded()),
            "keras-hub#2861, #2977: offset or bias lost",
        ),
        (
            "chunked prefill",
            lambda: chunks_cases(probe, (3, 7, -1), padded()),
            "transformers#43082: wrong positions in a chunk",
        ),
        ("packed documents", lambda: packed_cases(probe), "nanoVLM#204: attention leaks between documents"),
        ("dtype", lambda: _dtype(probe), "SkyRL#1725: angles computed in bf16"),
        ("attention backend", lambda: _backends(probe, backends), "miles#1500: sinks dropped; transformers#39408"),
        (
            "save and reload",
            lambda: _reload(probe),
            "transformers#48892: memory and folder differ",
        ),
        ("shift", lambda: _shift(probe, relative), "rotary-embedding-torch#27: positions count from a wrong place"),
        ("past the table", lambda: _past_the_table(probe), "transformers#530: positions wrap around or are clamped"),
    ]
    for name, cases, bug in steps:
        said(name)
        found.append(_toggle(name, cases, bug))
    return found


def check_start_tokens(tokenizer: PreTrainedTokenizerBase) -> Toggle:
    """Say whether a tokenizer puts at most one beginning token before a text."""
    name, start = "start tokens", tokenizer.bos_token_id
    if start is None:
        return Toggle(name, NOT_OFFERED, None, "the tokenizer has no beginning token")
    try:
        ids = list(tokenizer("one two", verbose=False)["input_ids"])
    except Exception:  # noqa: BLE001 (tokenizers raises nothing narrower for a word that it does not know)
        usable = [one for one in range(len(tokenizer)) if one not in tokenizer.all_special_ids]
        own = " ".join(str(tokenizer.convert_ids_to_tokens(one)) for one in usable[-2:])
        try:
            ids = list(tokenizer(own, verbose=False)["input_ids"])
        except Exception as error:  # noqa: BLE001
            return Toggle(name, NOT_OFFERED, None, f"the tokenizer cannot read a text: {one_line(str(error))[:100]}")
    count = next((place for place, one in enumerate(ids) if one != start), len(ids))
    case = f"{count} beginning tokens before a text" if count > 1 else ""
    bug = "skylight-research#90: three beginning tokens" if count > 1 else ""
    return Toggle(name, WRONG if count > 1 else RIGHT, float(max(0, count - 1)), case, bug, "tokens")


def _toggle(name: str, cases: Callable[[], Cases], bug: str) -> Toggle:
    """Go through the cases of a toggle, the smallest first."""
    largest, failing = 0.0, ""
    try:
        with torch.no_grad():
            for case, change in cases():
                largest = max(largest, change)
                failing = failing or (case if change > SAME else "")
    except NotOffered as reason:
        return Toggle(name, NOT_OFFERED, None, str(reason))
    except Failed as reason:
        return Toggle(name, WRONG, None, str(reason), bug, "nothing")
    quantity = "keys" if name == "dtype" else "logits"
    return Toggle(name, WRONG if failing else RIGHT, largest, failing, bug if failing else "", quantity)


# --- dtype, backend, reload, history, table --------------------------------------------------------------------------


def _dtype(probe: Probe) -> Cases:
    """Compare keys in bf16 with those in float32, near and far: only angles in bf16 make far ones worse."""
    tokens = probe.ids_BT.shape[1]
    if (size := sum(one.numel() for one in probe.model.parameters())) > RELOADED:
        raise NotOffered(f"{size:,} parameters are not copied")
    with offered("bf16", (Exception,)):
        exact, rounded = deepcopy(probe.model), deepcopy(probe.model)
        for one in exact.parameters():
            one.copy_(one.bfloat16().float())
        for one in rounded.parameters():
            one.data = one.data.bfloat16()  # buffers stay as they are, as with from_pretrained(dtype=...)
        width = states_before(exact, attention_modules(exact)[0], probe.ids_BT).shape[2]
        states_BTD = torch.randn(1, 1, width, generator=torch.Generator().manual_seed(0)).bfloat16().float()
        states_BTD = states_BTD.expand(-1, tokens, -1)
        near = [_keys(one, probe.ids_BT, states_BTD, None) for one in (exact, rounded)]
    yield from _key_errors(near, 1)
    if "position_ids" in probe.takes:
        try:
            far = [_keys(one, probe.ids_BT, states_BTD, FAR) for one in (exact, rounded)]
        except Exception:  # noqa: BLE001 (past the end of a table)
            return
        yield from _key_errors(far, FAR)


def _keys(model: nn.Module, ids_BT: Tensor, states_BTD: Tensor, stride: int | None) -> list[Tensor]:
    """Return the keys of each layer for tokens whose positions are `stride` apart."""
    places_BT = None if stride is None else (torch.arange(ids_BT.shape[1]) * stride)[None]
    calls = record_attention(model, ids_BT, states_BTD, attention_modules(model), positions_BT=places_BT)
    return [call.keys_BHKE.float() for call in calls]


def _key_errors(keys: Sequence[Sequence[Tensor]], stride: int) -> Cases:
    """Return for each layer by how much more its farthest keys are off than its first, beyond rounding."""
    for layer, (wanted_BHKE, got_BHKE) in enumerate(zip(*keys, strict=True)):
        error_K = (got_BHKE - wanted_BHKE).norm(dim=-1).mean((0, 1)) / wanted_BHKE.norm(dim=-1).mean((0, 1))
        excess = float((error_K - error_K[0]).max()) - 0.02  # rounding of activations is below 2 %
        yield f"bf16, keys of layer {layer} at position {int(error_K.argmax()) * stride}", max(0.0, excess)


def _backends(probe: Probe, backends: Sequence[str]) -> Cases:
    model: Any = probe.model
    if not hasattr(model, "set_attn_implementation"):
        raise NotOffered("the model has no set_attn_implementation")
    before, compared, refused = model.config._attn_implementation, 0, []
    try:
        for name in backends:
            if name == before:
                continue
            try:
                if name in _SUPPORTS and not getattr(model, _SUPPORTS[name], False):
                    raise NotImplementedError(name)  # transformers falls back without an error
                model.set_attn_implementation(name)
                here = model if model.config._attn_implementation == name else _made_again(model, name)
                logits_BTV = here(probe.ids_BT, use_cache=False).logits
            except Exception:  # noqa: BLE001
                refused.append(name)
                continue
            compared += 1
            yield f"{before} against {name}", probe.change(logits_BTV)
    finally:
        model.set_attn_implementation(before)
    if not compared:
        raise NotOffered(f"the model has {before} only and refuses {', '.join(refused)}")


def _made_again(model: Any, backend: str) -> nn.Module:  # noqa: ANN401
    """Return a copy with another backend of a model that cannot be switched, such as Falcon."""
    copy = type(model)._from_config(deepcopy(model.config), attn_implementation=backend)
    copy.load_state_dict(model.state_dict())
    return copy.to(next(model.parameters())).eval()


def _reload(probe: Probe) -> Cases:
    model: Any = probe.model
    if not hasattr(model, "save_pretrained"):
        raise NotOffered("the model has no save_pretrained")
    if (size := sum(one.numel() for one in model.parameters())) > RELOADED:
        raise NotOffered(f"{size:,} parameters are not written to disk")
    config = deepcopy(model.config)
    with tempfile.TemporaryDirectory() as folder, offered("save and reload"):
        model.save_pretrained(folder)
        vars(model.config).update(vars(config))  # saving writes the dtype into it
        again = type(model).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=probe.logits_BTV.dtype,
            attn_implementation=model.config._attn_implementation,
        )
        logits_BTV = again.to(probe.ids_BT.device).eval()(probe.ids_BT, use_cache=False).logits
    yield "saved and loaded again", probe.change(logits_BTV)


def _history(probe: Probe) -> Cases:
    if "position_ids" not in probe.takes:
        raise NotOffered("forward takes no position_ids")
    far_BT = torch.arange(probe.ids_BT.shape[1], device=probe.ids_BT.device)[None] + 100_000
    with offered("far positions", (Exception,)):  # the end of a table
        probe.model(probe.ids_BT, position_ids=far_BT, use_cache=False)
    yield "after a call at position 100,000", probe.change(probe.model(probe.ids_BT, use_cache=False).logits)


def _shift(probe: Probe, relative: bool) -> Cases:
    if not relative:
        raise NotOffered("positions are absolute")
    if "position_ids" not in probe.takes:
        raise NotOffered("forward takes no position_ids")
    for shift in (1, 1000):
        place_BT = torch.arange(probe.ids_BT.shape[1], device=probe.ids_BT.device)[None] + shift
        with offered("shifted positions", (Exception,)):  # the end of a table
            logits_BTV = probe.model(probe.ids_BT, position_ids=place_BT, use_cache=False).logits
        yield f"all positions shifted by {shift}", probe.change(logits_BTV)


def _past_the_table(probe: Probe) -> Cases:
    """A position beyond a learned table must be refused, not wrapped around or clamped to another."""
    last = getattr(getattr(probe.model, "config", None), "max_position_embeddings", None)
    if "position_ids" not in probe.takes or not isinstance(last, int):
        raise NotOffered("forward takes no position_ids, or the configuration names no last position")

    def at(place: int) -> Tensor:
        place_BT = torch.full_like(probe.ids_BT[:, :1], place)
        return probe.model(probe.ids_BT[:, :1], position_ids=place_BT, use_cache=False).logits

    if float((at(last - 1) - at(0)).abs().max() / probe.logits_BTV.std()) <= SAME:
        raise NotOffered("positions are relative: there is no table")
    try:
        beyond_BTV = at(last + 1)
    except Exception:  # noqa: BLE001
        yield f"position {last + 1} is refused", 0.0
        return
    for name, place in (("wraps around to 1", 1), ("is clamped to the last", last - 1)):
        same = float((beyond_BTV - at(place)).abs().max() / probe.logits_BTV.std()) <= SAME
        yield f"position {last + 1} {name}", 1.0 if same else 0.0
