"""The Python interface: every public name works, whatever was imported before, and is typed."""

import doctest
import importlib
import inspect
import json
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

import lengthwise as lw
from lengthwise.interface.results import reproducing_commands
from tests.study.conftest import LEADERBOARD

SCRIPT = '''
import lengthwise as lw
from torch import Tensor


class Mine(lw.Encoding):
    """Subtract the root of the distance from each score."""

    def by_distance(self, distances_N: Tensor) -> Tensor:
        return -distances_N.abs().sqrt().expand(self.geometry.heads, -1)


print(lw.verify(Mine, only=["T05", "T06"]))
small = "laptop:width=32:heads=2:feed_forward_width=64"
task = "copy:variant=same:longest=4:alphabet=40"
runs = [lw.train(task, e, model=small, seed=s, steps=6, quiet=True) for e in (Mine, "rope") for s in range(2)]
print(runs[0], runs[0].rows())
c = lw.compare(runs)
c.plot()
print(c.table, c.verdict)
print(runs[0].evaluate([2, 8]).rows)
study = lw.Study(
    task=[task, "sort:longest=3"], encoding=[Mine, "nope"], seeds=1, model=small, training="laptop:steps=6"
)
print(study.plan())
print(study.run(store="store", workers=2, executor="processes"))
page = study.report("out")
print("page:", page.path, page.verdict, list(page.tables))
print("script ends")
'''


def modules():
    found = [one.name for one in pkgutil.walk_packages(lw.__path__, "lengthwise.")]
    return [name for name in found if name not in {"lengthwise.__main__", "lengthwise.study.worker"}]


def test_no_public_name_is_a_module_whatever_was_imported():
    for name in modules():
        importlib.import_module(name)
    for name in lw.__all__:
        value = getattr(lw, name)
        assert not inspect.ismodule(value), f"lengthwise.{name} is a module"
        if name != "__version__":
            assert callable(value) and value.__doc__, f"lengthwise.{name} has no docstring"
    assert sorted(lw.__all__) == sorted(set(lw.__all__)) and set(dir(lw)) == set(lw.__all__)


@pytest.fixture(scope="module")
def folder_of_examples(tmp_path_factory, corpus):
    """A folder with the runs and the text that the examples of docstrings name."""
    there = tmp_path_factory.mktemp("examples")
    small = "laptop:width=32:heads=2:feed_forward_width=64:layers=1"
    for task, encoding, seed in (("copy", "nope", 0), ("copy", "nope", 1), ("copy", "rope", 0), ("sort", "nope", 0)):
        lw.train(
            f"{task}:longest=4",
            encoding,
            model=small,
            steps=2,
            seed=seed,
            store=str(there / "lengthwise-store"),
            quiet=True,
        )
    shutil.copytree(corpus, there / "corpus")
    (there / "corpus.jsonl").write_text('{"text": "a b c"}\n')
    lw.write_template("encoding", "my_pe", there)
    (there / "study.yaml").write_text(yaml.safe_dump(LEADERBOARD))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("lengthwise.interface.leaderboard", "lengthwise.leaderboard.entry"):
            patch.setattr(f"{module}.STUDY", str(there / "study.yaml"))
        where = {"root": there / "leaderboard", "store": str(there / "leaderboard-store"), "executor": "inline"}
        lw.submit_entry("nope", authors="A. Student", **where)
        yield there


