"""Every encoding against an implementation that is not ours."""

import math
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from lengthwise.conformance.reference import Triangle
from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Geometry, QueriesAndKeys
from lengthwise.encoding.recipes import RECIPES, recipe
from lengthwise.model import Decoder, preset
from lengthwise.normaliser.entmax import Entmax
from lengthwise.spec import SpecError, parse_specs

transformers = pytest.importorskip("transformers", reason="references come from the extra `hf`")


def geometry(heads: int = 12, head_width: int = 64, width: int = 768) -> Geometry:
    return Geometry(width=width, heads=heads, head_width=head_width)


@pytest.mark.slow
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
        wanted = theirs.compute_bias(601, 601)
        got = ours.bias(torch.arange(601.0)[None], torch.arange(601.0)[None])
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


# --- encodings of 2024 to 2026 ---------------------------------------------------------------------------------------

SMALL = Geometry(width=32, heads=4, head_width=8)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(spec: str):
    """An encoding with random parameters in float64."""
    made = build_encoding(spec, SMALL).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(0.5 * random(*parameter.shape, seed=number))
    return made


def scored(encoding, q, k, x, scale: float = 8**-0.5):
    """What the encoding makes of the scores of queries and keys under a causal mask, with `documents_BK`."""
    tokens = q.shape[2]
    places = torch.arange(float(tokens), dtype=torch.float64)[None]
    allowed = torch.ones(1, tokens, tokens).tril() > 0
    given = QueriesAndKeys(q * scale, k, places, places, allowed, None, scale, encoding.mark(x))
    return encoding.score(q @ k.mT * scale, given).masked_fill(~allowed[:, None], -torch.inf)


@torch.no_grad()
def test_pope_equals_x_transformers(figure):
    polar = pytest.importorskip("x_transformers.x_transformers")
    ours, theirs = filled("pope"), polar.PolarEmbedding(8, 4).double()
    theirs.learned_bias.copy_(ours.phase[:, None])
    q, k, places = random(2, 4, 11, 8), random(2, 4, 11, 8, seed=1), torch.arange(11)
    frequencies, bias = theirs(places)
    wanted = polar.apply_polar_pos_emb(q, frequencies) @ polar.apply_polar_pos_emb(k, frequencies[:, None] + bias).mT
    positions = places[None].double()
    turned_q, turned_k = ours.rotate(q, k, ours.prepare(positions, positions, torch.tensor([11])))
    difference = float((turned_q @ turned_k.mT - wanted).abs().max())
    figure(f"PoPE against x-transformers: largest difference {difference:.1e}")
    assert difference < 1e-5  # they compute lengths and angles in fp32


@torch.no_grad()
def test_wall_equals_the_naive_code_of_fla(figure):
    """As `naive_wall_attn` in fla 0.6.0 (fla/ops/wall_attn/naive.py), with torch.cumsum for its Triton kernel."""
    ours, x = filled("wall"), random(2, 13, 32, seed=3)
    q, k = random(2, 4, 13, 8), random(2, 4, 13, 8, seed=1)
    gate = torch.nn.functional.logsigmoid(x @ ours.weight.T + ours.bias_N).view(2, 13, 4, 8)
    log2 = gate.cumsum(1) / math.log(2)
    spread = torch.exp2(log2[:, :, None] - log2[:, None])
    products = (q.transpose(1, 2)[:, :, None] * k.transpose(1, 2)[:, None] * spread).sum(-1).permute(0, 3, 1, 2)
    hidden = torch.ones(13, 13).triu(1) > 0
    wanted = torch.exp2(products.masked_fill(hidden, -torch.inf) * 8**-0.5 / math.log(2))
    wanted = wanted / wanted.sum(-1, keepdim=True)
    difference = float((scored(ours, q, k, x).softmax(-1) - wanted).abs().max())
    figure(f"Wall against fla's naive code: largest difference {difference:.1e}")
    assert difference < 1e-12


