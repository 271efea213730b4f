"""The checks of an entry: first those that execute none of its code, then verify and a few runs made again."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lengthwise.checksums import Damaged
from lengthwise.device import HOST
from lengthwise.evaluation.cases import evaluation_cases, splits_and_lengths
from lengthwise.leaderboard.entry import BUNDLE_FILES, ENCODING_FILE, NAME, Entry, with_only_encoding
from lengthwise.leaderboard.source import source_mistakes
from lengthwise.leaderboard.tampering import Snapshot
from lengthwise.progress import Say
from lengthwise.run.identity import Plan
from lengthwise.spec import Spec, SpecError
from lengthwise.statistics.intervals import task_family
from lengthwise.statistics.learned import scored_rows_filter
from lengthwise.study.add import APART, RerunComparison, compare_reruns, sets_version
from lengthwise.study.launch import drive
from lengthwise.study.plan import Item, Planned
from lengthwise.study.store import Store
from lengthwise.task.sets import VERSION

# --- without executing its code --------------------------------------------------------------------------------------


def static_mistakes(entry: Entry) -> list[str]:
    """Return what is wrong with an entry, without executing its code: files, card, ids, seeds, rates, rows."""
    if entry.unfinished:
        return ["it has no results yet; lengthwise leaderboard submit, with the same options, goes on where it stopped"]
    try:
        return [*_files(entry), *_runs(entry), *_rows(entry)]
    except (SpecError, Damaged) as error:
        return [str(error)]


def _files(entry: Entry) -> Iterator[str]:
    if not NAME.fullmatch(entry.name):
        yield f"the folder's name must be lower-case letters, digits, - and _, not {entry.name!r}"
    allowed = {"card.yaml", *BUNDLE_FILES, *([ENCODING_FILE] if entry.has_code else [])}
    for path in sorted(entry.folder.rglob("*")):
        name = str(path.relative_to(entry.folder))
        if path.is_symlink():
            yield f"{name} is a link; an entry has files only"
        elif name not in allowed and "__pycache__" not in path.parts:
            yield f"{name} is no file of an entry"
    if entry.has_code:
        _ = entry.class_name  # raises if the card names another file
        if not (entry.folder / ENCODING_FILE).is_file():
            raise SpecError(f"{ENCODING_FILE} is missing")
        yield from source_mistakes(entry.folder / ENCODING_FILE)


def _runs(entry: Entry) -> Iterator[str]:
    """Yield runs that are missing, foreign or made with other options than the study and its rules give."""
    bundle = entry.bundle
    items, waiting = entry.planned().items(bundle.ended_records)
    expected = {item.key: item for item in items}
    foreign = {key: _why_foreign(line, items) for key, line in bundle.lines.items() if key not in expected}
    if foreign and len(foreign) == len(bundle.lines):
        yield f"none of its {len(foreign)} runs is one of this study with this encoding: {next(iter(foreign.values()))}"
        return
    for item in items:
        if item.key not in bundle.lines:
            what = "tuning run" if item.kind == "tuning" else "run"
            rate = f" at lr {item.plan.training.lr:g}" if item.kind == "tuning" else ""
            yield f"the {what} of {item.point.task} with seed {item.point.seed}{rate} is missing ({item.key})"
    if waiting:
        yield f"{len(waiting)} runs cannot be named, because tuning runs that choose their learning rate are missing"
    for key, line in bundle.lines.items():
        if key in foreign:
            yield f"{key} is no run of this study with this encoding: {foreign[key]}"
        elif wrong := _wrong_record(expected[key].plan, line):
            yield f"{key}: {wrong}"


def _why_foreign(line: Mapping[str, Any], items: Iterable[Item]) -> str:
    """Return in what a run differs from those that the study asks for."""
    identity = line["run"].get("identity", {})
    task = identity.get("task")
    alike = [one for one in items if one.plan.identity()["task"] == task]
    same = [one.plan.identity() for one in sorted(alike, key=lambda one: one.kind != "run")]
    if not same:
        return "its task is another one"
    for part in ("encoding", "model", "training"):
        if identity.get(part) != same[0][part]:
            given, asked = identity.get(part), same[0][part]
            if part == "encoding":
                return "its encoding is not the file and the options of this entry"
            differs = sorted(
                set(given or {}) ^ set(asked) | {key for key in asked if (given or {}).get(key) != asked[key]}
            )
            told = ", ".join(f"{key} {(given or {}).get(key)} instead of {asked.get(key)}" for key in differs)
            return f"its {part} has {told}"
    return f"seed {identity.get('seed')} is not asked for"


def _wrong_record(expected: Plan, line: Mapping[str, Any]) -> str:
    """Return why the record of a run is not that of the expected run; empty if it is."""
    record = line["run"]
    if record.get("id") != expected.id or record.get("identity") != expected.identity():
        return "its record has another id or identity than its name says"
    if sets_version(line) != VERSION:
        return f"it was tested on sets of version {sets_version(line)}; they have version {VERSION} now"
    try:
        given = Plan.read(record["options"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its options cannot be read: {type(error).__name__}: {error}"
    for part in ("task_spec", "positions_spec", "model", "training", "seed", "streams", "start"):
        if getattr(given, part) != getattr(expected, part):
            return f"its options have another {part.removesuffix('_spec')} than its id says"
    recorded = record.get("recorded", {})
    if recorded.get("threads") not in {None, 1}:
        return f"it was made with {recorded['threads']} threads; the study's runs have one"
    return ""


def _rows(entry: Entry) -> Iterator[str]:
    """Yield rows that are missing, too many, or contradict the single answers that the bundle has."""
    import polars as pl

    bundle, scored = entry.bundle, entry.bundle.rows.filter(scored_rows_filter())
    items, _ = entry.planned().items(bundle.ended_records)
    done = [item for item in items if item.key in bundle.records]
    _, kinds = bundle.wrong_answers_and_outcomes()
    right = None
    if kinds.width:
        right = (
            kinds.filter(pl.col("kind") == "right")
            .group_by("run", "split", "length")
            .agg((pl.col("last") - pl.col("first") + 1).sum().alias("right"))
        )
    foreign = set(bundle.rows["run"].to_list()) - {key.partition("~")[0] for key in bundle.records}
    if foreign:
        yield f"{min(foreign)} has rows, and is not among the runs"
    for item in done:
        own = scored.filter(pl.col("run") == item.key)
        counted = own.group_by("split", "length").agg(pl.col("examples").sum(), pl.col("correct").sum())
        there = {(split, length): examples for split, length, examples, _ in counted.iter_rows()}
        asked = _asked(item)
        if there != asked:
            odd = sorted(place for place in {*there, *asked} if there.get(place) != asked.get(place))[0]
            yield (
                f"{item.key}: {odd[0]} at length {odd[1]} has {there.get(odd, 0)} examples, and the test set has "
                f"{asked.get(odd, 0)}"
            )
        elif right is not None:
            both = counted.join(right.filter(pl.col("run") == item.key), on=["split", "length"], how="left")
            wrong = both.filter(pl.col("correct") != pl.col("right").fill_null(0))
            if wrong.height:
                first = wrong.sort("length").row(0, named=True)
                yield (
                    f"{item.key}: its rows count {first['correct']} right answers at length {first['length']}, and its "
                    f"single answers {first['right'] or 0}"
                )
    if right is None and done:
        yield "kinds.parquet is missing, so the rows cannot be compared with the single answers"


def _asked(item: Item) -> dict[tuple[str, int], int]:
    """Return (split, length) → the number of examples of the study's test sets."""
    task = item.plan.task
    places = [place for place in splits_and_lengths(task) if place[0].startswith("test_") or place[0] == "validation"]
    found = {place: len(evaluation_cases(task, *place)) for place in places}
    return {place: examples for place, examples in found.items() if examples}


