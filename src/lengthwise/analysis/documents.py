"""Documents whose hidden states are analysed: a task's examples, or random tokens for a model without a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case, evaluation_cases
from lengthwise.evaluation.onepass import stack_positions, usable_input_tokens
from lengthwise.evaluation.text import long_documents
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Task
from lengthwise.task.sets import lengths_of
from lengthwise.task.text import Text

BATCH_TOKENS = 8192
"""The number of input tokens in a batch."""
EXAMPLES = 64
"""The number of documents per length."""


@dataclass(frozen=True, eq=False)
class Document:
    """The input tokens of a model, and what its positions need; a probe predicts the index of each token."""

    ids: tuple[int, ...]
    length: int
    """The length in the task's unit; for random tokens, their number."""
    prompt: int
    """The number of prompt tokens, for a prefix mask."""
    places: tuple[int, ...] | None = None
    """The position of each token; None if positions are consecutive."""
    budget: int | None = None


@dataclass(frozen=True)
class Batch:
    """Some documents, padded on the right."""

    documents: Sequence[Document]
    ids_BT: Tensor
    lengths: list[int]
    """The number of tokens of each row, without padding."""

    @property
    def positions_BT(self) -> Tensor | None:
        """The positions of all tokens; None if they are consecutive."""
        places = [None if one.places is None else list(one.places) for one in self.documents]
        return stack_positions(places, self.ids_BT.shape[1], self.lengths)

    @property
    def budget_B(self) -> Tensor | None:
        """The token budget of each row; None if any document has none."""
        budgets = [one.budget for one in self.documents]
        return None if None in budgets else torch.tensor(budgets)

    @property
    def token_indices_BT(self) -> Tensor:
        """The index of each token in its document, from 0: the target of a probe."""
        return torch.arange(self.ids_BT.shape[1]).expand(self.ids_BT.shape)

    @property
    def real_BT(self) -> Tensor:
        """The mask of tokens that are not padding."""
        return self.token_indices_BT < torch.tensor(self.lengths)[:, None]


def document_batches(documents: Sequence[Document], max_tokens: int = BATCH_TOKENS) -> Iterator[Batch]:
    """Yield batches of at most about `max_tokens` tokens, short documents first, so that there is little padding."""
    group: list[Document] = []
    for document in sorted(documents, key=lambda one: len(one.ids)):
        if group and len(document.ids) * (len(group) + 1) > max_tokens:
            yield _batch(group)
            group = []
        group.append(document)
    if group:
        yield _batch(group)


def _batch(group: list[Document]) -> Batch:
    counts = [len(one.ids) for one in group]
    ids_BT = np.zeros((len(group), max(counts)), dtype=np.int64)
    for row, one in enumerate(group):
        ids_BT[row, : counts[row]] = one.ids
    return Batch(tuple(group), torch.from_numpy(ids_BT), counts)


def drop_training_documents(train_documents: Sequence[Document], test_documents: Iterable[Document]) -> list[Document]:
    """Return the distinct tested documents that are not among the trained ones, whatever their split."""
    known = {one.ids for one in train_documents}
    found = {one.ids: one for one in test_documents if one.ids not in known}
    return list(found.values())


