"""The layout is the explanation: imports point one way, files stay small, nothing heavy loads unasked."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lengthwise

ROOT = Path(lengthwise.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# What each part may import of lengthwise, besides itself and `spec`, `loading`, `folder`, `checksums`, `consent`,
# `optimizer` and `device`, which lie under all.
MAY_IMPORT = {
    "spec": set(),
    "folder": set(),
    "loading": set(),
    "checksums": set(),
    "consent": set(),
    "device": set(),
    "optimizer": set(),
    "display": {"spec"},
    "progress": set(),
    "task": {"corpora"},
    "encoding": set(),
    "normaliser": {"encoding"},
    "model": {"encoding", "normaliser"},
    "training": {"model", "encoding", "task", "corpora"},
    "evaluation": {"model", "encoding", "task", "corpora"},
    "run": {"training", "evaluation", "model", "encoding", "task"},
    "conformance": {"model", "encoding", "normaliser"},
    "analysis": {"model", "encoding", "normaliser", "task", "evaluation"},
    "theory": {"model", "encoding"},
    "corpora": set(),
    "study": {"run", "evaluation", "model", "encoding", "normaliser", "task", "training"},
    "statistics": {"study"},
    "publication": set(),
    "reporting": {"evaluation", "statistics", "study", "publication", "encoding", "training"},
    "leaderboard": {"run", "study", "statistics", "encoding", "evaluation", "conformance", "task"},
    "interface": {
        *("run", "study", "reporting", "statistics", "encoding", "task", "conformance", "model", "publication"),
        *(
            "leaderboard",
            "analysis",
            "theory",
            "evaluation",
            "corpora",
            "hf",
            "timing",
            "training",
            "normaliser",
            "foreign",
        ),
    },
    "hf": {"model", "encoding", "task"},
    "foreign": {"task", "evaluation"},
    "timing": {"model", "encoding"},
    "cli": set(),  # only the public names of `lengthwise`
    "__main__": {"cli"},
    "__init__": None,  # for type checkers alone; at run time names are imported when asked for
}
NO_TORCH = [
    *("lengthwise", "lengthwise.spec", "lengthwise.cli", "lengthwise.encoding", "lengthwise.encoding.positions"),
    *("lengthwise.task", "lengthwise.task.export", "lengthwise.task.audit", "lengthwise.task.pcfg"),
    *("lengthwise.corpora", "lengthwise.corpora.drawing", "lengthwise.folder", "lengthwise.task.prefetch"),
    *("lengthwise.run.identity", "lengthwise.run.lease", "lengthwise.study.file", "lengthwise.study.plan"),
    *("lengthwise.study.store", "lengthwise.study.status", "lengthwise.study.add", "lengthwise.study.drive"),
    *("lengthwise.study.check", "lengthwise.study.work", "lengthwise.study.ray_executor"),
    *("lengthwise.statistics.estimate", "lengthwise.statistics.table", "lengthwise.statistics.cells"),
    *("lengthwise.statistics.outcomes", "lengthwise.statistics.intervals", "lengthwise.statistics.flips"),
    *("lengthwise.statistics.aggregates", "lengthwise.statistics.ranks", "lengthwise.statistics.seeds"),
    *("lengthwise.statistics.sensitivity", "lengthwise.statistics.learned"),
    *("lengthwise.statistics.reach", "lengthwise.reporting.bars", "lengthwise.evaluation.rows"),
    *("lengthwise.interface.comparison", "lengthwise.interface.study", "lengthwise.study.executors"),
    *("lengthwise.publication", "lengthwise.publication.citations", "lengthwise.reporting.published"),
    *("lengthwise.statistics.pairs", "lengthwise.reporting.divergences", "lengthwise.reporting.attention"),
]


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of lengthwise that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names = [node.module or ""]
            if node.module == "lengthwise":
                names = [f"lengthwise.{alias.name}" for alias in node.names if alias.name not in lengthwise.__all__]
        found |= {name.split(".")[1] for name in names if name.startswith("lengthwise.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    assert part(path) in MAY_IMPORT, f"{path.name}: a new part needs a line in MAY_IMPORT and in docs/project/design.md"
    allowed = MAY_IMPORT[part(path)]
    if allowed is not None:
        low = {"spec", "folder", "loading", "checksums", "consent", "device", "optimizer", "progress", "display"}
        assert imported(path) - {part(path)} - low <= allowed


def test_the_direction_is_checked_at_all(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from lengthwise.model import Decoder\n")
    assert imported(bad) == {"model"}


def first_with_torch(names: list[str]) -> str:
    """Import these modules in a new process, and return the first that brings torch with it."""
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    if 'torch' in sys.modules:\n        sys.exit(name)"
    done = subprocess.run([sys.executable, "-c", code, *names], check=False, capture_output=True, text=True)
    return done.stderr.strip()


def test_what_needs_no_torch_imports_none():
    assert first_with_torch(NO_TORCH) == ""
    assert first_with_torch(["lengthwise", "lengthwise.model.decoder", "lengthwise.spec"]) == "lengthwise.model.decoder"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= 400


def test_no_drawer_for_leftovers():
    assert not [path for path in MODULES if path.stem in {"utils", "common", "helpers", "core", "registry", "misc"}]


def test_every_encoding_file_has_its_row_and_its_class_one_name():
    from lengthwise.encoding import ENCODINGS

    others = {"__init__", "base", "labels", "recipes", "signature", "positions", "scaling"}
    files = {path.stem for path in (ROOT / "encoding").glob("*.py")} - others
    assert files == set(ENCODINGS)
    for name, where in ENCODINGS.items():
        module, _, cls = where.partition(":")
        assert module == f"lengthwise.encoding.{name}"
        assert cls.lower() == name.replace("_", "")


def test_every_normaliser_file_has_its_row():
    from lengthwise.normaliser import NORMALISERS

    files = {path.stem for path in (ROOT / "normaliser").glob("*.py")} - {"__init__", "base"}
    assert files == {where.partition(":")[0].rpartition(".")[2] for where in NORMALISERS.values()}


def test_every_task_has_its_file_and_its_class_one_name():
    from lengthwise.task import TASKS

    for name, where in TASKS.items():
        assert where == f"lengthwise.task.{name}:{name.capitalize()}"
        assert (ROOT / "task" / f"{name}.py").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "task").glob("*.py")), ids=lambda path: path.name)
def test_tasks_need_numpy_alone(path):
    """But for what reads or writes files, inside a function, and the optional tokenizer."""
    tree = ast.parse(path.read_text())
    top = {
        name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert top <= {*sys.stdlib_module_names, "numpy", "lengthwise"}


def test_the_readme_draws_the_tree_that_is_there():
    readme = (ROOT.parent.parent / "README.md").read_text()
    drawn = set(re.findall(r"^  (\w+)(?:/|\.py)\s", readme, re.MULTILINE))
    there = {part(path) for path in MODULES} - {"__init__", "__main__"}
    assert drawn == there


def verbs() -> dict[str, ast.FunctionDef]:
    """Each verb of the command line, e.g. `study plan`, with its function."""
    found, groups = {}, {"app": "", "study": "study ", "theory": "theory ", "bench": "bench "}
    groups["leaderboard"] = "leaderboard "
    for path in sorted((ROOT / "cli").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr == "command":
                    name = mark.args[0].value if mark.args else node.name
                    found[groups[mark.func.value.id] + name] = node
    return found


def public_calls(path_or_node: ast.AST) -> list[str]:
    """The public names of lengthwise that a verb uses, and the methods of a study or a run that it calls."""
    found = []
    for node in ast.walk(path_or_node):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "lw":
                found.append(f"lw.{node.attr}")
            elif (isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "_read") or (
                isinstance(node.value, ast.Name) and node.value.id == "asked"
            ):
                found.append(f"lw.Study.{node.attr}")
    return sorted(set(found))


CALLS = {
    "analyze": ["lw.AttentionAnalysis", "lw.analyze"],  # the first reads what the second left
    "probe": ["lw.ProbeResults", "lw.probe"],
    "published": ["lw.published", "lw.published_figure", "lw.published_topics"],
    "train": ["lw.summarize", "lw.train"],
    "evaluate": ["lw.load_run", "lw.reach"],  # and `Run.evaluate`
    "measure": ["lw.measure", "lw.measure_run"],  # a model of others, or a run of ours
    "list": ["lw.encodings"],  # and the table that is named
}
"""Verbs that use more than one public name."""


def test_each_verb_calls_one_public_function(figure):
    from typer.main import get_command

    import lengthwise.cli

    top, known = get_command(lengthwise.cli.app), verbs()
    there = set()
    for name, command in top.commands.items():
        there |= {f"{name} {inner}" for inner in command.commands} if hasattr(command, "commands") else {name}
    assert set(known) == there - {"study retry"}  # the same function as `study run`
    for name, node in sorted(known.items()):
        calls = public_calls(node)
        figure(f"lengthwise {name}: {', '.join(calls)}")
        assert calls == CALLS.get(name, calls[:1]) and calls, name
        for call in calls:
            assert call.split(".")[1] in lengthwise.__all__, call


def test_the_command_line_only_parses_and_prints():
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "cli").glob("*.py"))
    assert lines <= 1500


@pytest.mark.slow
def test_no_two_modules_import_each_other():
    """Not even inside functions; `spec` alone loads classes from outside through `loading` when it is asked to."""
    names = {f"lengthwise.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}": path for path in MODULES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items() if "__main__" not in name}
    uses = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text())
        hidden = {id(node) for block in ast.walk(tree) if _for_type_checkers(block) for node in ast.walk(block)}
        uses[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in hidden:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
                uses[name] |= {one if one in names else node.module for one in found} & set(names)
    pairs = {tuple(sorted((one, other))) for one in uses for other in uses[one] if one in uses[other] and one != other}
    packages = {(one, other) for one, other in pairs if other.startswith(f"{one}.")}  # a package and its own parts
    assert pairs - packages == {("lengthwise.loading", "lengthwise.spec")}


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