# --- by executing its code -------------------------------------------------------------------------------------------


def executed_mistakes(
    entry: Entry, tell: Say, store: str | Path | None = None, choice: int | None = None
) -> tuple[list[str], RerunComparison | None]:
    """Load and verify the encoding, make runs again (one of each task family, one tuning run), return what is wrong.

    Everything happens in this process, so that code which changes lengthwise is found. `choice` is the seed of the
    random choice of runs.
    """
    tell("noting every function of lengthwise and torch")
    before = Snapshot()
    from lengthwise.conformance import verify

    tell(f"verifying {entry.spec}")
    try:
        found = verify(entry.spec_here)
        if found.failed:
            return [f"verify finds {len(found.failed)} failures:\n{found}"], None
        if changed := before.changes():
            return [_changed(changed)], None
        mistakes = _other_ids(entry)
        if mistakes or (wrong := _parameters(entry)):
            return mistakes or [wrong], None
        again = _rerun(entry, tell, store, choice)
    except SpecError as error:
        return [str(error)], None
    if changed := before.changes():
        return [_changed(changed)], again
    return _not_reproduced(entry, again), again


def _changed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its code changes {', '.join(names[:3])}{more}, so nothing that it is measured with can be trusted"


def _other_ids(entry: Entry) -> list[str]:
    """Return runs whose id, computed by loading the class, is not the one that its source gives."""
    plain = {item.key for item in entry.planned().items(entry.bundle.ended_records)[0]}
    loaded = {item.key for item in entry.planned_with_code().items(entry.bundle.ended_records)[0]}
    return [f"{key} has another id when its class is loaded" for key in sorted(plain - loaded)[:3]]


