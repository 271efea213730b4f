"""Checks of what is computed: formulas, precision, biases, masks, gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from lengthwise.conformance.check import CheckCase, NotApplicable, check
from lengthwise.conformance.formulas import alibi_slopes, alibi_slopes_by_paper_text, sinusoid, t5_bucket
from lengthwise.conformance.reference import Triangle, reference_logits
from lengthwise.conformance.subject import SMALL, TOLERANCE, Subject, relative_error
from lengthwise.encoding.base import Encoding
from lengthwise.model.layer import Layer
from lengthwise.model.taps import Recorder, Tap

FAR = (257, 4095, 65535)
SHORT = 2.0**-8
"""The resolution of bf16 near 1; the error of an encoding computed in fp32 is smaller."""


def _claims(subject: Subject, formula: str) -> None:
    if subject.formula != formula:
        raise NotApplicable(f"it does not claim to be {formula}")


def _vectors(tokens: int, head_width: int) -> Tensor:
    """Queries or keys of a small decoder: (1, H, T, E)."""
    return torch.randn(1, SMALL.heads, tokens, head_width, generator=torch.Generator().manual_seed(tokens))


@check("T13", "In a bf16 model positions are still used in fp32: exact to 2^-8, and neighbours stay apart.")
@torch.no_grad()
def check_short_precision(subject: Subject) -> Iterator[CheckCase]:
    # bf16 rounds parameters, but must not round what is computed from positions. So both models share the parameters.
    short = copy.deepcopy(subject.encoding).to(torch.bfloat16)
    exact = copy.deepcopy(short).double()
    last = (subject.encoding.limit or 10**9) - 1
    budget = torch.tensor([subject.budget])
    for far in sorted({min(far, last) for far in FAR}):
        places = torch.tensor([[far - 1, far]], dtype=torch.float32)
        if subject.encoding.overrides("embed"):
            got = short.embed(torch.zeros(1, 2, SMALL.width), places)
            wanted = exact.embed(torch.zeros(1, 2, SMALL.width, dtype=torch.float64), places.double())
            yield CheckCase(f"embedding at position {far}", float((got - wanted).abs().max()), SHORT)
            yield CheckCase(
                f"embeddings at {far - 1} and {far} are one", float((got[:, 0] - got[:, 1]).abs().max() < SHORT), 0
            )
        if subject.encoding.overrides("rotate"):
            x = _vectors(1, SMALL.head_width).expand(-1, -1, 2, -1)
            got = short.rotate(x, x, short.prepare(places, places, budget))
            wide = places.double()
            wanted = exact.rotate(x.double(), x.double(), exact.prepare(wide, wide, budget))
            for name, a, b in zip(("query", "key"), got, wanted, strict=True):
                # Relative to its own size: xPos makes keys as large as it makes queries small.
                yield CheckCase(f"{name} at position {far}", relative_error(a, b), SHORT)
            near = torch.tensor([[1.0, 2.0]])
            first = short.rotate(x, x, short.prepare(near, near, budget))[0]
            if not torch.equal(first[:, :, 0], first[:, :, 1]):
                a, b = got[0][:, :, 0], got[0][:, :, 1]
                one = float(((a - b).abs() / (a.abs() + b.abs()).clamp(min=1e-30)).max() < SHORT)
                yield CheckCase(f"queries at {far - 1} and {far} are one", one, 0)
        if subject.biased:
            query = torch.tensor([[float(far)]])
            got, wanted = short.bias(query, places), exact.bias(query.double(), places.double())
            assert got is not None and wanted is not None
            got_far, wanted_far = short.bias(query, query * 0), exact.bias(query.double(), query.double() * 0)
            assert got_far is not None and wanted_far is not None
            yield CheckCase(f"bias at distances 0 and 1 from position {far}", _apart(got, wanted), SHORT)
            scale = max(1.0, float(wanted_far.nan_to_num(neginf=0.0).abs().max()) / 2**14)
            yield CheckCase(f"bias at distance {far}", _apart(got_far, wanted_far) / scale, SHORT)
        if subject.encoding.overrides("score"):
            ids, near = subject.ids(3), torch.tensor([0, far - 1, far])
            deep = subject.fresh_decoder(layers=1).to(torch.bfloat16)
            truth = subject.unbatched_logits(copy.deepcopy(deep).double(), ids, near)
            case = f"a whole bf16 model, tokens at 0, {far - 1} and {far}, relative to the largest logit"
            yield CheckCase(case, relative_error(subject.unbatched_logits(deep, ids, near), truth), 0.1)
    n = subject.sequence_lengths(9)[-1]
    model = subject.fresh_decoder().to(torch.bfloat16)
    ids, places = subject.ids(n), subject.places(n)
    truth = subject.unbatched_logits(copy.deepcopy(model).double(), ids, places)
    yield CheckCase(
        f"a whole bf16 model, {n} tokens, relative to the largest logit",
        relative_error(subject.unbatched_logits(model, ids, places), truth),
        0.1,
    )


def _apart(got: Tensor, wanted: Tensor) -> float:
    """The largest difference; keys that are hidden (−inf) in both do not count."""
    hidden = (got == -torch.inf) & (wanted == -torch.inf)
    return float((got.double() - wanted.double()).masked_fill(hidden, 0.0).abs().max())


@check("T15", "ALiBi has the authors' slopes (or the text's, if it says so) for 1–17 and 40 heads.")
@torch.no_grad()
def check_alibi_formula(subject: Subject) -> Iterator[CheckCase]:
    _claims(subject, "alibi")
    rule = alibi_slopes_by_paper_text if getattr(subject.encoding, "slopes", "authors") == "text" else alibi_slopes
    for heads in (1, 2, 4, 8, *range(1, 18), 40):
        encoding = subject.build_initialised_encoding(SMALL.model_copy(update={"heads": heads}).geometry).double()
        for distance in (0, 1, 2, 100):
            query = torch.tensor([[float(distance)]], dtype=torch.float64)
            # Softmax ignores a constant per query, so BLOOM's slope · key is equivalent to −slope · distance.
            got = (encoding.checked_bias(query, query * 0) - encoding.checked_bias(query, query)).flatten()
            wanted = -distance * torch.tensor(rule(heads), dtype=torch.float64)
            head = int((got - wanted).abs().argmax())
            case = (
                f"{heads} heads, distance {distance}, head {head}: {float(got[head]):.6g} for {float(wanted[head]):.6g}"
            )
            yield CheckCase(case, float((got - wanted).abs().max()), 1e-6 * max(1, distance))


@check("T17", "Every form of the bias an encoding has (columns, by distance, matrix) says the same.")
@torch.no_grad()
def check_bias_forms_agree(subject: Subject) -> Iterator[CheckCase]:
    if not subject.biased:
        raise NotApplicable("it adds no bias")
    encoding = subject.encoding
    if not (encoding.overrides("columns") or encoding.overrides("by_distance")):
        raise NotApplicable("it has one form only")
    tolerance = TOLERANCE[torch.float64]
    for n in subject.sequence_lengths(2, 9, 40):
        positions = subject.places(n).double()[None]
        distance = positions[:, :, None] - positions[:, None, :]
        visible = (torch.ones(n, n).tril() > 0) & (distance >= 0)
        whole = encoding.bias(positions, positions)
        assert whole is not None
        by_distance = encoding.by_distance(distance.flatten())
        if by_distance is not None:
            got = by_distance.view(-1, n, n)[None]
            yield CheckCase(f"by distance against matrix, {n} tokens", relative_error(got, whole), tolerance)
        columns = encoding.columns(positions)
        if columns is not None:
            query, key = columns
            got = (query @ key.mT).masked_fill(~visible, -torch.inf).softmax(-1)
            wanted = whole.masked_fill(~visible, -torch.inf).softmax(-1)
            yield CheckCase(f"columns against matrix, {n} tokens", relative_error(got, wanted), tolerance)


def _silent(_: str, q_BHQE: Tensor) -> Tensor:
    """A tap that sets all queries to 0."""
    return torch.zeros_like(q_BHQE)


def _weights_from_bias(subject: Subject, n: int, scale: float | None, head_width: int) -> Tensor:
    """A layer's attention weights when all queries are 0, so that they depend only on the bias."""
    decoder = subject.decoder(layers=1, attention_scale=scale, head_width=head_width)
    heads = Recorder()
    subject.unbatched_logits(
        decoder,
        torch.zeros(n, dtype=torch.long),
        subject.places(n),
        taps={"layers.0.q": _silent, "layers.0.weights": heads},
    )
    return heads["layers.0.weights"][0]


