"""Which examples a split has: disjoint by content, without coordination.

The split of an instance is given by its content, `hash(task, variant, length, instance) mod 100`. For each index, a
split draws again (the next attempt) until the instance is its own. So overlap is 0 at every length, also in small
spaces. At lengths that are not trained on, the tests have all instances but those of `dev_unseen`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np

from lengthwise.spec import SpecError, did_you_mean
from lengthwise.task.base import Instance, Task
from lengthwise.task.random_source import RandomSource, TooManyChoices, enumerate_draws

_BEYOND = (*range(85), *range(90, 100))
BUCKETS: dict[str, Sequence[int]] = {
    "train": range(0, 80),
    "validation": range(80, 85),
    "dev_unseen": range(85, 90),
    "test_seen": range(90, 100),
    "test_unseen": _BEYOND,
    "test_far": _BEYOND,
}
PAPER_SPLITS = ("train", "validation", "test_unseen")
EXAMPLES = 256
"""The number of distinct examples per length in an evaluation set, if there are as many."""
EXHAUSTED = 8
"""A length of a split with fewer distinct examples is exhausted: it is left out of the seen-length score."""
SMALL = 8192
"""Spaces up to this size are enumerated; of a larger one, validation's share (1/20) has more than 256 instances."""
BLOCK = 65_536
_ATTEMPTS = 10_000
_PATIENCE, _SMALL_PATIENCE = 1000, 5
VERSION = 3
"""Increased when the choice of evaluation sets changes but `draw` does not; training does not depend on it."""
PAPER_TRAIN, PAPER_POOL, PAPER_TEST = 100_000, 115_000, 10_000


def splits(task: Task) -> tuple[str, ...]:
    """Return the splits of the task's protocol."""
    return PAPER_SPLITS if task.protocol == "paper" else tuple(BUCKETS)


def buckets(task: Task, split: str) -> Sequence[int]:
    """Return the buckets of a split; if a prompt may have several lengths, all tests have those of `test_seen`."""
    tests = split.startswith("test") and task.content_at_several_lengths
    return BUCKETS["test_seen" if tests else split]


def lengths_of(task: Task, split: str) -> list[int]:
    """Return the lengths of a split that the task can make: up to L seen, L+1 to 2L unseen, and `task.far`."""
    return [length for length in _wanted(task, split) if length in task.lengths]


def missing_lengths(task: Task, split: str) -> list[int]:
    """Return the lengths that a split should have but the task cannot make."""
    return [length for length in _wanted(task, split) if length not in task.lengths]


def _wanted(task: Task, split: str) -> Iterable[int]:
    _known(task, split)
    longest = task.longest
    if task.protocol == "paper":
        assert task.published is not None
        low, high = task.published.test if split == "test_unseen" else task.published.train
        return range(low, high + 1)
    if split == "test_far":
        return [length for length in task.far if length > 2 * longest]
    if split.endswith("unseen"):
        return range(longest + 1, 2 * longest + 1)
    return range(task.lengths[0], longest + 1)


def _known(task: Task, split: str) -> None:
    if split in splits(task):
        return
    if split in BUCKETS:
        raise SpecError(
            f"with protocol=paper there is no split {split!r}: the original study's seen-length score is on "
            "'validation', its unseen one on 'test_unseen'"
        )
    raise SpecError(f"there is no split {split!r}.{did_you_mean(split, BUCKETS)}")


def check_split_length(task: Task, split: str, length: int) -> None:
    """Refuse a length that the split does not have."""
    task.require_length(length)
    there = lengths_of(task, split)
    if length not in there:
        nearest = f"the nearest is {min(there, key=lambda other: abs(other - length))}" if there else "it has none"
        raise SpecError(f"{split!r} of {task.name} has no length {length} ({task.unit}); {nearest}")


@lru_cache(maxsize=4096)
def split_instances(task: Task, split: str, length: int) -> tuple[Instance, ...] | None:
    """Return all instances of a split and length in a keyed random order, or None if the space is not small."""
    listed = all_instances(task, length)
    if listed is None:
        return None
    mine = [(instance, task.bucket(length, instance)) for instance in listed]
    order = np.random.Philox(key=task.key("order", length)).random_raw(len(mine))
    there = frozenset(buckets(task, split))
    own = [(word, one) for (one, bucket), word in zip(mine, order.tolist(), strict=True) if bucket in there]
    return tuple(one for _, one in sorted(own, key=lambda pair: pair[0]))


@lru_cache(maxsize=512)
def all_instances(task: Task, length: int) -> tuple[Instance, ...] | None:
    """Return all instances of a length, or None if there are too many to enumerate."""
    task.require_length(length)
    listed = task.listed(length)
    if listed is not None:
        return tuple(listed)
    if task.space(length) > SMALL or task.protocol == "paper":  # rows of the original also depend on `rng.index`
        return None
    most = 100 * task.space(length) + 10_000
    try:
        return tuple(dict.fromkeys(enumerate_draws(lambda words: task.draw(words, length), most)))
    except TooManyChoices:
        return _found(task, length, most)


