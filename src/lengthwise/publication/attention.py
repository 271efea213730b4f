"""What attention does: its divergence from NoPE's (Figure 4) and how far back its maximum lies (Figure 7)."""

from __future__ import annotations

from lengthwise.publication import CODE, ENCODINGS, PAPER, Table, by_encoding, numbers

LENGTHS = (*range(2, 23), 24, 25, 26, 27, 28, 30, 32, 33, 36, 40, 48)
"""Actions of the SCAN examples."""

_BY_LENGTH = (  # nope (another seed), t5, alibi, Rotary, sinusoidal
    ".102 .134 .155 .190 .217 .228 .244 .276 .263 .274 .287 .270 .287 .313 .271 .305 .287 .290 .281 .281 .329 .291 "
    ".285 .269 .272 .282 .296 .294 .336 .257 .318 .301",
    ".099 .130 .161 .184 .203 .204 .223 .258 .248 .264 .280 .245 .274 .308 .263 .315 .285 .291 .284 .289 .331 .293 "
    ".298 .271 .282 .288 .303 .314 .346 .266 .312 .306",
    ".142 .182 .230 .275 .321 .349 .377 .429 .425 .445 .469 .463 .523 .559 .483 .548 .509 .506 .519 .603 .608 .546 "
    ".550 .539 .538 .577 .613 .622 .687 .614 .696 .733",
    ".319 .412 .527 .599 .655 .753 .805 .858 .886 .904 .960 .974 1.033 1.062 1.018 1.063 .986 1.062 1.139 1.241 "
    "1.155 1.105 1.075 1.053 1.130 1.179 1.239 1.245 1.291 1.275 1.288 1.307",
    ".212 .283 .350 .404 .478 .534 .590 .615 .682 .669 .692 .692 .792 .733 .791 .802 .741 .786 .840 .827 .838 .840 "
    ".784 .765 .823 .862 .904 .899 1.003 .912 .934 .937",
)
_BY_LAYER = (
    ".190 .143 .144 .165 .192 .156 .192 .329 .400 .421 .389 .461",
    ".203 .182 .176 .195 .176 .196 .176 .286 .417 .311 .392 .447",
    ".291 .339 .399 .374 .328 .385 .498 .483 .692 .755 .527 .808",
    ".886 1.052 1.170 1.093 1.004 1.058 1.047 .809 .846 .919 .938 1.027",
    ".505 .828 .899 .852 .741 .627 .595 .684 .618 .738 .777 .767",
)
_DISTANCES = (  # how many query tokens have their maximum there, in bins of .05 around 0, .05, ..., 1
    "55417 20393 4457 2892 2880 2878 2553 2035 1589 1243 1101 1078 1085 1218 1330 1530 1876 3432 8244 9525 9513",
    "51610 21376 8260 5124 4010 2979 2279 1819 1544 1316 1238 1261 1158 1226 1385 1614 1785 2843 5897 9139 8406",
    "88059 23892 4555 2447 1923 1711 1479 1314 1209 1026 938 862 679 675 709 646 609 639 1591 999 307",
    "17864 9580 7172 5453 5022 4940 5093 4875 4289 4000 4125 5184 5450 5612 5944 6283 7589 7158 7070 7945 5621",
    "18081 7437 6061 5864 6298 7217 8042 9481 10860 12202 11596 7565 3235 1846 1156 985 1018 1830 4089 4647 6759",
)


def _plain(line: str) -> list[float]:
    return [value for value in numbers(line) if value is not None]


DIVERGENCE = by_encoding(".265 .263 .490 .987 .719")
"""Encoding → divergence from NoPE's attention, mean over layers and lengths; `nope` is NoPE with another seed."""
BY_LENGTH: dict[str, dict[int, float]] = {
    name: dict(zip(LENGTHS, _plain(line), strict=True)) for name, line in zip(ENCODINGS, _BY_LENGTH, strict=True)
}
"""Encoding → length → divergence, mean over layers."""
BY_LAYER: dict[str, list[float]] = {name: _plain(line) for name, line in zip(ENCODINGS, _BY_LAYER, strict=True)}
"""Encoding → divergence of each layer, first to last, mean over lengths."""
COUNTS: dict[str, list[int]] = {
    name: [int(count) for count in _plain(line)] for name, line in zip(ENCODINGS, _DISTANCES, strict=True)
}
"""Encoding → how often the maximum lies at a normalised distance of 0, .05, ..., 1 (to the nearest)."""
FRACTIONS: dict[str, list[float]] = {name: [count / sum(counts) for count in counts] for name, counts in COUNTS.items()}
"""The same as shares of all."""

_NO_JSD = (
    "It is no Jensen-Shannon divergence: the code has the arguments of KL swapped, half of KL(m‖p) + KL(m‖q). It has "
    "no upper bound, where the true one ends at ln 2 = .693."
)
_PAIRS = (
    "The minimum is over 66 of 144 pairs of heads (index in M below index in NoPE): heads of one index never meet.",
    "M has NoPE's seed and so its first weights, NoPE' has not: the baseline is handicapped.",
)


def tables() -> list[Table]:
    """Divergence from NoPE's attention, by layer, and attended distance."""
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
