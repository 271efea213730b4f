"""Checks of an encoding's claims: what it claims must hold, and what it does not claim must not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.subject import SMALL, TOLERANCE, Subject, relative_error
from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import HOOKS, option_taken_hint
from lengthwise.model.taps import Recorder, Tap
from lengthwise.spec import Spec, SpecError, options

CHANGED = 1e-6
"""Logits that differ by more than this, relative to the largest, have changed."""


@check("T07", "Claim `relative`: a common shift of all positions changes nothing, or it does, as claimed.")
@torch.no_grad()
def check_relative(subject: Subject) -> Iterator[CheckCase]:
    n = subject.sequence_lengths(9)[-1]
    decoder, ids, places = subject.decoder(), subject.ids(n), subject.places(n)
    room = 1000 if subject.encoding.limit is None else min(1000, subject.encoding.limit - 1 - int(places.max()))
    if room < 1:
        raise NotApplicable(f"positions up to {int(places.max())} leave no room for a shift below its limit")
    truth = subject.unbatched_logits(decoder, ids, places)
    moved = {
        shift: relative_error(subject.unbatched_logits(decoder, ids, places + shift), truth)
        for shift in sorted({1, room})
    }
    if subject.encoding.relative:
        for shift, error in moved.items():
            yield CheckCase(f"{n} tokens shifted by {shift} (if it is absolute, claim relative = False)", error, 1e-5)
    else:
        case = (
            f"{n} tokens shifted by {' or '.join(str(shift) for shift in moved)} change nothing: claim relative = True"
        )
        yield CheckCase(case, float(max(moved.values()) < CHANGED), 0)


@check("T08", "With an encoding positions matter, or order alone if claimed `ordinal`; without one they do not.")
@torch.no_grad()
def check_has_an_effect(subject: Subject) -> Iterator[CheckCase]:
    n = subject.sequence_lengths(9)[-1]
    decoder, ids, places = subject.decoder(), subject.ids(n), subject.places(n)
    if not subject.encoding.acts():
        hooks = ", ".join(HOOKS)
        silent = float(subject.formula != "nope")
        yield CheckCase(
            f"it overrides none of {hooks}, so it is NoPE (if it is meant to be, formula = 'nope')", silent, 0
        )
        truth = subject.unbatched_logits(decoder, ids, places)
        yield CheckCase(
            "positions three times as far apart",
            relative_error(subject.unbatched_logits(decoder, ids, places * 3), truth),
            0,
        )
        order = torch.arange(n).flip(0)
        if subject.order_matters_without_positions:
            return
        blind = subject.decoder(mask="bidirectional")
        got, wanted = (
            subject.unbatched_logits(blind, ids[order], places),
            subject.unbatched_logits(blind, ids, places)[order],
        )
        yield CheckCase(f"{n} tokens reversed, no mask", relative_error(got, wanted), TOLERANCE[torch.float64])
        reversed_causal = subject.unbatched_logits(decoder, ids[order], places)
        yield CheckCase(
            f"{n} tokens reversed under a causal mask: nothing changes",
            float(relative_error(reversed_causal, truth[order]) < CHANGED),
            0,
        )
        return
    spread = torch.arange(n)
    truth = subject.unbatched_logits(decoder, ids, spread)
    if subject.encoding.ordinal:
        without = subject.unbatched_logits(subject.decoder(encoding="nope"), ids, spread)
        yield CheckCase(
            f"{n} tokens, as without an encoding: it does nothing", float(relative_error(truth, without) < 1e-3), 0
        )
        case = f"{n} tokens at positions 3 times as far apart (if they matter, claim ordinal = False)"
        yield CheckCase(
            case, relative_error(subject.unbatched_logits(decoder, ids, spread * 3), truth), TOLERANCE[torch.float64]
        )
        return
    factor = 3 if subject.encoding.limit is None else min(3, (subject.encoding.limit - 1) // max(n - 1, 1))
    if factor < 2:
        raise NotApplicable("its limit leaves no room to spread positions")
    still = float(relative_error(subject.unbatched_logits(decoder, ids, spread * factor), truth) < 1e-3)
    case = (
        f"{n} tokens at positions {factor} times as far apart: nothing changes (by order alone? claim ordinal = True)"
    )
    yield CheckCase(case, still, 0)


@check("T09", "Claim `limit`: the last position works, the next is a clear error, never a clamp or a wrap.")
@torch.no_grad()
def check_position_limit(subject: Subject) -> Iterator[CheckCase]:
    decoder, ids = subject.decoder(), subject.ids(2)
    end = subject.encoding.limit
    if end is None:
        for far in (1_000, 30_000):
            for model in (decoder, subject.decoder(torch.float32)):
                logits = subject.unbatched_logits(model, ids, torch.tensor([0, far]))
                case = f"logits at position {far}, {str(logits.dtype).removeprefix('torch.')}: not finite"
                yield CheckCase(case, int((~logits.isfinite()).sum()), 0)
        for hook, rows in _by_position(subject, 4096).items():
            same = 4096 - len(rows.unique(dim=0))
            yield CheckCase(f"{hook}: {same} of the positions 0–4095 are like others: clamped or wrapped", same, 0)
        if subject.encoding.overrides("embed"):
            a, b = (subject.unbatched_logits(decoder, ids, torch.tensor([0, far])) for far in (30_000, 30_001))
            yield CheckCase(
                "positions 30,000 and 30,001 are one: a clamped table that claims no limit",
                float(relative_error(a, b) < CHANGED),
                0,
            )
        return
    logits = subject.unbatched_logits(decoder, ids[: min(2, end)], torch.arange(end)[-2:])
    yield CheckCase(f"the last position, {end - 1}: not finite", int((~logits.isfinite()).sum()), 0)
    encoding = subject.encoding
    for asked in (end, end + 1000):
        yield CheckCase(
            f"position {asked} of a limit of {end}: no clear error", float(not _refuses(subject, asked, end)), 0
        )
    if encoding.overrides("embed"):
        try:
            encoding.embed(torch.zeros(1, 1, SMALL.width), torch.tensor([[float(end)]]))
            silent = 1.0
        except (ValueError, IndexError):
            silent = 0.0
        yield CheckCase(f"embedding position {end} of a limit of {end}: clamped or wrapped in silence", silent, 0)


def _by_position(subject: Subject, count: int) -> dict[str, torch.Tensor]:
    """The output of `embed` and `rotate` for one vector at each position, for the hooks that have an effect."""
    places, found = torch.arange(count, dtype=torch.float64)[None], {}
    encoding = subject.encoding
    if encoding.overrides("embed"):
        found["embed"] = encoding.embed(torch.zeros(1, count, SMALL.width, dtype=torch.float64), places)[0]
    if encoding.overrides("rotate"):
        x = torch.ones(1, SMALL.heads, count, SMALL.head_width, dtype=torch.float64)
        turned = encoding.rotate(x, x, encoding.prepare(places, places, torch.tensor([count])))[0]
        if not torch.equal(turned, x):
            found["rotate"] = turned[0].transpose(0, 1).flatten(1)
    return found


def _refuses(subject: Subject, asked: int, end: int) -> bool:
    try:
        subject.unbatched_logits(subject.decoder(), subject.ids(1), torch.tensor([asked]))
    except ValueError as error:
        return str(asked) in str(error) and (str(end) in str(error) or str(end - 1) in str(error))
    return False


@check("C01", "Claim `prefix_stable`: appending tokens never changes earlier logits, or it does, as claimed.")
@torch.no_grad()
def check_prefix_stable(subject: Subject) -> Iterator[CheckCase]:
    moved, sequence_lengths = 0.0, subject.lengths_and_one_beyond(2, 9, 40)
    for n in sequence_lengths:
        decoder, ids, places = subject.decoder(), subject.ids(n), subject.places(n)
        # The budget is the same in all calls, so that a difference can only come from the number of tokens.
        whole = decoder(ids[None], positions_BT=places[None], budget=n)[0]
        for k in range(1, n) if n <= 40 else (1, n // 2, n - 1):
            part = decoder(ids[None, :k], positions_BT=places[None, :k], budget=n)[0]
            moved = max(moved, relative_error(part, whole[:k]))
            if subject.encoding.prefix_stable:
                yield CheckCase(
                    f"the first {k} of {n} tokens alone", relative_error(part, whole[:k]), TOLERANCE[torch.float64]
                )
    if not subject.encoding.prefix_stable:
        case = f"up to {sequence_lengths[-1]} tokens: earlier logits move by {moved:.2g}, so claim prefix_stable = True"
        told = f"within {sequence_lengths[-1]} tokens earlier logits move by up to {moved:.2g} of the largest"
        yield CheckCase(case, float(moved < CHANGED), 0, told)
    elif sequence_lengths[-1] < 2:
        raise NotApplicable("it has room for one token only")


@check("C02", "Claim `static_keys`: a key is turned the same way whatever comes after it, or not, as claimed.")
@torch.no_grad()
def check_static_keys(subject: Subject) -> Iterator[CheckCase]:
    encoding = subject.encoding
    if not encoding.overrides("rotate"):
        if encoding.static_keys or encoding.overrides("prepare"):
            raise NotApplicable("it turns no keys")
        yield CheckCase("it turns no keys, so claim static_keys = True", 1.0, 0)
    moved = 0.0
    for n in subject.lengths_and_one_beyond(2, 9, 40):
        places = subject.places(n).double()[None]
        generator = torch.Generator().manual_seed(n)
        k = torch.randn(1, SMALL.heads, n, SMALL.head_width, dtype=torch.float64, generator=generator)
        wholly = encoding.rotate(k, k, encoding.prepare(places, places, torch.tensor([n])))[1]
        # The budget is that of the whole sequence, unless the encoding claims to depend on the number of tokens so far.
        for m in range(1, n) if n <= 40 else (1, n // 2, n - 1):
            early, places_m = k[:, :, :m], places[:, :m]
            budget = torch.tensor([n if encoding.prefix_stable else m])
            turned = encoding.rotate(early, early, encoding.prepare(places_m, places_m, budget))[1]
            moved = max(moved, relative_error(turned, wholly[:, :, :m]))
            if encoding.static_keys:
                yield CheckCase(f"the first {m} of {n} keys, claimed static", moved, TOLERANCE[torch.float64])
    if not encoding.static_keys:
        told = f"keys move by up to {moved:.2g} of the largest"
        yield CheckCase("keys never move, so claim static_keys = True", float(moved < CHANGED), 0, told)


@check("T21", "Claim `shared`: one instance for all layers that name it, or one for each, as claimed; each is used.")
@torch.no_grad()
def check_shared_across_layers(subject: Subject) -> Iterator[CheckCase]:
    decoder = subject.fresh_decoder(layers=3)
    wanted = 1 if subject.encoding.shared else 3
    yield CheckCase(f"instances in 3 layers, {wanted} wanted", abs(len(decoder.encodings) - wanted), 0)
    n = subject.sequence_lengths(9)[-1]
    ids, places = subject.ids(n), subject.places(n)
    truth = subject.unbatched_logits(decoder, ids, places)
    for name, parameter in list(decoder.named_parameters()):
        if name.startswith("encodings."):
            kept = parameter.clone()
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
            parameter.add_(0.5 * noise.to(parameter.dtype))
            unused = float(relative_error(subject.unbatched_logits(decoder, ids, places), truth) < CHANGED)
            parameter.copy_(kept)
            yield CheckCase(f"{name} is not used: another value changes nothing", unused, 0)


@check("T28", "Every option is read back from the module as it was asked.")
def check_options_are_attributes(subject: Subject) -> Iterator[CheckCase]:
    known = options(type(subject.encoding))
    if not known:
        raise NotApplicable("it has no options")
    asked = {} if isinstance(subject.named, type) else dict(subject.named.options)
    for name, parameter in known.items():
        wanted = asked.get(name, parameter.default)
        if wanted is inspect.Parameter.empty:
            continue
        got = getattr(subject.encoding, name, _NOTHING)
        if isinstance(got, torch.Tensor):
            yield CheckCase(f"option {name}={wanted} cannot be read back: {option_taken_hint(name)}", 1, 0)
            continue
        told = f"{name}={got}" if name in asked else ""
        yield CheckCase(f"option {name}={wanted} is kept as {got}", float(got is _NOTHING or got != wanted), 0, told)
        # Try another value too: a constructor that ignores its argument would pass with the default.
        for other in _others(wanted):
            try:
                made = _with(subject, name, other)
            except SpecError:
                continue
            got = getattr(made, name, _NOTHING)
            yield CheckCase(f"option {name}={other} is kept as {got}", float(got is _NOTHING or got != other), 0)


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _others(value: object) -> list[object]:
    """Values of the same type that an option may also have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 2]
    if isinstance(value, float):
        return [value / 2, value / 4]
    return []


