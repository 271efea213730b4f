"""Attention weights by the published formulas, in plain Python floats, one pair of tokens at a time.

Each function is given a head's queries, keys and layer inputs as lists, the positions, and the encoding for its
parameters and options, and returns the rows of weights. No function uses code of `lengthwise.encoding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lengthwise.conformance.formulas import alibi_slopes

Vector = Sequence[float]
WeightRows = list[list[float]]
Bias = Callable[[int, int], float]
"""What is added to the score of query i and key j."""


@dataclass(frozen=True)
class Head:
    """The inputs of one head: `q`, `k` and `x` by token, the positions, and the index of the head."""

    q: Sequence[Vector]
    k: Sequence[Vector]
    x: Sequence[Vector]
    positions: Sequence[int]
    index: int
    heads: int
    scale: float
    encoding: Any
    """The encoding, whose options and parameters are read by name."""
    all_q: Sequence[Sequence[Vector]] = ()
    all_k: Sequence[Sequence[Vector]] = ()
    """Queries and keys of every head, for formulas that mix heads."""

    def option(self, name: str, default: float) -> float:
        """An option of the encoding, or the published value if it has none."""
        return getattr(self.encoding, name, default)

    def parameter(self, name: str) -> Any:  # noqa: ANN401
        """A parameter as plain numbers."""
        return getattr(self.encoding, name).detach().double().tolist()


def dot(a: Vector, b: Vector) -> float:
    """Σ a · b."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def sigmoid(x: float) -> float:
    """1 / (1 + e^−x)."""
    return 1 / (1 + math.exp(-x))


def softmax_rows(head: Head, score: Callable[[int, int], float]) -> WeightRows:
    """Softmax of `score(i, j)` over the keys j ≤ i of each query i."""
    rows = []
    for i in range(len(head.q)):
        scores = [score(i, j) for j in range(i + 1)]
        top = max(scores)
        terms = [math.exp(s - top) for s in scores]
        total = math.fsum(terms)
        rows.append([term / total for term in terms] + [0.0] * (len(head.q) - i - 1))
    return rows


def _content(head: Head, i: int, j: int) -> float:
    return head.scale * dot(head.q[i], head.k[j])


def _distance(head: Head, i: int, j: int) -> int:
    return head.positions[i] - head.positions[j]


def _biased(bias: Callable[[Head], Bias]) -> Callable[[Head], WeightRows]:
    """The weights of an encoding that adds a bias."""

    def weights(head: Head) -> WeightRows:
        added = bias(head)
        return softmax_rows(head, lambda i, j: _content(head, i, j) + added(i, j))

    return weights


def alibi_bias(head: Head) -> Bias:
    """−slope · |d|, with the authors' slopes."""
    slope = alibi_slopes(head.heads)[head.index]
    return lambda i, j: -slope * abs(_distance(head, i, j))


def kerple_bias(head: Head) -> Bias:
    """−r1 · log(1 + r2 · |d|), or −r1 · |d|^r2."""
    r1, r2 = (max(head.parameter(name)[head.index], 0.01) for name in ("r1", "r2"))

    def bias(i: int, j: int) -> float:
        d = abs(_distance(head, i, j))
        if getattr(head.encoding, "kernel", "log") == "power":
            return -r1 * d ** min(r2, 2.0)
        return -r1 * math.log(1 + r2 * d)

    return bias


def fire_bias(head: Head) -> Bias:
    """f(log(c·d + 1) / log(c·max(L, i) + 1)), f evaluated unit by unit."""
    c, far = abs(head.parameter("c")[0]), abs(head.parameter("multiple")[0] * head.option("threshold", 512.0))
    up, up_bias = head.parameter("up"), head.parameter("up_bias")
    down = head.parameter("down")[head.index]

    def bias(i: int, j: int) -> float:
        share = math.log(c * abs(_distance(head, i, j)) + 1) / math.log(c * max(far, head.positions[i]) + 1)
        return dot(down, [max(0.0, w * share + b) for w, b in zip(up, up_bias, strict=True)])

    return bias


