"""The registry of positional encodings, one file each, and of the kinds of positions they receive.

To add an encoding, write its file and add one line to `ENCODINGS`; every contract test then covers it. Encodings
outside the package need no fork: `my_lab.pe:Mine` and `my_pe.py:Mine` work wherever a name works.

Legend of shape suffixes here: B batch (1 where all rows agree), T tokens, Q queries, K keys, H heads, E head width,
D model width, N distances, C columns.
"""

from __future__ import annotations

import typing

from lengthwise.spec import Spec, build

if typing.TYPE_CHECKING:
    from lengthwise.encoding.base import Encoding, Geometry
    from lengthwise.encoding.positions import Positions

ENCODINGS = {
    "nope": "lengthwise.encoding.nope:NoPE",
    "sinusoidal": "lengthwise.encoding.sinusoidal:Sinusoidal",
    "learned": "lengthwise.encoding.learned:Learned",
    "t5": "lengthwise.encoding.t5:T5",
    "alibi": "lengthwise.encoding.alibi:Alibi",
    "rope": "lengthwise.encoding.rope:Rope",
    "local": "lengthwise.encoding.local:Local",
    "chunked": "lengthwise.encoding.chunked:Chunked",
    "kerple": "lengthwise.encoding.kerple:Kerple",
    "fire": "lengthwise.encoding.fire:Fire",
    "hard_alibi": "lengthwise.encoding.hard_alibi:HardAlibi",
    "shaw": "lengthwise.encoding.shaw:Shaw",
    "transformer_xl": "lengthwise.encoding.transformer_xl:TransformerXL",
    "xpos": "lengthwise.encoding.xpos:XPos",
    "cope": "lengthwise.encoding.cope:CoPE",
    "forgetting": "lengthwise.encoding.forgetting:Forgetting",
    "stick_breaking": "lengthwise.encoding.stick_breaking:StickBreaking",
    "nape": "lengthwise.encoding.nape:Nape",
    "inkling": "lengthwise.encoding.inkling:Inkling",
    "wall": "lengthwise.encoding.wall:Wall",
    "path": "lengthwise.encoding.path:PaTH",
    "selective_rope": "lengthwise.encoding.selective_rope:SelectiveRope",
    "pope": "lengthwise.encoding.pope:PoPE",
    "dape": "lengthwise.encoding.dape:DAPE",
}

POSITIONS = {
    "consecutive": "lengthwise.encoding.positions:Consecutive",
    "randomized": "lengthwise.encoding.positions:Randomized",
    "offset": "lengthwise.encoding.positions:Offset",
    "given": "lengthwise.encoding.positions:Given",
    "coupled": "lengthwise.encoding.positions:Coupled",
    "abacus": "lengthwise.encoding.positions:Abacus",
}


def build_encoding(spec: str | typing.Mapping[str, object] | Spec, geometry: Geometry) -> Encoding:
    """The encoding that `spec` names, e.g. `build_encoding("rope:fraction=0.25", geometry)`."""
    from lengthwise.encoding.base import Encoding

    return typing.cast(Encoding, build("encoding", ENCODINGS, Encoding, Spec.of(spec), [geometry]))


def build_positions(spec: str | typing.Mapping[str, object] | Spec) -> Positions:
    """The kind of positions that `spec` names, e.g. `build_positions("randomized:limit=2048")`."""
    from lengthwise.encoding.positions import Positions

    return typing.cast(Positions, build("positions", POSITIONS, Positions, Spec.of(spec)))
