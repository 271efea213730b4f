"""Evaluation of a model: exact match at every length, the kinds of failures, and the predictions.

One teacher-forced pass finds the right answers. A fixed sample is also decoded from the prompt, to check the pass, and
failures are decoded from their first wrong token on. If sample and pass disagree, except at near-ties, the pass cannot
be trusted (the mask leaks, or later tokens change earlier logits), and everything is decoded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case, evaluation_cases, splits_and_lengths
from lengthwise.evaluation.decoding import ROWS
from lengthwise.evaluation.onepass import TOKENS, OnePassResult, predict_in_one_pass
from lengthwise.evaluation.outcomes import (
    AS_TRAINED,
    CaseOutcome,
    DecodingAgreement,
    EvaluationResult,
    predictions_frame,
)
from lengthwise.evaluation.rows import rows_to_frame
from lengthwise.evaluation.subject import EvaluatedModel, HasTask
from lengthwise.evaluation.text import evaluate_language_model
from lengthwise.spec import SpecError, digest
from lengthwise.task import build_task
from lengthwise.task.base import Task
from lengthwise.task.scratchpad import Stepwise
from lengthwise.task.sets import lengths_of
from lengthwise.task.text import Text

if TYPE_CHECKING:
    import polars as pl

CHECKED = 4
"""Cases of each length that are decoded from their prompt, to check the pass."""
NEAR = 1e-4
"""Two logits this close, relative to the larger, may swap places between one pass and a cache."""


def evaluate_decoder(
    model: object,
    task: str | Task,
    lengths: Sequence[int] | str | None = None,
    *,
    splits: Iterable[tuple[str, int]] | None = None,
    examples: int | None = None,
    further_cases: Iterable[Case] = (),
    positions: Positions | str | None = None,
    decoding: str = "checked",
    labels: dict[str, str | None] | None = None,
    decoding_batch_rows: int = ROWS,
    tokens_per_batch: int = TOKENS,
    stop_after_zeros: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> EvaluationResult:
    """Evaluate a model on a task.

    `decoding` is `checked` (one pass, a decoded sample, decoded failures), `real` (decode everything) or `none` (one
    pass only, which does not distinguish kinds of failures but is enough to choose a checkpoint). `further_cases` are
    evaluated beside the examples of `splits`, such as those of `trained_cases`. With `stop_after_zeros=2`, lengths
    after two in a row without a right answer are not evaluated: their rows have no right answer, and `tokens` is null.
    """
    task = build_task(task) if isinstance(task, str) else task
    if isinstance(task, Text):
        if splits is not None or not isinstance(positions or Consecutive(), Consecutive) or stop_after_zeros:
            raise SpecError("a language model is evaluated by context: leave out splits, positions, stop_after_zeros")
        return evaluate_language_model(model, task, lengths, examples=examples, labels=labels, on_progress=on_progress)
    if stop_after_zeros is not None:
        places = splits_and_lengths(task, lengths) if splits is None else splits
        how: dict[str, Any] = {"examples": examples, "positions": positions, "decoding": decoding, "labels": labels}
        how |= {"decoding_batch_rows": decoding_batch_rows, "tokens_per_batch": tokens_per_batch}
        return _evaluate_length_by_length(
            lambda place, further: evaluate_decoder(
                model, task, splits=[place], further_cases=further, on_progress=on_progress, **how
            ),
            task,
            [place for place in sorted(places, key=lambda place: place[1]) if evaluation_cases(task, *place, examples)],
            list(further_cases),
            stop_after_zeros,
            _trained_lengths(model, task),
            examples,
        )
    if decoding not in {"checked", "real", "none"}:
        raise SpecError(f"decoding is 'checked', 'real' or 'none', not {decoding!r}")
    subject = EvaluatedModel.of(model, task, positions, decoding_batch_rows)
    places = list(splits_and_lengths(task, lengths) if splits is None else splits)
    asked = [case for split, length in places for case in evaluation_cases(task, split, length, examples)]
    if not asked:
        named = ", ".join(str(length) for _, length in places) or "any"
        raise SpecError(f"{task.name} has no test examples of length {named}: all are in other splits")
    asked += further_cases
    tell = on_progress or (lambda _: None)
    tell(f"{len(asked):,} examples in one pass")
    seen = predict_in_one_pass(
        subject.logits, asked, task.vocabulary.eos, subject.positions, subject.limit, tokens_per_batch
    )
    checks, said = DecodingAgreement(), dict[int, list[int]]()
    if decoding == "checked" and subject.stable:
        said = _checked(subject, seen, checks, tell)
    if decoding == "real" or not subject.stable or not checks.pass_agrees:
        said = dict(enumerate(_decoded(subject, seen, [[]] * len(seen), tell)))
    elif decoding == "none":
        said = {n: _begun(one) for n, one in enumerate(seen) if one.first_wrong is not None}
    else:
        wrong = [n for n, one in enumerate(seen) if n not in said and one.first_wrong is not None]
        begun = [_begun(seen[n]) for n in wrong]
        said |= dict(zip(wrong, _decoded(subject, [seen[n] for n in wrong], begun, tell), strict=True))
    trusted = subject.stable and checks.pass_agrees
    judged = [_judge(task, one, said.get(number), trusted) for number, one in enumerate(seen)]
    changed = positions is not None and labels is None
    name = f"positions={positions}" if changed and isinstance(positions, str) else AS_TRAINED
    marks = {"run": getattr(model, "id", None), "evaluation": name, "checkpoint": "last", **(labels or {})}
    trained = _trained_lengths(model, task)
    return EvaluationResult(_rows(task, judged, marks, trained), _predictions(task, judged, marks), checks, judged)


def _evaluate_length_by_length(
    evaluate_place: Callable[[tuple[str, int], list[Case]], EvaluationResult],
    task: Task,
    places: Sequence[tuple[str, int]],
    further_cases: list[Case],
    stop_after_zeros: int,
    trained: set[int],
    examples: int | None,
) -> EvaluationResult:
    """Evaluate length by length; after so many unseen ones in a row without a right answer, record 0 for the rest."""
    import polars as pl

    if not places:
        raise SpecError(f"{task.name} has no test examples of any of these lengths: all are in other splits")
    found, zeros, left_out = list[EvaluationResult](), 0, list[dict[str, object]]()
    for split, length in places:
        if zeros < stop_after_zeros:
            found.append(evaluate_place((split, length), further_cases if not found else []))
            own = found[-1].rows.filter((pl.col("length") == length) & (pl.col("split") == split))
            zeros = 0 if own["correct"].sum() or length in trained else zeros + 1
            continue
        like = found[0].rows.row(0, named=True)
        blank = dict.fromkeys(("tokens", "correct_content", "loss", "targets"))
        none = dict.fromkeys(("correct", "early", "late", "cut"), 0)
        groups = Counter(task.subgroup(case.instance) for case in evaluation_cases(task, split, length, examples))
        for subgroup, many in groups.items():
            place = {"split": split, "length": length, "seen": False, "subgroup": subgroup}
            counts = {**none, "examples": many, "wrong": many, "chance": float(task.chance(length))}
            left_out.append({**like, **place, **blank, **counts})
    agreement = DecodingAgreement(
        *(sum(getattr(one.checks, part) for one in found) for part in ("decoded", "near_ties", "differences"))
    )
    return EvaluationResult(
        pl.concat([*(one.rows for one in found), rows_to_frame(left_out)]),
        pl.concat([one.predictions for one in found]),
        agreement,
        [outcome for one in found for outcome in one.judged],
    )


def _trained_lengths(model: object, task: Task) -> set[int]:
    """The lengths that a model was trained on; none for a run that was trained on another task."""
    if not isinstance(model, HasTask) or model.task == task:
        return set(lengths_of(task, "train"))
    return set(lengths_of(model.task, "train")) if model.task.name == task.name else set()


def _checked(
    subject: EvaluatedModel, seen: list[OnePassResult], checks: DecodingAgreement, tell: Callable[[str], None]
) -> dict[int, list[int]]:
    """Decode a fixed sample from its prompts and compare it with the pass."""
    groups = defaultdict(list)
    for number, one in enumerate(seen):
        groups[one.case.split, one.case.length].append(number)
    sample = [
        number
        for (split, length), numbers in groups.items()
        for number in sorted(numbers, key=lambda n: digest("checked", split, length, seen[n].case.index))[:CHECKED]
    ]
    decoded = _decoded(subject, [seen[n] for n in sample], [[]] * len(sample), tell)
    checks.decoded = len(sample)
    for number, words in zip(sample, decoded, strict=True):
        at = first_disagreement(seen[number], words)
        if at is None:
            continue
        if seen[number].gap[at] <= NEAR:
            checks.near_ties += 1
        else:
            checks.differences += 1
    return dict(zip(sample, decoded, strict=True))


def first_disagreement(one_pass_result: OnePassResult, decoded_ids: list[int]) -> int | None:
    """The first position at which decoding differs from what the pass predicts; None if it does not."""
    expected = _begun(one_pass_result) if one_pass_result.first_wrong is not None else one_pass_result.case.answer
    for at, token in enumerate(expected):
        if at >= len(decoded_ids) or decoded_ids[at] != token:
            return at
    return None


def _begun(one: OnePassResult) -> list[int]:
    """The predicted tokens of a failure, up to and including the first wrong one."""
    wrong = one.first_wrong
    assert wrong is not None
    return [*one.case.answer[:wrong], *one.chosen[wrong : wrong + 1].tolist()]


def _decoded(
    subject: EvaluatedModel, seen: list[OnePassResult], begun: Sequence[Sequence[int]], tell: Callable[[str], None]
) -> list[list[int]]:
    tell(f"decoding {len(seen):,} answers")
    return subject.decode([one.case for one in seen], begun)


def _judge(task: Task, one: OnePassResult, said: list[int] | None, trusted: bool) -> CaseOutcome:
    answer, end = one.case.answer, task.vocabulary.eos
    inside = one.content if trusted else None
    if said is None or said == answer:
        return CaseOutcome(one.case, "right", True, answer, None, one.loss)
    content, words = answer[:-1], said[:-1] if said[-1:] == [end] else said
    first = next(
        (at for at, (a, b) in enumerate(zip(said, answer, strict=False)) if a != b), min(len(said), len(answer))
    )
    if said[-1:] != [end]:
        kind = "cut"
    elif task.judged and _answers(task, one.case, words):
        return CaseOutcome(one.case, "right", True, said, first, one.loss)
    elif words == content[: len(words)]:
        kind = "early"
    elif words[: len(content)] == content:
        kind = "late"
    else:
        kind = "wrong"
    return CaseOutcome(one.case, kind, inside, said, first, one.loss)


def _answers(task: Task, case: Case, words: list[int]) -> bool:
    """Whether the task's own check accepts an answer: with a scratchpad, only the result counts, not the steps."""
    return task.check(case.instance, task.vocabulary.read(words))


