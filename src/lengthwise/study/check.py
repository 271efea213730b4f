"""Find all mistakes of a study before any run starts, by building each distinct component once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lengthwise.encoding import build_positions
from lengthwise.encoding.signature import canonical_encoding
from lengthwise.evaluation.cases import parse_lengths
from lengthwise.model.config import preset
from lengthwise.run.identity import Plan, encodings_of
from lengthwise.spec import Spec, SpecError, describe_error_with_line, parse_specs
from lengthwise.study.file import AXES, FurtherEvaluation, StudyFile
from lengthwise.study.plan import GridPoint, Planned
from lengthwise.study.reading import SHOWN, one_printable_line
from lengthwise.task import build_task
from lengthwise.training.settings import training_preset

T = TypeVar("T")


def check(planned: Planned) -> list[str]:
    """Return one line per mistake; the list is empty if the study is valid. Code that the study names is loaded."""
    try:
        points = planned.points
    except SpecError as error:
        return [one_printable_line(str(error))]
    if not points:
        return ["the study has no runs"]
    errors: list[str] = []
    wrong = _names(planned.study, points, errors)
    plans = _plans(planned, [point for point in points if not wrong & set(point.labels().items())], errors)
    _fit(plans, errors)
    _same_run(plans, errors)
    _continued(planned, plans, errors)
    _evaluations(planned, plans, errors)
    if not errors:
        _told(errors, "lr", lambda: planned.tuning)
    told = list(dict.fromkeys(map(one_printable_line, errors)))
    return told[:SHOWN] + ([f"... and {len(told) - SHOWN} more mistakes"] if len(told) > SHOWN else [])


def _names(study: StudyFile, points: Iterable[GridPoint], errors: list[str]) -> set[tuple[str, str | int]]:
    """Report each invalid name with its place in the file, and return the (axis, name) pairs."""
    used = {label for point in points for label in point.labels().items()}
    parts: list[tuple[str, object]] = [("base", study.base)]
    parts += [(f"linked.{number}", entry) for number, entry in enumerate(study.linked)]
    parts += [(f"then.{number}", entry) for number, entry in enumerate(study.then)]
    written = [(f"{place}.{axis}", axis, getattr(part, axis, None)) for place, part in parts for axis in AXES]
    for axis in AXES:
        listed = enumerate(getattr(study.vary, axis) or [])
        written += [(f"vary.{axis}.{number}", axis, value) for number, value in listed]
    wrong: set[tuple[str, str | int]] = set()
    for place, axis, value in written:
        if value is not None and (axis, value) in used and not _told(errors, place, partial(_known, axis, value)):
            wrong.add((axis, value))
    return wrong


def _known(axis: str, text: str) -> bool:
    """Raise unless the name and its options are valid on their own."""
    if axis == "encoding":
        for spec in parse_specs(text):
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
    """Plan one point of each group that differs only in the seed."""
    found, known, told = [], set[tuple[object, ...]](), set[str]()
    for point in points:
        # What a later stage starts from matters too.
        key = tuple(value for one in point.chain for axis, value in one.labels().items() if axis != "seed")
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
    """Build each encoding in each model and each kind of positions for each task; check that all positions fit."""
    highest_training_position: dict[object, int | None] = {}
    limits: dict[object, int | str | None] = {}
    for point, plan in plans:
        task = (plan.task_spec, plan.positions_spec)
        if task not in highest_training_position:
            highest_training_position[task] = _told(
                errors, f"{point.task}, positions {point.positions}", plan.highest_training_position
            )
        model = (plan.encoding_specs, plan.model.model_copy(update={"vocabulary": 4}))
        if model not in limits:
            found = _told(errors, f"{point.encoding} in model {point.model}", lambda plan=plan: (_limit(plan),))
            limits[model] = "wrong" if found is None else found[0]
        needed, limit = highest_training_position[task], limits[model]
        if needed is not None and not isinstance(limit, str):
            _told(
                errors,
                f"{point.task}, {point.encoding}",
                lambda plan=plan, n=needed, m=limit: plan.check_position_limit(n, m),
            )


def _limit(plan: Plan) -> int | None:
    """Return `plan.limit()`, but raise instead of building a layer too large for this machine's memory."""
    if size := _heavy(plan):
        raise SpecError(
            f"a layer's attention would have {size:,} parameters; write a smaller width, heads or head_width"
        )
    return plan.limit()


def _heavy(plan: Plan) -> int:
    """Return the parameter count of a layer's attention if it is too large to build for a check, else 0."""
    model = plan.model
    size = 4 * model.width * model.heads * model.head_width
    return size if size > 2**29 else 0


def _told(errors: list[str], where: str, do: Callable[[], T]) -> T | None:
    try:
        return do()
    except SpecError as error:
        errors.append(f"{where}: {error}")
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        errors.append(
            f"{where}: cannot be made, its numbers are out of any range: {describe_error_with_line(error, '')}"
        )
    return None


