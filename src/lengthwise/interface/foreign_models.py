"""`measure`: what do the positions of somebody else's model really do?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError, one_line

if TYPE_CHECKING:
    from torch import nn

    from lengthwise.foreign.identify import ModelEncodings


def measure(model: str | Path | nn.Module, *, attention: str | None = None) -> ModelEncodings:
    """Find the positional encoding of each layer of a causal language model by probing it.

    `model` is the folder of a Hugging Face model with safetensors, or a model in memory. Nothing is downloaded, and no
    code of the folder is run. `attention` is `eager` or `sdpa`; what the model has by default, unless given.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> found = measure(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)))
    >>> [layer.name for layer in found.layers]
    ['rope', 'rope']
    """
    from lengthwise.foreign.identify import identify

    if isinstance(model, str | Path):
        model = _loaded(Path(model), attention)
    elif attention is not None:
        raise SpecError("a model in memory has its kind of attention already; leave out attention")
    was_training = model.training
    try:
        return identify(model.eval())
    finally:
        model.train(was_training)


def _loaded(folder: Path, attention: str | None) -> nn.Module:
    import torch

    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise SpecError("models of others need transformers: pip install 'lengthwise[hf]'") from None

    if not (folder / "config.json").is_file():
        raise SpecError(f"{folder} is no folder of a Hugging Face model: it has no config.json")
    if attention not in {None, "eager", "sdpa"}:
        raise SpecError(f"attention is eager or sdpa, not {attention!r}")
    chosen = {} if attention is None else {"attn_implementation": attention}
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,  # weights are often stored in bf16, in which slow frequencies cannot be read
            **chosen,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SpecError(f"{folder} cannot be loaded: {one_line(str(error))[:300]}") from None
