"""The contract of a normaliser: how the scores of a query become attention weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from lengthwise.encoding.base import Geometry
from lengthwise.spec import SpecError


class Visibility(Protocol):
    """Which keys each query sees, for a normaliser that depends on their order."""

    @property
    def start(self) -> int:
        """The index of the first query among the keys: query i is key start + i."""
        ...

    @property
    def allowed_BQK(self) -> Tensor:
        """True where a key is visible."""
        ...

    @property
    def may_be_empty(self) -> bool:
        """Whether a query may see no key at all."""
        ...


class Normaliser(nn.Module):
    """Softmax; a subclass overrides `sink` or `weigh`. Each layer has its own instance.

    Options are keyword-only arguments, stored as attributes of the same name.
    """

    label: ClassVar[str] = ""
    """The name in figures and tables; the name of the class if empty."""
    paper: ClassVar[str] = ""
    """Where it was published: authors, year, arXiv number."""
    formula: ClassVar[str | None] = None
    """The formula in `lengthwise.conformance` that it claims to equal."""
    version: ClassVar[int] = 1
    """Incremented when the computed numbers change; part of a run's identity if it is from outside the package."""

    # Claims. `verify` tests each one, whether it is claimed or not.
    complete: bool = True
    """Each query's weights sum to 1; otherwise to at most 1."""
    shift_invariant: bool = True
    """A constant added to all scores of a query changes nothing. Otherwise a bias is never computed up to a constant,
    as ALiBi's columns are."""
    ordered: bool = False
    """The weights depend on the order of the keys, as in stick-breaking."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether this class overrides `hook`."""
        return getattr(cls, hook) is not getattr(Normaliser, hook)

    def initialize(self, stream: Callable[[str], torch.Generator]) -> None:
        """Fill the parameters; `stream(name)` is a generator that depends on the seed and that name alone."""
        if any(True for _ in self.parameters()):
            raise SpecError(
                f"{type(self).__name__} has parameters, so it must define initialize(self, stream), e.g. "
                'normal_(self.sink_H, 1.0, stream("sink_H"))'
            )

    def sink(self, like_tensor: Tensor) -> Tensor | None:
        """A further logit of each head, which takes part in the softmax and has no value: (H,), of the tensor's dtype.

        A normaliser that is softmax with such a logit overrides this hook alone, and then runs on every attention path.
        """
        return None

    def weigh(self, scores_BHQK: Tensor, visible: Visibility) -> Tensor:
        """Turn scores (fp32 or better, −inf where a key is hidden) into weights; a query without keys gets zeros.

        A normaliser that overrides this hook runs on the dense path only.
        """
        sink_H = self.sink(scores_BHQK)
        if sink_H is None:
            if not visible.may_be_empty:  # setting rows to 0 takes longer than softmax itself
                return scores_BHQK.softmax(-1)
            empty_BHQ1 = scores_BHQK.amax(-1, keepdim=True) == -torch.inf
            return scores_BHQK.masked_fill(empty_BHQ1, 0.0).softmax(-1).masked_fill(empty_BHQ1, 0.0)
        sink_BHQ1 = sink_H[:, None, None].expand(*scores_BHQK.shape[:-1], 1)
        return torch.cat([scores_BHQK, sink_BHQ1], -1).softmax(-1)[..., :-1]
