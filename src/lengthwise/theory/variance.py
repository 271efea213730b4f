"""Chi et al.'s lemmas: the position information in the variance of a NoPE decoder at initialisation, and its decay.

Inputs x_m have independent entries of variance σ_x², every matrix has independent entries of variance σ², and the
attention of the first layer sees e_m = LayerNorm(x_m). With width d, H heads of width d/H and s = d²σ⁴:

1. q, k and v have covariance dσ² I;
2. a logit q·k has variance d³σ⁴/H, scaled by √(d/H) it has s (as published: H times less);
3. the attention's output at position m has variance s (e^s/m + dσ⁴) for m ≫ e^s (as published: s/m);
4. after the next LayerNorm the variance of a *coordinate* still depends on m: LayerNorm fixes only the mean variance.

`exact` of lemma 3 is the law for every m and s, of which 3. is the limit; derivations: docs/understand/theory.md.
The lemmas are of Chi et al. 2023, arXiv:2305.13571; each has the forms `as_published` and `corrected`.

Legend of shape suffixes, besides the model's: M measured positions, R sequences, J coordinates of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, sqrt
from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from lengthwise.model import Decoder, DecoderConfig
from lengthwise.model.decoder import Layer
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError, digest

Mask: TypeAlias = Literal["causal", "bidirectional"]
Row: TypeAlias = dict[str, object]
OnProgress: TypeAlias = Callable[[str], None]

DRAWS = 50
"""The default number of independent initialisations and inputs that a mean is taken over."""
LEVEL = 0.99


@dataclass(frozen=True)
class Initialisation:
    """An initialisation: `Initialisation(768, 12, 0.02)` is Chi et al.'s, `.pytorch(64, 4)` is PyTorch's default."""

    width: int
    heads: int
    sigma: float
    weights: Literal["normal", "uniform"] = "normal"
    inputs: float | None = None
    """The standard deviation of the embeddings; None means σ."""

    def __post_init__(self) -> None:
        if self.width < 2 or self.heads < 1 or self.width % self.heads:
            raise SpecError(f"{self.heads} heads do not share a width of {self.width}; the width is a multiple of them")
        if self.sigma <= 0 or (self.inputs is not None and self.inputs <= 0):
            raise SpecError(f"σ is above 0, not {self.sigma if self.sigma <= 0 else self.inputs}")
        if self.logit_variance > 500:
            raise SpecError(
                f"with σ = {self.sigma:g} a logit has variance {self.logit_variance:.3g}, and the softmax is beyond "
                "any number; give a smaller σ"
            )

    @classmethod
    def pytorch(cls, width: int, heads: int) -> Initialisation:
        """Return PyTorch's default: linear layers U(−1/√d, 1/√d), of variance 1/(3d), embeddings N(0, 1): s = 1/9."""
        return cls(width, heads, (3 * width) ** -0.5, "uniform", 1.0)

    @property
    def logit_variance(self) -> float:
        """s = d²σ⁴, the variance of a scaled logit; Property 1 (attention is almost uniform) says s ≪ 1."""
        return self.width**2 * self.sigma**4

    @property
    def input_sigma(self) -> float:
        """σ_x."""
        return self.sigma if self.inputs is None else self.inputs

    def decoder(self, seed: int, mask: Mask = "causal") -> Decoder:
        """Return a one-layer decoder with this initialisation; its feed-forward is not used, and minimal."""
        config = DecoderConfig(
            vocabulary=1,
            width=self.width,
            layers=1,
            heads=self.heads,
            head_width=self.width // self.heads,
            feed_forward="relu",
            feed_forward_width=1,
            norm="layer",
            norm_epsilon=1e-12,  # the usual 1e-6 is a quarter of a per cent of σ² = 0.0004
            mask=mask,
            dropout=0.0,
            attention_dropout=0.0,
            sigma=self.sigma,
        )
        decoder = Decoder(config, "nope", seed=seed)
        if self.weights == "uniform":
            stream, edge = torch.Generator().manual_seed(digest("theory", "uniform", seed, bits=63)), sqrt(3.0)
            with torch.no_grad():
                for parameter in decoder.parameters():
                    if parameter.ndim == 2:
                        parameter.uniform_(-edge * self.sigma, edge * self.sigma, generator=stream)
        return decoder.eval()

    def draw(self, seed: int, sequences: int, tokens: int) -> Tensor:
        """Draw random embeddings (R, T, D)."""
        stream = torch.Generator().manual_seed(digest("theory", "inputs", seed, bits=63))
        return torch.randn(sequences, tokens, self.width, generator=stream) * self.input_sigma

    def __str__(self) -> str:
        kind = "" if self.weights == "normal" else f", {self.weights}"
        return f"d={self.width}, H={self.heads}, σ={self.sigma:.4g}{kind}"


