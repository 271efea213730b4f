"""Evaluate a polynomial modulo 10."""

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from lengthwise.task.base import Example, Published
from lengthwise.task.numbers import DIGITS, signed_digits
from lengthwise.task.random_source import RandomSource
from lengthwise.task.scratchpad import MARKS, Step, Stepwise, join_with_separator

Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Polynomial(Stepwise):
    """`-2 : 3 x^0 + -1 x^1 =` → `5`, which is 3 − 1 · (−2) modulo 10

    `length` is the number of terms. Coefficients are −3, ..., 3, degrees 0, ..., 3 in any order, x is −2, ..., 2.
    """

    paper: ClassVar[str] = "Kazemnejad et al. 2023, arXiv:2305.19466"
    unit: ClassVar[str] = "terms"

    @property
    def symbols(self) -> tuple[str, ...]:
        if self.protocol == "paper":
            frame = ("Evaluate", "at", "x", "=", "-", "in", "*", "**", "+", "?", "The", "answer", "is", "##.")
        else:
            frame = (":", "+", "=", *(str(c) for c in range(-3, 0)), *(f"x^{degree}" for degree in range(4)))
        steps = () if self.scratchpad_format is None else (*MARKS, "x", "*", "**", "-", "+", "=", "sum:")
        return tuple(dict.fromkeys((*DIGITS, *frame, *steps)))

    def draw(self, rng: RandomSource, length: int) -> tuple[int, Terms]:
        x, *rest = rng.below(5), *rng.integers(0, 28, length)
        return x - 2, tuple((one // 4 - 3, one % 4) for one in rest)

    def to_example(self, instance: tuple[int, Terms]) -> Example:
        x, terms = instance
        answer = str(sum(coefficient * x**degree for coefficient, degree in terms) % 10)
        if self.protocol == "paper":
            body = join_with_separator("+", [_term(*term) for term in terms])
            return self.make_example(
                instance, ("Evaluate", "at", "x", "=", *signed_digits(x), "in", *body, "?"), (answer,)
            )
        body = join_with_separator("+", [(str(coefficient), f"x^{degree}") for coefficient, degree in terms])
        return self.make_example(instance, (str(x), ":", *body, "="), (answer,))

    def is_correct(self, instance: tuple[int, Terms], answer: tuple[str, ...]) -> bool:
        """Check by Horner's rule on the collected coefficients."""
        x, terms = instance
        collected = [0, 0, 0, 0]
        for coefficient, degree in terms:
            collected[degree] += coefficient
        value = 0
        for coefficient in reversed(collected):
            value = value * x + coefficient
        return answer == (str(value % 10),)

    def steps(self, instance: tuple[int, Terms]) -> list[Step]:
        x, terms = instance
        steps, total = [], 0
        for place, (coefficient, degree) in enumerate(terms):
            power, value = x**degree, coefficient * x**degree
            before, total = total, (total + value) % 10
            steps.append(
                Step(
                    _term(coefficient, degree),
                    (
                        *(*signed_digits(coefficient), "*", *signed_digits(x), "**", str(degree)),
                        *("=", *signed_digits(coefficient), "*", *signed_digits(power)),
                    ),
                    signed_digits(value),
                    ("sum:", str(before), "+", *signed_digits(value), "=", str(total)),
                    join_with_separator("+", [_term(*term) for term in terms[place + 1 :]]),
                )
            )
        return steps

    def longest_answer_instance(self, length: int) -> tuple[int, Terms]:
        return -2, ((-3, 2),) * length  # −12: a sign and two digits

    def space(self, length: int) -> int:
        return 5 * 28**length

    def chance(self, length: int) -> float:
        """Return the exact probability of the likeliest answer: terms are convolved modulo 10, averaged over x."""
        answers = dict.fromkeys(range(10), 0.0)
        for x in range(-2, 3):
            term = Counter(coefficient * x**degree % 10 for coefficient, degree in product(range(-3, 4), range(4)))
            for value, share in sum_residue_distribution(term, length).items():
                answers[value] += share / 5
        return max(answers.values())

    @property
    def published(self) -> Published:
        return Published(
            "s2s_poly n_terms_tr8_ts16",
            (1, 8),
            (9, 16),
            ("off: with a scratchpad the original generates at most 1,500 tokens; full ones of 15 terms need more",),
        )


def _term(coefficient: int, degree: int) -> tuple[str, ...]:
    return (*signed_digits(coefficient), "*", "x", "**", str(degree))


def sum_residue_distribution(value_counts: Counter[int], terms: int) -> dict[int, float]:
    """Return the distribution modulo 10 of a sum of `terms` independent values, by repeated squaring."""
    total = sum(value_counts.values())
    base = [value_counts[residue] / total for residue in range(10)]
    result = [1.0] + [0.0] * 9
    while terms:
        if terms & 1:
            result = _convolved(result, base)
        base, terms = _convolved(base, base), terms >> 1
    return dict(enumerate(result))


def _convolved(a: list[float], b: list[float]) -> list[float]:
    return [sum(a[i] * b[(k - i) % 10] for i in range(10)) for k in range(10)]
