"""Examples as integer arrays: a block holds many examples of a set, a batch holds padded rows of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Instance, Task
from lengthwise.task.sets import BLOCK, evaluation_instances, instances, training_lengths_and_indices

_TELL_EVERY = 2048


class Batch(NamedTuple):
    """Padded rows of a block: what a model is fed."""

    ids_BT: np.ndarray
    tokens_B: np.ndarray
    """How many tokens of each row are not padding."""
    loss_BT: np.ndarray
    """The loss mask: true exactly at the tokens of the target and the end token."""


@dataclass(frozen=True)
class Block:
    """Examples end to end in one array, with where each begins, and its length in the task's unit."""

    ids: np.ndarray
    """All tokens, one example after the other."""
    starts_N: np.ndarray
    """Where each example begins; one more entry than examples."""
    prompt_lengths_N: np.ndarray
    """How many tokens of each example are the prompt's, the beginning token included if there is one."""
    lengths_N: np.ndarray
    indices_N: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths_N)

    @property
    def token_counts_N(self) -> np.ndarray:
        """How many tokens each example has."""
        return np.diff(self.starts_N)

    def batch(self, row_indices: slice | Sequence[int] | np.ndarray, pad_id: int = 0) -> Batch:
        """Return these rows, padded on the right to the longest of them; nothing is cut."""
        starts_B, tokens_B = self.starts_N[:-1][row_indices], self.token_counts_N[row_indices]
        place_T = np.arange(int(tokens_B.max()))
        real_BT = place_T < tokens_B[:, None]
        ids_BT = np.full(real_BT.shape, pad_id, dtype=self.ids.dtype)
        ids_BT[real_BT] = self.ids[(starts_B[:, None] + place_T)[real_BT]]
        return Batch(ids_BT, tokens_B, real_BT & (place_T >= self.prompt_lengths_N[row_indices][:, None]))


def materialise(
    task: Task,
    split: str,
    lengths: Sequence[int] | np.ndarray,
    indices: Sequence[int] | np.ndarray,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Block:
    """Return a block of the examples at (length, index) of a split; `on_progress` gets the number just made."""
    if len(lengths) > BLOCK:
        raise SpecError(f"a block has at most {BLOCK} examples, not {len(lengths)}; ask for several")
    length_list, index_list = np.asarray(lengths).tolist(), np.asarray(indices).tolist()
    made = instances(task, split, length_list, index_list, seed)
    return _block(task, made, length_list, index_list, on_progress)


def training_block(
    task: Task, start: int, stop: int, seed: int = 0, on_progress: Callable[[int], None] | None = None
) -> Block:
    """Return training examples start, ..., stop − 1 of a run with this seed."""
    lengths, indices = training_lengths_and_indices(task, start, stop, seed)
    return materialise(task, "train", lengths, indices, seed, on_progress)


def evaluation_block(task: Task, split: str, length: int) -> Block:
    """Return the evaluation set of a length."""
    chosen = evaluation_instances(task, split, length)
    return _block(task, chosen, [length] * len(chosen), list(range(len(chosen))), None)


def _block(
    task: Task,
    made: Sequence[Instance] | object,
    lengths: list[int],
    indices: list[int],
    progress: Callable[[int], None] | None,
) -> Block:
    vocabulary, starts, to_example = task.vocabulary, task.starts, task.to_example
    ids: list[int] = []
    ends, prompts = [0], []
    for done, instance in enumerate(made, 1):  # type: ignore[arg-type]
        example = to_example(instance)
        try:
            sequence, prompt = vocabulary.sequence(example.prompt, example.steps + example.answer, starts)
        except SpecError as error:
            raise SpecError(
                f"example {indices[done - 1]} of {task.name}, length {lengths[done - 1]}: {error}"
            ) from None
        ids += sequence
        ends.append(len(ids))
        prompts.append(prompt)
        if progress is not None and done % _TELL_EVERY == 0:
            progress(_TELL_EVERY)
    if progress is not None:
        progress(len(prompts) % _TELL_EVERY)
    return Block(
        np.array(ids, dtype=np.int32),
        np.array(ends, dtype=np.int64),
        np.array(prompts, dtype=np.int32),
        np.array(lengths, dtype=np.int32),
        np.array(indices, dtype=np.int64),
    )
