"""`protocol=paper` writes what the original wrote: every string that was verified by running its code."""

import numpy as np
import pytest

from lengthwise.spec import SpecError
from lengthwise.task import PUBLISHED, build_task
from lengthwise.task.pcfg import Pcfg, depth, published_depth_token_counts
from lengthwise.task.sets import lengths_of, paper_split_rows, splits
from lengthwise.task.vocabulary import join_symbols

CHAIN = (("f", "b", "q", "z"), (-1, 1, 1, -1), 2)
TEXTS = {
    "copy:variant=same": (("a", 3), "Copy: a a a [SEP] a a a"),
    "copy:variant=same2": (("a", 2), "Copy: a a [SEP] a a a a"),
    "copy:variant=replace": (("a", "b", 2), "Replace a with b in a a [SEP] b b"),
    "copy:variant=random": (("a", "b", "c"), "Copy: a b c [SEP] a b c"),
    "copy:variant=random2": (("a", "b"), "Copy: a b [SEP] a b [NEXT] a b"),
    "reverse:variant=once": (("a", "b", "c"), "Reverse: a b c [SEP] c b a"),
    "reverse:variant=twice": (("a", "b"), "Reverse: a b [SEP] b a [NEXT] b a"),
    "reverse:variant=back": (("a", "b"), "Reverse: a b [SEP] b a [NEXT] a b"),
    "addition": (("964", "58"), "Compute 9 6 4 + 5 8 ? The answer is 1 0 2 2."),
    "polynomial": (
        (-2, ((3, 0), (-1, 1))),
        "Evaluate at x = - 2 in 3 * x ** 0 + - 1 * x ** 1 ? The answer is 5.",
    ),
    "sort:variant=single": (
        (48, 40, 5),
        "Sort the following list [ M, E, 5 ]. The sorted list is [ 5, E, M ].",
    ),
    "sort:variant=multi": (
        (2468, 53),
        "Sort the following list [ 2 4 6 8, 5 3 ]. The sorted list is [ 5 3, 2 4 6 8 ].",
    ),
    "summation": ((7, 8, 9), "Compute: 7 + 8 + 9 .[SEP] The answer is 4 ."),
    "parity": (
        (1, 0, 1, 1),
        "Is the number of 1's even in the sequence [ 1, 0, 1, 1 ] ? The answer is No.",
    ),
    "lego": (
        CHAIN,
        "If f = -1, b = - f, q = + b, z = - q. Then, what is the value of q? The answer is +1.",
    ),
    "scan": ("walk after turn right", "Solve: walk after turn right[SEP] Right Walk"),
    "pcfg": ("echo A1 B2", "Solve: echo A1 B2[SEP] A1 B2 B2"),
}
FULL = {
    "addition": (
        ("964", "58"),
        "Compute 9 6 4 + 5 8 ? Thinking step by step: "
        "in 4, 8 comp 4 + 8 + carry = 12 + 0 = 12 out 2 [ carry: 1 ] re 9 6 + 5 # "
        "in 6, 5 comp 6 + 5 + carry = 11 + 1 = 12 out 2 [ carry: 1 ] re 9 + 0 # "
        "in 9, 0 comp 9 + 0 + carry = 9 + 1 = 10 out 0 [ carry: 1 ] re + # "
        "in 0, 0 comp 0 + 0 + carry = 0 + 1 = 1 out 1 [ carry: 0 ] re + . Thus, "
        "The answer is 1 0 2 2.",
    ),
}


def test_all_seventeen_variants_are_here():
    assert set(TEXTS) == set(PUBLISHED)
    assert len(PUBLISHED) == 17


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_is_the_originals_character_by_character(name):
    instance, wanted = TEXTS[name]
    example = build_task(f"{name}:protocol=paper").to_example(instance)
    assert example.text == wanted


@pytest.mark.parametrize("name", FULL)
def test_the_full_scratchpad_is_the_originals(name):
    instance, wanted = FULL[name]
    assert build_task(f"{name}:protocol=paper:scratchpad=full").to_example(instance).text == wanted


@pytest.mark.parametrize(
    ("name", "instance", "step"),
    [
        (
            "polynomial",
            (-2, ((3, 0), (-1, 1), (2, 3))),
            "in - 1 * x ** 1 comp - 1 * - 2 ** 1 = - 1 * - 2 out 2 [ sum: 3 + 2 = 5 ] re 2 * x ** 3",
        ),
        ("summation", (7, 8, 9), "in 8 comp 8 + sum = 8 + 7 = out 1 5 [ sum: 1 5 = 5 ] re 9"),
        ("parity", (1, 0, 1, 1), "in 0 comp 0 ** par = 0 ** 1 out 1 [ par: 1 ] re [ 1, 1 ]"),
        ("sort", (48, 40, 5), "in E comp The minimum of the unsorted portion out E re [ M ]"),
        ("lego", CHAIN, "in b comp - f = - -1 out +1 re q = + b, z = - q"),
    ],
)
def test_the_second_step_of_the_other_scratchpads_is_the_originals(name, instance, step):
    steps = join_symbols(build_task(f"{name}:protocol=paper:scratchpad=full").to_example(instance).steps)
    assert steps.removeprefix("Thinking step by step: ").removesuffix(" . Thus,").split(" # ")[1] == step


