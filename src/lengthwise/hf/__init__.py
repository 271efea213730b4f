"""The interface to Hugging Face: any decoder as a `PreTrainedModel` that is saved and loaded without a change.

`AutoModelForCausalLM.from_pretrained(folder)` works once this module is imported. It needs `pip install
'lengthwise[hf]'`; the core never imports it. transformers builds a new model and loads the weights into it; tensors
that it does not know are left uninitialised, re-initialised or cast, mostly silently. For each such case a guard
preserves the model or raises an error (`guards.py`).
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from lengthwise import __version__
from lengthwise.consent import refuse_code
from lengthwise.device import HOST
from lengthwise.folder import readable_errors
from lengthwise.hf.guards import (
    record_checksums,
    refuse_damaged,
    refuse_gaps,
    refuse_lost_buffers,
    refuse_lost_classes,
    refuse_mixed_dtypes,
    refuse_nowhere,
)
from lengthwise.model import Decoder, DecoderConfig
from lengthwise.spec import Spec, SpecError, first_mistake

try:
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils import can_return_tuple

    from lengthwise.hf.generation import DecoderGenerationMixin, GenerationCache
except ImportError as error:
    raise SpecError(f"lengthwise.hf needs transformers 5 or later: pip install 'lengthwise[hf]' ({error})") from error

IGNORED = -100
"""The label that the loss ignores, by the convention of transformers."""


class LengthwiseConfig(PreTrainedConfig):
    """The config that rebuilds a decoder, as plain JSON: `LengthwiseConfig.of(decoder)`.

    No field may be called `decoder`: `get_text_config` would take it for the config of a sub-model.
    """

    model_type = "lengthwise (import lengthwise.hf first)"
    """transformers prints this name if this module was not imported, so it says what to do."""

    decoder_config: dict[str, Any]
    """The fields of `DecoderConfig`."""
    encodings: list[str | dict[str, Any]]
    """The spec of each layer's encoding."""
    versions: list[int]
    """The versions of the decoder and of each layer's encoding; a model with other versions is not loaded."""
    sources: list[str | None]
    """A hash of the source file of each layer's encoding that is not of this package."""
    seed: int = 0
    lengthwise_version: str = __version__
    """The version that wrote this."""

    @classmethod
    def of(cls, decoder: Decoder) -> LengthwiseConfig:
        """The config of a decoder."""
        return cls(**_described(decoder), dtype=decoder.embedding.weight.dtype)

    def validated_config(self) -> tuple[DecoderConfig, list[Spec]]:
        """The validated config and specs; an invalid config raises an error that names the version that wrote it."""
        try:
            config = DecoderConfig.model_validate(self.decoder_config)
        except ValidationError as error:
            field, value, reason = first_mistake(error)
            raise SpecError(
                f"decoder_config.{field} in the config of this model cannot be {value!r}: {reason} "
                f"(written by lengthwise {self.lengthwise_version}; this is {__version__})"
            ) from error
        listed = {"encodings": self.encodings, "versions": self.versions, "sources": self.sources}
        for field, value in listed.items():
            if not isinstance(value, list):
                raise SpecError(f"{field} in the config of this model cannot be {value!r}: a list, one for each layer")
        if len(self.sources) != len(self.encodings) + len(config.outside_parts()):
            raise SpecError("the config of this model does not have as many sources as encodings")
        return config, [Spec.of(encoding) for encoding in self.encodings]

    # The names by which other programs look for these numbers.

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.decoder_config["vocabulary"]

    @property
    def hidden_size(self) -> int:
        """The model width."""
        return self.decoder_config["width"]

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return self.decoder_config["layers"]

    @property
    def num_attention_heads(self) -> int:
        """The number of heads in each layer."""
        return self.decoder_config["heads"]


