"""Splits are disjoint by content, examples are pure functions, and nobody who memorises is above chance."""

import json
import subprocess
import sys
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from lengthwise.spec import SpecError
from lengthwise.task import FROM_DATA, PUBLISHED, TASKS, build_task
from lengthwise.task.audit import audit
from lengthwise.task.base import Task
from lengthwise.task.random_source import RandomSource, enumerate_draws
from lengthwise.task.sets import (
    BUCKETS,
    all_instances,
    evaluation_instances,
    instance_factory,
    instances,
    lengths_of,
    missing_lengths,
    split_instances,
    trained_lengths,
    training_lengths_and_indices,
)

ORIGINAL = {name.partition(":")[0] for name in PUBLISHED}
OURS = [*PUBLISHED, *(name for name in TASKS if name not in FROM_DATA and name not in ORIGINAL)]
"""Every variant of the original study, and every other task, whoever added it."""


# --- splits ----------------------------------------------------------------------------------------------------------


def overlaps(task, lengths, examples):
    """How many examples two splits share, over all pairs of splits that have the length."""
    shared = 0
    for length in lengths:
        drawn = [
            set(evaluation_instances(task, split, length, examples))
            for split in BUCKETS
            if split != "train" and length in lengths_of(task, split)
        ]
        if length in trained_lengths(task):
            make = instance_factory(task, "train", length, seed=3)
            drawn.append({make(index) for index in range(2 * examples)})
        shared += sum(len(one & other) for one, other in combinations(drawn, 2))
    return shared


def all_lengths(task):
    return sorted({length for split in BUCKETS for length in lengths_of(task, split)})