@torch.no_grad()
def test_dape_is_the_network_of_its_authors(figure):
    ours, x = filled("dape:hidden=6"), random(1, 9, 32, seed=3)
    q, k = random(1, 4, 9, 8), random(1, 4, 9, 8, seed=1)
    theirs = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.LeakyReLU(), torch.nn.Linear(6, 4)).double()
    for parameter, value in zip(theirs.parameters(), (ours.up, ours.up_bias, ours.down), strict=False):
        parameter.copy_(value)
    distance = (torch.arange(9.0)[:, None] - torch.arange(9.0)).abs().double()
    r1, r2 = (part.clamp(min=0.01)[:, None, None] for part in (ours.inner_encoding.r1, ours.inner_encoding.r2))
    scores, bias = q @ k.mT * 8**-0.5, (-r1 * torch.log(1 + r2 * distance))[None]
    both = torch.cat([scores, bias], 1).permute(0, 2, 3, 1)
    wanted = scores + bias + theirs(both).permute(0, 3, 1, 2)  # its last bias is a constant of each head
    hidden = torch.ones(9, 9).triu(1) > 0
    wanted = wanted.masked_fill(hidden, -torch.inf).softmax(-1)
    difference = float((scored(ours, q, k, x).softmax(-1) - wanted).abs().max())
    figure(f"DAPE against torch's layers: largest difference {difference:.1e}")
    assert difference < 1e-12


@torch.no_grad()
def test_selective_rope_equals_its_authors_forward_pass(figure):
    """As `SelectiveRoPE.forward` without gate and Triton (selective_rope/modules/rotary.py at 9d06c33), in float64."""
    ours, x = filled("selective_rope:drift=true"), random(2, 13, 32, seed=3)
    q, k = random(2, 4, 13, 8), random(2, 4, 13, 8, seed=1)
    unit = torch.nn.functional.normalize(x.view(2, 13, 4, 8), dim=-1).flatten(-2)
    phi = (unit @ ours.down.T @ ours.up.T).transpose(1, 2)
    kernel = ours.taps.reshape(16, 1, 4)
    phi = torch.nn.functional.conv1d(torch.nn.functional.pad(phi, (3, 0)), kernel, groups=16).transpose(1, 2)
    phi = phi.view(2, 13, 4, 4) + ours.log_drift.exp()
    angle = (phi.cumsum(1) / 500_000 ** (torch.arange(0, 8, 2).double() / 8)).transpose(1, 2)

    def turned(part: torch.Tensor) -> torch.Tensor:
        a, b = part[..., :4], part[..., 4:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    wanted = (turned(q) @ turned(k).mT * 8**-0.5).masked_fill(torch.ones(13, 13).triu(1) > 0, -torch.inf)
    difference = float((scored(ours, q, k, x).softmax(-1) - wanted.softmax(-1)).abs().max())
    figure(f"Selective RoPE against its authors' operations: largest difference {difference:.1e}")
    assert difference < 1e-12


@pytest.mark.parametrize("length", [40, 200])
def test_longrope_equals_transformers(length, figure):
    from transformers import Phi3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    short, long = [1.0, 1.1, 1.3, 1.7], [1.0, 2.0, 4.5, 9.0]
    config = Phi3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
        original_max_position_embeddings=64, pad_token_id=0,
        rope_scaling={"rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 4.0,
                      "original_max_position_embeddings": 64, "rope_theta": 10_000.0},
    )  # fmt: skip
    wanted, magnitude = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=length)
    listed = [",".join(map(str, factors)) for factors in (short, long)]
    ours = build_encoding(f"rope:scaling=longrope:trained=64:factor=4:short=[{listed[0]}]:long=[{listed[1]}]", SMALL)
    got, factor = ours.frequencies(torch.zeros(1), torch.tensor([length]))
    difference = float((got.flatten() - wanted).abs().max())
    figure(f"LongRoPE at {length} of 64 tokens against transformers: {difference:.1e}, magnitude {factor:.4f}")
    assert difference < 1e-7 and factor == pytest.approx(magnitude)


