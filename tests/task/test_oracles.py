"""Every task against an oracle that reads its text: answers, scratchpads, lengths, distributions, and planted faults.

`oracles.py` knows the definitions and nothing of the generators, so a generator and its own `check` cannot agree on a
mistake unseen.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from itertools import product
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from lengthwise.task import PUBLISHED, TASKS, build_task
from lengthwise.task.base import Example, Instance, Task, join_symbols
from lengthwise.task.random_source import RandomSource, enumerate_draws
from lengthwise.task.scratchpad import Stepwise
from lengthwise.task.sets import (
    all_instances,
    evaluation_instances,
    instance_factory,
    instances,
    lengths_of,
    paper_split_rows,
    splits,
    training_lengths_and_indices,
)
from tests.task.oracles import FUNCTIONS, ORACLES, ORDER, answer, plain, target, values

OTHERS = tuple(name for name in ORACLES if name not in PUBLISHED)
PAPER = tuple(f"{spec}:protocol=paper" for spec in PUBLISHED)
VARIANTS = (*PUBLISHED, *PAPER, *OTHERS)
STEPWISE = tuple(spec for spec in (*PUBLISHED, *PAPER) if ORACLES[spec.removesuffix(":protocol=paper")].steps)
# The same tasks with few symbols, so that longer instances can be enumerated too.
FEW = (
    "nback:letters=3",
    "mqmtar:letters=2:queries=1",
    *("copy:variant=replace:alphabet=5", "copy:variant=random:alphabet=3", "copy:variant=random2:alphabet=2"),
    *("reverse:variant=once:alphabet=2", "reverse:variant=twice:alphabet=3", "reverse:variant=back:alphabet=3"),
    *("sort:variant=single:alphabet=3", "sort:variant=multi:largest=12", "lego:names=4:longest=4"),
    *("recall:keys=3:values=2:longest=3", "dyck:kinds=1", "count:alphabet=2", "flipflop:ignore=0"),
)
BRUTE = 3_000
RANDOM = 4_000


# --- the comparison --------------------------------------------------------------------------------------------------

task_of = cache(build_task)


def variant_of(task: Task) -> str:
    return f"{task.name}:variant={task.variant}" if hasattr(task, "variant") else task.name


@cache
def symbols_of(task: Task) -> tuple[tuple[str, ...], frozenset[str]]:
    return task.symbols, frozenset(task.symbols)


@cache
def limit_of(task: Task, length: int) -> int:
    return task.answer_limit(length)


def damaged(task: Task, example: Example) -> tuple[str, ...]:
    """The target with one symbol of its answer dropped, changed or added; the content decides which, and where."""
    known, said = symbols_of(task)[0], list(example.answer)
    dice = crc32(join_symbols(example.prompt).encode())
    dice, how = divmod(dice, 3)
    dice, place = divmod(dice, len(said) + (how == 2))
    # From a number of its own: what is left of the dice is small, and most symbols would never be tried.
    other = known[crc32(b"%d" % dice) % len(known)]
    if how == 0:
        del said[place]
    elif how == 1:
        said[place] = other if other != said[place] else known[known.index(other) - 1]
    else:
        said.insert(place, other)
    assert tuple(said) != example.answer
    return (*example.steps, *said)


def agrees(task: Task, instance: Instance, length: int) -> Example:
    """Fail unless the shown instance is what the oracle makes of its prompt, and `check` tells right from wrong."""
    example = task.to_example(instance)
    prompt, said = join_symbols(example.prompt), join_symbols(example.target)
    expected, units = target(variant_of(task), task.protocol, prompt, getattr(task, "scratchpad", "none"))
    assert said == expected, f"the oracle answers {expected!r} to {prompt!r}, not {said!r}"
    assert units == length, f"the oracle counts {units} {task.unit}, not {length}, in {prompt!r}"
    assert symbols_of(task)[1].issuperset((*example.prompt, *example.target)), (
        f"unknown symbols in {prompt!r}, {said!r}"
    )
    assert len(example.target) + 1 <= limit_of(task, length), f"{said!r} is longer than answers of {length} may be"
    assert task.check(instance, example.target), f"check refuses the right answer {said!r} to {prompt!r}"
    wrong = damaged(task, example)
    assert not task.check(instance, wrong), f"check accepts {join_symbols(wrong)!r} to {prompt!r}, not only {said!r}"
    return example


# --- the oracle itself -----------------------------------------------------------------------------------------------

# The texts of the original study: prompt, target.
TEXTS = {
    "copy:variant=same": ("Copy: a a a [SEP]", "a a a"),
    "copy:variant=same2": ("Copy: a a [SEP]", "a a a a"),
    "copy:variant=replace": ("Replace a with b in a a [SEP]", "b b"),
    "copy:variant=random": ("Copy: a b c [SEP]", "a b c"),
    "copy:variant=random2": ("Copy: a b [SEP]", "a b [NEXT] a b"),
    "reverse:variant=once": ("Reverse: a b c [SEP]", "c b a"),
    "reverse:variant=twice": ("Reverse: a b [SEP]", "b a [NEXT] b a"),
    "reverse:variant=back": ("Reverse: a b [SEP]", "b a [NEXT] a b"),
    "addition": ("Compute 9 6 4 + 5 8 ?", "The answer is 1 0 2 2."),
    "polynomial": ("Evaluate at x = - 2 in 3 * x ** 0 + - 1 * x ** 1 ?", "The answer is 5."),
    "sort:variant=single": ("Sort the following list [ M, E, 5 ].", "The sorted list is [ 5, E, M ]."),
    "sort:variant=multi": ("Sort the following list [ 2 4 6 8, 5 3 ].", "The sorted list is [ 5 3, 2 4 6 8 ]."),
    "summation": ("Compute: 7 + 8 + 9 .[SEP]", "The answer is 4 ."),
    "parity": ("Is the number of 1's even in the sequence [ 1, 0, 1, 1 ] ?", "The answer is No."),
    "lego": ("If f = -1, b = - f, q = + b, z = - q. Then, what is the value of q?", "The answer is +1."),
    "scan": ("Solve: walk after turn right[SEP]", "Right Walk"),
    "pcfg": ("Solve: echo A1 B2[SEP]", "A1 B2 B2"),
}
# The steps that are known of the original's full scratchpads, at the prompts above.
STEPS = {
    "addition": (
        "Thinking step by step: in 4, 8 comp 4 + 8 + carry = 12 + 0 = 12 out 2 [ carry: 1 ] re 9 6 + 5 "
        "# in 6, 5 comp 6 + 5 + carry = 11 + 1 = 12 out 2 [ carry: 1 ] re 9 + 0 "
        "# in 9, 0 comp 9 + 0 + carry = 9 + 1 = 10 out 0 [ carry: 1 ] re + "
        "# in 0, 0 comp 0 + 0 + carry = 0 + 1 = 1 out 1 [ carry: 0 ] re + . Thus, The answer is 1 0 2 2."
    ),
    "polynomial": "# in - 1 * x ** 1 comp - 1 * - 2 ** 1 = - 1 * - 2 out 2 [ sum: 3 + 2 = 5 ] re .",
    "summation": "# in 8 comp 8 + sum = 8 + 7 = out 1 5 [ sum: 1 5 = 5 ] re 9 #",
    "parity": "# in 0 comp 0 ** par = 0 ** 1 out 1 [ par: 1 ] re [ 1, 1 ] #",
    "sort:variant=single": ": in M comp The minimum of the unsorted portion out 5 re [ E, M ] #",
    "lego": ": in f comp out -1 re b = - f, q = + b, z = - q # in b comp - f = - -1 out +1 re q = + b, z = - q #",
}


@pytest.mark.parametrize("variant", PUBLISHED)
def test_the_oracle_knows_the_texts_of_the_original(variant):
    prompt, said = TEXTS[variant]
    assert answer(variant, "paper", prompt) == said
    assert STEPS.get(variant, "") in (target(variant, "paper", prompt, "full")[0] if variant in STEPS else "")


@pytest.mark.parametrize("name", list(dict.fromkeys(variant.partition(":")[0] for variant in ORACLES)))
def test_the_worked_examples_of_docstrings_are_right(name):
    shown = re.findall("`([^`]+)` → `([^`]+)`", type(task_of(name)).__doc__)
    assert shown
    for prompt, said in shown:
        answers = set()
        for variant in ORACLES:
            if variant.partition(":")[0] == name:
                try:
                    answers.add(answer(variant, "ours", prompt))
                except AssertionError:  # the example is of another variant
                    continue
        assert said in answers, prompt


def test_every_published_variant_has_an_oracle_and_every_oracle_a_task():
    """A task of one's own is held to its `check`, written another way than `to_example`; an oracle is a third."""
    assert set(PUBLISHED) <= set(ORACLES)
    assert {variant.partition(":")[0] for variant in ORACLES} <= set(TASKS)


