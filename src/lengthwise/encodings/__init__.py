"""What is varied: positional encodings, one file each, and the kinds of positions they are fed.

To add an encoding: write the file, add the line. Every contract test then covers it. `my_lab.pe:Mine` and
`my_pe.py:Mine` work wherever a name works, so nobody has to fork.

Legend of shape suffixes here: B batch (1 where all rows agree), T tokens, Q queries, K keys, H heads, E head width,
D model width, N distances, C columns.
"""

from __future__ import annotations

import typing

from lengthwise.spec import Spec, build

if typing.TYPE_CHECKING:
    from lengthwise.encodings.encoding import Encoding, Geometry
    from lengthwise.encodings.positions import Positions

ENCODINGS = {
    "nope": "lengthwise.encodings.nope:NoPE",
    "sinusoidal": "lengthwise.encodings.sinusoidal:Sinusoidal",
    "learned": "lengthwise.encodings.learned:Learned",
    "t5": "lengthwise.encodings.t5:T5",
    "alibi": "lengthwise.encodings.alibi:Alibi",
    "rope": "lengthwise.encodings.rope:Rope",
    "kerple": "lengthwise.encodings.kerple:Kerple",
    "fire": "lengthwise.encodings.fire:Fire",
    "hard_alibi": "lengthwise.encodings.hard_alibi:HardAlibi",
    "shaw": "lengthwise.encodings.shaw:Shaw",
    "transformer_xl": "lengthwise.encodings.transformer_xl:TransformerXL",
    "xpos": "lengthwise.encodings.xpos:XPos",
    "cope": "lengthwise.encodings.cope:CoPE",
    "forgetting": "lengthwise.encodings.forgetting:Forgetting",
    "stick_breaking": "lengthwise.encodings.stick_breaking:StickBreaking",
}

POSITIONS = {
    "consecutive": "lengthwise.encodings.positions:Consecutive",
    "randomized": "lengthwise.encodings.positions:Randomized",
    "offset": "lengthwise.encodings.positions:Offset",
    "given": "lengthwise.encodings.positions:Given",
    "coupled": "lengthwise.encodings.positions:Coupled",
    "abacus": "lengthwise.encodings.positions:Abacus",
}


def build_encoding(spec: str | typing.Mapping[str, object] | Spec, geometry: Geometry) -> Encoding:
    """The encoding that `spec` names, e.g. `build_encoding("rope:fraction=0.25", geometry)`."""
    from lengthwise.encodings.encoding import Encoding

    return typing.cast(Encoding, build("encoding", ENCODINGS, Encoding, Spec.of(spec), [geometry]))


def build_positions(spec: str | typing.Mapping[str, object] | Spec) -> Positions:
    """The kind of positions that `spec` names, e.g. `build_positions("randomized:limit=2048")`."""
    from lengthwise.encodings.positions import Positions

    return typing.cast(Positions, build("positions", POSITIONS, Positions, Spec.of(spec)))
