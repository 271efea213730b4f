"""Give a trained model one prompt: its answer, the correct answer, where they differ, and its attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lengthwise.display import Display, Part
from lengthwise.encoding.labels import label_of
from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.decoding import decoder_decode_function
from lengthwise.model import Decoder
from lengthwise.model.taps import Recorder
from lengthwise.run.run import Run
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Task
from lengthwise.task.text import Text

A_TEXT = "how a text goes on"


@dataclass(frozen=True, repr=False)
class Answer(Display):
    """A model's answer and the correct one."""

    prompt: str
    said: list[str]
    right: list[str] | None
    """The correct answer; None if the task cannot parse the prompt."""
    correct: bool | None
    first_difference: int | None
    """The index of the first token at which the two answers differ; None if they do not."""
    cut: bool
    where: str
    """The length, and whether the model was trained on it, in words."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """Prompt, answer and correct answer."""
        yield Part(f"asked  {self.prompt}  ({self.where})")
        yield Part(f"said   {' '.join(self.said)}{' (never stopped)' if self.cut else ''}")
        if self.right is None:
            if self.where != A_TEXT:
                yield Part("right  unknown: the task does not read this prompt")
            return
        yield Part(f"right  {' '.join(self.right)}")
        if self.correct:
            yield Part("right", "green")
        else:
            yield Part(f"wrong: they part at token {(self.first_difference or 0) + 1} of the answer", "red")

    def plain(self) -> dict[str, object]:
        """All fields."""
        return vars(self)


def ask(run: Run, prompt: str, checkpoint: str = "last") -> Answer:
    """Return the model's answer to a prompt: `ask(run, "3 1 2")` for a run on sort."""
    task = run.task
    case, right, where = _asked(task, prompt)
    ids, head, instance = case.ids, case.prompt, case.instance
    said = _said(run, run.decoder(checkpoint).eval(), case)
    cut = said[-1:] != [task.vocabulary.eos]
    spoken = task.vocabulary.read(said if cut else said[:-1])
    spoken = [task.vocabulary.say(said)] if isinstance(task, Text) else spoken
    differs = None
    if right is not None and (spoken != right or cut):
        differs = next(
            (at for at, (a, b) in enumerate(zip(spoken, right, strict=False)) if a != b), min(len(spoken), len(right))
        )
    correct = None if right is None else differs is None or (task.judged and not cut and task.check(instance, spoken))
    return Answer(task.vocabulary.say(ids[:head]), spoken, right, correct, differs, cut, where)


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of each head over a prompt and the model's answer."""

    tokens: list[str]
    """Prompt and answer, as the model received them as input."""
    prompt: int
    """How many of the tokens are the prompt."""
    weights_LHQK: np.ndarray
    """Each query's weights over the keys, by layer and head."""
    title: str


def attention(run: Run, prompt: str, checkpoint: str = "last") -> AttentionMaps:
    """Return the attention weights over a prompt and the model's answer: `attention(run, "3 1 2").weights_LHQK`."""
    task = run.task
    case, _, where = _asked(task, prompt)
    decoder = run.decoder(checkpoint).eval()
    ids = case.ids[: case.prompt] + _said(run, decoder, case)
    ids = ids[:-1] if ids[-1] == task.vocabulary.eos else ids  # the end token is generated but is never an input
    places = case.places(run.plan.positions.at_test(), ids[case.prompt :])
    seen = Recorder()
    with torch.no_grad():
        decoder(
            torch.tensor([ids]),
            positions_BT=None if places is None else torch.tensor([places]),
            budget=torch.tensor([max(case.budget, len(ids))]),
            prefix=[case.prompt] if decoder.config.mask == "prefix" else None,
            taps={"layers.*.weights": seen},
        )
    weights = [seen[f"layers.{layer}.weights"][0].numpy() for layer in range(decoder.config.layers)]
    name = ",".join(map(str, run.plan.encoding_specs))
    return AttentionMaps(
        task.vocabulary.read(ids),
        case.prompt,
        np.stack(weights),
        f"{label_of(name)}, seed {run.plan.seed}, {where}",
    )


def _asked(task: Task, prompt: str) -> tuple[Case, list[str] | None, str]:
    """Return the prompt as a case, the correct answer if the task can parse it, and a description of its length."""
    if task.hf_tokenizer is not None:
        raise SpecError(
            "a run with a tokenizer of its own cannot be asked yet; its predictions.parquet has what it said"
        )
    words = split_prompt(task, prompt)
    told = task.parse_prompt(words)
    right, length, instance = None, task.longest, None
    where = A_TEXT if isinstance(task, Text) else "as it stands"
    if told is not None:
        length, instance = told
        example = task.to_example(instance)
        words, right = list(example.prompt), list(example.target)
        seen = length <= task.longest
        where = f"length {length}, " + ("as in training" if seen else f"trained up to {task.longest}")
    ids, head = task.vocabulary.sequence(words, right or (), task.starts)
    limit = max(task.answer_limit(length), len(ids) - head)
    return Case("asked", length, 0, instance, ids, head, limit, digest("asked", prompt)), right, where


def _said(run: Run, decoder: Decoder, case: Case) -> list[int]:
    """Return the token ids that the model generates."""
    decode = decoder_decode_function(decoder, run.plan.positions.at_test(), run.task.vocabulary.eos)
    (said,) = decode([case], [[]])
    return said


def split_prompt(task: Task, prompt_text: str) -> list[str]:
    """Split a user's prompt into the task's symbols; a word that is not a symbol is split into characters."""
    if isinstance(task, Text):
        return task.vocabulary.split(prompt_text)
    known, found = set(task.symbols), []
    for word in prompt_text.split():
        parts = [word] if word in known else list(word)
        for part in parts:
            if part not in known:
                shown = " ".join(task.symbols[:12])
                raise SpecError(f"{task.name} does not know {part!r}; its symbols are {shown} ...")
            found.append(part)
    if not found:
        example = task.to_example(task.longest_answer_instance(task.lengths[0] + 1))
        raise SpecError(f"ask something, e.g. {' '.join(example.prompt)!r}")
    return found
