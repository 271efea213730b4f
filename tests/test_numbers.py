"""Numbers in README and docs are those of the committed rows, or the page fails."""

import pytest

from tests.numbers import BLOCK, PAGES, ROOT, SENTENCES, TABLES, written


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
    text = (ROOT / "docs" / "probes.md").read_text()
    (block,) = [body for name, body in BLOCK.findall(text) if name == "probe layers"]
    number = next(word for word in block.split() if word[0].isdigit() and "." in word)
    planted = text.replace(block, block.replace(number, "9.99", 1))
    assert planted != text and written(planted) == text
