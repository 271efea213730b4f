"""Names in figures and tables are those of the papers; specs, paths and answers are printed as they are."""

import ast
import re
from pathlib import Path

import pytest

import lengthwise
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.labels import label_of, label_of_class, unique_labels
from lengthwise.encoding.signature import encoding_stub
from lengthwise.reporting.page import Page
from lengthwise.reporting.words import format_number
from tests.reporting.made import FIVE, TASKS, findings, study
from tests.run.test_cli_runs import cli

ROOT = Path(lengthwise.__file__).parent


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("nope", "NoPE"),
        ("t5", "T5"),
        ("alibi", "ALiBi"),
        ("rope", "RoPE"),
        ("rope:fraction=0.25", "RoPE ¼"),
        ("rope:fraction=0.25:interleaved=true", "RoPE ¼"),
        ("rope:p=0.75", "RoPE p=0.75"),
        ("3*rope,nope", "3×RoPE, NoPE"),
        ("lab/my_pe.py:Mine:width=3", "Mine width=3"),
        ("my.lab:Mine", "Mine"),
    ],
)
def test_labels(spec, label):
    assert label_of(spec) == label


def test_an_outside_class_says_its_own_label_or_is_called_by_its_name():
    class Mine(lengthwise.Encoding):
        label = "My encoding"

    class Other(lengthwise.Encoding):
        pass

    assert label_of_class(Mine) == "My encoding" and label_of_class(Other) == "Other"
    assert label_of("my_pe.py:Mine", {"my_pe.py:Mine": "My encoding"}) == "My encoding"


def test_every_encoding_has_a_label_of_its_own_and_alike_ones_keep_their_spelling():
    labels = [label_of(name) for name in ENCODINGS]
    assert len(set(labels)) == len(labels)
    assert all(label_of_class(encoding_stub(name)) for name in ENCODINGS)
    two = ["rope:fraction=0.25", "rope:fraction=0.25:interleaved=true"]
    assert unique_labels(two) == {name: name for name in two}


@pytest.mark.slow
def test_pages_figures_and_latex_use_labels_and_one_format(tmp_path):
    from lengthwise.reporting.latex import write_latex_tables

    page = Page(findings(study(TASKS[:2], [*FIVE, "rope:fraction=0.25"])))
    page.write(tmp_path)
    figures = {path.stem: path.read_text() for path in (tmp_path / "figures").glob("*.svg")}
    for text in (*figures.values(), page.verdict, write_latex_tables(page, tmp_path)[0].read_text()):
        words = re.sub(r"<[^>]*>", " ", text)
        assert not re.search(r"\bnope\b|\balibi\b|rope:fraction|\bsinusoidal\b", words)
    html = re.sub(r"<img[^>]*>", "", page.html())
    specs = re.search(r"<h3>Names</h3>.*?</table>", html, re.DOTALL)
    assert specs is not None and "rope:fraction=0.25" in specs.group()
    rest = html.replace(specs.group(), "")
    assert "rope:fraction=0.25" not in rest and ">nope<" not in rest
    for line in page.rank_table():
        assert all(re.fullmatch(r"[01]\.\d{3}( \[.*\])?", line[name]) for name in ("unseen", "seen"))
    assert '<td class="num">' in html and '<th class="num">' in html
    assert [format_number(value) for value in (0.5, -0.0123, 1.0, None, -0.0001)] == [
        "0.500",
        "−0.012",
        "1.000",
        "–",
        "0.000",
    ]


def test_captions_state_and_constant_columns_go(tmp_path):
    from lengthwise.reporting.latex import write_latex_tables

    page = Page(findings(study(TASKS[:1])))
    captions = re.findall(r"\\caption\{(.*)\}", write_latex_tables(page, tmp_path)[0].read_text())
    assert captions and not any("?" in caption for caption in captions)
    assert all(
        "level" not in line
        for line in (*page.rank_table(), *page.difference_table(), *page.task_summary_table(TASKS[0]))
    )
    assert "level 75 %" in page.rank_table_caption() and "level 75 %" in page.difference_table_caption()


@pytest.mark.slow
def test_specs_are_printed_as_they_are(tmp_path):
    """`:one:` is an emoji to rich; in a spec it is a class and an option."""
    (tmp_path / "one.py").write_text(
        "from lengthwise.encoding.base import Encoding\n\n\n"
        "class One(Encoding):\n"
        "    def __init__(self, geometry, *, smile: float = 0.3) -> None:\n"
        "        super().__init__(geometry)\n"
        "        self.smile = smile\n\n"
        "    def by_distance(self, distances_N):\n"
        "        return -self.smile * distances_N.abs().expand(self.geometry.heads, -1)\n"
    )
    done = cli("verify", "one.py:One:smile=0.3", cwd=tmp_path)
    assert "one.py:One:smile=0.3 conforms" in done.stdout
    assert (
        "one.py:One:smile=0.3, consecutive"
        in cli("verify", "one.py:One:smile=0.3", "--only", "T05", cwd=tmp_path).stdout
    )


def test_no_console_turns_words_into_pictures():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console":
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                assert isinstance(named.get("emoji"), ast.Constant) and named["emoji"].value is False, path


@pytest.mark.slow
def test_messages_name_commands_and_no_path_of_the_repository():
    """Whoever installed the wheel has no docs/, studies/ or tests/."""
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docs = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or hasattr(node, "body"):
                body = node.body if isinstance(node.body, list) else []
                docs |= {id(one.value) for one in body if isinstance(one, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                assert not re.search(r"\b(docs|tests|benchmarks|scripts)/\w", node.value), (path, node.value)
