"""Measure a task: example counts, overlap of splits, chance, answer lengths, deviations from the publication."""

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
    EXHAUSTED,
    buckets,
    evaluation_instances,
    instance_factory,
    lengths_of,
    missing_lengths,
    split_instances,
    splits,
)

AUDITED = {"train": 500, "validation": 32, "dev_unseen": 32}
"""How many examples of each length are looked at; of the tests, which reports show, all are.

Validation and dev have one prompt in twenty each, so that each of their examples takes about twenty draws.
"""
AGAIN = 8
"""How many indices of the shortest and of the longest length are drawn twice, to check that `draw` is deterministic."""


class AuditRow(NamedTuple):
    """One length of one split."""

    split: str
    length: int
    space: int
    """Distinct instances of this length, of all splits together."""
    examples: int
    """The size of the test set; for the other splits, how many were looked at (see `AUDITED`; under `paper`, all)."""
    distinct: int
    exhausted: bool
    """Whether there are fewer than 8 distinct examples; such a length is left out of the seen-length score."""
    chance: float
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    answers: dict[int, int]
    """The number of examples by number of answer tokens, the end token included."""


class Audit(NamedTuple):
    """The whole report."""

    task: str
    protocol: str
    version: int
    unit: str
    vocabulary: int
    lines: list[AuditRow]
    overlap: dict[str, int]
    """For each pair of splits, how many examples of the second are also in the first, at the same length."""
    overlap_by_length: dict[str, dict[int, int]]
    deviations: tuple[str, ...]
    facts: dict[str, object]
    missing: dict[str, list[int]]
    """The lengths that a split should have and the task cannot make."""
    unused: int
    """For a task that lists its instances: how many of them are in no split."""
    problems: list[str]
    """Contradictions between the task's methods, which indicate a wrong generator."""

    @property
    def exhausted(self) -> list[tuple[str, int]]:
        """The (split, length) pairs with fewer than 8 distinct examples."""
        return [(line.split, line.length) for line in self.lines if line.exhausted]

    def to_json_dict(self) -> dict[str, object]:
        """Plain data, for JSON."""
        return {
            **self._asdict(),
            "lines": [
                # An instance count may have thousands of digits, more than JSON readers accept.
                {
                    **line._asdict(),
                    "space": line.space if line.space < 2**53 else None,
                    "log10_space": log10(line.space),
                }
                for line in self.lines
            ],
            "exhausted": [{"split": split, "length": length} for split, length in self.exhausted],
        }


def audit(task: Task, name: str, on_progress: Callable[[str], None] | None = None) -> Audit:
    """Draw, count and compare the examples of all splits; `name` is the task as the user wrote it."""
    drawn: dict[str, dict[int, Sequence[Instance]]] = {split: {} for split in splits(task)}
    lines: list[AuditRow] = []
    problems = _suspicions(task)
    wanted = [(split, length) for split in splits(task) for length in lengths_of(task, split)]
    for done, (split, length) in enumerate(wanted, 1):
        if on_progress is not None:
            on_progress(f"{done}/{len(wanted)}: {split}, length {length}")
        try:
            chosen = _chosen(task, split, length)
        except SpecError as error:
            # A draw that is not deterministic can be the cause of this error, so its problem is reported first.
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
    if task.hf_tokenizer is not None:
        facts["digits"] = task.hf_tokenizer.digit_tokenization()
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
        {split: lengths for split in splits(task) if (lengths := missing_lengths(task, split))},
        _unused(task),
        problems + [f"{count} examples of {pair} overlap" for pair, count in _leaks(task, overlap).items()],
    )


def _suspicions(task: Task) -> list[str]:
    """Return problems found before counting: a version that is not an integer, a draw that is not deterministic."""
    problems = []
    if isinstance(task.version, bool) or not isinstance(task.version, int):
        problems.append(f"version is {task.version!r}; it is a whole number that rises when examples change")
    # Under `paper` a draw is a row of the original's tables, and some lengths have fewer than `AGAIN` rows.
    lengths = [] if task.protocol == "paper" else lengths_of(task, "train")
    for length in sorted({*lengths[:1], *lengths[-1:]}):
        if task.listed(length) is not None:
            continue
        for index in range(AGAIN):
            one, other = (task.draw(RandomSource(task.key("again", length)).seek(index), length) for _ in range(2))
            if one != other:
                problems.append(
                    f"draw({length}) gives {one!r:.40} and then {other!r:.40} from the same words: it may depend on "
                    "`words` and `length` alone, not on random, on time or on earlier calls"
                )
                return problems
    return problems


def _unused(task: Task) -> int:
    """Count the listed instances that are in no split, because of their content or their length."""
    if task.protocol == "paper":
        return 0
    there = {split: set(lengths_of(task, split)) for split in splits(task)}
    unused = 0
    # Only a task that lists its instances is counted: the lengths of other tasks have no end.
    for length in task.lengths if task.listed(task.lengths[0]) is not None else ():
        used = {bucket for split, lengths in there.items() if length in lengths for bucket in buckets(task, split)}
        unused += sum(task.bucket(length, one) not in used for one in task.listed(length) or ())
    return unused


def _leaks(task: Task, overlap: dict[str, dict[int, int]]) -> dict[str, int]:
    """Return overlap that is an error. The original samples with replacement and has some; `ours` must have none."""
    if task.protocol == "paper":
        return {}
    return {pair: sum(counts.values()) for pair, counts in overlap.items() if any(counts.values())}


def _shared(one: Sequence[Instance], other: Sequence[Instance]) -> int:
    known = set(one)
    return sum(instance in known for instance in other)


def _chosen(task: Task, split: str, length: int) -> Sequence[Instance]:
    if task.protocol == "paper":
        return evaluation_instances(task, split, length)
    if split != "train":
        return evaluation_instances(task, split, length, AUDITED.get(split))
    small = split_instances(task, split, length)
    if small is not None:
        return small
    make = instance_factory(task, split, length)
    return [make(index) for index in range(AUDITED["train"])]


def _line(task: Task, split: str, length: int, chosen: Sequence[Instance], problems: list[str]) -> AuditRow:
    prompts, answers, said = [], Counter[int](), Counter[tuple[str, ...]]()
    limit, space, chance = task.answer_limit(length), task.space(length), task.chance(length)
    wrong = late = 0
    for instance in chosen:
        example = task.to_example(instance)
        ids, prompt = task.vocabulary.sequence(example.prompt, example.target, task.starts)
        prompts.append(prompt)
        answers[len(ids) - prompt] += 1
        said[example.answer] += 1
        wrong += not task.check(instance, example.target)
        late += len(ids) - prompt > limit
    distinct, where = len(set(chosen)), f"{split}, length {length}"
    if wrong:
        problems.append(f"{where}: check refuses {wrong} of {len(chosen)} answers that to_example gives")
    if late:
        problems.append(f"{where}: {late} answers are longer than answer_limit({length}) = {limit}")
    if distinct > space:
        problems.append(f"{where}: {distinct} distinct instances, but space({length}) is {space}")
    if not 0 <= chance <= 1:
        problems.append(f"{where}: chance({length}) is {chance:.3g}, which is no share from 0 to 1")
    expected, many = min(max(chance, 0.0), 1.0) * len(chosen), max(said.values(), default=0)
    # The most frequent of many answers is above its mean by chance, so the bound is wide: it finds only gross errors.
    if len(chosen) >= 100 and many > expected + 6 * expected**0.5 + 6:
        problems.append(
            f"{where}: one answer is given {many} times in {len(chosen)}, but chance({length}) is {chance:.3g}"
        )
    return AuditRow(
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
