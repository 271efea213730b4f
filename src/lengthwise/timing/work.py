"""The work that is measured: a training step, a forward pass or cached generation of one encoding at one length."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lengthwise.device import choose_device, place, wait_for
from lengthwise.model import Decoder, DecoderConfig
from lengthwise.optimizer import AdamW
from lengthwise.spec import Spec

WHAT = ("train", "forward", "generate")
NEW = 32
"""The number of generated tokens, or half of the length if that is less."""


@dataclass(frozen=True)
class Setting:
    """What is measured, as plain data for another process."""

    config: DecoderConfig
    encoding: Spec
    what: str
    length: int
    batch: int
    device: str = "auto"
    bf16: bool = False


class Work:
    """A piece of work that can be repeated; each call does it once and returns the seconds it took.

    - `train`: forward pass, cross-entropy at every token, backward pass, a step of AdamW;
    - `forward`: logits of every token, without gradients;
    - `generate`: one token with a cache, averaged over the last tokens of the length; the prompt is not timed.
    """

    def __init__(self, setting: Setting) -> None:
        self.what, self.length, self.device = setting.what, setting.length, choose_device(setting.device).device
        decoder = Decoder(setting.config, setting.encoding, seed=0).train(self.what == "train")
        self.decoder = place(decoder, self.device, setting.bf16)
        self.optimizer = AdamW(self.decoder.parameters(), lr=1e-4) if self.what == "train" else None
        generator = torch.Generator().manual_seed(0)
        ids_BT = torch.randint(setting.config.vocabulary, (setting.batch, self.length + 1), generator=generator)
        self.ids_BT = ids_BT.to(self.device)

    def __call__(self) -> float:
        if self.what == "train":
            return self._train()
        with torch.no_grad():
            return self._forward() if self.what == "forward" else self._generate()

    def _train(self) -> float:
        assert self.optimizer is not None
        start = self._now()
        logits_BTV = self.decoder(self.ids_BT[:, :-1])
        F.cross_entropy(logits_BTV.flatten(0, 1), self.ids_BT[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self._now() - start

    def _now(self) -> float:
        """The time at which the device has done all that came before."""
        wait_for(self.device)
        return time.perf_counter()

    def _forward(self) -> float:
        start = self._now()
        self.decoder(self.ids_BT[:, :-1])
        return self._now() - start

    def _generate(self) -> float:
        new = min(NEW, self.length // 2)
        cache = self.decoder.cache(self.length)
        chosen_B = self.decoder(self.ids_BT[:, : self.length - new], cache=cache)[:, -1].argmax(-1)
        start = self._now()
        for _ in range(new):
            chosen_B = self.decoder(chosen_B[:, None], cache=cache)[:, -1].argmax(-1)
        return (self._now() - start) / new