# --- what is predicted -----------------------------------------------------------------------------------------------


def lemma1_variance(initialisation: Initialisation) -> float:
    """Return the variance of a coordinate of q, k or v: dσ², e.g. 0.3072 for (768, 12, 0.02)."""
    return initialisation.width * initialisation.sigma**2


def lemma2_variance(
    initialisation: Initialisation, formula: Literal["as_published", "corrected"] = "corrected"
) -> float:
    """Return the variance of a logit q·k before scaling: d³σ⁴/H, e.g. 6.04; as published d³σ⁴/H², 0.503."""
    return (
        initialisation.width**3
        * initialisation.sigma**4
        / initialisation.heads ** (2 if formula == "as_published" else 1)
    )


def lemma3_variance(
    initialisation: Initialisation, position: int, formula: Literal["as_published", "corrected", "exact"] = "corrected"
) -> float:
    """Return the variance of a coordinate of the attention's output over m visible keys, i.e. at `position` m.

    `as_published` s/m; `corrected` s (e^s/m + dσ⁴), for m ≫ e^s; `exact` for every m and s, softmax included.
    With d=256, H=4, σ=0.05 and m=4096: 0.000100, 0.000806, 0.000805; with m=1: 0.410, 0.618, 0.410.
    """
    s = initialisation.logit_variance
    if formula == "as_published":
        return s / position
    if formula == "corrected":
        return s * (exp(s) / position + initialisation.width * initialisation.sigma**4)
    share, pull = _softmax_moments(position, s, initialisation.width, initialisation.width // initialisation.heads)
    return initialisation.width * initialisation.sigma**4 * (initialisation.width * share + pull)


@lru_cache(maxsize=4096)
def _softmax_moments(m: int, s: float, width: int, head_width: int) -> tuple[float, float]:
    """(E Σ a_n², E Σ_{n≠n'} a_n a_n' z_n z_n') for weights a ∝ e^{τz} of m independent z.

    z is a coordinate of a point on the sphere of LayerNorm; τ² = s χ²_k/k is random because the query's length is
    (k = E) and because its image under W_k is (k = d), together 1/k = 1/E + 1/d.
    """
    from scipy.special import roots_genlaguerre

    half = min(0.5 / (1 / head_width + 1 / width), 150.0)  # above 150, Γ overflows and τ² hardly varies
    node, weight = roots_genlaguerre(6, half - 1)
    found = np.array([_moments_at(m, s * float(x) / half, width) for x in node])
    share, pull = (weight / weight.sum()) @ found
    return float(share), float(pull)


def _moments_at(m: int, variance: float, width: int) -> tuple[float, float]:
    """Return both moments for one τ²: by 1/S² = ∫ t e^{−tS} dt, integrals of one weight's Laplace transforms."""
    if m == 1:
        return 1.0, 0.0
    tau, edge = sqrt(variance * (width - 1) / width), sqrt(width)  # LayerNorm removes the mean: d − 1 dimensions
    z = np.linspace(max(-9.0, -edge), min(9.0 + 2 * tau, edge), 722)[1:-1]
    mass = (1 - z * z / width) ** ((width - 4) / 2)
    mass /= mass.sum()
    # t is on a logarithmic grid over the range where E e^{−tS} is neither 1 nor 0.
    u = np.linspace(-tau * z[-1] - np.log(m) - 6, 9 * tau + 6, 600)
    t, weight = np.exp(u), np.exp(tau * z)
    decay = np.exp(-t[:, None] * weight)
    none, pulled, square = decay @ mass, decay @ (mass * weight * z), decay @ (mass * weight**2)
    step = (u[1] - u[0]) * t * t
    share = m * float(np.sum(step * square * none ** (m - 1)))
    pull = m * (m - 1) * float(np.sum(step * pulled**2 * none ** (m - 2)))
    return share, pull


# --- what is measured ------------------------------------------------------------------------------------------------


def logits_and_attention_output(decoder: Decoder, x_RTD: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return unscaled logits (R, M, H, T) and attention output (R, M, D) of layer 0 at some positions, counted from 0.

    It uses the decoder's weights in another order, q·(W_k e) = (W_kᵀq)·e and Σ a (W_v e) = W_v (Σ a e), so that a row
    costs H·T·D and not T·D². `tapped_logits_and_attention_output` gives the same numbers; masked logits are −inf.
    """
    layer = cast("Layer", decoder.layers[0])
    attention, heads = layer.attention, decoder.config.heads
    e_RTD = layer.attention_norm(x_RTD)
    q_RMHE = attention.q(e_RTD[:, list(positions)]).unflatten(-1, (heads, -1))
    k_HED, v_HED = (part.weight.unflatten(0, (heads, -1)) for part in (attention.k, attention.v))
    pull_RMHD = torch.einsum("rmhe,hed->rmhd", q_RMHE, k_HED)
    logits_RMHT = (pull_RMHD.flatten(1, 2) @ e_RTD.mT).unflatten(1, (len(positions), heads))
    if decoder.config.mask == "causal":
        hidden_MT = torch.arange(x_RTD.shape[1]) > torch.tensor(list(positions))[:, None]
        logits_RMHT = logits_RMHT.masked_fill(hidden_MT[:, None], -torch.inf)
    weights_RMHT = (logits_RMHT * decoder.config.scale).softmax(-1)
    mean_RMHD = (weights_RMHT.flatten(1, 2) @ e_RTD).unflatten(1, (len(positions), heads))
    return logits_RMHT, attention.out(torch.einsum("rmhd,hed->rmhe", mean_RMHD, v_HED).flatten(2))


def tapped_logits_and_attention_output(
    decoder: Decoder, x_RTD: Tensor, positions: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return what `logits_and_attention_output` returns, from the taps of a forward pass over these embeddings."""
    record = Recorder()
    taps = {"embeddings": lambda _, old: x_RTD.to(old.dtype), "layers.0.[qk]": record, "layers.0.heads": record}
    decoder(torch.zeros(x_RTD.shape[:2], dtype=torch.long), taps=taps)
    q, k, heads = (record[f"layers.0.{name}"] for name in ("q", "k", "heads"))
    logits_RMHT = (q[:, :, list(positions)] @ k.mT).transpose(1, 2)
    if decoder.config.mask == "causal":
        hidden_MT = torch.arange(x_RTD.shape[1]) > torch.tensor(list(positions))[:, None]
        logits_RMHT = logits_RMHT.masked_fill(hidden_MT[:, None], -torch.inf)
    out = cast("Layer", decoder.layers[0]).attention.out
    return logits_RMHT, out(heads[:, :, list(positions)].transpose(1, 2).flatten(2))


@torch.no_grad()
def second_moments_at_init(
    initialisation: Initialisation,
    positions: Sequence[int],
    *,
    draws: int = DRAWS,
    sequences: int = 1,
    tokens: int | None = None,
    mask: Mask = "causal",
    seed: int = 0,
    whole_forward_pass: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[str, np.ndarray]:
    """Return second moments of each of `draws` initialisations: `qkv` and `logits` (N,), `output` and `entropy` (N, M).

    `positions` count from 1, as m in the lemmas. `entropy` is that of a row of attention divided by ln m, 1 if uniform.
    `whole_forward_pass` uses the taps of a whole forward pass instead of sampled rows.
    """
    if draws < 2:
        raise SpecError(f"a band needs at least two draws, not {draws}")
    tokens = max(positions) if tokens is None else tokens
    if not positions or min(positions) < 1 or max(positions) > tokens:
        raise SpecError(f"positions are from 1 to {tokens}, not {list(positions)}")
    places = [m - 1 for m in positions]
    seen = [m if mask == "causal" else tokens for m in positions]
    found: dict[str, list[object]] = {"qkv": [], "logits": [], "output": [], "entropy": []}
    for number in range(draws):
        key = digest("theory", str(initialisation), mask, seed, number, bits=63)
        decoder, x_RTD = initialisation.decoder(key, mask), initialisation.draw(key, sequences, tokens)
        logits_RMHT, out_RMD = (
            tapped_logits_and_attention_output if whole_forward_pass else logits_and_attention_output
        )(decoder, x_RTD, places)
        layer = cast("Layer", decoder.layers[0])
        e_RMD = layer.attention_norm(x_RTD[:, places])
        parts = (layer.attention.q, layer.attention.k, layer.attention.v)
        found["qkv"].append(np.mean([float(part(e_RMD).square().mean()) for part in parts]))
        found["logits"].append(float(logits_RMHT[logits_RMHT.isfinite()].square().mean()))
        found["output"].append(out_RMD.square().mean((0, 2)).numpy())
        log_RMHT = (logits_RMHT * decoder.config.scale).log_softmax(-1)
        bits_M = -(log_RMHT.exp() * log_RMHT.masked_fill(~log_RMHT.isfinite(), 0)).sum(-1).mean((0, 2))
        found["entropy"].append(
            np.array([1.0 if m == 1 else float(bit) / np.log(m) for bit, m in zip(bits_M, seen, strict=True)])
        )
        if on_progress is not None:
            on_progress(f"{initialisation}, {mask}: draw {number + 1} of {draws}")
    return {name: np.array(values) for name, values in found.items()}


def mean_with_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """Return the mean over draws and its confidence interval, by Student's t."""
    from scipy.stats import t

    mean, error = float(values.mean()), float(values.std(ddof=1)) / sqrt(len(values))
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * error
    return mean, mean - half, mean + half


def power_law_exponent(positions: Sequence[int], variances: Sequence[float] | np.ndarray) -> float:
    """Return the slope of ln variance against ln m: −1 if the variance falls as 1/m, 0 if it is constant."""
    return float(np.polyfit(np.log(np.asarray(positions)), np.log(np.asarray(variances)), 1)[0])


# --- lemma 4 ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def lemma4_variance(decoder: Decoder, initialisation: Initialisation, positions: Sequence[int]) -> dict[str, Tensor]:
    """Return the variance over inputs of each coordinate of LayerNorm(x_m + o_m), for these weights: (M, J) by form.

    `as_published`: (mσ_x² + Σ_i (W_o W_v)_ji²) / (mσ_x² + d²σ⁴). `corrected` treats each head separately, because
    attention is not uniform, adds the effect of the query on it (the floor) and of token m on itself, and divides by
    the mean over j.
    """
    attention = cast("Layer", decoder.layers[0]).attention
    heads, wide, s_x = decoder.config.heads, decoder.config.head_width, initialisation.input_sigma
    out_JHE = attention.out.weight.unflatten(1, (heads, wide))
    q_HED, k_HED, v_HED = (p.weight.unflatten(0, (heads, wide)) for p in (attention.q, attention.k, attention.v))
    read_JD = attention.out.weight @ attention.v.weight
    whole_J, own_J, pulled_JD = read_JD.square().sum(1), read_JD.new_zeros(len(read_JD)), torch.zeros_like(read_JD)
    for head in range(heads):
        read_h_JD = out_JHE[:, head] @ v_HED[head]
        own_J += read_h_JD.square().sum(1)
        pulled_JD += (read_h_JD @ k_HED[head].mT) @ q_HED[head] * wide**-0.5
    found: dict[str, list[Tensor]] = {"as_published": [], "corrected": []}
    for m in positions:
        found["as_published"].append((m * s_x**2 + whole_J) / (m * s_x**2 + initialisation.logit_variance))
        share, pull = _softmax_moments(m, initialisation.logit_variance, initialisation.width, wide)
        reached = pull / initialisation.logit_variance  # the share of the query's effect at m keys; 1 for many keys
        variance_J = s_x**2 + share * own_J + (whole_J - own_J) / m + reached * pulled_JD.square().sum(1)
        variance_J += 2 * s_x * (read_JD.diagonal() / m + sqrt(reached) * pulled_JD.diagonal())
        found["corrected"].append(variance_J / variance_J.mean())
    return {form: torch.stack(rows) for form, rows in found.items()}


@torch.no_grad()
def coordinate_variances(
    initialisation: Initialisation,
    positions: Sequence[int],
    *,
    draws: int = DRAWS,
    sequences: int = 128,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield the measured variance of each coordinate (M, J) and both predictions, for `draws` initialisations."""
    places = [m - 1 for m in positions]
    for number in range(draws):
        key = digest("theory", "coordinates", str(initialisation), seed, number, bits=63)
        decoder, x_RTD = initialisation.decoder(key), initialisation.draw(key, sequences, max(positions))
        _, out_RMD = logits_and_attention_output(decoder, x_RTD, places)
        state_RMD = cast("Layer", decoder.layers[0]).feed_forward_norm(x_RTD[:, places] + out_RMD)
        yield state_RMD.square().mean(0), lemma4_variance(decoder, initialisation, positions)
        if on_progress is not None:
            on_progress(f"{initialisation}, lemma 4: draw {number + 1} of {draws}")


def slope(measured_J: Tensor, predicted_J: Tensor) -> float:
    """Return the slope of measured on predicted differences between coordinates: 1 if the lemma is right."""
    centred_J = predicted_J - predicted_J.mean()
    return float((centred_J * measured_J).sum() / centred_J.square().sum())
