"""Scratchpads: steps the model writes before its answer, made of five components that can each be switched off.

See Kazemnejad et al. 2023, section 6 and appendix D; the markers are those of their experiments. A component that is
switched off is left out together with its marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple

from lengthwise.spec import SpecError, did_you_mean
from lengthwise.task.base import Example, Instance, Task

MARKERS = {"input": "in", "computation": "comp", "output": "out", "variables": "[", "remaining": "re"}
NEXT, END = "#", "Thus,"
MARKS = ("Thinking", "step", "by", "step:", *MARKERS.values(), "]", NEXT, ".", END)
"""All symbols that a scratchpad adds, besides those of its components' content."""


class Step(NamedTuple):
    """What each component of one step says; `variables` is None for a task that keeps none."""

    input: tuple[str, ...]
    computation: tuple[str, ...]
    output: tuple[str, ...]
    variables: tuple[str, ...] | None
    remaining: tuple[str, ...]


@dataclass(frozen=True)
class Scratchpad:
    """Which components are written: any of 32 combinations. `str` gives its code, e.g. `i1c1o1v0r1`."""

    input: bool = True
    computation: bool = True
    output: bool = True
    variables: bool = True
    remaining: bool = True

    def __str__(self) -> str:
        return "".join(f"{name[0]}{int(getattr(self, name))}" for name in MARKERS)

    @property
    def enabled_components(self) -> tuple[str, ...]:
        """The components that are written, in their order."""
        return tuple(name for name in MARKERS if getattr(self, name))

    def write(self, steps: Sequence[Step], with_opening_words: bool) -> tuple[str, ...]:
        """Return the steps as symbols, through `Thus,`; `with_opening_words` adds the original's first words."""
        said: list[str] = ["Thinking", "step", "by", "step:"] if with_opening_words else []
        for number, step in enumerate(steps):
            if number:
                said.append(NEXT)
            for name in self.enabled_components:
                said += [MARKERS[name], *getattr(step, name)]
                if name == "variables":
                    said.append("]")
        return (*said, *((".", END) if with_opening_words else (END,)))

    def read(self, output: Sequence[str]) -> list[dict[str, tuple[str, ...]]]:
        """Parse a model's output into the components of each step, correct or not; missing components are absent."""
        until = list(output[: output.index(END)] if END in output else output)
        if until[:4] == ["Thinking", "step", "by", "step:"]:
            until = until[4:]
            if until and until[-1] == ".":
                until.pop()
        parts: list[list[str]] = [[]]
        for symbol in until:
            if symbol == NEXT:
                parts.append([])
            else:
                parts[-1].append(symbol)
        return [self._components(part) for part in parts]

    def _components(self, part: list[str]) -> dict[str, tuple[str, ...]]:
        found, rest = {}, part
        for place, name in enumerate(self.enabled_components):
            if not rest or rest[0] != MARKERS[name]:
                break
            later = [MARKERS[other] for other in self.enabled_components[place + 1 : place + 2]]
            stop = next((at for at in range(1, len(rest)) if rest[at] in later), len(rest)) if later else len(rest)
            inside = rest[1:stop]
            if name == "variables":
                if not inside or inside[-1] != "]":
                    break
                inside = inside[:-1]
            found[name], rest = tuple(inside), rest[stop:]
        return found


NAMED = {
    "full": Scratchpad(),
    "minimal": Scratchpad(input=False, variables=False, remaining=False),
    **{f"full-{name}": Scratchpad(**{name: False}) for name in MARKERS},
}
"""The published formats beside `none`: full, minimal, and full without one component."""


