"""The training loop: batch, loss, gradient, step.

Everything random is keyed by (seed, stream, step), so no random state is stored: a loop resumed from the weights and
moments of step 500 continues exactly like one that never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lengthwise.device import bf16_autocast, is_host, without_waiting
from lengthwise.encoding.positions import Positions
from lengthwise.model import Decoder
from lengthwise.model.taps import Tap
from lengthwise.optimizer import AdamW
from lengthwise.spec import SpecError, digest
from lengthwise.training.batches import Batch, BlockSource, ProcessBatch, training_batches
from lengthwise.training.health import Diverged
from lengthwise.training.parallel import ALONE, DistributedProcesses, local_shard, shard_like
from lengthwise.training.settings import Seeds, Training
from lengthwise.training.text import TextRows


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of one step."""

    step: int
    """Steps done so far."""
    loss: float | None
    """Mean over the batch's target tokens; None where it was not read from the device."""
    lr: float
    norm: float | None
    """The norm of the gradient before clipping."""
    tokens: int
    """Input tokens of the batch, padding not counted."""


@dataclass
class Loop:
    """The training of a decoder: `for told in Loop(decoder, supply, training, positions, seeds): ...` trains it."""

    decoder: Decoder
    supply: BlockSource | TextRows
    training: Training
    positions: Positions
    seeds: Seeds
    team: DistributedProcesses = ALONE
    step: int = 0
    """Steps done so far."""
    device_batch: int | None = None
    """The most rows that are computed at once; a larger batch is computed in parts, which give the same gradient."""
    compiled: bool = False
    """Whether the feed-forward layers are compiled."""
    recompute: bool = False
    """Whether activations are computed again in the backward pass."""
    reads_at: Callable[[int], bool] = lambda step: True
    """Whether to read loss and norm of a step from an accelerator, and look for divergence; reading waits for it."""
    module: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    _last_loss: float | None = field(init=False, default=None)
    _bad_step: Tensor | None = field(init=False, default=None)
    """On an accelerator: the first step whose loss or gradient was not finite, 0 if there was none."""
    _unread: list[Batch] = field(init=False, default_factory=list)
    """On an accelerator: the batches since loss and norm were last read."""

    def __post_init__(self) -> None:
        if self.training.batch_size < self.team.size * self.training.accumulation:
            raise SpecError(
                f"a batch of {self.training.batch_size} cannot be shared by {self.team.size} processes in "
                f"{self.training.accumulation} parts"
            )
        self.decoder.recompute = self.recompute
        self.module = self.team.wrap(self.decoder)
        if self.compiled:  # not attention: its masks and lengths are Python, and each new length would compile again
            for layer in self.decoder.layers:
                layer.get_submodule("feed_forward").compile(dynamic=True)
        training, parameters = self.training, list(self.decoder.parameters())
        decayed = [p for p in parameters if p.ndim > 1 or training.decay_norms]
        others = [p for p in parameters if not (p.ndim > 1 or training.decay_norms)]
        groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = AdamW(
            [group for group in groups if group["params"]],
            lr=training.lr,
            betas=(training.beta1, training.beta2),
            eps=training.eps,
            fused=not self.team.shard or not is_host(self.device),
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.decoder.parameters()).device

    def __iter__(self) -> Iterator[StepMetrics]:
        """Train to the end and yield the metrics of each step."""
        for batch in self._batches():
            yield self.advance(batch.own, batch)
        if (name := self._first_bad(list(self.decoder.named_parameters()))) is not None:  # after the last update
            raise Diverged(self.step, name, self._last_loss)

    def _batches(self) -> Iterator[ProcessBatch]:
        if isinstance(self.supply, TextRows):  # each process reads its own rows alone
            yield from self.supply.batches(self.training, self.step, self.team.rank, self.team.size)
            return
        for batch in training_batches(self.supply, self.training, self.positions, self.seeds, self.step):
            yield ProcessBatch.of(self.team.local_batch(batch), batch)

    def advance(self, local_batch: Batch, whole: ProcessBatch | None = None) -> StepMetrics:
        """Take one step on a batch, of which this process computes `local_batch`: all, unless there is a `whole`."""
        whole = ProcessBatch.of(local_batch, local_batch) if whole is None else whole
        if not (self.module.training and self.decoder.training):  # an evaluation set eval mode, maybe of one of the two
            self.module.train()
        rate = self.training.lr_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.decoder.config.dropout or self.decoder.config.attention_dropout:
            key = digest("dropout", self.seeds.dropout, self.step, self.team.rank, bits=64)
            torch.manual_seed(key % 2**63)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._gradients(local_batch, whole.targets)
        update = self._update if is_host(self.device) else self._update_unread
        loss, norm = update(losses, local_batch)
        self.step += 1
        return StepMetrics(self.step, loss, rate, norm, whole.tokens)

    def _gradients(self, local_batch: Batch, targets: int) -> list[Tensor]:
        """Compute the gradient of a batch, part by part; return the loss of each part."""
        parts, losses = list(self._parts(local_batch)), []
        for number, part in enumerate(parts, 1):
            with self.team.gradient_sync_context(self.module, number == len(parts)):
                losses.append(self._gradient(part, targets))
        return losses

    def _update(self, losses: Sequence[Tensor], local_batch: Batch) -> tuple[float, float]:
        """Update the weights, unless loss or gradient is not finite; returns the loss and the norm of the gradient."""
        loss, (total, parameters) = self.team.total(sum(one.item() for one in losses)), self._norm()
        norm = float(self.team.whole(total))
        if not (isfinite(loss) and isfinite(norm)):
            raise Diverged(self.step + 1, self._culprit(local_batch, isfinite(loss)), self._last_loss)
        if self.training.grad_clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.training.grad_clip, total)
        self.optimizer.step()
        self._last_loss = loss
        return loss, norm

    def _update_unread(self, losses: Sequence[Tensor], local_batch: Batch) -> tuple[float | None, float | None]:
        """Update the weights without waiting for the accelerator.

        From the first loss or gradient on that is not finite nothing is updated; it is found when the step is read.
        """
        loss, (total, parameters) = self.team.total_on_device(torch.stack(list(losses)).sum()), self._norm()
        norm = self.team.whole(total)
        if self._bad_step is None:
            self._bad_step = torch.zeros((), device=self.device)
        fine = loss.isfinite() & norm.isfinite() | (self._bad_step > 0)
        self._bad_step = torch.where(fine, self._bad_step, float(self.step + 1))
        if self.training.grad_clip is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.training.grad_clip, total)
        self.optimizer.found_inf = (self._bad_step > 0).float()  # pyrefly: ignore[missing-attribute]
        self.optimizer.step()
        self._unread.append(local_batch)
        if not self.reads_at(self.step + 1):
            return None, None
        bad, read_loss, read_norm = torch.stack([self._bad_step, loss.float(), norm.float()]).tolist()
        if bad:
            batch = self._unread[int(bad) - self.step - 2]
            self.optimizer.zero_grad(set_to_none=True)
            self._gradients(batch, int(batch.loss_BT.sum()))
            raise Diverged(int(bad), self._culprit(batch, False), self._last_loss)
        self._unread.clear()
        self._last_loss = read_loss
        return read_loss, read_norm

    def _norm(self) -> tuple[Tensor, list[nn.Parameter]]:
        """The norm of the gradient, and the parameters that have one."""
        parameters = [p for p in self.decoder.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return total, parameters

    def _culprit(self, feed: Batch, loss_is_finite: bool) -> str | None:
        """Find where a loss or gradient that is not finite comes from.

        The result is the first parameter that is not finite; or else the first such place of the forward pass, named by
        its encoding's parameters if it has any; or else the first such gradient.
        """
        named = list(self.decoder.named_parameters())
        if (name := self._first_bad(named)) is not None:
            return name
        if not loss_is_finite and not self.team.shard and (name := self._where_in_forward(feed)) is not None:
            return name
        gradients = [(f"the gradient of {name}", p.grad) for name, p in named if p.grad is not None]
        return self._first_bad(gradients)

    def _first_bad(self, listed: Sequence[tuple[str, Tensor]]) -> str | None:
        bad = (number for number, (_, tensor) in enumerate(listed) if not local_shard(tensor).isfinite().all())
        first = self.team.min_over_ranks(next(bad, len(listed)))  # another rank may hold the bad shard
        return listed[first][0] if first < len(listed) else None

    @torch.no_grad()
    def _where_in_forward(self, feed: Batch) -> str | None:
        """The first place of the forward pass that is not finite, named by its encoding's parameters if it has any."""
        bad: list[str] = []

        def look(name: str, tensor: Tensor) -> None:
            if not bad and not tensor.isfinite().all():
                bad.append(name)

        total_loss(self.decoder, feed, self.decoder.config.mask == "prefix", {"*": look})
        if not bad:
            return None
        _, layer, place = bad[0].split(".") if "." in bad[0] else ("", "0", bad[0])
        index = self.decoder.which[int(layer)]
        own = [f"encodings.{index}.{name}" for name, _ in self.decoder.encodings[index].named_parameters()]
        if own and place in {"embeddings", "q", "k", "weights"}:
            return f"what the encoding makes of {' and '.join(own)}"
        return f"the tap {bad[0]!r}"

    def _gradient(self, feed: Batch, targets: int) -> Tensor:
        with bf16_autocast(self.device, self.training.autocast):
            loss = total_loss(self.module, feed, self.decoder.config.mask == "prefix") / targets
        (loss * self.team.size).backward()  # gradients are averaged over the processes
        return loss.detach()

    def _parts(self, feed: Batch) -> Iterator[Batch]:
        rows, parts = len(feed.tokens_B), self.training.accumulation
        if self.device_batch is not None:
            parts = max(parts, -(-rows // self.device_batch))
        if parts == 1:
            yield feed
            return
        for part in range(parts):
            if rows * part // parts < rows * (part + 1) // parts:
                yield feed.rows(slice(rows * part // parts, rows * (part + 1) // parts))

    # --- state -------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name; with the step, they are all that a resumed loop needs."""
        found = {f"model.{name}": value for name, value in self.decoder.state_dict().items()}
        for name, parameter in self.decoder.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            found |= {f"{key}.{name}": state[key] for key in MOMENTS if key in state}
        return found

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Load the weights and moments after `step` steps, and continue from there."""
        own = self.decoder.state_dict()
        self.decoder.load_state_dict({name: shard_like(held, tensors[f"model.{name}"]) for name, held in own.items()})
        for name, parameter in self.decoder.named_parameters():
            there = [key for key in MOMENTS if f"{key}.{name}" in tensors]
            where = local_shard(parameter).device
            moments = {key: shard_like(parameter, tensors[f"{key}.{name}"].to(where)).clone() for key in there}
            if moments and step:
                self.optimizer.state[parameter] = {"step": torch.tensor(float(step), device=where), **moments}
        self.step = step


MOMENTS = ("exp_avg", "exp_avg_sq")


def total_loss(
    module: nn.Module, batch: Batch, prefix_mask: bool = False, taps: Mapping[str, Tap] | None = None
) -> Tensor:
    """The summed loss of a batch; logits are computed only where there is loss, and a row's last token is no input.

    `prefix_mask` means that the module has a prefix mask and needs the prompt lengths.
    """
    device = next(module.parameters()).device
    if batch.documents is not None:
        hidden = batch.hidden_BT is not None
        given_BT = batch.ids_BT[:, :-1] if batch.hidden_BT is None else batch.hidden_BT
        logits_NV = module(
            without_waiting(given_BT, device),
            documents=batch.documents if max(map(len, batch.documents)) > 1 else None,
            budget=given_BT.shape[1],
            only_BT=batch.loss_BT if hidden else batch.loss_BT[:, 1:],
            **({} if taps is None else {"taps": taps}),
        )
        return F.cross_entropy(logits_NV.float(), without_waiting(batch.targets_N, device), reduction="sum")
    logits_NV = module(
        without_waiting(batch.ids_BT[:, :-1], device),
        lengths=(batch.tokens_B - 1).tolist(),
        positions_BT=None if batch.positions_BT is None else batch.positions_BT[:, :-1],
        budget=torch.from_numpy(batch.tokens_B),
        prefix=batch.prompt_lengths_B if prefix_mask else None,
        only_BT=batch.loss_BT[:, 1:],
        **({} if taps is None else {"taps": taps}),
    )
    return F.cross_entropy(logits_NV.float(), without_waiting(batch.targets_N, device), reduction="sum")
