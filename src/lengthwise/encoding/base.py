"""The contract of an encoding: the hooks through which it uses positions. Shape suffixes: see `lengthwise.encoding`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from lengthwise.device import HOST, widest_float
from lengthwise.spec import SpecError

HOOKS = {
    "embed": "embeddings",
    "rotate": "queries and keys",
    "mark": "tokens",
    "columns": "bias",
    "by_distance": "bias",
    "bias": "bias",
    "score": "scores",
    "weigh": "weights",
    "read": "output",
}
"""The hooks an encoding may override, each with the place where it acts."""

SEES_SCORES = ("score", "weigh", "read")
"""Hooks that no fused kernel supports: an encoding that overrides one runs, and is costed, on the dense path."""

BIAS_FORMS = ("columns", "by_distance", "bias")
"""Hooks that add a bias to the scores."""

CLAIMS = ("relative", "limit", "prefix_stable", "static_keys", "uses_budget", "shared", "ordinal", "complete")
"""The properties that an encoding claims; `verify` tests them."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """What an encoding may know about its model: sizes, and standard deviations of the initialization."""

    width: int
    heads: int
    head_width: int
    embedding_std: float = 1.0
    bias_std: float = 1.0


@dataclass(frozen=True)
class QueriesAndKeys:
    """Queries and keys of one layer, for hooks that depend on content.

    `allowed_BQK` combines the causal, padding and document masks. q is already rotated and multiplied by `scale` and by
    the temperature's factor, unless that multiplies the bias too. `marks_BHKC` holds what `mark` returned for each key.
    """

    q_BHQE: Tensor
    k_BHKE: Tensor
    query_positions_BQ: Tensor
    key_positions_BK: Tensor
    allowed_BQK: Tensor
    state: object
    scale: float = 1.0
    marks_BHKC: Tensor | None = None
    start: int = 0
    """The index of the first query among the keys: query i is key start + i."""
    known_distances: tuple[int, int] | None = None
    """The smallest and the largest distance of a query and a key, if known without reading the tensors."""
    documents_BK: Tensor | None = None
    """The document of each key, −1 for padding; None if each row is one sequence without padding."""

    def without_padding(self, values_BHKC: Tensor) -> Tensor:
        """The values with 0 for padding, for sums from key to query: a cache may hold padding between them."""
        if self.documents_BK is None:
            return values_BHKC
        return torch.where((self.documents_BK >= 0)[:, None, :, None], values_BHKC, 0.0)

    @cached_property
    def behind_BQK(self) -> Tensor:
        """A mask of the allowed keys that are not ahead of their query: its own token and earlier ones."""
        key_K = torch.arange(self.allowed_BQK.shape[-1], device=self.allowed_BQK.device)
        own_Q1 = key_K[self.start : self.start + self.allowed_BQK.shape[-2], None]
        return self.allowed_BQK & (key_K <= own_Q1)

    @property
    def distances(self) -> tuple[int, int]:
        """The smallest and the largest distance of a query and a key; they are read if they are not known."""
        known = self.known_distances
        return (int(self.distance_BQK.min()), int(self.distance_BQK.max())) if known is None else known

    @cached_property
    def distance_BQK(self) -> Tensor:
        """Query position minus key position: positive where the key is behind the query."""
        return self.query_positions_BQ[:, :, None] - self.key_positions_BK[:, None, :]


class Encoding(nn.Module):
    """No positional encoding: each hook is the identity, and a subclass overrides one or two.

    Positions are floating-point tensors in the working precision (fp32, or float64 in a float64 model), so whatever a
    hook computes from them has that precision. Compute constants in a hook and never keep them in a buffer: then
    saving, casting or reloading the model cannot lose them. Options are keyword-only arguments, stored as attributes of
    the same name.
    """

    label: ClassVar[str] = ""
    """The name in figures and tables; the name of the class if empty."""
    paper: ClassVar[str] = ""
    """Where it was published: authors, year, arXiv number."""
    formula: ClassVar[str | None] = None
    """The formula in `lengthwise.conformance` that this encoding claims to equal; `verify` checks it against that."""
    version: ClassVar[int] = 1
    """Incremented when the computed numbers change; part of a run's identity."""

    # Claims. `verify` tests each one, whether it is claimed or not.
    relative: bool = True
    """Shifting all positions by the same amount changes no logit."""
    limit: int | None = None
    """The first position that is not supported; from there on the model raises an error and never clamps."""
    prefix_stable: bool = True
    """Appending tokens never changes earlier logits. If False, `budget_B` is the number of tokens so far."""
    static_keys: bool = True
    """The cache may hold rotated keys; otherwise it holds unrotated keys, and every step rotates all of them."""
    uses_budget: bool = False
    """The number of tokens that a sequence may get, `budget_B`, changes the logits; packed documents need a budget."""
    shared: bool = True
    """All layers that name this encoding share one instance; otherwise each layer has its own."""
    ordinal: bool = False
    """Only the order and the content of the tokens matter; the positions they are given change nothing."""
    complete: bool = True
    """Each query's weights sum to 1; otherwise to at most 1."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether this class overrides `hook`."""
        return getattr(cls, hook) is not getattr(Encoding, hook)

    @classmethod
    def adds_bias(cls) -> bool:
        """Whether this class adds a bias to the scores, in any of its forms."""
        return any(map(cls.overrides, BIAS_FORMS))

    @classmethod
    def acts(cls) -> list[str]:
        """The places where this encoding acts: `["bias"]` for ALiBi, `[]` for NoPE."""
        return list(dict.fromkeys(place for hook, place in HOOKS.items() if cls.overrides(hook)))

    def heads_without_positions(self) -> range:
        """The heads whose scores depend on no position: all heads if the encoding acts nowhere, else none."""
        return range(0 if self.acts() else self.geometry.heads)

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        """Fill the parameters; `stream(name)` is a generator that depends on the seed and that name alone."""
        if any(True for _ in self.parameters()):
            raise SpecError(
                f"{type(self).__name__} has parameters, so it must define initialize(self, stream), e.g. "
                'normal_(self.table, 1.0, stream("table"))'
            )

    def prepare(self, query_positions_BQ: Tensor, key_positions_BK: Tensor, budget_B: Tensor) -> object:
        """Compute the state that `rotate`, `score` and `read` need, once per forward pass for all layers that share it.

        The key positions are those of the keys that `rotate` will receive: only the new ones if `static_keys`,
        otherwise all. An encoding without `rotate` receives all of them. `budget_B` is the maximum number of tokens of
        each sequence.
        """
        return None

    def embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """Change the token embeddings, once, before the first layer."""
        return x_BTD

    def rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        """Change queries and keys, in every layer, before they are scaled; both may become wider."""
        return q_BHQE, k_BHKE

    def mark(self, x_BTD: Tensor) -> Tensor | None:
        """Extra values of each token, cached beside its key and passed to `score` as `pair.marks_BHKC`: (B, H, T, C).

        `x_BTD` is the normalised layer input, of which queries and keys are projections.
        """
        return None

    def columns(self, positions_BT: Tensor) -> tuple[Tensor, Tensor] | None:
        """The bias as a product: columns `(q, k)`, each (B, H, T, C), with bias(i, j) = q(i) · k(j) + a constant per i.

        The constant makes the bias between a query and its own position 0. Columns are used only where no visible key
        is ahead of its query. A relative encoding receives positions that attention has shifted to an origin of its own
        choice.
        """
        return None

    def by_distance(self, distances_N: Tensor) -> Tensor | None:
        """The bias of each head at each distance (query − key; negative for keys ahead of the query): (H, N)."""
        if not self.overrides("columns"):
            return None
        (q_1HNC, k_1HNC), (_, zero_1H1C) = (
            self.checked_columns(distances_N[None]),
            self.checked_columns(distances_N.new_zeros(1, 1)),
        )
        return (q_1HNC * (zero_1H1C - k_1HNC)).sum(-1)[0]

    def bias(self, query_positions_BQ: Tensor, key_positions_BK: Tensor) -> Tensor | None:
        """The bias as a matrix, added to the scaled scores: (B, H, Q, K)."""
        if self.overrides("by_distance") or (self.overrides("columns") and self.relative):
            distance_BQK = query_positions_BQ[:, :, None] - key_positions_BK[:, None, :]
            bias_HN = self.checked_by_distance(distance_BQK.flatten())
            return bias_HN.view(-1, *distance_BQK.shape).transpose(0, 1)
        if self.overrides("columns"):
            (q_BHQC, own_BHQC), (_, k_BHKC) = (
                self.checked_columns(query_positions_BQ),
                self.checked_columns(key_positions_BK),
            )
            return q_BHQC @ k_BHKC.mT - (q_BHQC * own_BHQC).sum(-1, keepdim=True)
        return None

    def score(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        """Change the scores, in every layer, after scaling and bias and before the mask."""
        return scores_BHQK

    def weigh(self, scores_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor:
        """Turn masked scores (−inf where a key is hidden) into attention weights; the default is softmax."""
        return scores_BHQK.softmax(-1)

    def read(self, weights_BHQK: Tensor, pair: QueriesAndKeys) -> Tensor | None:
        """A term added to each head's output, computed from its attention weights: (B, H, Q, E)."""
        return None

    # The model calls these: the same hooks, with a check of the returned shape. A wrong shape could broadcast silently.

    def checked_by_distance(self, distances_N: Tensor) -> Tensor:
        """`by_distance`, checked."""
        wanted = (self.geometry.heads, len(distances_N))
        return _shaped(self, "by_distance", self.by_distance(distances_N), wanted, "(heads, distances)")

    def checked_bias(self, query_positions_BQ: Tensor, key_positions_BK: Tensor) -> Tensor:
        """`bias`, checked."""
        got = self.bias(query_positions_BQ, key_positions_BK)
        rows = got.shape[0] if isinstance(got, Tensor) and got.ndim == 4 else len(query_positions_BQ)
        rows = rows if rows in {1, len(query_positions_BQ), len(key_positions_BK)} else len(query_positions_BQ)
        wanted = (rows, self.geometry.heads, query_positions_BQ.shape[1], key_positions_BK.shape[1])
        return _shaped(self, "bias", got, wanted, "(batch, heads, queries, keys)")

    def checked_rotate(self, q_BHQE: Tensor, k_BHKE: Tensor, state: object) -> tuple[Tensor, Tensor]:
        """`rotate`, checked."""
        got = self.rotate(q_BHQE, k_BHKE, state)
        if not isinstance(got, tuple) or len(got) != 2:
            raise SpecError(f"rotate of {type(self).__name__} must return (q, k), both turned, not {_described(got)}")
        meaning = "(batch, heads, tokens, head width)"
        wide = max(q_BHQE.shape[-1], got[0].shape[-1] if isinstance(got[0], Tensor) and got[0].ndim else 0)
        return (
            _shaped(self, "rotate", got[0], (*q_BHQE.shape[:-1], wide), meaning),
            _shaped(self, "rotate", got[1], (*k_BHKE.shape[:-1], wide), meaning),
        )

    def checked_embed(self, x_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        """`embed`, checked."""
        got = self.embed(x_BTD, positions_BT)
        _shaped(self, "embed", got, tuple(x_BTD.shape), "(batch, tokens, width)")
        if got.dtype != x_BTD.dtype:
            raise SpecError(
                f"embed of {type(self).__name__} returned {got.dtype} for {x_BTD.dtype}; end with .to(x_BTD.dtype)"
            )
        return got

    def checked_mark(self, x_BTD: Tensor) -> Tensor:
        """`mark`, checked."""
        got = self.mark(x_BTD)
        last = got.shape[-1] if isinstance(got, Tensor) and got.ndim else 1
        wanted = (x_BTD.shape[0], self.geometry.heads, x_BTD.shape[1], last)
        return _shaped(self, "mark", got, wanted, "(batch, heads, tokens, numbers)")

    def checked_columns(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        got = self.columns(positions_BT)
        if not isinstance(got, tuple) or len(got) != 2:
            raise SpecError(f"columns of {type(self).__name__} must return (q, k) columns, not {_described(got)}")
        wanted = (len(positions_BT), self.geometry.heads, positions_BT.shape[1], got[0].shape[-1])
        meaning = "(batch, heads, tokens, columns)"
        return _shaped(self, "columns", got[0], wanted, meaning), _shaped(self, "columns", got[1], wanted, meaning)


def _shaped(encoding: Encoding, hook: str, got: object, wanted: tuple[int, ...], meaning: str) -> Tensor:
    if isinstance(got, Tensor) and got.shape == wanted:
        return got
    hint = "; end it with .expand(self.geometry.heads, -1)" if hook == "by_distance" and isinstance(got, Tensor) else ""
    raise SpecError(
        f"{hook} of {type(encoding).__name__} returned {_described(got)}, it must return {meaning} = {wanted}{hint}"
    )


def _described(got: object) -> str:
    return str(tuple(got.shape)) if isinstance(got, Tensor) else f"{got!r}"[:60]


def cos_sin_from_theta(positions_BT: Tensor, theta: float, pairs: int) -> tuple[Tensor, Tensor]:
    """cos and sin of t · theta^(−f / pairs) for f = 0, ..., pairs − 1: (B, T, pairs) each."""
    return cos_sin_from_frequency(positions_BT, frequencies_from_theta(theta, pairs, positions_BT))


def frequencies_from_theta(theta: float, pairs: int, like_tensor: Tensor) -> Tensor:
    """theta^(−f / pairs) for f = 0, ..., pairs − 1, in float64, or fp32 on a device that has no float64."""
    device = like_tensor.device
    return theta ** -(torch.arange(pairs, device=device, dtype=widest_float(device)) / max(pairs, 1))


def cos_sin_from_frequency(positions_BT: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position × frequency, (F,) or (B, F): (B, T, F) each.

    The angle is computed in the frequencies' float64: in fp32 it would already be off by 2^-8 at position 65,535.
    """
    angle_BTF = positions_BT.to(frequency.dtype)[..., None] * (frequency if frequency.ndim == 1 else frequency[:, None])
    return angle_BTF.cos().to(positions_BT.dtype), angle_BTF.sin().to(positions_BT.dtype)


def normal_(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with N(0, std²) drawn in fp32 on the CPU, so that no device, dtype or default changes a draw."""
    if parameter.is_meta:  # it has a shape alone
        return
    with torch.no_grad():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device=HOST)
        parameter.copy_(drawn * std)


def uniform_(parameter: Tensor, high: float, generator: torch.Generator) -> None:
    """Fill with draws between 0 and `high`, in fp32 on the CPU, as `normal_` does."""
    with torch.no_grad():
        drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float32, device=HOST)
        parameter.copy_(drawn * high)


def option_taken_hint(option: str) -> str:
    """The hint for a tensor that is stored under the name of an option."""
    return (
        f"self.{option} is a tensor; keep the option there, as it was given, and the tensor under another attribute, "
        f"e.g. self.{option}_weight"
    )
