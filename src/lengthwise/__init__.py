"""How far beyond its training length does a decoder-only Transformer still work?"""

from importlib import import_module

__version__ = "0.1.0"

_EXPORTED = {
    "Encoding": "lengthwise.encoding.base",
    "Geometry": "lengthwise.encoding.base",
    "Decoder": "lengthwise.model",
    "preset": "lengthwise.model",
    "assert_conforms": "lengthwise.conformance",
    "train": "lengthwise.run",
    "Run": "lengthwise.run",
    "evaluate": "lengthwise.evaluation",
}
"""What most programs begin with; imported when asked for, so that `import lengthwise` needs no torch."""


def __getattr__(name: str) -> object:
    if name in _EXPORTED:
        return getattr(import_module(_EXPORTED[name]), name)
    raise AttributeError(f"module 'lengthwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *_EXPORTED]
