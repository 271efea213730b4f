"""The variance of attention's output at each position, layer by layer, as Chi et al. 2023 derive at initialisation.

At initialisation attention is nearly uniform, so its output at the m-th token is an average of m values and its
variance falls as 1/m. Two quantities are measured in every layer: `output`, attention's output after its output
projection (o_m of Lemma 3), and `normalised`, the residual state with that output, as the feed-forward sees it (y′_m of
Lemma 4).

`variance` is taken over documents at each position and averaged over coordinates; `power` is the mean square, mean
included; `uneven` is the standard deviation over coordinates of their mean squares: a norm fixes the total power, so
only its distribution over coordinates can still depend on the position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lengthwise.analysis.documents import Batch, Document, document_batches
from lengthwise.analysis.states import run_forward_for_taps
from lengthwise.device import HOST
from lengthwise.model import Decoder
from lengthwise.model.decoder import Layer
from lengthwise.model.taps import Tap

FEWEST = 8
"""The minimum number of documents for a variance."""


@dataclass
class Moments:
    """Sums over documents at each position; memory is positions × width, independent of the number of documents."""

    count_T: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    sum_TD: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    square_TD: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))

    def add(self, x_BTD: Tensor, real_BT: Tensor) -> None:
        """Add these values, except at padding."""
        x_BTD = torch.where(real_BT[..., None], x_BTD.double(), 0.0)
        found = (real_BT.double().sum(0), x_BTD.sum(0), x_BTD.square().sum(0))
        self.count_T, self.sum_TD, self.square_TD = (
            _plus(old, new) for old, new in zip((self.count_T, self.sum_TD, self.square_TD), found, strict=True)
        )

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each position that has enough documents; `m` counts from 1."""
        there_T = self.count_T >= FEWEST
        n_T1 = self.count_T[there_T, None]
        mean_TD, square_TD = self.sum_TD[there_T] / n_T1, self.square_TD[there_T] / n_T1
        variance_T = ((square_TD - mean_TD.square()).clamp(min=0) * n_T1 / (n_T1 - 1)).mean(1)
        values = zip(
            (torch.nonzero(there_T).squeeze(1) + 1).tolist(),
            n_T1.squeeze(1).int().tolist(),
            variance_T.tolist(),
            square_TD.mean(1).tolist(),
            square_TD.std(1).tolist(),
            strict=True,
        )
        names = ("m", "count", "variance", "power", "uneven")
        return [dict(zip(names, one, strict=True)) for one in values]


def _plus(old: Tensor, new: Tensor) -> Tensor:
    """Return the sum, padded to the longer one."""
    if not len(old):
        return new
    if len(old) < len(new):
        old, new = new, old
    whole = old.clone()
    whole[: len(new)] += new
    return whole


def spread(decoder: Decoder, documents: Sequence[Document], *, head_tap: Tap | None = None) -> list[dict[str, object]]:
    """Return rows of layer (from 1), quantity and position m (from 1), with variance, power and uneven.

    The tap `head_tap` may first change each head's output, as `states.times_root_m` does.
    """
    found: dict[tuple[int, str], Moments] = defaultdict(Moments)
    for batch in document_batches(documents):
        _look(decoder, batch, found, head_tap)
    return [
        {"layer": layer, "quantity": quantity, **row}
        for (layer, quantity), moments in sorted(found.items(), key=lambda item: item[0])
        for row in moments.rows()
    ]


def _look(decoder: Decoder, batch: Batch, found: Mapping[tuple[int, str], Moments], heads: Tap | None) -> None:
    real_BT, before = batch.real_BT, list[Tensor]()
    layers = [layer for layer in decoder.layers if isinstance(layer, Layer)]

    def state(name: str, x_BTD: Tensor) -> None:
        before[:] = [x_BTD]

    def output(name: str, heads_BHQE: Tensor) -> Tensor | None:
        changed = heads(name, heads_BHQE) if heads is not None else None
        number = int(name.split(".")[1])
        layer, whole = layers[number], heads_BHQE if changed is None else changed
        out_BTD = layer.attention.out(whole.transpose(1, 2).flatten(2))
        found[number + 1, "output"].add(out_BTD.to(HOST), real_BT)
        found[number + 1, "normalised"].add(layer.feed_forward_norm(before[0] + out_BTD).to(HOST), real_BT)
        return changed

    run_forward_for_taps(decoder, batch, {"embeddings": state, "layers.*.residual": state, "layers.*.heads": output})


def power_law_exponent(rows: Iterable[Mapping[str, object]], value_column: str = "variance") -> float | None:
    """Return the least-squares slope of log value against log m: −1 if it falls as 1/m, 0 if it is constant."""
    found = [(float(str(row["m"])), float(str(row[value_column])), float(str(row["power"]))) for row in rows]
    # If all documents have the same token (the first), the variance is only rounding error.
    pairs = [(m, v) for m, v, power in found if v > 1e-9 * power]
    if len(pairs) < 3:
        return None
    x_N, y_N = (torch.tensor(column, dtype=torch.float64).log() for column in zip(*pairs, strict=True))
    x_N = x_N - x_N.mean()
    return float((x_N * y_N).sum() / x_N.square().sum())