@pytest.mark.evidence
@torch.no_grad()
def test_path_and_entmax_equal_the_packages_of_their_authors(tmp_path, figure):
    """fla's naive PaTH run from its source text, and the entmax package, both fetched from the package registry."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "fla-core", "entmax", "-d", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for wheel in tmp_path.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(tmp_path)
    source = (tmp_path / "fla" / "ops" / "path_attn" / "naive.py").read_text()
    known: dict = {}
    exec(compile(source, "naive.py", "exec"), known)
    ours, x = filled("path:rank=5"), random(2, 77, 32, seed=3)
    q, k, v = (random(2, 4, 77, 8, seed=seed) for seed in (0, 1, 2))
    marks = ours.mark(x).transpose(1, 2)
    given = [part.transpose(1, 2).float() for part in (q, k, v)]
    gate = torch.zeros(2, 77, 4)
    wanted = known["naive_path_attn"](*given, marks[..., :-1].float(), marks[..., -1].float(), gate, 8**-0.5)
    got = scored(ours, q, k, x).softmax(-1) @ v
    difference = float((got.transpose(1, 2) - wanted).abs().max())
    figure(f"PaTH against fla's naive code, 77 tokens: largest difference {difference:.1e}")
    assert difference < 1e-5
    sys.path.insert(0, str(tmp_path))
    try:
        from entmax import entmax15, entmax_bisect, sparsemax
    finally:
        sys.path.remove(str(tmp_path))
    scores = 3 * random(3, 4, 20, 20, seed=9)
    for alpha, theirs in (
        (1.5, entmax15(scores, dim=-1)),
        (2.0, sparsemax(scores, dim=-1)),
        (1.3, entmax_bisect(scores, 1.3, dim=-1, n_iter=60)),
    ):
        mine = Entmax(SMALL, alpha=alpha).weigh(scores, Triangle(20))
        figure(
            f"entmax {alpha} against the entmax package: largest difference {float((mine - theirs).abs().max()):.1e}"
        )
        assert torch.allclose(mine, theirs, atol=1e-9)


def test_recipes_are_the_default_configurations_of_transformers():
    from transformers import Cohere2Config, Gemma3TextConfig, SmolLM3Config
    from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
    from transformers.models.inkling.configuration_inkling import InklingTextConfig
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig

    def layers(name: str) -> list[str]:
        return [str(spec) for spec in parse_specs(recipe(name).encoding(layers=12, window=8))]

    def rotates(name: str) -> list[int]:
        return [int(spec != "nope") for spec in layers(name)]

    def local(config) -> list[bool]:
        return ["full" not in kind and kind != "hybrid" for kind in config.layer_types]

    llama, smol = Llama4TextConfig(num_hidden_layers=12), SmolLM3Config(num_hidden_layers=12)
    assert rotates("llama4") == llama.no_rope_layers and rotates("smollm3") == smol.no_rope_layers
    assert llama.attention_chunk_size == RECIPES["llama4"].window == llama.floor_scale and llama.attn_scale == 0.1
    thetas = {"llama4": llama.rope_parameters["rope_theta"], "smollm3": smol.rope_parameters["rope_theta"]}
    assert all(f"theta={theta:.1f}" in layers(name)[0] for name, theta in thetas.items())
    for name, config in (
        ("cohere2", Cohere2Config(num_hidden_layers=12)),
        ("gemma3", Gemma3TextConfig(num_hidden_layers=12)),
        ("gemma4", Gemma4TextConfig(num_hidden_layers=12)),
        ("inkling", InklingTextConfig(num_hidden_layers=12)),
    ):
        assert ["window=8" in spec for spec in layers(name)] == local(config), name
        assert config.sliding_window == RECIPES[name].window
    for name, config in (("gemma3", Gemma3TextConfig()), ("gemma4", Gemma4TextConfig())):
        near, far = (config.rope_parameters[kind] for kind in ("sliding_attention", "full_attention"))
        assert near["rope_theta"] == 10_000 and f"theta={far['rope_theta']:.1f}" in layers(name)[5]
    assert Gemma4TextConfig().rope_parameters["full_attention"]["partial_rotary_factor"] == 0.25
    inkling = InklingTextConfig()
    assert inkling.rel_extent == 2 * inkling.sliding_window and inkling.log_scaling_alpha == 0.1
    with pytest.raises(
        SpecError, match="gemma3 repeats every 6 layers, so the number of layers is a multiple of that, not 4"
    ):
        recipe("gemma3").encoding(layers=4)


@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_a_recipe_is_a_model(name):
    one = recipe(name)
    decoder = Decoder(preset(one.model(), vocabulary=16), parse_specs(one.encoding()))
    assert bool(decoder(torch.arange(16)[None].repeat(1, 3)).isfinite().all())
    assert len(decoder.specs) == len(one.period)
