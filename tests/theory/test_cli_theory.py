"""`lengthwise theory` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.spec import SpecError

SMALL = {
    "theorem1": ("--tokens", "24", "--width", "8", "--sequences", "3"),
    "theorem2": ("--tokens", "24", "--width", "8", "--norm", "none,rms"),
    "horizon": ("--dtype", "bf16"),
    "heads": ("--tokens", "6"),
}


def run(*arguments: str):
    return CliRunner().invoke(app, ["theory", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize("verb", SMALL)
def test_a_table_a_figure_and_rows(verb, tmp_path):
    done = run(verb, *SMALL[verb], "--to", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert f"{verb}.svg" in done.output
    assert (tmp_path / f"{verb}.svg").read_text().startswith("<svg")
    assert (tmp_path / f"{verb}.csv").exists()
    assert json.loads((tmp_path / f"{verb}.json").read_text())


@pytest.mark.parametrize("verb", SMALL)
def test_plain_json(verb):
    tables = json.loads(run(verb, *SMALL[verb], "--json").stdout)
    assert all(isinstance(row, dict) for table in tables.values() for row in table)


def test_a_figure_is_drawn_again_from_its_rows(tmp_path):
    from lengthwise.reporting.theory import head_drawing

    run("heads", "--tokens", "6", "--to", str(tmp_path))
    rows = json.loads((tmp_path / "heads.json").read_text())
    assert head_drawing(rows["maps"]).svg() == (tmp_path / "heads.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("theorem1", "--norm", "batch"), "none, rms or layer"),
        (("theorem1", "--norm", ","), "empty"),
        (("theorem1", "--dtype", "int8"), "the precisions are"),
        (("theorem1", "--width", "3"), "at least 4"),
        (("theorem1", "--tokens", "-5"), "at least one token"),
        (("theorem2", "--tokens", "0"), "at least one token"),
        (("theorem2", "--tokens", "-5"), "at least one token"),
        (("horizon", "--dtype", "fp64"), "bf16, fp16 or fp32"),
        (("heads", "--beta", "0"), "above 0"),
    ],
)
def test_mistakes_are_said(arguments, words):
    done = run(*arguments)
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)
