"""Published attention statistics: divergence from NoPE's (Figure 4) and distance of the maximum (Figure 7)."""

from __future__ import annotations

from lengthwise.publication import CODE, ENCODINGS, PAPER, Table, numbers_by_encoding, read_published_csv

_BY_LENGTH = {int(line["length"]): numbers_by_encoding(line) for line in read_published_csv("divergence_by_length")}
_BY_LAYER = [numbers_by_encoding(line) for line in read_published_csv("divergence_by_layer")]
_DISTANCES = [numbers_by_encoding(line) for line in read_published_csv("attended_distance")]
LENGTHS = tuple(_BY_LENGTH)
"""The lengths of the SCAN examples, in actions."""

DIVERGENCE = _BY_LAYER[0]
"""Encoding → divergence from NoPE's attention, mean over layers and lengths; `nope` is NoPE with another seed."""
BY_LENGTH: dict[str, dict[int, float]] = {
    name: {length: values[name] for length, values in _BY_LENGTH.items()} for name in ENCODINGS
}
"""Encoding → length → divergence, mean over layers."""
BY_LAYER: dict[str, list[float]] = {name: [values[name] for values in _BY_LAYER[1:]] for name in ENCODINGS}
"""Encoding → divergence of each layer, first to last, mean over lengths."""
COUNTS: dict[str, list[int]] = {name: [int(values[name]) for values in _DISTANCES] for name in ENCODINGS}
"""Encoding → how often the maximum is at a normalised distance of 0, .05, ..., 1 (rounded to the nearest)."""
FRACTIONS: dict[str, list[float]] = {name: [count / sum(counts) for count in counts] for name, counts in COUNTS.items()}
"""The same as shares of the total."""

_NO_JSD = (
    "It is no Jensen-Shannon divergence: the code has the arguments of KL swapped, half of KL(m‖p) + KL(m‖q). It has "
    "no upper bound, where the true one ends at ln 2 = .693."
)
_PAIRS = (
    "The minimum is over 66 of 144 pairs of heads (index in M below index in NoPE): heads of one index never meet.",
    "M has NoPE's seed and so its first weights, NoPE' has not: the baseline is handicapped.",
)


def tables() -> list[Table]:
    """Return the divergence from NoPE's attention by layer, and the attended distance."""
    layers: list[dict[str, object]] = [{"layer": "all", **DIVERGENCE}]
    for number in range(12):
        layers.append({"layer": str(number + 1), **{name: BY_LAYER[name][number] for name in ENCODINGS}})
    parts: dict[str, range] = {"near 0 (below .025)": range(1), "above .875": range(18, 21), "between": range(1, 18)}
    distances: list[dict[str, object]] = [
        {"distance": part, **{name: round(sum(FRACTIONS[name][bin] for bin in bins), 3) for name in ENCODINGS}}
        for part, bins in parts.items()
    ]
    return [
        Table(
            "divergence",
            "Distance of attention from NoPE's, per layer; the column of NoPE is NoPE with another seed",
            "the published divergence, in nats; minimum over head pairs, mean over 304 SCAN examples and 3 seeds",
            f"{PAPER}, Figures 4 and E.5; read from the vector figures in {CODE}",
            layers,
            (_NO_JSD, *_PAIRS),
            digits=3,
        ),
        Table(
            "attended distance",
            "Where the maximum of attention lies, as a share of the way back to the first token",
            "share of query tokens, all layers and heads (681,345 in all)",
            f"{PAPER}, Figure 7; read from its vector figure in {CODE}",
            distances,
            (
                "One seed (146317); addition with a full scratchpad, unseen lengths, tokens of the final answer only.",
                "The place of the largest weight is counted, not the weights.",
            ),
            digits=3,
        ),
    ]
