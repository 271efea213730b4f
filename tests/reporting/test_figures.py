"""Figures have their data beside them, redraw to the same bytes, and survive odd studies."""

import polars as pl
import pytest

from lengthwise.reporting import figures, overview
from lengthwise.reporting.page import Page
from lengthwise.statistics.table import learned_cells
from tests.reporting.made import FIVE, TASKS, findings, study

FOUND = findings()
LEARNED = learned_cells(Page(FOUND).numbers.scores)


def drawings():
    return [
        figures.study_accuracy_curves(FOUND, TASKS[0]),
        figures.answer_kinds_drawing(FOUND, TASKS[2]),
        overview.accuracy_heat_map(FOUND, LEARNED),
        overview.reach_drawing(FOUND),
        overview.length_maps_drawing(FOUND, FOUND.encodings),
        overview.rank_share_drawing(FOUND, {"nope": [0.75, 0.25], "t5": [0.25, 0.75]}),
    ]


@pytest.mark.parametrize("drawing", drawings(), ids=lambda one: one.name)
def test_a_figure_redraws_to_the_same_bytes_with_its_data_beside_it(drawing, tmp_path):
    first = [path.read_bytes() for path in drawing.write(tmp_path / "a", ("svg", "pdf"))]
    again = [path.read_bytes() for path in drawing.write(tmp_path / "b", ("svg", "pdf"))]
    assert first == again
    assert pl.read_csv(tmp_path / "a" / f"{drawing.name}.csv").height == drawing.data.height > 0
    assert len(drawing.alt) > 20


def test_words_in_a_figure_are_not_rounded():
    text = overview.accuracy_heat_map(FOUND, LEARNED).svg()
    shown = {f"{value:.2f}" for value in overview.accuracy_heat_map(FOUND, LEARNED).data["unseen"].to_list()}
    assert all(value in text for value in shown)


def test_what_the_curve_shows_are_the_counts_of_the_rows():
    data = figures.study_accuracy_curves(FOUND, TASKS[0]).data
    assert (data["accuracy"] - data["correct"] / data["examples"]).abs().max() == 0
    last = FOUND.rows.filter((pl.col("checkpoint") == "last") & (pl.col("task") == TASKS[0]))
    assert data["correct"].sum() == last["correct"].sum()


def test_the_map_of_each_task_has_a_row_per_encoding_and_the_line_after_the_trained_length():
    drawing = overview.length_maps_drawing(FOUND, FOUND.encodings)
    panels = [axes for axes in drawing.figure().axes if axes.images and axes.get_title(loc="left")]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["copy same", "sort", "parity (chance 0.5)"]
    for axes, task in zip(panels, FOUND.tasks, strict=True):
        own = drawing.data.filter(pl.col("task") == task)
        lengths = own["length"].unique().sort().to_list()
        for row, name in enumerate(FOUND.encodings):
            expected = own.filter(pl.col("encoding") == name).sort("length")["accuracy"].to_list()
            assert axes.images[0].get_array()[row].tolist() == expected
        (line,) = axes.lines
        assert line.get_xdata()[0] == lengths.index(FOUND.trained[task][0]) + 0.5


def test_latex_has_every_number_and_escapes_names(tmp_path):
    from lengthwise.reporting.latex import escape_latex, write_latex_tables

    page = Page(findings(study(TASKS[:2], FIVE[:3])))
    paths = write_latex_tables(page, tmp_path)
    text = paths[0].read_text()
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 4 and "n = " in text
    assert all(line["unseen"].partition(" ")[0] in text for line in page.rank_table())
    assert escape_latex("a_b & 95 %") == r"a\_b \& 95 \%"
    assert "AdamW" in paths[1].read_text()
