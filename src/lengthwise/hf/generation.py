"""Hugging Face's `generate` with our cache; greedy search gives the same tokens as our own greedy decoding.

transformers counts positions, guesses padding from token ids and makes caches without a budget. Here positions and
padding come from `attention_mask` alone, and each row's budget is its own prompt length plus the allowed new tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation.configuration_utils import GenerationConfig, GenerationMode
from transformers.generation.utils import GenerationMixin

from lengthwise.model import Cache, Decoder
from lengthwise.spec import SpecError

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
"""The generation modes that our cache supports: each new token continues its own row."""


class GenerationCache:
    """A decoder's cache with the interface that `generate` expects; made by `model.cache(budget)`."""

    is_compileable = False
    is_croppable = False

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._is_user_defined = False  # True for a cache that was passed to `generate`

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens per row so far, padding included."""
        return self.cache.tokens

    def new_tokens_mask(self, attention_mask: Tensor | None, input_ids: Tensor) -> Tensor | None:
        """The part of a mask for the new tokens; the rest must agree with the cache."""
        past = self.cache.tokens
        if attention_mask is None or not past:
            return attention_mask
        wanted = (len(input_ids), past + input_ids.shape[1])
        if tuple(attention_mask.shape) != wanted:
            raise SpecError(
                f"with {past} tokens in the cache attention_mask must be {wanted}, cached tokens and new ones, "
                f"not {tuple(attention_mask.shape)}"
            )
        layout = self.cache.layout
        counts = () if layout is None else layout.counts
        told = attention_mask[:, :past].long().sum(1).tolist()
        if any(a != b for a, b in zip(told, counts * len(told) if len(counts) == 1 else counts, strict=True)):
            raise SpecError(f"attention_mask says {told} tokens were cached, but there are {list(counts)}")
        return attention_mask[:, past:]


class DecoderGenerationMixin(GenerationMixin):
    """The methods with which `generate` works on a decoder."""

    decoder: Decoder

    def cache(self, budget: int | Tensor) -> GenerationCache:
        """An empty cache for sequences of up to `budget` tokens, to be given as `past_key_values`."""
        return GenerationCache(self.decoder.cache(budget))

    # transformers calls these in this order; its type hints are narrower than what it passes.

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: object
    ) -> None:
        if generation_mode not in MODES:
            raise SpecError(
                f"generate cannot do {generation_mode.value.replace('_', ' ')} here; "
                "use greedy search (do_sample=False) or sampling (do_sample=True), each with num_beams=1"
            )
        if self.decoder.config.mask == "bidirectional":
            raise SpecError("a bidirectional model cannot generate: every new token changes the states of all others")
        if generation_config.output_attentions or generation_config.output_hidden_states:
            raise SpecError("hidden states and attentions are read with taps: model.decoder(ids, taps=...)")
        if generation_config.cache_implementation is not None:
            kind = generation_config.cache_implementation
            raise SpecError(f"cache_implementation={kind!r} is not ours; leave it out, or give use_cache=False")

    def _prepare_attention_mask_for_generation(  # pyrefly: ignore[bad-override]
        self, inputs_tensor: Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> Tensor:
        """A mask of ones, since ids never mean padding; if a prompt contains the pad id, raise and ask for a mask."""
        pad = getattr(generation_config, "_pad_token_tensor", None)
        if pad is not None and bool(torch.isin(inputs_tensor, pad).any()):
            raise SpecError(
                f"the prompts hold the id of padding, {int(pad)}; give attention_mask: 0 for padding, 1 for a token"
            )
        return torch.ones_like(inputs_tensor, dtype=torch.long)

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> None:
        """Give no positions: then the decoder counts from each row's first token and knows that none is skipped."""

    def _prepare_cache_for_generation(  # pyrefly: ignore[bad-override]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        mask_BT, given = model_kwargs.get("attention_mask"), model_kwargs.pop("budget", None)
        if mask_BT is not None and bool((mask_BT[:, -1] == 0).any()):
            raise SpecError("pad prompts on the left: a row goes on after its last column, attention_mask ends in 1")
        held = model_kwargs.get("past_key_values")
        if held is not None:
            if not isinstance(held, GenerationCache):
                raise SpecError(f"past_key_values is made by model.cache(budget), not {type(held).__name__}")
            if given is not None:
                raise SpecError("the cache holds the budget: give it to model.cache(budget) alone")
            held._is_user_defined = True
            return
        longest = generation_config.max_length
        assert longest is not None  # transformers has set it by now
        budget = given
        if given is None:
            # Each row has its own budget, so that it decodes as it would alone.
            budget = longest if mask_BT is None else mask_BT.long().sum(1) + (longest - mask_BT.shape[1])
        if generation_config.use_cache is False:
            model_kwargs["budget"] = budget
        else:
            assert budget is not None
            model_kwargs["past_key_values"] = self.cache(budget)

    def prepare_inputs_for_generation(  # pyrefly: ignore[bad-override]
        self,
        input_ids: Tensor,
        **kwargs: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """The arguments of the next call of the model."""
        found = super().prepare_inputs_for_generation(input_ids, **kwargs)  # pyrefly: ignore
        held = found.get("past_key_values")
        if held is not None and held.get_seq_length():
            found.pop("prefix", None)  # the first block already gave the prompt lengths
        return found
