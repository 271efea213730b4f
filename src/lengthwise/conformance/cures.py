"""What to do about a failed check, and which failures are only consequences of another."""

from __future__ import annotations

CURES = {
    "T01": "Use the positions that the hook is given, never a token's index in its row.",
    "T02": "Compute each row from its own positions and its own budget; share nothing between the rows of a batch.",
    "T03": "Do not look at token ids to find padding: positions and masks already leave it out.",
    "T04": "Guard the formula where it is undefined, also at distance 0 and where a key is masked: clamp before a "
    "power, a log or a division, e.g. distances_N.abs().clamp(min=1).",
    "T05": "Read query_positions_BQ and key_positions_BK and do not count tokens: with a cache there are fewer queries "
    "than keys.",
    "T06": "Read query_positions_BQ and key_positions_BK and do not count tokens: in a cached step there is one query.",
    "T07": "Make it depend on query − key alone (queries and keys turned the same way), or set relative = False.",
    "T08": "Override a hook so that positions matter; if the order of tokens alone decides, set ordinal = True.",
    "T09": "Raise past the last position, or raise `limit`; never clamp or wrap a position.",
    "T10": "Keep nothing from one call to the next; compute tables in the hook, from the positions.",
    "T11": "Use the positions that are given: each packed document begins at 0. If you read budget_B, set "
    "uses_budget = True.",
    "T12": "Check the frequencies theta^(−2f / turned), the sign of the key's angle, and which coordinates are a pair "
    "(interleaved or halves).",
    "T13": "Compute with positions as they come (fp32 or better) and with parameters in their precision, e.g. "
    "self.p.to(distances_N.dtype); cast only the result, and keep no table that model.bfloat16() would shorten.",
    "T15": "Use the authors' rule for slopes where the number of heads is no power of two.",
    "T17": "Override one of columns, by_distance and bias, or make them the same function.",
    "T18": "Return the bias as it is: scores are scaled before it is added.",
    "T19": "Return new tensors from the hooks, do not change in place what they are given, and do not scale scores.",
    "T20": "Half of the buckets hold one distance each, the rest grow logarithmically up to the furthest.",
    "T21": "Set shared to what the class does, and use every parameter in a hook.",
    "T22": "Avoid detach(), float() in a float64 model, integer casts and in-place changes on the way from a parameter "
    "to the output; guard 0 ** p and log(0), whose gradients are not finite.",
    "T23": "Leave hidden keys at −inf; do not replace −inf by a large number.",
    "T24": "Look only at keys that the mask shows (pair.allowed_BQK), and at none behind the query's own.",
    "T25": "Positions are a pure function of (prompt, answer so far, key, budget), below `limit`.",
    "T28": "Keep each option as it was given: self.NAME = NAME.",
    "T29": "Act on the layer's own queries, keys or scores; an encoding that changes embeddings is for all layers.",
    "T30": "Check the frequencies, the order of sines and cosines, and the amplitude.",
    "T57": "Return weights that sum to 1, or set complete = False; give no weight to keys that the mask hides.",
    "C01": "Use positions and the budget, not the number of tokens that are there; or set prefix_stable = False.",
    "C02": "Turn a key by its own position alone, or set static_keys = False.",
    "N01": "Set shift_invariant and ordered to what `weigh` does.",
    "N02": "Leave keys with a score of −inf out of `weigh`, return zeros where all are, and compare with `formula`.",
    "N03": "Compute the factor from n_BQ, in the precision of n_BQ.",
    "F01": "Compare with the formula that `formula` names, head by head, or remove that claim.",
    "S01": "Compute constants in the hook; keep no buffer and no tensor that is not a parameter.",
    "S02": "Put everything that must be saved into parameters, and compute the rest in the hooks.",
    "S03": 'Draw in initialize(self, stream) from stream("name") alone: normal_(self.table, 1.0, stream("table")).',
    "S04": "Keep parameters where the formula is defined, e.g. through softplus, sigmoid or a clamp; start further "
    "from the edge.",
}
"""The usual fix for each failed check."""

CONSEQUENCES = {
    "S01": ("S02", "T10", "T13"),
    "S03": (),
    "T04": ("T22", "S04", "T19"),
    "T22": ("S04",),
    "T17": ("T05", "T06", "T19"),
    "T06": ("T05",),
    "C01": ("T05", "T11"),
    "C02": ("T05",),
    "T05": ("T08", "T29"),
    "T13": (),
    "T07": ("T12",),
    "T24": ("C01", "T05", "T11", "T57"),
    "T01": ("T02", "T11"),
}
"""Check → checks that fail as its consequence: e.g. a kept table (S01) is also lost when reloaded or cast."""


def explaining_failures(failed: set[str]) -> dict[str, str]:
    """Failed check → the failed check that probably explains it; root causes are not in it."""
    found: dict[str, str] = {}
    for root, explained in CONSEQUENCES.items():
        for id in explained:
            if root in failed and id in failed and found.get(root) != id:
                found.setdefault(id, root)
    return found
