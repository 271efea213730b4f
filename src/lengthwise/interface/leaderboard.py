"""The leaderboard: make an entry, check one, and rank all."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.consent import require_consent
from lengthwise.device import HOST
from lengthwise.display import Display, Part
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.leaderboard.entry import ENCODING_FILE, NAME, STUDY, Card, Entry, read_entries
from lengthwise.loading import to_spec
from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import Spec, SpecError
from lengthwise.study.file import StudyFile

if TYPE_CHECKING:
    from lengthwise.encoding.base import Encoding
    from lengthwise.leaderboard.standings import Standings
    from lengthwise.study.add import RerunComparison
    from lengthwise.study.launch import ExecutorName

ROOT = Path("leaderboard")


def standings(root: str | Path = ROOT) -> Standings:
    """Rank the entries of a folder by their mean exact match at unseen lengths. None of their code is executed.

    >>> standings("leaderboard")
    """
    from lengthwise.leaderboard.checks import static_mistakes
    from lengthwise.leaderboard.standings import rank_entries

    if not Path(root).is_dir():
        raise SpecError(f"there is no folder {str(root)!r}; it is part of the repository, or give another one")
    entries = read_entries(Path(root))
    for entry in entries:
        if wrong := static_mistakes(entry):
            raise SpecError(f"{entry.folder} is no valid entry: {wrong[0]}")
    return rank_entries(entries)


@dataclass(frozen=True, repr=False)
class EntryCheck(Display):
    """What the checks of an entry found."""

    entry: Entry
    errors: list[str]
    executed: bool
    again: RerunComparison | None = None
    table: Standings | None = None
    """The ranks with this entry, if nothing is wrong."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """What is wrong, or what was checked and the ranks."""
        for error in self.errors:
            yield Part(f"refused: {error}", "bold red", wrap=False)
        if self.again is not None:
            yield Part(self.again.sentence)
        if self.errors:
            return
        yield Part(f"{self.entry.name}: files, card, ids, seeds, learning rates and rows are right.", "bold")
        if not self.executed:
            why = (
                "" if not self.entry.has_code else f" Read {self.entry.folder / ENCODING_FILE}, then give --allow-code."
            )
            yield Part(f"Nothing was executed: verify and the runs made again are not checked yet.{why}", "yellow")
        if self.table is not None:
            yield from self.table.display_parts(width)

    def plain(self) -> dict[str, Any]:
        """The errors, what was executed, and the ranks."""
        table = None if self.table is None else self.table.plain()
        again = None if self.again is None else {"runs": self.again.runs, "equal": self.again.equal}
        told = {"entry": self.entry.name, "errors": self.errors, "executed": self.executed}
        return {**told, "made again": again, "standings": table}


def check_entry(
    folder: str | Path,
    *,
    execute: bool = True,
    allow_code: bool = False,
    store: str | Path | None = None,
    choice: int | None = None,
    say: Say | None = None,
) -> EntryCheck:
    """Check an entry of the leaderboard.

    First without executing anything: its files, its card, that its runs are exactly those of the study with the
    learning rates that the rule chooses, and that its rows are possible. Then, with `execute`, its encoding is verified
    and one randomly chosen run of each task family is made again. The code of an entry is only executed with
    `allow_code`. `choice` fixes the random choice.

    >>> check_entry("leaderboard/nope", execute=False)
    """
    from lengthwise.leaderboard.checks import executed_mistakes, static_mistakes
    from lengthwise.leaderboard.standings import rank_entries

    place = Path(folder)
    if not place.is_dir():
        raise SpecError(f"there is no folder {str(folder)!r}; an entry is a folder, e.g. leaderboard/nope")
    entry = Entry(place, StudyFile.read(STUDY))
    errors, again = static_mistakes(entry), None
    run = execute and not errors and (allow_code or not entry.has_code)
    if run:
        if entry.has_code:
            require_consent([str(entry.spec_here)], str(place), allow_code)
        with progress(say) as tell:
            errors, again = executed_mistakes(entry, tell, store, choice)
    if errors:
        return EntryCheck(entry, errors, run, again)
    others = [one for one in read_entries(place.resolve().parent) if one.name != entry.name]
    valid = [one for one in others if not static_mistakes(one)]
    return EntryCheck(entry, [], run, again, rank_entries([*valid, entry]))


@dataclass(frozen=True, repr=False)
class Submission(Display):
    """An entry that was made, and what to do with it."""

    check: EntryCheck
    files: list[Path] = field(default_factory=list)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The check, and the commands that commit it."""
        yield from self.check.display_parts(width)
        if self.check.errors:
            return
        folder = self.check.entry.folder
        yield Part(
            f"Look at {folder / 'card.yaml'}, then commit the folder and open a pull request:", "bold", wrap=False
        )
        yield Part(f"  git add {folder}\n  git commit -m 'Leaderboard: {self.check.entry.name}'", wrap=False)

    def plain(self) -> dict[str, Any]:
        """The check and the files."""
        return {**self.check.plain(), "files": list(map(str, self.files))}


