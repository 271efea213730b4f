"""Translate a command into actions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar

from lengthwise.task.base import Example, Published, Task
from lengthwise.task.copy import SEP
from lengthwise.task.random_source import RandomSource

ACTIONS = {"walk": "Walk", "look": "Look", "run": "Run", "jump": "Jump"}
TURNS = {"left": "Left", "right": "Right"}
TIMES = {"twice": 2, "thrice": 3}


@dataclass(frozen=True, kw_only=True)
class Scan(Task):
    """`walk after turn right [SEP]` → `Right Walk`

    `length` is the number of actions. The task has all 20,910 commands of the grammar of Lake and Baroni; no command
    has 23, 29, 31, ... actions. Lengths are trained on in proportion to their number of commands.
    """

    longest: int = 25

    paper: ClassVar[str] = "Lake and Baroni 2018, arXiv:1711.00350"
    unit: ClassVar[str] = "actions"

    @property
    def symbols(self) -> tuple[str, ...]:
        words = (*ACTIONS, "turn", *TURNS, "opposite", "around", *TIMES, "and", "after")
        frame = {"ours": (SEP,), "paper": ("Solve:", f"##{SEP}")}[self.protocol]
        return (*words, *ACTIONS.values(), *TURNS.values(), *frame)

    @property
    def lengths(self) -> Sequence[int]:
        return tuple(sorted(_by_length()))

    def listed(self, length: int) -> Sequence[str]:
        return _by_length()[length]

    def draw(self, rng: RandomSource, length: int) -> str:
        """Return row `index` of the list; splits under `ours` use keyed permutations of the list instead."""
        return self.listed(length)[rng.index % self.space(length)]

    def to_example(self, instance: str) -> Example:
        actions = tuple(_actions(instance.split()))
        if self.protocol == "paper":
            return Example(("Solve:", *instance.split(), f"##{SEP}"), actions)
        return Example((*instance.split(), SEP), actions)

    def check(self, instance: str, output: Sequence[str]) -> bool:
        """Check by expanding the command with string operations."""
        first, joint, second = (
            (*instance.partition(" after "),) if " after " in instance else (*instance.partition(" and "),)
        )
        parts = [second, first] if joint == " after " else [first, second]
        written = ""
        for part in filter(None, parts):
            words, times = part.split(" "), 1
            if words[-1] in TIMES:
                times = {"twice": 2, "thrice": 3}[words.pop()]
            verb = "" if words[0] == "turn" else words[0].capitalize() + " "
            turn = words[-1].capitalize() + " " if words[-1] in TURNS else ""
            if "around" in words:
                phrase = (turn + verb) * 4
            elif "opposite" in words:
                phrase = turn + turn + verb
            else:
                phrase = turn + verb
            written += phrase * times
        return list(output) == written.split()

    def longest_answer_instance(self, length: int) -> str:
        return self.listed(length)[0]

    def space(self, length: int) -> int:
        return len(self.listed(length))

    def weight(self, length: int) -> float:
        return float(self.space(length))

    def chance(self, length: int) -> float:
        answers = Counter(tuple(_actions(command.split())) for command in self.listed(length))
        return max(answers.values()) / self.space(length)

    def facts(self) -> dict[str, object]:
        histogram = {length: self.space(length) for length in self.lengths}
        short = sum(count for length, count in histogram.items() if length <= self.published.train[1])
        return {
            "pairs": sum(histogram.values()),
            "up to 25": short,
            "beyond 25": sum(histogram.values()) - short,
            "histogram": histogram,
        }

    def paper_pool_by_length(self, split: str) -> tuple[dict[int, int], int]:
        """Return the corpus, split at 25 actions; a tenth of the short part is validation."""
        low, high = self.published.test if split == "test_unseen" else self.published.train
        counts = {length: self.space(length) for length in self.lengths if low <= length <= high}
        total = sum(counts.values())
        return counts, total - total // 10

    @property
    def published(self) -> Published:
        return Published(
            "scan mdlen_tr25_ts48",
            (1, 25),
            (26, 48),
            ("the original's cut of validation is unseeded; here it is keyed",),
        )


def _phrases() -> Iterator[str]:
    verbs = [*ACTIONS]
    for verb in (*ACTIONS, "turn"):
        verbs += [" ".join(filter(None, (verb, how, side))) for how, side in product(("", "opposite", "around"), TURNS)]
    for verb, times in product(verbs, ("", *TIMES)):
        yield f"{verb} {times}".strip()


@lru_cache(maxsize=1)
def _by_length() -> dict[int, tuple[str, ...]]:
    """Return every command of the grammar, by the number of its actions."""
    phrases = [(phrase, len(_actions(phrase.split()))) for phrase in _phrases()]
    found: dict[int, list[str]] = {}
    for phrase, actions in phrases:
        found.setdefault(actions, []).append(phrase)
    for (a, m), joint, (b, n) in product(phrases, ("and", "after"), phrases):
        found.setdefault(m + n, []).append(f"{a} {joint} {b}")
    return {length: tuple(commands) for length, commands in sorted(found.items())}


def _actions(words: list[str]) -> list[str]:
    """Return the actions of a command, by recursion over the grammar."""
    for joint in ("and", "after"):
        if joint in words:
            at = words.index(joint)
            a, b = _actions(words[:at]), _actions(words[at + 1 :])
            return a + b if joint == "and" else b + a
    if words[-1] in TIMES:
        return _actions(words[:-1]) * TIMES[words[-1]]
    own = [ACTIONS[words[0]]] if words[0] in ACTIONS else []
    if len(words) == 1:
        return own
    turn = TURNS[words[-1]]
    return {"opposite": [turn, turn, *own], "around": [turn, *own] * 4}.get(words[1], [turn, *own])
