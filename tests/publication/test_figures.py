"""The original's figures are drawn again from its numbers: words, data and the same bytes every time."""

import csv
import itertools
import json
import re

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.encoding import ENCODINGS as TABLE
from lengthwise.publication import ENCODINGS, ROTARY, TOPICS
from lengthwise.reporting.palette import colour, dash, marker
from lengthwise.reporting.published import FIGURES, redraw_published_figure
from lengthwise.spec import SpecError
from lengthwise.study.file import StudyFile


@pytest.mark.slow
@pytest.mark.parametrize("number", ["1", "2", "4", "6", "7", "A.1", "E.3", "E.10"])
def test_a_figure_is_drawn_with_its_source_and_data_and_again_to_the_byte(number, tmp_path):
    first = redraw_published_figure(number, tmp_path / "a")
    assert [path.suffix for path in first] == [".svg", ".pdf", ".csv"]
    if number in {"1", "6"}:  # drawing is the same code for all of them, and slow
        for one, other in zip(first, redraw_published_figure(number, tmp_path / "b"), strict=True):
            assert one.read_bytes() == other.read_bytes()
    picture = first[0].read_text()
    assert "2305.19466" in picture and "<text" in picture  # words stay words, and the source is among them
    assert first[1].read_bytes().startswith(b"%PDF")
    with first[2].open() as file:
        data = list(csv.DictReader(file))
    assert len(data) >= 5 and all(all(row.values()) for row in data)


def test_every_number_that_is_asked_for_can_be_drawn():
    assert {"1", "2", "4", "6", "7", "A.1"} <= set(FIGURES)


def test_the_data_beside_a_figure_are_its_numbers(tmp_path):
    with redraw_published_figure("1", tmp_path)[2].open() as file:
        data = {row["encoding"]: float(row["mrr"]) for row in csv.DictReader(file)}
    assert data == dict(zip(ENCODINGS, (0.686928, 0.54902, 0.502288, 0.329739, 0.215359), strict=True))


@pytest.mark.parametrize(("number", "hint"), [("3", "E.2, E.3 and E.4"), ("E.5", "draw 4"), ("99", "Available: 1, 2")])
def test_an_unknown_figure_is_told_with_a_way_out(number, hint, tmp_path):
    with pytest.raises(SpecError, match=re.escape(hint)):
        redraw_published_figure(number, tmp_path)
    assert not list(tmp_path.iterdir())


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["published", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_printed_with_its_source(topic):
    printed = run(topic).stdout
    assert "source: " in printed and "arXiv:" in printed and "!" in printed
    for table in json.loads(run(topic, "--json").stdout):
        assert table["source"] and table["unit"] and table["rows"] and table["defects"]


def test_the_list_has_topics_and_figures():
    printed = run().stdout
    assert all(topic in printed for topic in TOPICS)
    assert "A.1" in printed and "arXiv:2305.19466" in printed
    assert json.loads(run("--json").stdout)["figures"][0]["figure"] == "1"


def test_published_numbers_as_they_are_known():
    assert re.search(r"overall +51 +\.6869 +\.5490 +\.5023 +\.3297 +\.2154", run("mrr").stdout)
    assert re.search(r"all +\.265 +\.263 +\.490 +\.987 +\.719", run("attention").stdout)
    assert re.search(r"sort:variant=multi .* \.2641 +\.3709 +\.2954 +\.7509 +\.1124", run("accuracy").stdout)


def test_mistakes_are_told():
    assert "Did you mean 'accuracy'" in str(run("acuracy").exception)
    assert "two commands" in str(run("mrr", "--figure", "1").exception)


def test_a_figure_from_the_command_line(tmp_path):
    told = json.loads(run("--figure", "A.1", "--to", str(tmp_path), "--json").stdout)
    assert told["figure"] == "A.1" and len(told["files"]) == 3


# --- the palette ------------------------------------------------------------------------------------------------------

SEVEN = (*ENCODINGS, "rope", "learned")
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLIND = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(shade, matrix):
    """A colour in CIELAB, as somebody sees it."""
    linear = [int(shade[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in linear]
    red, green, blue = (min(1.0, max(0.0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in matrix)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("kind", BLIND)
def test_seven_encodings_are_told_apart_by_everybody(kind):
    looks = {name: seen(colour(name), BLIND[kind]) for name in SEVEN}
    for one, other in itertools.combinations(SEVEN, 2):
        apart = sum((a - b) ** 2 for a, b in zip(looks[one], looks[other], strict=True)) ** 0.5
        assert apart > 15, f"{one} and {other} are {apart:.0f} apart"
    assert len({marker(name) for name in SEVEN}) == 7


def test_a_look_is_a_function_of_the_name():
    assert colour("rope:fraction=0.25") == colour(ROTARY) != colour("rope")
    assert colour("rope:interleaved=true") == colour("rope:fraction=1.0") == colour("rope")
    assert colour("t5:buckets=64") == colour("t5:buckets=64") != colour("t5")
    assert colour("mine.py:Mine:b=2:a=1") == colour("mine.py:Mine:a=1:b=2")
    names = [f"mine.py:Mine{number}" for number in range(40)]
    assert len({(colour(name), marker(name), str(dash(name))) for name in names}) > 35
    assert not {colour(name) for name in names} & {colour(name) for name in SEVEN}
    assert colour("rope,nope") == colour("rope,nope")  # one per layer


def test_no_two_encodings_of_the_table_or_of_the_first_look_look_alike():
    names = dict.fromkeys([*TABLE, *StudyFile.read("glance").encodings])
    looks = {name: (colour(name), marker(name), str(dash(name))) for name in names}
    assert len(set(looks.values())) == len(looks) > 18
    fixed = [*TABLE, "rope:p=0.75"]
    assert len({colour(name) for name in fixed}) == len(fixed)


def test_a_name_of_ones_own_takes_nobodys_look():
    taken = {(colour(name), marker(name), str(dash(name))) for name in TABLE}
    names = [f"mine.py:Mine{number}" for number in range(600)]  # more than there are looks to draw
    assert not taken & {(colour(name), marker(name), str(dash(name))) for name in names}
