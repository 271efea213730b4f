"""Classes from outside: only what a class needs is executed, and only that decides its id."""

import ast
import json
import subprocess
import sys

import pytest

from lengthwise.loading import GIVEN, code_without_comments, content, load_class, needed_statements
from lengthwise.run import Plan
from lengthwise.spec import SpecError

SCRIPT = '''
import os, sys
import math
from helper import factor, unused

import lengthwise as lw

RATE = 2 * 0.25
OTHER = 1


def slope(heads):
    return RATE * factor(heads)


class Mine(lw.Encoding):
    """Subtract a line."""

    def by_distance(self, distances_N):
        c = distances_N.abs()
        return -(c * slope(1.0)).expand(self.geometry.heads, -1)


Mine.paper = "you, this year"
c = 1 / 0 if __name__ != "__main__" else OTHER  # a local variable of the class has the same name
print("THE SCRIPT RUNS")
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("def factor(x):\n    return x\n\n\ndef unused():\n    return 1\n")
    return tmp_path / "script.py"


def id_of(name="script.py:Mine"):
    return Plan.of("copy", name).id


def test_loading_a_class_does_not_run_the_rest_of_its_script(script, capsys):
    assert load_class("script.py", "Mine").paper == "you, this year"
    assert "THE SCRIPT RUNS" not in capsys.readouterr().out


@pytest.mark.slow
def test_only_what_the_class_needs_decides_its_id(script):
    before, text = id_of(), script.read_text()
    for same in (
        text.replace("OTHER = 1", "OTHER = 2  # and a comment"),
        text.replace('"""Subtract a line."""', '"""Another docstring."""'),
        text.replace("import math\n", "import json\n"),
        text.replace("factor, unused", "factor"),
        text + "\nruns = [lw.train('copy', Mine, steps=200)]\n",
    ):
        script.write_text(same)
        assert id_of() == before
    for other in (
        text.replace("2 * 0.25", "2 * 0.5"),
        text.replace("RATE * factor", "-RATE * factor"),
        text.replace("c * slope", "c + slope"),
        text.replace('"you, this year"', '"somebody else"'),
    ):
        script.write_text(other)
        assert id_of() != before
    script.write_text(text)
    (script.parent / "helper.py").write_text("def factor(x):\n    return 2 * x\n")
    assert id_of() != before


@pytest.mark.slow
def test_a_class_and_its_name_give_the_same_id_in_every_process(script):
    text = script.read_text() + "\nfrom lengthwise.run import Plan\nprint(Plan.of('copy', Mine).id)\n"
    script.write_text(text)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == id_of()


def test_a_class_defined_later_in_the_file_is_needed_too():
    tree = ast.parse(
        "def f():\n    return Later()\nclass Mine:\n    g = f\nclass Later:\n    pass\nclass Never:\n    pass\n"
    )
    text = code_without_comments(needed_statements(tree, "Mine"))
    assert "class Later" in text and "Never" not in text


NOTEBOOK = '''
import linecache, json, sys

def cell(number, source):
    name = f"<ipython-input-{number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), globals())


cell(1, "import torch\\nimport lengthwise as lw\\nfrom math import pi\\nSCALE = 0.5\\n")
cell(2, "def slope(x):\\n    return SCALE * x\\n")
cell(3, """class Mine(lw.Encoding):
    def by_distance(self, distances_N):
        return -(slope(distances_N.abs()) / pi).expand(self.geometry.heads, -1)
""")
from lengthwise.loading import notebook_class_source
from lengthwise.run import Plan
first, name = Plan.of("copy", Mine).id, str(Plan.of("copy", Mine).encoding_specs[0])
cell(4, "BELOW = 1  # another cell\\n")
second = Plan.of("copy", Mine).id
cell(1, "SCALE = 0.75")
third = Plan.of("copy", Mine).id
print(json.dumps({"ids": [first, second, third], "source": notebook_class_source(Mine), "name": name}))
'''


@pytest.mark.slow
def test_a_class_from_a_notebook_is_sent_with_what_it_uses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["name"] == "__main__:Mine"
    assert told["ids"][0] == told["ids"][1] != told["ids"][2]
    (tmp_path / "notebook.py").write_text(told["source"])
    assert id_of("notebook.py:Mine") == told["ids"][2], "a worker gives the run the same name"


@pytest.mark.slow
def test_a_class_of_a_package_is_read_inside_its_package(tmp_path, monkeypatch):
    """Relative imports work, the modules it imports decide its id, and those it does not import do not."""
    package = tmp_path / "somebodys"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "base": "from .deep import factor\n",
        "deep": "def factor(x):\n    return x\n",
        "other": "",
        "mine": SCRIPT.replace("from helper import factor, unused", "from .base import factor").partition("\nc = ")[0],
    }.items():
        (package / f"{name}.py").write_text(text)

    def id_in_a_process():
        code = "from lengthwise.run import Plan; from somebodys.mine import Mine; import somebodys.other; "
        code += "ids = [Plan.of('copy', one).id for one in (Mine, 'somebodys.mine:Mine')]; print(*ids)"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        one, other = done.stdout.split()
        assert one == other
        return one

    first = id_in_a_process()
    (package / "other.py").write_text("x = 1\n")
    assert id_in_a_process() == first
    (package / "deep.py").write_text("def factor(x):\n    return 2 * x\n")
    assert id_in_a_process() != first


def test_what_cannot_be_found_or_sent_is_said_in_one_line(monkeypatch):
    made = type("Made", (), {"__module__": "__main__"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(SpecError, match=r"cannot be found.*write the class into a file"):
        content(made)
    with pytest.raises(SpecError, match="was defined in a notebook"):
        Plan.of("copy", "__main__:Nobody")
    assert "__main__:Nobody" not in GIVEN
