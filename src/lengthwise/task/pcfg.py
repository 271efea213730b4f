"""Apply functions to strings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import accumulate
from math import pi, sqrt
from typing import ClassVar

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Example, Published, Task
from lengthwise.task.copy import SEP
from lengthwise.task.pcfg_corpus import BEYOND, CELLS, FUNCTIONS, MEANS, STRINGS, TAIL
from lengthwise.task.random_source import RandomSource

UNARY = ("copy", "reverse", "shift", "echo", "swap_first_last", "repeat")
BINARY = ("append", "prepend", "remove_first", "remove_second")
LONGEST_ANSWER = 736
"""The longest published target; without a bound, nested `repeat`s would give answers of exponential length."""
LONGEST_SOURCE = 71
"""The longest published source; beyond 35 functions, which none has, the bound is twice the number of functions."""
CAP = 3.0
"""Weights are clipped at three times the mean, so that on average about one free draw in three is kept."""
_GRID = 12
_POOL, _TEST = 81_010, 11_333


@dataclass(frozen=True, kw_only=True)
class Pcfg(Task):
    """`echo append A1 B2 , C3 D4 [SEP]` → `A1 B2 C3 D4 D4`

    `length` is the number of functions. Trees are drawn as in PCFG SET; in the default task, rejection sampling makes
    depth and size follow its corpus, as do the lengths trained on. An example repeats no argument string; under
    `paper`, whose corpus is finite, the whole corpus repeats none. Answers have at most 736 symbols.
    """

    alphabet: int = 520
    strings: int = 5

    paper: ClassVar[str] = "Hupkes et al. 2020, arXiv:1908.08351"
    unit: ClassVar[str] = "functions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 10 <= self.alphabet <= 520 or not 2 <= self.strings <= 5:
            raise SpecError("pcfg has an alphabet of 10 to 520 symbols, and strings of up to 2 to 5 symbols")
        if self.protocol == "paper" and not self._default:
            raise SpecError("the original's strings are fixed; leave out alphabet and strings")

    @property
    def _default(self) -> bool:
        return (self.alphabet, self.strings) == (520, 5)

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """A1, ..., A20, B1, ..., Z20."""
        return tuple(f"{letter}{number}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for number in range(1, 21))[
            : self.alphabet
        ]

    @property
    def symbols(self) -> tuple[str, ...]:
        frame = {"ours": (SEP,), "paper": ("Solve:", f"##{SEP}")}[self.protocol]
        return (*self.letters, *UNARY, *BINARY, ",", *frame)

    @property
    def lengths(self) -> range:
        return range(1, 65)

    def weight(self, length: int) -> float:
        return FUNCTIONS.get(length, BEYOND * (1 - TAIL) * TAIL ** (length - 13))

    # --- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, rng: RandomSource, length: int) -> str:
        sizes = _sizes(self.strings)
        weights = _weights(length) if self._default and length in MEANS else None
        tables = _tables(length)
        while True:
            source, depth, tokens, answer = _tree(rng, tables, length, sizes)
            if answer > LONGEST_ANSWER or tokens > max(LONGEST_SOURCE, 2 * length):
                continue
            if weights is None or rng.below(2**32) < weights.get((depth, tokens), 0.0) * 2**32:
                break
        row = None
        if self.protocol == "paper":
            row = sum(count for other, count in _paper_counts().items() if other < length) + rng.index
        return " ".join(self._filled(rng, source, row))

    def _filled(self, rng: RandomSource, source: list[str | int], row: int | None) -> list[str]:
        """Return the tree with symbols in place of the sizes of its argument strings."""
        filled: list[str] = []
        seen: dict[tuple[int, ...], int] = {}
        used = [0] * 6
        for part in source:
            if isinstance(part, str):
                filled.append(part)
                continue
            if row is None:
                chosen = tuple(rng.integers(0, self.alphabet, part))
                while chosen in seen:
                    chosen = tuple(rng.integers(0, self.alphabet, part))
                seen[chosen] = 1
            else:
                # There are enough strings of two symbols for two per row; further ones get a third symbol.
                size = part if part > 2 or used[2] < 2 else 3
                chosen = _unique(size, row + (_POOL + _TEST) * used[size])
                used[size] += 1
            filled += [self.letters[symbol] for symbol in chosen]
        return filled

    # --- meaning -----------------------------------------------------------------------------------------------------

    def to_example(self, instance: str) -> Example:
        source = instance.split(" ")
        answer = tuple(_evaluated(source, 0)[0])
        if self.protocol == "paper":
            return Example(("Solve:", *source, f"##{SEP}"), answer)
        return Example((*source, SEP), answer)

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check with a stack machine that reads the source from its end."""
        stack: list[list[str]] = []
        string: list[str] = []
        for word in reversed(instance.split(" ")):
            if word not in UNARY and word not in BINARY and word != ",":
                string.insert(0, word)
                continue
            if string:
                stack.append(string)
                string = []
            if word in UNARY:
                x = stack.pop()
                first, *rest = x
                stack.append(
                    {
                        "copy": x,
                        "reverse": list(reversed(x)),
                        "shift": [*rest, first],
                        "echo": [*x, x[-1]],
                        "swap_first_last": [x[-1], *x[1:-1], first] if rest else x,
                        "repeat": [*x, *x],
                    }[word]
                )
            elif word in BINARY:
                a, b = stack.pop(), stack.pop()
                stack.append({"append": [*a, *b], "prepend": [*b, *a], "remove_first": b, "remove_second": a}[word])
        return len(stack) == 1 and stack[0] == list(output)

    def subgroup(self, instance: str) -> str:
        return f"depth {depth(instance)}"

    def longest_answer_instance(self, length: int) -> str:
        """Return nested `repeat`s, as many as the longest answer allows, inside `copy`s."""
        string, doublings = list(self.letters[: self.strings]), 0
        while doublings < length and len(string) << (doublings + 1) <= LONGEST_ANSWER:
            doublings += 1
        return " ".join(["copy"] * (length - doublings) + ["repeat"] * doublings + string)

    def answer_limit(self, length: int) -> int:
        """Return the limit for answers of up to 5 · 2^length symbols, but at most the longest published length."""
        return self.limited(
            min(max(len(self.to_example(self.longest_answer_instance(length)).answer), 5 * 2**length), LONGEST_ANSWER)
        )

    def space(self, length: int) -> int:
        """Return an upper bound: the number of all trees, also of those that repeat strings or exceed a limit."""
        trees = [sum(self.alphabet**size for size in range(2, self.strings + 1))]
        for n in range(1, length + 1):
            pairs = sum(trees[k] * trees[n - 1 - k] for k in range(n))
            trees.append(len(UNARY) * trees[n - 1] + len(BINARY) * pairs)
        return trees[length]

    def chance(self, length: int) -> float:
        """Return an upper bound: the probability of guessing an answer of two symbols, the shortest there is."""
        return STRINGS[2] / 100 * self.alphabet**-2.0 if self._default else float(self.alphabet) ** -2

    def facts(self) -> dict[str, object]:
        """Return the total variation distance of (depth, tokens) between 4,000 draws and the published corpus."""
        if not self._default:
            return {}
        lengths = range(1, 36)
        bounds = list(accumulate(self.weight(length) for length in lengths))
        words, drawn, free = RandomSource(self.key("joint")), 4_000, Pcfg()
        joint: dict[tuple[int, int], int] = {}
        for index in range(drawn):
            length = lengths[words.seek(index).weighted(bounds)]
            source = free.draw(words, length)
            cell = depth(source), source.count(" ") + 1
            joint[cell] = joint.get(cell, 0) + 1
        there = published_depth_token_counts()
        total = sum(there.values())
        apart = sum(abs(joint.get(cell, 0) / drawn - there.get(cell, 0) / total) for cell in {*joint, *there}) / 2
        # The expected distance of a sample of this size if the two distributions were equal.
        noise = sum(sqrt(count / total / drawn) for count in there.values()) / sqrt(2 * pi)
        return {
            "draws": drawn,
            "distance from the published joint (total variation)": round(apart, 3),
            "of which noise of the draws": round(noise, 3),
        }

    def paper_pool_by_length(self, split: str) -> tuple[dict[int, int], int]:
        """Return the corpus of 92,343 rows, split at 8 functions; a tenth of the short part is validation."""
        low, high = self.published.test if split == "test_unseen" else self.published.train
        return {n: count for n, count in _paper_counts().items() if low <= n <= high}, _POOL - _POOL // 10

    @property
    def published(self) -> Published:
        return Published(
            "pcfg md_productivity",
            (1, 8),
            (9, 35),
            (
                "the corpus is drawn anew: its joint of depth and size follows the published histogram (audit says how "
                "closely), its numbers of functions the published counts, beyond 12 a geometric tail",
                "with tokenizer=DIR the 520 symbols of arguments are several pieces each; the original adds them to "
                "T5's vocabulary, one token each",
                "off: the original cuts sequences at 512 tokens and generates at most 256, prompt included, so that "
                "its longest targets can never be right",
            ),
        )


