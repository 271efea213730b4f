"""Attention weights by the published formulas, in plain Python floats, one pair of tokens at a time.

Each function is given a head's queries, keys and layer inputs as lists, the positions, and the encoding for its
parameters and options, and returns the rows of weights. No function uses code of `lengthwise.encoding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Vector = Sequence[float]
Rows = list[list[float]]


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


def softmax_rows(head: Head, score: Callable[[int, int], float]) -> Rows:
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


def kerple(head: Head) -> Rows:
    """−r1 · log(1 + r2 · |d|), or −r1 · |d|^r2."""
    r1, r2 = (max(head.parameter(name)[head.index], 0.01) for name in ("r1", "r2"))

    def score(i: int, j: int) -> float:
        d = abs(_distance(head, i, j))
        if getattr(head.encoding, "kernel", "log") == "power":
            return _content(head, i, j) - r1 * d ** min(r2, 2.0)
        return _content(head, i, j) - r1 * math.log(1 + r2 * d)

    return softmax_rows(head, score)


def fire(head: Head) -> Rows:
    """f(log(c·d + 1) / log(c·max(L, i) + 1)), f evaluated unit by unit."""
    c, far = abs(head.parameter("c")[0]), abs(head.parameter("multiple")[0] * head.option("threshold", 512.0))
    up, up_bias = head.parameter("up"), head.parameter("up_bias")
    down = head.parameter("down")[head.index]

    def score(i: int, j: int) -> float:
        share = math.log(c * abs(_distance(head, i, j)) + 1) / math.log(c * max(far, head.positions[i]) + 1)
        hidden = [max(0.0, w * share + b) for w, b in zip(up, up_bias, strict=True)]
        return _content(head, i, j) + dot(down, hidden)

    return softmax_rows(head, score)


def hard_alibi(head: Head) -> Rows:
    """Heads 1, 2, ... of the first part see 1, 2, ... tokens."""
    windowed = head.index < int(head.option("fraction", 0.5) * head.heads + 1e-4)

    def score(i: int, j: int) -> float:
        hidden = windowed and abs(_distance(head, i, j)) > head.index
        return -math.inf if hidden else _content(head, i, j)

    return softmax_rows(head, score)


def shaw(head: Head) -> Rows:
    """q_i · (k_j + a[clip(i − j)]), a's rows from −distance on."""
    table, clip = head.parameter("keys"), int(head.option("distance", 16))

    def score(i: int, j: int) -> float:
        row = table[min(max(_distance(head, i, j), -clip), clip) + clip]
        return head.scale * dot(head.q[i], [a + b for a, b in zip(head.k[j], row, strict=True)])

    return softmax_rows(head, score)


def transformer_xl(head: Head) -> Rows:
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


def xpos(head: Head) -> Rows:
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


def cope(head: Head) -> Rows:
    """q_i · e[Σ_{j ≤ l ≤ i} sigmoid(q_i · k_l)], e interpolated."""
    table = head.parameter("table")

    def score(i: int, j: int) -> float:
        count = min(math.fsum(sigmoid(_content(head, i, k)) for k in range(j, i + 1)), len(table) - 1.0)
        low, part = math.floor(count), count - math.floor(count)
        row = [(1 - part) * a + part * b for a, b in zip(table[low], table[math.ceil(count)], strict=True)]
        return _content(head, i, j) + dot(head.q[i], row)

    return softmax_rows(head, score)


def forgetting(head: Head) -> Rows:
    """Σ_{j < l ≤ i} log sigmoid(w · x_l + b)."""
    weight, bias = head.parameter("weight")[head.index], head.parameter("bias_H")[head.index]
    gates = [sigmoid(dot(weight, x) + bias) for x in head.x]
    return softmax_rows(head, lambda i, j: _content(head, i, j) + math.log(math.prod(gates[j + 1 : i + 1])))


def stick_breaking(head: Head) -> Rows:
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


def shaw_value_term(head: Head, weights: Rows) -> Rows:
    """Σ_j weight_ij · b[clip(i − j)]."""
    clip, width = int(head.option("distance", 16)), len(head.q[0])
    if not getattr(head.encoding, "values", True):
        return [[0.0] * width for _ in weights]
    table, out = head.parameter("reads"), []
    for i, row in enumerate(weights):
        rows = [table[min(max(_distance(head, i, j), -clip), clip) + clip] for j in range(len(row))]
        out.append([math.fsum(w * r[e] for w, r in zip(row, rows, strict=True)) for e in range(width)])
    return out


READS: dict[str, Callable[[Head, Rows], Rows]] = {"shaw": shaw_value_term}
"""The term added to a head's output, for formulas that have one."""

WEIGHTS: dict[str, Callable[[Head], Rows]] = {
    "kerple": kerple,
    "fire": fire,
    "hard_alibi": hard_alibi,
    "shaw": shaw,
    "transformer_xl": transformer_xl,
    "xpos": xpos,
    "cope": cope,
    "forgetting": forgetting,
    "stick_breaking": stick_breaking,
}
"""The formulas of attention weights that an encoding may claim."""
