"""The encoding under test, built into small decoders whose weights are large enough for a bug to show."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lengthwise.conformance.weights import WEIGHTS
from lengthwise.encoding import build_encoding, build_positions
from lengthwise.encoding.base import CLAIMS, HOOKS, Encoding, Geometry, normal_
from lengthwise.encoding.positions import Given
from lengthwise.model import Decoder, DecoderConfig
from lengthwise.model.layer import Layer
from lengthwise.normaliser import build_normaliser
from lengthwise.normaliser.base import Normaliser
from lengthwise.spec import Spec, SpecError, did_you_mean, digest, options

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""How far two ways of computing the same logits may differ, relative to the largest logit."""

FORMULAS = ("nope", "sinusoidal", "learned", "t5", "alibi", "rope", *WEIGHTS)
"""The formulas an encoding may claim; all but `nope` and `learned`, which are only names, are checked."""

ROOM = 9
"""The minimum number of positions that the checks need."""

BUDGET = 48
"""The budget of a sequence in the checks, in tokens."""

SMALL = DecoderConfig(
    vocabulary=17,
    width=48,  # all sizes and their products differ, so that a mix-up shows
    layers=2,
    heads=4,
    head_width=8,
    feed_forward="swiglu",
    feed_forward_width=40,
    dropout=0.0,
    attention_dropout=0.0,
    sigma=1.0,
)


