"""Attention weights of any causal Hugging Face model; transformers itself is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lengthwise.analysis.attention import ROWS, Batch, See
from lengthwise.spec import SpecError

if TYPE_CHECKING:
    from torch import nn


class HuggingFaceAttentionSource:
    """`HuggingFaceAttentionSource(AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager"))`.

    It does not stream: transformers returns the weights of all layers together, L × H × T² numbers (at 12 layers,
    12 heads and 1,024 tokens 600 MB in fp32). Only eager attention returns weights.
    """

    def __init__(self, model: nn.Module) -> None:
        config: Any = getattr(model, "config", None)
        if config is None or not hasattr(config, "num_hidden_layers"):
            raise SpecError(f"{type(model).__name__} is no model of Hugging Face: it has no config with layers")
        if getattr(config, "_attn_implementation", "eager") != "eager":
            raise SpecError(
                f"this model's attention is {config._attn_implementation!r}, which returns no weights; load it with "
                'attn_implementation="eager", or call model.set_attn_implementation("eager")'
            )
        if getattr(config, "is_encoder_decoder", False):
            raise SpecError("analyses of attention are of causal decoders; this model has an encoder beside it")
        self.model, self._config = model.eval(), config

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self._config.num_hidden_layers

    @property
    def heads(self) -> int:
        """The number of query heads in each layer."""
        return self._config.num_attention_heads

    @property
    def weights_sum_to_one(self) -> list[bool]:
        """For each layer, True: the weights of a softmax sum to 1."""
        return [True] * self.layers

    def visit_attention_weights(self, batch: Batch, on_weights: See, queries_per_block: int = ROWS) -> None:
        """Run one forward pass, then call `on_weights` with each layer's weights, cut into blocks."""
        ids_BT = batch.ids_BT.to(next(self.model.parameters()).device)
        with torch.no_grad():
            told = self.model(ids_BT, output_attentions=True, use_cache=False)
        given = told.attentions
        if given is None or len(given) != self.layers or any(one is None for one in given):
            raise SpecError(f"{type(self.model).__name__} returned no attention weights for its {self.layers} layers")
        tokens = ids_BT.shape[1]
        for layer, weights_BHTT in enumerate(given):
            for start in range(0, tokens, queries_per_block):
                end = min(start + queries_per_block, tokens)
                if bool(weights_BHTT[:, :, start:end, end:].any()):
                    raise SpecError(f"layer {layer} looks ahead; analyses of attention are of causal models")
                on_weights(layer, weights_BHTT[:, :, start:end, :end].float().cpu(), start)
