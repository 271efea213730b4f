"""The work that is measured: a training step, a forward pass or cached generation of one encoding at one length."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from lengthwise.model import Decoder, DecoderConfig
from lengthwise.spec import Spec

WHAT = ("train", "forward", "generate")
NEW = 32
"""The number of generated tokens, or half of the length if that is less."""


class Work:
    """A piece of work that can be repeated; each call does it once and returns the seconds it took.

    - `train`: forward pass, cross-entropy at every token, backward pass, a step of AdamW;
    - `forward`: logits of every token, without gradients;
    - `generate`: one token with a cache, averaged over the last tokens of the length; the prompt is not timed.
    """

    def __init__(self, config: DecoderConfig, encoding: Spec, what: str, length: int, batch: int) -> None:
        self.what, self.length = what, length
        self.decoder = Decoder(config, encoding, seed=0).train(what == "train")
        self.optimizer = torch.optim.AdamW(self.decoder.parameters(), lr=1e-4) if what == "train" else None
        generator = torch.Generator().manual_seed(0)
        self.ids_BT = torch.randint(config.vocabulary, (batch, length + 1), generator=generator)

    def __call__(self) -> float:
        if self.what == "train":
            return self._train()
        with torch.no_grad():
            return self._forward() if self.what == "forward" else self._generate()

    def _train(self) -> float:
        assert self.optimizer is not None
        start = time.perf_counter()
        logits_BTV = self.decoder(self.ids_BT[:, :-1])
        F.cross_entropy(logits_BTV.flatten(0, 1), self.ids_BT[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start

    def _forward(self) -> float:
        start = time.perf_counter()
        self.decoder(self.ids_BT[:, :-1])
        return time.perf_counter() - start

    def _generate(self) -> float:
        new = min(NEW, self.length // 2)
        cache = self.decoder.cache(self.length)
        chosen_B = self.decoder(self.ids_BT[:, : self.length - new], cache=cache)[:, -1].argmax(-1)
        start = time.perf_counter()
        for _ in range(new):
            chosen_B = self.decoder(chosen_B[:, None], cache=cache)[:, -1].argmax(-1)
        return (time.perf_counter() - start) / new