class LengthwiseForCausalLM(DecoderGenerationMixin, PreTrainedModel):
    """A decoder that Hugging Face can save, load, train and decode: `LengthwiseForCausalLM.from_decoder(decoder)`.

    It computes what its `decoder` computes, to the bit, before and after `save_pretrained` and `from_pretrained`.
    """

    config_class = LengthwiseConfig

    def __init__(
        self, config: LengthwiseConfig, *, decoder: Decoder | None = None, trust_remote_code: bool = False
    ) -> None:
        super().__init__(config)
        fields, specs = config.validated_config()
        named = [*specs, *(spec for _, _, spec in fields.outside_parts())]
        if decoder is None:
            _refuse_foreign_code(config, named, trust_remote_code or _TRUSTED.get())
            decoder = _built(fields, specs, config.seed)
        elif (decoder.config, list(decoder.specs)) != (fields, specs):
            raise SpecError("the config describes another decoder; use LengthwiseForCausalLM.from_decoder(decoder)")
        if config.versions != _versions(decoder):
            raise SpecError(
                f"this model was written by lengthwise {config.lengthwise_version}, whose decoder and encodings had "
                f"versions {config.versions}; here they are {_versions(decoder)} and compute something else"
            )
        for spec, then, now in zip(named, config.sources, _sources(decoder), strict=True):
            if then != now:
                raise SpecError(f"the file of '{spec}' has changed since this model was saved; restore it")
        refuse_lost_buffers(decoder)
        self.decoder = decoder
        self._frozen = [name for name, parameter in decoder.named_parameters() if not parameter.requires_grad]
        self.train(decoder.training)
        self.post_init()

    @classmethod
    def from_decoder(cls, decoder: Decoder) -> LengthwiseForCausalLM:
        """Wrap this decoder without copying it, so that training either one trains both."""
        return cls(LengthwiseConfig.of(decoder), decoder=decoder)

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: decoder and encodings initialise themselves, and the default would overwrite their values."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        past_key_values: GenerationCache | None = None,
        use_cache: bool | None = None,
        prefix: Sequence[int] | Tensor | None = None,
        budget: int | Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V), and with `labels` the mean next-token loss; labels of −100 are ignored.

        `attention_mask` may only mark padding, all left or all right; without `position_ids` positions count from each
        row's first real token. `prefix` and `budget` are those of the decoder; `past_key_values` is made by
        `model.cache(budget)`, and then the mask also covers the cached tokens.
        """
        if self.config.output_hidden_states or self.config.output_attentions:
            raise SpecError("hidden states and attentions are read with taps: model.decoder(ids, taps=...)")
        held = past_key_values
        if held is not None and not isinstance(held, GenerationCache):
            raise SpecError(f"past_key_values is made by model.cache(budget), not {type(held).__name__}")
        if bool(use_cache) != (held is not None) and use_cache is not None:
            raise SpecError("a cache needs a budget: give past_key_values=model.cache(budget), or leave out use_cache")
        if held is not None:
            attention_mask = held.new_tokens_mask(attention_mask, input_ids)
        lengths, padding = _padding(attention_mask, input_ids)
        logits_BTV = self.decoder(
            input_ids,
            positions_BT=position_ids,
            lengths=lengths,
            padding=padding,
            prefix=prefix,
            budget=budget,
            cache=None if held is None else held.cache,
        )
        loss = None if labels is None else self._loss(logits_BTV, labels)
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=held)  # pyrefly: ignore

    def _loss(self, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        """The loss in fp32, or in float64 for a float64 model, which transformers' own loss would cast to fp32."""
        if self.decoder.config.mask == "bidirectional":
            raise SpecError("labels are the next tokens, which a bidirectional model sees; take the loss of its logits")
        logits_NV = logits_BTV[:, :-1].flatten(0, 1)
        working = torch.promote_types(logits_NV.dtype, torch.float32)
        return F.cross_entropy(logits_NV.to(working), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)

    # Other arguments of these two methods are passed to transformers unchanged.

    def save_pretrained(self, save_directory: str | os.PathLike, *more: Any, **named: Any) -> None:  # noqa: ANN401
        """Write config and weights; raise if they could not be loaded again unchanged."""
        refuse_lost_buffers(self.decoder)
        refuse_mixed_dtypes(self.decoder)
        refuse_lost_classes(self.decoder)
        self.config.update(_described(self.decoder))  # the decoder may have changed since, e.g. by initialize(seed)
        with readable_errors("write", str(save_directory)):
            super().save_pretrained(save_directory, *more, **named)
            if named.get("is_main_process", True):
                record_checksums(save_directory)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike,
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 (with output_loading_info, as in transformers, a pair)
        """Load config and weights; a missing, unexpected or misshapen tensor is an error, never re-initialised."""
        where = pretrained_model_name_or_path
        refuse_nowhere(where)
        refuse_damaged(Path(where).expanduser() / (named.get("subfolder") or ""))
        trusted = _TRUSTED.set(bool(named.get("trust_remote_code")))
        told = named.pop("output_loading_info", False)
        named["use_safetensors"] = True  # other formats are pickled
        named["ignore_mismatched_sizes"] = True  # the check below names the tensor, transformers' own does not
        try:
            loaded: Any = super().from_pretrained(where, output_loading_info=True, **named)
        finally:
            _TRUSTED.reset(trusted)
        model, found = loaded
        refuse_gaps(str(where), found)
        for name in model._frozen:
            # Loaded parameters are new ones, which require a gradient by default.
            model.decoder.get_parameter(name).requires_grad_(False)
        return (model, found) if told else model


