"""Language modelling: predict the next token of a corpus, or the hidden ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from lengthwise.corpora.order import Mixture, Rows, cut_row
from lengthwise.corpora.shards import Corpus
from lengthwise.corpora.tokens import Tokenizer
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Example, Instance, Task
from lengthwise.task.random_source import RandomSource

FACTORS = (1.25, 1.375, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Contexts beyond the trained one, as multiples of it."""


HIDDEN = 0.15
"""The share of tokens that a masked language model predicts; of these 80 % are hidden, 10 % random, 10 % unchanged."""


class TextBlock(NamedTuple):
    """Rows of a corpus: what the model is given, and what it predicts."""

    ids_BT: np.ndarray
    """The tokens; one more than is given, unless some are hidden."""
    documents: list[list[int]]
    """The lengths of the documents of each row."""
    hidden_BT: np.ndarray | None
    """What a masked language model is given."""
    loss_BT: np.ndarray
    """The tokens of `ids_BT` that are predicted."""


class TextVocabulary:
    """A corpus's tokenizer as the vocabulary of a task; its size is known without the library that reads it."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return self._corpus.record["vocabulary"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self._corpus.tokenizer

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The tokens by id."""
        return self.tokenizer.symbols

    @property
    def bos(self) -> int:
        """The id of the token that begins a document; it also pads and ends."""
        return self.tokenizer.start

    pad = eos = bos

    def ids(self, symbols: Iterable[str]) -> list[int]:
        """Return the ids of symbols."""
        known = {symbol: number for number, symbol in enumerate(self.symbols)}
        return [known[symbol] for symbol in symbols]

    def read(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols of ids."""
        return [self.symbols[number] for number in ids]

    def say(self, ids: Sequence[int]) -> str:
        """Decode ids to text."""
        return self.tokenizer.decode(ids)

    def split(self, text: str) -> list[str]:
        """Return the symbols of a text, without a start token."""
        return self.read(self.tokenizer.encode([text])[0][1:].tolist())

    def sequence(self, prompt: Sequence[str], target: Sequence[str], add_start_token: bool) -> tuple[list[int], int]:
        """Return the ids of a whole sequence, and how many of them are the prompt's."""
        head = [self.bos] * add_start_token + self.ids(prompt)
        return [*head, *self.ids(target)], len(head)


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Predict each token of a corpus that `lengthwise corpus` prepared.

    A length is a context in tokens, and `longest` the trained one. Rows are cut from the documents end to end; a token
    sees those of its own document alone. `path` is the folder of the corpus, or a list of several with `weights`.
    With `objective=masked`, 15 % of the tokens are predicted from both sides, as BERT does.
    """

    path: str | tuple[str, ...]
    weights: tuple[float, ...] | None = None
    objective: Literal["causal", "masked"] = "causal"
    longest: int = 128

    unit: ClassVar[str] = "tokens"
    shown: ClassVar[tuple[str, ...]] = (*Task.shown, "path", "weights", "objective")

    def __post_init__(self) -> None:
        if self.longest < 16:
            raise SpecError(f"a context has at least 16 tokens, not {self.longest}")
        if self.protocol == "paper" or self.tokenizer is not None or self.bos is not None:
            raise SpecError("text has no protocol, tokenizer or bos: the corpus decides")
        if len({corpus.record["tokenizer"] for corpus in self.corpora}) > 1:
            raise SpecError("corpora that are mixed have one tokenizer: prepare the others with --tokenizer FIRST")
        if self.weights is not None and len(self.weights) != len(self.corpora):
            raise SpecError(f"give one weight for each of {len(self.corpora)} corpora, not {len(self.weights)}")
        super().__post_init__()

    @cached_property
    def corpora(self) -> list[Corpus]:
        """The corpora, in the order of `path`."""
        return [Corpus(path) for path in ((self.path,) if isinstance(self.path, str) else self.path)]

    def rows(self, split: str, seed: int) -> Mixture:
        """Return the rows of a split in the order of a seed."""
        parts = [Rows(corpus, split, self.longest, seed) for corpus in self.corpora]
        if empty := [str(part.corpus.folder) for part in parts if not part.count]:
            raise SpecError(f"{empty[0]} has no {split} documents of {self.longest + 1} tokens; use a shorter context")
        return Mixture(parts, self.weights or [1.0] * len(parts))

    @property
    def targets(self) -> int:
        """Tokens to predict in a row."""
        return self.longest if self.objective == "causal" else max(1, round(HIDDEN * self.longest))

    def block(self, rows: Mixture, indices: Sequence[int], seed: int = 0) -> TextBlock:
        """Return the rows with these numbers; the seed decides what is hidden under the masked objective."""
        cut = [cut_row(*rows.place(index), self.longest) for index in indices]
        ids_BT = np.stack([ids for ids, _ in cut]).astype(np.int64)
        documents = [_document_lengths(breaks, self.longest) for _, breaks in cut]
        if self.objective == "masked":
            hidden_BT, loss_BT = self._hide(ids_BT[:, :-1], rows.parts[0].split, indices, seed)
            return TextBlock(ids_BT[:, :-1], documents, hidden_BT, loss_BT)
        loss_BT = np.ones(ids_BT.shape, dtype=bool)
        loss_BT[:, 0] = False
        return TextBlock(ids_BT, documents, None, loss_BT)

    def _hide(self, ids_BT: np.ndarray, split: str, indices: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
        """What a masked language model is given, and the tokens that it predicts: equally many in each row."""
        hidden_BT, loss_BT = ids_BT.copy(), np.zeros(ids_BT.shape, dtype=bool)
        mask, many = self.corpora[0].tokenizer.mask, self.targets
        for row, index in enumerate(indices):
            key = digest("hidden", seed, split, index)
            raw = np.random.Philox(key=key).random_raw(self.longest + 2 * many)
            places = np.argsort(raw[: self.longest], kind="stable")[:many]
            kind, words = raw[self.longest :: 2] % 10, raw[self.longest + 1 :: 2] % len(self.vocabulary)
            kept = np.where(kind < 9, words.astype(np.int64), ids_BT[row, places])
            hidden_BT[row, places] = np.where(kind < 8, mask, kept)
            loss_BT[row, places] = True
        return hidden_BT, loss_BT

    @property
    def contexts(self) -> list[int]:
        """The contexts that are tested unless others are asked for: from 16 to four times the trained one."""
        seen = [16, self.longest // 4, self.longest // 2, self.longest]
        return sorted({one for one in seen if one >= 16} | {int(self.longest * factor) for factor in FACTORS})

    @property
    def content(self) -> str:
        """A hash of the corpora."""
        return f"{digest([corpus.content for corpus in self.corpora], bits=64):016x}"

    def key(self, *more: object, seed: int = 0) -> int:
        """Return a random key, which depends on the corpora and not on where they are."""
        return super().key(self.content, *more, seed=seed)

    @cached_property
    def vocabulary(self) -> Any:  # noqa: ANN401 (the base class has a narrower type)
        """The corpus's tokenizer."""
        return TextVocabulary(self.corpora[0])

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.vocabulary.symbols

    def draw(self, rng: RandomSource, length: int) -> Instance:
        """Refuse: a corpus has no examples with a right answer."""
        raise self._no_examples()

    def space(self, length: int) -> int:
        """Refuse: a corpus has no examples with a right answer."""
        raise self._no_examples()

    def _no_examples(self) -> SpecError:
        return SpecError(
            "a text has no questions with right answers; train, evaluate, measure and probe work with language models"
        )

    def longest_answer_instance(self, length: int) -> tuple[int, ...]:
        """Return a sequence of this many tokens, whichever."""
        return (self.vocabulary.bos,) * length

    def to_example(self, instance: Sequence[int]) -> Example:
        """Return all tokens as the answer: each is to be predicted."""
        return Example((), tuple(self.vocabulary.read(instance)))

    @property
    def starts(self) -> bool:
        """Whether a sequence starts with a start token: a document does."""
        return True

    def answer_limit(self, length: int) -> int:
        """Return the number of tokens of a sequence of this length."""
        return length

    def last_position(self, positions: str) -> int:
        """Return the last position that is trained on, under this kind of positions."""
        if positions != "consecutive":
            raise SpecError(f"a text has consecutive positions, not {positions}")
        return self.longest - 1

    def chance(self, length: int) -> float:
        """Return the accuracy of guessing uniformly."""
        return 1 / len(self.vocabulary)


def _document_lengths(breaks: Sequence[int], tokens: int) -> list[int]:
    """The lengths of the documents of a row, from where they begin in it."""
    places = [0, *(place for place in breaks if place < tokens), tokens]
    return [end - begin for begin, end in pairwise(places)]