def hard_alibi_weights(head: Head) -> WeightRows:
    """Heads 1, 2, ... of the first part see 1, 2, ... tokens."""
    windowed = head.index < int(head.option("fraction", 0.5) * head.heads + 1e-4)

    def score(i: int, j: int) -> float:
        hidden = windowed and abs(_distance(head, i, j)) > head.index
        return -math.inf if hidden else _content(head, i, j)

    return softmax_rows(head, score)


def shaw_weights(head: Head) -> WeightRows:
    """q_i · (k_j + a[clip(i − j)]), a's rows from −distance on."""
    table, clip = head.parameter("keys"), int(head.option("distance", 16))

    def score(i: int, j: int) -> float:
        row = table[min(max(_distance(head, i, j), -clip), clip) + clip]
        return head.scale * dot(head.q[i], [a + b for a, b in zip(head.k[j], row, strict=True)])

    return softmax_rows(head, score)


def transformer_xl_weights(head: Head) -> WeightRows:
    """(q_i + u) · k_j + (q_i + v) · W R(i − j), scaled."""
    width, most = len(head.q[0]), getattr(head.encoding, "clamp", None)
    project = head.parameter("project")[head.index * width : (head.index + 1) * width]
    u, v = head.parameter("u")[head.index], head.parameter("v")[head.index]

    def score(i: int, j: int) -> float:
        d = _distance(head, i, j) if most is None else min(_distance(head, i, j), most)
        half = len(head.x[0]) // 2
        angles = [d * 10_000.0 ** (-f / half) for f in range(half)]
        wave = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        r = [dot(row, wave) for row in project]
        q = head.q[i]
        by_key = dot([a + b for a, b in zip(q, u, strict=True)], head.k[j])
        return head.scale * (by_key + dot([a + b for a, b in zip(q, v, strict=True)], r))

    return softmax_rows(head, score)


def xpos_weights(head: Head) -> WeightRows:
    """Σ_f ζ_f^(d / base) · Re(q_f · conj(k_f) · e^(i d θ_f)), pairs as complex numbers."""
    half = len(head.q[0]) // 2
    theta, gamma, base = head.option("theta", 10_000.0), head.option("gamma", 0.4), head.option("base", 512.0)

    def pairs(x: Vector) -> list[complex]:
        if getattr(head.encoding, "interleaved", True):
            return [complex(x[2 * f], x[2 * f + 1]) for f in range(half)]
        return [complex(x[f], x[f + half]) for f in range(half)]

    def score(i: int, j: int) -> float:
        total, d = 0.0, _distance(head, i, j)
        for f, (a, b) in enumerate(zip(pairs(head.q[i]), pairs(head.k[j]), strict=True)):
            zeta = (f / half + gamma) / (1 + gamma)
            angle = d * theta ** (-f / half)
            turned = a * complex(math.cos(angle), math.sin(angle)) * b.conjugate()
            total += zeta ** (d / base) * turned.real
        return head.scale * total

    return softmax_rows(head, score)


def cope_weights(head: Head) -> WeightRows:
    """q_i · e[Σ_{j ≤ l ≤ i} sigmoid(q_i · k_l)], e interpolated."""
    table = head.parameter("table")

    def score(i: int, j: int) -> float:
        count = min(math.fsum(sigmoid(_content(head, i, k)) for k in range(j, i + 1)), len(table) - 1.0)
        low, part = math.floor(count), count - math.floor(count)
        row = [(1 - part) * a + part * b for a, b in zip(table[low], table[math.ceil(count)], strict=True)]
        return _content(head, i, j) + dot(head.q[i], row)

    return softmax_rows(head, score)


def forgetting_weights(head: Head) -> WeightRows:
    """Σ_{j < l ≤ i} log sigmoid(w · x_l + b)."""
    weight, bias = head.parameter("weight")[head.index], head.parameter("bias_H")[head.index]
    gates = [sigmoid(dot(weight, x) + bias) for x in head.x]
    return softmax_rows(head, lambda i, j: _content(head, i, j) + math.log(math.prod(gates[j + 1 : i + 1])))


def stick_breaking_weights(head: Head) -> WeightRows:
    """β_ij · Π_{j < l < i} (1 − β_il)."""
    tokens = len(head.q)
    rows = [[0.0] * tokens for _ in range(tokens)]
    for i in range(tokens):
        left = 1.0
        for j in reversed(range(i)):
            share = sigmoid(_content(head, i, j))
            rows[i][j], left = left * share, left * (1 - share)
        if getattr(head.encoding, "remainder", False):
            rows[i][i] = left
    return rows