@check("T18", "The bias is added as it is, whatever the attention scale and the head width.")
@torch.no_grad()
def check_unscaled_bias(subject: Subject) -> Iterator[CheckCase]:
    if not subject.biased:
        raise NotApplicable("it adds no bias")
    for n in subject.sequence_lengths(2, 9):
        positions = subject.places(n).double()[None]
        for scale in (None, 1.0, 0.01):
            for head_width in (8, 16):
                decoder = subject.decoder(layers=1, attention_scale=scale, head_width=head_width)
                encoding, layer = decoder.encodings[0], decoder.layers[0]
                assert isinstance(encoding, Encoding) and isinstance(layer, Layer)
                if layer.attention.temperature.scales_bias:
                    raise NotApplicable("its temperature multiplies the bias")
                bias = encoding.bias(positions, positions)
                assert bias is not None
                visible = Triangle(n)
                masked = bias.masked_fill(~visible.allowed_BQK[:, None], -torch.inf)
                wanted = layer.attention.normaliser.weigh(masked, visible)[0]
                got = _weights_from_bias(subject, n, scale, head_width)
                case = f"{n} tokens, scale {scale or '1/√width'}, head width {head_width}"
                yield CheckCase(
                    f"weights of silent queries, {case}", relative_error(got, wanted), TOLERANCE[torch.float64]
                )
                yield CheckCase(
                    f"fast path, {case}", _fast_differs(subject, n, scale, head_width), TOLERANCE[torch.float64]
                )