def depth(source: str) -> int:
    """Return the nesting depth of the functions."""
    waiting, deepest = [0], 0  # a stack of the depths at which arguments are still expected
    string = False
    for word in source.split(" "):
        if word in UNARY or word in BINARY:
            here = waiting.pop() + 1
            deepest = max(deepest, here)
            waiting += [here] * (1 + (word in BINARY))
            string = False
        elif word == ",":
            string = False
        elif not string:
            waiting.pop()
            string = True
    return deepest


def _evaluated(source: list[str], at: int) -> tuple[list[str], int]:
    """Return the value of the expression that begins at `at`, and the index after it."""
    word = source[at]
    if word in UNARY:
        x, end = _evaluated(source, at + 1)
        if word == "reverse":
            x = x[::-1]
        elif word == "shift":
            x = x[1:] + x[:1]
        elif word == "echo":
            x = x + x[-1:]
        elif word == "swap_first_last" and len(x) > 1:
            x = x[-1:] + x[1:-1] + x[:1]
        elif word == "repeat":
            x = x + x
        return x, end
    if word in BINARY:
        a, comma = _evaluated(source, at + 1)
        b, end = _evaluated(source, comma + 1)
        return {"append": a + b, "prepend": b + a, "remove_first": b, "remove_second": a}[word], end
    end = at
    while end < len(source) and source[end] != ",":
        end += 1
    return source[at:end], end


