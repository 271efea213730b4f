"""Map symbols to ids and back. Sequences are never truncated, and an unknown symbol is an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lengthwise.spec import SpecError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def join_symbols(symbols: Sequence[str]) -> str:
    """Join symbols to readable text; `##.` is a full stop without a space before it, `\\##.` is the literal `##.`."""
    return " ".join(symbols).replace(" ##", "").replace("\\##", "##")


def escape_symbol(word: str) -> str:
    """Return the symbol that `join_symbols` writes as this word, escaped if the word begins with `##`."""
    kept = word.replace("\\##", "\\\\##")
    return f"\\{kept}" if kept.startswith("##") else kept


class Vocabulary:
    """A word-level vocabulary: `<pad>`, `<bos>`, `<eos>`, then the task's symbols in their order.

    Padding has an id only so that arrays can be filled; which tokens are padding is known from the sequence lengths.
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
        """Return the ids of symbols; an unknown one is an error."""
        try:
            return list(map(self.lookup, symbols))
        except KeyError as error:
            raise SpecError(f"the symbol {error.args[0]!r} is not in the vocabulary; add it to `symbols`") from None

    def read(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols of ids; an id beyond the vocabulary, from a model with a larger one, becomes `<id>`."""
        return [self.symbols[number] if number < len(self.symbols) else f"<{number}>" for number in ids]

    def say(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without beginning and end tokens."""
        return join_symbols([symbol for symbol in self.read(ids) if symbol not in {BOS, EOS}])

    def sequence(self, prompt: Sequence[str], target: Sequence[str], add_start_token: bool) -> tuple[list[int], int]:
        """Return the ids of a whole sequence, and how many of them are the prompt's; the loss is on the others."""
        head = [self.bos, *self.ids(prompt)] if add_start_token else self.ids(prompt)
        return [*head, *self.ids(target), self.eos], len(head)