def nape_weights(head: Head) -> WeightRows:
    """−|d| / h in heads h = 1, ..., H/2 (or −|d| / 2^(h − 1)), 0 in the others."""
    h = head.index + 1
    slope = 1 / h if getattr(head.encoding, "slopes", "linear") == "linear" else 2.0 ** (1 - h)
    slope = slope if h <= head.heads // 2 else 0.0
    return softmax_rows(head, lambda i, j: _content(head, i, j) - slope * abs(_distance(head, i, j)))


def inkling_weights(head: Head) -> WeightRows:
    """(W x_i) · p[d] for 0 ≤ d < extent; keys at distance `window` or more are hidden."""
    rank, extent = int(head.option("rank", 16)), int(head.option("extent", 1024))
    mix = head.parameter("mix")[head.index * rank : (head.index + 1) * rank]
    profiles, window = head.parameter("profiles"), getattr(head.encoding, "window", None)

    def score(i: int, j: int) -> float:
        d = _distance(head, i, j)
        if window is not None and abs(d) >= window:
            return -math.inf
        mixed = [dot(row, head.x[i]) for row in mix]
        bias = dot(mixed, [profile[d] for profile in profiles]) if 0 <= d < extent else 0.0
        return _content(head, i, j) + bias

    return softmax_rows(head, score)


def wall_weights(head: Head) -> WeightRows:
    """Σ_n q_in k_jn Π_{j < l ≤ i} sigmoid(w_n · x_l + b_n), scaled."""
    width = len(head.q[0])
    own = slice(head.index * width, (head.index + 1) * width)
    weight, bias = head.parameter("weight")[own], head.parameter("bias_N")[own]
    passed = [[sigmoid(dot(w, x) + b) for w, b in zip(weight, bias, strict=True)] for x in head.x]

    def score(i: int, j: int) -> float:
        left = [math.prod(passed[token][n] for token in range(j + 1, i + 1)) for n in range(width)]
        return head.scale * math.fsum(q * k * f for q, k, f in zip(head.q[i], head.k[j], left, strict=True))

    return softmax_rows(head, score)


def path_weights(head: Head) -> WeightRows:
    """k_j reflected by each token j < s ≤ i in turn, k − β_s (k · w_s) w_s, then multiplied by q_i."""
    width = len(head.q[0])
    down, up = head.parameter("down"), head.parameter("up")[head.index * width : (head.index + 1) * width]
    strength, bias = head.parameter("strength")[head.index], head.parameter("strength_bias")[head.index]
    betas, units = [], []
    for x in head.x:
        low = [dot(row, x) for row in down]
        w = [dot(row, low) for row in up]
        size = math.sqrt(dot(w, w))
        units.append([value / size for value in w])
        betas.append(2 * sigmoid(dot(strength, x) + bias))

    def score(i: int, j: int) -> float:
        k = list(head.k[j])
        for s in range(j + 1, i + 1):
            share = betas[s] * dot(k, units[s])
            k = [value - share * w for value, w in zip(k, units[s], strict=True)]
        return head.scale * dot(head.q[i], k)

    return softmax_rows(head, score)


def selective_rope_weights(head: Head) -> WeightRows:
    """Re(q_f conj(k_f) e^(i θ_f (Φ_i − Φ_j))), Φ the running sum of convolved projections of the normalised input."""
    half, wide = len(head.q[0]) // 2, len(head.x[0]) // head.heads
    down, up = head.parameter("down"), head.parameter("up")[head.index * half : (head.index + 1) * half]
    taps, theta = head.parameter("taps")[head.index], head.option("theta", 500_000.0)
    drift = head.parameter("log_drift")[head.index] if getattr(head.encoding, "drift", False) else None
    raw = []
    for x in head.x:
        slices = [x[h * wide : (h + 1) * wide] for h in range(head.heads)]
        unit = [value / math.sqrt(dot(part, part)) for part in slices for value in part]
        low = [dot(row, unit) for row in down]
        raw.append([dot(row, low) for row in up])
    total, sums = [0.0] * half, []
    for t in range(len(raw)):
        for f in range(half):
            total[f] += sum(taps[f][3 - lag] * raw[t - lag][f] for lag in range(min(4, t + 1)))
            total[f] += 0.0 if drift is None else math.exp(drift[f])
        sums.append(list(total))

    def score(i: int, j: int) -> float:
        found = 0.0
        for f in range(half):
            angle = theta ** (-f / half) * (sums[i][f] - sums[j][f])
            q, k = (complex(x[f], x[f + half]) for x in (head.q[i], head.k[j]))
            found += (q * complex(math.cos(angle), math.sin(angle)) * k.conjugate()).real
        return head.scale * found

    return softmax_rows(head, score)


