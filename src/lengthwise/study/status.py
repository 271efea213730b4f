"""The status of a study: done, running, failed and missing runs, from one read of the store, without torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lengthwise.run.owner import describe_owner, owner_is_dead
from lengthwise.spec import SpecError
from lengthwise.study.bundle import done_and_diverged
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import (
    Item,
    LearningRateChoice,
    Planned,
    failed_before,
    runs_without_weights,
)
from lengthwise.study.store import Store


@dataclass(frozen=True)
class Status:
    """The status of a study at one moment."""

    total: int
    done: list[Item]
    running: list[dict[str, Any]]
    """For each running item its key, owner, attempt and progress: step, steps, loss, seconds left."""
    failed: dict[str, str]
    diverged: Collection[str]
    """Those of the failed runs whose loss diverged, which is their result."""
    broken: int
    """How many of the failed runs did not diverge, so that they may be done yet."""
    missing: list[Item]
    waiting: int
    """The number of points whose learning rate is not chosen yet."""
    choices: list[LearningRateChoice]
    seconds: float | None
    """Median seconds of a sample of finished runs."""
    given: int = 0
    """How many of the done items are in a bundle and not in the store."""
    table: list[dict[str, Any]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    """All known items."""

    @property
    def left(self) -> int:
        """How many runs have no result yet: they are missing, running, not known, or broke down."""
        return len(self.missing) + len(self.running) + self.waiting + self.broken

    @property
    def ended(self) -> bool:
        """Whether nothing runs, waits or is missing."""
        return not (self.running or self.missing or self.waiting)

    @property
    def ended_items(self) -> list[Item]:
        """The items that are done or diverged."""
        ended = {item.key for item in self.done} | set(self.diverged)
        return [item for item in self.items if item.key in ended]

    @property
    def all_done(self) -> bool:
        """Whether every item is done."""
        return len(self.done) == self.total

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds until the end, at the current number of running items."""
        if self.seconds is None or not self.running:
            return None
        return self.seconds * (self.total - len(self.done) - len(self.failed)) / len(self.running)


def refuse_if_blind(study: StudyFile, left: int) -> None:
    """Raise if a study hides its unseen lengths until its last run has ended, and `left` runs have not."""
    if study.blind and left:
        raise SpecError(
            f"{study.name} is blind until its last run has ended, and {left} are left: its results at unseen lengths "
            f"are not shown before. lengthwise study status {study.name} --learned shows the seen lengths"
        )


_SAMPLED = 64
"""About how many runs are sampled for their duration."""


def status(planned: Planned, store: Store, bundle_records: Mapping[str, Mapping[str, Any]] | None = None) -> Status:
    """Return the status of a study in a store; `bundle_records` are `Bundle.ended_records`, of its runs."""
    bundle_summaries, bundle_diverged = done_and_diverged(bundle_records or {})
    tuned = [item.key for tried in planned.tuning.values() for item in tried]
    summaries = {**store.ended_records(tuned), **(bundle_records or {})}
    items, waiting = planned.items(summaries)
    store.summaries(item.key for item in items)  # a damaged record counts as not done
    state = store.state(item.key for item in items)
    again = runs_without_weights(items, state.done, bundle_summaries)
    finished = [
        item for item in items if item.key in state.done or (item.key in bundle_summaries and item.run_id not in again)
    ]
    there = {item.key for item in finished}
    reasons = {**bundle_diverged, **store.reasons(state.failed)}
    failed = {item.key: reasons[item.key] for item in items if item.key in reasons and item.key not in there}
    failed |= {key: why for key, why in failed_before(items, failed).items() if key not in there}
    for_good = failed_before(items, dict.fromkeys(diverged := {**bundle_diverged, **store.diverged(state.failed)}, ""))
    running = []
    for key, lease in state.leases.items():
        if lease.get("state") == "held" and not owner_is_dead(dict(lease)) and key not in there:
            told = lease.get("progress", {})
            running.append({"run": key, "who": describe_owner(dict(lease)), "attempt": lease["attempt"], **told})
    busy = {one["run"] for one in running}
    never = diverged.keys() | for_good.keys()  # evaluations of these runs cannot be done either
    known = there | failed.keys() | busy
    missing = [
        item for item in items if item.key not in known and not (item.kind == "evaluation" and item.run_id in never)
    ]
    sample = [item.key for item in finished if item.kind == "run" and item.key in state.done]
    times = sorted(
        told["seconds"]
        for told in store.summaries(sample[:: max(1, len(sample) // _SAMPLED)]).values()
        if told.get("seconds")
    )
    return Status(
        total=len(items) + len(waiting) * (1 + len(planned.study.evaluations)),
        done=finished,
        running=running,
        failed=failed,
        diverged=failed.keys() & diverged.keys(),
        broken=len(failed.keys() - diverged.keys() - for_good.keys()),
        missing=missing,
        waiting=len(waiting),
        choices=list(planned.learning_rate_choices(summaries).values()),
        seconds=times[len(times) // 2] if times else None,
        given=sum(item.key not in state.done for item in finished),
        table=_table(planned, items, there, busy, failed, waiting),
        items=items,
    )


def _table(
    planned: Planned,
    items: list[Item],
    done: set[str],
    busy: set[str],
    failed: Mapping[str, str],
    waiting: list[Any],
) -> list[dict[str, Any]]:
    """Count the items of each encoding, and of the tuning runs, by status."""
    lines: dict[str, dict[str, Any]] = {}
    if planned.study.lr is not None:
        lines["(tuning)"] = _line("(tuning)")
    for name in dict.fromkeys(point.encoding for point in planned.points):
        lines[name] = _line(name)
    for item in items:
        line = lines["(tuning)" if item.kind == "tuning" else item.point.encoding]
        where = "done" if item.key in done else "running" if item.key in busy else "missing"
        line["failed" if item.key in failed else where] += 1
    for point in waiting:
        lines[point.encoding]["missing"] += 1
    return list(lines.values())


def _line(name: str) -> dict[str, Any]:
    return {"encoding": name, "done": 0, "running": 0, "failed": 0, "missing": 0}
