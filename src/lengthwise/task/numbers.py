"""How numbers are written: digit by digit, in the formats that the literature shows to matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lengthwise.spec import SpecError, digest
from lengthwise.task.base import ENDLESS, Instance, Task

DIGITS = tuple("0123456789")
SPACE = "_"


def signed_digits(value: int) -> tuple[str, ...]:
    """Return a number digit by digit, a negative one as `-` and digits: −12 is `- 1 2`."""
    return (*("-",) * (value < 0), *str(abs(value)))


def parse_digits(digits: str) -> int:
    """Return the value of decimal digits, also of more than `int` accepts at once."""
    value = 0
    for start in range(0, len(digits), 4000):
        part = digits[start : start + 4000]
        value = value * 10 ** len(part) + int(part)
    return value


@dataclass(frozen=True, kw_only=True)
class Numbers(Task):
    """A task on two numbers, with options for how they are written.

    - `reversed=answer` writes the answer from its last digit, `reversed=all` the operands too (Lee et al. 2023);
    - `padded=true` fills numbers with zeros to one width;
    - `hints=N` writes an index h0, ..., h(N−1) before each digit, the same for digits of equal significance, counted
      from an offset that depends on the instance (Zhou et al. 2023, arXiv:2310.16028);
    - `spaces=p` writes `_` after an operand's digit with probability p (Shen et al. 2023, arXiv:2311.14737).

    96 + 58 with all four: `h5 6 h6 9 _ + h5 8 _ h6 5 =` and `h5 4 h6 5 h7 1`.
    """

    reversed: Literal["none", "answer", "all"] = "none"
    padded: bool = False
    hints: int = 0
    spaces: float = 0.0

    shown: ClassVar[tuple[str, ...]] = (*Task.shown, "reversed", "padded", "hints", "spaces")

    def __post_init__(self) -> None:
        needed = self.max_answer_digits(self.longest)
        if self.hints < 0 or 0 < self.hints < needed:
            raise SpecError(f"numbers of {needed} digits need as many hints; write hints={needed}, not {self.hints}")
        super().__post_init__()
        if not 0 <= self.spaces < 1:
            raise SpecError(f"spaces is a probability from 0 to below 1, not {self.spaces}")

    @property
    def lengths(self) -> Sequence[int]:
        """All lengths, or with hints those for which there are enough hints."""
        if not self.hints:
            return ENDLESS
        return [length for length in range(1, self.hints) if self.max_answer_digits(length) <= self.hints]

    def max_answer_digits(self, length: int) -> int:
        """Return the largest number of digits of an answer of `length`."""
        raise NotImplementedError

    def padded_digit_count(self, operands: tuple[str, ...]) -> int:
        """Return the number of digits that operands are padded to."""
        return max(map(len, operands))

    def operands(self, instance: Instance) -> tuple[str, ...]:
        """Return the numbers of the prompt, as digits."""
        raise NotImplementedError

    @property
    def format_symbols(self) -> tuple[str, ...]:
        """The symbols that the formats add to the digits."""
        return (*(f"h{index}" for index in range(self.hints)), *((SPACE,) if self.spaces else ()))

    def format_operands_and_answer(
        self, instance: Instance, answer: str
    ) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        """Return operands and answer in the format; `answer` is given with the most significant digit first."""
        operands = self.operands(instance)
        if not (self.padded or self.hints or self.spaces) and self.reversed == "none":
            return [tuple(operand) for operand in operands], tuple(answer)
        longest = self.padded_digit_count(operands)
        start = self._first_hint(instance, longest)
        gaps = self._gaps(instance, sum(map(len, operands)) + longest * len(operands)) if self.spaces else None
        shown = []
        for operand in operands:
            digits = operand.zfill(longest) if self.padded else operand
            shown.append(self._digits(digits, start, self.reversed == "all", gaps))
        max_answer_digits = self.max_answer_digits(longest) if self.padded else 0
        return shown, self._digits(answer.zfill(max_answer_digits), start, self.reversed != "none", None)

    def parse_answer(self, instance: Instance, answer: Sequence[str]) -> str | None:
        """Parse an answer in the format into digits, most significant first; None if it is not in the format."""
        symbols, longest = list(answer), self.padded_digit_count(self.operands(instance))
        if self.hints:
            hints, symbols = symbols[0::2], symbols[1::2]
            if len(hints) != len(symbols):
                return None
            start = self._first_hint(instance, longest)
            order = range(len(symbols)) if self.reversed != "none" else range(len(symbols) - 1, -1, -1)
            if hints != [f"h{start + significance}" for significance in order]:
                return None
        if not symbols or any(symbol not in DIGITS for symbol in symbols):
            return None
        digits = "".join(symbols if self.reversed == "none" else symbols[::-1])
        if self.padded:
            return (digits.lstrip("0") or "0") if len(digits) == self.max_answer_digits(longest) else None
        return digits

    def _digits(self, digits: str, start: int, backwards: bool, gaps: list[bool] | None) -> tuple[str, ...]:
        symbols: list[str] = []
        for place, digit in enumerate(digits[::-1] if backwards else digits):
            if self.hints:
                significance = place if backwards else len(digits) - 1 - place
                symbols.append(f"h{start + significance}")
            symbols.append(digit)
            if gaps is not None and gaps.pop():
                symbols.append(SPACE)
        return tuple(symbols)

    def _first_hint(self, instance: Instance, longest: int) -> int:
        if not self.hints:
            return 0
        free = self.hints - self.max_answer_digits(longest)
        return digest("hint", instance) % (free + 1)

    def _gaps(self, instance: Instance, size: int) -> list[bool]:
        """Return after which digits spaces go, from a hash of the instance, so that its rendering is deterministic."""
        raw = b"".join(digest("spaces", instance, part, bits=512).to_bytes(64, "big") for part in range(-(-size // 32)))
        return [int.from_bytes(raw[2 * at : 2 * at + 2], "big") < self.spaces * 65536 for at in range(size)]

    def places(self, prompt: Sequence[str], answer: Sequence[str]) -> list[int]:
        """Return the groups: digits of equal significance and their hints share one, operators are group 1."""
        if getattr(self, "scratchpad", "none") != "none":
            raise SpecError("digits are coupled in prompt and answer, not in steps; leave out the scratchpad")
        if self.reversed == "none" and not self.padded:
            raise SpecError(
                "a digit's significance must be known before the next digit is; "
                f"write {self.name}:reversed=answer, or padded=true, for coupled positions"
            )
        groups, run = [0] * len(prompt), list[int]()
        longest = 0
        for at, symbol in enumerate([*prompt, ""]):
            if symbol in DIGITS:
                run.append(at)
            elif symbol != SPACE and not (self.hints and symbol[:1] == "h"):
                order = run if self.reversed == "all" else run[::-1]
                for significance, place in enumerate(order):
                    groups[place] = significance + 2
                longest, run = max(longest, len(run)), []
                if symbol in {"+", "*", "=", "?"}:
                    groups[at] = 1
        if self.hints:
            for at, symbol in enumerate(prompt[:-1]):
                if symbol[:1] == "h":
                    groups[at] = groups[at + 1]
        return groups + self._answer_places(answer, self.max_answer_digits(longest))

    def max_answer_digit_run(self, prompt: Sequence[str]) -> int:
        """Return the digits of the longest number in the prompt plus those that the result may have beyond it."""
        if self.hints or self.spaces:
            raise SpecError("abacus positions count the digits in a row; leave out hints and spaces, which part them")
        numbers = "".join(symbol if symbol in DIGITS else " " for symbol in prompt).split()
        return max(map(len, numbers), default=0) + self.max_answer_groups_beyond_prompt

    def _answer_places(self, answer: Sequence[str], max_answer_digits: int) -> list[int]:
        groups, written = [], 0
        for symbol in answer:
            if symbol in DIGITS or (self.hints and symbol[:1] == "h"):
                # A hint comes before its digit and shares the digit's group.
                significance = written if self.reversed != "none" else max_answer_digits - 1 - written
                groups.append(max(significance, -2) + 2)
                written += symbol in DIGITS
            else:
                groups.append(0)
        return groups
