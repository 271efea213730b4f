"""What a task really has: counts, overlap, chance, lengths of answers, deviations from the publication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from math import log10
from typing import NamedTuple

from lengthwise.spec import SpecError
from lengthwise.task.base import Instance, Task
from lengthwise.task.random_source import RandomSource
from lengthwise.task.sets import (
    BUCKETS,
    EXHAUSTED,
    evaluation,
    lengths_of,
    maker,
    missing,
    owned,
    splits,
)

TRAINED = 2000
"""Training examples of each length that are drawn to count overlap with the other splits."""
AGAIN = 8
"""Indices of the shortest and the longest length that are drawn twice."""


class Line(NamedTuple):
    """One length of one split."""

    split: str
    length: int
    space: int
    """Distinct instances of this length, of all splits together."""
    examples: int
    """In an evaluation set; for training, those drawn here (or, under `paper`, all rows)."""
    distinct: int
    exhausted: bool
    """Fewer than 8 distinct examples: left out of the seen-length score."""
    chance: float
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    answers: dict[int, int]
    """How many examples have an answer of so many tokens, the end token included."""


class Audit(NamedTuple):
    """The whole report."""

    task: str
    protocol: str
    version: int
    unit: str
    vocabulary: int
    lines: list[Line]
    overlap: dict[str, int]
    """For each pair of splits: examples of the second that are in the first too, at the same length."""
    overlap_by_length: dict[str, dict[int, int]]
    deviations: tuple[str, ...]
    facts: dict[str, object]
    missing: dict[str, list[int]]
    """The lengths that a split should have and the task cannot make."""
    unused: int
    """Where the task is a list: how many of it are in no split."""
    problems: list[str]
    """Where the task contradicts itself: what a wrong generator looks like from outside."""

    @property
    def exhausted(self) -> list[tuple[str, int]]:
        """The (split, length) pairs with fewer than 8 distinct examples."""
        return [(line.split, line.length) for line in self.lines if line.exhausted]

    def mapping(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            **self._asdict(),
            "lines": [
                # An instance count may have thousands of digits, which JSON's readers do not take.
                {
                    **line._asdict(),
                    "space": line.space if line.space < 2**53 else None,
                    "log10_space": log10(line.space),
                }
                for line in self.lines
            ],
            "exhausted": [{"split": split, "length": length} for split, length in self.exhausted],
        }


def audit(task: Task, name: str, progress: Callable[[str], None] | None = None) -> Audit:
    """Draw, count and compare; `name` is how the task was written."""
    drawn: dict[str, dict[int, Sequence[Instance]]] = {split: {} for split in splits(task)}
    lines: list[Line] = []
    problems = _suspicions(task)
    wanted = [(split, length) for split in splits(task) for length in lengths_of(task, split)]
    for done, (split, length) in enumerate(wanted, 1):
        if progress is not None:
            progress(f"{done}/{len(wanted)}: {split}, length {length}")
        try:
            chosen = _chosen(task, split, length)
        except SpecError as error:
            # Who draws otherwise each time finds too few or too many: the cause first, then what came of it.
            raise SpecError("; ".join([*problems, str(error)])) from error
        drawn[split][length] = chosen
        lines.append(_line(task, split, length, chosen, problems))
    overlap = {}
    for one, other in combinations(splits(task), 2):
        shared = sorted(set(drawn[one]) & set(drawn[other]))
        if shared:
            overlap[f"{one} and {other}"] = {
                length: _shared(drawn[one][length], drawn[other][length]) for length in shared
            }
    published = task.published
    deviations = published.deviations if published is not None and task.protocol == "paper" else ()
    facts = dict(task.facts())
    if task.pieces is not None:
        facts["digits"] = task.pieces.digits()
    return Audit(
        name,
        task.protocol,
        task.version,
        task.unit,
        len(task.vocabulary),
        lines,
        {pair: sum(counts.values()) for pair, counts in overlap.items()},
        overlap,
        deviations,
        facts,
        {split: lengths for split in splits(task) if (lengths := missing(task, split))},
        _unused(task),
        problems + [f"{count} examples of {pair} overlap" for pair, count in _leaks(task, overlap).items()],
    )


def _suspicions(task: Task) -> list[str]:
    """What is wrong before anything is counted: a version that is no number, a draw that is not repeated."""
    problems = []
    if isinstance(task.version, bool) or not isinstance(task.version, int):
        problems.append(f"version is {task.version!r}; it is a whole number that rises when examples change")
    # The original's draws are rows of its tables, which have no eighth row at every length.
    lengths = [] if task.protocol == "paper" else lengths_of(task, "train")
    for length in sorted({*lengths[:1], *lengths[-1:]}):
        if task.listed(length) is not None:
            continue
        for index in range(AGAIN):
            one, other = (task.draw(RandomSource(task.key("again", length)).seat(index), length) for _ in range(2))
            if one != other:
                problems.append(
                    f"draw({length}) gives {one!r:.40} and then {other!r:.40} from the same words: it may depend on "
                    "`words` and `length` alone, not on random, on time or on earlier calls"
                )
                return problems
    return problems


def _unused(task: Task) -> int:
    """Instances of a list that no split takes, by their content or by their length."""
    if task.protocol == "paper":
        return 0
    there = {split: set(lengths_of(task, split)) for split in splits(task)}
    unused = 0
    # What has no list has no end either: its lengths are not gone through.
    for length in task.lengths if task.listed(task.lengths[0]) is not None else ():
        used = {bucket for split, lengths in there.items() if length in lengths for bucket in BUCKETS[split]}
        unused += sum(task.bucket(length, one) not in used for one in task.listed(length) or ())
    return unused


def _leaks(task: Task, overlap: dict[str, dict[int, int]]) -> dict[str, int]:
    """Overlap that must not be: the original samples with replacement and has some, we have none."""
    if task.protocol == "paper":
        return {}
    return {pair: sum(counts.values()) for pair, counts in overlap.items() if any(counts.values())}


def _shared(one: Sequence[Instance], other: Sequence[Instance]) -> int:
    known = set(one)
    return sum(instance in known for instance in other)


def _chosen(task: Task, split: str, length: int) -> Sequence[Instance]:
    if split != "train" or task.protocol == "paper":
        return evaluation(task, split, length)
    small = owned(task, split, length)
    if small is not None:
        return small
    make = maker(task, split, length)
    return [make(index) for index in range(TRAINED)]


def _line(task: Task, split: str, length: int, chosen: Sequence[Instance], problems: list[str]) -> Line:
    prompts, answers, said = [], Counter[int](), Counter[tuple[str, ...]]()
    limit, space, chance = task.answer_limit(length), task.space(length), task.chance(length)
    wrong = late = 0
    for instance in chosen:
        example = task.render(instance)
        ids, prompt = task.vocabulary.sequence(example.prompt, example.target, task.starts)
        prompts.append(prompt)
        answers[len(ids) - prompt] += 1
        said[example.answer] += 1
        wrong += not task.check(instance, example.target)
        late += len(ids) - prompt > limit
    distinct, where = len(set(chosen)), f"{split}, length {length}"
    if wrong:
        problems.append(f"{where}: check refuses {wrong} of {len(chosen)} answers that render gives")
    if late:
        problems.append(f"{where}: {late} answers are longer than answer_limit({length}) = {limit}")
    if distinct > space:
        problems.append(f"{where}: {distinct} distinct instances, but space({length}) is {space}")
    if not 0 <= chance <= 1:
        problems.append(f"{where}: chance({length}) is {chance:.3g}, which is no share from 0 to 1")
    expected, many = min(max(chance, 0.0), 1.0) * len(chosen), max(said.values(), default=0)
    # The commonest of many answers is above its mean, so the bound is wide: it finds a chance that is simply wrong.
    if len(chosen) >= 100 and many > expected + 6 * expected**0.5 + 6:
        problems.append(
            f"{where}: one answer is given {many} times in {len(chosen)}, but chance({length}) is {chance:.3g}"
        )
    return Line(
        split,
        length,
        space,
        len(chosen),
        distinct,
        distinct < EXHAUSTED,
        chance,
        (min(prompts, default=0), max(prompts, default=0)),
        (min(answers, default=0), max(answers, default=0)),
        dict(sorted(answers.items())),
    )
