"""Add an encoding to committed results: rerun three committed runs as a check, then run only the new encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.run.identity import Plan
from lengthwise.spec import SpecError, digest, parse_specs
from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Item, Planned
from lengthwise.study.store import Store
from lengthwise.task.sets import VERSION
from lengthwise.training.settings import Dtype, mixed_precision, with_options

if TYPE_CHECKING:
    import polars as pl

GUARDS = 3
APART = 0.02
"""The largest difference of mean accuracy at which a rerun still counts as reproducing the committed run."""


def with_added_encodings(study: StudyFile, encodings: Iterable[str]) -> StudyFile:
    """Return the study with these encodings added to `vary.encoding`."""
    if study.vary.encoding is None:
        raise SpecError(f"{study.name} does not vary the encoding, so none can be added to it")
    more = [name for name in map(canonical_encoding_text, encodings) if name not in study.vary.encoding]
    content = study.model_dump()
    content["vary"]["encoding"] = [*study.vary.encoding, *more]
    return StudyFile.of(content, study.name)


def with_dtype(study: StudyFile, dtype: Dtype) -> StudyFile:
    """Return the study with all its trainings in this precision; `auto` leaves each as it is."""
    if (autocast := mixed_precision(dtype)) is None:
        return study
    content = study.model_dump()
    if study.vary.training is None:
        content["base"]["training"] = str(with_options(study.base.training, autocast=autocast))
    else:
        content["vary"]["training"] = [str(with_options(one, autocast=autocast)) for one in study.vary.training]
    for number, entry in enumerate(study.linked):
        if entry.training is not None:
            content["linked"][number]["training"] = str(with_options(entry.training, autocast=autocast))
    for number, stage in enumerate(study.then):
        if stage.training is not None:
            content["then"][number]["training"] = str(with_options(stage.training, autocast=autocast))
    return StudyFile.of(content, study.name)


def canonical_encoding_text(name: str) -> str:
    """Return the name as study files spell it, with its options in canonical order."""
    return ",".join(map(str, parse_specs(name)))


def chosen_tasks(study: StudyFile, text: str) -> list[str]:
    """Return the tasks of `--tasks`: a list of names, or `quick` (the study's quick tasks, or else its first four)."""
    if text == "quick":
        return study.quick or study.tasks[:4]
    found = []
    for name in (part.strip() for part in text.split(";" if ";" in text else ",")):
        like = [task for task in study.tasks if task == name or task.partition(":")[0] == name]
        if not like:
            raise SpecError(f"the study has no task {name!r}; it has {', '.join(study.tasks)}")
        found += like
    return list(dict.fromkeys(found))


def committed_results_folder(study: StudyFile) -> Path | None:
    """Return the folder of the study's committed results, or None if there are none."""
    found = find_committed_file(f"{study.name}/bundle.json")
    return None if found is None else found.parent


def find_committed_file(name: str) -> Path | None:
    """Find a committed file, e.g. `theory/claims.json`: in ./results, the source checkout or the installed wheel."""
    places = (Path("results"), Path(__file__).parents[3] / "results", Path(__file__).parent / "results")
    return next((place / name for place in places if (place / name).exists()), None)


def bundle_with_done_runs(
    study: StudyFile, given_bundle: Path | None, added_encodings: Sequence[str] | None
) -> Path | None:
    """The bundle whose runs `run` counts as done: the one given or, where encodings are added, the committed one."""
    return given_bundle if given_bundle is not None or not added_encodings else committed_results_folder(study)


def rerun_store(store: Store) -> Store:
    """Return the store for reruns of committed runs: a separate one for each CPU, torch and lengthwise version."""
    from importlib.metadata import version

    from lengthwise.run.machine import cpu_name

    mark = digest(cpu_name(), version("torch"), version("lengthwise"), bits=32)
    return Store(store.folder / "guard" / f"{mark:08x}")


def choose_runs_to_rerun(planned: Planned, bundle: Bundle, count: int = GUARDS) -> list[Item]:
    """Choose committed runs to rerun, deterministically, of different encodings and tasks where possible."""
    items, _ = planned.items(bundle.ended_records)
    # A run of a later stage would need the weights of another, which a bundle does not have.
    there = [item for item in items if item.kind == "run" and item.key in bundle.records and item.start_id is None]
    there.sort(key=lambda item: digest("guard", item.key))
    picked: list[Item] = []
    for fresh in (_other_both, _other_encoding, lambda item, picked: item not in picked):
        for item in there:
            if len(picked) < count and item not in picked and fresh(item, picked):
                picked.append(item)
    return picked


def _other_both(item: Item, picked: list[Item]) -> bool:
    return all(item.point.encoding != one.point.encoding and item.point.task != one.point.task for one in picked)


def _other_encoding(item: Item, picked: list[Item]) -> bool:
    return all(item.point.encoding != one.point.encoding for one in picked)


@dataclass(frozen=True)
class RerunComparison:
    """The result of rerunning committed runs."""

    runs: list[str]
    equal: bool
    """Whether every row is bit-equal to the committed one."""
    apart: float
    """The largest difference of a run's mean accuracy, over seen lengths, unseen lengths or the last validation."""

    @property
    def sentence(self) -> str:
        """The result in words, for the report."""
        count = len(self.runs)
        many = "1 committed run was" if count == 1 else f"{count} committed runs were"
        many = f"{many} made again here"
        if self.equal:
            return f"{many}: every row is bit-equal to the committed one."
        return (
            f"{many}: not bit-equal (another CPU, or other versions); mean accuracies differ by up to "
            f"{self.apart:.4f}. Differences of this size between old and new encodings say nothing."
        )

    def refuse_if_different(self, accept_differences: bool) -> None:
        """Raise if the reruns differ too much from the committed runs to compare the two, unless that is accepted."""
        if self.apart > APART and not accept_differences:
            raise SpecError(
                f"{self.sentence} That is more than {APART}; the committed rows cannot be compared with runs of this "
                "machine. Run the whole study here (without --with), or give --accept"
            )


def sets_version(record: Mapping[str, Any]) -> int:
    """Return the version of the test sets of a run, by its record in a bundle; it was not recorded before 3."""
    return record["run"].get("recorded", {}).get("sets", 2)


def compare_reruns(items: list[Item], bundle: Bundle, store: Store) -> RerunComparison:
    """Compare the rows of the reruns with the committed rows."""
    import polars as pl

    keys = [item.key for item in items]
    if older := {sets_version(bundle.records[key]) for key in keys} - {VERSION}:
        raise SpecError(
            f"the committed runs were tested on test sets of version {min(older)}, and this lengthwise has version "
            f"{VERSION}, so they cannot be compared; run the whole study here (without --with)"
        )
    ours, theirs = store.rows(keys), bundle.rows.filter(pl.col("run").is_in(keys))
    theirs = theirs.filter(pl.col("evaluation") == "as trained")
    order = ["run", "evaluation", "checkpoint", "split", "length", "subgroup"]
    missing = [key for key in keys if key not in set(ours["run"].to_list())]
    if missing:
        raise SpecError(
            f"the committed run {missing[0]} could not be made again here, so nothing guards the comparison"
        )
    # The committed rows may contain further lengths, from additional evaluations; every subgroup of a length counts.
    places = order[:-1]
    theirs = theirs.join(ours.select(places).unique(), on=places, how="semi", nulls_equal=True)
    equal, apart = ours.sort(order).equals(theirs.sort(order)), 0.0
    summaries = store.summaries(keys)
    for key in keys:
        for seen in (True, False):
            apart = max(apart, abs(_mean(ours, key, seen) - _mean(theirs, key, seen)))
        # A tuning run's validation chooses the learning rate, so it must come out as recorded too.
        now, before = (one["validation"] for one in (summaries[key], bundle.records[key]["done"]))
        equal = equal and now == before
        apart = max(apart, abs(_share(now) - _share(before)))
    return RerunComparison(keys, equal, apart)


@dataclass(frozen=True)
class ResultsCheck:
    """Whether a bundle is what the study, as the code is now, would give."""

    bundle: str
    runs: int
    mistakes: list[str]
    again: RerunComparison | None = None
    """The runs that were executed again."""

    @property
    def errors(self) -> list[str]:
        """The mistakes; runs that were executed again and are not bit-equal are one."""
        return self.mistakes + ([] if self.again is None or self.again.equal else [self.again.sentence])

    def plain(self) -> dict[str, Any]:
        """The check as plain data."""
        found: dict[str, Any] = {"against": self.bundle, "runs": self.runs, "wrong": len(self.mistakes)}
        return found | ({} if self.again is None else {"rerun": self.again.runs, "equal": self.again.equal})

    def __str__(self) -> str:
        many = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        wrong = many if self.mistakes else "the options of each give its id"
        return f"{self.runs} runs of the bundle: {wrong}." + ("" if self.again is None else f" {self.again.sentence}")


def find_bundle_mistakes(planned: Planned, bundle: Bundle) -> list[str]:
    """Return what is wrong with a bundle: ids that do not follow from the options, foreign runs, missing rows."""
    known = {item.key: item for item in planned.items(bundle.ended_records)[0]}
    found, with_rows = [], set(bundle.rows["run"].unique().to_list())
    for key, record in bundle.records.items():
        if key not in known:
            found.append(f"{key} is no run of {planned.study.name} as it is now")
        elif wrong := _wrong_options(known[key].plan, record):
            found.append(f"{key}: {wrong}")
        elif known[key].run_id not in with_rows:
            found.append(f"{key} has no rows")
    without = with_rows - {key.partition("~")[0] for key in bundle.records}
    return found + [f"{run} has rows, and is not among the runs" for run in sorted(without)]


def _wrong_options(expected: Plan, record: Mapping[str, Any]) -> str:
    """Return why a record's options do not give the expected run; empty if they do."""
    try:
        plan = Plan.read(record["run"]["options"])
        # Computing an id imports the code that a plan names, so only names of the study itself get that far.
        if plan.component_names != expected.component_names:
            return (
                f"its options name {', '.join(plan.component_names)} instead of {', '.join(expected.component_names)}"
            )
        return "" if plan.id == expected.id == record["run"]["id"] else f"its options give the id {plan.id}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its options cannot be read: {type(error).__name__}: {error}"


def _share(validation: Mapping[str, Any]) -> float:
    return validation["correct"] / validation["examples"] if validation["examples"] else 0.0


def _mean(rows: pl.DataFrame, key: str, seen: bool) -> float:
    """Return a run's mean accuracy over seen or unseen lengths, with its last weights."""
    import polars as pl

    kept = rows.filter(
        (pl.col("run") == key)
        & (pl.col("checkpoint") == "last")
        & (pl.col("evaluation") == "as trained")
        & (pl.col("seen") == seen)
        & ~pl.col("split").is_in(["test_far", "train"])
    )
    by = kept.group_by("length").agg((pl.col("correct").sum() / pl.col("examples").sum()).alias("share"))
    found: Any = by["share"].mean()
    return 0.0 if found is None else float(found)
