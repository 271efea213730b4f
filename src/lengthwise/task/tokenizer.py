"""A Hugging Face tokenizer in place of the word-level vocabulary. Needs `pip install 'lengthwise[hf]'`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise.spec import SpecError
from lengthwise.task.vocabulary import join_symbols


class HuggingFaceTokenizer:
    """The tokenizer in a folder: `HuggingFaceTokenizer("t5")` reads `t5/tokenizer.json` and its special tokens.

    It never adds special tokens by itself and never truncates. A sequence is tokenized as one text; an example whose
    prompt would merge with its answer into one token is refused, because the loss could not begin at the answer.
    """

    def __init__(self, folder: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise SpecError("a tokenizer needs: pip install 'lengthwise[hf]'") from error
        where = Path(folder)
        file = where / "tokenizer.json" if where.is_dir() else where
        if not where.exists():
            raise SpecError(f"there is no folder {folder!r}; give the one that the tokenizer's save_pretrained wrote")
        if not file.is_file():
            raise SpecError(f"there is no tokenizer.json in {folder!r}; give the folder that save_pretrained wrote")
        read = file.read_bytes()
        try:
            self._tokenizer: Any = Tokenizer.from_buffer(read)
        except Exception as error:  # the library raises nothing narrower
            raise SpecError(f"{str(file)!r} is no tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.digest = hashlib.blake2b(read, digest_size=8).hexdigest()
        special = _special(file.parent)
        self.content = f"{self.digest} {json.dumps(special, sort_keys=True)}"
        self.bos = self._id(special, "bos_token", ("<s>", "<bos>", "<|begin_of_text|>"))
        eos = self._id(special, "eos_token", ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"))
        if eos is None:
            raise SpecError(f"{folder!r} names no end token; add eos_token to its tokenizer_config.json")
        self.eos: int = eos
        self.pad = self._id(special, "pad_token", ("<pad>",)) or 0

    def _id(self, special: dict[str, str], role: str, usual: tuple[str, ...]) -> int | None:
        for name in (special.get(role), *usual):
            if name is not None and (found := self._tokenizer.token_to_id(name)) is not None:
                return found
        return None

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The token of each id."""
        return tuple(self._tokenizer.id_to_token(number) or "" for number in range(len(self)))

    def read(self, ids: Iterable[int]) -> list[str]:
        """Refuse: positions that depend on symbols need the word-level vocabulary."""
        raise SpecError("positions that look at symbols need the word-level vocabulary; leave out tokenizer")

    def say(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without beginning and end tokens."""
        return self._tokenizer.decode([number for number in ids if number not in {self.bos, self.eos}])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.encode(text))

    def max_tokens_per_symbol(self, symbols: Iterable[str]) -> int:
        """Return the most tokens that a symbol adds to a text: alone, after a space, or after another symbol."""
        return max(
            max(
                self.count(join_symbols(("", symbol))),
                self.count(join_symbols((symbol,))),
                self.count(join_symbols(("0", symbol, symbol))) - self.count(join_symbols(("0", symbol))),
            )
            for symbol in symbols
        )

    def sequence(self, prompt: Sequence[str], target: Sequence[str], add_start_token: bool) -> tuple[list[int], int]:
        """Return the ids of a whole sequence, and how many of them are the prompt's."""
        asked, whole = join_symbols(prompt), join_symbols((*prompt, *target))
        head, ids = self.encode(asked), self.encode(whole)
        if ids[: len(head)] != head:
            shown = [self._tokenizer.id_to_token(number) for number in ids[max(len(head) - 2, 0) : len(head) + 2]]
            raise SpecError(
                f"the tokenizer merges the end of the prompt {asked[-20:]!r} with the answer, in pieces {shown}: "
                "the loss cannot begin at the answer; use another tokenizer or another format"
            )
        if add_start_token and self.bos is None:
            raise SpecError("the tokenizer has no beginning token; write bos=false")
        begin = [self.bos] if add_start_token and self.bos is not None else []
        return [*begin, *ids, self.eos], len(begin) + len(head)

    def digit_tokenization(self) -> dict[str, object]:
        """Describe how digits are tokenized: tokens of example numbers, with and without spaces, and the rule."""
        together = {number: self._shown(number) for number in ("7", "42", "365", "1234", "1234567", "00700")}
        apart = self._shown("1 2 3 4 5 6 7")
        sizes = [len(piece.strip("▁Ġ ")) for piece in self._shown("1234567")]
        sizes = [size for size in sizes if size]
        if sizes == [1] * 7:
            rule = "one token per digit"
        elif len(sizes) == 1:
            rule = "a number may be one token"
        else:
            rule = f"digits merge, 1234567 in groups of {'-'.join(map(str, sizes))}"
        return {"rule": rule, "apart": apart, **together}

    def _shown(self, words: str) -> list[str]:
        return [self._tokenizer.id_to_token(number) for number in self.encode(words)]

    def alphabet(self, preferred: Sequence[str], size: int) -> tuple[str, ...]:
        """Return the original's alphabet: characters, then vocabulary entries, that stay one token when repeated."""
        found = [word for word in preferred if self._single(word)]
        known = set(found)
        for piece in self.symbols:
            if len(found) >= size:
                break
            word = piece.removeprefix("▁").removeprefix("Ġ")
            if word not in known and self._single(word):
                found.append(word)
                known.add(word)
        if len(found) < size:
            raise SpecError(
                f"the tokenizer has {len(found)} words that stay one token when repeated; {size} are needed"
            )
        return tuple(found[:size])

    def _single(self, word: str) -> bool:
        if not word or any(character.isspace() for character in word) or word.startswith("##"):
            return False
        ids = self.encode(f"{word} {word} {word}")
        if len(ids) != 3 or len(set(ids)) != 1 or ids[0] in self._special_ids:
            return False
        return self._tokenizer.id_to_token(ids[0]).strip("▁Ġ") == word

    @cached_property
    def _special_ids(self) -> set[int | None]:
        """The ids of special tokens, and those that an unknown character is encoded as."""
        unknown = self.encode("\ue000")
        return {self.bos, self.eos, self.pad, *unknown, *self._tokenizer.get_added_tokens_decoder()}


def _special(folder: Path) -> dict[str, str]:
    """Return the special tokens that the folder's configuration names, by role."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / file
        if path.is_file():
            for role, value in json.loads(path.read_text()).items():
                content = value.get("content") if isinstance(value, dict) else value
                if role in {"bos_token", "eos_token", "pad_token"} and isinstance(content, str):
                    named[role] = content
    return named
