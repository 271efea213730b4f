"""Divergence of attention: the true one, the published one, how heads and models are paired, and the interval."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from lengthwise.analysis import divergence as module
from lengthwise.analysis.attention import Batch, DecoderAttentionSource
from lengthwise.analysis.divergence import (
    HeadDivergences,
    attention_divergences,
    best_head_matching,
    head_divergences,
    layer_divergence,
    lockstep_attention_blocks,
)
from lengthwise.analysis.pairing import ModelKey, pairings
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, preset
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError
from lengthwise.statistics.pairs import difference_over_pairs, mean_over_seed_pairs


def jensen_shannon(p_NK: torch.Tensor, q_NK: torch.Tensor) -> torch.Tensor:
    """½ [KL(P‖M) + KL(Q‖M)] of each row, in nats; p = (.97, .01, .01, .01) and q reversed give .623.

    It equals H(M) − ½ H(P) − ½ H(Q); a weight of 0 contributes 0. Lin 1991.
    """
    entropy_N = torch.special.entr((p_NK + q_NK) / 2).sum(-1)
    own_N = (torch.special.entr(p_NK).sum(-1) + torch.special.entr(q_NK).sum(-1)) / 2
    return (entropy_N - own_N).clamp(0, math.log(2))


def as_published(p_NK: torch.Tensor, q_NK: torch.Tensor) -> torch.Tensor:
    """½ [KL(M‖P) + KL(M‖Q)] of each row, what the publication's code computes; the same p and q give 1.572.

    Zeros are treated as in that code: infinite if one of two weights is 0, NaN if both are.
    """
    m_NK = (p_NK + q_NK) / 2
    return (torch.xlogy(m_NK, m_NK) - m_NK * ((p_NK.log() + q_NK.log()) / 2)).sum(-1)


P = torch.tensor([0.97, 0.01, 0.01, 0.01], dtype=torch.float64)
IDS = torch.randint(17, (3, 30), generator=torch.Generator().manual_seed(0))


def source(name: str = "nope", seed: int = 0, **changes: object) -> DecoderAttentionSource:
    return DecoderAttentionSource(Decoder(preset("laptop", vocabulary=17, sigma=0.3, **changes), name, seed=seed))


def original(p: torch.Tensor, q: torch.Tensor) -> float:
    """The published computation with the library's own operator: its input is the log of what should be the target."""
    m, kl = (p + q) / 2, torch.nn.KLDivLoss(reduction="sum", log_target=False)
    return float((kl(p.log(), m) + kl(q.log(), m)) / 2)


# --- definitions -----------------------------------------------------------------------------------------------------


def test_the_two_definitions_on_the_known_pair(figure):
    true, published = float(jensen_shannon(P, P.flip(0))), float(as_published(P, P.flip(0)))
    figure(f"p = (.97, .01, .01, .01), q reversed: true {true:.4f}, as published {published:.4f}")
    assert true == pytest.approx(0.623, abs=5e-4)
    assert published == pytest.approx(1.572, abs=5e-4)
    by_hand = sum(
        float(0.5 * a * math.log(a / ((a + b) / 2)) + 0.5 * b * math.log(b / ((a + b) / 2)))
        for a, b in zip(P.tolist(), P.flip(0).tolist(), strict=True)
    )
    assert true == pytest.approx(by_hand, abs=1e-12)
    assert published == pytest.approx(original(P, P.flip(0)), abs=1e-12)


def test_the_true_one_is_bounded_symmetric_and_zero_for_equals():
    generator = torch.Generator().manual_seed(0)
    p, q = ((10 * torch.randn(1000, 9, generator=generator)).softmax(-1).double() for _ in range(2))
    apart = jensen_shannon(p, q)
    assert (apart >= 0).all() and (apart <= math.log(2)).all() and apart.max() > 0.69
    assert torch.equal(apart, jensen_shannon(q, p))
    assert (jensen_shannon(p, p) == 0).all()
    assert as_published(p, q).max() > 1  # which no Jensen–Shannon divergence is
    one, other = torch.eye(2, dtype=torch.float64)
    assert float(jensen_shannon(one, other)) == pytest.approx(math.log(2))


def test_zeros_are_as_in_the_original_where_it_is_published_and_right_elsewhere():
    p, q, r = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.5, 0], [0.2, 0.3, 0.5], [0.9, 0.1, 0]))
    assert original(p, q) == math.inf == float(as_published(p, q))
    assert math.isnan(original(p, r)) and math.isnan(float(as_published(p, r)))
    assert float(jensen_shannon(p, r)) == pytest.approx(float(jensen_shannon(p[:2], r[:2])))


# --- heads -----------------------------------------------------------------------------------------------------------


