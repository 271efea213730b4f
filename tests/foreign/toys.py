"""Models whose answers are known by construction, with the interface of a causal language model."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn


def shifted(logits_BTV: Tensor, offset: int) -> Tensor:
    """Move logits to later tokens by `offset`, or to earlier ones if it is negative; the ends are repeated."""
    place_T = (torch.arange(logits_BTV.shape[1]) - offset).clamp(0, logits_BTV.shape[1] - 1)
    return logits_BTV[:, place_T]


class Toy(nn.Module):
    """A model of `vocabulary` tokens; `offset` plants a shift of its logits."""

    def __init__(self, vocabulary: int = 97, offset: int = 0):
        super().__init__()
        self.vocabulary, self.offset = vocabulary, offset
        self.unused = nn.Parameter(torch.zeros(1))
        self.seen: list[Tensor] = []

    def predict(self, ids_BT: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, ids_BT: Tensor, use_cache: bool = False):
        self.seen.append(ids_BT)
        return SimpleNamespace(logits=shifted(self.predict(ids_BT), self.offset))


class Uniform(Toy):
    """All tokens are equally probable."""

    def predict(self, ids_BT: Tensor) -> Tensor:
        return torch.zeros(*ids_BT.shape, self.vocabulary)


class Repeats(Toy):
    """Trained, so to speak, on labels that were not shifted: it predicts the current token."""

    def predict(self, ids_BT: Tensor) -> Tensor:
        return 9.0 * nn.functional.one_hot(ids_BT, self.vocabulary).float()


class Looks(Toy):
    """Finds the place with the longest equal past within `window` tokens, and predicts what followed there."""

    def __init__(self, vocabulary: int = 97, window: int = 10_000, offset: int = 0):
        super().__init__(vocabulary, offset)
        self.window = window

    def predict(self, ids_BT: Tensor) -> Tensor:
        tokens = ids_BT.shape[1]
        place_T = torch.arange(tokens)
        back_QK = place_T[:, None] - place_T
        run_BQK = torch.zeros(*ids_BT.shape, tokens)
        for step in range(6, 0, -1):
            same_BQK = torch.zeros_like(run_BQK, dtype=torch.bool)
            past_BT = ids_BT[:, : tokens - step + 1]
            same_BQK[:, step - 1 :, step - 1 :] = past_BT[:, :, None] == past_BT[:, None]
            run_BQK = torch.where(same_BQK, run_BQK + 1, 0.0)
        allowed_QK = (back_QK > 0) & (back_QK < self.window)
        score_BQK = torch.where(allowed_QK, run_BQK + place_T / (10 * tokens), -1.0)
        best_BQ = score_BQK.argmax(-1)
        found_BQ = score_BQK.amax(-1) >= 1
        told_BQ = ids_BT.gather(1, (best_BQ + 1).clamp(max=tokens - 1))
        logits_BTV = 9.0 * nn.functional.one_hot(told_BQ, self.vocabulary).float()
        own_BTV = nn.functional.one_hot(ids_BT, self.vocabulary).float()  # a trace of the current token
        return torch.where(found_BQ[..., None], logits_BTV, 0.0) + own_BTV
