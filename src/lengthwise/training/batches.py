"""Which examples are in which batch: a pure function of (task, training, seeds, step).

Length-aware batching takes the examples of a window of batches, sorts them by their tokens, cuts them into batches and
shuffles the batches. Every window holds exactly the examples that it would hold with mixed batches, each once. So over
a window the model sees the same examples, and the same distribution of lengths, with either kind of batching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.spec import digest
from lengthwise.task.block import Block
from lengthwise.training.settings import Seeds, Training


@dataclass(frozen=True)
class Batch:
    """One batch for the model: whole sequences, and a mask of the tokens to predict."""

    ids_BT: Tensor
    tokens_B: np.ndarray
    """Real tokens of each row."""
    loss_BT: Tensor
    positions_BT: Tensor | None
    lengths_B: np.ndarray
    """The length of each example, in the task's unit."""
    documents: list[list[int]] | None = None
    """The lengths of the documents that are packed into each row of inputs."""
    hidden_BT: Tensor | None = None
    """What a masked language model is given in place of `ids_BT`; it predicts at a token, not after it."""

    @property
    def targets_N(self) -> Tensor:
        """The tokens to predict, row after row."""
        return self.ids_BT[self.loss_BT]

    @property
    def prompt_lengths_B(self) -> Tensor:
        """The number of prompt tokens of each row: those before the first token to predict."""
        return self.loss_BT.int().argmax(1)

    def rows(self, row_indices: np.ndarray | slice) -> Batch:
        """The batch of these rows only, cut to the longest of them."""
        tokens_B = self.tokens_B[row_indices]
        wide = int(tokens_B.max())
        places_BT = None if self.positions_BT is None else self.positions_BT[row_indices, :wide]
        documents = None
        if self.documents is not None:
            documents = [self.documents[row] for row in np.arange(len(self.tokens_B))[row_indices].tolist()]
        return Batch(
            self.ids_BT[row_indices, :wide],
            tokens_B,
            self.loss_BT[row_indices, :wide],
            places_BT,
            self.lengths_B[row_indices],
            documents,
            None if self.hidden_BT is None else self.hidden_BT[row_indices, :wide],
        )


@dataclass(frozen=True)
class ProcessBatch:
    """What one of several processes needs of a batch: its own rows, and two numbers of the whole."""

    own: Batch
    targets: int
    """Tokens to predict in the whole batch, by which the loss is divided."""
    tokens: int
    """Input tokens of the whole batch."""

    @classmethod
    def of(cls, own: Batch, whole: Batch) -> ProcessBatch:
        """The rows `own` of the batch `whole`."""
        return cls(own, int(whole.loss_BT.sum()), int(whole.tokens_B.sum()) - len(whole.tokens_B))


class BlockSource(Protocol):
    """A source of blocks of training examples."""

    def __call__(self, start: int, stop: int) -> Block:
        """Examples start, ..., stop − 1."""
        ...


def windows(training: Training, first_step: int = 0) -> Iterator[tuple[int, int]]:
    """The first step and the number of steps of each window, from the one that step `first_step` is in."""
    for begin in range(first_step - first_step % training.window_steps, training.steps, training.window_steps):
        yield begin, min(training.window_steps, training.steps - begin)


def batch_row_indices(block: Block, training: Training, key: int) -> list[np.ndarray]:
    """The rows of each batch of a window."""
    size = training.batch_size
    if training.batching == "mixed":
        return [np.arange(start, start + size) for start in range(0, len(block), size)]
    order_N = np.argsort(block.token_counts_N, kind="stable")
    batches = [order_N[start : start + size] for start in range(0, len(block), size)]
    words = np.random.Philox(key=key).random_raw(len(batches))
    return [batches[place] for place in np.argsort(words, kind="stable")]


def training_batches(
    block_source: BlockSource,
    training: Training,
    positions: Positions,
    seeds: Seeds,
    first_step: int = 0,
    end_step: int | None = None,
) -> Iterator[Batch]:
    """The batches of the steps from `first_step` up to `end_step`, independent of earlier calls."""
    end_step = training.steps if end_step is None else end_step
    for begin, steps in windows(training, first_step):
        if begin >= end_step:
            return
        block = block_source(begin * training.batch_size, (begin + steps) * training.batch_size)
        order = batch_row_indices(block, training, digest("order", seeds.order, begin // training.window_steps))
        for rows in order[max(first_step - begin, 0) : end_step - begin]:
            yield make_batch(block, rows, positions, seeds.data, begin * training.batch_size)


def make_batch(block: Block, row_indices: np.ndarray, positions: Positions, seed: int, first_example: int = 0) -> Batch:
    """Rows of a block as tensors; `first_example` is the number of the block's first example in the training."""
    batch = block.batch(row_indices)
    places_BT = None
    if not isinstance(positions, Consecutive):
        places = np.zeros_like(batch.ids_BT, dtype=np.int64)
        for place, row in enumerate(np.asarray(row_indices).tolist()):
            tokens, prompt = int(batch.tokens_B[place]), int(block.prompt_lengths_N[row])
            ids = batch.ids_BT[place, :tokens].tolist()
            key = digest(
                "positions", seed, first_example + row
            )  # new positions for an example repeated in a later epoch
            places[place, :tokens] = positions.places(ids[:prompt], ids[prompt:], key, tokens)
        places_BT = torch.from_numpy(places)
    return Batch(
        torch.from_numpy(batch.ids_BT.astype(np.int64)),
        batch.tokens_B,
        torch.from_numpy(batch.loss_BT),
        places_BT,
        block.lengths_N[row_indices],
    )


def on_demand_blocks(make_block: Callable[[int, int], Block]) -> BlockSource:
    """A supply that makes each block on demand and caches the last one."""
    held: dict[tuple[int, int], Block] = {}

    def supply(start: int, stop: int) -> Block:
        if (start, stop) not in held:
            held.clear()
            held[start, stop] = make_block(start, stop)
        return held[start, stop]

    return supply
