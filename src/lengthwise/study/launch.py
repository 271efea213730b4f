"""Run what is missing of a study: on Ray if it is installed, else in worker processes, or in this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Literal

from lengthwise.run.lease import mark_damaged
from lengthwise.run.stop import STOPPED, call_when_asked_to_stop
from lengthwise.spec import SpecError
from lengthwise.study.add import RerunComparison, choose_runs_to_rerun, compare_reruns, rerun_store
from lengthwise.study.bundle import Bundle
from lengthwise.study.drive import Driver, Tally, item_without_seed, require_exclusive_create
from lengthwise.study.executors import Executor, InProcess, Processes
from lengthwise.study.file import RunResources
from lengthwise.study.plan import Item, Planned
from lengthwise.study.ray_executor import RayDidNotStart, RayExecutor, ray_is_installed
from lengthwise.study.status import status
from lengthwise.study.store import Store

ExecutorName = Literal["auto", "ray", "processes", "inline"]


class StudyStopped(SystemExit):
    """The study was stopped; running jobs have saved checkpoints, and the same call resumes."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(STOPPED)
        self.words = f"stopped with {done} of {total} done; what was running is saved, the same command goes on"


def executor_of(
    name: ExecutorName, resources: RunResources, workers: int | None = None, address: str | None = None
) -> Executor:
    """Return the executor of this name; `auto` is Ray if it is installed, else worker processes."""
    if name not in {"auto", "ray", "processes", "inline"}:
        raise SpecError(f"executor is auto, ray, processes or inline, not {name!r}")
    if name == "inline":
        if resources.gpus:
            _gpus_here(resources)
        return InProcess()
    if name == "ray" or address is not None:
        return RayExecutor(resources, address=address, workers=workers)
    if name == "auto" and ray_is_installed():
        try:
            return RayExecutor(resources, workers=workers)
        except RayDidNotStart as error:
            warnings.warn(f"{error}; going on with worker processes", stacklevel=2)
    if not resources.gpus:
        return Processes(workers or os.cpu_count() or 1)
    gpus, each = _gpus_here(resources), ceil(resources.gpus)
    together = int(len(gpus) / resources.gpus)
    groups = [",".join(gpus[start : start + each]) for start in range(0, len(gpus) - each + 1, each)]
    return Processes(min(workers or together, together), groups)


def _gpus_here(resources: RunResources) -> list[str]:
    """Return the indices of this machine's GPUs; raise if there are fewer than one run asks for."""
    from lengthwise.device import visible_gpus

    found = visible_gpus()
    if len(found) < resources.gpus:
        raise SpecError(
            f"a run of this study asks for {resources.gpus:g} GPU, and torch finds {len(found)} here; run it where "
            "there is one, or leave out gpus in its resources"
        )
    return found


def gpu_suggestion(planned: Planned) -> str | None:
    """Say how many runs fit on a GPU of this machine at once, if the study does not place as many; None otherwise."""
    from lengthwise.device import gpu_bytes
    from lengthwise.study.cost import gpu_memory_of_run
    from lengthwise.study.machines import gpu_share

    if (memory := gpu_bytes()) is None or not planned.points:
        return None
    needed = max(gpu_memory_of_run(planned.plan(point)) for point in planned.points)
    fit, asked = int(memory / needed), planned.study.resources.gpus
    if fit < 2 or asked > 1 or (asked and round(1 / asked) >= fit):
        return None
    placed = f"{1 / asked:.0f} on a GPU" if asked else "not placed on GPUs"
    return (
        f"a run needs about {needed / 1e9:.1f} GB, so {fit} fit on a GPU of {memory / 1e9:.0f} GB at once; they are "
        f"{placed}. Small models are faster together: write resources: {{gpus: {gpu_share(fit):g}}} into the study"
    )


