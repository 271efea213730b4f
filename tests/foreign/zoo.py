"""Small models of other people's architectures with random weights of unit scale, and what their sources say they do.

The truth is written by hand from the sources of transformers 5.23: one entry per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VOCABULARY = 97
LLAMA: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
GPT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64}
SIX = {**LLAMA, "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 8}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
MIXTURE = {"num_local_experts": 2, "num_experts_per_tok": 1}


@dataclass(frozen=True)
class Layer:
    """What a layer does; None where it does nothing of the kind."""

    theta: float | None = None
    share: float = 1.0
    layout: str = "half"
    scaling: str = "none"
    factor: float | None = 1.0
    slopes: tuple[float, ...] = ()
    bias: str = "none"
    window: int | None = None
    chunk: int | None = None
    sink: bool = False
    temperature: float | None = 1.0
    changes_with_length: bool = False


ROPE, NOPE = Layer(1e4), Layer()
ALIBI = Layer(slopes=(2**-2, 2**-4, 2**-6, 2**-8), bias="linear")


def scaled(kind: str, **options: object) -> dict[str, Any]:
    return {**LLAMA, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **options}}


LONGROPE: dict[str, Any] = {
    **scaled(
        "longrope",
        short_factor=[1.0] * 8,
        long_factor=[2.0 + 0.3 * number for number in range(8)],
        original_max_position_embeddings=64,
    ),
    **{"max_position_embeddings": 256, "original_max_position_embeddings": 64},
}
ZOO: dict[str, tuple[str, dict[str, Any], str, list[Layer]]] = {
    # name → (class of the configuration, options, embedding, layers)
    "llama": ("Llama", LLAMA, "none", [ROPE] * 4),
    "llama, linear": ("Llama", scaled("linear"), "none", [Layer(1e4, scaling="linear by 4")] * 4),
    "llama, dynamic": ("Llama", scaled("dynamic"), "none", [Layer(1e4, changes_with_length=True)] * 4),
    "llama, yarn": (
        *("Llama", scaled("yarn", original_max_position_embeddings=64), "none"),
        [Layer(1e4, scaling="slow pairs by 4", factor=1.1386)] * 4,
    ),
    "llama, llama3": (
        "Llama",
        scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
        "none",
        [Layer(1e4, scaling="slow pairs by 4")] * 4,
    ),
    "llama, longrope": ("Llama", LONGROPE, "none", [Layer(1e4, changes_with_length=True, factor=(4 / 3) ** 0.5)] * 4),
    "phi3, longrope": ("Phi3", LONGROPE, "none", [Layer(1e4, changes_with_length=True, factor=(4 / 3) ** 0.5)] * 4),
    "gpt2": ("GPT2", GPT, "learned", [NOPE] * 4),
    "opt": (
        "OPT",
        {**LLAMA, "ffn_dim": 96, "word_embed_proj_dim": 64},
        "learned",
        [NOPE] * 4,
    ),
    "xglm": (
        "XGLM",
        {
            **{"vocab_size": VOCABULARY, "d_model": 64, "ffn_dim": 96, "num_layers": 4, "attention_heads": 4},
            **{"max_position_embeddings": 64, "pad_token_id": 0},
        },
        "sinusoidal",
        [NOPE] * 4,
    ),
    "gpt-neo": (
        "GPTNeo",
        {
            **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_layers": 4, "num_heads": 4},
            **{"attention_types": [[["global", "local"], 2]], "window_size": 8, "max_position_embeddings": 64},
        },
        "learned",
        [NOPE, Layer(window=8)] * 2,
    ),
    "gpt-neox": ("GPTNeoX", LLAMA, "none", [Layer(1e4, share=0.25)] * 4),
    "gpt-j": ("GPTJ", {**GPT, "rotary_dim": 8}, "none", [Layer(1e4, share=0.5, layout="interleaved")] * 4),
    "codegen": ("CodeGen", {**GPT, "rotary_dim": 8}, "none", [Layer(1e4, share=0.5, layout="interleaved")] * 4),
    "persimmon": ("Persimmon", LLAMA, "none", [Layer(1e4, share=0.5)] * 4),
    "bloom": ("Bloom", {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 4, "n_head": 4}, "none", [ALIBI] * 4),
    "falcon": (  # with sdpa: eager attention adds the bias twice
        "Falcon",
        {**LLAMA, "alibi": True, "bias": False, "num_ln_in_parallel_attn": None},
        "none",
        [Layer(slopes=tuple(one / 4 for one in ALIBI.slopes), bias="linear")] * 4,
    ),
    "mpt": (
        "Mpt",
        {"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 4, "n_heads": 4, "max_seq_len": 64},
        "none",
        [ALIBI] * 4,
    ),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 8}, "none", [Layer(1e4, window=8)] * 4),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 16}, "none", [ROPE] * 4),
    "smollm3": ("SmolLM3", LLAMA, "none", [*[Layer(2e6)] * 3, NOPE]),
    "cohere2": (
        "Cohere2",
        {**LLAMA, "sliding_window": 8},
        "none",
        [*[Layer(1e4, layout="interleaved", window=8)] * 3, NOPE],
    ),
    "gemma3": ("Gemma3Text", SIX, "none", [*[Layer(1e4, window=8)] * 5, Layer(1e6)]),
    "gemma4": (
        "Gemma4Text",
        {**SIX, "vocab_size_per_layer_input": VOCABULARY},
        "none",
        [*[Layer(1e4, window=8)] * 5, Layer(1e6, share=0.25)],
    ),
    "gpt-oss": (
        "GptOss",
        {**LLAMA, "head_dim": 16, "sliding_window": 8, **MIXTURE},
        "none",
        [
            Layer(1.5e5, scaling="slow pairs by 32", factor=1.3466, sink=True, window=8),
            Layer(1.5e5, scaling="slow pairs by 32", factor=1.3466, sink=True),
        ]
        * 2,
    ),
    "olmo3": ("Olmo3", {**LLAMA, "sliding_window": 8}, "none", [*[Layer(5e5, window=8)] * 3, Layer(5e5)]),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **{**LLAMA, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16},
            **{"qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 4, "n_routed_experts": 4},
            **{"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32},
        },
        "none",
        [Layer(1e4, share=1 / 3)] * 4,
    ),
    "llama4": (
        "Llama4Text",
        {**LLAMA, "head_dim": 16, "intermediate_size_mlp": 96, "attention_chunk_size": 8, **MIXTURE},
        "none",
        [*[Layer(5e5, layout="interleaved", chunk=8, factor=None)] * 3, NOPE],
    ),
    "ministral3": (
        "Ministral3",
        {**LLAMA, "head_dim": 16},
        "none",
        [Layer(1e6, scaling="slow pairs by 16", temperature=1.248)] * 4,
    ),
    "exaone4": (
        "Exaone4",
        {**LLAMA, "sliding_window": 8, "sliding_window_pattern": 4},
        "none",
        [*[Layer(1e4, window=8)] * 3, NOPE],
    ),
    "granite-swa": (
        "GraniteSWA",
        {**LLAMA, "sliding_window": 8, "attention_multiplier": 0.25, "layer_rope_theta": [0, 1e4, 1e4, 1e4]},
        "none",
        [Layer(sink=True), *[Layer(1e4, window=8, sink=True)] * 3],
    ),
    "flint": (
        "Flint",
        {**LLAMA, **EXPERTS, "head_dim": 16, "sliding_window": 8, "shared_expert_intermediate_size": 32},
        "none",
        [Layer(sink=True), Layer(sink=True), Layer(1e4, window=8, sink=True), Layer(sink=True)],
    ),
    "afmoe": (
        "Afmoe",
        {**LLAMA, **EXPERTS, "head_dim": 16, "sliding_window": 8},
        "none",
        [*[Layer(1e4, window=8)] * 3, NOPE],
    ),
    "inkling2": (
        "Inkling2Text",
        {**LLAMA, "num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2, "sliding_window": 60},
        "none",
        [Layer(bias="by content and distance", temperature=None, window=60, sink=True)] * 2,
    ),
    "inkling": (
        "InklingText",
        {**LLAMA, "num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2, "sliding_window": 60},
        "none",
        [Layer(bias="by content and distance", temperature=None, window=60)] * 2,
    ),
}


SLOW = {
    "gpt2",
    "gpt-neox",
    "falcon",
    "mpt",
    "mistral",
    "smollm3",
    "gemma3",
    "gpt-oss",
    "deepseek-v3",
    "olmo3",
    "llama4",
}
"""Architectures with which CI asks what is asked of every model; the others are evidence."""


def marked(names, quick=()):
    """Names for a parametrization: those of CI's slow stage and those of evidence are marked so."""
    import pytest

    def mark(name: str):
        return () if name in quick else pytest.mark.slow if name in SLOW else pytest.mark.evidence

    return [pytest.param(name, marks=mark(name)) for name in names]


def build(name: str, attention: str | None = None, **changes: object):
    """Return a model of the zoo with random weights of unit scale, in eager attention if that is right."""
    import torch
    import transformers

    kind, options, _, _ = ZOO[name]
    if kind not in {"GPT2", "GPTJ", "CodeGen", "Bloom", "Mpt", "GPTNeo"}:
        options = {**options, **changes}
    attention = attention or ("sdpa" if kind == "Falcon" else "eager")
    config = getattr(transformers, f"{kind}Config")(**options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.eval().float()
