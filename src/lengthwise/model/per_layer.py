"""Which encoding each layer has: one for all, or a list with one entry per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.spec import Spec, SpecError, canonical, parse_specs

Named = str | Mapping[str, object] | Spec | type[Encoding]
"""How an encoding is named: a spec in any of its forms, or the class itself."""


def per_layer(encoding: Named | Sequence[Named], layers: int) -> tuple[tuple[Spec, ...], dict[Spec, type[Encoding]]]:
    """The spec of each layer's encoding, and the classes of those given as classes; `3*rope,nope` is a list too."""
    if encoding is None or isinstance(encoding, Encoding):
        raise SpecError("give the encoding's name or its class, e.g. 'rope', or a list with one per layer")
    if isinstance(encoding, str):
        several = parse_specs(encoding)
        encoding = several if len(several) > 1 else Spec.of(several[0] if several else encoding)
    listed = (encoding,) * layers if isinstance(encoding, str | Mapping | Spec | type) else tuple(encoding)
    if len(listed) != layers:
        raise SpecError(f"a list of encodings has one entry per layer: {layers} layers, but {len(listed)} entries")
    named, classes = [], {}
    for item in listed:
        if isinstance(item, type):
            if not issubclass(item, Encoding):
                raise SpecError(
                    f"{item.__qualname__} is not an encoding: it must derive from {Encoding.__module__}.Encoding"
                )
            spec = Spec(f"{item.__module__}:{item.__qualname__}")
            if classes.setdefault(spec, item) is not item:
                raise SpecError(f"two classes are called {item.__qualname__}; give them names of their own")
        else:
            spec = canonical("encoding", ENCODINGS, Spec.of(item), positional_count=1)
        named.append(spec)
    return tuple(named), classes
