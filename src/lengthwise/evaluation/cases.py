"""The examples of an evaluation, each with its tokens, its random key and its budget of tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Instance, Task
from lengthwise.task.sets import evaluation_instances, instances, lengths_of, training_lengths_and_indices

TRAINED = 64
"""The number of trained examples of each length that are evaluated too."""
_LENGTHS = 10_000  # the most lengths of an evaluation
_LOOKED = 65_536  # the most training examples among which they are looked for


@dataclass(frozen=True, eq=False)
class Case:
    """One example to be answered."""

    split: str
    length: int
    index: int
    instance: Instance
    ids: list[int]
    """Prompt, answer, end token."""
    prompt: int
    """Tokens of the prompt."""
    limit: int
    """The maximum number of tokens of the answer before it is cut."""
    key: int

    @property
    def answer(self) -> list[int]:
        """The right answer with its end token."""
        return self.ids[self.prompt :]

    @property
    def budget(self) -> int:
        """The maximum number of tokens of the sequence, known before the answer."""
        return self.prompt + self.limit

    def places(self, positions: Positions, output_ids: Sequence[int] | None = None) -> list[int] | None:
        """The position of each token of prompt and answer; None if they are consecutive."""
        if isinstance(positions, Consecutive):
            return None
        return positions.places(
            self.ids[: self.prompt], self.answer if output_ids is None else output_ids, self.key, self.budget
        )


def evaluation_cases(task: Task, split: str, length: int, examples: int | None = None) -> list[Case]:
    """The evaluation set of a length, the same for every run."""
    found = _cases(task, split, length)
    return found if examples is None else found[:examples]


@lru_cache(maxsize=1024)
def _cases(task: Task, split: str, length: int) -> list[Case]:
    found = evaluation_instances(task, split, length)
    return [_case(task, split, length, index, instance) for index, instance in enumerate(found)]


def _case(task: Task, split: str, length: int, index: int, instance: Instance) -> Case:
    example, limit = task.to_example(instance), task.answer_limit(length)
    ids, prompt = task.vocabulary.sequence(example.prompt, example.target, task.starts)
    if len(ids) - prompt > limit:
        raise SpecError(
            f"example {index} of {task.name}, {split}, length {length}: its answer has {len(ids) - prompt} tokens, "
            f"answer_limit({length}) is {limit}: a right answer would be cut"
        )
    return Case(
        split, length, index, instance, ids, prompt, limit, digest("positions", "evaluation", split, length, index)
    )


def trained_cases(
    task: Task, trained_examples: int, data_seed: int, is_used: Callable[[int], bool] = lambda index: True
) -> list[Case]:
    """Return up to 64 distinct examples of each length that a run was trained on, in the order it saw them.

    Beside `test_seen` they show what a model has learned by heart. `trained_examples` is steps × batch size; `is_used`
    tells which of them were trained on, if others took the place of some.
    """
    length_N, index_N = training_lengths_and_indices(task, 0, min(trained_examples, _LOOKED), data_seed)
    made: dict[int, dict[Instance, None]] = {length: {} for length in sorted(set(length_N.tolist()))}
    for length, there in made.items():
        mine = [index for index in index_N[length_N == length].tolist() if is_used(index)]
        for instance in instances(task, "train", [length] * len(mine), mine, data_seed):
            there.setdefault(instance)
            if len(there) == TRAINED:
                break
    return [
        _case(task, "train", length, index, instance)
        for length, there in made.items()
        for index, instance in enumerate(there)
    ]


def splits_and_lengths(task: Task, lengths: Sequence[int] | str | None = None) -> list[tuple[str, int]]:
    """The splits and lengths of an evaluation: all that are tested, or the given lengths, each with its split."""
    lengths = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    seen = "validation" if task.protocol == "paper" else "test_seen"
    if lengths is None:
        splits = (seen, "test_unseen") if task.protocol == "paper" else (seen, "test_unseen", "test_far")
        return [(split, length) for split in splits for length in lengths_of(task, split)]
    found = []
    for length in dict.fromkeys(lengths):
        task.require_length(length)
        split = seen if length <= task.longest else "test_unseen" if length <= 2 * task.longest else "test_far"
        if task.protocol == "paper" and length not in lengths_of(
            task, "test_unseen" if length > task.longest else seen
        ):
            raise SpecError(f"the original study has no {task.name} of length {length}; use protocol=ours")
        found.append((split if task.protocol == "ours" or split == seen else "test_unseen", length))
    return sorted(found, key=lambda pair: pair[1])


def seen_cases(task: Task) -> Iterator[Case]:
    """Yield the test examples of the trained lengths; the longest prompt need not be that of the longest answer."""
    for split, length in [] if task.name == "text" else splits_and_lengths(task):
        if length <= task.longest:
            yield from evaluation_cases(task, split, length)


def _ladder(first: int, last: int, factor: float, text: str) -> list[int]:
    """Return first, first · factor, first · factor², ... up to last, rounded to whole lengths."""
    if first < 1 or last < first or last > 10**6 or factor < 1.01:
        raise SpecError(
            f"{text!r} is no ladder: write first..last:xfactor with a factor of at least 1.01, e.g. 64..4096:x2"
        )
    rungs, at = [], float(first)
    while at <= last * (1 + 1e-9):
        rungs.append(round(at))
        at *= factor
    return list(dict.fromkeys(rungs))


def parse_lengths(text: str) -> list[int]:
    """Return the lengths that `8,16,32`, `17-40` or `64..4096:x2` (64, 128, ..., 4096) stands for."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        if ladder := re.fullmatch(r"([0-9]{1,9})\.\.([0-9]{1,9}):x([0-9]{1,3}(?:\.[0-9]{1,3})?)", part):
            found += _ladder(int(ladder[1]), int(ladder[2]), float(ladder[3]), part)  # a thousand at most
            continue
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if last < first:
            raise SpecError(f"lengths are written 8,16,32, 17-40 or 64..4096:x2, not {text!r:.80}")
        if last > 10**6:
            raise SpecError(f"a length of {last} is beyond anything that can be tested")
        if len(found) + last + 1 - first > _LENGTHS:
            raise SpecError(f"{text!r:.80} are more than {_LENGTHS:,} lengths; write fewer")
        found += range(first, last + 1)
    if twice := [length for length, count in Counter(found).items() if count > 1]:
        raise SpecError(f"length {twice[0]} is listed twice in {text!r:.80}")
    return found