class Subject:
    """An encoding and a kind of positions, with decoders, token ids and positions to try them on.

    Weights have unit scale: embeddings and the encoding's own tables N(0, 1), matrices N(0, 1 / inputs). With the
    usual 0.02 the logits are so small that a saved model could lose its frequencies and still pass.
    """

    def __init__(
        self,
        encoding: str | Mapping[str, object] | Spec | type[Encoding],
        positions: str | Mapping[str, object] | Spec = "consecutive",
        normaliser: str = "softmax",
        temperature: str = "constant",
    ) -> None:
        self.named = encoding if isinstance(encoding, type) else Spec.of(encoding)
        self.name = encoding.__qualname__ if isinstance(encoding, type) else str(self.named)
        if isinstance(encoding, type) and not issubclass(encoding, Encoding):
            raise SpecError(
                f"{self.name} is not an encoding: the class must derive from {Encoding.__module__}.Encoding"
            )
        self.config = SMALL.model_copy(update={"normaliser": normaliser, "temperature": temperature})
        """The small config, with the normaliser and the temperature under test."""
        changed = [given for given, usual in ((normaliser, "softmax"), (temperature, "constant")) if given != usual]
        self.name = " with ".join([self.name, *([" and ".join(changed)] if changed else [])])
        self.positions_spec = Spec.of(positions)
        self.positions = build_positions(self.positions_spec)
        self.positions.places([], [], 0, 0)  # a kind that needs a task raises now
        self._decoders: dict[object, Decoder] = {}
        self._check_contract()
        if changed:  # a mistake in a name or an option is an error, not a check that failed
            Decoder(self.config, self.named)
        limit = self.encoding.limit
        if limit is not None and self.positions.limit is not None and self.positions.limit > limit:
            raise SpecError(
                f"{self.positions_spec.name} gives positions up to {self.positions.limit - 1}, but {self.name} ends at "
                f"{limit - 1}; use positions below {limit}, e.g. {self.positions_spec.name}:limit={limit}"
            )

    def _check_contract(self) -> None:
        """Raise for misspelt hooks or claims, which would be ignored, for unknown formulas or too few positions."""
        cls = type(self.encoding)
        options(cls, 1)
        if cls.formula is not None and cls.formula not in FORMULAS:
            raise SpecError(f"formula {cls.formula!r} of {self.name} is unknown.{did_you_mean(cls.formula, FORMULAS)}")
        contract = [*HOOKS, *CLAIMS, "prepare", "initialize", "formula", "label", "paper", "version"]
        for part in cls.__mro__[: cls.__mro__.index(Encoding)]:
            for name, value in vars(part).items():
                if name.startswith("_") or (callable(value) and cls.acts()):
                    continue  # a helper method of the encoding
                close = difflib.get_close_matches(name, contract, n=1, cutoff=0.85)
                if close and name not in contract and not hasattr(Encoding, name):
                    raise SpecError(f"{name!r} of {self.name} would be ignored. Did you mean {close[0]!r}?")
        for claim in CLAIMS:
            value = getattr(self.encoding, claim)
            right = value is None or type(value) is int if claim == "limit" else isinstance(value, bool)
            if not right:
                wanted = "a whole number or None" if claim == "limit" else "True or False"
                raise SpecError(f"claim {claim!r} of {self.name} must be {wanted}, not {value!r}")
        room = min((item for item in (self.encoding.limit, self._most_places()) if item is not None), default=ROOM)
        if room < ROOM:
            raise SpecError(f"verify needs at least {ROOM} positions, here there are {room}; raise the limit")

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding in the small geometry, initialised, in float64; checks share it and must not change it."""
        return self.build_initialised_encoding(SMALL.geometry).double()

    def build_uninitialised_encoding(self, geometry: Geometry) -> Encoding:
        """A fresh instance whose parameters are not initialised yet."""
        return self.named(geometry) if isinstance(self.named, type) else build_encoding(self.named, geometry)

    def build_initialised_encoding(self, geometry: Geometry) -> Encoding:
        """A fresh, initialised instance."""
        try:
            made = self.build_uninitialised_encoding(geometry)
            made.initialize(lambda name: torch.Generator().manual_seed(digest("verify", name, bits=32)))
        except SpecError as error:
            raise _refused(self.named, geometry, error) from error
        except (Exception, SystemExit) as error:
            raise SpecError(f"{self.name} could not be built: {type(error).__name__}: {error}") from error
        randomise_zero_parameters(made)
        return made.eval()

    @cached_property
    def normaliser(self) -> Normaliser:
        """The normaliser in the small geometry, initialised, in float64; checks share it and must not change it."""
        made = build_normaliser(self.config.normaliser, SMALL.geometry)
        made.initialize(lambda name: torch.Generator().manual_seed(digest("verify", name, bits=32)))
        randomise_zero_parameters(made)
        return made.double().eval()

    @property
    def order_matters_without_positions(self) -> bool:
        """Whether the normaliser or the temperature sees the order of the tokens, so that NoPE sees it too."""
        return self.normaliser.ordered or self.config.temperature != "constant"

    @property
    def formula(self) -> str | None:
        """The reference the encoding claims to equal."""
        return self.encoding.formula

    @property
    def biased(self) -> bool:
        """Whether it adds a bias to the scores."""
        return self.encoding.adds_bias()

    def decoder(
        self, dtype: torch.dtype = torch.float64, *, seed: int = 0, encoding: object = None, **changes: object
    ) -> Decoder:
        """A small decoder with unit-scale weights; the same object for the same arguments."""
        key = (dtype, seed, str(encoding), tuple(sorted(changes.items())))
        if key not in self._decoders:
            self._decoders[key] = self.fresh_decoder(dtype, seed=seed, encoding=encoding, **changes)
        return self._decoders[key]

    def fresh_decoder(
        self, dtype: torch.dtype = torch.float64, *, seed: int = 0, encoding: object = None, **changes: object
    ) -> Decoder:
        """A new decoder as by `decoder`, for checks that change it."""
        config = self.config.model_copy(update=changes)
        decoder = Decoder(config, self.named if encoding is None else encoding, seed=seed)  # pyrefly: ignore[bad-argument-type]
        for index, part in enumerate(decoder.encodings):
            randomise_zero_parameters(part, seed, index)
        for layer in decoder.layers:
            assert isinstance(layer, Layer)
            randomise_zero_parameters(layer.attention.normaliser, seed, layer.index)
            randomise_zero_parameters(layer.attention.temperature, seed, layer.index)
        return unit_scale(decoder).to(dtype).eval()

    def sequence_lengths(self, *wanted: int) -> list[int]:
        """The wanted sequence lengths that fit the encoding and the positions."""
        most = min(item for item in (self.encoding.limit, self._most_places(), 10**9) if item is not None)
        return [size for size in wanted if size <= most] or [most]

    def _most_places(self) -> int | None:
        return len(self.positions.values) if isinstance(self.positions, Given) else self.positions.limit

    def ids(self, tokens: int, key: int = 0) -> Tensor:
        """Token ids (T,) that depend on `key` alone."""
        generator = torch.Generator().manual_seed(digest("ids", key, bits=32))
        return torch.randint(SMALL.vocabulary, (tokens,), generator=generator)

    @property
    def budget(self) -> int:
        """The budget of a sequence: beyond the trained length of a frequency scaling, so that the scaling acts."""
        return max(BUDGET, 2 * (getattr(self.encoding, "trained", None) or 0))

    def lengths_and_one_beyond(self, *wanted: int) -> list[int]:
        """The wanted sequence lengths, and one above `trained` if a scaling depends on the number of tokens so far."""
        trained = getattr(self.encoding, "trained", None)
        more = [] if self.encoding.prefix_stable or not trained else [trained + 9]
        return self.sequence_lengths(*sorted({*wanted, *more}))

    def places(self, tokens: int, key: int = 0, budget: int | None = None) -> Tensor:
        """The positions (T,) of a sequence under the kind of positions under test."""
        budget = self.budget if budget is None else budget
        budget = max(tokens, min(budget, self._most_places() or budget))
        prompt, answer = [0] * (tokens // 2), [0] * (tokens - tokens // 2)
        return torch.tensor(self.positions.places(prompt, answer, digest("verify", key), budget))

    @property
    def model_counts_positions(self) -> bool:
        """Whether the model may count positions by itself."""
        return self.positions_spec.name == "consecutive"

    def padded_batch_positions(self, places: Sequence[Tensor], tokens: int, padding: str = "right") -> Tensor | None:
        """Positions (B, T) of a padded batch to pass to the model; None if the model counts them itself."""
        if self.model_counts_positions:
            return None
        rows = [_pad(row, tokens, padding) for row in places]
        return torch.stack(rows)

    def unbatched_logits(self, decoder: Decoder, ids_T: Tensor, places_T: Tensor, **changes: object) -> Tensor:
        """The logits (T, V) of one sequence, alone, in one pass, at explicit positions: the reference of the checks."""
        return decoder(ids_T[None], positions_BT=places_T[None], budget=max(self.budget, len(ids_T)), **changes)[0]  # pyrefly: ignore[bad-argument-type]


def _pad(row_T: Tensor, tokens: int, padding: str) -> Tensor:
    room = row_T.new_zeros(tokens - len(row_T))
    return torch.cat([room, row_T] if padding == "left" else [row_T, room])


def randomise_zero_parameters(module: nn.Module, *key: object) -> None:
    """Fill parameters that are initialized to 0 with N(0, 1): an encoding without effect would hide bugs."""
    for name, parameter in module.named_parameters():
        if not bool(parameter.any()):
            normal_(parameter, 1.0, torch.Generator().manual_seed(digest("awake", *key, name, bits=32)))


def unit_scale(decoder: Decoder) -> Decoder:
    """Divide each matrix of a decoder built with sigma = 1 by the root of its inputs; embeddings stay N(0, 1)."""
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim == 2 and not name.startswith(("encodings.", "embedding.")):
                parameter.mul_(parameter.shape[1] ** -0.5)
    return decoder


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest wanted value; NaN if there is a NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    if not actual.numel():
        return 0.0
    actual, expected = actual.detach().double(), expected.detach().double()
    hidden = (actual == expected) & actual.isinf()
    actual, expected = actual.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def _refused(named: Spec | type[Encoding], geometry: Geometry, error: SpecError) -> SpecError:
    """The error itself, or, if a larger model accepts the encoding, an error that verify's model is too small."""
    large = replace(geometry, heads=200, head_width=200)
    try:
        made = named(large) if isinstance(named, type) else build_encoding(named, large)
        made.initialize(lambda _: torch.Generator())
    except SpecError:
        return error
    return SpecError(
        f"verify's model ({geometry.heads} heads of width {geometry.head_width}) is too small for this encoding, "
        f"which a larger one may take: {error}"
    )
