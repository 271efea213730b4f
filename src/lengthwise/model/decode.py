"""Free-running greedy decoding with a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lengthwise.model.decoder import Decoder
from lengthwise.spec import SpecError


@torch.no_grad()
def greedy(decoder: Decoder, prompt_BT: Tensor, new_tokens: int, *, lengths: Sequence[int] | None = None) -> Tensor:
    """Generate `new_tokens` tokens greedily: (B, tokens). Prompts of different `lengths` are padded on the left."""
    if new_tokens < 1:
        raise SpecError(f"ask for at least one token, not {new_tokens}")
    if decoder.config.mask == "bidirectional":
        raise SpecError("a bidirectional model cannot decode: every new token changes the states of all others")
    if not decoder.prefix_stable:
        return _anew(decoder, prompt_BT, new_tokens, lengths)
    # Each row has its own budget, so that it decodes as it would alone.
    room = prompt_BT.shape[1] if lengths is None else torch.tensor(lengths)
    cache = decoder.cache(room + new_tokens)
    logits = decoder(prompt_BT, cache=cache, lengths=lengths, padding="left")
    chosen = [logits[:, -1].argmax(-1)]
    while len(chosen) < new_tokens:
        chosen.append(decoder(chosen[-1][:, None], cache=cache)[:, -1].argmax(-1))
    return torch.stack(chosen, 1)


def _anew(decoder: Decoder, ids_BT: Tensor, tokens: int, lengths: Sequence[int] | None) -> Tensor:
    """`greedy` without a cache: new tokens change earlier states, so every step runs the whole sequence."""
    start = ids_BT.shape[1]
    for done in range(tokens):
        held = None if lengths is None else [length + done for length in lengths]
        best_B = decoder(ids_BT, lengths=held, padding="left")[:, -1].argmax(-1)
        ids_BT = torch.cat([ids_BT, best_B[:, None]], 1)
    return ids_BT[:, start:]
