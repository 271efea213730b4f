"""Attention as it is analysed is the attention that computes: rows, future, outputs, and blocks against the whole."""

import subprocess
import sys

import pytest
import torch

from lengthwise.analysis import attention
from lengthwise.analysis.attention import (
    BINS,
    Batch,
    DecoderAttentionSource,
    HeadStatistics,
    attention_statistics,
    task_batches,
)
from lengthwise.analysis.distance import head_rows, head_rows_by_length, layer_distance_rows, pool_statistics
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, preset
from lengthwise.model.taps import Recorder
from lengthwise.spec import SpecError
from lengthwise.task import build_task

IDS = torch.randint(17, (3, 50), generator=torch.Generator().manual_seed(0))


class Half(Encoding):
    """Softmax that leaves half of the mass on no key, as stick-breaking may."""

    complete = False

    def weigh(self, scores_BHQK, pair):
        return scores_BHQK.softmax(-1) / 2


class Reads(Encoding):
    """An addition to the head's output beside weights times values, as Shaw's."""

    def read(self, weights_BHQK, pair):
        return 0.1 * (weights_BHQK * pair.distance_BQK[:, None]).sum(-1, keepdim=True).expand_as(pair.q_BHQE)


NAMES = [*ENCODINGS, Half, Reads]
"""All there are, and two that do what those to come will do."""


def decoder(name, **changes: object) -> Decoder:
    # σ = .3: attention of an untrained model is else almost uniform, and a wrong bias would not be seen.
    return Decoder(preset("laptop", vocabulary=17, **({"sigma": 0.3} | changes)), name).eval()


@pytest.mark.parametrize("name", NAMES)
def test_rows_sum_to_one_and_see_no_future(name):
    source = DecoderAttentionSource(decoder(name))
    heads = attention_statistics(source, [Batch(IDS)], queries_per_block=16)
    for layer, complete in enumerate(source.weights_sum_to_one):
        assert heads.future_L[layer] == 0
        assert heads.most_L[layer] <= 1 + 1e-5
        assert heads.least_L[layer] >= (1 - 1e-5 if complete else 0)
    if name is Half:
        assert source.weights_sum_to_one == [False, False]
        assert heads.most_L.tolist() == pytest.approx([0.5, 0.5])


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_give_the_heads_of_the_path_that_nobody_listens_to(name):
    """T57: the output with weights is the output without, and it is weights times values."""
    model = decoder(name, sigma=0.15)  # at .3 fp32 itself differs by 1e-5 from path to path
    alone = Recorder()
    logits = model(IDS, taps={"layers.*.heads": alone, "layers.*.residual": alone, "embeddings": alone})
    added: list[torch.Tensor] = []
    for part in model.encodings:
        if part.overrides("read"):  # an addition beside the values: what it adds is taken as it is

            def read(weights, pair, _of=part.read):
                added.append(_of(weights, pair))
                return added[-1]

            part.read = read
    told = Recorder()
    listened = model(IDS, taps={"layers.*.weights": told, "layers.*.heads": told})
    assert torch.allclose(listened, logits, atol=1e-5)
    before = alone["embeddings"]
    for index, layer in enumerate(model.layers):
        v_BHTE = layer.attention._split(layer.attention.v(layer.attention_norm(before)))
        made_BHTE = told[f"layers.{index}.weights"] @ v_BHTE + (added[index] if added else 0)
        assert torch.allclose(made_BHTE, alone[f"layers.{index}.heads"], atol=1e-5)
        before = alone[f"layers.{index}.residual"]