def test_pairings_of_heads():
    pairwise_divergences = np.array([[[0.0, 1.0], [1.0, 3.0]]])
    assert [layer_divergence(pairwise_divergences, how) for how in ("minimum", "matching", "as_published", "same")] == [
        0,
        1,
        1,
        1.5,
    ]
    with pytest.raises(SpecError, match="paired by"):
        layer_divergence(pairwise_divergences, "nearest")
    # The minimum is of each example, the matching one for all of them.
    two = np.array([[[0.0, 9], [9, 9]], [[9, 9], [9, 0.0]]])
    assert layer_divergence(two, "minimum") == 0
    assert layer_divergence(two, "matching") == pytest.approx(4.5)
    assert math.isnan(layer_divergence(np.zeros((1, 1, 1)), "as_published"))


def test_the_matching_is_the_best_of_all_and_does_not_shrink_with_heads():
    from itertools import permutations

    generator = np.random.default_rng(0)
    pairwise_divergences = generator.random((6, 5, 5))
    best = min(pairwise_divergences.mean(0)[range(5), list(order)].mean() for order in permutations(range(5)))
    assert layer_divergence(pairwise_divergences, "matching") == pytest.approx(best)
    few, many = (layer_divergence(np.abs(generator.normal(1, 0.2, (1, n, n))), "minimum") for n in (2, 32))
    assert many < few
    assert sorted(best_head_matching(np.full((1, 3, 3), math.inf))[1].tolist()) == [0, 1, 2]


def test_a_model_is_zero_apart_from_itself_and_pairs_are_symmetric():
    a, b = source(), source("alibi", seed=1)
    same, there, back = attention_divergences([a, b], [(0, 0), (0, 1), (1, 0)], [Batch(IDS)], queries_per_block=7)
    for how in ("minimum", "matching", "same"):  # to the last bit: M is P, and both sums are the same
        assert same.mean_over_layers("true", how) == 0
    assert same.mean_over_layers("true", "as_published") > 0  # heads of one index never meet
    assert np.allclose(
        there.pairwise_divergences("true"), back.pairwise_divergences("true").transpose(0, 1, 3, 2), atol=1e-12
    )
    assert 0 < there.mean_over_layers("true", "minimum") < there.mean_over_layers("true", "matching") < math.log(2)
    assert there.mean_over_layers("as_published", "as_published") != back.mean_over_layers(
        "as_published", "as_published"
    )


@pytest.mark.parametrize("rows", [1, 8, 30])
def test_in_blocks_it_is_what_the_original_computes_from_the_whole(rows):
    """Query by query over row prefixes, pairs i < j of (M, NoPE), the least of each example."""
    models = [source("t5", 1), source("nope", 0)]
    whole = []
    for one in models:
        recorder = Recorder()
        with torch.no_grad():
            one.decoder(IDS, taps={"layers.*.weights": recorder})
        whole.append(recorder)
    (apart,) = attention_divergences(models, [(0, 1)], [Batch(IDS)], rows)
    expected, truly = [], []
    for layer in range(2):
        m, nope = (recorder[f"layers.{layer}.weights"].double() for recorder in whole)
        for b in range(3):
            by_pair = {
                (i, j): np.mean([original(nope[b, j, t, : t + 1], m[b, i, t, : t + 1]) for t in range(30)])
                for i, j in combinations(range(4), 2)
            }
            expected.append(min(by_pair.values()))
            truly.append(min(float(jensen_shannon(nope[b, j], m[b, i]).mean()) for i in range(4) for j in range(4)))
    assert apart.mean_over_layers("as_published", "as_published") == pytest.approx(np.mean(expected), rel=1e-6)
    assert apart.mean_over_layers("true", "minimum") == pytest.approx(np.mean(truly), rel=1e-6)


class Half(Encoding):
    """Softmax that leaves half of the mass on no key."""

    complete = False

    def weigh(self, scores_BHQK, pair):
        return scores_BHQK.softmax(-1) / 2


def test_weights_that_sum_to_less_than_one_have_the_rest_as_one_more_key():
    a, b = source(), DecoderAttentionSource(Decoder(preset("laptop", vocabulary=17, sigma=0.3), Half))
    (apart,) = attention_divergences([a, b], [(0, 1)], [Batch(IDS[:, :1])])
    # One key: (1, 0) against (.5, .5).
    expected = float(jensen_shannon(torch.tensor([1.0, 0]).double(), torch.tensor([0.5, 0.5]).double()))
    assert apart.mean_over_layers("true", "matching") == pytest.approx(expected)
    assert apart.mean_over_layers("as_published", "matching") == math.inf