def _fast_differs(subject: Subject, n: int, scale: float | None, head_width: int) -> float:
    """The difference between the outputs of the fast and the dense path when all queries are 0."""
    decoder = subject.decoder(layers=1, attention_scale=scale, head_width=head_width)
    ids, places = subject.ids(n), subject.places(n)
    fast, written_out = Recorder(), Recorder()
    subject.unbatched_logits(decoder, ids, places, taps={"layers.0.q": _silent, "layers.0.heads": fast})
    taps: dict[str, Tap] = {"layers.0.q": _silent, "layers.0.weights": Recorder(), "layers.0.heads": written_out}
    subject.unbatched_logits(decoder, ids, places, taps=taps)
    return relative_error(fast["layers.0.heads"], written_out["layers.0.heads"])


@check("T19", "Logits are those of attention written out in float64, at any attention scale and on every path.")
@torch.no_grad()
def check_against_loop_reference(subject: Subject) -> Iterator[CheckCase]:
    for scale in (None, 1.0, 0.3):
        # At 520 tokens a bias with columns uses them.
        for n in subject.sequence_lengths(2, 9, *([520] if scale is None else [])):
            ids, places = subject.ids(n), subject.places(n, budget=max(n, subject.budget))
            exact = subject.decoder(attention_scale=scale)
            truth = reference_logits(exact, ids, places, max(n, subject.budget))
            for dtype, tolerance in TOLERANCE.items():
                decoder = subject.decoder(dtype, attention_scale=scale)
                case = f"{n} tokens, scale {scale or '1/√width'}, {str(dtype).removeprefix('torch.')}"
                # Hundreds of terms per sum: fp32 rounding grows with the root of their number.
                allowed = tolerance * (1 if n < 100 else 10)
                yield CheckCase(case, relative_error(subject.unbatched_logits(decoder, ids, places), truth), allowed)


@check(
    "T20", "T5's buckets: one distance each up to half, then logarithmic to the furthest, then the last; none unused."
)
@torch.no_grad()
def check_t5_formula(subject: Subject) -> Iterator[CheckCase]:
    _claims(subject, "t5")
    encoding = subject.build_initialised_encoding(
        SMALL.geometry
    ).double()  # a separate instance: its table is overwritten below
    buckets, furthest = int(getattr(encoding, "buckets", 32)), int(getattr(encoding, "distance", 128))
    if getattr(encoding, "bidirectional", False):
        buckets //= 2
    shape = (int(getattr(encoding, "buckets", 32)), SMALL.heads)
    tables = [parameter for parameter in encoding.parameters() if parameter.shape == shape]
    if not tables:
        yield CheckCase(f"it has no parameter of shape (buckets, heads) = {shape}", 1, 0)
        return
    table = tables[0]
    # Row b of the table holds b, so that the bias is the bucket's index.
    table.copy_(torch.arange(table.shape[0], dtype=table.dtype)[:, None].expand_as(table))
    seen = set()
    for distance in range(2001):
        query = torch.tensor([[float(distance)]], dtype=torch.float64)
        got = encoding.bias(query, query * 0)
        assert got is not None
        wanted = t5_bucket(distance, buckets, furthest)
        seen.add(float(got.flatten()[0]))
        if wanted is not None:
            yield CheckCase(f"bucket of distance {distance}", float((got - wanted).abs().max()), 0)
    if furthest <= 2000:
        yield CheckCase(f"buckets of {buckets} never used", buckets - len(seen), 0)