# --- free draws of PCFG SET, conditional on the number of functions --------------------------------------------------


@lru_cache(maxsize=8)
def _sizes(longest: int) -> list[int]:
    """Return the running sums of the weights of argument strings of 2, ..., `longest` symbols."""
    return list(accumulate(list(STRINGS.values())[: longest - 1]))


@lru_cache(maxsize=64)
def _tables(length: int) -> tuple[list[float], list[tuple[list[float], list[list[float]]]]]:
    """Return, for each pair of the generator's two probabilities, P(`length` functions) and the ways to reach it.

    PCFG SET draws p(unary) and p(function) uniformly for each example; here they are midpoints of a grid.
    """
    likely, settings = [], []
    for cell in range(_GRID * _GRID):
        unary, function = (cell // _GRID + 0.5) / _GRID, (cell % _GRID + 0.5) / _GRID
        argument, tree, splits = [1 - function], [0.0], [[]]
        for n in range(1, length + 1):
            pairs = [(1 - unary) * argument[k] * argument[n - 1 - k] for k in range(n)]
            # Running sums: first a unary function, then a binary one by the size of its first argument.
            ways = list(accumulate([unary * argument[n - 1], *pairs]))
            tree.append(ways[-1])
            argument.append(function * ways[-1])
            splits.append(ways)
        likely.append(tree[length])
        settings.append((argument, splits))
    return list(accumulate(likely)), settings


def _tree(
    rng: RandomSource,
    tables: tuple[list[float], list[tuple[list[float], list[list[float]]]]],
    length: int,
    sizes: list[int],
) -> tuple[list[str | int], int, int, int]:
    """Draw a tree of `length` functions; return its source (sizes for strings), depth, tokens and answer length."""
    splits = tables[1][rng.weighted(tables[0])][1]
    source: list[str | int] = []
    weighted, below, add = rng.weighted, rng.below, source.append

    def grow(n: int) -> tuple[int, int, int]:
        if n == 0:
            size = 2 + weighted(sizes)
            add(size)
            return 0, size, size
        way = weighted(splits[n])
        if way == 0:
            name = UNARY[below(6)]
            add(name)
            deep, tokens, answer = grow(n - 1)
            answer = answer + 1 if name == "echo" else 2 * answer if name == "repeat" else answer
            return deep + 1, tokens + 1, answer
        name = BINARY[below(4)]
        add(name)
        a = grow(way - 1)
        add(",")
        b = grow(n - way)
        answer = b[2] if name == "remove_first" else a[2] if name == "remove_second" else a[2] + b[2]
        return max(a[0], b[0]) + 1, a[1] + b[1] + 2, answer

    deep, tokens, answer = grow(length)
    return source, deep, tokens, answer


@lru_cache(maxsize=64)
def _weights(length: int) -> dict[tuple[int, int], float]:
    """Return the probability that a free draw is kept, by depth and tokens."""
    kept = {}
    for deep, row in CELLS.items():
        for cell in row.split():
            tokens, _, weight = cell.split(":")
            kept[deep, int(tokens)] = min(float(weight) / MEANS[length] / CAP, 1.0)
    return kept


def published_depth_token_counts() -> dict[tuple[int, int], int]:
    """Return the number of examples of the published corpus by (depth, tokens of the source)."""
    return {
        (deep, int(cell.split(":")[0])): int(cell.split(":")[1]) for deep, row in CELLS.items() for cell in row.split()
    }


# --- the finite corpus of `paper` ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _paper_counts() -> dict[int, int]:
    """Return rows by number of functions: 81,010 up to 8, 11,333 from 9 to 35, in the published proportions."""
    task = Pcfg()
    counts = {}
    for lengths, rows in ((range(1, 9), _POOL), (range(9, 36), _TEST)):
        share = np.cumsum([task.weight(n) for n in lengths])
        ends = np.round(share / share[-1] * rows).astype(int).tolist()
        counts |= dict(zip(lengths, np.diff([0, *ends]).tolist(), strict=True))
    return counts


def _unique(size: int, number: int) -> tuple[int, ...]:
    """Return string `number` of all 520^size, by a pseudorandom bijection (a Feistel network)."""
    whole = 520 ** (size - 1)
    assert number < 520 * whole
    left, right = divmod(number, 520)
    for turn in range(3):
        right = (right + _scrambled(turn, size, left)) % 520
        left = (left + _scrambled(turn + 3, size, right)) % whole
    symbols = [right]
    for _ in range(size - 1):
        left, symbol = divmod(left, 520)
        symbols.append(symbol)
    return tuple(symbols)


def _scrambled(turn: int, size: int, value: int) -> int:
    return int.from_bytes(blake2b(b"%d %d %d" % (turn, size, value), digest_size=8).digest(), "big")