# What each split had in the original; the used half of validation is logged there.
COUNTS = {
    "copy:variant=same": (100_000, 7494, 10_000),
    "copy:variant=replace": (100_000, 7057, 10_000),
    "copy:variant=random": (100_000, 7494, 10_000),
    "reverse:variant=back": (100_000, 7494, 10_000),
    "addition": (100_000, 7472, 9984),
    "summation": (100_000, None, 10_000),
    "parity": (100_000, None, 10_000),
    "scan": (15_997, 888, 3136),
    "pcfg": (72_909, 4050, 11_333),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_splits_have_as_many_rows_as_the_originals(name):
    task = build_task(f"{name}:protocol=paper")
    train, half, test = COUNTS[name]
    sizes = {split: len(paper_split_rows(task, split)[0]) for split in splits(task)}
    assert sizes["train"] == train
    assert sizes["test_unseen"] == test
    assert half is None or sizes["validation"] // 2 == half


LENGTHS = {
    "copy": ((2, 20), (21, 40)),
    "reverse": ((2, 20), (21, 40)),
    "addition": ((1, 8), (9, 16)),
    "polynomial": ((1, 8), (9, 16)),
    "sort": ((2, 8), (9, 16)),
    "summation": ((2, 8), (9, 16)),
    "parity": ((3, 8), (9, 16)),
    "lego": ((4, 8), (9, 16)),
    "scan": ((1, 25), (26, 48)),
    "pcfg": ((1, 8), (9, 35)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_the_lengths_are_the_originals(name):
    task = build_task(f"{name}:protocol=paper")
    for split, (low, high) in zip(("train", "test_unseen"), LENGTHS[name], strict=True):
        there = lengths_of(task, split)
        assert (there[0], there[-1]) == (low, high)
        assert set(paper_split_rows(task, split)[0].tolist()) == set(there)


def test_scan_is_the_corpus():
    task = build_task("scan")
    histogram = {
        **{1: 6, 2: 88, 3: 398, 4: 860, 5: 1184, 6: 1178, 7: 1104, 8: 1450, 9: 1256, 10: 1696, 11: 1072, 12: 1578},
        **{13: 432, 14: 848, 15: 688, 16: 304, 17: 512, 18: 784, 19: 448, 20: 464, 21: 64, 22: 576, 24: 336, 25: 448},
        **{26: 512, 27: 448, 28: 448, 30: 576, 32: 448, 33: 256, 36: 64, 40: 256, 48: 128},
    }
    assert {length: task.space(length) for length in task.lengths} == histogram
    facts = task.facts()
    assert (facts["pairs"], facts["up to 25"], facts["beyond 25"]) == (20_910, 17_774, 3_136)
    everything = [command for length in task.lengths for command in task.listed(length)]
    assert len(set(everything)) == 20_910


def _strings(source):
    """The argument strings of a source: runs of words that are no functions and no commas."""
    runs = [[]]
    for word in source.split():
        if word == "," or word.islower():
            runs.append([])
        else:
            runs[-1].append(word)
    return [" ".join(run) for run in runs if run]


def test_an_example_of_pcfg_repeats_no_argument_string():
    task = Pcfg(alphabet=10, strings=2)
    from lengthwise.task.sets import instance_factory

    make = instance_factory(task, "train", 12)
    for index in range(300):
        strings = _strings(make(index))
        assert len(set(strings)) == len(strings)


@pytest.mark.evidence
def test_the_pcfg_joint_is_the_published_one(figure):
    """300,000 draws: depth and tokens against the published histogram; the histogram itself is a sample of 14,581."""
    from lengthwise.task.random_source import RandomSource

    task, there = Pcfg(), published_depth_token_counts()
    assert sum(there.values()) == 14_581
    lengths = np.arange(1, 36)
    weights = np.array([task.weight(int(length)) for length in lengths])
    drawn = np.random.default_rng(0).choice(lengths, 100_000, p=weights / weights.sum())
    words, joint = RandomSource(7), {}
    for index, length in enumerate(drawn.tolist()):
        source = task.draw(words.seek(index), length)
        cell = depth(source), len(source.split())
        joint[cell] = joint.get(cell, 0) + 1
    total = sum(there.values())
    apart = sum(abs(joint.get(c, 0) / len(drawn) - there.get(c, 0) / total) for c in {*joint, *there}) / 2
    figure(
        f"pcfg: total variation of (depth, tokens) of {len(drawn):,} draws from the published histogram: {apart:.4f}"
    )
    assert apart < 0.05


def test_the_published_joint_is_the_shared_table():
    import csv
    from pathlib import Path

    table = Path(__file__).parents[3] / "shared" / "published" / "pcfg_depth_length_joint.csv"
    if not table.exists():
        pytest.skip("the original study's tables are not here; see tests/SKIPS.md")
    with table.open() as lines:
        shared = {
            (int(row["depth_functions"]), int(row["source_tokens"])): int(row["count"]) for row in csv.DictReader(lines)
        }
    assert published_depth_token_counts() == shared


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("count:protocol=paper", "not in the original study"),
        ("copy:protocol=paper:longest=10", "trains copy up to 20"),
        ("copy:protocol=paper:alphabet=5", "alphabet is fixed"),
        ("lego:protocol=paper:names=30", "a to z"),
    ],
)
def test_what_the_original_fixes_cannot_be_changed_under_its_name(spec, said):
    with pytest.raises(SpecError, match=said):
        build_task(spec)


def test_the_original_has_no_seen_length_test_set():
    with pytest.raises(SpecError, match="seen-length score is on 'validation'"):
        lengths_of(build_task("parity:protocol=paper"), "test_seen")
