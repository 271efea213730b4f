"""Put one question to a trained model: what it says, what is right, and where they part."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.decoding import decoder_decode
from lengthwise.run.record import Run
from lengthwise.spec import SpecError, digest
from lengthwise.tasks.task import Task


@dataclass(frozen=True)
class Answer:
    """An answer beside the right one."""

    prompt: str
    said: list[str]
    right: list[str] | None
    """None where the task cannot read the prompt."""
    correct: bool | None
    parts: int | None
    """The first token of the answer at which they part."""
    cut: bool
    where: str
    """Whether the model was trained on this length."""


def ask(run: Run, prompt: str, checkpoint: str = "last") -> Answer:
    """What the model answers: `ask(run, "3 1 2")` for a run on sort."""
    task, plan = run.task, run.plan
    if task.pieces is not None:
        raise SpecError(
            "a run with a tokenizer of its own cannot be asked yet; its predictions.parquet has what it said"
        )
    words = symbols(task, prompt)
    told = task.asked(words)
    right, length, where, instance = None, task.longest, "as it stands", None
    if told is not None:
        length, instance = told
        example = task.render(instance)
        words, right = list(example.prompt), list(example.target)
        seen = length <= task.longest
        where = f"length {length}, " + ("as in training" if seen else f"trained up to {task.longest}")
    ids, head = task.vocabulary.sequence(words, right or (), task.starts)
    limit = task.answer_limit(length)
    case = Case("asked", length, 0, instance, ids, head, max(limit, len(ids) - head), digest("asked", prompt))
    positions = plan.positions.at_test()
    decoder = run.decoder(checkpoint).eval()
    (said,) = decoder_decode(decoder, positions, task.vocabulary.eos)([case], [[]])
    cut = said[-1:] != [task.vocabulary.eos]
    spoken = task.vocabulary.read(said if cut else said[:-1])
    parts = None
    if right is not None and (spoken != right or cut):
        parts = next(
            (at for at, (a, b) in enumerate(zip(spoken, right, strict=False)) if a != b), min(len(spoken), len(right))
        )
    correct = None if right is None else parts is None or (task.judged and not cut and task.check(instance, spoken))
    return Answer(task.vocabulary.say(ids[:head]), spoken, right, correct, parts, cut, where)


def symbols(task: Task, prompt: str) -> list[str]:
    """A person's words as the task's symbols: a word that is none is read letter by letter."""
    known, found = set(task.symbols), []
    for word in prompt.split():
        parts = [word] if word in known else list(word)
        for part in parts:
            if part not in known:
                shown = " ".join(task.symbols[:12])
                raise SpecError(f"{task.name} does not know {part!r}; its symbols are {shown} ...")
            found.append(part)
    if not found:
        raise SpecError(f"ask something, e.g. {' '.join(task.render(task.worst(task.lengths[0] + 1)).prompt)!r}")
    return found
