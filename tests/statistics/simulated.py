"""Studies drawn from distributions of seeds that occur, with a test set that all seeds share.

A seed has an accuracy p; an example has a difficulty z; the seed gets it right with probability
Φ(√(1 + τ²) Φ⁻¹(p) − τ z), whose mean over examples is p. So the truth over seeds and examples is the mean of p.
Shapes: S studies, N seeds, M examples, B bootstrap samples.
"""

import numpy as np
from scipy.special import ndtr, ndtri

KINDS = ("bell", "ceiling", "floor", "bimodal", "rare failure")
EXAMPLES = 250
DIFFICULTY = 1.0


def accuracies(kind: str, dice: np.random.Generator, size: tuple[int, ...] | int) -> np.ndarray:
    """The accuracy of a seed: what training made of it, cut to 0 and 1."""

    def bell(middle: float, spread: float) -> np.ndarray:
        return dice.normal(middle, spread, size)

    def either(share: float, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(dice.random(size) < share, one, other)

    drawn = {
        "bell": lambda: bell(0.5, 0.1),
        "ceiling": lambda: bell(0.95, 0.05),
        "floor": lambda: bell(0.05, 0.06),
        "bimodal": lambda: either(0.6, bell(0.9, 0.03), bell(0.1, 0.03)),
        "rare failure": lambda: either(0.9, bell(0.95, 0.02), bell(0.2, 0.05)),
    }[kind]()
    return np.clip(drawn, 0, 1)


def truth(kind: str) -> float:
    return float(accuracies(kind, np.random.default_rng(99), 4_000_000).mean())


def answers(p_SN: np.ndarray, z_SM: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Right or wrong for each study, seed and example."""
    pull = (ndtri(np.clip(p_SN, 1e-9, 1 - 1e-9)) * np.sqrt(1 + DIFFICULTY**2)).astype(np.float32)
    chance_SNM = ndtr(pull[:, :, None] - np.float32(DIFFICULTY) * z_SM[:, None, :])
    return dice.random(chance_SNM.shape, dtype=np.float32) < chance_SNM


def studies(kind: str, many: int, seeds: int, dice: np.random.Generator) -> np.ndarray:
    """Studies with a test set each."""
    z_SM = dice.standard_normal((many, EXAMPLES), dtype=np.float32)
    return answers(accuracies(kind, dice, (many, seeds)), z_SM, dice)


def t_interval(values_SN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The t interval of the mean over seeds."""
    from scipy.special import stdtrit

    n = values_SN.shape[1]
    half = stdtrit(n - 1, 0.975) * values_SN.std(axis=1, ddof=1) / np.sqrt(n)
    return values_SN.mean(axis=1) - half, values_SN.mean(axis=1) + half


def examples_bootstrap(right_SNM: np.ndarray, dice: np.random.Generator, samples: int = 400) -> tuple:
    """Percentiles over resampled examples: how an evaluation harness makes its standard error."""
    weight_MB = dice.multinomial(EXAMPLES, [1 / EXAMPLES] * EXAMPLES, size=samples).T / EXAMPLES
    return percentiles(right_SNM.mean(axis=1) @ weight_MB)


def hierarchical_bootstrap(values_SN: np.ndarray, dice: np.random.Generator, samples: int = 400) -> np.ndarray:
    """Means of resampled seeds with their examples resampled: S × B. An example resampled in a seed is a binomial."""
    many, n = values_SN.shape
    chosen = dice.integers(0, n, (many, samples * n))
    picked = np.take_along_axis(values_SN, chosen, axis=1).reshape(many, samples, n)
    return (dice.binomial(EXAMPLES, picked) / EXAMPLES).mean(axis=2)


def bca(values_SN: np.ndarray, dice: np.random.Generator, samples: int = 1000) -> tuple:
    """Bias-corrected and accelerated bootstrap of the mean over seeds."""
    many, n = values_SN.shape
    mean_S = values_SN.mean(axis=1)
    chosen = dice.integers(0, n, (many, samples * n))
    boot_SB = np.sort(np.take_along_axis(values_SN, chosen, axis=1).reshape(many, samples, n).mean(axis=2), axis=1)
    below = (boot_SB < mean_S[:, None] - 1e-12).mean(axis=1) + (np.abs(boot_SB - mean_S[:, None]) <= 1e-12).mean(
        axis=1
    ) / 2
    z0 = ndtri(np.clip(below, 0.5 / samples, 1 - 0.5 / samples))
    apart = values_SN - mean_S[:, None]
    spread = (apart**2).sum(axis=1) ** 1.5
    bend = np.divide((apart**3).sum(axis=1), 6 * spread, out=np.zeros(many), where=spread > 0)

    def point(z: float) -> np.ndarray:
        share = ndtr(z0 + (z0 + z) / (1 - bend * (z0 + z)))
        at = np.clip((share * samples).astype(int), 0, samples - 1)
        return np.take_along_axis(boot_SB, at[:, None], axis=1)[:, 0]

    return point(-1.96), point(1.96)


def percentiles(boot_SB: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(boot_SB, [0.025, 0.975], axis=1)
    return low, high
