"""Probes that predict a token's place (its index in the document) from its hidden state alone.

Baselines are exact for the places that are tested: a *random guess* draws from the same places, E|t − t′|, and the
*best constant* is their median, E|t − median|. For L equally frequent places they are (L² − 1)/3L and L/4 (L even), so
about L/3 and L/4. The *token alone* predicts the median place of the same token in training. A probe of embeddings that
beats it has found a leak.

Haviv et al. 2022 classify 1024 positions; here a probe is a regression, so that it can predict places that no training
document has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthwise.analysis.documents import Document
from lengthwise.analysis.states import TOKENS, Read, States, collect_states
from lengthwise.optimizer import AdamW
from lengthwise.spec import SpecError, digest

RIDGE = 1e-6
"""The ridge penalty relative to a coordinate's mean variance: above the rounding of fp32, below any real signal."""
HIDDEN, STEPS, BATCH, RATE = 64, 1000, 128, 1e-2
"""The MLP's hidden units, steps of Adam, tokens per step, and learning rate, which decays to 0.

They were chosen on synthetic states that hold 1/t: the error there is 0.1 tokens of 34, and 0.8 with 128 units, 400
steps and 2e-3.
"""
TOGETHER = 4
"""The number of layers whose MLPs are trained together, which shares the overhead of a step and bounds memory."""
VERSION = 1
"""Increased when the results of a probe change."""

Predict = Callable[[Tensor], Tensor]
"""States (N, D) → places (N), in float64."""


def fit_linear(state_ND: Tensor, position_N: Tensor, ridge: float = RIDGE) -> Predict:
    """Fit ridge regression in closed form, in float64; it recovers a place that a coordinate holds."""
    x_ND, y_N = state_ND.double(), position_N.double()
    mean_D, centre = x_ND.mean(0), y_N.mean()
    x_ND = x_ND - mean_D
    gram_DD = x_ND.T @ x_ND
    weight = float(gram_DD.diagonal().mean()) * ridge
    gram_DD.diagonal().add_(weight if weight > 0 else 1.0)  # for constant states, predict the mean instead of failing
    slope_D = torch.linalg.solve(gram_DD, x_ND.T @ (y_N - centre))
    return lambda other_ND: (other_ND.double() - mean_D) @ slope_D + centre


