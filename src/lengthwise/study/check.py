"""Every mistake of a study before anything starts: one of each distinct component is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lengthwise.encoding import build_positions
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.model.config import preset
from lengthwise.run.identity import Plan, encodings_of
from lengthwise.spec import Spec, SpecError, blame, specs
from lengthwise.study.file import AXES, SHOWN, Evaluation, StudyFile
from lengthwise.study.plan import GridPoint, Planned
from lengthwise.study.reading import cut, lengths_of
from lengthwise.task import build_task
from lengthwise.training.settings import training_preset

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
    try:
        points = planned.points
    except SpecError as error:
        return [cut(str(error))]
    if not points:
        return ["the study has no runs"]
    errors: list[str] = []
    wrong = _names(planned.study, points, errors)
    plans = _plans(planned, [point for point in points if not wrong & set(point.labels().items())], errors)
    _fit(plans, errors)
    _same_run(plans, errors)
    _evaluations(planned, plans, errors)
    if not errors:
        _told(errors, "lr", lambda: planned.tuning)
    told = list(dict.fromkeys(map(cut, errors)))
    return told[:SHOWN] + ([f"... and {len(told) - SHOWN} more mistakes"] if len(told) > SHOWN else [])


def _names(study: StudyFile, points: Iterable[GridPoint], errors: list[str]) -> set[tuple[str, str | int]]:
    """Tell each name that is wrong where it is written; returns them with their axis."""
    used = {label for point in points for label in point.labels().items()}
    parts: list[tuple[str, object]] = [("base", study.base)]
    parts += [(f"pair.{number}", entry) for number, entry in enumerate(study.pair)]
    written = [(f"{place}.{axis}", axis, getattr(part, axis)) for place, part in parts for axis in AXES]
    for axis in AXES:
        listed = enumerate(getattr(study.vary, axis) or [])
        written += [(f"vary.{axis}.{number}", axis, value) for number, value in listed]
    wrong: set[tuple[str, str | int]] = set()
    for place, axis, value in written:
        if (axis, value) in used and not _told(errors, place, partial(_known, axis, value)):
            wrong.add((axis, value))
    return wrong


def _known(axis: str, text: str) -> bool:
    """Whether a name and its options are there at all, by themselves."""
    if axis == "encoding":
        for spec in specs(text):
            canonical_encoding(spec)
    elif axis == "task":
        build_task(text)
    elif axis == "positions":
        build_positions(text)
    elif axis == "training":
        training_preset(text)
    elif "vocabulary" not in dict(Spec.of(text).options):
        preset(text, vocabulary=4)
    return True


def _plans(planned: Planned, points: Iterable[GridPoint], errors: list[str]) -> list[tuple[GridPoint, Plan]]:
    """A plan of each point that differs in more than its seed."""
    found, known, told = [], set[tuple[str, ...]](), set[str]()
    for point in points:
        key = tuple(str(value) for axis, value in point.labels().items() if axis != "seed")
        if key in known:
            continue
        known.add(key)
        mine: list[str] = []
        plan = _told(mine, f"{point.task}, {point.encoding}", partial(planned.plan, point))
        if plan is not None:
            found.append((point, plan))
        elif (words := mine[0].removeprefix(f"{point.task}, {point.encoding}: ")) not in told:
            told.add(words)
            errors += mine
    return found


def _fit(plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Build each encoding in each model, each kind of positions for each task, and see whether they have room."""
    highest: dict[object, int | None] = {}
    limits: dict[object, int | str | None] = {}
    for point, plan in plans:
        task = (plan.task_spec, plan.positions_spec)
        if task not in highest:
            highest[task] = _told(errors, f"{point.task}, positions {point.positions}", plan.highest)
        model = (plan.encoding_specs, plan.model.model_copy(update={"vocabulary": 4}))
        if model not in limits:
            found = _told(errors, f"{point.encoding} in model {point.model}", lambda plan=plan: (_limit(plan),))
            limits[model] = "wrong" if found is None else found[0]
        needed, limit = highest[task], limits[model]
        if needed is not None and not isinstance(limit, str):
            _told(errors, f"{point.task}, {point.encoding}", lambda plan=plan, n=needed, m=limit: plan.fits(n, m))


def _limit(plan: Plan) -> int | None:
    """As the plan says, but a layer that fills the memory of this machine is not built."""
    if size := _heavy(plan):
        raise SpecError(
            f"a layer's attention would have {size:,} parameters; write a smaller width, heads or head_width"
        )
    return plan.limit()


