"""Batches of a corpus: batch i is a pure function of (corpora, context, batch size, seed, i), for any number of ranks.

Each process reads its own rows alone, every n-th of a batch. So a training that was stopped goes on at any step without
reading again what came before, also with another number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lengthwise.corpora.order import Mixture
from lengthwise.task.base import Task
from lengthwise.task.block import training_block
from lengthwise.task.text import Text
from lengthwise.training.batches import Batch, BlockSource, ProcessBatch, on_demand_blocks
from lengthwise.training.settings import Seeds, Training

_AHEAD = 2
"""Batches that are read while the model computes."""


def examples_on_demand(task: Task, seeds: Seeds) -> BlockSource | TextRows:
    """Return the training examples of a task, each block of which is made when it is asked for."""
    if isinstance(task, Text):
        return TextRows(task, seeds.data, seeds.order)
    return on_demand_blocks(lambda start, stop: training_block(task, start, stop, seeds.data))


@dataclass(frozen=True)
class TextRows:
    """The training rows of a corpus as batches: `TextRows(task, seed=0).batches(training, first_step=500)`."""

    task: Text
    seed: int
    """Of what is hidden from a masked language model."""
    order: int | None = None
    """The seed of the order of the rows; the same, unless given."""

    @cached_property
    def _rows(self) -> Mixture:
        return self.task.rows("train", self.seed if self.order is None else self.order)

    def batches(self, training: Training, first_step: int = 0, rank: int = 0, ranks: int = 1) -> Iterator[ProcessBatch]:
        """The batches of the steps from `first_step` on, each with the rows of one process, read ahead by a thread."""
        size = training.batch_size

        def read(step: int) -> ProcessBatch:
            own = self.batch(range(step * size + rank, (step + 1) * size, ranks))
            return ProcessBatch(own, size * self.task.targets, size * self.task.longest)

        with ThreadPoolExecutor(1, "corpus") as reader:
            coming = [reader.submit(read, step) for step in range(first_step, training.steps)[:_AHEAD]]
            try:
                for step in range(first_step, training.steps):
                    batch = coming.pop(0).result()
                    if step + _AHEAD < training.steps:
                        coming.append(reader.submit(read, step + _AHEAD))
                    yield batch
            finally:
                for one in coming:
                    one.cancel()

    def batch(self, indices: range) -> Batch:
        """The rows with these numbers, as tensors."""
        block = self.task.block(self._rows, indices, self.seed)
        tokens_B = np.full(len(indices), block.ids_BT.shape[1])
        lengths_B = np.full(len(indices), self.task.longest)
        hidden_BT = None if block.hidden_BT is None else torch.from_numpy(block.hidden_BT)
        ids_BT, loss_BT = torch.from_numpy(block.ids_BT), torch.from_numpy(block.loss_BT)
        return Batch(ids_BT, tokens_B, loss_BT, None, lengths_B, block.documents, hidden_BT)
