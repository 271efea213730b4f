"""Every mistake of a study before anything starts: one of each distinct component is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from lengthwise.run.identity import Plan
from lengthwise.spec import SpecError
from lengthwise.study.file import lengths_of
from lengthwise.study.plan import Cell, Planned

T = TypeVar("T")


def refuse_foreign(names: Iterable[str], allowed: bool) -> None:
    """Code from outside the package is not imported before somebody said that it may be."""
    if not allowed and (listed := list(names)):
        raise SpecError(
            f"the study names code from outside the package ({', '.join(listed[:5])}), which would be run; "
            "look at it, then give --allow-code"
        )


def check(planned: Planned, allow_code: bool = False) -> list[str]:
    """All that is wrong, each in a line; nothing is wrong where there is no line."""
    refuse_foreign(planned.outside(), allow_code)
    errors: list[str] = []
    try:
        cells = planned.cells
    except SpecError as error:
        return [str(error)]
    if not cells:
        return ["the study has no runs"]
    plans = _plans(planned, cells, errors)
    _fit(plans, errors)
    if not errors:
        _same_run(planned, errors)
        _evaluations(planned, plans, errors)
    return list(dict.fromkeys(errors))


def _plans(planned: Planned, cells: Iterable[Cell], errors: list[str]) -> list[tuple[Cell, Plan]]:
    """A plan of each cell that differs in more than its seed; a name that is wrong is told once."""
    found, known, wrong = [], set[tuple[str, ...]](), set[tuple[str, str]]()
    for cell in cells:
        key = tuple(str(value) for axis, value in cell.labels().items() if axis != "seed")
        if key in known:
            continue
        known.add(key)
        try:
            found.append((cell, planned.plan(cell)))
        except SpecError as error:
            if (cell.task, str(error)) not in wrong and str(error) not in {told for _, told in wrong}:
                errors.append(f"{cell.task}, {cell.encoding}: {error}")
            wrong.add((cell.task, str(error)))
    return found


def _fit(plans: Iterable[tuple[Cell, Plan]], errors: list[str]) -> None:
    """Build each encoding in each model, each kind of positions for each task, and see whether they have room."""
    highest: dict[object, int | None] = {}
    limits: dict[object, int | str | None] = {}
    for cell, plan in plans:
        task = (plan.task_spec, plan.positions_spec)
        if task not in highest:
            highest[task] = _told(errors, f"{cell.task}, positions {cell.positions}", plan.highest)
        model = (plan.encoding_specs, plan.model.model_copy(update={"vocabulary": 4}))
        if model not in limits:
            found = _told(errors, f"{cell.encoding} in model {cell.model}", lambda plan=plan: (plan.limit(),))
            limits[model] = "wrong" if found is None else found[0]
        needed, limit = highest[task], limits[model]
        if needed is not None and not isinstance(limit, str):
            _told(errors, f"{cell.task}, {cell.encoding}", lambda plan=plan, n=needed, m=limit: plan.fits(n, m))


def _told(errors: list[str], where: str, do: Callable[[], T]) -> T | None:
    try:
        return do()
    except SpecError as error:
        errors.append(f"{where}: {error}")
    return None


def _same_run(planned: Planned, errors: list[str]) -> None:
    """Two cells that are one run, because a default is written out in one of them, would be counted twice."""
    seen: dict[str, Cell] = {}
    for cell in planned.cells:
        key = planned.plan(cell).id
        if key in seen and seen[key] != cell:
            here = [f"{axis} {value}" for axis, value in cell.labels().items()]
            there = [f"{axis} {value}" for axis, value in seen[key].labels().items()]
            differ = [f"{a} and {b}" for a, b in zip(here, there, strict=True) if a != b]
            errors.append(f"{'; '.join(differ)} are the same run: leave one of them out")
            return
        seen[key] = cell


def _evaluations(planned: Planned, plans: Iterable[tuple[Cell, Plan]], errors: list[str]) -> None:
    """What is evaluated at test time must be something that exists."""
    from lengthwise.model.temperature import build_temperature
    from lengthwise.run.identity import encodings_of

    for lengths, encoding, scale in ((one.lengths, one.encoding, one.scale) for one in planned.study.evaluations):
        for _, plan in plans:
            if lengths is not None:
                _told(errors, f"evaluations, {plan.task_spec}", partial(_possible, plan, lengths))
            if encoding is not None:
                _told(errors, "evaluations", partial(encodings_of, encoding, plan.model.layers))
        if scale is not None:
            whole = scale if "trained" in scale or not scale.startswith("log-n") else f"{scale}:trained=8"
            _told(errors, "evaluations", partial(build_temperature, whole))


def _possible(plan: Plan, text: str) -> None:
    from lengthwise.evaluation.cases import grid

    grid(plan.task, lengths_of(text))