def _heavy(plan: Plan) -> int:
    """The parameters of a layer's attention, where they are too many to be built for a look; else 0."""
    model = plan.model
    size = 4 * model.width * model.heads * model.head_width
    return size if size > 2**29 else 0


def _told(errors: list[str], where: str, do: Callable[[], T]) -> T | None:
    try:
        return do()
    except SpecError as error:
        errors.append(f"{where}: {error}")
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        errors.append(f"{where}: cannot be made, its numbers are out of any range: {blame(error, '')}")
    return None


def _same_run(plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Two points that are one run, because a default is written out in one of them, would be counted twice."""
    seen: dict[str, GridPoint] = {}
    for point, plan in plans:
        first = seen.setdefault(plan.id, point)
        if first is not point:
            both = zip(point.labels().items(), first.labels().values(), strict=True)
            differ = [f"{axis} {there} and {axis} {here}" for (axis, here), there in both if here != there]
            errors.append(f"{'; '.join(differ)} are the same run: leave one of them out")


def _evaluations(planned: Planned, plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """What is evaluated at test time must exist, fit the weights of every run, and have room for what was trained."""
    from lengthwise.model.temperature import build_temperature
    from lengthwise.run.run import temperature_with_trained

    plans = list(plans)
    for number, one in enumerate(planned.study.evaluations):
        place = f"evaluations.{number}"
        if one.lengths is not None:
            for task, plan in {plan.task_spec: plan for _, plan in plans}.items():
                _told(errors, f"{place}.lengths, {task}", partial(_possible, plan, one.lengths))
        before = len(errors)
        if one.encoding is not None:
            for layers in dict.fromkeys(plan.model.layers for _, plan in plans):
                _told(errors, f"{place}.encoding", partial(encodings_of, one.encoding, layers))
        if one.temperature is not None:
            _told(
                errors,
                f"{place}.temperature",
                partial(build_temperature, temperature_with_trained(one.temperature, lambda: 8)),
            )
        if (one.encoding is not None or one.temperature is not None) and len(errors) == before:
            _evaluated_alike(place, one, plans, errors)


def _evaluated_alike(place: str, one: Evaluation, plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Build what an evaluation makes of each model with each of its encodings, and tell each mistake once."""
    rooms: dict[object, int | None] = {}
    said = set[str]()
    for point, plan in plans:
        key = (plan.encoding_specs, plan.model.model_copy(update={"vocabulary": 4}))
        mine: list[str] = []
        if key not in rooms:
            rooms[key] = _told(mine, f"{place}, {point.encoding}", partial(_evaluated, plan, one))
        if (limit := rooms[key]) is not None and one.lengths is None and one.encoding is not None:
            tested = replace(plan, encoding_specs=encodings_of(one.encoding, plan.model.layers))
            _told(mine, f"{place}, {point.encoding}", lambda tested=tested, limit=limit: _roomy(tested, limit))
        if mine and (words := mine[0].removeprefix(f"{place}, {point.encoding}: ")) not in said:
            said.add(words)
            errors += mine


def _evaluated(plan: Plan, one: Evaluation) -> int | None:
    """The first position that an evaluation's encodings do not have; refuses what cannot be built, or filled."""
    from lengthwise.evaluation.decoding import limit_of
    from lengthwise.model import Decoder
    from lengthwise.run.run import fill, temperature_with_trained, with_trained

    if _heavy(plan):
        return None
    wanted, changed = plan.encodings, {}
    if one.encoding is not None:
        # Any length serves: that of the run is not what can be wrong here.
        named = list(encodings_of(with_trained(one.encoding, lambda: 8), plan.model.layers))
        wanted = named * plan.model.layers if len(named) == 1 else named
    if one.temperature is not None:
        changed = {"temperature": temperature_with_trained(one.temperature, lambda: 8)}
    layers = list(dict.fromkeys(zip(plan.encodings, wanted, strict=True)))  # layers that are alike need not be built
    small = plan.model.model_copy(update={"vocabulary": 4, "feed_forward_width": 8, "layers": len(layers)})
    try:
        trained = Decoder(small, [spec for spec, _ in layers])
    except SpecError:
        return None  # told by what it is trained as
    tested = Decoder(small.model_copy(update=changed), [spec for _, spec in layers])
    fill(tested, trained.state_dict(), one.allow, f"a run with {','.join(map(str, plan.encoding_specs))}")
    tested.effective()
    return limit_of(tested)


def _roomy(plan: Plan, limit: int) -> None:
    plan.fits(plan.highest(), limit)


def _possible(plan: Plan, text: str) -> None:
    from lengthwise.evaluation.cases import grid

    grid(plan.task, lengths_of(text))