def task_documents(
    task: Task,
    lengths: Sequence[int] | None = None,
    *,
    positions: Positions | None = None,
    max_tokens: int | None = None,
    examples: int = EXAMPLES,
) -> tuple[list[Document], dict[str, list[Document]]]:
    """Return documents to train a probe on, and documents to test it on, at `seen` and at `unseen` lengths.

    A probe is trained on the task's validation examples at the lengths the model was trained on, filled up with
    training examples if there are fewer than `examples`; it is tested on the test splits. `protocol=paper` has no
    further examples of seen lengths, so every second validation example is used for testing.
    """
    if isinstance(task, Text):
        return _text_documents(task, lengths, max_tokens, 4 * examples)
    kind = (positions or Consecutive()).of(task).at_test()
    paper = task.protocol == "paper"
    wanted = None if lengths is None else set(lengths)

    def documents(split: str, only: set[int] | None, start: int = 0, step: int = 1) -> list[Document]:
        found = []
        for length in lengths_of(task, split):
            if only is None or length in only:
                for case in evaluation_cases(task, split, length)[start::step][:examples]:
                    if (count := usable_input_tokens(case, kind, max_tokens)) >= case.prompt:
                        found.append(_document(case, kind, count))
        return found

    trained = documents("validation", None, 0, 2 if paper else 1)
    if not paper:  # fill up with training examples if there are few, never with tested ones
        there = Counter(one.length for one in trained)
        for length in lengths_of(task, "train"):
            if there[length] < examples:
                trained += documents("train", {length})[: examples - there[length]]
    seen = documents("validation", wanted, 1, 2) if paper else documents("test_seen", wanted)
    unseen = documents("test_unseen", wanted)
    if not paper:
        unseen += documents("test_far", wanted or set())
    tested = {"seen": drop_training_documents(trained, seen), "unseen": drop_training_documents(trained, unseen)}
    tested = {name: found for name, found in tested.items() if found}
    absent = sorted((wanted or set()) - {one.length for found in tested.values() for one in found})
    if absent or not trained or not tested:
        told = f" of length {', '.join(map(str, absent))}" if absent else ""
        raise SpecError(f"{task.name} has no documents to probe{told}; leave out --lengths, or give others")
    return trained, tested


def _text_documents(
    task: Text, lengths: Sequence[int] | None, max_tokens: int | None, many: int
) -> tuple[list[Document], dict[str, list[Document]]]:
    """The beginnings of a corpus's documents: validation documents for training, test documents for testing."""

    def documents(split: str, tokens: int) -> list[Document]:
        found = long_documents(task, tokens, many, split)
        return [Document(tuple(one.ids_T[:tokens].tolist()), tokens, tokens) for one in found]

    wanted = [task.longest, 2 * task.longest] if lengths is None else list(lengths)
    within = [one for one in wanted if max_tokens is None or one <= max_tokens]
    sides = {"seen": [n for n in within if n <= task.longest], "unseen": [n for n in within if n > task.longest]}
    tested = {name: [one for n in own for one in documents("test", n)] for name, own in sides.items() if own}
    if not tested:
        raise SpecError(f"a text is probed at contexts up to the positions there are, not at {wanted}")
    return documents("validation", task.longest), tested


def _document(case: Case, positions: Positions, count: int) -> Document:
    places = case.places(positions)
    return Document(
        tuple(case.ids[:count]),
        case.length,
        case.prompt,
        None if places is None else tuple(places[:count]),
        case.budget,
    )


def random_documents(
    token_ids: Sequence[int], length: int, count: int, *, first_token: int | None = None, seed: object = 0
) -> list[Document]:
    """Return `count` documents of `length` tokens drawn from `token_ids`; `first_token` is what they begin with.

    `random_documents(range(3, 100), 64, 256, first_token=1)` are 256 documents of 64 tokens of which the first is 1.
    """
    if not token_ids or length < 2 or count < 1:
        raise SpecError(f"random documents have symbols and at least two tokens, not {len(token_ids)} and {length}")
    words = np.random.Philox(key=digest("documents", length, first_token, seed)).random_raw(count * length)
    ids_NT = np.asarray(token_ids)[(words % np.uint64(len(token_ids))).astype(np.int64)].reshape(count, length)
    if first_token is not None:
        ids_NT[:, 0] = first_token
    return [Document(tuple(row), length, length) for row in ids_NT.tolist()]


def random_document_sets(
    token_ids: Sequence[int],
    length: int,
    *,
    first_token: int | None = None,
    count: int = 4 * EXAMPLES,
    max_tokens: int | None = None,
) -> tuple[list[Document], dict[str, list[Document]]]:
    """Like `task_documents`, with random tokens: `seen` documents have `length` tokens, `unseen` twice as many."""
    trained = random_documents(token_ids, length, count, first_token=first_token, seed="train")
    tested = {
        "seen": drop_training_documents(
            trained, random_documents(token_ids, length, count, first_token=first_token, seed="test")
        )
    }
    if max_tokens is None or 2 * length <= max_tokens:
        tested["unseen"] = drop_training_documents(
            trained, random_documents(token_ids, 2 * length, count, first_token=first_token, seed="test")
        )
    return trained, tested