def pope_weights(head: Head) -> WeightRows:
    """Σ_c softplus(q_c) softplus(k_c) cos(d ω_c − δ_c), δ clipped to [−2π, 0]."""
    width, theta = len(head.q[0]), head.option("theta", 10_000.0)
    phase = [min(max(value, -2 * math.pi), 0.0) for value in head.parameter("phase")[head.index]]

    def length(x: float) -> float:
        return math.log1p(math.exp(x))

    def score(i: int, j: int) -> float:
        d, terms = _distance(head, i, j), []
        for c, (q, k) in enumerate(zip(head.q[i], head.k[j], strict=True)):
            terms.append(length(q) * length(k) * math.cos(d * theta ** (-c / width) - phase[c]))
        return head.scale * math.fsum(terms)

    return softmax_rows(head, score)


def dape_weights(head: Head) -> WeightRows:
    """s + b + f(all heads' s and b), with b the bias of ALiBi, KERPLE or FIRE and f one hidden layer of leaky ReLU."""
    inner = {"alibi": alibi_bias, "kerple": kerple_bias, "fire": fire_bias}[getattr(head.encoding, "inner", "kerple")]
    heads = [replace(head, index=index, encoding=head.encoding.inner_encoding) for index in range(head.heads)]
    biases_of = [inner(one) for one in heads]
    up, up_bias = head.parameter("up"), head.parameter("up_bias")
    down = head.parameter("down")[head.index]

    def score(i: int, j: int) -> float:
        scores = [head.scale * dot(q[i], k[j]) for q, k in zip(head.all_q, head.all_k, strict=True)]
        biases = [bias(i, j) for bias in biases_of]
        units = [dot(row, [*scores, *biases]) + one for row, one in zip(up, up_bias, strict=True)]
        more = dot(down, [unit if unit > 0 else 0.01 * unit for unit in units])
        return scores[head.index] + biases[head.index] + more

    return softmax_rows(head, score)


def shaw_value_term(head: Head, weights: WeightRows) -> WeightRows:
    """Σ_j weight_ij · b[clip(i − j)]."""
    clip, width = int(head.option("distance", 16)), len(head.q[0])
    if not getattr(head.encoding, "values", True):
        return [[0.0] * width for _ in weights]
    table, out = head.parameter("reads"), []
    for i, row in enumerate(weights):
        rows = [table[min(max(_distance(head, i, j), -clip), clip) + clip] for j in range(len(row))]
        out.append([math.fsum(w * r[e] for w, r in zip(row, rows, strict=True)) for e in range(width)])
    return out


READS: dict[str, Callable[[Head, WeightRows], WeightRows]] = {"shaw": shaw_value_term}
"""The term added to a head's output, for formulas that have one."""

WEIGHTS: dict[str, Callable[[Head], WeightRows]] = {
    "kerple": _biased(kerple_bias),
    "fire": _biased(fire_bias),
    "hard_alibi": hard_alibi_weights,
    "shaw": shaw_weights,
    "transformer_xl": transformer_xl_weights,
    "xpos": xpos_weights,
    "cope": cope_weights,
    "forgetting": forgetting_weights,
    "stick_breaking": stick_breaking_weights,
    "nape": nape_weights,
    "inkling": inkling_weights,
    "wall": wall_weights,
    "path": path_weights,
    "selective_rope": selective_rope_weights,
    "pope": pope_weights,
    "dape": dape_weights,
}
"""The formulas of attention weights that an encoding may claim."""