def _same_run(plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Report points that are the same run, e.g. because one writes out a default; they would be counted twice."""
    seen: dict[str, GridPoint] = {}
    for point, plan in plans:
        first = seen.setdefault(plan.id, point)
        if first is not point:
            both = zip(point.labels().items(), first.labels().values(), strict=True)
            differ = [f"{axis} {there} and {axis} {here}" for (axis, here), there in both if here != there]
            errors.append(f"{'; '.join(differ)} are the same run: leave one of them out")


def _continued(planned: Planned, plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Check that the weights of each run fit the later stage that starts from them."""
    from lengthwise.run.pseudo_labels import check_pseudo_labels
    from lengthwise.run.run import load_matching_weights

    known: set[object] = set()
    for point, plan in plans:
        _told(errors, f"{point.task}, {point.encoding}, {point.training}", partial(check_pseudo_labels, plan))
        if point.start is None or _heavy(plan):
            continue
        before, allow = planned.plan(point.start), planned.later_stage(point).allow
        key = (before.encoding_specs, before.model, plan.encoding_specs, plan.model, tuple(allow))
        if key in known:
            continue
        known.add(key)
        _told(
            errors,
            f"then.{point.stage - 1}, {point.task}, {point.encoding}",
            lambda plan=plan, before=before, allow=allow: load_matching_weights(
                plan.decoder(), before.decoder().state_dict(), allow, f"a run with {before.encodings[0]}"
            ),
        )


def _evaluations(planned: Planned, plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]) -> None:
    """Check that each evaluation is valid, fits the weights of every run and has enough positions for its lengths."""
    from lengthwise.model.temperature import build_temperature
    from lengthwise.run.run import temperature_with_trained_length

    every = list(plans)
    for number, one in enumerate(planned.study.evaluations):
        place, plans = f"evaluations.{number}", [pair for pair in every if one.of in (None, pair[0].encoding)]
        if one.lengths is not None:
            for task, plan in {plan.task_spec: plan for _, plan in plans}.items():
                _told(errors, f"{place}.lengths, {task}", partial(_possible, plan, one.lengths))
        before = len(errors)
        if one.encoding is not None:
            for layers in dict.fromkeys(plan.model.layers for _, plan in plans):
                _told(errors, f"{place}.encoding", partial(encodings_of, one.encoding, layers))
        if one.temperature is not None and plans:
            sizes = plans[0][1].model.geometry
            _told(
                errors,
                f"{place}.temperature",
                partial(build_temperature, temperature_with_trained_length(one.temperature, lambda: 8), sizes),
            )
        if (one.encoding is not None or one.temperature is not None) and len(errors) == before:
            _evaluated_alike(place, one, plans, errors)


def _evaluated_alike(
    place: str, one: FurtherEvaluation, plans: Iterable[tuple[GridPoint, Plan]], errors: list[str]
) -> None:
    """Build the evaluated variant of each distinct model and encoding, and report each mistake once."""
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


def _evaluated(plan: Plan, one: FurtherEvaluation) -> int | None:
    """Return the first position beyond the evaluation's encodings; raise if they cannot be built or loaded."""
    from lengthwise.evaluation.decoding import position_limit
    from lengthwise.model import Decoder
    from lengthwise.run.run import load_matching_weights, temperature_with_trained_length, with_trained_length

    if _heavy(plan):
        return None
    wanted, changed = plan.encodings, {}
    if one.encoding is not None:
        # Any trained length will do: the run's real one makes no difference to this check.
        named = list(encodings_of(with_trained_length(one.encoding, lambda: 8), plan.model.layers))
        wanted = named * plan.model.layers if len(named) == 1 else named
    if one.temperature is not None:
        changed = {"temperature": temperature_with_trained_length(one.temperature, lambda: 8)}
    layers = list(dict.fromkeys(zip(plan.encodings, wanted, strict=True)))  # build each kind of layer once
    small = plan.model.model_copy(update={"vocabulary": 4, "feed_forward_width": 8, "layers": len(layers)})
    try:
        trained = Decoder(small, [spec for spec, _ in layers])
    except SpecError:
        return None  # already reported by the check of the trained model
    tested = Decoder(small.model_copy(update=changed), [spec for _, spec in layers])
    load_matching_weights(
        tested, trained.state_dict(), one.allow, f"a run with {','.join(map(str, plan.encoding_specs))}"
    )
    tested.effective()
    return position_limit(tested)


def _roomy(plan: Plan, limit: int) -> None:
    plan.check_position_limit(plan.highest_training_position(), limit)


def _possible(plan: Plan, text: str) -> None:
    from lengthwise.evaluation.cases import splits_and_lengths

    splits_and_lengths(plan.task, parse_lengths(text))
