"""Symbols ↔ ids. Nothing is ever cut, and nothing unknown is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lengthwise.spec import SpecError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def text(symbols: Sequence[str]) -> str:
    """Symbols as a person reads them; `##.` is a full stop glued to what stands before it, `\\##.` are three signs."""
    return " ".join(symbols).replace(" ##", "").replace("\\##", "##")


def symbol(word: str) -> str:
    """The symbol that `text` writes as the word, also where the word begins with `##`."""
    kept = word.replace("\\##", "\\\\##")
    return f"\\{kept}" if kept.startswith("##") else kept


class Vocabulary:
    """A word-level vocabulary: `<pad>`, `<bos>`, `<eos>`, then the task's symbols in their order.

    Padding has an id only so that arrays can be filled; where it is, is known from lengths.
    """

    pad, bos, eos = 0, 1, 2

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = (PAD, BOS, EOS, *symbols)
        self._ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        if len(self._ids) != len(self.symbols):
            twice = sorted({symbol for symbol in self.symbols if self.symbols.count(symbol) > 1})
            raise SpecError(f"a vocabulary has each symbol once, but these come twice: {' '.join(twice[:8])}")
        self.lookup = self._ids.__getitem__

    def __len__(self) -> int:
        return len(self.symbols)

    def ids(self, symbols: Iterable[str]) -> list[int]:
        """The ids of symbols; an unknown one is an error."""
        try:
            return list(map(self.lookup, symbols))
        except KeyError as error:
            raise SpecError(f"the symbol {error.args[0]!r} is not in the vocabulary; add it to `symbols`") from None

    def read(self, ids: Iterable[int]) -> list[str]:
        """The symbols of ids; a number that is none, from a model that has more, is shown as it is."""
        return [self.symbols[number] if number < len(self.symbols) else f"<{number}>" for number in ids]

    def say(self, ids: Iterable[int]) -> str:
        """Ids as a person reads them, without beginning and end tokens."""
        return text([symbol for symbol in self.read(ids) if symbol not in {BOS, EOS}])

    def sequence(self, prompt: Sequence[str], target: Sequence[str], starts: bool) -> tuple[list[int], int]:
        """The ids of one whole sequence, and how many of them are the prompt's: the loss is on the others."""
        head = [self.bos, *self.ids(prompt)] if starts else self.ids(prompt)
        return [*head, *self.ids(target), self.eos], len(head)
