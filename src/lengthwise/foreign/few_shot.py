"""Our length-controlled tasks on models of others: a few solved examples, then a question, all as text.

A prompt is some lines `input -> answer` and a last one without its answer, for example

    d a [SEP] -> d a
    b c a e [SEP] -> b c a e
    a f d [SEP] ->

The answer is decoded greedily up to the end of its line, and is right if its words are those of the right answer. Rows
are those of `lengthwise.evaluation`, so tables, reports and figures are the same as for our own runs.

Prompts are never padded: those with equally many tokens are decoded together. So no mistake of a model in handling
padding can change an answer; padding is tested elsewhere.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lengthwise.display import Display, Part, Table
from lengthwise.evaluation import evaluate_decoder
from lengthwise.evaluation.cases import evaluation_cases, splits_and_lengths
from lengthwise.evaluation.rows import PREDICTIONS, rows_to_frame
from lengthwise.foreign.prompts import LINE_END, Question, decoded_text, encode_prompt, judge, questions
from lengthwise.spec import SpecError, one_line
from lengthwise.task import build_task
from lengthwise.task.base import Task
from lengthwise.task.sets import trained_lengths

if TYPE_CHECKING:
    import polars as pl
    from transformers import PreTrainedTokenizerBase

KINDS = ("right", "early", "late", "wrong", "cut")


@dataclass(frozen=True)
class Answer:
    """What a model said to a question, and how it ended: right, early, late, wrong or cut."""

    question: Question
    said: str
    kind: str
    first_wrong: int | None
    """The first word that differs from the right answer."""
    tokens: int
    """Tokens of the prompt and the right answer."""


@dataclass(frozen=True, repr=False)
class FewShot(Display):
    """How a model of others does a task at each length."""

    task: str
    shots: int
    rows: pl.DataFrame
    """As `lengthwise.evaluation.rows` has them; `run` is null, and content, loss and targets are not known."""
    predictions: pl.DataFrame
    prompt: str
    """The first prompt, as the model read it."""

    @property
    def accuracy(self) -> dict[int, float]:
        """The share of right answers at each length."""
        counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for row in self.rows.iter_rows(named=True):
            counts[row["length"]][0] += row["correct"]
            counts[row["length"]][1] += row["examples"]
        return {length: correct / examples for length, (correct, examples) in sorted(counts.items())}

    @property
    def table(self) -> Table:
        """A line for each length: accuracy, and how many answers failed in which way."""
        named = ("split", "tokens", "examples", "early", "late", "wrong", "cut")
        return Table(
            {"length": row["length"], "accuracy": round(row["correct"] / row["examples"], 4)}
            | {key: row[key] for key in named}
            for row in self.rows.iter_rows(named=True)
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """What was asked, and the table."""
        how = f"after {self.shots} solved examples" if self.shots else "without solved examples"
        yield Part(f"{self.task} {how}, exact match of greedy decoding:")
        yield Part(self.table)

    def plain(self) -> dict[str, object]:
        """The rows, and the first prompt."""
        return {"task": self.task, "shots": self.shots, "prompt": self.prompt, "rows": self.rows.to_dicts()}


def few_shot(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: str | Task,
    lengths: Sequence[int] | str | None = None,
    *,
    shots: int = 4,
    examples: int | None = 32,
    joined: str = " ",
    cached: bool = True,
    batch_rows: int = 16,
    on_progress: Callable[[str], None] | None = None,
) -> FewShot:
    """Ask a causal language model examples of a task, each after `shots` solved ones, and count its right answers.

    Solved examples are of the training split, so none is ever the question; their lengths are spread evenly up to the
    task's `longest`, whatever the length of the question, and lengths up to it count as seen. Symbols are `joined` by
    a space, unless given. `cached=False` decodes without the model's cache, in case that is what is broken.

    With `shots=0`, a model whose tokenizer is the vocabulary of the task, as an exported run has it, is asked in the
    task's own tokens and evaluated as a run is, so it gets the rows that the run has (but for a mask or encoding that
    depends on where the prompt or the whole sequence ends, of which a model of others is told nothing).
    """
    task = build_task(task) if isinstance(task, str) else task
    if shots < 0 or batch_rows < 1:
        raise SpecError(f"shots are 0 or more and batch_rows 1 or more, not {shots} and {batch_rows}")
    tell = on_progress or (lambda _: None)
    with _evaluating(model):
        if has_vocabulary_of(tokenizer, task):
            if shots:
                raise SpecError(
                    f"this model knows the symbols of {task.name} alone and cannot read solved examples: give shots=0"
                )
            return _own_format(model, tokenizer, task, lengths, examples, on_progress)
        answers: list[Answer] = []
        for split, length in splits_and_lengths(task, lengths):
            asked = questions(task, split, length, shots, examples, joined)
            tell(f"{task.name} of length {length}: {len(asked)} questions after {shots} solved examples")
            answers += _answers(model, tokenizer, task, asked, joined, cached, batch_rows)
    if not answers:
        raise SpecError(f"{task.name} has no test examples of these lengths: all are in other splits")
    name, prompt = f"few-shot {shots}", answers[0].question.prompt
    return FewShot(task.name, shots, _rows(task, answers, name), _predictions(answers, name), prompt)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


# --- answers ---------------------------------------------------------------------------------------------------------


def _answers(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    asked: Sequence[Question],
    joined: str,
    cached: bool,
    batch_rows: int,
) -> list[Answer]:
    """Ask the questions of one length."""
    prompts = [encode_prompt(tokenizer, question.prompt) for question in asked]
    wholes = [encode_prompt(tokenizer, question.whole) for question in asked]
    right = max((len(whole) - len(prompt) for whole, prompt in zip(wholes, prompts, strict=True)), default=0)
    limit = right + max(4, right // 4)  # as for our own models
    stops: dict[int, bool] = {}

    def is_end(token: int) -> bool:
        if token not in stops:
            stops[token] = token == tokenizer.eos_token_id or LINE_END in decoded_text(tokenizer, [token])
        return stops[token]

    said = continuations(model, prompts, limit, is_end, cached, batch_rows)
    found = []
    for question, whole, ids in zip(asked, wholes, said, strict=True):
        text = decoded_text(tokenizer, ids).split(LINE_END)[0]
        kind, first = judge(task, question, text, bool(ids) and is_end(ids[-1]), joined)
        found.append(Answer(question, text.strip(), kind, first, len(whole)))
    return found


def continuations(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    limit: int,
    is_end: Callable[[int], bool],
    cached: bool = True,
    batch_rows: int = 16,
) -> list[list[int]]:
    """Decode greedily after each prompt, up to its end token or `limit` tokens; prompts of equal length together."""
    said: list[list[int]] = [[] for _ in prompts]
    by_tokens: dict[int, list[int]] = defaultdict(list)
    for number, ids in enumerate(prompts):
        by_tokens[len(ids)].append(number)
    for tokens, numbers in by_tokens.items():
        for start in range(0, len(numbers), batch_rows):
            group = numbers[start : start + batch_rows]
            ids_BT = torch.tensor([list(prompts[number]) for number in group])
            try:
                told = _decoded(model, ids_BT, limit, is_end, cached)
            except (IndexError, RuntimeError) as error:
                raise SpecError(
                    f"the model failed on {tokens} to {tokens + limit} tokens: {type(error).__name__}: "
                    f"{one_line(str(error))[:200]}. If its table of positions ends before that, test shorter lengths"
                ) from error
            for number, words in zip(group, told, strict=True):
                said[number] = words
    return said


@torch.no_grad()
def _decoded(
    model: nn.Module, ids_BT: Tensor, limit: int, is_end: Callable[[int], bool], cached: bool
) -> list[list[int]]:
    """Decode a batch of prompts without padding."""
    fed_BT = ids_BT = ids_BT.to(next(model.parameters()).device)
    said: list[list[int]] = [[] for _ in ids_BT]
    # Logits of the whole prompt would take gigabytes with a large vocabulary.
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    past: Mapping[str, Any] = {}
    for _ in range(limit):
        found = model(input_ids=fed_BT, use_cache=cached, **past, **last_only)
        best_B = found.logits[:, -1].argmax(-1)
        for words, token in zip(said, best_B.tolist(), strict=True):
            if not words or not is_end(words[-1]):
                words.append(token)
        if all(is_end(words[-1]) for words in said):
            break
        ids_BT = torch.cat([ids_BT, best_B[:, None]], dim=1)
        held = getattr(found, "past_key_values", None) if cached else None
        past = {} if held is None else {"past_key_values": held}
        fed_BT = ids_BT if held is None else best_B[:, None]
    return said


# --- the task's own tokens -------------------------------------------------------------------------------------------


def has_vocabulary_of(tokenizer: PreTrainedTokenizerBase, task: Task) -> bool:
    """Whether a tokenizer is the vocabulary of a task, as that of an exported run is."""
    symbols = list(task.vocabulary.symbols)
    return len(tokenizer) == len(symbols) and tokenizer.convert_ids_to_tokens(list(range(len(symbols)))) == symbols


def _own_format(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    lengths: Sequence[int] | str | None,
    examples: int | None,
    on_progress: Callable[[str], None] | None,
) -> FewShot:
    """Evaluate a model in the task's own tokens, as a run is evaluated."""
    split, length = splits_and_lengths(task, lengths)[0]
    first = evaluation_cases(task, split, length, 1)
    prompt = " ".join(task.to_example(first[0].instance).prompt) if first else ""
    if first and task.hf_tokenizer is None and encode_prompt(tokenizer, prompt) != first[0].ids[: first[0].prompt]:
        raise SpecError(
            f"the tokenizer does not read a prompt as {task.name} was trained, {first[0].ids[: first[0].prompt]}, but "
            f"as {encode_prompt(tokenizer, prompt)}: export the run again, or give the task with its own bos"
        )
    device = next(model.parameters()).device

    def logits(ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        mask_BT = (torch.arange(ids_BT.shape[1])[None] < lengths_B[:, None]).long()
        return model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False).logits

    found = evaluate_decoder(logits, task, lengths, examples=examples, on_progress=on_progress)
    return FewShot(task.name, 0, found.rows, found.predictions, prompt)


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(task: Task, answers: Sequence[Answer], name: str) -> pl.DataFrame:
    groups: dict[tuple[str, int, str | None], list[Answer]] = defaultdict(list)
    for one in answers:
        groups[one.question.split, one.question.length, task.subgroup(one.question.instance)].append(one)
    seen, found = set(trained_lengths(task)), []
    for (split, length, subgroup), group in groups.items():
        kinds = [one.kind for one in group]
        counts = {"correct" if kind == "right" else kind: kinds.count(kind) for kind in KINDS}
        found.append(
            {"run": None, "evaluation": name, "checkpoint": "last", "split": split, "seen": length in seen}
            | {"length": length, "subgroup": subgroup, "tokens": max(one.tokens for one in group)}
            | {"examples": len(group), **counts, "chance": float(task.chance(length))}
            | dict.fromkeys(("correct_content", "loss", "targets"))
        )
    return rows_to_frame(found)


def _predictions(answers: Sequence[Answer], name: str) -> pl.DataFrame:
    """One line for each answer; `prompt` is the question without its solved examples."""
    import polars as pl

    lines = [
        {"evaluation": name, "checkpoint": "last", "split": one.question.split, "length": one.question.length}
        | {"first": one.question.index, "last": one.question.index, "kind": one.kind}
        | {"prompt": one.question.text, "answer": one.question.answer, "said": one.said}
        | {"first_wrong": one.first_wrong, "step": None, "component": None}
        for one in answers
    ]
    return pl.DataFrame(lines, schema={column: getattr(pl, kind) for column, kind in PREDICTIONS.items()})