def _parameters(entry: Entry) -> str:
    """Return why the number of parameters on the card is wrong; empty if it is right."""
    found = extra_parameters(entry)
    asked = entry.card.extra_parameters
    return "" if found == asked else f"card.yaml: extra_parameters is {asked}, and the model has {found}"


def extra_parameters(entry: Entry) -> int:
    """Return the parameters that the encoding adds to NoPE in the largest model of the study."""
    own, bare = (
        _plan_by_task(one) for one in (entry.planned_with_code(), Planned(with_only_encoding(entry.study, "nope")))
    )
    return max(_size(plan) - _size(bare[task]) for task, plan in own.items())


def _plan_by_task(planned: Planned) -> dict[Spec, Plan]:
    return {item.plan.task_spec: item.plan for item in planned.runs_at_preset_lr(planned.points)}


def _size(plan: Plan) -> int:
    return sum(one.numel() for one in plan.decoder().parameters())


def _rerun(entry: Entry, tell: Say, store: str | Path | None, choice: int | None) -> RerunComparison:
    """Make one run of each task family and one tuning run again, chosen at random, and compare their results."""
    chance = random.Random(choice) if choice is not None else random.SystemRandom()
    planned = entry.planned_with_code()
    items = [item for item in planned.items(entry.bundle.ended_records)[0] if item.key in entry.bundle.records]
    families: dict[str, list[Item]] = {}
    for item in items:
        families.setdefault("tuning" if item.kind == "tuning" else task_family(item.point.task), []).append(item)
    chosen = [chance.choice(families[family]) for family in sorted(families)]
    if not chosen:
        raise SpecError("it has no run that could be made again")
    tell(f"making {len(chosen)} runs again: {', '.join(item.key for item in chosen)}")
    with tempfile.TemporaryDirectory() as made:
        place = Store(str(store or made))
        drive(planned, place, executor="inline", only_items=chosen, device=str(HOST), on_progress=tell)
        return compare_reruns(chosen, entry.bundle, place)


def _not_reproduced(entry: Entry, again: RerunComparison) -> list[str]:
    """Return why the runs that were made again contradict the entry: bit-equal on the same CPU and torch, else near."""
    import torch

    from lengthwise.run.machine import cpu_name

    if again.equal:
        return []
    recorded = [entry.bundle.records[key]["run"].get("recorded", {}) for key in again.runs]
    here = {"cpu": cpu_name(), "torch": torch.__version__}
    if all(one.get(key) == value for one in recorded for key, value in here.items()):
        return [
            f"{', '.join(again.runs)} were made again on the same kind of CPU with the same torch, and their rows "
            f"differ (mean accuracies by up to {again.apart:.4f})"
        ]
    if again.apart > APART:
        return [f"{', '.join(again.runs)} were made again, and mean accuracies differ by {again.apart:.4f} (> {APART})"]
    return []