def _found(task: Task, length: int, most: int) -> tuple[Instance, ...]:
    """Find all instances of a length by random draws, for a task whose `draw` uses rejection sampling."""
    found, words, space = dict[Instance, None](), RandomSource(task.key("all", length)), task.space(length)
    for index in range(most):
        found.setdefault(task.draw(words.seek(index), length), None)
        if len(found) == space:
            return tuple(found)
    raise SpecError(
        f"{task.name} has {space} instances of length {length} by its space, but {most:,} draws found {len(found)}: "
        "correct space, or return all instances from listed(length)"
    )


def instance_factory(task: Task, split: str, length: int, seed: int = 0) -> Callable[[int], Instance]:
    """Return a function from index to instance: drawn with the seed in training, else from `evaluation_instances`."""
    _known(task, split)
    task.require_length(length)
    if split != "train":
        if seed:
            raise SpecError(f"evaluation sets are the same for every run: {split!r} has no seed {seed}")
        return _of_evaluation(task, split, length)
    if task.protocol == "paper":
        return _of_pool(task, length)
    if task.listed(length) is not None:
        return _from_list(task, split, length, seed)
    return _by_rejection(task, split, length, seed)


def _of_evaluation(task: Task, split: str, length: int) -> Callable[[int], Instance]:
    """Return a function that draws lazily: the first example of a long length does not wait for the others."""
    if task.protocol == "paper":
        check_split_length(task, split, length)
        length_N, index_N = paper_split_rows(task, split)
        here = index_N[length_N == length].tolist()
        draw = _drawn(task, split, length)
        return _bounded(task, split, length, len(here), lambda index: draw(here[index]))
    more, made = islice(_distinct(task, split, length), EXAMPLES), list[Instance]()

    def make(index: int) -> Instance:
        wanted = index + 1 if 0 <= index < EXAMPLES else EXAMPLES
        made.extend(islice(more, max(wanted - len(made), 0)))
        if 0 <= index < len(made):
            return made[index]
        raise _past(task, split, length, len(made), index) if made else _empty(task, split, length)

    return make


def _of_pool(task: Task, length: int) -> Callable[[int], Instance]:
    """Return a function to row `index` of the original's pool: most rows are train, the others validation."""
    check_split_length(task, "train", length)
    many = _pool(task, "train")[0].get(length, 0)
    return _bounded(task, "train", length, many, _drawn(task, "train", length))


def _drawn(task: Task, split: str, length: int) -> Callable[[int], Instance]:
    words = RandomSource(task.key("test" if split == "test_unseen" else "pool", length))
    return lambda index: task.draw(words.seek(index), length)


def _bounded(
    task: Task, split: str, length: int, many: int, make: Callable[[int], Instance]
) -> Callable[[int], Instance]:
    def bounded(index: int) -> Instance:
        if not 0 <= index < many:
            raise _past(task, split, length, many, index)
        return make(index)

    return bounded


def longer_instance_factory(task: Task, length: int, seed: int) -> Callable[[int], Instance]:
    """Return a function from index to an instance longer than the trained ones, which is in no test set.

    The instances are of the buckets of `dev_unseen`, but drawn independently of its evaluation set.
    """
    if task.listed(length) is not None:
        return _from_list(task, "dev_unseen", length, seed)
    return _by_rejection(task, "dev_unseen", length, seed, "longer")


def _by_rejection(
    task: Task, split: str, length: int, seed: int, stream: str | None = None
) -> Callable[[int], Instance]:
    words = RandomSource(task.key(stream or split, length, seed=seed))
    seek, draw, bucket, mine = words.seek, task.draw, task.bucket, frozenset(buckets(task, split))

    def make(index: int) -> Instance:
        for attempt in range(_ATTEMPTS):
            instance = draw(seek(index, attempt), length)
            if bucket(length, instance) in mine:
                return instance
        raise _empty(task, split, length)

    return make


def _from_list(task: Task, split: str, length: int, seed: int) -> Callable[[int], Instance]:
    own = split_instances(task, split, length)
    assert own is not None
    if not own:
        raise _empty(task, split, length)
    # Training cycles through the list, each time in another order.
    orders: dict[int, list[int]] = {}

    def make(index: int) -> Instance:
        turn, place = divmod(index, len(own))
        if turn not in orders:
            raw = np.random.Philox(key=task.key(split, length, turn, seed=seed)).random_raw(len(own))
            orders[turn] = np.argsort(raw, kind="stable").tolist()
        return own[orders[turn][place]]

    return make


def _empty(task: Task, split: str, length: int) -> SpecError:
    return SpecError(
        f"no instance of {task.name} of length {length} is in {split!r}: all {task.space(length)} are in other splits"
    )


def _past(task: Task, split: str, length: int, many: int, index: int) -> SpecError:
    return SpecError(
        f"there is no example {index} of {task.name}, {split}, length {length}: it has {many}, counted from 0"
    )


def instances(
    task: Task, split: str, lengths: Iterable[int], indices: Iterable[int], seed: int = 0
) -> Iterator[Instance]:
    """Yield the instances at the given (length, index) pairs."""
    makers: dict[int, Callable[[int], Instance]] = {}
    for length, index in zip(lengths, indices, strict=True):
        make = makers.get(length)
        if make is None:
            make = makers[length] = instance_factory(task, split, length, seed)
        yield make(index)