def _rows(task: Task, judged: list[CaseOutcome], marks: dict[str, str | None], trained: set[int]) -> pl.DataFrame:
    groups: dict[tuple[str, int, str | None], list[CaseOutcome]] = defaultdict(list)
    for one in judged:
        groups[one.case.split, one.case.length, task.subgroup(one.case.instance)].append(one)
    found = []
    for (split, length, subgroup), group in groups.items():
        kinds = [one.kind for one in group]
        found.append(
            {
                **marks,
                "split": split,
                "seen": length in trained,
                "length": length,
                "subgroup": subgroup,
                "tokens": max(len(one.case.ids) for one in group),
                "examples": len(group),
                "correct": kinds.count("right"),
                "correct_content": None if any(one.content is None for one in group) else sum(map(_inside, group)),
                **{kind: kinds.count(kind) for kind in ("early", "late", "wrong", "cut")},
                "chance": float(task.chance(length)),
                "loss": None if not all(isfinite(one.loss) for one in group) else sum(one.loss for one in group),
                "targets": sum(len(one.case.answer) for one in group),
            }
        )
    return rows_to_frame(found)


def _inside(one: CaseOutcome) -> bool:
    return bool(one.content)


def _predictions(task: Task, judged: list[CaseOutcome], marks: dict[str, str | None]) -> pl.DataFrame:

    lines: list[dict[str, object]] = []
    say = task.vocabulary.say
    for one in judged:
        case = one.case
        line: dict[str, object] = {
            "evaluation": marks["evaluation"],
            "checkpoint": marks["checkpoint"],
            "split": case.split,
            "length": case.length,
            "first": case.index,
            "last": case.index,
            "kind": one.kind,
        }
        if one.kind == "right":
            before = lines[-1] if lines else {}
            if all(before.get(key) == line[key] for key in ("split", "length", "kind")):
                before["last"] = case.index
            else:
                lines.append(line)
            continue
        fault = None
        if isinstance(task, Stepwise) and task.scratchpad_format is not None and task.hf_tokenizer is None:
            fault = task.fault(
                case.instance, task.vocabulary.read(word for word in one.said if word != task.vocabulary.eos)
            )
        lines.append(
            {
                **line,
                "prompt": say(case.ids[: case.prompt]),
                "answer": say(case.answer),
                "said": say(one.said),
                "first_wrong": one.first_wrong,
                "step": None if fault is None else fault.step,
                "component": None if fault is None else fault.component,
            }
        )
    return predictions_frame(lines)