def dense(weights_BHTT: torch.Tensor, counted_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """The statistics by their definitions, query by query, from the whole matrix: name → (H, T)."""
    batch, heads, tokens, _ = weights_BHTT.shape
    found = {name: torch.zeros(heads, tokens, dtype=torch.float64) for name in attention.MEANS}
    for b in range(batch):
        for t in range(tokens):
            if not counted_BT[b, t]:
                continue
            w_HK = weights_BHTT[b, :, t, : t + 1].double()
            back_K = t - torch.arange(t + 1)
            tied_HK = (w_HK >= w_HK.amax(-1, keepdim=True) * (1 - 1e-5)).double()
            farthest = (tied_HK * back_K).sum(-1) / tied_HK.sum(-1)
            entropy = -(w_HK * w_HK.clamp(min=1e-300).log()).sum(-1)
            one = {
                "entropy": entropy,
                "relative_entropy": entropy / torch.tensor(float(t + 1)).double().log() if t else entropy * 0,
                "sink": w_HK[:, 0],
                "distance": (w_HK * back_K).sum(-1),
                "relative_distance": (w_HK * back_K).sum(-1) / (t + 1),
                "argmax": farthest,
                "relative_argmax": farthest / (t + 1),
                "total": w_HK.sum(-1),
            }
            for name, value in one.items():
                found[name][:, t] += value
    return {name: total / counted_BT.sum(0) for name, total in found.items()}


@pytest.mark.parametrize("rows", [1, 7, 50, 128])
@pytest.mark.parametrize("name", ["nope", "alibi"])
def test_streaming_statistics_equal_the_dense_ones(name, rows):
    model, counted = decoder(name), torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.7
    counted[0] = True
    whole = Recorder()
    with torch.no_grad():
        model(IDS, taps={"layers.*.weights": whole})
    heads = attention_statistics(DecoderAttentionSource(model), [Batch(IDS, counted)], rows)
    for layer in range(2):
        weights = whole[f"layers.{layer}.weights"]
        for statistic, truth_HT in dense(weights, counted).items():
            assert torch.allclose((heads.sums[statistic] / heads.count_T)[layer], truth_HT, atol=1e-4, rtol=1e-5), (
                statistic
            )
        argmax, weight = torch.zeros(4, BINS), torch.zeros(4, BINS)
        for b, t in counted.nonzero().tolist():
            for k in range(t + 1):
                weight[:, BINS * (t - k) // (t + 1)] += weights[b, :, t, k]
            for head, row in enumerate(weights[b, :, t, : t + 1]):
                tied = (row >= row.max() * (1 - 1e-5)).nonzero().flatten().tolist()
                for k in tied:
                    argmax[head, BINS * (t - k) // (t + 1)] += 1 / len(tied)
        assert torch.allclose(heads.argmax_LHN[layer].float(), argmax, atol=1e-3)
        assert torch.allclose(heads.weight_LHN[layer].float(), weight, atol=1e-3)


def test_uniform_attention_has_the_statistics_it_must_have():
    heads = HeadStatistics(1, 1, 4)
    heads.add(0, torch.tensor([[[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [1 / 3] * 3 + [0], [0.25] * 4]]]), 0)
    means = {name: (heads.sums[name] / heads.count_T)[0, 0] for name in attention.MEANS}
    assert torch.allclose(means["entropy"], torch.tensor([1.0, 2, 3, 4]).double().log())
    assert torch.allclose(means["sink"], 1 / torch.tensor([1.0, 2, 3, 4]).double())
    assert torch.allclose(means["distance"], torch.tensor([0, 0.5, 1, 1.5]).double())
    assert means["relative_distance"][3] == pytest.approx(0.375)
    assert means["relative_entropy"][1:].tolist() == pytest.approx([1, 1, 1])
    # Distances 0; 0 .5; 0 .33 .67; 0 .25 .5 .75, each with its weight.
    assert float(heads.near_share_LH()) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert float(heads.far_share_LH()) == 0


def test_the_edges_of_bins_are_exact():
    """A query at 7 with its weight at 0 looks (7 − 0) / 8 = .875 back: far; with it at 6 it is .125: not near."""
    heads = HeadStatistics(1, 1, 8)
    for key in (0, 6):
        weights = torch.zeros(1, 1, 1, 8)
        weights[..., key] = 1
        heads.add(0, weights, 7)
    assert float(heads.far_share_LH("argmax")) == 0.5
    assert float(heads.near_share_LH("argmax")) == 0
    assert float(heads.far_share_LH()) == 0.5


def test_equal_weights_share_the_maximum():
    """Copying one symbol without positions, the first layer sees equal keys: the first is not the largest."""
    heads = HeadStatistics(1, 1, 4)
    heads.add(0, torch.tensor([[[[0.1, 0.3, 0.3, 0.3]]]]), 3)
    assert float(heads.mean_LH("argmax")) == pytest.approx(1.0)


def test_future_mass_and_short_rows_are_seen_where_they_are():
    weights = torch.tensor([[[[0.9, 0.1], [0.5, 0.3]]]])
    heads = HeadStatistics(1, 1, 2)
    heads.add(0, weights, 0)
    assert float(heads.future_L[0]) == pytest.approx(0.1)
    assert float(heads.least_L[0]) == pytest.approx(0.8)


def test_a_model_that_is_not_causal_is_refused():
    with pytest.raises(SpecError, match="causal"):
        DecoderAttentionSource(decoder("nope", mask="bidirectional"))
    with pytest.raises(SpecError, match="nothing to look at"):
        attention_statistics(DecoderAttentionSource(decoder("nope")), [])


def test_examples_of_a_task_are_counted_where_they_say_the_answer():
    task = build_task("copy:variant=same:longest=4")
    found = task_batches(task, [2, 4, 8], examples=5)
    assert [batch.length for batch in found] == [2, 4, 8]
    assert [batch.seen for batch in found] == [True, True, False]
    for batch in found:
        case = batch.cases[0]
        assert batch.ids_BT.tolist()[0] == case.ids[:-1]
        assert int(batch.counted_BT[0].sum()) == len(case.answer)
    model = Decoder(preset("laptop", vocabulary=len(task.vocabulary)), "nope")
    rows, unseen = head_rows_by_length(DecoderAttentionSource(model), found, encoding="nope")
    assert len(rows) == 3 * 2 * 4
    assert rows[0]["encoding"] == "nope" and rows[0]["queries"] == 5 * 3
    assert int(unseen.count_T.sum()) == rows[-1]["queries"]  # length 8 alone
    assert len(layer_distance_rows(unseen)) == 2 * BINS
    maxima = sum(row["argmax"] for row in layer_distance_rows(unseen))
    assert maxima == pytest.approx(2 * 4 * rows[-1]["queries"])
    both = pool_statistics([unseen, unseen])
    assert head_rows(both)[0]["entropy"] == pytest.approx(head_rows(unseen)[0]["entropy"])


SCRIPT = """
import sys
import torch
from lengthwise.analysis.attention import Batch, DecoderAttentionSource, attention_statistics
from lengthwise.model import Decoder, preset

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024

torch.set_num_threads(1)
source = DecoderAttentionSource(Decoder(preset("laptop", vocabulary=32, layers=4), sys.argv[1]))
attention_statistics(source, [Batch(torch.randint(32, (1, 64)))])
heads = attention_statistics(source, [Batch(torch.randint(32, (1, int(sys.argv[2]))))], int(sys.argv[3]))
print(status("VmHWM"), float(heads.mean_LH("entropy").mean()))
"""


@pytest.mark.evidence  # CI has two models of 4,096 tokens
@pytest.mark.parametrize("name", ["t5"])  # with a bias besides: the others need less
def test_8192_tokens_4_layers_4_heads_in_less_than_two_gigabytes(name, figure):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, "8192", "128"], capture_output=True, text=True, check=True
    )
    peak, entropy = map(float, run.stdout.split())
    figure(f"attention statistics of {name}, T=8192, 4 layers, 4 heads: peak {peak:.0f} MiB of the whole process")
    assert 0 < entropy < 9.02
    assert peak < 2000


LOCKSTEP = SCRIPT.replace(
    "heads = attention_statistics(source, [Batch(torch.randint(32, (1, int(sys.argv[2]))))], int(sys.argv[3]))",
    "from lengthwise.analysis.divergence import attention_divergences\n"
    "other = DecoderAttentionSource(Decoder(preset('laptop', vocabulary=32, layers=4), 'nope', seed=1))\n"
    "ids = torch.randint(32, (1, int(sys.argv[2])))\n"
    "(apart,) = attention_divergences([source, other], [(0, 1)], [Batch(ids)], int(sys.argv[3]))",
).replace('float(heads.mean_LH("entropy").mean())', 'apart.mean_over_layers("true", "matching")')


@pytest.mark.evidence
def test_two_models_of_4096_tokens_are_compared_in_less_than_a_gigabyte(figure):
    run = subprocess.run(
        [sys.executable, "-c", LOCKSTEP, "t5", "4096", "32"], capture_output=True, text=True, check=True
    )
    peak, apart = map(float, run.stdout.split())
    figure(f"divergence of two models, T=4096, 4 layers, 4 × 4 heads: peak {peak:.0f} MiB of the whole process")
    assert 0 < apart < 0.7
    assert peak < 1000


@pytest.mark.evidence
def test_the_measurement_sees_what_blocks_save():
    """All queries in one block: the statistics need several T × T of four heads."""
    peaks = [
        float(
            subprocess.run(
                [sys.executable, "-c", SCRIPT, "nope", "2048", rows], capture_output=True, text=True, check=True
            ).stdout.split()[0]
        )
        for rows in ("128", "2048")
    ]
    assert peaks[1] - peaks[0] > 2 * 4 * 2048**2 * 4 / 2**20