def evaluation_instances(task: Task, split: str, length: int, examples: int | None = None) -> tuple[Instance, ...]:
    """Return the evaluation set of a length: 256 distinct instances or all there are; under `paper`, all rows."""
    if task.protocol == "paper":
        length_N, index_N = paper_split_rows(task, split)
        return tuple(map(_drawn(task, split, length), index_N[length_N == length][:examples].tolist()))
    return tuple(islice(_distinct(task, split, length), EXAMPLES if examples is None else examples))


def _distinct(task: Task, split: str, length: int) -> Iterator[Instance]:
    """Yield the instances of a split and length, each once, in the order they are drawn; if they are few, all of them.

    Short lengths thus follow the same distribution as long ones as far as there are enough instances, and a set of 20
    examples is the beginning of the set of 256.
    """
    small = split_instances(task, split, length)
    if small is not None and task.listed(length) is not None:
        yield from small
        return
    make, found, index = _by_rejection(task, split, length, 0), set[Instance](), 0
    if small is not None:
        patience = _SMALL_PATIENCE * min(len(small), EXAMPLES)
        while len(found) < len(small) and index < patience:
            if (one := make(index)) not in found:
                found.add(one)
                yield one
            index += 1
        yield from (one for one in small if one not in found)  # too unlikely to have been drawn so far
        return
    while index < _PATIENCE * max(EXAMPLES, len(found) + 1):
        if (one := make(index)) not in found:
            found.add(one)
            yield one
        index += 1
    # The `space` of a user's task may be larger than what its `draw` returns.
    raise SpecError(
        f"{task.name}, {split}, length {length}: {len(found)} distinct instances in {index:,} draws, "
        f"but space({length}) says {task.space(length)}"
    )


def training_lengths_and_indices(task: Task, start: int, stop: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return length and index of training examples start, ..., stop − 1, independent of earlier calls."""
    if task.protocol == "paper":
        return _epochs(task, start, stop, seed)
    lengths = trained_lengths(task)
    if not lengths:
        raise SpecError(f"{task.name} has nothing to train on up to length {task.longest}")
    bounds = np.cumsum([task.weight(length) for length in lengths])
    parts = []
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        # One random word per example; the block is the counter, so no earlier block has to be generated.
        words = np.random.Philox(key=task.key("lengths", seed=seed), counter=[0, block, 0, 0]).random_raw(BLOCK)
        first = block * BLOCK
        words = words[max(start - first, 0) : stop - first]
        parts.append(np.searchsorted(bounds, (words >> np.uint64(11)) * 2.0**-53 * bounds[-1], side="right"))
    chosen = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return np.array(lengths)[chosen], np.arange(start, stop)


def trained_lengths(task: Task) -> list[int]:
    """Return the lengths that have at least one training instance."""
    return [length for length in lengths_of(task, "train") if split_instances(task, "train", length) != ()]


@lru_cache(maxsize=64)
def paper_split_rows(task: Task, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return, under `paper`, length and pool index of each row of a split, as the original makes and splits its pool.

    A pool of 1.15 × 100,000 rows, equally many per bin, is shuffled; the first 100,000 are train, the rest validation.
    """
    _known(task, split)
    counts, cut = _pool(task, split)
    length_N = np.repeat(list(counts), list(counts.values()))
    index_N = np.concatenate([np.arange(count) for count in counts.values()])
    if split == "test_unseen":
        listed = task.paper_lists
        if listed is not None:  # random rows of a longer list
            picked = [
                np.argsort(np.random.Philox(key=task.key("test rows", length)).random_raw(listed), kind="stable")[
                    :count
                ]
                for length, count in counts.items()
            ]
            index_N = np.concatenate(picked)
        return length_N, index_N
    order_N = np.argsort(np.random.Philox(key=task.key("pool order")).random_raw(len(length_N)), kind="stable")
    part = order_N[:cut] if split == "train" else order_N[cut:]
    return length_N[part], index_N[part]


def _pool(task: Task, split: str) -> tuple[dict[int, int], int]:
    """Return rows per length of the original's pool (or test set), and its number of training rows."""
    corpus = task.paper_pool_by_length(split)
    if corpus is not None:
        return corpus
    lengths = lengths_of(task, split)
    bins = sum(task.paper_bins(length, split) for length in lengths)
    per_bin = (PAPER_TEST if split == "test_unseen" else PAPER_POOL) // bins
    return {length: task.paper_rows(length, split, per_bin) for length in lengths}, PAPER_TRAIN


def _epochs(task: Task, start: int, stop: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    length_N, index_N = paper_split_rows(task, "train")
    size = len(length_N)
    chosen = []
    for epoch in range(start // size, -(-stop // size)):
        words = np.random.Philox(key=task.key("epoch", epoch, seed=seed)).random_raw(size)
        order_N = np.argsort(words, kind="stable")
        chosen.append(order_N[max(start - epoch * size, 0) : stop - epoch * size])
    picked = np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)
    return length_N[picked], index_N[picked]