AutoConfig.register(LengthwiseConfig.model_type, LengthwiseConfig, exist_ok=True)
AutoModelForCausalLM.register(LengthwiseConfig, LengthwiseForCausalLM, exist_ok=True)


# --- building --------------------------------------------------------------------------------------------------------


_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)
"""Whether the model that is being loaded may run code from outside the package."""


def _refuse_foreign_code(config: LengthwiseConfig, specs: list[Spec], trusted: bool) -> None:
    """Raise for code that was not allowed, or is not the code the model was saved with, before it is executed."""
    consent = "load it with trust_remote_code=True"
    refuse_code([config.encodings, config.decoder_config], "the config of this model", trusted, consent)
    for spec, then in zip(specs, config.sources, strict=True):
        file = Path(spec.name.rpartition(":")[0])
        if file.suffix == ".py" and file.is_file() and _hash(file) != then:
            raise SpecError(f"the file of '{spec}' has changed since this model was saved; restore it")


def _hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _described(decoder: Decoder) -> dict[str, Any]:
    """The fields of a decoder's `LengthwiseConfig`; specs as mappings, which keep the type of every option."""
    return {
        "decoder_config": decoder.config.model_dump(),
        "encodings": [spec.mapping() for spec in decoder.specs],
        "versions": _versions(decoder),
        "sources": _sources(decoder),
        "seed": decoder.seed,
        "lengthwise_version": __version__,
    }


def _versions(decoder: Decoder) -> list[int]:
    return [decoder.config.version, *(type(decoder.encodings[which]).version for which in decoder.which)]  # pyrefly: ignore


def _sources(decoder: Decoder) -> list[str | None]:
    """A hash of the file of each layer's encoding, and of a normaliser and a temperature that are not ours.

    It is None for the files of the package; others may be edited.
    """
    found: list[str | None] = []
    classes = [type(decoder.encodings[which]) for which in decoder.which]
    attention = decoder.layers[0].attention
    classes += [type(getattr(attention, kind)) for kind, _, _ in decoder.config.outside_parts()]  # pyrefly: ignore
    for held in classes:
        file = None if held.__module__.startswith("lengthwise.") else inspect.getsourcefile(held)
        found.append(None if file is None else _hash(Path(file)))
    return found


def _built(config: DecoderConfig, specs: list[Spec], seed: int) -> Decoder:
    """Build a decoder on the CPU in fp32, as `Decoder(...)` does, and cast it to the current default dtype.

    `from_pretrained` constructs under the meta device and the dtype of the checkpoint. A tensor that an encoding keeps
    as a plain attribute would stay on the meta device, or be computed in bf16 where it had been computed in fp32.
    """
    dtype = torch.get_default_dtype()
    with HOST, _default_dtype(torch.float32):
        decoder = Decoder(config, specs, seed=seed)
    return decoder.to(dtype=dtype)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _padding(attention_mask: Tensor | None, input_ids: Tensor) -> tuple[Tensor | None, Literal["right", "left"]]:
    """The lengths and the side of padding that a mask stands for."""
    if attention_mask is None:
        return None, "right"
    if attention_mask.shape != input_ids.shape:
        raise SpecError(
            f"attention_mask must be of the shape of input_ids, {tuple(input_ids.shape)}, and mark padding only, "
            f"not {tuple(attention_mask.shape)}; what a token may see is set by the model's mask"
        )
    if attention_mask.is_floating_point() or bool(((attention_mask != 0) & (attention_mask != 1)).any()):
        raise SpecError("attention_mask must be whole numbers or booleans: 1 for a token, 0 for padding")
    lengths_B, steps_BT = attention_mask.long().sum(1), attention_mask.long().diff(dim=1)
    if bool((steps_BT <= 0).all()):
        return lengths_B, "right"
    if bool((steps_BT >= 0).all()):
        return lengths_B, "left"
    raise SpecError(
        "attention_mask may only mark padding, and on the same side of every row: 1 1 0 or 0 1 1, not 1 0 1; "
        "packed documents go to model.decoder(ids, documents=...)"
    )
