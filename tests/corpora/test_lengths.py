"""Measuring lengths: against brute force and numpy, and quick enough for millions."""

import json
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lengthwise.corpora import count_words, measure_lengths, read_texts
from lengthwise.corpora.lengths import PERCENTS
from lengthwise.spec import SpecError

COUNTS = st.lists(st.integers(0, 300) | st.integers(0, 10**9), min_size=1, max_size=200)


def test_words_are_separated_by_white_space():
    assert [count_words(text) for text in ["", " \n", "one", " a b,\tc\n d "]] == [0, 0, 1, 4]


def test_the_worked_example():
    lengths = measure_lengths([9, 2, 1, 2], training_lengths=[8, 2, 9], unit="words")
    assert (lengths.documents, lengths.total, lengths.mean) == (4, 14, 3.5)
    assert (lengths.min, lengths.median, lengths.max) == (1, 2, 9)
    assert lengths.quantiles == {5: 1, 25: 1, 50: 2, 75: 2, 90: 9, 95: 9, 99: 9}
    assert lengths.beyond == {2: 0.25, 8: 0.25, 9: 0.0} and list(lengths.beyond) == [2, 8, 9]


@settings(max_examples=150, deadline=None)
@given(counts=COUNTS, trained=st.lists(st.integers(1, 400), max_size=4), bins=st.integers(1, 60), data=st.data())
@example(counts=[0], trained=[1], bins=50, data=None)
def test_everything_agrees_with_brute_force(counts, trained, bins, data):
    upto = data and data.draw(st.none() | st.integers(1, 400))
    lengths = measure_lengths(iter(counts), trained)
    assert (lengths.documents, lengths.total) == (len(counts), sum(counts))
    assert (lengths.min, lengths.max) == (min(counts), max(counts))
    assert lengths.mean == sum(counts) / len(counts)
    for percent in PERCENTS:
        enough = [length for length in counts if sum(c <= length for c in counts) * 100 >= percent * len(counts)]
        assert lengths.quantiles[percent] == min(enough)
    assert lengths.beyond == {t: sum(c > t for c in counts) / len(counts) for t in trained}
    shown = lengths.histogram(bins, upto)
    assert 1 <= len(shown.counts) == len(shown.edges) - 1 <= bins
    assert shown.edges[0] == 0 and len(set(np.diff(shown.edges))) == 1
    between = zip(shown.edges, shown.edges[1:], strict=False)
    assert list(shown.counts) == [sum(low < c <= high for c in counts) for low, high in between]
    assert shown.empty == counts.count(0)
    assert shown.overflow == sum(c > shown.edges[-1] for c in counts)
    assert sum(shown.counts) + shown.empty + shown.overflow == len(counts)


@pytest.mark.parametrize("documents", [1, 2, 7, 99, 100, 101, 10_000])
def test_quantiles_are_numpys_inverted_cdf(documents):
    counts = np.random.default_rng(documents).integers(0, 5000, documents)
    wanted = np.percentile(counts, PERCENTS, method="inverted_cdf")
    assert list(measure_lengths(counts.tolist()).quantiles.values()) == wanted.tolist()


def test_chunks_do_not_show(monkeypatch):
    counts = [i * i % 37 for i in range(1000)]
    whole = measure_lengths(counts, [5]).to_json_dict()
    monkeypatch.setattr("lengthwise.corpora.lengths._CHUNK", 7)
    assert measure_lengths(iter(counts), [5]).to_json_dict() == whole


def test_what_is_too_long_for_the_histogram_is_counted():
    lengths = measure_lengths([10] * 995 + [0] + [100_000] * 4)
    shown = lengths.histogram()
    assert (shown.edges[-1], sum(shown.counts), shown.empty, shown.overflow) == (10, 995, 1, 4)
    assert lengths.histogram(longest_shown=100_000).overflow == 0


def test_bins_of_the_papers_figure_and_of_an_uneven_end():
    lengths = measure_lengths([0, 80, 81, 4000, 4001])
    shown = lengths.histogram(50, 4000)
    assert shown.edges == tuple(range(0, 4001, 80))
    assert (shown.counts[0], shown.counts[1], shown.counts[-1], shown.empty, shown.overflow) == (1, 1, 1, 1, 1)
    assert lengths.histogram(50, 101).edges == tuple(range(0, 103, 3))


@pytest.mark.parametrize(
    ("p99", "upto"), [(0, 1), (1, 1), (9, 9), (10, 10), (11, 15), (99, 100), (1390, 1500), (4001, 5000), (8001, 10_000)]
)
def test_the_axis_ends_at_a_round_number(p99, upto):
    shown = measure_lengths([p99] * 100).histogram()
    assert shown.edges[-1] == upto and len(shown.counts) <= 50


def test_mapping_is_json_and_says_all():
    to_json_dict = measure_lengths([0, 3, 4, 900], training_lengths=[3], unit="words").to_json_dict(
        bins=2, longest_shown=4
    )
    assert json.loads(json.dumps(to_json_dict)) == to_json_dict
    assert to_json_dict["beyond"] == [{"trained": 3, "share": 0.5}]
    assert to_json_dict["histogram"] == {"edges": [0, 2, 4], "counts": [0, 2], "empty": 1, "overflow": 1}
    assert set(to_json_dict) == {"unit", "documents", "total", "mean", "min", "quantiles", "max", "beyond", "histogram"}


def test_mistakes_are_told():
    with pytest.raises(SpecError, match="no documents"):
        measure_lengths([])
    with pytest.raises(SpecError, match="cannot be negative, but one is -3"):
        measure_lengths([1, -3])
    with pytest.raises(SpecError, match="training length is 1 or more, not 0"):
        measure_lengths([1], training_lengths=[16, 0])
    for bins, upto in [(0, 10), (10, 0)]:
        with pytest.raises(SpecError, match=f"not {bins} bins up to {upto}"):
            measure_lengths([1]).histogram(bins, upto)


def test_a_million_documents_take_a_second_or_so(figure):
    counts = np.random.default_rng(0).lognormal(6, 1, 1_000_000).astype(int).tolist()
    begun = time.perf_counter()
    lengths = measure_lengths(iter(counts), [512])
    lengths.histogram()
    taken = time.perf_counter() - begun
    figure(f"corpora: a million lengths measured in {taken:.2f} s")
    assert lengths.documents == 1_000_000 and lengths.median == np.percentile(counts, 50, method="inverted_cdf")
    assert lengths.lengths_N.size < 50_000
    assert taken < 5  # 0.06 s on an idle core; the rest is for a busy one


def test_from_a_file_to_its_lengths(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\none two\none two three\n")
    assert measure_lengths(map(count_words, read_texts(tmp_path / "a.txt"))).quantiles[50] == 2
