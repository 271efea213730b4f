"""Colour, marker and dash of each encoding, the same in every figure and distinguishable by colour-blind readers."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from lengthwise.publication import ROTARY
from lengthwise.spec import Spec, SpecError

Dash: TypeAlias = str | tuple[int, tuple[float, ...]]

_FIXED: dict[str, tuple[str, str, Dash]] = {
    "nope": ("#0072B2", "o", "-"),
    "t5": ("#E69F00", "s", "-"),
    "alibi": ("#009E73", "^", "-"),
    "rope": ("#D55E00", "D", "-"),
    "sinusoidal": ("#CC79A7", "v", "-"),
    ROTARY: ("#7F2A1D", "P", (0, (5, 1.5))),
    "learned": ("#56B4E9", "X", (0, (5, 1.5))),
    # These have fixed colours too; with so many colours, markers and dashes tell the encodings apart.
    "kerple": ("#332288", "<", (0, (3, 1))),
    "fire": ("#882255", ">", (0, (3, 1))),
    "cope": ("#117733", "p", (0, (3, 1))),
    "hard_alibi": ("#44AA99", "^", (0, (1, 1))),
    "shaw": ("#999933", "h", (0, (3, 1))),
    "transformer_xl": ("#6E5A00", "*", (0, (3, 1))),
    "xpos": ("#AA4499", "d", (0, (1, 1))),
    "forgetting": ("#3D6FD8", "H", (0, (1, 1))),
    "stick_breaking": ("#7A7A7A", "8", (0, (1, 1))),
    "local": ("#CC6677", "<", (0, (7, 2))),
    "chunked": ("#A6761D", ">", (0, (7, 2))),
    "nape": ("#1B7F3B", "^", (0, (7, 2))),
    "inkling": ("#5E3C99", "s", (0, (7, 2))),
    "wall": ("#B2182B", "p", (0, (7, 2))),
    "path": ("#01665E", "h", (0, (7, 2))),
    "selective_rope": ("#E7298A", "D", (0, (7, 2))),
    "pope": ("#4D4D4D", "d", (0, (7, 2))),
    "dape": ("#6A7FBF", "*", (0, (7, 2))),
    "rope:p=0.75": ("#000000", "P", (0, (5, 1, 1, 1))),
}
"""Okabe and Ito's colours for the published five and `learned`, Tol's muted and similar colours for the rest."""

_OTHERS = ("#332288", "#882255", "#117733", "#44AA99", "#999933", "#6E5A00", "#AA4499", "#3D6FD8", "#7A7A7A")
_MARKERS = ("<", ">", "p", "h", "*", "d", "H", "8")
_DASHES: tuple[Dash, ...] = ((0, (3, 1)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)))

SEEN = "#EFEFEF"
"""Background of the trained lengths."""
INK, FAINT = "#333333", "#767676"
"""Text colours, normal and secondary; the second has a contrast of 4.5 on white."""


def colour(encoding: str) -> str:
    """Return the colour of an encoding, e.g. `nope` or `rope:fraction=0.25`; it depends only on the name."""
    return _look(encoding)[0]


def marker(encoding: str) -> str:
    """Return the marker of an encoding, as matplotlib's letter."""
    return _look(encoding)[1]


def dash(encoding: str) -> Dash:
    """Return the line style of an encoding for matplotlib; NoPE, T5, ALiBi, RoPE and sinusoids are solid."""
    return _look(encoding)[2]


def _look(encoding: str) -> tuple[str, str, Dash]:
    name = _canonical(encoding)
    if name in _FIXED:
        return _FIXED[name]
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    while (look := _numbered(number)) in _FIXED.values():  # a hashed look must not equal a fixed one
        number += 1
    return look


def _numbered(number: int) -> tuple[str, str, Dash]:
    rest, place = divmod(number, len(_OTHERS))
    further, mark = divmod(rest, len(_MARKERS))
    return _OTHERS[place], _MARKERS[mark], _DASHES[further % len(_DASHES)]


def _canonical(encoding: str) -> str:
    """Return the key of a look: options in canonical order, both layouts of Rotary under one name."""
    try:
        spec = Spec.of(encoding)
    except SpecError:
        return encoding  # one encoding per layer, or the caller's own label
    options = dict(spec.options)
    if spec.name == "rope" and options.pop("interleaved", None) in (None, False, True):
        if options == {"fraction": 0.25}:
            return ROTARY
        if options in ({}, {"fraction": 1.0}):
            return "rope"
    return str(spec)
