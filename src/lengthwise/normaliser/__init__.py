"""The registry of normalisers, which turn the scores of a query into attention weights.

To add one, write its file and add one line to `NORMALISERS`. Normalisers outside the package need no fork:
`my_normaliser.py:Mine` works wherever a name works.

Legend of shape suffixes here: B batch (1 where all rows agree), H heads, Q queries, K keys.
"""

from __future__ import annotations

import typing

from lengthwise.spec import Spec, build

if typing.TYPE_CHECKING:
    from lengthwise.encoding.base import Geometry
    from lengthwise.normaliser.base import Normaliser

NORMALISERS = {
    "softmax": "lengthwise.normaliser.softmax:Softmax",
    "sink": "lengthwise.normaliser.sink:Sink",
    "off-by-one": "lengthwise.normaliser.sink:OffByOne",
    "entmax": "lengthwise.normaliser.entmax:Entmax",
    "stick_breaking": "lengthwise.normaliser.stick_breaking:StickBreaking",
}


def build_normaliser(spec: str | typing.Mapping[str, object] | Spec, geometry: Geometry) -> Normaliser:
    """The normaliser that `spec` names, e.g. `build_normaliser("entmax:alpha=1.5", geometry)`."""
    from lengthwise.normaliser.base import Normaliser

    return typing.cast(Normaliser, build("normaliser", NORMALISERS, Normaliser, Spec.of(spec), [geometry]))