# --- all instances of small spaces -----------------------------------------------------------------------------------


# More than 3,000 instances of their shortest length; few symbols make up for them, and programs have a list below.
LARGE = (
    "copy:variant=replace",
    "sort:variant=multi",
    "sort:variant=multi:protocol=paper",
    "lego",
    "recall",
    "nback",
    "mqmtar",
)
ENUMERATED = [*(spec for spec in VARIANTS if spec not in LARGE and not spec.startswith("pcfg")), *FEW]


def small_lengths(task: Task) -> list[int]:
    """Its shortest lengths of at most 3,000 instances; eight, where all lengths have few."""
    found: list[int] = []
    for length in task.lengths:
        if task.space(length) > BRUTE or (len(found) == 8 and task.listed(length) is None):
            break
        found.append(length)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("spec", ENUMERATED)
def test_every_instance_of_a_small_space_agrees_with_the_oracle(spec):
    task = task_of(spec)
    # The original lists all repeated symbols, and all pairs: one length of those.
    listed = task.paper_lists if task.protocol == "paper" else None
    lengths = [2] if listed else small_lengths(task)
    assert lengths
    for length in lengths:
        if listed:
            found = list(map(instance_factory(task, "train", length), range(listed)))
        else:
            found = task.listed(length) or list(enumerate_draws(lambda words, at=length: task.draw(words, at)))
        assert len(set(found)) == task.space(length)
        for instance in dict.fromkeys(found):
            agrees(task, instance, length)