def test_products_and_sums_over_pairs_agree():
    """Without zeros the published form is computed by products; one zero sends all to the slow way."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(1, 3, 5, 5, generator=generator) for _ in range(2))
    later = torch.ones(5, 5).triu(1).bool()
    p, q = (x.masked_fill(later, -torch.inf).softmax(-1) for x in (p, q))
    quick = head_divergences(p, q, 0)["as_published"]
    p[0, 0, 4] = torch.tensor([0.5, 0.5, 0, 0, 0])
    slow = head_divergences(p, q, 0)["as_published"]
    assert slow[0, 0].isinf().all()
    assert torch.allclose(quick[0, 1:], slow[0, 1:], atol=1e-12)
    rows = sum(original(p[0, 1, t, : t + 1].double(), q[0, 2, t, : t + 1].double()) for t in range(5))
    assert float(quick[0, 1, 2]) == pytest.approx(rows, abs=1e-12)


def test_future_keys_of_a_block_are_left_out_also_where_zeros_are_no_numbers():
    weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    found = head_divergences(weights, weights, 0)
    assert float(found["as_published"]) == 0 == float(found["true"])


# --- lockstep --------------------------------------------------------------------------------------------------------


def test_models_of_different_depth_are_refused():
    with pytest.raises(SpecError, match="equally many"):
        attention_divergences([source(), source(layers=3)], [(0, 1)], [Batch(IDS)])


def test_an_error_in_one_model_is_told_and_no_thread_is_left():
    import threading

    before = threading.active_count()
    short = DecoderAttentionSource(Decoder(preset("laptop", vocabulary=17), "learned:limit=8"))
    with pytest.raises(SpecError, match="past the last"):
        attention_divergences([source(), short], [(0, 1)], [Batch(IDS)])
    steps = lockstep_attention_blocks([source(), source()], Batch(IDS), 4)
    next(steps)
    steps.close()
    assert threading.active_count() == before


# --- models and seeds ------------------------------------------------------------------------------------------------


def test_pairings_of_models():
    there = [(name, seed) for name in ("nope", "t5") for seed in range(3)]
    found = pairings(there)
    kinds = {kind: [one for one in found if one.kind == kind] for kind in ("record", "published", "floor", "change")}
    assert {kind: len(listed) for kind, listed in kinds.items()} == {
        "record": 12, "published": 6, "floor": 6, "change": 6,
    }  # fmt: skip
    assert all(one.model.seed != one.against.seed for one in (*kinds["record"], *kinds["floor"]))
    assert all((one.model.seed == one.against.seed) == (one.model.encoding == "t5") for one in kinds["published"])
    assert all(not one.model.trained and not one.against.trained for one in kinds["floor"])
    assert all(one.against == one.model.untrained for one in kinds["change"])
    assert ModelKey("t5", 1) in {one.model for one in kinds["record"]}
    with pytest.raises(SpecError, match="no run has the encoding 'nope'"):
        pairings([("t5", 0)])


def test_the_interval_over_pairs_of_seeds():
    made = mean_over_seed_pairs({(0, 1): 1.0, (1, 2): 2.0, (2, 0): 3.0})
    assert made.value == 2 and made.n == 3
    assert made.half == pytest.approx(4.302653 * math.sqrt(2 / 3 * 2))
    # Pairs (s, s): the t interval of a mean.
    plain = mean_over_seed_pairs({(seed, seed): float(seed) for seed in range(5)})
    assert plain.half == pytest.approx(2.776445 * math.sqrt(2.5 / 5))
    assert mean_over_seed_pairs({}).value is None and mean_over_seed_pairs({(0, 0): 1.0}).low is None
    assert mean_over_seed_pairs({(0, 1): 1.0, (1, 0): 2.0}).low is None  # without either seed no pair is left
    assert difference_over_pairs({(0, 1): 3.0}, {(0, 1): 1.0, (1, 0): 9.0}).value == 2
    endless = {(0, 1): float("inf"), (1, 0): 1.0}
    assert difference_over_pairs(endless, {(0, 1): 1.0, (1, 0): float("inf")}).value is None


def test_the_interval_covers_what_it_says(figure):
    """Pairs of five seeds whose noise is the seeds' own, both sides apart or one (a model with itself)."""
    generator, hits = np.random.default_rng(0), {"apart": 0, "one": 0}
    times = 1500
    for _ in range(times):
        a, b = generator.normal(size=5), generator.normal(size=5)
        noise = 0.5 * generator.normal(size=(5, 5))
        for how, other in (("apart", b), ("one", a)):
            pairs = {(s, t): a[s] + other[t] + noise[s, t] for s in range(5) for t in range(5) if s != t}
            made = mean_over_seed_pairs(pairs)
            hits[how] += made.low <= 0 <= made.high
    figure("jackknife over pairs of 5 seeds, coverage of 95 %: " + str({k: v / times for k, v in hits.items()}))
    assert all(0.93 <= count / times <= 0.985 for count in hits.values())


def test_rows_have_every_definition_and_pairing_by_layer_and_length():
    given = [Batch(IDS[:, :10], length=4), Batch(IDS, length=9, seen=False)]
    (apart,) = attention_divergences([source(), source(seed=1)], [(0, 1)], given)
    rows = apart.rows(task="copy")
    assert [(row["layer"], row["length"], row["seen"], row["examples"]) for row in rows] == [
        (layer, length, seen, 3) for layer in range(2) for length, seen in ((4, True), (9, False))
    ]
    named = {f"{definition} {how}" for definition in module.DEFINITIONS for how in module.HEADS}
    assert all(named <= set(row) for row in rows)
    mean = np.mean([row["true matching"] for row in rows])  # equally many examples
    assert mean == pytest.approx(apart.mean_over_layers("true", "matching"))
    assert isinstance(apart, HeadDivergences)
