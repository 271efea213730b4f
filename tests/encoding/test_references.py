"""Every encoding against an implementation that is not ours."""

import math

import numpy as np
import pytest
import torch

from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Geometry

transformers = pytest.importorskip("transformers", reason="references come from the extra `hf`")


def geometry(heads: int = 12, head_width: int = 64, width: int = 768) -> Geometry:
    return Geometry(width=width, heads=heads, head_width=head_width)


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (5, 6)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_and_bias_equal_transformers(buckets, distance, bidirectional, figure):
    from transformers.models.t5.modeling_t5 import T5Attention, T5Config

    if bidirectional and buckets == 5:
        buckets = 10  # transformers halves the buckets of each side; 5 would leave 2
    config = T5Config(
        d_model=96, d_kv=8, num_heads=12, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=distance, is_decoder=not bidirectional,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = build_encoding(
        f"t5:buckets={buckets}:distance={distance}:bidirectional={str(bidirectional).lower()}", geometry()
    )
    with torch.no_grad():
        ours.table.copy_(theirs.relative_attention_bias.weight)
        # Distances 0–2000, and −2000–0 where both sides count: one query among 4,001 keys.
        positions = torch.arange(4001)
        query = positions[2000:2001]
        relative = positions[None] - query[:, None]
        bucket = T5Attention._relative_position_bucket(relative, bidirectional, buckets, distance)
        got = ours.bucket((query[:, None] - positions[None]).double().flatten())
        assert torch.equal(got, bucket.flatten())
        # T5 itself never uses "distance 0, ahead"; causal, every bucket is reached.
        assert set(range(buckets)) - set(got.tolist()) == ({buckets // 2} if bidirectional else set())
        wanted = theirs.compute_bias(2001, 2001)
        got = ours.bias(torch.arange(2001.0)[None], torch.arange(2001.0)[None])
        difference = float((got - wanted).abs().max())
    figure(f"t5 B={buckets} D={distance} bidirectional={bidirectional}: largest difference {difference:g}")
    assert difference == 0


@pytest.mark.parametrize("heads", [*range(1, 18), 40])
def test_alibi_slopes_equal_bloom(heads, figure):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    keys = 50
    theirs = build_alibi_tensor(torch.ones(1, keys), heads, torch.float32).view(heads, keys)
    slopes = theirs[:, 1].double()
    ours = build_encoding("alibi", geometry(heads)).slope_H(torch.zeros(1, dtype=torch.float64))
    difference = float((ours - slopes).abs().max())
    figure(f"alibi {heads} heads: largest difference to BLOOM {difference:.1e}")
    # BLOOM rounds the base of the powers to fp32 first.
    assert difference < 1e-6
    # BLOOM adds slope · key; ours subtracts slope · distance: the same row after softmax.
    query = torch.tensor([[keys - 1.0]])
    bias = build_encoding("alibi", geometry(heads)).bias(query, torch.arange(float(keys))[None])
    assert torch.allclose(bias[0, :, 0].softmax(-1), theirs.softmax(-1), atol=1e-6)


def test_alibi_has_the_known_jump_at_twelve_heads():
    slopes = build_encoding("alibi", geometry(12)).slope_H(torch.zeros(1, dtype=torch.float64)).tolist()
    assert slopes == [*(2.0**-k for k in range(1, 9)), *(2.0 ** -(k + 0.5) for k in range(4))]
    assert build_encoding("alibi", geometry(8)).slope_H(torch.zeros(1)).tolist() == [2.0**-k for k in range(1, 9)]
    text = build_encoding("alibi:slopes=text", geometry(12)).slope_H(torch.zeros(1, dtype=torch.float64)).tolist()
    assert text == pytest.approx([2 ** (-8 * h / 12) for h in range(1, 13)], rel=1e-12)


def _turned(spec: str, q, k, positions, head_width):
    ours = build_encoding(spec, geometry(q.shape[1], head_width))
    state = ours.prepare(positions, positions, torch.tensor([q.shape[2]]))
    return ours.rotate(q, k, state)


def _qk(head_width: int, tokens: int = 300, heads: int = 3):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(2, heads, tokens, head_width, generator=generator) for _ in range(2))


def test_rope_equals_llama(figure):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

    q, k = _qk(64)
    positions = torch.arange(300)[None].expand(2, -1)
    config = LlamaConfig(
        hidden_size=192,
        num_attention_heads=3,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    wanted = apply_rotary_pos_emb(q, k, cos, sin)
    got = _turned("rope", q, k, positions.float(), 64)
    difference = max(float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True))
    figure(f"rope (halves): largest difference to Llama {difference:.1e}")
    assert difference < 1e-4  # Llama's angles are fp32, ours float64


def test_partial_interleaved_rope_equals_gptj(figure):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    q, k = _qk(64)
    positions = torch.arange(300)
    sin, cos = create_sinusoidal_positions(300, 16)[positions].split(8, -1)
    wanted = []
    for x in (q, k):
        x_BTHE = x.transpose(1, 2)
        turned = apply_rotary_pos_emb(x_BTHE[..., :16], sin.expand(2, -1, -1), cos.expand(2, -1, -1))
        wanted.append(torch.cat([turned, x_BTHE[..., 16:]], -1).transpose(1, 2))
    got = _turned("rope:fraction=0.25:interleaved=true", q, k, positions[None].float(), 64)
    difference = max(float((a - b).abs().max()) for a, b in zip(got, wanted, strict=True))
    figure(f"rope (interleaved, a quarter): largest difference to GPT-J {difference:.1e}")
    assert difference < 1e-4


def test_the_two_layouts_are_equal_after_the_known_permutation():
    q, k = (x.double() for x in _qk(16))
    positions = torch.arange(300.0, dtype=torch.float64)[None]
    order = torch.arange(16).view(8, 2).T.flatten()  # 0 2 4 … 1 3 5 …: interleaved coordinates gathered into halves
    halves = _turned("rope", q[..., order], k[..., order], positions, 16)
    pairs = _turned("rope:interleaved=true", q, k, positions, 16)
    for a, b in zip(halves, pairs, strict=True):
        assert torch.equal(a, b[..., order])
    assert not torch.allclose(_turned("rope", q, k, positions, 16)[0], pairs[0])


def test_rope_of_fraction_zero_is_nope_bit_for_bit():
    q, k = _qk(16)
    turned = _turned("rope:fraction=0.0", q, k, torch.arange(300.0)[None], 16)
    assert torch.equal(turned[0], q)
    assert torch.equal(turned[1], k)


@pytest.mark.parametrize("interleaved", [False, True])
def test_sinusoidal_equals_the_formula_in_float64(interleaved, figure):
    width, tokens = 96, 2000
    ours = build_encoding(f"sinusoidal:interleaved={str(interleaved).lower()}", geometry(width=width))
    got = ours.embed(
        torch.zeros(1, tokens, width, dtype=torch.float64), torch.arange(tokens, dtype=torch.float64)[None]
    )[0]
    angle = np.arange(tokens)[:, None] * 10000.0 ** (-2 * np.arange(width // 2) / width)[None]
    wanted = np.empty((tokens, width))
    if interleaved:
        wanted[:, 0::2], wanted[:, 1::2] = np.sin(angle), np.cos(angle)
    else:
        wanted[:, : width // 2], wanted[:, width // 2 :] = np.sin(angle), np.cos(angle)
    difference = float(np.abs(got.numpy() - wanted).max())
    figure(f"sinusoidal interleaved={interleaved}: largest difference to the formula {difference:.1e}")
    assert difference < 1e-12
    short = ours.embed(torch.zeros(1, tokens, width), torch.arange(float(tokens))[None])[0]
    assert float((short.double() - torch.from_numpy(wanted)).abs().max()) < 1e-6


def test_positions_added_to_embeddings_have_their_standard_deviation_as_amplitude():
    small = Geometry(width=64, heads=4, head_width=16, embedding_std=0.07)
    waves = build_encoding("sinusoidal", small).embed(torch.zeros(1, 64, 64), torch.arange(64.0)[None])
    assert float(waves.abs().max()) == pytest.approx(0.07, rel=1e-3)
    learned = build_encoding("learned", small)
    learned.initialize(lambda name: torch.Generator().manual_seed(0))
    assert float(learned.table.detach().std()) == pytest.approx(0.07, rel=0.02)
    assert math.isclose(float(build_encoding("sinusoidal:amplitude=2.0", small).amplitude), 2.0)
