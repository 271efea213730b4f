"""Drawing lengths: rows that fit a terminal, figures that are written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.corpora import histogram_bars, measure_lengths, write_histogram_figure
from lengthwise.corpora.drawing import format_percent
from lengthwise.spec import SpecError


def test_the_worked_example():
    assert histogram_bars(measure_lengths([1, 2, 2, 4], [4], "words"), 54) == [
        "words  documents",
        "    1          1  ████████████▌",
        "    2          2  █████████████████████████ ← median 2",
        "    3          0",
        "    4          1  ████████████▌ ← trained 4",
    ]


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60) | st.integers(0, 10**7), min_size=1, max_size=100),
    trained=st.lists(st.integers(1, 10**6), max_size=5),
    width=st.integers(40, 200),
    upto=st.none() | st.integers(1, 5000),
)
def test_rows_fit_their_width_and_nothing_that_is_there_looks_empty(counts, trained, width, upto):
    lengths = measure_lengths(counts, trained)
    head, *rows = histogram_bars(lengths, width, upto)
    assert len(rows) <= 22 and all(len(row) <= width for row in [head, *rows])
    after = [row[head.index("documents") :] for row in rows]
    said = [int(row.split()[0].replace(",", "")) for row in after]
    assert sum(said) == len(counts)
    assert all(bool(count) == bool(set(row) & set("█▉▊▋▌▍▎▏")) for count, row in zip(said, after, strict=True))


def test_the_drawing_says_what_is_empty_and_what_is_longer():
    rows = histogram_bars(measure_lengths([0] * 3 + [5] * 990 + [70] * 7, [5, 40, 90]), 80)
    assert rows[1].split()[:2] == ["0", "3"]
    assert rows[-2].endswith("← median 5, trained 5")
    assert rows[-1].split()[:3] == [">", "5", "7"] and rows[-1].endswith("← trained 40, trained 90, longest 70")
    assert histogram_bars(measure_lengths([5], [90]), 80)[-1].split() == [">", "5", "0", "←", "trained", "90"]


def test_notes_go_before_bars_do():
    lengths = measure_lengths([10, 20, 30], [1024])
    assert any("median" in row for row in histogram_bars(lengths, 80))
    narrow = histogram_bars(lengths, 34)
    assert not any("median" in row for row in narrow) and max(map(len, narrow)) <= 34


@pytest.mark.parametrize(
    ("share", "wanted"),
    [(0, "0%"), (1e-7, "under 0.1%"), (0.0005, "0.1%"), (0.401, "40.1%"), (0.9999, "over 99.9%"), (1, "100%")],
)
def test_a_share_says_neither_none_nor_all_where_that_is_not_so(share, wanted):
    assert format_percent(share) == wanted


def test_the_figure_is_written_and_the_same_each_time(tmp_path):
    counts = np.random.default_rng(0).lognormal(6, 0.5, 2000).astype(int).tolist()
    lengths = measure_lengths([*counts, 0], [512, 1024, 10**6], "tokens")
    write_histogram_figure(lengths, tmp_path / "a.png", "a title with $ and _ and ^ $")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for name in ("a.svg", "b.svg"):
        write_histogram_figure(lengths, tmp_path / name, "the same", bins=20, longest_shown=4000)
    first = (tmp_path / "a.svg").read_bytes()
    assert first.startswith(b"<?xml") and first == (tmp_path / "b.svg").read_bytes()


def test_the_figure_says_what_it_does_not_draw(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # words as words
        write_histogram_figure(
            measure_lengths([0, 5, 5, 5, 900], [4, 64], "words"), tmp_path / "a.svg", "five", longest_shown=10
        )
    said = (tmp_path / "a.svg").read_text()
    for words in (
        "five",
        "length in words",
        "not drawn: 1 (20.0%) that are empty",
        "not drawn: 1 (20.0%) longer than 10, the longest 900",
        "median 5",
        "trained 4: 80.0% longer",
        "trained 64 (right of the axis): 20.0% longer",
    ):
        assert words in said


def test_mistakes_with_figures(tmp_path):
    lengths = measure_lengths([1, 2])
    with pytest.raises(SpecError, match=r"a figure is .svg or .png, not '.*a.pdf'; write .*a.svg"):
        write_histogram_figure(lengths, tmp_path / "a.pdf", "")
    with pytest.raises(SpecError, match=r"cannot be written to '.*gone/a.svg': No such file"):
        write_histogram_figure(lengths, tmp_path / "gone" / "a.svg", "")
