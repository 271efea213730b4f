"""How far beyond its training length does a decoder-only Transformer still work?"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lengthwise.conformance import assert_conforms, verify
    from lengthwise.encoding.base import Encoding, Geometry
    from lengthwise.evaluation.interface import evaluate
    from lengthwise.interface.attention import analyze
    from lengthwise.interface.catalog import cost, encodings, positions, presets, published, report, studies, tasks
    from lengthwise.interface.comparison import Comparison, compare
    from lengthwise.interface.probing import probe
    from lengthwise.interface.study import Study
    from lengthwise.model import Decoder, preset
    from lengthwise.run.execute import train
    from lengthwise.run.run import Run, load_run
    from lengthwise.statistics.reach import reach
    from lengthwise.task.base import Task
else:
    _WHERE = {
        "assert_conforms": "conformance",
        "verify": "conformance",
        "Encoding": "encoding.base",
        "Geometry": "encoding.base",
        "evaluate": "evaluation.interface",
        "analyze": "interface.attention",
        "cost": "interface.catalog",
        "encodings": "interface.catalog",
        "positions": "interface.catalog",
        "presets": "interface.catalog",
        "published": "interface.catalog",
        "report": "interface.catalog",
        "studies": "interface.catalog",
        "tasks": "interface.catalog",
        "Comparison": "interface.comparison",
        "compare": "interface.comparison",
        "probe": "interface.probing",
        "Study": "interface.study",
        "Decoder": "model",
        "preset": "model",
        "train": "run.execute",
        "Run": "run.run",
        "load_run": "run.run",
        "reach": "statistics.reach",
        "Task": "task.base",
    }

    def __getattr__(name):  # noqa: ANN001, ANN202  type checkers read the imports above
        """Import a public name when it is asked for, so that `import lengthwise` needs no torch."""
        from importlib import import_module

        if name in _WHERE:
            return getattr(import_module(f"lengthwise.{_WHERE[name]}"), name)
        raise AttributeError(f"module 'lengthwise' has no attribute {name!r}")

    def __dir__():  # noqa: ANN202
        return __all__


__all__ = [
    "Comparison",
    "Decoder",
    "Encoding",
    "Geometry",
    "Run",
    "Study",
    "Task",
    "__version__",
    "analyze",
    "assert_conforms",
    "compare",
    "cost",
    "encodings",
    "evaluate",
    "load_run",
    "positions",
    "preset",
    "presets",
    "probe",
    "published",
    "reach",
    "report",
    "studies",
    "tasks",
    "train",
    "verify",
]