@pytest.mark.parametrize("name", OURS)
def test_no_example_is_in_two_splits(name):
    task = build_task(name)
    assert overlaps(task, all_lengths(task)[:: max(1, len(all_lengths(task)) // 4)], 40) == 0


@pytest.mark.evidence
@pytest.mark.parametrize("name", OURS)
def test_no_example_is_in_two_splits_at_any_length(name, figure):
    task = build_task(name)
    shared = overlaps(task, all_lengths(task), 256)
    figure(f"overlap, {name}: {shared} over {len(all_lengths(task))} lengths and all pairs of splits")
    assert shared == 0


def test_a_split_that_ignores_the_content_is_caught(monkeypatch):
    clean = audit(build_task("summation"), "summation")
    assert not clean.problems
    assert set(clean.overlap.values()) == {0}
    counter = iter(range(10**9))
    monkeypatch.setattr(Task, "bucket", lambda self, length, instance: next(counter) % 100)
    split_instances.cache_clear()
    leaky = audit(build_task("summation:longest=7"), "summation")
    split_instances.cache_clear()
    assert leaky.overlap["train and test_seen"] > 50
    assert any("overlap" in problem for problem in leaky.problems)


def test_splits_get_their_shares():
    task = build_task("parity")
    everyone = Counter(task.bucket(12, instance) for instance in all_instances(task, 12))
    for split, share in (
        ("train", 0.8),
        ("validation", 0.05),
        ("dev_unseen", 0.05),
        ("test_seen", 0.1),
        ("test_unseen", 0.95),
    ):
        mine = sum(everyone[bucket] for bucket in BUCKETS[split]) / 4096
        assert abs(mine - share) < 5 * (share * (1 - share) / 4096) ** 0.5


def test_unseen_lengths_are_tested_on_everything_but_dev():
    """SCAN's long lengths have few commands: all but one in twenty are tested; at seen lengths, one in ten is."""
    task = build_task("scan")
    for length in lengths_of(task, "test_unseen"):
        whole, dev, test = (
            len(there)
            for there in (
                all_instances(task, length),
                *(split_instances(task, split, length) for split in ("dev_unseen", "test_unseen")),
            )
        )
        assert dev + test == whole
    seen = lengths_of(task, "test_seen")[-1]
    assert len(split_instances(task, "test_seen", seen)) < 0.2 * len(all_instances(task, seen))


def test_lengths_of_the_splits():
    task = build_task("copy:longest=5")
    assert lengths_of(task, "train") == lengths_of(task, "test_seen") == [1, 2, 3, 4, 5]
    assert lengths_of(task, "test_unseen") == lengths_of(task, "dev_unseen") == [6, 7, 8, 9, 10]
    assert lengths_of(task, "test_far") == [12, 15, 20]
    assert lengths_of(build_task("lego"), "train")[0] == 2
    assert 23 not in lengths_of(build_task("scan"), "train")


def test_far_lengths_are_not_unseen_ones_again():
    task = build_task("copy:longest=1")
    assert lengths_of(task, "test_unseen") == [2]
    assert lengths_of(task, "test_far") == [3, 4]


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        (
            "addition:hints=9",
            {"dev_unseen": [*range(9, 17)], "test_unseen": [*range(9, 17)], "test_far": [20, 24, 32]},
        ),
        (
            "lego:longest=20",
            {"dev_unseen": [*range(33, 41)], "test_unseen": [*range(33, 41)], "test_far": [50, 60, 80]},
        ),
        ("addition", {}),
    ],
)
def test_missing_lengths_are_known(name, lacks):
    task = build_task(name)
    assert {split: there for split in BUCKETS if (there := missing_lengths(task, split))} == lacks


def test_an_audit_says_which_lengths_are_missing():
    report = audit(build_task("addition:hints=4:longest=3"), "addition")
    assert report.missing == {"dev_unseen": [4, 5, 6], "test_unseen": [4, 5, 6], "test_far": [7, 9, 12]}
    assert report.to_json_dict()["missing"] == report.missing


@pytest.mark.parametrize("name", OURS)
def test_an_evaluation_set_is_256_distinct_instances_or_all_there_are(name):
    task = build_task(name)
    for split in ("validation", "test_unseen"):
        for length in {*lengths_of(task, split)[:2], *lengths_of(task, split)[-1:]}:
            chosen = evaluation_instances(task, split, length)
            assert len(set(chosen)) == len(chosen)
            if len(chosen) < 256:
                mine = [one for one in all_instances(task, length) if task.bucket(length, one) in BUCKETS[split]]
                assert set(mine) == set(chosen)


@pytest.mark.parametrize(("name", "length"), [("flipflop", 7), ("dyck", 9)])
def test_a_short_length_is_evaluated_on_what_draw_prefers(name, length):
    """Flipflop mostly ignores and dyck has its own depths, also where all instances could be listed."""
    task = build_task(name)

    def trait(instance):
        return instance.count("i") if name == "flipflop" else len(task.to_example(instance).answer)

    mine, words = split_instances(task, "test_seen", length), RandomSource(5)
    assert mine is not None
    assert len(mine) > 256
    drawn = [task.draw(words.seek(index), length) for index in range(4000)]
    likely = sum(map(trait, drawn)) / 4000
    uniform = sum(map(trait, mine)) / len(mine)
    chosen = evaluation_instances(task, "test_seen", length, 64)
    found = sum(map(trait, chosen)) / 64
    assert len(set(chosen)) == 64
    assert abs(found - likely) < abs(found - uniform)
    assert evaluation_instances(task, "test_seen", length)[:64] == chosen


def test_a_small_set_is_all_there_is_however_unlikely():
    task = build_task("flipflop:ignore=0.99")
    for length in (4, 5, 6):
        assert set(evaluation_instances(task, "test_seen", length)) == set(split_instances(task, "test_seen", length))
    chosen = evaluation_instances(task, "test_seen", 7)  # 256 of many, of which few are ever drawn
    assert len(set(chosen)) == 256
    assert set(chosen) <= set(split_instances(task, "test_seen", 7))


REJECTS = """
from dataclasses import dataclass
from lengthwise.task.copy import Copy

@dataclass(frozen=True, kw_only=True)
class Mine(Copy):
    # No symbol twice in a row.
    alphabet: int | None = 4
    few: int = 0

    def draw(self, words, length):
        while True:
            chosen = tuple(words.choice(self.letters, length))
            if all(a != b for a, b in zip(chosen, chosen[1:])):
                return chosen

    def space(self, length):
        return 4 * 3 ** (length - 1) + self.few
"""


@pytest.mark.slow
def test_a_strangers_draw_that_rejects_has_its_small_spaces_too(tmp_path):
    (tmp_path / "mine.py").write_text(REJECTS)
    task = build_task(f"{tmp_path}/mine.py:Mine:longest=5")
    assert [len(all_instances(task, length)) for length in range(1, 6)] == [4, 12, 36, 108, 324]
    assert overlaps(task, [1, 2, 3, 4, 5], 40) == 0
    with pytest.raises(SpecError, match=r"has 13 instances of length 2 .* found 12: correct space"):
        all_instances(build_task(f"{tmp_path}/mine.py:Mine:longest=5:few=1"), 2)


def test_evaluation_sets_have_no_seed():
    with pytest.raises(SpecError, match="the same for every run"):
        instance_factory(build_task("copy"), "test_seen", 5, seed=1)


def test_a_split_without_instances_says_so():
    # Both strings of one bit are training strings.
    task = build_task("parity")
    assert split_instances(task, "test_seen", 1) == ()
    with pytest.raises(SpecError, match="all 2 are in other splits"):
        instance_factory(task, "test_seen", 1)(0)


@pytest.mark.parametrize("name", ["copy", "parity", "scan", "flipflop", "summation:protocol=paper"])
def test_an_index_outside_training_is_a_place_in_the_evaluation_set(name):
    task = build_task(name)
    for split in ("validation", "test_unseen"):
        for length in (lengths_of(task, split)[0], lengths_of(task, split)[-1]):
            whole = evaluation_instances(task, split, length)
            make = instance_factory(task, split, length)
            if not whole:
                with pytest.raises(SpecError, match="are in other splits"):
                    make(0)
                continue
            assert tuple(map(make, range(min(len(whole), 300)))) == whole[:300]
            assert instance_factory(task, split, length)(len(whole) - 1) == whole[-1]
            for index in (-1, len(whole)):
                with pytest.raises(SpecError, match=f"there is no example {index} .* it has {len(whole)},"):
                    make(index)


def test_an_index_past_the_originals_pool_is_refused():
    make = instance_factory(build_task("copy:variant=replace:protocol=paper"), "train", 5)
    make(6005)
    with pytest.raises(SpecError, match="there is no example 6006 of copy, train, length 5: it has 6006"):
        make(6006)
    with pytest.raises(SpecError, match=r"'train' of addition has no length 12 \(digits\); the nearest is 8"):
        instance_factory(build_task("addition:protocol=paper"), "train", 12)


@pytest.mark.parametrize(
    ("spec", "length", "said"),
    [("scan", 23, "the nearest is 22"), ("summation", 1, "the nearest is 2"), ("lego", 99, "the nearest is 32")],
)
def test_a_length_it_cannot_make_names_the_nearest(spec, length, said):
    with pytest.raises(SpecError, match=said):
        instance_factory(build_task(spec), "train", length)


def test_an_unknown_split_is_refused():
    with pytest.raises(SpecError, match="Did you mean 'test_seen'"):
        lengths_of(build_task("copy"), "test_sen")


# --- pure functions of the index -------------------------------------------------------------------------------------

WORKER = """
import json, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from lengthwise.task import build_task
from lengthwise.task.block import materialise

def make(job):
    name, lengths, indices = job
    block = materialise(build_task(name), "train", lengths, indices, seed=5)
    return [
        (name, length, index, block.ids[start:stop].tolist())
        for length, index, start, stop in zip(
            lengths, indices, block.starts_N[:-1].tolist(), block.starts_N[1:].tolist(), strict=True)
    ]

if __name__ == "__main__":
    processes, jobs = json.load(sys.stdin)
    if processes == 1:
        made = [make(job) for job in jobs]
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            made = list(pool.map(make, jobs))
    print(json.dumps(sorted(row for part in made for row in part)))
"""


@pytest.mark.slow
def test_any_worker_makes_any_example(tmp_path):
    """1, 2 and 7 processes, the indices dealt out and shuffled differently each time: bit-equal ids."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    names = [*OURS, *(f"{name}:protocol=paper" for name in PUBLISHED), "addition:scratchpad=full"]
    found = []
    for processes in (1, 2, 7):
        shuffle = np.random.default_rng(processes)
        jobs = []
        for name in names:
            lengths, indices = training_lengths_and_indices(build_task(name), 0, 42, seed=5)
            order = shuffle.permutation(42)
            for part in np.array_split(order, processes):
                jobs.append((name, lengths[part].tolist(), indices[part].tolist()))
        shuffle.shuffle(jobs)
        done = subprocess.run(
            [sys.executable, str(script)],
            input=json.dumps((processes, jobs)),
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout)
    assert len(json.loads(found[0])) == 42 * len(names)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["copy", "scan", "lego:protocol=paper"])
def test_training_is_the_same_asked_in_pieces(name):
    task = build_task(name)
    whole = training_lengths_and_indices(task, 65_000, 66_000, seed=2)
    pieces = [training_lengths_and_indices(task, start, start + 250, seed=2) for start in range(65_000, 66_000, 250)]
    for part in (0, 1):
        assert (np.concatenate([piece[part] for piece in pieces]) == whole[part]).all()
    assert not (training_lengths_and_indices(task, 65_000, 66_000, seed=3)[0] == whole[0]).all()


def test_another_seed_is_another_training_set_and_the_same_evaluation():
    task = build_task("copy")
    first, second = (instance_factory(task, "train", 9, seed)(0) for seed in (0, 1))
    assert first != second


# --- distributions ---------------------------------------------------------------------------------------------------


def chi_square(observed, expected):
    return sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))


@pytest.mark.parametrize("name", ["copy", "addition", "lego", "modular"])
def test_training_lengths_are_uniform(name):
    task = build_task(name)
    lengths, _ = training_lengths_and_indices(task, 0, 20_000)
    there = trained_lengths(task)
    counts = Counter(lengths.tolist())
    assert set(counts) == set(there)
    # Chi square with k degrees of freedom: mean k, standard deviation √2k.
    k = len(there) - 1
    assert chi_square([counts[length] for length in there], [20_000 / len(there)] * len(there)) < k + 6 * (2 * k) ** 0.5


@pytest.mark.parametrize("name", ["scan", "pcfg"])
def test_scan_and_pcfg_keep_their_own_histogram(name):
    task = build_task(name)
    lengths, _ = training_lengths_and_indices(task, 0, 20_000)
    there = trained_lengths(task)
    counts, total = Counter(lengths.tolist()), sum(map(task.weight, there))
    k = len(there) - 1
    expected = [20_000 * task.weight(length) / total for length in there]
    assert chi_square([counts[length] for length in there], expected) < k + 6 * (2 * k) ** 0.5


# --- space and chance ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OURS, "flipflop:ignore=0", "dyck:kinds=3", "modular:modulus=3", "count:alphabet=2"])
def test_space_and_chance_are_what_enumeration_finds(name):
    task, tried = build_task(name), 0
    for length in list(task.lengths[:8]):
        if not 0 < task.space(length) <= 4096 or task.listed(length) is not None:
            continue
        drawn = list(enumerate_draws(lambda words, length=length: task.draw(words, length)))
        assert len(set(drawn)) == task.space(length)
        if (
            len(drawn) == len(set(drawn))
            and name not in {"dyck", "dyck:kinds=3", "multiplication"}
            and "flip" not in name
        ):
            # Each instance is one path of equally likely choices, so answers can be counted.
            answers = Counter(task.to_example(one).answer for one in drawn)
            assert task.chance(length) == pytest.approx(max(answers.values()) / len(drawn))
        tried += 1
    if name in {"parity", "count", "modular", "dyck", "flipflop", "summation"}:
        assert tried >= 2


@pytest.mark.parametrize("name", OURS)
def test_the_commonest_answer_is_as_common_as_chance_says(name):
    task = build_task(name)
    for length in (trained_lengths(task)[0], trained_lengths(task)[-1]):
        if task.listed(length) is not None:
            continue
        words = RandomSource(11)
        answers = Counter(task.to_example(task.draw(words.seek(index), length)).answer for index in range(4000))
        share, chance = max(answers.values()) / 4000, task.chance(length)
        assert share < chance + 5 * (chance / 4000) ** 0.5 + 0.0021
        if name not in {"addition", "multiplication", "pcfg"}:  # theirs is an upper bound
            assert share > chance - 5 * (chance / 4000) ** 0.5


@pytest.mark.parametrize(("by", "length"), [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_the_chance_of_a_product_is_counted_as_factors_are_drawn(by, length):
    shares = Counter()
    for size in range(1, by + 1):
        firsts, seconds = range(10 ** (length - 1), 10**length), range(10 ** (size - 1), 10**size)
        for a, b in product(firsts, seconds):
            shares[a * b] += 1 / (len(firsts) * len(seconds) * by)
    task = build_task(f"multiplication:by={by}")
    assert task.chance(length) == pytest.approx(max(shares.values()))
    assert task.chance(5) <= task.chance(4) <= task.chance(3)


def table_lookup(task, split, seed=0, examples=4_000):
    """Memorise training examples; elsewhere guess the answer that was commonest at that length. Right and expected."""
    lengths, indices = training_lengths_and_indices(task, 0, examples, seed)
    known, answers = {}, {}
    made = instances(task, "train", lengths.tolist(), indices.tolist(), seed)
    for length, instance in zip(lengths.tolist(), made, strict=True):
        example = task.to_example(instance)
        known[example.prompt] = example.answer
        answers.setdefault(length, Counter())[example.answer] += 1
    right = expected = total = 0
    for length in lengths_of(task, split):
        if length not in answers:
            continue
        asked = evaluation_instances(task, split, length, 500 if task.protocol == "paper" else None)
        [(guess, _)] = answers[length].most_common(1)
        for instance in asked:
            example = task.to_example(instance)
            right += known.get(example.prompt, guess) == example.answer
        expected += task.chance(length) * len(asked)
        total += len(asked)
    return right, expected, total


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_who_memorises_is_at_chance_on_the_seen_lengths(name, figure):
    right, expected, total = table_lookup(build_task(name), "test_seen")
    figure(f"table lookup, {name}: {right} of {total} right on test_seen, {expected:.1f} by chance")
    assert total > 40
    # Five standard deviations, and one for luck where chance is nearly nothing.
    assert right <= expected + 5 * expected**0.5 + 1


@pytest.mark.slow
def test_who_memorises_is_above_chance_where_the_original_samples():
    """The control: the same model on the original's validation set."""
    for name, at_least in (("parity", 0.99), ("summation", 0.3)):
        right, expected, total = table_lookup(build_task(f"{name}:protocol=paper"), "validation", examples=100_000)
        assert right / total > at_least > expected / total