class ScratchpadMistake(NamedTuple):
    """The first thing that is wrong in a target: `step` counts from 1 and is None for the answer."""

    step: int | None
    component: str
    expected: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stepwise(Task):
    """A task that can think step by step: `scratchpad` is `none`, a published format's name, or a code.

    A code switches the five components input, computation, output, variables, remaining: `i1c1o1v0r1`. A task that
    keeps no variables lacks that component: its `full` is the other four.
    """

    scratchpad: str = "none"

    shown: ClassVar[tuple[str, ...]] = (*Task.shown, "scratchpad")
    keeps: ClassVar[bool] = True
    """Whether the task's steps have variables."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.scratchpad_format  # raise for an unknown format now, not at the first example

    @classmethod
    def formats(cls) -> tuple[str, ...]:
        """Return the names of the published formats: eight, or seven for a task without variables."""
        return ("none", *(name for name in NAMED if cls.keeps or name != "full-variables"))

    @cached_property
    def scratchpad_format(self) -> Scratchpad | None:
        """The components of the scratchpad, or None."""
        name = self.scratchpad
        if name == "none":
            return None
        if name in self.formats():
            scratchpad_format = NAMED[name]
            values = {field.name: getattr(scratchpad_format, field.name) for field in fields(scratchpad_format)}
            return scratchpad_format if self.keeps else Scratchpad(**{**values, "variables": False})
        if re.fullmatch(r"i[01]c[01]o[01]v[01]r[01]", name):
            if name[7] == "1" and not self.keeps:
                raise SpecError(f"the steps of {self.name} have no variables; write v0 in {name!r}")
            return Scratchpad(*(digit == "1" for digit in name[1::2]))
        if name == "full-variables":
            raise SpecError(f"the steps of {self.name} have no variables; 'full' is already without them")
        raise SpecError(
            f"unknown scratchpad {name!r}, neither a format nor a code such as i1c1o1v0r1."
            f"{did_you_mean(name, self.formats())}"
        )

    @property
    def judged(self) -> bool:
        return self.scratchpad_format is not None and self.hf_tokenizer is None

    def steps(self, instance: Instance) -> list[Step]:
        """Return the steps of the computation, each with all components."""
        raise NotImplementedError

    @property
    def words_around_answer(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words before and after an answer: under `paper` it is a sentence, under `ours` there are none."""
        return (("The", "answer", "is"), ("##.",)) if self.protocol == "paper" else ((), ())

    def is_correct(self, instance: Instance, answer: tuple[str, ...]) -> bool:
        """Whether an answer, without its sentence, is correct; computed by another method than in `to_example`."""
        raise NotImplementedError

    def make_example(self, instance: Instance, prompt: Sequence[str], answer: Sequence[str]) -> Example:
        """Return the example with the answer's sentence and, if there is a scratchpad, its steps."""
        before, behind = self.words_around_answer
        steps = (
            ()
            if self.scratchpad_format is None
            else self.scratchpad_format.write(self.steps(instance), self.protocol == "paper")
        )
        return Example(tuple(prompt), (*before, *answer, *behind), steps)

    def max_answer_digit_run(self, prompt: Sequence[str]) -> int:
        """Return an upper bound: steps and answers never have more digits in a row than the prompt has symbols."""
        return len(prompt) + self.max_answer_groups_beyond_prompt

    def extract(self, output: Sequence[str]) -> tuple[str, ...] | None:
        """Return the answer in a model's output: all after the first `Thus,` (if any), without the sentence."""
        before, behind = self.words_around_answer
        rest = tuple(output[list(output).index(END) + 1 :] if END in output else output)
        if len(rest) < len(before) + len(behind) or rest[: len(before)] != before:
            return None
        if behind and rest[-len(behind) :] != behind:
            return None
        return rest[len(before) : len(rest) - len(behind)]

    def check(self, instance: Instance, output: Sequence[str]) -> bool:
        answer = self.extract(output)
        return answer is not None and self.is_correct(instance, answer)

    def fault(self, instance: Instance, output: Sequence[str]) -> ScratchpadMistake | None:
        """Return the first wrong component of the first wrong step, else a wrong answer, else None."""
        if self.scratchpad_format is not None:
            gold, told = (
                self.scratchpad_format.read(self.to_example(instance).steps),
                self.scratchpad_format.read(output),
            )
            for number, (right, here) in enumerate(zip(gold, told, strict=False), 1):
                for name in self.scratchpad_format.enabled_components:
                    if here.get(name) != right[name]:
                        return ScratchpadMistake(number, name, right[name], here.get(name, ()))
            if len(told) != len(gold):
                return ScratchpadMistake(
                    min(len(told), len(gold)) + 1, "missing" if len(told) < len(gold) else "surplus", (), ()
                )
        if not self.check(instance, output):
            return ScratchpadMistake(None, "answer", self.to_example(instance).answer, self.extract(output) or ())
        return None


def join_with_separator(separator: str, parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Join the parts with a separator: `join_with_separator("+", [("1",), ("2",)])` is `("1", "+", "2")`."""
    joined: list[str] = []
    for number, part in enumerate(parts):
        if number:
            joined.append(separator)
        joined += part
    return tuple(joined)
