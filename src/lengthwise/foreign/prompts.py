"""Examples of our tasks as prompts for models of others: text with solved examples, its tokens, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from lengthwise.spec import SpecError, one_line
from lengthwise.task.base import Instance, Task
from lengthwise.task.sets import evaluation_instances, instances, trained_lengths
from lengthwise.task.vocabulary import join_symbols

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARROW, LINE_END = " ->", "\n"
"""What follows an input, without a space at its end, because most tokenizers put the space before the next word."""


@dataclass(frozen=True)
class Question:
    """One example of a task as text."""

    split: str
    length: int
    index: int
    instance: Instance
    shots: str
    """Solved examples, one in each line."""
    text: str
    """The input and the arrow."""
    answer: str
    """The right answer, without the space before it and the end of the line after it."""

    @property
    def prompt(self) -> str:
        """Everything that the model reads."""
        return self.shots + self.text

    @property
    def whole(self) -> str:
        """The prompt with its right answer and the end of the line."""
        return f"{self.prompt} {self.answer}{LINE_END}"


def questions(
    task: Task, split: str, length: int, shots: int, examples: int | None = None, joined: str = " "
) -> list[Question]:
    """Return the questions of a length, the same for every model; each has its own solved examples."""
    lengths = shot_lengths(task, shots)
    found = []
    for index, instance in enumerate(evaluation_instances(task, split, length, examples)):
        indices = range(index * shots, (index + 1) * shots)
        solved = "".join(solved_line(task, one, joined) for one in instances(task, "train", lengths, indices))
        asked = task.to_example(instance)
        text, answer = join_words(asked.prompt, joined) + ARROW, join_words(asked.target, joined)
        if LINE_END in text + answer:
            raise SpecError(
                f"example {index} of {task.name}, length {length}, has a line end, which ends an answer here"
            )
        found.append(Question(split, length, index, instance, solved, text, answer))
    return found


def shot_lengths(task: Task, shots: int) -> list[int]:
    """Return the lengths of the solved examples: spread evenly over the trained ones, the longest last."""
    there = trained_lengths(task)
    if shots and not there:
        raise SpecError(f"{task.name} has no training examples to show; give shots=0")
    return [there[-(-(at + 1) * len(there) // shots) - 1] for at in range(shots)]


def solved_line(task: Task, instance: Instance, joined: str = " ") -> str:
    """Return a line of a prompt: an input and its answer."""
    example = task.to_example(instance)
    return f"{join_words(example.prompt, joined)}{ARROW} {join_words(example.target, joined)}{LINE_END}"


def join_words(symbols: Sequence[str], joined: str) -> str:
    """Return symbols as text."""
    return join_symbols(symbols) if joined == " " else join_symbols(symbols).replace(" ", joined)


def words_of(text: str, joined: str) -> list[str]:
    """Return the words of an answer: what is between the joints, or characters if there are none."""
    if joint := joined.strip():
        return [word.strip() for word in text.split(joint)] if text.strip() else []
    return text.split() if joined else list("".join(text.split()))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a prompt, as the tokenizer gives them by default.

    Raises for a tokenizer that begins with more than one beginning token, ends the prompt with an end token, or loses
    a part of the text: each makes a good model look bad.
    """
    try:
        ids = list(tokenizer(text, verbose=False)["input_ids"])
        back = decoded_text(tokenizer, ids)
    except Exception as error:  # tokenizers raises nothing narrower, e.g. for a symbol that it does not know
        raise SpecError(f"the tokenizer cannot read {_short(text)!r}: {one_line(str(error))[:200]}") from error
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    starts = len(list(takewhile(lambda one: one == start, ids)))
    if start is not None and starts > 1:
        raise SpecError(
            f"the tokenizer puts {starts} beginning tokens {tokenizer.bos_token!r} before a prompt, where a model is "
            "trained with one: remove those that its post-processor adds, or give add_bos_token=False when loading it"
        )
    if end is not None and len(ids) > starts and ids[-1] == end:
        raise SpecError(
            f"the tokenizer ends a prompt with {tokenizer.eos_token!r}, after which a model begins another text: "
            "give add_eos_token=False when loading it"
        )
    if "".join(back.split()) != "".join(text.split()):
        lost = next((word for word in text.split() if word not in back.split()), _short(text))
        raise SpecError(
            f"the tokenizer does not give a prompt back: {lost!r} is lost or changed, as with an unknown symbol; "
            "take a task whose symbols it knows, e.g. copy:alphabet=26"
        )
    return ids


def decoded_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return ids as text without special tokens; spaces are left as they are, before full stops too."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"…{text[-40:]}"


def judge(task: Task, question: Question, said: str, stopped: bool, joined: str = " ") -> tuple[str, int | None]:
    """Return how an answer ended (right, early, late, wrong, cut), and its first word that differs."""
    words, right = words_of(said, joined), words_of(question.answer, joined)
    differ = (at for at, (one, other) in enumerate(zip(words, right, strict=False)) if one != other)
    first = None if words == right else next(differ, min(len(words), len(right)))
    if not stopped:
        return "cut", first
    if words == right or (task.judged and _is_accepted(task, question, words, right)):
        return "right", first
    if words == right[: len(words)]:
        return "early", first
    return ("late" if words[: len(right)] == right else "wrong"), first


def _is_accepted(task: Task, question: Question, words: list[str], right: list[str]) -> bool:
    """Whether the task's own check takes the words, if words and symbols are the same thing here."""
    same = tuple(right) == task.to_example(question.instance).target
    return same and set(words) <= set(task.symbols) and task.check(question.instance, words)