@check("T22", "Gradients are finite, reach every parameter of the encoding, and equal those written out in float64.")
def check_gradients(subject: Subject) -> Iterator[CheckCase]:
    for n in subject.sequence_lengths(3, 9):
        ids, places = subject.ids(n), subject.places(n)
        exact = subject.fresh_decoder()
        reference_logits(exact, ids, places, subject.budget).square().mean().backward()
        wanted = {name: parameter.grad for name, parameter in exact.named_parameters()}
        # A gradient may be pure rounding error (e.g. of a constant that softmax ignores), so set a minimum scale.
        least = 1e-3 * max(float(grad.abs().max()) for grad in wanted.values() if grad is not None)
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            decoder = subject.fresh_decoder(dtype)
            subject.unbatched_logits(decoder, ids, places).square().mean().backward()
            for name, parameter in decoder.named_parameters():
                truth, got = wanted[name], parameter.grad
                case = f"{name}, {n} tokens, {str(dtype).removeprefix('torch.')}"
                if name.startswith("encodings.") or ".normaliser." in name or ".temperature." in name:
                    yield CheckCase(
                        f"no gradient at all for {case}", float(got is None or not bool(got.abs().max() > 0)), 0
                    )
                if got is not None and truth is not None:
                    error = float((got - truth).abs().max()) / max(float(truth.abs().max()), least)
                    yield CheckCase(f"gradient of {case}", error, tolerance)
    # Long enough to use the parameters of larger distances.
    yield from _slopes(subject, subject.sequence_lengths(40)[-1])


