"""Hidden states of a sample of tokens, layer by layer, for any model in bounded memory.

Layer 0 is the input of the first layer: embeddings plus what an encoding adds to them. Layer ℓ is the residual stream
after layer ℓ. Each state is normalised as the model itself does next: by the next layer's norm or, after the last
layer, by the final norm. A norm divides a state by its size, so information that is only in the size is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lengthwise.analysis.documents import Batch, Document, document_batches
from lengthwise.device import HOST, without_waiting
from lengthwise.model import Decoder
from lengthwise.model.decoder import Layer
from lengthwise.model.taps import Tap
from lengthwise.spec import SpecError, digest

TOKENS = 16_384
"""The maximum number of tokens of a set whose states are kept."""

Keep = Callable[[int, Tensor], None]
"""A callback with a layer's number and its states (B, T, D)."""
Read = Callable[[Batch, Keep], None]
"""The interface of a model: it runs a batch and calls `keep` with the states of each layer, in any order.

For a Hugging Face model: `lambda batch, keep: [keep(*one) for one in enumerate(network(batch.ids_BT,
output_hidden_states=True).hidden_states)]`.
"""


@dataclass(frozen=True)
class States:
    """The states of N tokens in each layer, and where in its document each token is."""

    layers: dict[int, Tensor]
    """Layer → (N, D)."""
    places_N: Tensor
    """The token's index in its document, from 0."""
    ids_N: Tensor
    documents: int

    def select_tokens(self, chosen_N: Tensor) -> States:
        """Return only these tokens."""
        layers = {layer: state_ND[chosen_N] for layer, state_ND in self.layers.items()}
        return States(layers, self.places_N[chosen_N], self.ids_N[chosen_N], self.documents)


@torch.no_grad()
def collect_states(
    state_reader: Read, documents: Sequence[Document], *, max_tokens: int = TOKENS, seed: object = 0
) -> States:
    """Return the states of at most `max_tokens` tokens, sampled with seed `seed` from all tokens of all documents.

    Memory is tokens × layers × width numbers plus one batch: other states are freed after each layer.
    """
    if not documents:
        raise SpecError("there are no documents to look at")
    total = sum(len(one.ids) for one in documents)
    order_N = np.argsort(np.random.Philox(key=digest("tokens", total, seed)).random_raw(total), kind="stable")
    wanted_N = np.zeros(total, dtype=bool)
    wanted_N[order_N[:max_tokens]] = True
    parts: dict[int, list[Tensor]] = {}
    places, ids, at = [], [], 0
    for batch in document_batches(documents):
        real_BT = batch.real_BT
        here_BT = torch.zeros_like(real_BT)
        count = int(real_BT.sum())
        here_BT[real_BT] = torch.from_numpy(wanted_N[at : at + count])
        at += count
        if not bool(here_BT.any()):
            continue

        def keep(layer: int, state_BTD: Tensor, here_BT: Tensor = here_BT) -> None:
            parts.setdefault(layer, []).append(state_BTD.detach().to(HOST)[here_BT])

        state_reader(batch, keep)
        places.append(batch.token_indices_BT[here_BT])
        ids.append(batch.ids_BT[here_BT])
    layers = {layer: torch.cat(found) for layer, found in sorted(parts.items())}
    return States(layers, torch.cat(places), torch.cat(ids), len(documents))


def decoder_state_reader(decoder: Decoder, *, head_tap: Tap | None = None, normalised: bool = True) -> Read:
    """Return the `Read` of our decoder; the tap `head_tap` may change each head's output, as `times_root_m` does."""
    layers = [layer for layer in decoder.layers if isinstance(layer, Layer)]
    norms = [*(layer.attention_norm for layer in layers), decoder.norm]

    def read(batch: Batch, keep: Keep) -> None:
        def seen(name: str, state_BTD: Tensor) -> None:
            layer = 0 if name == "embeddings" else int(name.split(".")[1]) + 1
            keep(layer, norms[layer](state_BTD) if normalised else state_BTD)

        run_forward_for_taps(decoder, batch, {"embeddings": seen, "layers.*.residual": seen}, head_tap)

    return read


def run_forward_for_taps(decoder: Decoder, batch: Batch, taps: dict[str, Tap], head_tap: Tap | None = None) -> None:
    """Run a forward pass only for its taps; logits are computed at a single token."""
    nowhere_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.bool)
    nowhere_BT[0, 0] = True
    with torch.no_grad():
        decoder.eval()(
            without_waiting(batch.ids_BT, next(decoder.parameters()).device),
            lengths=batch.lengths,
            positions_BT=batch.positions_BT,
            budget=batch.budget_B,
            prefix=[one.prompt for one in batch.documents] if decoder.config.mask == "prefix" else None,
            only_BT=nowhere_BT,
            taps=taps if head_tap is None else {**taps, "layers.*.heads": head_tap},
        )


def equalise_output_norm(decoder: Decoder, documents: Sequence[Document]) -> Tap:
    """Return a tap that rescales attention's output to the same size at every token, so that only its direction stays.

    The size, one for each layer, is the root mean square over these documents. Unlike `times_root_m` this cannot add
    position information: multiplying by √m does, if the output has a mean that does not shrink with m.
    """
    sums: dict[str, list[float]] = {}
    for batch in document_batches(documents):
        real_BT = batch.real_BT

        def add(name: str, heads_BHQE: Tensor, real_BT: Tensor = real_BT) -> None:
            square_BT = heads_BHQE.to(HOST).double().square().mean((1, 3))
            both = sums.setdefault(name, [0.0, 0.0])
            both[0] += float(square_BT[real_BT].sum())
            both[1] += float(real_BT.sum())

        run_forward_for_taps(decoder, batch, {"layers.*.heads": add})
    sizes = {name: (total / count) ** 0.5 for name, (total, count) in sums.items()}

    def change(name: str, heads_BHQE: Tensor) -> Tensor:
        size_B1Q1 = heads_BHQE.square().mean((1, 3), keepdim=True).sqrt()
        return heads_BHQE / size_B1Q1.clamp(min=1e-12) * sizes[name]

    return change


def times_root_m(tap_name: str, head_outputs_BHQE: Tensor) -> Tensor:
    """Multiply attention's output at the m-th token by √m, which cancels the 1/m of the variance of a mean of m values.

    If this variance were the only source of position information (Chi et al. 2023), none would be left. What remains
    has another source, e.g. the share of the first token in the average, which becomes 1/√m.
    """
    m_Q1 = torch.arange(
        1, head_outputs_BHQE.shape[2] + 1, dtype=head_outputs_BHQE.dtype, device=head_outputs_BHQE.device
    )[:, None]
    return head_outputs_BHQE * m_Q1.sqrt()