@torch.no_grad()
def fit_mlp(states: Sequence[Tensor], position_N: Tensor, *, seed: object = 0, steps: int = STEPS) -> list[Predict]:
    """Fit a two-layer ReLU network to each of several (N, D), by Adam on the absolute error; `seed` is the seed."""
    stream = torch.Generator().manual_seed(digest("probe", seed, bits=64) % 2**63)
    x_MND, y_N = torch.stack([state_ND.float() for state_ND in states]), position_N.float()
    mean_M1D, std_M1D = x_MND.mean(1, keepdim=True), x_MND.std(1, keepdim=True).clamp(min=1e-6)
    centre, spread = y_N.mean(), y_N.std().clamp(min=1e-6)
    x_MND, y_N = (x_MND - mean_M1D) / std_M1D, (y_N - centre) / spread
    many, width = x_MND.shape[0], x_MND.shape[2]
    up_MDF = torch.randn(width, HIDDEN, generator=stream).mul((2 / width) ** 0.5).repeat(many, 1, 1)
    down_MF1 = torch.randn(HIDDEN, 1, generator=stream).mul((2 / HIDDEN) ** 0.5).repeat(many, 1, 1)
    parameters = [up_MDF, up_MDF.new_zeros(many, 1, HIDDEN), down_MF1, up_MDF.new_zeros(many, 1, 1)]
    optimizer = AdamW(parameters, lr=RATE, weight_decay=0.0, fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        rows_N = torch.randint(len(y_N), (min(BATCH, len(y_N)),), generator=stream)
        for parameter, slope in zip(parameters, mae_gradients(x_MND[:, rows_N], y_N[rows_N], parameters), strict=True):
            parameter.grad = slope
        optimizer.step()

    def predict(number: int) -> Predict:
        own = [parameter.detach()[number : number + 1] for parameter in parameters]

        def places(other_ND: Tensor) -> Tensor:
            x_1ND = (other_ND.float() - mean_M1D[number]) / std_M1D[number]
            return (_network(x_1ND[None], own)[0] * spread + centre).double()

        return places

    return [predict(number) for number in range(many)]


def mae_gradients(x_MND: Tensor, y_N: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of each network's mean absolute error, by hand: it takes a third of autograd's time here."""
    up_MDF, up_bias_M1F, down_MF1, down_bias_M11 = parameters
    h_MNF = torch.baddbmm(up_bias_M1F, x_MND, up_MDF).relu_()
    sign_MN1 = (torch.baddbmm(down_bias_M11, h_MNF, down_MF1) - y_N[:, None]).sign_().div_(len(y_N))
    inner_MNF = (sign_MN1 @ down_MF1.mT).mul_(h_MNF > 0)
    return [
        x_MND.mT @ inner_MNF,
        inner_MNF.sum(1, keepdim=True),
        h_MNF.mT @ sign_MN1,
        sign_MN1.sum(1, keepdim=True),
    ]


def _network(x_MND: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    up_MDF, up_bias_M1F, down_MF1, down_bias_M11 = parameters
    return torch.baddbmm(down_bias_M11, F.relu(torch.baddbmm(up_bias_M1F, x_MND, up_MDF)), down_MF1).squeeze(-1)


KINDS = ("linear", "mlp")


def fit_probes(probe_kind: str, states: Sequence[Tensor], position_N: Tensor, seed: object) -> list[Predict]:
    """Fit a probe of this kind to each of several (N, D)."""
    if probe_kind == "linear":
        return [fit_linear(state_ND, position_N) for state_ND in states]
    found = []
    for start in range(0, len(states), TOGETHER):
        found += fit_mlp(states[start : start + TOGETHER], position_N, seed=seed)
    return found


@dataclass(frozen=True)
class Baselines:
    """Mean absolute errors of predictions that use no hidden state."""

    random: float
    """A guess drawn from the tested places; about L/3 if L places are equally frequent."""
    constant: float
    """The best constant for the tested places; L/4 if L places are equally frequent."""
    token: float
    """The median place of the same token in training."""
    third: float
    """L/3 for L tokens in the longest document: the value in the literature."""
    quarter: float
    """L/4."""


def baselines(train_states: States, test_states: States) -> Baselines:
    """Return the baselines of a test set, exact for its places."""
    y_N = test_states.places_N.double()
    longest = int(test_states.places_N.max()) + 1
    return Baselines(
        random=random_guess_error(y_N),
        constant=best_constant_error(y_N),
        token=float((_by_token(train_states, test_states) - y_N).abs().mean()),
        third=longest / 3,
        quarter=longest / 4,
    )


def random_guess_error(position_N: Tensor) -> float:
    """Return E|t − t′| of two places drawn from these: `random_guess_error(arange(6))` is 35/18, nearly 6/3."""
    y_N = position_N.double().sort().values
    n = len(y_N)
    # In sorted order, the k-th of n is the larger one of k pairs and the smaller one of n − 1 − k.
    weight_N = 2 * torch.arange(n, dtype=torch.float64) - (n - 1)
    return float(2 * (weight_N * y_N).sum() / n**2)


def best_constant_error(position_N: Tensor) -> float:
    """Return E|t − median|: `best_constant_error(arange(8))` is 2, which is 8/4."""
    y_N = position_N.double()
    return float((y_N - y_N.median()).abs().mean())


def _by_token(trained: States, tested: States) -> Tensor:
    otherwise = float(trained.places_N.double().median())
    table_V = torch.full((int(max(trained.ids_N.max(), tested.ids_N.max())) + 1,), otherwise, dtype=torch.float64)
    for one in trained.ids_N.unique():
        table_V[one] = trained.places_N[trained.ids_N == one].double().median()
    return table_V[tested.ids_N]


@dataclass(frozen=True)
class Score:
    """How well places were predicted."""

    mae: float
    """Mean absolute error, in tokens."""
    r2: float | None
    """The share of the variance of places that is explained; below 0, predicting their mean would be better."""
    accuracy: float
    """The share of tokens whose rounded prediction is correct."""
    tokens: int


def score_predictions(predicted_N: Tensor, position_N: Tensor) -> Score:
    """Compare predicted with true places."""
    y_N = position_N.double()
    error_N = predicted_N - y_N
    total = float((y_N - y_N.mean()).square().sum())
    return Score(
        mae=float(error_N.abs().mean()),
        r2=1 - float(error_N.square().sum()) / total if total else None,
        accuracy=float((predicted_N.round() == y_N).double().mean()),
        tokens=len(y_N),
    )


def shuffle_positions(position_N: Tensor, seed: object = 0) -> Tensor:
    """Permute the places at random: a probe trained on these can learn no more than a constant."""
    stream = torch.Generator().manual_seed(digest("shuffled", seed, bits=64) % 2**63)
    return position_N[torch.randperm(len(position_N), generator=stream)]


def add_beyond_set(train_states: States, test_sets: dict[str, States]) -> dict[str, States]:
    """Return the test sets, and `beyond`: the tokens of unseen lengths at places that no training document has."""
    found = dict(test_sets)
    if "unseen" in test_sets:
        beyond_N = test_sets["unseen"].places_N > train_states.places_N.max()
        if bool(beyond_N.any()):
            found["beyond"] = test_sets["unseen"].select_tokens(beyond_N)
    return found


def probe(
    train_states: States,
    test_sets: dict[str, States],
    *,
    probe_kinds: Sequence[str] = ("linear", "mlp"),
    seed: object = 0,
    shuffle_train_positions: bool = False,
) -> list[dict[str, object]]:
    """Train a probe on each layer and test it on each set: one row for each layer, kind and set, with its baselines.

    `probe(collect_states(read, some), {"seen": collect_states(read, others)})`; the two must be disjoint.
    `shuffle_train_positions` permutes the training places, so that any remaining success is chance.
    """
    if unknown := [kind for kind in probe_kinds if kind not in KINDS]:
        raise SpecError(f"there is no probe {unknown[0]!r}; there are {', '.join(KINDS)}")
    sets = add_beyond_set(train_states, test_sets)
    known = {name: asdict(baselines(train_states, states)) for name, states in sets.items()}
    places_N = shuffle_positions(train_states.places_N, seed) if shuffle_train_positions else train_states.places_N
    rows: list[dict[str, object]] = []
    for kind in probe_kinds:
        fitted = fit_probes(kind, list(train_states.layers.values()), places_N, seed)
        for layer, predict in zip(train_states.layers, fitted, strict=True):
            for name, states in sets.items():
                found = score_predictions(predict(states.layers[layer]), states.places_N)
                rows.append({"layer": layer, "probe": kind, "tested": name, **asdict(found), **known[name]})
    return rows


def probe_all(
    state_readers: Mapping[tuple[str, str], Read],
    train_documents: Sequence[Document],
    test_documents: Mapping[str, Sequence[Document]],
    *,
    probe_kinds: Sequence[str] = ("linear", "mlp"),
    max_tokens: int = TOKENS,
    seed: object = 0,
    on_progress: Callable[[str], None] | None = None,
) -> list[dict[str, object]]:
    """Probe several models on the same tokens, and the trained one also with shuffled places.

    `state_readers` has the `Read` of each (model, change): ("trained", "none"), ("untrained", "none"), ...
    A `constructed` model holds the place in a coordinate, so only a linear probe is fitted to it.
    """
    rows = []
    for (model, change), read in state_readers.items():
        if on_progress is not None:
            on_progress(f"{model}, {change}")
        known = collect_states(read, train_documents, max_tokens=max_tokens, seed=(seed, "train"))
        others = {
            name: collect_states(read, found, max_tokens=max_tokens, seed=(seed, name))
            for name, found in test_documents.items()
        }
        if change != "none":  # a change does not affect layer 0, so it is left out
            known = _above(known)
            others = {name: _above(states) for name, states in others.items()}
        for control in ("none", "shuffled") if (model, change) == ("trained", "none") else ("none",):
            own_seed = (seed, model, change, control)
            fitting = [kind for kind in probe_kinds if kind == "linear" or model != "constructed"]
            found = probe(
                known, others, probe_kinds=fitting, seed=own_seed, shuffle_train_positions=control == "shuffled"
            )
            rows += [{"model": model, "change": change, "control": control, **row} for row in found]
    return rows


def _above(states: States) -> States:
    layers = {layer: state_ND for layer, state_ND in states.layers.items() if layer > 0}
    return States(layers, states.places_N, states.ids_N, states.documents)