def drive(
    planned: Planned,
    store: Store,
    *,
    executor: ExecutorName = "auto",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    bundle_records: Mapping[str, Mapping[str, Any]] | None = None,
    retry: bool = False,
    only_items: Sequence[Item] | None = None,
    on_progress: Callable[[str], None] = lambda words: None,
) -> Tally:
    """Run what is missing and return the tally. `bundle_records` are of runs of a bundle, which are not done again."""
    bundle_records = bundle_records or {}
    _mark_damaged(store, status(planned, store, bundle_records).done if only_items is None else only_items)
    if only_items is None and not retry:
        found = status(planned, store, bundle_records)
        there = Tally(found.total, {item.key for item in found.done}, found.failed, waiting=found.waiting)
        if there.ended:
            return there  # nothing is missing, so no executor is started
    require_exclusive_create(store, only_driver=executor == "inline")
    if device == "auto" and (suggestion := gpu_suggestion(planned)):
        from lengthwise.device import say_once

        say_once(suggestion)
    on_progress("timing a step")
    expected = _expected(planned, only_items)
    if only_items is not None:
        planned, bundle_records = PlanSubset(planned, only_items), {}
    try:
        on_progress("starting" if address is None else f"joining {address}")
        made = _started_executor(executor, planned.study.resources, workers, address)
        with call_when_asked_to_stop(_interrupt):
            return Driver(
                planned,
                store,
                made,
                given=bundle_records,
                retry=retry,
                expected=expected,
                device=device,
                tell=on_progress,
            ).run()
    except KeyboardInterrupt:
        found = status(planned, store, bundle_records)
        raise StudyStopped(len(found.done), found.total) from None


def _started_executor(
    name: ExecutorName, resources: RunResources, workers: int | None, address: str | None
) -> Executor:
    """Start the executor before our signal handlers are set, because Ray sets its own, which end the process."""
    try:
        return executor_of(name, resources, workers, address)
    except SystemExit:
        raise KeyboardInterrupt from None


def _mark_damaged(store: Store, items: Sequence[Item]) -> None:
    """Declare finished runs with damaged files not done, so that they are made again."""
    for key, why in store.check(item.key for item in items).items():
        mark_damaged(store.folder, key, why)
    store.damaged.clear()


def rerun_some(
    planned: Planned,
    bundle: Bundle,
    count: int,
    store: Store,
    *,
    executor: ExecutorName = "auto",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    on_progress: Callable[[str], None] = lambda words: None,
) -> RerunComparison:
    """Execute some runs of a bundle again, in a part of the store of their own, and compare their rows."""
    beside, again = rerun_store(store), choose_runs_to_rerun(planned, bundle, count)
    if not again:
        raise SpecError(
            f"{bundle.folder} has no run of this study as it is now (another version?), so nothing guards the "
            "comparison; run the whole study here instead, without --with"
        )
    on_progress(f"{len(again)} committed {'run is' if len(again) == 1 else 'runs are'} executed again first")
    how = {"executor": executor, "workers": workers, "address": address, "device": device}
    drive(planned, beside, only_items=again, on_progress=on_progress, **how)  # pyrefly: ignore[bad-argument-type]
    found = compare_reruns(again, bundle, beside)
    on_progress(found.sentence)
    return found


def _expected(planned: Planned, only_items: Sequence[Item] | None) -> Mapping[tuple[str, ...], float]:
    """Expected seconds of a run, by its configuration without the seed (`item_without_seed`)."""
    from lengthwise.study.cost import expected_seconds

    items = list(only_items) if only_items is not None else planned.runs_at_preset_lr(planned.points)
    items += [] if only_items is not None else [item for tried in planned.tuning.values() for item in tried]
    known = expected_seconds([item.plan for item in items], planned.study.resources.threads)
    return {item_without_seed(item): known[item.key] for item in items}


def _interrupt() -> None:
    raise KeyboardInterrupt


class PlanSubset(Planned):
    """A plan that has only some items of another plan."""

    def __init__(self, planned: Planned, items: Sequence[Item]) -> None:
        super().__init__(planned.study)
        self._items = list(items)

    @property
    def tuning(self) -> dict[Any, tuple[Item, ...]]:  # pyrefly: ignore
        return {}

    def items(self, summaries: Mapping[str, Mapping[str, Any]]) -> tuple[list[Item], list[Any]]:
        return self._items, []
