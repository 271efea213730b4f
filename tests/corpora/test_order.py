"""Which tokens are in which row: each once in an epoch, in an order that any process finds alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.corpora import order
from lengthwise.corpora.order import Mixture, Rows, cut_row
from lengthwise.corpora.shards import Corpus
from lengthwise.spec import SpecError


class FakeShard:
    def __init__(self, number, tokens):
        self.number, self.tokens = number, tokens


class FakeCorpus:
    def __init__(self, sizes):
        self.sizes = sizes

    def shards(self, split):
        return [FakeShard(number, size) for number, size in enumerate(self.sizes)]


@given(st.lists(st.integers(0, 700), min_size=1, max_size=6), st.integers(1, 60), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_every_row_comes_once_in_an_epoch(sizes, context, pages, seed):
    before = order.PAGE, order._PAGES
    order.PAGE, order._PAGES = 3 * context, pages
    try:
        rows = Rows(FakeCorpus(sizes), "train", context, seed)
        wanted = {(n, start) for n, size in enumerate(sizes) for start in range(0, size - context, context)}
        assert rows.count == len(wanted)
        for epoch in range(2 if wanted else 0):
            found = [rows.place(epoch * rows.count + index) for index in range(rows.count)]
            assert {(shard.number, start) for shard, start in found} == wanted
    finally:
        order.PAGE, order._PAGES = before


def test_the_order_is_found_alone_and_differs_by_seed_and_epoch(corpus):
    def places(indices, seed=0):
        rows = Rows(Corpus(corpus), "train", 32, seed)
        return [(shard.number, start) for shard, start in map(rows.place, indices)]

    count = Rows(Corpus(corpus), "train", 32, 0).count
    first = places(range(count))
    assert places(range(count - 1, -1, -1)) == first[::-1], "the order of questions must not matter"
    assert places(range(count), 1) != first != places(range(count, 2 * count))
    apart = np.abs(np.diff([start for _, start in first]))
    assert np.median(apart) > 1000, "neighbours must not stay together"


def test_a_row_is_what_the_documents_say(corpus):
    found = Corpus(corpus)
    (shard, *_) = found.shards("train")
    starts = shard.documents[1].tolist()
    for start in range(0, shard.tokens - 65, 64):
        ids, breaks = cut_row(shard, start, 64)
        assert len(ids) == 65
        assert breaks == [place - start for place in starts if start < place < start + 65]
        assert [place for place in range(1, 65) if ids[place] == found.tokenizer.start] == breaks


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0], [0.7, 0.2]])
def test_a_mixture_has_its_shares_in_every_thousand_rows(corpus, weights):
    parts = [Rows(Corpus(corpus), split, 32, 0) for split in ("train", "test")]
    mixed = Mixture(parts, weights)
    for period in range(2):
        found = [mixed.place(1000 * period + index)[0].split for index in range(1000)]
        counts = Counter(found)
        assert counts["train"] == round(1000 * weights[0] / sum(weights)) and counts.total() == 1000
        assert len({tuple(found[n : n + 4]) for n in range(0, 1000, 4)}) > 4, "not in blocks"
    seen = [mixed.place(index) for index in range(3 * parts[1].count)]
    own = [(shard.number, start) for shard, start in seen if shard.split == "test"][: parts[1].count]
    assert len(set(own)) == len(own), "a row comes again only after all others of its corpus"


def test_rows_of_a_mixture_come_again_only_where_that_is_said(corpus):
    parts = [Rows(Corpus(corpus), split, 32, 0) for split in ("train", "test")]
    for weights in ([1.0, 1.0], [9.0, 1.0], [1.0, 9.0]):
        mixed = Mixture(parts, weights)
        many = mixed.without_repetition
        places = [mixed.place(index) for index in range(many)]
        assert many > 0 and len({(shard.split, shard.number, start) for shard, start in places}) == many
    assert Mixture(parts[:1], [2.0]).without_repetition == parts[0].count


def test_weights_that_do_not_fit_are_refused(corpus):
    parts = [Rows(Corpus(corpus), "train", 32, 0)]
    with pytest.raises(SpecError, match="too small"):
        Mixture(parts * 2, [1.0, 2000.0])
    for weights in ([1.0, 2.0], [0.0]):
        with pytest.raises(SpecError, match="as many weights above 0"):
            Mixture(parts, weights)