def submit_entry(
    encoding: str | Mapping[str, object] | Spec | type[Encoding],
    *,
    authors: str,
    name: str | None = None,
    title: str | None = None,
    link: str = "",
    description: str = "",
    variants_tried: int = 1,
    looked_at_unseen: bool = False,
    root: str | Path = ROOT,
    store: str = STORE,
    workers: int | None = None,
    executor: ExecutorName = "auto",
    say: Say | None = None,
) -> Submission:
    """Make an entry of the leaderboard: verify an encoding, do the runs of the study, and write the folder to commit.

    Called again, it resumes. `variants_tried` is how many variants of the encoding you trained, this one included.

    >>> submit_entry("my_pe.py:MyPe", authors="A. Student")
    """
    from lengthwise.conformance import refuse_nonconforming
    from lengthwise.interface.timing import bench
    from lengthwise.leaderboard.checks import extra_parameters
    from lengthwise.leaderboard.source import source_mistakes
    from lengthwise.study.launch import drive
    from lengthwise.study.store import Store

    spec = canonical_encoding(to_spec(encoding, ENCODINGS))
    file, _, cls = spec.name.rpartition(":")
    named = name or (cls or spec.name).lower()
    if not NAME.fullmatch(named):
        raise SpecError(f"an entry's name is lower-case letters, digits, - and _, not {named!r}; give --name")
    folder = Path(root) / named
    card = {"title": title or cls or str(spec), "authors": authors, "date": datetime.date.today(), "link": link}
    card |= {"description": description, "variants_tried": variants_tried, "looked_at_unseen": looked_at_unseen}
    own = spec.name not in ENCODINGS
    if own and not file.endswith(".py"):
        raise SpecError(f"an entry's encoding is one file, e.g. mine.py:{cls}, not {spec.name!r}")
    if own and (wrong := source_mistakes(Path(file))):
        raise SpecError("\n".join(wrong))
    card["encoding"] = str(replace(spec, name=f"{ENCODING_FILE}:{cls}") if own else spec)
    first = Card.of(card, "the card")  # a mistake is named before anything is run
    with progress(say) as tell:
        refuse_nonconforming(spec, tell)
        folder.mkdir(parents=True, exist_ok=True)
        if own:
            _copy(Path(file), folder / ENCODING_FILE)
        entry = Entry(folder, StudyFile.read(STUDY))
        _write_card(entry, first)
        planned, kept = entry.planned_with_code(), Store(store)
        tally = drive(planned, kept, executor=executor, workers=workers, device=str(HOST), on_progress=tell)
        diverged = kept.diverged(tally.failed)  # these are results
        if len(tally.done) + len(diverged) < tally.total:
            lost = [f" {key}: {why}." for key, why in tally.failed.items() if key not in diverged][:1]
            raise SpecError(
                f"{len(tally.done)} of {tally.total} runs are done.{''.join(lost)} Give the same command again"
            )
        tell("timing a training step")
        times = [row for row in bench([entry.spec_here], [256], say=tell).rows if row.what == "train"]
        costs = {"extra_parameters": extra_parameters(entry), "training_time": round(times[-1].ratio or 1.0, 2)}
        _write_card(entry, first.model_copy(update=costs))
        tuned = [item.key for tried in planned.tuning.values() for item in tried]
        kept.export(folder, [item.key for item in planned.items(kept.ended_records(tuned))[0]], STUDY, tell)
    return Submission(check_entry(folder, execute=False), sorted(folder.iterdir()))


def _write_card(entry: Entry, card: Card) -> None:
    (entry.folder / "card.yaml").write_text(card.text(), "utf-8")


def _copy(file: Path, to: Path) -> None:
    """Copy the encoding into its entry, unless it is there with another content."""
    if to.exists() and to.resolve() != file.resolve() and to.read_bytes() != file.read_bytes():
        raise SpecError(f"{to} is there already and differs from {file}; remove it, or give another --name")
    if not to.exists():
        shutil.copyfile(file, to)