def _with(subject: Subject, name: str, value: object) -> object:
    if isinstance(subject.named, type):
        return subject.named(SMALL.geometry, **{name: value})  # pyrefly: ignore[unexpected-keyword]
    changed = Spec(subject.named.name, tuple({**dict(subject.named.options), name: value}.items()))  # pyrefly: ignore[bad-argument-type]
    return build_encoding(changed, SMALL.geometry)


@check("T29", "In a list with one entry per layer it acts in its own layer alone; on embeddings, only for all layers.")
@torch.no_grad()
def check_encodings_per_layer(subject: Subject) -> Iterator[CheckCase]:
    if not subject.encoding.acts():
        raise NotApplicable("it acts nowhere")
    if subject.encoding.overrides("embed"):
        try:
            subject.fresh_decoder(encoding=[subject.named, "nope"])
            accepted = 1.0
        except SpecError:
            accepted = 0.0
        yield CheckCase("a list that names it for the first of two layers: accepted", accepted, 0)
        return
    n = subject.sequence_lengths(9)[-1]
    ids = subject.ids(n)
    near, far = torch.arange(n), torch.arange(n) * 3
    if subject.encoding.limit is not None and int(far.max()) >= subject.encoding.limit:
        raise NotApplicable("its limit leaves no room to spread positions")
    plain = subject.fresh_decoder(encoding="nope")
    for where in range(2):
        listed = [subject.named if layer == where else "nope" for layer in range(2)]
        decoder = subject.fresh_decoder(encoding=listed)
        for layer in range(2):
            seen = Recorder()
            outputs = []
            # An ordinal encoding ignores positions, so it is compared with NoPE instead.
            tried = ((decoder, near), (plain, near) if subject.encoding.ordinal else (decoder, far))
            for model, places in tried:
                # The layer's input is fixed, so that positions can only act through the layer's own attention.
                fixed = torch.randn(1, n, SMALL.width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
                taps: dict[str, Tap] = {
                    "embeddings" if layer == 0 else f"layers.{layer - 1}.residual": lambda _, x, fixed=fixed: fixed
                }
                taps[f"layers.{layer}.residual"] = seen
                subject.unbatched_logits(model, ids, places, taps=taps)
                outputs.append(seen[f"layers.{layer}.residual"])
            changed = relative_error(outputs[1], outputs[0])
            wrong = changed < CHANGED if layer == where else changed > TOLERANCE[torch.float64]
            said = "does not act there" if layer == where else "acts there too"
            yield CheckCase(f"named for layer {where} of 2, looked at in layer {layer}: {said}", float(wrong), 0)
