"""All that was found out about a model, and the doctor's verdict: the model, or the code around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lengthwise.display import Display, Part
from lengthwise.foreign.doctor import FirstDifference
from lengthwise.foreign.encodings import LayerEncoding, ModelEncodings
from lengthwise.foreign.requested import Mismatch
from lengthwise.foreign.toggles import NOT_OFFERED, RIGHT, WRONG, Toggle

if TYPE_CHECKING:
    from lengthwise.foreign.changes import ChangeComparison
    from lengthwise.foreign.few_shot import FewShot
    from lengthwise.foreign.reach import Reach


@dataclass(frozen=True, repr=False)
class Measurement(Display):
    """What positions do in a model, whether its code is right, and how far it works."""

    encodings: ModelEncodings
    mismatches: Sequence[Mismatch] = ()
    """What the configuration asks for and is not in force."""
    toggles: Sequence[Toggle] = ()
    reach: Reach | None = None
    changes: ChangeComparison | None = None
    few_shot: FewShot | None = None
    page: Path | None = None
    """The page that was written."""

    @property
    def layers(self) -> Sequence[LayerEncoding]:
        """The encoding of each layer."""
        return self.encodings.layers

    @property
    def faults(self) -> list[str]:
        """A sentence for each thing that is wrong."""
        found = [one.sentence() for one in self.mismatches]
        wrong = [one for one in self.toggles if one.answer == WRONG]
        return [*found, *(one.sentence(bool(found) and one.name == "save and reload") for one in wrong)]

    def sections(self) -> dict[str, list[Part]]:
        """What is shown, under headings."""
        found = {"What it is": [*self.encodings.display_parts()], "Is it right?": [*self._verdict()]}
        if self.reach is not None:
            found["How far does it work?"] = [*self.reach.display_parts()]
        if self.changes is not None:
            found["What changes at test time do"] = [*self.changes.display_parts()]
        if self.few_shot is not None:
            found["Our task, with solved examples in the prompt"] = [*self.few_shot.display_parts()]
        return found

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """What it is, whether it is right, how far it works."""
        for number, (heading, parts) in enumerate(self.sections().items()):
            yield from ([Part("")] if number else [])
            yield Part(heading, "bold")
            yield from parts
        if self.page is not None:
            yield Part(f"written: {self.page}", "dim", wrap=False)

    def _verdict(self) -> Iterator[Part]:
        if self.toggles:
            yield Part([_toggle_line(one) for one in self.toggles])
        for fault in self.faults:
            yield Part(f"Wrong: {fault}", "red")
        if not self.faults:
            yield Part(
                "Encodings, frequencies, slopes and windows are as configured, and no toggle changes anything.", "green"
            )

    def plain(self) -> dict[str, object]:
        """Everything that was found."""
        return {
            **self.encodings.plain(),
            "mismatches": [one.plain() for one in self.mismatches],
            "toggles": [one.plain() for one in self.toggles],
            "faults": self.faults,
            **{
                name: None if part is None else part.plain()
                for name, part in (("reach", self.reach), ("changes", self.changes), ("few_shot", self.few_shot))
            },
        }


def _toggle_line(one: Toggle) -> dict[str, str]:
    change = "" if one.change is None else f"{one.change:.1e}"
    return {"toggle": one.name, "answer": one.answer, "largest change": change, "case": one.case}


@dataclass(frozen=True, repr=False)
class Diagnosis(Display):
    """The verdict of `doctor`: what is wrong in the code around a model, or that nothing is."""

    measurement: Measurement
    compared: bool = False
    """Whether it was compared with a reference."""
    parting: FirstDifference | None = None
    """Where it first differs from the reference; None if nowhere."""
    differing: Sequence[str] = ()
    """The settings in which its configuration differs from the reference's."""
    healthy: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "healthy", not self.measurement.faults and self.parting is None)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The verdict first, then what was looked at."""
        tried = [one for one in self.measurement.toggles if one.answer != NOT_OFFERED]
        if self.healthy and 2 * len(tried) < len(self.measurement.toggles):
            many = f"{len(tried)} of {len(self.measurement.toggles)}"
            yield Part(f"No fault was found, but only {many} checks could be made; see what is not offered.", "yellow")
        elif self.healthy:
            yield Part("No fault was found in the code around this model. If it fails, it is the model.", "green")
        elif self.differing and not self.measurement.faults:
            yield Part(
                "These are two different models: each does what its own configuration asks for, and the configurations "
                f"differ. {'; '.join(self.differing[:5])}.",
                "red",
            )
        else:
            yield Part("The code around this model is wrong.", "red")
        if self.compared:
            equal = "It computes the same as the reference, in every layer and at every position tried."
            yield Part(equal if self.parting is None else self.parting.sentence())
        for fault in self.measurement.faults:
            yield Part(f"Wrong: {fault}", "red")
        right = [one.name for one in self.measurement.toggles if one.answer == RIGHT]
        yield Part(f"Right: {', '.join(right)}.")
        yield Part(f"Windows were looked for in {self.measurement.encodings.looked} tokens.", "dim")
        for one in self.measurement.toggles:
            if one.answer == NOT_OFFERED:
                yield Part(f"Not offered: {one.name} ({one.case}).", "dim")

    def plain(self) -> dict[str, object]:
        """The verdict and what was looked at."""
        parting = None if self.parting is None else self.parting.plain()
        told = {"healthy": self.healthy, "parting": parting, "differing": list(self.differing)}
        return {**told, **self.measurement.plain()}