def _slopes(subject: Subject, n: int) -> Iterator[CheckCase]:
    """Compare gradients with finite differences of the loss, which do not rely on the hooks' own gradients."""
    decoder, ids, places = subject.fresh_decoder(), subject.ids(n), subject.places(n)
    weights = torch.randn(n, SMALL.vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss() -> Tensor:
        return (subject.unbatched_logits(decoder, ids, places) * weights).sum()

    loss().backward()
    for group, part in (("its parameters", "encodings."), ("queries", "attention.q."), ("keys", "attention.k.")):
        chosen = [parameter for name, parameter in decoder.named_parameters() if part in name]
        if not chosen:
            continue
        generator = torch.Generator().manual_seed(1)
        along = [torch.randn(parameter.shape, dtype=torch.float64, generator=generator) for parameter in chosen]
        said = sum(float((p.grad * u).sum()) for p, u in zip(chosen, along, strict=True) if p.grad is not None)
        size = sum(float((p.grad**2).sum()) for p in chosen if p.grad is not None) ** 0.5
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                for parameter, u in zip(chosen, along, strict=True):
                    parameter.add_(step * u)
                values.append(float(loss()))
            for parameter, u in zip(chosen, along, strict=True):
                parameter.add_(1e-6 * u)
        seen = (values[0] - values[1]) / 2e-6
        case = f"slope of a loss along {group}, {n} tokens: the gradient says {said:.6g}, two losses {seen:.6g}"
        yield CheckCase(case, abs(said - seen) / max(abs(seen), size, 1e-6), 1e-5)


@check("T23", "A hidden key gets exactly no weight, even where real scores are −1e6.")
@torch.no_grad()
def check_hidden_keys_have_no_effect(subject: Subject) -> Iterator[CheckCase]:
    decoder = subject.decoder(torch.float32, layers=1)
    # Visible keys get scores near −1e6, hidden ones near +1e6: only a mask of −inf passes.
    for n in subject.sequence_lengths(2, 9):
        ids, places = subject.ids(n), subject.places(n)
        ahead = torch.ones(n, n).triu(1) > 0
        for shift in (1e3, 1e6):

            def towards_the_future(_: str, k: Tensor, size: float = shift) -> Tensor:
                return torch.linspace(-size, size, k.shape[2])[:, None].expand_as(k).clone()

            def ones(_: str, q: Tensor) -> Tensor:
                return torch.ones_like(q)

            weights, fast = Recorder(), Recorder()
            taps: dict[str, Tap] = {"layers.0.q": ones, "layers.0.k": towards_the_future}
            subject.unbatched_logits(decoder, ids, places, taps={**taps, "layers.0.weights": weights})
            mass = float(weights["layers.0.weights"][0][:, ahead].abs().max())
            yield CheckCase(f"weight on the future, {n} tokens, scores up to {shift:g}", mass, 0)
            subject.unbatched_logits(decoder, ids, places, taps={**taps, "layers.0.heads": fast})
            before = fast["layers.0.heads"]
            subject.unbatched_logits(
                decoder,
                torch.cat([ids[:-1], (ids[-1:] + 1) % SMALL.vocabulary]),
                places,
                taps={**taps, "layers.0.heads": fast},
            )
            moved = relative_error(fast["layers.0.heads"][:, :, :-1], before[:, :, :-1])
            yield CheckCase(
                f"fast path, {n} tokens, scores up to {shift:g}: the last token changes earlier ones", moved, 0
            )


@check("T24", "Changing a token changes no logit before it, on the fast path and on the dense one.")
@torch.no_grad()
def check_causal(subject: Subject) -> Iterator[CheckCase]:
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        for n in subject.sequence_lengths(2, 9):
            ids, places = subject.ids(n), subject.places(n)
            for path, taps in (("fast", None), ("dense", {"layers.*.weights": Recorder()})):
                truth = subject.unbatched_logits(decoder, ids, places, taps=taps)
                for j in range(1, n):
                    changed = ids.clone()
                    changed[j] = (changed[j] + 1) % SMALL.vocabulary
                    got = subject.unbatched_logits(decoder, changed, places, taps=taps)
                    case = f"token {j} of {n} changed, {path} path, {str(dtype).removeprefix('torch.')}"
                    yield CheckCase(case, relative_error(got[:j], truth[:j]), tolerance)
                    yield CheckCase(f"{case}: its own logits stay", float(relative_error(got[j:], truth[j:]) < 1e-6), 0)


@check("T30", "Sinusoids have the published frequencies and layout, at the amplitude it names.")
@torch.no_grad()
def check_sinusoid_formula(subject: Subject) -> Iterator[CheckCase]:
    _claims(subject, "sinusoidal")
    encoding = subject.encoding
    amplitude = getattr(encoding, "amplitude", None)
    amplitude = SMALL.geometry.embedding_std if amplitude is None else amplitude
    for position in (0, 1, 2, 100, 2000):
        places = torch.tensor([[position]], dtype=torch.float64)
        got = encoding.embed(torch.zeros(1, 1, SMALL.width, dtype=torch.float64), places).flatten()
        theta, interleaved = getattr(encoding, "theta", 10_000.0), getattr(encoding, "interleaved", False)
        wanted = sinusoid(position, SMALL.width, theta, interleaved)
        error = relative_error(got, amplitude * torch.tensor(wanted, dtype=torch.float64))
        yield CheckCase(f"position {position}, amplitude {amplitude}", error, max(1e-6, position * 1.2e-7))


@check("T57", "Asking for weights changes no logit; rows sum to 1 (if `complete`; else to less), none on the future.")
@torch.no_grad()
def check_weights_on_demand(subject: Subject) -> Iterator[CheckCase]:
    for dtype, tolerance in TOLERANCE.items():
        decoder = subject.decoder(dtype)
        for n in subject.sequence_lengths(2, 9):
            ids, places = subject.ids(n), subject.places(n)
            weights = Recorder()
            got = subject.unbatched_logits(decoder, ids, places, taps={"layers.*.weights": weights})
            case = f"{n} tokens, {str(dtype).removeprefix('torch.')}"
            yield CheckCase(
                f"logits with weights, {case}",
                relative_error(got, subject.unbatched_logits(decoder, ids, places)),
                tolerance,
            )
            for name, weight in weights.items():
                sums = weight.sum(-1)
                if subject.encoding.complete and subject.normaliser.complete:
                    yield CheckCase(f"row sums of {name}, {case}", float((sums - 1).abs().max()), 1e-6)
                else:
                    yield CheckCase(f"row sums of {name} above 1, {case}", float((sums - 1).max().clamp(min=0)), 1e-6)
                    whole = float(bool((sums > 1 - 1e-6).all()))
                    yield CheckCase(f"all rows of {name} sum to 1, {case}: claim complete = True", whole, 0)
                ahead = float(weight[..., torch.ones(n, n).triu(1) > 0].abs().max())
                yield CheckCase(f"future mass of {name}, {case}", ahead, 0)
