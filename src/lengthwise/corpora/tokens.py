"""Text ↔ token ids with a tokenizer of the `tokenizers` library: a given one, or a byte-level BPE trained here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lengthwise.folder import Folder
from lengthwise.spec import SpecError

START, MASK = "<|start|>", "<|mask|>"
"""The token that begins every document (to predict it is to predict that the document before it ends), and the one that
hides a token from a masked language model."""
_STARTS = (START, "<|endoftext|>", "<s>", "<bos>", "<|begin_of_text|>", "[CLS]")
_MASKS = (MASK, "[MASK]", "<mask>")
FILE = "tokenizer.json"


class Tokenizer:
    """A tokenizer by the content of its `tokenizer.json`; it can be sent to a worker."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def read(cls, place: str) -> Tokenizer:
        """Read `tokenizer.json`, or the folder that it is in."""
        folder, _, name = place.rstrip("/").rpartition("/")
        if name.endswith(".json"):
            return cls(Folder(folder or ".").read(name))
        return cls(Folder(place).read(FILE))

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int) -> Tokenizer:
        """Train a byte-level BPE: any text can be encoded, and decoded again without a loss."""
        lib = _library()
        made = lib.Tokenizer(lib.models.BPE())
        made.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = lib.decoders.ByteLevel()
        trainer = lib.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[START, MASK],
            initial_alphabet=sorted(lib.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        made.train_from_iterator(texts, trainer)
        return cls(made.to_str().encode())

    def __len__(self) -> int:
        return len(self.symbols)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes]]:
        return Tokenizer, (self.data,)

    @property
    def digest(self) -> str:
        """A hash of its content."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def start(self) -> int:
        """The id of the token that begins a document."""
        return self._special(_STARTS, "begins a document")

    @cached_property
    def mask(self) -> int:
        """The id of the token that hides another one."""
        return self._special(_MASKS, "hides another one")

    def _special(self, names: Sequence[str], what: str) -> int:
        for name in names:
            if (found := self._tokenizer.token_to_id(name)) is not None:
                return found
        raise SpecError(f"the tokenizer has no token that {what}; add one of {', '.join(names)}")

    @property
    def dtype(self) -> str:
        """The smallest type that holds every id."""
        return "uint16" if len(self) <= 2**16 else "uint32"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each document, the start token first. Text that spells a special token is only text."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([self.start, *one.ids], dtype=self.dtype) for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The tokens by id, as the tokenizer spells them."""
        names = {number: name for name, number in self._tokenizer.get_vocab().items()}
        return tuple(names.get(number, f"<unused {number}>") for number in range(max(names) + 1))

    @cached_property
    def _tokenizer(self) -> Any:  # noqa: ANN401
        try:
            made = _library().Tokenizer.from_str(self.data.decode())
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 (the library raises plain Exception)
            raise SpecError(f"the tokenizer cannot be read: {error}") from None
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = True  # a document may contain the text "<|start|>", which is no start token
        return made


def _library() -> Any:  # noqa: ANN401
    try:
        import tokenizers
    except ImportError:
        raise SpecError("a corpus needs an extra: pip install 'lengthwise[corpora]'") from None
    return tokenizers
