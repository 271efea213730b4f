"""Numbers in README and docs are those of the committed rows, or the page fails."""

import pytest

from lengthwise.statistics.learned import counts_by_length, learned_runs, scored_rows_filter
from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from tests.numbers import BLOCK, PAGES, RESULTS, ROOT, SENTENCES, TABLES, written


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_made_from_rows(name):
    text = (ROOT / name).read_text()
    assert written(text) == text, "python -m tests.numbers writes them again"


def test_every_table_stands_on_a_page():
    found = [one for name in PAGES for one, _ in BLOCK.findall((ROOT / name).read_text())]
    assert sorted(found) == sorted(TABLES)


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_that_lean_on_numbers_have_the_right_ones(name):
    text = " ".join((ROOT / name).read_text().split())
    for sentence in SENTENCES[name]():
        assert " ".join(sentence.split()) in text, sentence


def test_a_wrong_number_is_found(tmp_path):
    text = (ROOT / "docs" / "understand" / "probes.md").read_text()
    (block,) = [body for name, body in BLOCK.findall(text) if name == "probe layers"]
    number = next(word for word in block.split() if word[0].isdigit() and "." in word)
    planted = text.replace(block, block.replace(number, "9.99", 1))
    assert planted != text and written(planted) == text


def test_every_task_is_learned_at_its_default_by_four_encodings_in_four_minutes(figure):
    """Or its plan says before training that it is not learned. The rule is the one that reports print."""
    bundle, planned = Bundle(RESULTS / "defaults"), Planned(StudyFile.read("defaults"))
    learned = dict(
        learned_runs(counts_by_length(bundle.rows.filter(scored_rows_filter()))).select("run", "learned").iter_rows()
    )
    cautioned = set()
    for task in planned.study.tasks:
        items = [item for item in planned.items({})[0] if item.point.task == task]
        seconds = {one.key: bundle.records[one.key]["done"]["cpu_seconds"] for one in items if one.key in learned}
        enough = [key for key, taken in seconds.items() if learned[key] and taken <= 240]
        figure(f"{task}: {len(enough)} of {len(seconds)} runs learned in at most 240 CPU-seconds")
        if items[0].plan.caution:
            cautioned.add(task)
        else:
            assert len(enough) >= 4, task
    assert cautioned == {"modular"}