def programs(functions: int, strings: int) -> Iterator[tuple[str, int]]:
    """All programs of so many functions, and how many of the strings `A1 B1`, `A2 B2 C2`, ... they use up to."""
    if functions == 0:
        yield " ".join(f"{letter}{strings + 1}" for letter in "ABCDE"[: 2 + strings % 4]), strings + 1
        return
    for name in ("copy", "reverse", "shift", "echo", "swap_first_last", "repeat"):
        for source, used in programs(functions - 1, strings):
            yield f"{name} {source}", used
    for name, first in product(("append", "prepend", "remove_first", "remove_second"), range(functions)):
        for a, between in programs(first, strings):
            for b, used in programs(functions - 1 - first, between):
                yield f"{name} {a} , {b}", used


@pytest.mark.parametrize("spec", ["pcfg", "pcfg:protocol=paper"])
def test_every_program_of_up_to_three_functions_agrees_with_the_oracle(spec):
    task = task_of(spec)
    for functions in (1, 2, 3):
        for source, _ in programs(functions, 0):
            agrees(task, source, functions)


# Number of actions: commands; counted on the official corpus.
SCAN_COMMANDS = dict(
    zip(
        (*range(1, 23), *range(24, 29), 30, 32, 33, 36, 40, 48),
        (
            *(6, 88, 398, 860, 1184, 1178, 1104, 1450, 1256, 1696, 1072, 1578, 432, 848, 688, 304, 512, 784, 448),
            *(464, 64, 576, 336, 448, 512, 448, 448, 576, 448, 256, 64, 256, 128),
        ),
        strict=True,
    )
)


def test_scan_has_each_command_of_the_corpus_once():
    task = task_of("scan")
    found = {length: all_instances(task, length) for length in task.lengths}
    assert {length: len(commands) for length, commands in found.items()} == SCAN_COMMANDS
    assert len({command for commands in found.values() for command in commands}) == 20_910


# --- random instances ------------------------------------------------------------------------------------------------