class AnyOutputUnlessGiven(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


FUNCTIONS = [name for name in lw.__all__ if inspect.isfunction(getattr(lw, name))]


@pytest.mark.docs
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_public_function_has_an_example_that_runs(name, folder_of_examples, monkeypatch):
    monkeypatch.chdir(folder_of_examples)
    function = getattr(lw, name)
    scope = dict(vars(sys.modules[function.__module__]))
    (found,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=scope)
    assert found.examples, f"lengthwise.{name} has no example"
    told = []
    doctest.DocTestRunner(AnyOutputUnlessGiven(), verbose=False).run(found, out=told.append)
    assert not told, "".join(told)


def test_catalogues_print_and_have_names():
    for table in (lw.encodings(), lw.tasks(), lw.positions(), lw.presets(), lw.studies()):
        lines = str(table).splitlines()
        assert len(lines) > len(table) and table.names[0] in str(lines[:2])
        assert table.names[0] in table._repr_html_() and table._repr_html_().count("<tr>") > 3


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = lw.nonsense


def test_a_study_is_planned_from_python():
    study = lw.Study(task=["copy", "sort"], encoding=["nope", "rope"], seeds=2, training="laptop:steps=20")
    found = study.plan("nowhere")
    assert found.counts == {"tuning": 0, "runs": 8, "evaluations": 0} and found.proof.holds
    assert (
        isinstance(found.table, pl.DataFrame) and found.table.height == 8 and "8 runs; 0 done in nowhere" in str(found)
    )
    again = lw.Study.read(study, add=["alibi"])
    assert again.plan("nowhere").counts["runs"] == 12


def test_a_study_from_python_can_choose_learning_rates_and_be_blind():
    study = lw.Study(task="copy:variant=same", encoding=["nope", "rope"], seeds=2, lr=[0.001, 0.002], blind=True)
    assert study.file.lr.choose == [0.001, 0.002] and study.file.blind
    assert study.plan().counts["tuning"] == 8  # two encodings, two rates, two seeds
    plain = lw.Study(task="copy:variant=same", encoding=["nope", "rope"], seeds=2)
    assert plain.file.lr is None and not plain.file.blind


def test_a_log_says_nothing_twice(capsys, monkeypatch):
    from lengthwise import progress

    monkeypatch.setattr(progress, "_EVERY", 0.0)
    with progress.progress() as say:
        for words in ("1 of 3", "1 of 3", "2 of 3", "2 of 3"):
            say(words)
    assert capsys.readouterr().err.splitlines() == ["1 of 3", "2 of 3"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_that_is_read_from_a_study_is_the_same_study():
    first = lw.Study.read("quickstart", tasks="quick", with_bundle="results/quickstart")
    first.store = "elsewhere"
    more = lw.Study.read(first, add=["cope"])
    assert (more.source, more.store, more.tasks) == ("quickstart", "elsewhere", "quick")
    assert more.with_bundle == first.with_bundle and more.add == ["cope"]
    again = lw.Study.read("quickstart", tasks="quick", add=["cope"], with_bundle="results/quickstart")
    assert reproducing_commands(more) == reproducing_commands(again, "elsewhere")
    assert "cope" in more.file.encodings and "cope" not in more.before_adding.study.encodings
    made = lw.Study(task="copy", encoding=["nope", "rope"])
    assert reproducing_commands(lw.Study.read(made)) == ""
    assert made.file.question.endswith("carry copy?")


@pytest.mark.slow
def test_the_script_runs_without_a_guard_and_its_workers_run_nothing_of_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("script ends") == 1 and "4 of 4 runs done in store" in done.stdout
    assert (tmp_path / "out" / "index.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("checker", [["mypy", "--strict", "--follow-imports=silent", "."], ["pyrefly", "check"]])
def test_the_script_is_typed_and_nonsense_is_an_error(tmp_path, checker):
    where = {"search-path": [str(Path(lw.__file__).parents[1])], "python-interpreter-path": sys.executable}
    lines = [f"{key} = {json.dumps(value)}" for key, value in where.items()]
    (tmp_path / "pyproject.toml").write_text("\n".join(["[tool.pyrefly]", *lines]))
    (tmp_path / "script.py").write_text(SCRIPT)

    def check():
        command = [sys.executable, "-m", *checker]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    good = check()
    assert good.returncode == 0, good.stdout + good.stderr
    (tmp_path / "wrong.py").write_text("import lengthwise as lw\n\nlw.nonsense\nlw.train(3.5, steps='many')\n")
    bad = check()
    assert bad.returncode != 0 and "nonsense" in bad.stdout and "steps" in bad.stdout


NOTEBOOK = [
    "import lengthwise as lw\nSLOPE = 0.5\ndef slope(x):\n    return SLOPE * x",
    "class Mine(lw.Encoding):\n    def by_distance(self, distances_N):\n"
    "        return -slope(distances_N.abs()).expand(self.geometry.heads, -1)",
    "study = lw.Study(task='copy:variant=same:longest=4:alphabet=40', encoding=[Mine, 'nope'], seeds=1,\n"
    "    model='laptop:width=32:heads=2:feed_forward_width=64', training='laptop:steps=6')\n"
    "study.run(store='store', workers=2, executor='{executor}')",
    "study.report('out')",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_a_class_of_a_notebook_cell_is_trained_by_workers(tmp_path, executor):
    """A real Jupyter kernel executes the cells; results are shown as text and as HTML."""
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(text.replace("{executor}", executor)) for text in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    ran, reported = (cell["outputs"][-1]["data"] for cell in notebook.cells[2:])
    assert ran["text/plain"] == "2 of 2 runs done in store" and "2 of 2 runs done" in ran["text/html"]
    assert reported["text/html"].startswith("<!doctype html>") and (tmp_path / "out" / "index.html").exists()


def test_results_are_shown_as_text_and_as_html():
    """Whatever a public function returns has a readable repr, and one for notebooks."""
    from lengthwise.conformance.check import Report
    from lengthwise.display import Table
    from lengthwise.evaluation.result import DecodingAgreement, EvaluationResult
    from lengthwise.interface import results
    from lengthwise.interface.attention import AttentionAnalysis
    from lengthwise.interface.probing import ProbeResults
    from lengthwise.publication import Table as PublishedTable

    shown = [lw.Comparison, lw.Run, AttentionAnalysis, EvaluationResult, ProbeResults, PublishedTable, Report, Table]
    shown += [getattr(results, name) for name in ("StudyPlan", "StudyCost", "StudyReport", "StudyResult")]
    for one in shown:
        assert one.__str__ is not object.__str__ and callable(one._repr_html_), one.__name__
    row = {"task": "copy", "encoding": "<b>", "length": 4, "split": "test_seen", "examples": 4, "correct": 3}
    row |= {"correct_content": 3, "early": 0, "late": 0, "wrong": 1, "cut": 0}
    found = EvaluationResult(pl.DataFrame([row]), pl.DataFrame(), DecodingAgreement(), [])
    assert "0.75" in repr(found) and "<td>0.75</td>" in found._repr_html_()
