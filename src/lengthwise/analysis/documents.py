"""Documents whose hidden states are looked at: a task's examples, or random tokens for a model without a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case, cases
from lengthwise.evaluation.onepass import room, stacked
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Task
from lengthwise.task.sets import lengths_of

BATCH_TOKENS = 8192
"""Input tokens of a batch."""
EXAMPLES = 64
"""Documents of a length."""


@dataclass(frozen=True, eq=False)
class Document:
    """The tokens a model is given, and whatever else its positions need; what is probed is the place of each token."""

    ids: tuple[int, ...]
    length: int
    """In the task's own unit; of random tokens, their number."""
    prompt: int
    """Tokens of the prompt, which a prefix mask sees at once."""
    places: tuple[int, ...] | None = None
    """The position each token is given; None where they are counted."""
    budget: int | None = None


@dataclass(frozen=True)
class Batch:
    """Some documents, padded on the right."""

    documents: Sequence[Document]
    ids_BT: Tensor
    lengths: list[int]
    """Real tokens of each row."""

    @property
    def positions_BT(self) -> Tensor | None:
        """The positions that are given; None where they are counted."""
        places = [None if one.places is None else list(one.places) for one in self.documents]
        return stacked(places, self.ids_BT.shape[1], self.lengths)

    @property
    def budget_B(self) -> Tensor | None:
        """The tokens each row may get; None where it is those it has."""
        budgets = [one.budget for one in self.documents]
        return None if None in budgets else torch.tensor(budgets)

    @property
    def places_BT(self) -> Tensor:
        """The index of each token in its document, from 0: what a probe should find."""
        return torch.arange(self.ids_BT.shape[1]).expand(self.ids_BT.shape)

    @property
    def real_BT(self) -> Tensor:
        """Where there is a token and no padding."""
        return self.places_BT < torch.tensor(self.lengths)[:, None]


def batches(documents: Sequence[Document], tokens: int = BATCH_TOKENS) -> Iterator[Batch]:
    """The documents in batches of about so many tokens, short ones first, so that little is padding."""
    group: list[Document] = []
    for document in sorted(documents, key=lambda one: len(one.ids)):
        if group and len(document.ids) * (len(group) + 1) > tokens:
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


def apart(trained: Sequence[Document], tested: Iterable[Document]) -> list[Document]:
    """The tested documents that are none of the trained ones, each once, whatever their split says."""
    known = {one.ids for one in trained}
    found = {one.ids: one for one in tested if one.ids not in known}
    return list(found.values())


def task_documents(
    task: Task,
    lengths: Sequence[int] | None = None,
    *,
    positions: Positions | None = None,
    limit: int | None = None,
    examples: int = EXAMPLES,
) -> tuple[list[Document], dict[str, list[Document]]]:
    """Documents to train a probe on, and to test it on, at `seen` and at `unseen` lengths.

    A probe is trained on the task's validation examples, at the lengths the model was trained at, and on training
    examples where those are fewer than `examples`; it is tested on the examples that accuracy is measured on. Under
    `protocol=paper`, which has no other examples of seen lengths, the odd ones of validation are tested.
    """
    kind = (positions or Consecutive()).of(task).at_test()
    paper = task.protocol == "paper"
    wanted = None if lengths is None else set(lengths)

    def documents(split: str, only: set[int] | None, start: int = 0, step: int = 1) -> list[Document]:
        found = []
        for length in lengths_of(task, split):
            if only is None or length in only:
                for case in cases(task, split, length)[start::step][:examples]:
                    if (count := room(case, kind, limit)) >= case.prompt:
                        found.append(_document(case, kind, count))
        return found

    trained = documents("validation", None, 0, 2 if paper else 1)
    if not paper:  # few instances: some that the model was trained on make up the number, never those that are tested
        there = Counter(one.length for one in trained)
        for length in lengths_of(task, "train"):
            if there[length] < examples:
                trained += documents("train", {length})[: examples - there[length]]
    seen = documents("validation", wanted, 1, 2) if paper else documents("test_seen", wanted)
    unseen = documents("test_unseen", wanted)
    if not paper:
        unseen += documents("test_far", wanted or set())
    tested = {"seen": apart(trained, seen), "unseen": apart(trained, unseen)}
    tested = {name: found for name, found in tested.items() if found}
    absent = sorted((wanted or set()) - {one.length for found in tested.values() for one in found})
    if absent or not trained or not tested:
        told = f" of length {', '.join(map(str, absent))}" if absent else ""
        raise SpecError(f"{task.name} has no documents to probe{told}; leave out --lengths, or give others")
    return trained, tested


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
    symbols: Sequence[int], tokens: int, count: int, *, first: int | None = None, key: object = 0
) -> list[Document]:
    """So many documents of so many tokens, each drawn from `symbols`; `first` is the token they begin with, if any.

    `random_documents(range(3, 100), 64, 256, first=1)` are 256 documents of 64 tokens of which the first is 1.
    """
    if not symbols or tokens < 2 or count < 1:
        raise SpecError(f"random documents have symbols and at least two tokens, not {len(symbols)} and {tokens}")
    words = np.random.Philox(key=digest("documents", tokens, first, key)).random_raw(count * tokens)
    ids_NT = np.asarray(symbols)[(words % np.uint64(len(symbols))).astype(np.int64)].reshape(count, tokens)
    if first is not None:
        ids_NT[:, 0] = first
    return [Document(tuple(row), tokens, tokens) for row in ids_NT.tolist()]


def random_sets(
    symbols: Sequence[int],
    tokens: int,
    *,
    first: int | None = None,
    count: int = 4 * EXAMPLES,
    limit: int | None = None,
) -> tuple[list[Document], dict[str, list[Document]]]:
    """As `task_documents`, of random tokens: `seen` has so many tokens, `unseen` twice as many."""
    trained = random_documents(symbols, tokens, count, first=first, key="train")
    tested = {"seen": apart(trained, random_documents(symbols, tokens, count, first=first, key="test"))}
    if limit is None or 2 * tokens <= limit:
        tested["unseen"] = apart(trained, random_documents(symbols, 2 * tokens, count, first=first, key="test"))
    return trained, tested
