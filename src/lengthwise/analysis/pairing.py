"""Which models are compared with which, so that "similar" has a scale.

record     M of seed s′ with the reference of seed s ≠ s′, for every M, the reference itself included
published  M with the reference of the same seed, hence of the same first weights; the reference itself with
           another seed, a baseline with a handicap
floor      two untrained models of different seeds: how alike attention is before anything is learned
change     a model with its own first weights: how far training moved it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lengthwise.spec import SpecError

KINDS = ("record", "published", "floor", "change")


@dataclass(frozen=True, order=True)
class Model:
    """One model of a comparison."""

    encoding: str
    seed: int
    trained: bool = True

    @property
    def untrained(self) -> Model:
        """The same with its first weights."""
        return Model(self.encoding, self.seed, False)


@dataclass(frozen=True)
class Pairing:
    """M, whose heads come first, and the reference."""

    kind: str
    model: Model
    against: Model

    def labels(self) -> dict[str, object]:
        """Columns of a row."""
        return {
            "pairing": self.kind,
            "encoding": self.model.encoding,
            "seed": self.model.seed,
            "against": self.against.encoding,
            "against_seed": self.against.seed,
        }


def pairings(there: Sequence[tuple[str, int]], reference: str = "nope") -> list[Pairing]:
    """All comparisons among these (encoding, seed), e.g. of three seeds of nope and t5: 6 + 6 of record."""
    seeds: dict[str, list[int]] = {}
    for encoding, seed in there:
        seeds.setdefault(encoding, []).append(seed)
    if reference not in seeds:
        raise SpecError(f"nothing to compare with: no run has the encoding {reference!r}; there are {', '.join(seeds)}")
    own, found = sorted(set(seeds[reference])), list[Pairing]()
    for encoding, listed in seeds.items():
        for seed in sorted(set(listed)):
            model = Model(encoding, seed)
            found += [Pairing("record", model, Model(reference, other)) for other in own if other != seed]
            found.append(Pairing("change", model, model.untrained))
            # The original draws the other seed; here it is the next.
            after = next((other for other in (*own, *own) if other > seed), own[0])
            if after != seed:
                found.append(Pairing("floor", model.untrained, Model(reference, after, False)))
            if encoding == reference and after != seed:
                found.append(Pairing("published", model, Model(reference, after)))
            elif encoding != reference and seed in own:
                found.append(Pairing("published", model, Model(reference, seed)))
    return found
