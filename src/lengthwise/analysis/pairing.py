"""The pairs of models whose attention is compared, including baselines that give a divergence a scale.

record     M of seed s′ with the reference of seed s ≠ s′, for every M, the reference itself included
published  M with the reference of the same seed, hence of the same initial weights; the reference itself with
           another seed, so that this baseline is at a disadvantage
floor      two untrained models of different seeds: the divergence before training
change     a model with its own initial weights: how far training moved it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lengthwise.spec import SpecError

KINDS = ("record", "published", "floor", "change")


@dataclass(frozen=True, order=True)
class ModelKey:
    """One model of a comparison."""

    encoding: str
    seed: int
    trained: bool = True

    @property
    def untrained(self) -> ModelKey:
        """The same model with its initial weights."""
        return ModelKey(self.encoding, self.seed, False)


@dataclass(frozen=True)
class ModelPair:
    """A model and the one it is compared with; the model's heads are the first axis."""

    kind: str
    model: ModelKey
    against: ModelKey

    def labels(self) -> dict[str, object]:
        """Return the label columns of a row."""
        return {
            "pairing": self.kind,
            "encoding": self.model.encoding,
            "seed": self.model.seed,
            "against": self.against.encoding,
            "against_seed": self.against.seed,
        }


def pairings(encodings_and_seeds: Sequence[tuple[str, int]], reference: str = "nope") -> list[ModelPair]:
    """Return all comparisons among these (encoding, seed), e.g. 6 + 6 `record` for three seeds of nope and t5."""
    seeds: dict[str, list[int]] = {}
    for encoding, seed in encodings_and_seeds:
        seeds.setdefault(encoding, []).append(seed)
    if reference not in seeds:
        raise SpecError(f"nothing to compare with: no run has the encoding {reference!r}; there are {', '.join(seeds)}")
    own, found = sorted(set(seeds[reference])), list[ModelPair]()
    for encoding, listed in seeds.items():
        for seed in sorted(set(listed)):
            model = ModelKey(encoding, seed)
            found += [ModelPair("record", model, ModelKey(reference, other)) for other in own if other != seed]
            found.append(ModelPair("change", model, model.untrained))
            # The original draws the other seed at random; here it is the next one.
            after = next((other for other in (*own, *own) if other > seed), own[0])
            if after != seed:
                found.append(ModelPair("floor", model.untrained, ModelKey(reference, after, False)))
            if encoding == reference and after != seed:
                found.append(ModelPair("published", model, ModelKey(reference, after)))
            elif encoding != reference and seed in own:
                found.append(ModelPair("published", model, ModelKey(reference, seed)))
    return found
