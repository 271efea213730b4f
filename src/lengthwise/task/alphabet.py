"""The symbols that copy, reverse and sort are made of."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lengthwise.task.base import Task

LETTERS = (*digits, *ascii_lowercase, *ascii_uppercase)
# The original also tries these characters and keeps those that T5 encodes as one token: all but `<`, which T5 lacks.
ASCII = (*LETTERS, *"!$%&()*+,-./:;=>")


def letters(task: Task, size: int, preferred: tuple[str, ...] = ASCII) -> tuple[str, ...]:
    """Return the first `size` symbols: ASCII characters, then words `w78`, `w79`, ... in place of T5's vocabulary.

    Under `paper` with a tokenizer, return the original's alphabet: the words that the tokenizer keeps as one token.
    """
    if task.protocol == "paper" and task.hf_tokenizer is not None:
        return task.hf_tokenizer.alphabet(preferred, size)
    return (*preferred[:size], *(f"w{number}" for number in range(len(preferred), size)))
