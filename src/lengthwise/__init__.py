"""How far beyond its training length does a decoder-only Transformer still work?"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from lengthwise.conformance import assert_conforms, verify
    from lengthwise.encoding.base import Encoding, Geometry
    from lengthwise.evaluation.interface import evaluate
    from lengthwise.interface.attention import AttentionAnalysis, analyze
    from lengthwise.interface.bundles import export_bundle, fsck, study_schema, write_rows
    from lengthwise.interface.catalog import (
        checks,
        cost,
        describe,
        encodings,
        normalisers,
        positions,
        presets,
        recipes,
        report,
        studies,
        tasks,
        temperatures,
    )
    from lengthwise.interface.comparison import Comparison, compare
    from lengthwise.interface.corpus import PreparedCorpus, prepare_corpus
    from lengthwise.interface.data import audit, examples, export_lm_eval, export_task, text_lengths
    from lengthwise.interface.foreign_models import doctor, measure, measure_run
    from lengthwise.interface.interventions import Recovered, recover
    from lengthwise.interface.leaderboard import check_entry, standings, submit_entry
    from lengthwise.interface.literature import cite, claims, published, published_figure, published_topics
    from lengthwise.interface.new import write_template
    from lengthwise.interface.probing import ProbeResults, probe
    from lengthwise.interface.prompts import ask, attention, export_model
    from lengthwise.interface.selftest import SelfTest, selftest
    from lengthwise.interface.study import Study
    from lengthwise.interface.summary import RunSummary, summarize
    from lengthwise.interface.theorems import (
        Demonstration,
        theorem1,
        theorem2,
        theory_claims,
        theory_heads,
        theory_horizon,
        theory_order,
        theory_variance,
    )
    from lengthwise.interface.timing import bench
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
        "AttentionAnalysis": "interface.attention",
        "analyze": "interface.attention",
        "export_bundle": "interface.bundles",
        "fsck": "interface.bundles",
        "study_schema": "interface.bundles",
        "write_rows": "interface.bundles",
        "checks": "interface.catalog",
        "cost": "interface.catalog",
        "describe": "interface.catalog",
        "encodings": "interface.catalog",
        "normalisers": "interface.catalog",
        "positions": "interface.catalog",
        "presets": "interface.catalog",
        "recipes": "interface.catalog",
        "report": "interface.catalog",
        "studies": "interface.catalog",
        "temperatures": "interface.catalog",
        "tasks": "interface.catalog",
        "Comparison": "interface.comparison",
        "compare": "interface.comparison",
        "PreparedCorpus": "interface.corpus",
        "prepare_corpus": "interface.corpus",
        "audit": "interface.data",
        "examples": "interface.data",
        "export_lm_eval": "interface.data",
        "export_task": "interface.data",
        "text_lengths": "interface.data",
        "Recovered": "interface.interventions",
        "recover": "interface.interventions",
        "check_entry": "interface.leaderboard",
        "standings": "interface.leaderboard",
        "submit_entry": "interface.leaderboard",
        "cite": "interface.literature",
        "claims": "interface.literature",
        "published": "interface.literature",
        "published_figure": "interface.literature",
        "published_topics": "interface.literature",
        "write_template": "interface.new",
        "ProbeResults": "interface.probing",
        "probe": "interface.probing",
        "ask": "interface.prompts",
        "attention": "interface.prompts",
        "export_model": "interface.prompts",
        "SelfTest": "interface.selftest",
        "doctor": "interface.foreign_models",
        "measure": "interface.foreign_models",
        "measure_run": "interface.foreign_models",
        "selftest": "interface.selftest",
        "Study": "interface.study",
        "RunSummary": "interface.summary",
        "summarize": "interface.summary",
        "Demonstration": "interface.theorems",
        "theory_heads": "interface.theorems",
        "theory_horizon": "interface.theorems",
        "theory_order": "interface.theorems",
        "theorem1": "interface.theorems",
        "theorem2": "interface.theorems",
        "theory_claims": "interface.theorems",
        "theory_variance": "interface.theorems",
        "bench": "interface.timing",
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
    "AttentionAnalysis",
    "Comparison",
    "Decoder",
    "Demonstration",
    "Encoding",
    "Geometry",
    "PreparedCorpus",
    "ProbeResults",
    "Recovered",
    "Run",
    "RunSummary",
    "SelfTest",
    "Study",
    "Task",
    "__version__",
    "analyze",
    "ask",
    "assert_conforms",
    "attention",
    "audit",
    "bench",
    "check_entry",
    "checks",
    "cite",
    "claims",
    "compare",
    "cost",
    "describe",
    "doctor",
    "encodings",
    "evaluate",
    "examples",
    "export_bundle",
    "export_lm_eval",
    "export_model",
    "export_task",
    "fsck",
    "load_run",
    "measure",
    "measure_run",
    "normalisers",
    "positions",
    "prepare_corpus",
    "preset",
    "presets",
    "probe",
    "published",
    "published_figure",
    "published_topics",
    "reach",
    "recipes",
    "recover",
    "report",
    "selftest",
    "standings",
    "studies",
    "study_schema",
    "submit_entry",
    "summarize",
    "tasks",
    "temperatures",
    "text_lengths",
    "theorem1",
    "theorem2",
    "theory_claims",
    "theory_heads",
    "theory_horizon",
    "theory_order",
    "theory_variance",
    "train",
    "verify",
    "write_rows",
    "write_template",
]