def drawn(task: Task, count: int) -> Iterator[tuple[int, Instance]]:
    """About `count` instances with their lengths: as trained on, as evaluated, and beyond."""
    if task.protocol == "paper":
        for split in splits(task):
            yield from of_the_original(task, split, max(1, 3 * len(paper_split_rows(task, split)[0]) // count))
        return
    length_N, index_N = training_lengths_and_indices(task, 0, count // 2)
    yield from zip(length_N.tolist(), instances(task, "train", length_N.tolist(), index_N.tolist()), strict=True)
    evaluated = [(split, length) for split in splits(task) if split != "train" for length in lengths_of(task, split)]
    for split, length in evaluated:
        for instance in evaluation_instances(task, split, length, count // 20 // len(evaluated)):
            yield length, instance
    # Other splits draw in vain nine times out of ten, so most long instances are of no split.
    far = [length for split in ("test_unseen", "test_far") for length in lengths_of(task, split)]
    words = RandomSource(task.key("oracle"))
    for index in range(count // 2):
        yield far[index % len(far)], task.draw(words.seek(index), far[index % len(far)])


def of_the_original(task: Task, split: str, step: int) -> Iterator[tuple[int, Instance]]:
    """Every `step`-th row of a split, with its length."""
    length_N, index_N = paper_split_rows(task, split)
    if split != "train":  # there an index is the place among the rows of its length
        index_N = np.zeros_like(length_N)
        for length in np.unique(length_N):
            index_N[length_N == length] = np.arange((length_N == length).sum())
    lengths, indices = length_N[::step].tolist(), index_N[::step].tolist()
    yield from zip(lengths, instances(task, split, lengths, indices), strict=True)


@pytest.mark.parametrize("spec", VARIANTS)
def test_random_instances_agree_with_the_oracle(spec):
    task, tried = task_of(spec), 0
    count = RANDOM // 8 if task.name == "pcfg" else RANDOM  # slow to draw; the slow test below has them all
    for length, instance in drawn(task, count):
        agrees(task, instance, length)
        tried += 1
    assert tried >= count or spec == "scan:protocol=paper"  # whose validation and test sets have fewer


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["pcfg", "pcfg:protocol=paper"])
def test_thousands_of_programs_agree_with_the_oracle(spec):
    task = task_of(spec)
    for length, instance in drawn(task, RANDOM):
        agrees(task, instance, length)


def lengths_to(task: Task, longest: int) -> list[int]:
    return [length for length in range(1, longest + 1) if length in task.lengths]


@pytest.mark.parametrize("spec", VARIANTS)
def test_instances_of_any_length_and_key_agree_with_the_oracle(spec):
    task = task_of(spec)
    # Tables for a number of functions take a while.
    examples, longest = (10, 64) if task.name == "pcfg" else (30, 200)

    @settings(max_examples=examples, deadline=None)
    @given(st.sampled_from(lengths_to(task, longest)), st.integers(0, 2**128 - 1), st.integers(0, 6_000))
    def agree(length, key, index):
        agrees(task, task.draw(RandomSource(key).seek(index), length), length)

    agree()


@pytest.mark.parametrize("spec", STEPWISE)
def test_scratchpads_of_every_format_agree_with_the_oracle(spec):
    task = task_of(spec)
    assert isinstance(task, Stepwise)
    switches = product("01", repeat=5)
    codes = ["".join(map("".join, zip("icovr", on, strict=True))) for on in switches if task.keeps or on[3] == "0"]

    @settings(max_examples=30, deadline=None)
    @given(
        st.sampled_from((*task.formats(), *codes)),
        st.sampled_from(lengths_to(task, 20)),
        st.integers(0, 2**128 - 1),
        st.integers(0, 6_000),
    )
    def agree(form, length, key, index):
        agrees(task_of(f"{spec}:scratchpad={form}"), task.draw(RandomSource(key).seek(index), length), length)

    agree()
    for form in task.formats():
        told, words = task_of(f"{spec}:scratchpad={form}"), RandomSource(0)
        for index in range(100):
            length = max(task.lengths[0], 1 + index % 10)
            agrees(told, task.draw(words.seek(index), length), length)


@pytest.mark.parametrize("name", ["addition", "multiplication"])
def test_numbers_in_any_format_say_what_the_plain_text_says(name):
    bare, backwards = task_of(name), st.sampled_from(["none", "answer", "all"])

    @settings(max_examples=100, deadline=None)
    @given(
        backwards,
        st.booleans(),
        st.sampled_from([0, 40]),
        st.sampled_from([0.0, 0.4]),
        st.integers(1, 30),
        st.integers(0, 2**128 - 1),
    )
    def agree(backwards, padded, hints, spaces, length, key):
        task = task_of(f"{name}:reversed={backwards}:padded={str(padded).lower()}:hints={hints}:spaces={spaces}")
        instance = bare.draw(RandomSource(key).seek(0), length)
        example, usual = task.to_example(instance), agrees(bare, instance, length)
        shown = plain(join_symbols(example.prompt), join_symbols(example.target), backwards, padded, hints)
        assert shown == (join_symbols(usual.prompt), join_symbols(usual.target))
        assert task.check(instance, example.target) and not task.check(instance, damaged(task, example))
        assert symbols_of(task)[1].issuperset((*example.prompt, *example.target))
        assert len(example.target) + 1 <= limit_of(task, length)

    agree()


def edits(said: tuple[str, ...], known: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """All that one dropped, changed or added symbol makes of an answer."""
    for place in range(len(said) + 1):
        head, tail = said[:place], said[place:]
        yield from ((*head, symbol, *tail) for symbol in known)
        if tail:
            yield (*head, *tail[1:])
            yield from ((*head, symbol, *tail[1:]) for symbol in known if symbol != tail[0])


@pytest.mark.parametrize("spec", [*VARIANTS, *(f"{spec}:scratchpad=full" for spec in STEPWISE)])
def test_check_refuses_every_answer_one_symbol_away_from_the_right_one(spec):
    task, words = task_of(spec), RandomSource(3)
    known = symbols_of(task)[0]
    for index in range(3):
        instance = task.draw(words.seek(index), task.lengths[2])
        example = task.to_example(instance)
        # All symbols, or those at the ends of a long list, and those of the example.
        near = dict.fromkeys((*known[:40], *known[-40:], *example.prompt, *example.target))
        for wrong in edits(example.answer, tuple(near)):
            assert not task.check(instance, (*example.steps, *wrong)), (
                f"{join_symbols(example.prompt)}: {join_symbols(wrong)}"
            )


# --- distributions ---------------------------------------------------------------------------------------------------


def follows(seen: Iterable[Hashable], shares: dict | Iterable[Hashable]) -> None:
    """Fail where values do not come in the given shares (equal ones, if only values are given), or others come."""
    counts, shares = Counter(seen), shares if isinstance(shares, dict) else dict.fromkeys(shares, 1.0)
    assert set(counts) <= set(shares), f"unexpected: {set(counts) - set(shares)}"
    total, whole = counts.total(), sum(shares.values())
    expected = [share / whole * total for share in shares.values()]
    assert min(expected) >= 5, "too few draws for a chi-square test"
    assert chisquare([counts[value] for value in shares], expected).pvalue > 1e-4, counts


def read(spec: str, length: int, count: int = 4_000) -> list:
    """What the prompts of fresh draws state, as the oracle reads them."""
    task, words = task_of(spec), RandomSource(2024)
    shown = (task.to_example(task.draw(words.seek(index), length)).prompt for index in range(count))
    return [values(variant_of(task), task.protocol, join_symbols(prompt)) for prompt in shown]


# What T5's vocabulary is replaced by: its ASCII characters, then numbered words.
LETTERS = [*ORDER, *"!$%&()*+,-./:;=>", *(f"w{number}" for number in range(78, 6_052))]


def test_copied_and_reversed_symbols_are_uniform():
    for spec in (*(s for s in (*PUBLISHED, *PAPER) if "random" in s), *(s for s in PUBLISHED if "reverse" in s)):
        follows((symbol for row in read(spec, 5) for symbol in row.split()), LETTERS[:100])
    for spec in ("copy:variant=same", "copy:variant=same2"):
        follows((row[0] for row in read(spec, 3, 8_000)), LETTERS[:500])
    pairs = read("copy:variant=replace", 1)
    follows((old for _, old in pairs), LETTERS[:78])
    follows((new for new, _ in pairs), LETTERS[:78])


def pool(spec: str, length: int, count: int | None = None) -> list:
    """What the first prompts of a length state in the original's pool, which is its train and validation sets."""
    task = task_of(spec)
    indices = [
        index_N[length_N == length]
        for length_N, index_N in (paper_split_rows(task, "train"), paper_split_rows(task, "validation"))
    ]
    whole = np.sort(np.concatenate(indices))
    assert (whole == np.arange(len(whole))).all()
    shown = (task.to_example(instance_factory(task, "train", length)(index)).prompt for index in whole[:count].tolist())
    return [values(variant_of(task), "paper", join_symbols(prompt)) for prompt in shown]


@pytest.mark.slow
def test_the_original_lists_each_repeated_symbol_and_each_pair_once():
    for spec in ("copy:variant=same:protocol=paper", "copy:variant=same2:protocol=paper"):
        assert sorted(row[0] for row in pool(spec, 2)) == sorted(LETTERS)
    pairs = pool("copy:variant=replace:protocol=paper", 2)
    assert len(set(pairs)) == len(pairs) == 78 * 77
    assert {new for new, _ in pairs} == set(LETTERS[:78])


def test_addition_has_operands_of_all_sizes():
    sums = [[str(n) for n in pair] for pair in read("addition", 5, 10_000)]
    follows((min(map(len, pair)) for pair in sums), range(1, 6))
    follows((len(a) > len(b) for a, b in sums if len(a) != len(b)), [False, True])
    for place in (0, 1):
        numbers = [pair[place] for pair in sums]
        follows((n for n in numbers if len(n) == 1), map(str, range(10)))
        follows((n[0] for n in numbers if len(n) > 1), map(str, range(1, 10)))
        follows((digit for n in numbers for digit in n[1:]), map(str, range(10)))


def test_spaces_come_behind_their_share_of_digits():
    task, words = task_of("addition:spaces=0.3"), RandomSource(4)
    drawn = (task.draw(words.seek(index), 8) for index in range(500))
    shown = "".join(join_symbols(task.to_example(one).prompt) for one in drawn).replace(" ", "")
    follows((gap == "_" for gap in re.findall(r"\d(_?)", shown)), {True: 0.3, False: 0.7})


@pytest.mark.slow
def test_the_original_adds_equally_often_by_each_pair_of_sizes():
    sizes = Counter(tuple(len(str(n)) for n in pair) for pair in pool("addition:protocol=paper", 3))
    assert sizes == dict.fromkeys([(3, 1), (3, 2), (3, 3), (1, 3), (2, 3)], 1_796)
    length_N, _ = paper_split_rows(task_of("addition:protocol=paper"), "test_unseen")
    assert Counter(length_N.tolist()) == {length: 52 * (2 * length - 1) for length in range(9, 17)}


@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_values_of_arithmetic_tasks_are_uniform(protocol):
    polynomials = read(f"polynomial:protocol={protocol}", 3)
    follows((x for x, _ in polynomials), range(-2, 3))
    terms = [term.split(" * x ** ") for _, row in polynomials for term in row]
    signs = {str(n): n for n in range(4)} | {f"- {n}": -n for n in range(1, 4)}
    follows(((signs[coefficient], int(degree)) for coefficient, degree in terms), [*product(range(-3, 4), range(4))])
    for place in range(3):  # terms do not depend on each other, nor on x
        follows(
            ((x, row[place][-1], row[place - 1][-1]) for x, row in polynomials), product(range(-2, 3), "0123", "0123")
        )
    summands = read(f"summation:protocol={protocol}", 4)
    follows((n for row in summands for n in row), range(1, 10))
    follows(((row[0], row[1]) for row in summands), product(range(1, 10), repeat=2))
    follows(read(f"parity:protocol={protocol}", 6), map("".join, product("01", repeat=6)))


@pytest.mark.parametrize("protocol", ["ours", "paper"])
def test_sorted_items_are_uniform(protocol):
    singles = read(f"sort:variant=single:protocol={protocol}", 4)
    follows((item for row in singles for item in row), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN")
    multis = [int(item.replace(" ", "")) for row in read(f"sort:variant=multi:protocol={protocol}", 4) for item in row]
    edges = [10, 100, *range(1_000, 10_000, 500), 10_000]
    shares = dict(zip(edges, np.diff(edges).tolist(), strict=False))
    follows((max(edge for edge in edges if edge <= item) for item in multis), shares)
    assert 10 <= min(multis) < 20 and 9_980 <= max(multis) <= 9_999


@pytest.mark.parametrize("protocol", ["ours", "paper"])
@pytest.mark.parametrize("length", [6, 7])
def test_lego_asks_for_the_second_half_equally_often(protocol, length):
    chains = read(f"lego:protocol={protocol}", length)
    queries = [[name for name, _, _ in clauses].index(asked) for clauses, asked in chains]
    follows(queries, range(-(-length // 2), length))
    names = "abcdefghijklmnopqrstuvwxyz" + ("ABCDEF" if protocol == "ours" else "")
    each = chains if protocol == "ours" else chains[:: length // 2]  # there the rows of a chain come together
    follows((clauses[0][0] for clauses, _ in each), names)
    follows((clauses[-1][0] for clauses, _ in each), names)
    for place in range(length):
        follows((clauses[place][1] for clauses, _ in each), "+-")


def test_the_original_asks_each_chain_for_every_variable_of_its_second_half():
    chains = pool("lego:protocol=paper", 6, 3_000)
    for start in range(0, len(chains), 3):
        (clauses, first), *others = chains[start : start + 3]
        assert all(other == clauses for other, _ in others)
        assert [first, *(asked for _, asked in others)] == [name for name, _, _ in clauses][3:]


def test_counted_letters_and_the_asked_one_are_uniform():
    drawn_rows = read("count", 3)
    follows(("".join(letters) for letters, _ in drawn_rows), map("".join, product("abcd", repeat=3)))
    follows(((letters[0], asked) for letters, asked in drawn_rows), product("abcd", repeat=2))


def test_factors_are_uniform():
    factors = read("multiplication", 2, 8_000)
    follows((a for a, _ in factors), range(10, 100))
    follows((len(str(b)) for _, b in factors), (1, 2))
    follows((b for _, b in factors if b < 10), range(1, 10))
    follows((b for _, b in factors if b > 9), range(10, 100))


def test_modular_expressions_are_uniform():
    expressions = read("modular", 3)
    follows((number for row in expressions for number in row.split()[::2]), "01234")
    follows((tuple(row.split()[1::2]) for row in expressions), product("+-*", repeat=2))


def test_brackets_open_and_close_equally_often():
    task, words, choices, kinds = task_of("dyck"), RandomSource(7), [], []
    for index in range(1_000):
        depth = 0
        for bracket in join_symbols(task.to_example(task.draw(words.seek(index), 15)).prompt).split()[:-1]:
            opens = bracket in "(["
            kinds += [bracket] * opens
            if depth > 1:  # the first bracket alone is open: it stays so
                choices.append(opens)
            depth += 1 if opens else -1
            assert depth
    follows(choices, [False, True])
    follows(kinds, "([")


def test_flipflop_ignores_its_share_and_writes_as_often_as_it_reads():
    between = [one for row in read("flipflop", 12, 1_000) for one in row[1:]]
    follows((what for what, _ in between), {"i": 0.8, "w": 0.1, "r": 0.1})
    follows(
        ((what, bit) for what, bit in between if what != "r"), {("i", b): 8 for b in "01"} | {("w", b): 1 for b in "01"}
    )
    follows((row[0] for row in read("flipflop", 2, 1_000)), [("w", "0"), ("w", "1")])


def test_recall_asks_for_distinct_keys_in_any_order():
    drawn_rows = read("recall", 5)
    follows((value for pairs, _ in drawn_rows for _, value in pairs), [f"v{n}" for n in range(64)])
    follows((key for pairs, _ in drawn_rows for key, _ in pairs), [f"k{n}" for n in range(256)])
    places = [tuple([key for key, _ in pairs].index(asked) for asked in keys) for pairs, keys in drawn_rows]
    follows(places, [pair for pair in product(range(5), repeat=2) if len(set(pair)) == 2])


# Functions in the random test set of PCFG SET: examples.
PCFG_FUNCTIONS = dict(enumerate((154, 1243, 1920, 1793, 1336, 994, 631, 480, 326, 243, 193, 147), 1))


def test_lengths_are_trained_on_equally_often_unless_the_task_has_a_histogram():
    for spec in VARIANTS:
        task = task_of(spec)
        trained, _ = training_lengths_and_indices(task, 0, 20_000)
        shares = dict.fromkeys(lengths_of(task, "train"), 1.0)
        if task.name == "scan":
            shares = {length: count for length, count in SCAN_COMMANDS.items() if length <= 25}
        elif task.name == "pcfg":
            shares = {length: count for length, count in PCFG_FUNCTIONS.items() if length <= 8}
        elif spec == "addition:protocol=paper":
            shares = {length: 2 * length - 1 for length in shares}
        if task.name == "scan" and task.protocol == "paper":
            continue  # each command once, but for a tenth: no draws
        follows(trained.tolist(), shares)


def test_the_original_sets_have_their_published_sizes():
    # Of validation the original uses half; those halves are what is known.
    train = dict.fromkeys(PUBLISHED, 100_000) | {"scan": 17_774 - 1_777, "pcfg": 72_909}
    test = dict.fromkeys(PUBLISHED, 10_000) | {"addition": 9_984, "scan": 3_136, "pcfg": 11_333}
    validation = {spec: 7_494 for spec in PUBLISHED if spec.startswith(("copy", "reverse"))}
    validation |= {"copy:variant=replace": 7_057, "addition": 7_472, "scan": 888, "pcfg": 4_050}
    for spec in PUBLISHED:
        size = {
            split: len(paper_split_rows(task_of(f"{spec}:protocol=paper"), split)[0])
            for split in ("train", "validation", "test_unseen")
        }
        assert size["train"] == train[spec]
        assert size["validation"] // 2 == validation.get(spec, size["validation"] // 2)
        # A chain of lego is asked for a whole number of times, so a length has up to 6 rows fewer than 1,250.
        assert size["test_unseen"] == test[spec] or (spec == "lego" and 10_000 - 8 * 6 < size["test_unseen"] < 10_000)


def corpus(count: int) -> list[str]:
    """Programs with as many functions as the published ones have."""
    task, words = task_of("pcfg"), RandomSource(5)
    total = sum(PCFG_FUNCTIONS.values())
    each = [(length, round(count * share / total)) for length, share in PCFG_FUNCTIONS.items()]
    return [
        join_symbols(task.to_example(task.draw(words.seek(index), length)).prompt).removesuffix(" [SEP]")
        for length, many in each
        for index in range(many)
    ]


def test_programs_resemble_the_published_corpus():
    sources = corpus(2_000)
    used = Counter(word for source in sources for word in source.split() if word in FUNCTIONS)
    unary, binary = FUNCTIONS[:6], FUNCTIONS[6:]
    for kind in (unary, binary):
        follows((name for name in kind for _ in range(used[name])), kind)
    assert sum(used[name] for name in unary) / used.total() == pytest.approx(0.60, abs=0.04)
    strings = Counter(
        string.count(" ") + 1 for source in sources for string in re.findall(r"[A-Z]\d+(?: [A-Z]\d+)*", source)
    )
    for size, share in {2: 0.16, 3: 0.30, 4: 0.27, 5: 0.27}.items():
        assert strings[size] / strings.total() == pytest.approx(share, abs=0.03)
    follows((word[0] for source in sources for word in re.findall(r"[A-Z]\d+", source)), "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    words = [len(source.split()) for source in sources]
    answers = [len(answer("pcfg", "ours", f"{source} [SEP]").split()) for source in sources]
    # Published: 3 to 71 words, 18 on average; answers of 9.3 symbols.
    assert min(words) >= 3 and np.mean(words) == pytest.approx(18, abs=1.5)
    assert np.mean(answers) == pytest.approx(9.3, abs=1)


def no_string_comes_twice(step: int) -> None:
    task, seen = task_of("pcfg:protocol=paper"), set()
    for split in splits(task):
        for _, source in of_the_original(task, split, step):
            strings = re.findall(r"[A-Z]\d+(?: [A-Z]\d+)*", source)
            assert seen.isdisjoint(strings), source
            seen.update(strings)


def test_a_sample_of_the_original_corpus_repeats_no_string():
    no_string_comes_twice(100)


@pytest.mark.evidence
def test_the_whole_original_corpus_repeats_no_string():
    no_string_comes_twice(1)


# --- planted faults --------------------------------------------------------------------------------------------------


def shown_wrong(change: Callable[[Instance, Example], Iterable[str]]) -> Callable:
    """A `to_example` whose answer is changed."""

    def plant(right):
        def to_example(task, instance):
            example = right(task, instance)
            return example._replace(answer=tuple(change(instance, example)))

        return to_example

    return plant


def zeros_counted(instance, example):
    return ("even" if example.prompt.count("0") % 2 == 0 else "odd",)


def carry_dropped(instance, example):
    a, b = join_symbols(example.prompt).removesuffix(" =").split(" + ")
    longer = len(example.answer) > max(len(a.split()), len(b.split()))
    return example.answer[longer:]


def not_swapped(instance, example):
    said = join_symbols(example.prompt).replace(" after ", " and ")
    return answer("scan", "ours", said).split()


def first_echoed(instance, example):
    echo = example.prompt[0] == "echo"
    return (*example.answer[:-1], example.answer[0]) if echo else example.answer


def by_spelling(instance, example):
    items = join_symbols(example.answer).split(" , ") if "," in example.answer else list(example.answer)
    return (" , " if "," in example.answer else " ").join(sorted(items)).split()


def sign_flipped(instance, example):
    return ("-1" if example.answer == ("+1",) else "+1",)


def not_turned_back(instance, example):
    once = example.answer[: len(example.answer) // 2]
    return (*once, "[NEXT]", *once)


def signs_of_clauses_flipped(right):
    def to_example(task, instance):
        example, other = right(task, instance), {"+": "-", "-": "+"}
        return example._replace(prompt=tuple(other.get(symbol, symbol) for symbol in example.prompt))

    return to_example


def steps_wrong(**change: Callable) -> Callable:
    """`steps` with a component changed in each."""

    def plant(right):
        return lambda task, instance: [
            step._replace(**{name: make(step) for name, make in change.items()}) for step in right(task, instance)
        ]

    return plant


MUTANTS = {
    "sort by spelling: capitals before small letters": ("sort:variant=single", "to_example", shown_wrong(by_spelling)),
    "sort by spelling: 1 0 0 0 before 2 0": ("sort:variant=multi", "to_example", shown_wrong(by_spelling)),
    "sort from the greatest": (
        "sort:variant=single",
        "to_example",
        shown_wrong(lambda instance, example: example.answer[::-1]),
    ),
    "parity of zeros": ("parity", "to_example", shown_wrong(zeros_counted)),
    "lego answers the other sign": ("lego", "to_example", shown_wrong(sign_flipped)),
    "lego writes the other sign in its clauses": ("lego", "to_example", signs_of_clauses_flipped),
    "echo of the first symbol": ("pcfg", "to_example", shown_wrong(first_echoed)),
    "after means and": ("scan", "to_example", shown_wrong(not_swapped)),
    "the last carry is dropped": ("addition", "to_example", shown_wrong(carry_dropped)),
    "back is not turned back": ("reverse:variant=back", "to_example", shown_wrong(not_turned_back)),
    "brackets close from the outside": (
        "dyck",
        "to_example",
        shown_wrong(lambda instance, example: example.answer[::-1]),
    ),
    "a polynomial loses its sign before it is reduced": (
        "polynomial",
        "to_example",
        shown_wrong(lambda instance, example: (str(abs(sum(c * instance[0] ** d for c, d in instance[1])) % 10),)),
    ),
    "a step forgets the carry": (
        "addition:scratchpad=full",
        "steps",
        steps_wrong(variables=lambda step: ("carry:", "0")),
    ),
    "a step shows the minimum in place of the front": (
        "sort:variant=multi:scratchpad=full",
        "steps",
        steps_wrong(input=lambda step: step.output),
    ),
    "a step of lego computes nothing": ("lego:scratchpad=minimal", "steps", steps_wrong(computation=lambda step: ())),
    "instances of another length": (
        "flipflop",
        "draw",
        lambda right: lambda task, words, length: right(task, words, length + 1),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_oracle_finds_a_planted_fault(mutant, monkeypatch):
    spec, method, plant = MUTANTS[mutant]
    task = task_of(spec)
    lengths = [length for length in task.lengths[:12] if length > 1]

    def compare():
        words = RandomSource(11)
        for index in range(600):
            length = lengths[index % len(lengths)]
            agrees(task, task.draw(words.seek(index), length), length)

    compare()
    monkeypatch.setattr(type(task), method, plant(getattr(type(task), method)))
    with pytest.raises(AssertionError, match="the oracle"):
        compare()


@pytest.mark.parametrize("spec", VARIANTS)
def test_the_oracle_finds_a_wrong_length_and_a_check_that_accepts_anything(spec, monkeypatch):
    task = task_of(spec)
    length, longer = task.lengths[4], task.lengths[5]
    with pytest.raises(AssertionError, match="the oracle counts"):
        agrees(task, task.draw(RandomSource(1).seek(0), longer), length)
    monkeypatch.setattr(type(task), "check", lambda task, instance, said: True)
    with pytest.raises(AssertionError, match="check accepts"):
        agrees(task, task.draw(RandomSource(1).seek(0), length), length)
    monkeypatch.setattr(type(task), "check", lambda task, instance, said: False)
    with pytest.raises(AssertionError, match="check refuses"):
        agrees(task, task.draw(RandomSource(1).seek(0), length), length)
