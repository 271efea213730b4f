"""The decoder: every way of running it gives the logits of one plain pass."""

import pytest
import torch

from lengthwise.conformance.subject import SMALL, TOLERANCE, relative_error, unit_scale
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, attention, preset
from lengthwise.model.decode import greedy
from lengthwise.model.taps import Recorder, tap_names
from lengthwise.spec import SpecError, resolve

NAMES = [*ENCODINGS, "rope:fraction=0.25:interleaved=true"]


def model(name: str, dtype: torch.dtype = torch.float64, **changes) -> Decoder:
    encoding = name if isinstance(name, str) else list(name)
    return unit_scale(Decoder(SMALL.model_copy(update=changes), encoding)).to(dtype).eval()


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(
        SMALL.vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(batch * 1000 + tokens)
    )


# A low-rank bias has two forms: the matrix of short sequences and the columns of long ones.
FORMS = [(name, "matrix") for name in NAMES]
FORMS += [(name, "columns") for name in ENCODINGS if resolve("encoding", ENCODINGS, name).overrides("columns")]


@pytest.fixture
def form(request, monkeypatch):
    if request.param == "columns":
        monkeypatch.setattr(attention, "COLUMNS_FROM", 0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "form"), FORMS, indirect=["form"])
@torch.no_grad()
def test_every_way_of_running_equals_one_plain_pass(name, dtype, form, figure):
    decoder, tokens, n = model(name, dtype), ids(3, 33), 33
    plain = decoder(tokens)
    errors = {}
    for chunk in (1, 3, n - 1):
        cache = decoder.cache(n)
        got = torch.cat([decoder(tokens[:, i : i + chunk], cache=cache) for i in range(0, n, chunk)], 1)
        errors[f"chunks of {chunk}"] = relative_error(got, plain)
    for pads in (1, 2, 7, 31):
        room = torch.zeros(3, pads, dtype=torch.long)
        left = decoder(torch.cat([room, tokens], 1), lengths=[n] * 3, padding="left")
        right = decoder(torch.cat([tokens, room], 1), lengths=[n] * 3)
        errors[f"{pads} on the left"], errors[f"{pads} on the right"] = (
            relative_error(left[:, pads:], plain),
            relative_error(right[:, :n], plain),
        )
    for pads in (1, 31):
        room = torch.zeros(3, pads, dtype=torch.long)
        cache = decoder.cache(n + pads)
        first = decoder(torch.cat([room, tokens[:, :5]], 1), lengths=[5] * 3, padding="left", cache=cache)
        rest = [decoder(tokens[:, i : i + 1], cache=cache) for i in range(5, n)]
        errors[f"{pads} on the left, cached"] = relative_error(torch.cat([first[:, pads:], *rest], 1), plain)
    cache = decoder.cache(n)
    decoder(torch.cat([tokens[:, :5], tokens[:, :3] * 0], 1), lengths=[5] * 3, cache=cache)
    rest = [decoder(tokens[:, i : i + 1], cache=cache) for i in range(5, n)]
    errors["3 on the right, cached"] = relative_error(torch.cat(rest, 1), plain[:, 5:])
    lengths = [33, 20, 7]
    mixed = decoder(tokens, lengths=lengths)
    errors["mixed lengths"] = max(
        relative_error(mixed[i, :k], decoder(tokens[i : i + 1, :k])[0]) for i, k in enumerate(lengths)
    )
    packed = decoder(torch.cat([tokens[i, :k] for i, k in enumerate(lengths)])[None], documents=[lengths])[0].split(
        lengths
    )
    errors["packed"] = max(relative_error(packed[i], decoder(tokens[i : i + 1, :k])[0]) for i, k in enumerate(lengths))
    solo = torch.cat([decoder(row[None]) for row in tokens])
    errors["batched"] = relative_error(plain, solo)
    weights = decoder(tokens, taps={"layers.*.weights": Recorder()})
    errors["with weights"] = relative_error(weights, plain)
    worst = max(errors, key=lambda key: errors[key])
    figure(f"{name} {dtype}: {errors[worst]:.1e} ({worst})")
    assert errors[worst] <= TOLERANCE[dtype], worst


@pytest.mark.parametrize(("name", "form"), FORMS, indirect=["form"])
def test_gradients_are_the_same_padded_packed_and_recomputed(name, form):
    tokens, lengths = ids(2, 9), [9, 4]

    def gradients(run) -> dict[str, torch.Tensor]:
        decoder = model(name)
        run(decoder).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())
        return {key: p.grad for key, p in decoder.named_parameters()}

    def loss(*parts: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.flatten() for part in parts]).square().sum()

    def recomputed(decoder: Decoder) -> torch.Tensor:
        decoder.recompute = True
        return alone(decoder)

    def alone(decoder: Decoder) -> torch.Tensor:
        return loss(*(decoder(tokens[i : i + 1, :k]) for i, k in enumerate(lengths)))

    def padded(decoder: Decoder) -> torch.Tensor:
        out = decoder(tokens, lengths=lengths)
        return loss(*(out[i, :k] for i, k in enumerate(lengths)))

    def left(decoder: Decoder) -> torch.Tensor:
        row = torch.cat([torch.zeros(5, dtype=torch.long), tokens[1, :4]])
        out = decoder(torch.stack([tokens[0], row]), lengths=lengths, padding="left")
        return loss(out[0], out[1, 5:])

    def packed(decoder: Decoder) -> torch.Tensor:
        return loss(decoder(torch.cat([tokens[0], tokens[1, :4]])[None], documents=[lengths]))

    wanted = gradients(alone)
    for run in (recomputed, padded, left, packed):
        for key, got in gradients(run).items():
            assert relative_error(got, wanted[key]) <= 1e-9, (run.__name__, key)


@pytest.mark.parametrize(("name", "form"), FORMS, indirect=["form"])
@torch.no_grad()
def test_positions_need_not_be_consecutive_or_ordered(name, form):
    """Coupled positions fall back to small numbers; the columns of ALiBi would be wrong there and must not be used."""
    decoder, tokens = model(name), ids(2, 8)
    positions = torch.tensor([[0, 5, 6, 9, 5, 6, 9, 2], [0, 1, 2, 3, 4, 5, 6, 7]])
    plain = decoder(tokens, positions_BT=positions)
    cache = decoder.cache(8)
    stepped = [decoder(tokens[:, i : i + 1], positions_BT=positions[:, i : i + 1], cache=cache) for i in range(8)]
    assert relative_error(torch.cat(stepped, 1), plain) <= 1e-9
    assert relative_error(plain[1:], decoder(tokens[1:])) <= 1e-9
    if name == "alibi":
        recorder = Recorder()
        assert (
            relative_error(decoder(tokens, positions_BT=positions, taps={"layers.*.weights": recorder}), plain) <= 1e-9
        )


def test_the_published_parameter_counts():
    for name, wanted in {
        "nope": 109_606_656, "alibi": 109_606_656, "rope:fraction=0.25:interleaved=true": 109_606_656,
        "sinusoidal": 109_606_656, "t5": 109_607_040,
    }.items():  # fmt: skip
        with torch.device("meta"):
            decoder = Decoder.__new__(Decoder)
            initialize, Decoder.initialize = Decoder.initialize, lambda self, seed: None
            try:
                decoder.__init__(preset("paper", vocabulary=32_100), name)
            finally:
                Decoder.initialize = initialize
        assert decoder.parameter_count() == wanted, name


@pytest.mark.parametrize("config", ["laptop", "paper:width=48:layers=2:heads=3:head_width=16:feed_forward_width=96"])
def test_weights_that_two_encodings_share_are_bit_equal_at_initialisation(config):
    plain = dict(Decoder(preset(config, vocabulary=32), "nope", seed=5).named_parameters())
    for name in NAMES:
        other = dict(Decoder(preset(config, vocabulary=32), name, seed=5).named_parameters())
        assert set(plain) <= set(other)
        assert all(torch.equal(plain[key], other[key]) for key in plain), name
    mixed = dict(Decoder(preset(config, vocabulary=32), ["t5", "rope"], seed=5).named_parameters())
    assert all(torch.equal(plain[key], mixed[key]) for key in plain)
    changed = dict(Decoder(preset(config, vocabulary=32), "nope", seed=6).named_parameters())
    assert not torch.equal(plain["embedding.weight"], changed["embedding.weight"])


def test_initial_weights_do_not_depend_on_the_default_dtype():
    here = Decoder(preset("laptop", vocabulary=32), "t5")
    torch.set_default_dtype(torch.float64)
    try:
        there = Decoder(preset("laptop", vocabulary=32), "t5")
    finally:
        torch.set_default_dtype(torch.float32)
    for (name, a), (_, b) in zip(here.named_parameters(), there.named_parameters(), strict=True):
        assert torch.allclose(a.double(), b.double(), atol=1e-7), name


def test_initial_scales_are_those_of_the_presets():
    paper = dict(Decoder(preset("paper", vocabulary=500, layers=1), "t5").named_parameters())
    wanted = {
        "embedding.weight": 1.0,
        "layers.0.attention.q.weight": (768 * 64) ** -0.5,
        "layers.0.attention.k.weight": 768**-0.5,
        "layers.0.attention.out.weight": 768**-0.5,
        "layers.0.feed_forward.up.weight": 768**-0.5,
        "layers.0.feed_forward.down.weight": 3072**-0.5,
    }
    for name, std in wanted.items():
        assert float(paper[name].detach().std()) == pytest.approx(std, rel=0.01), name
    assert float(paper["encodings.0.table"].detach().std()) == pytest.approx(768**-0.5, rel=0.15)
    small = Decoder(preset("laptop", vocabulary=500), "learned")
    for name, parameter in small.named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.02 * (768 / 64) ** 0.5, rel=0.05), name
    assert small.describe()["sigma"] == pytest.approx(0.0693, rel=1e-3)
    assert small.position_ratio() == pytest.approx(1.0, rel=0.05)
    assert Decoder(preset("laptop", vocabulary=500), "sinusoidal").position_ratio() == pytest.approx(0.5**0.5, rel=0.05)
    assert Decoder(preset("laptop", vocabulary=500), "rope").position_ratio() is None


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_under_a_prefix_mask_the_prompt_sees_itself_and_the_answer_only_the_past(name):
    decoder, tokens = model(name, mask="prefix"), ids(1, 8)
    plain = decoder(tokens, prefix=[4])
    for changed in range(8):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % SMALL.vocabulary
        moved = ((decoder(other, prefix=[4]) - plain).abs().amax(-1) > 1e-9)[0].tolist()
        assert moved == [changed < 4 or t >= changed for t in range(8)], changed
    # Padding, cache and batches change nothing.
    left = decoder(torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], 1), lengths=[8], padding="left", prefix=[4])
    assert relative_error(left[:, 3:], plain) <= 1e-9
    right = decoder(torch.cat([tokens, torch.zeros(1, 3, dtype=torch.long)], 1), lengths=[8], prefix=[4])
    assert relative_error(right[:, :8], plain) <= 1e-9
    cache = decoder.cache(8)
    parts = [
        decoder(tokens[:, :5], prefix=[4], cache=cache),
        *(decoder(tokens[:, i : i + 1], cache=cache) for i in (5, 6, 7)),
    ]
    assert relative_error(torch.cat(parts, 1), plain) <= 1e-9


@torch.no_grad()
def test_a_bidirectional_model_hides_padding_only():
    decoder, tokens = model("rope", mask="bidirectional"), ids(2, 8)
    plain = decoder(tokens)
    for side in ("left", "right"):
        room = torch.full((2, 3), 3)
        got = decoder(torch.cat([room, tokens] if side == "left" else [tokens, room], 1), lengths=[8, 8], padding=side)
        assert relative_error(got[:, 3:] if side == "left" else got[:, :8], plain) <= 1e-9
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % SMALL.vocabulary
    assert ((decoder(changed) - plain).abs().amax(-1) > 1e-9).all()


# --- per layer, taps, temperature ------------------------------------------------------------------------------------


def test_a_list_has_one_entry_per_layer_and_equal_shared_entries_are_one_instance():
    decoder = Decoder(preset("laptop:layers=4", vocabulary=9), ["t5", "nope", "t5", {"name": "t5", "buckets": 8}])
    assert decoder.which == [0, 1, 0, 2]
    for listed, said in (
        (["t5"], "4 layers, but 1 entries"),
        (["sinusoidal", "nope", "nope", "nope"], "'sinusoidal' acts on the embeddings, once for all layers"),
        (["nope", "learned", "learned", "learned"], "'learned' acts on the embeddings"),
    ):
        with pytest.raises(SpecError) as error:
            Decoder(preset("laptop:layers=4", vocabulary=9), listed)
        assert said in str(error.value)
    two = preset("laptop:layers=2", vocabulary=9)
    assert len(Decoder(two, ["learned", "learned"]).encodings) == 1
    # Two spellings of one encoding are one.
    assert len(Decoder(two, ["t5", "t5:buckets=32"]).encodings) == 1
    assert len(Decoder(two, ["sinusoidal", "sinusoidal:theta=10000"]).encodings) == 1
    assert [str(spec) for spec in Decoder(two, "rope:theta=500:fraction=1.0").specs] == ["rope:theta=500.0"] * 2


@pytest.mark.parametrize("listed", [("rope", "nope"), ("nope", "alibi"), ("t5", "rope:fraction=0.25")])
@torch.no_grad()
def test_mixed_layers_decode_from_the_cache_as_in_one_pass(listed):
    decoder, tokens = model(listed), ids(2, 12)
    cache = decoder.cache(12)
    assert (
        relative_error(torch.cat([decoder(tokens[:, i : i + 1], cache=cache) for i in range(12)], 1), decoder(tokens))
        <= 1e-9
    )


def test_taps_read_and_replace_and_an_unknown_one_is_an_error():
    decoder, tokens = model("rope"), ids(1, 5)
    seen = Recorder()
    plain = decoder(tokens, taps=dict.fromkeys(("embeddings", "layers.*.*", "states"), seen))
    assert set(seen) == set(tap_names(2))
    assert seen["layers.1.weights"].shape == (1, 4, 5, 5)
    assert seen["layers.0.q"].shape == (1, 4, 5, 8)
    heads = seen["layers.0.weights"] @ decoder.layers[0].attention.v(
        decoder.layers[0].attention_norm(seen["embeddings"])
    ).view(1, 5, 4, 8).transpose(1, 2)
    assert relative_error(heads, seen["layers.0.heads"]) <= 1e-12
    for name in tap_names(2):
        silenced = decoder(tokens, taps={name: lambda _, x: torch.zeros_like(x)})
        assert relative_error(silenced, plain) > 1e-6, f"replacing {name} changes nothing"
    with pytest.raises(SpecError, match=r"no tap 'layers.0.weight'. Did you mean 'layers.0.weights'"):
        decoder(tokens, taps={"layers.0.weight": seen})
    with pytest.raises(SpecError, match="returned"):
        decoder(tokens, taps={"states": lambda _, x: x[:, :1]})


@torch.no_grad()
def test_log_n_temperature_sharpens_by_the_queries_position_and_decodes_the_same():
    plain, warm = model("nope"), model("nope", temperature="log-n:trained=4")
    tokens, weights, warmer = ids(1, 16), Recorder(), Recorder()
    plain(tokens, taps={"layers.0.weights": weights})
    logits = warm(tokens, taps={"layers.0.weights": warmer})
    a, b = weights["layers.0.weights"].log(), warmer["layers.0.weights"].log()
    for t, factor in ((2, 1.0), (3, 1.0), (15, 2.0)):
        spread = (b[0, 0, t, : t + 1] - b[0, 0, t, 0]) - factor * (a[0, 0, t, : t + 1] - a[0, 0, t, 0])
        assert float(spread.abs().max()) < 1e-9, t
    cache = warm.cache(16)
    assert relative_error(torch.cat([warm(tokens[:, i : i + 1], cache=cache) for i in range(16)], 1), logits) <= 1e-9
    scaled = model("nope", attention_scale=0.5 * 8**-0.5, temperature="constant:factor=2.0")
    assert relative_error(scaled(tokens), plain(tokens)) <= 1e-9
    with pytest.raises(SpecError, match=r"unknown temperature 'logn'. Did you mean 'log-n'"):
        model("nope", temperature="logn")


@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("biases", [False, True])
def test_every_choice_of_the_config_runs_and_learns(norm, feed_forward, biases):
    config = preset(
        "laptop", vocabulary=11, norm=norm, feed_forward=feed_forward, biases=biases, dropout=0.1, attention_dropout=0.1
    )
    decoder = Decoder(config, "t5")
    decoder(ids(2, 6) % 11).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())
    assert any(name.endswith("bias") for name, _ in decoder.named_parameters()) == biases


def test_rms_norm_has_the_value_and_gradient_of_pytorchs():
    from lengthwise.model.norm import Norm

    norm = Norm("rms", 7, 1e-6, False).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(norm(x), torch.nn.functional.rms_norm(x, (7,), norm.weight, 1e-6), atol=1e-14)
    assert torch.autograd.gradcheck(norm, (x,))
    assert torch.allclose(norm.bfloat16()(x.bfloat16()).float(), norm.float()(x.float()), atol=0.1)
    assert torch.isfinite(norm.float()(torch.zeros(1, 7))).all()


def test_head_is_computed_only_where_asked():
    decoder, tokens = model("rope"), ids(2, 6)
    only = torch.zeros(2, 6, dtype=torch.bool)
    only[0, 3:], only[1, 5] = True, True
    assert torch.allclose(decoder(tokens, only_BT=only), decoder(tokens)[only])


@pytest.mark.parametrize(("name", "form"), FORMS, indirect=["form"])
def test_bf16_and_autocast_stay_close_and_keep_biases_in_fp32(name, form, monkeypatch):
    """A bias of −300 ± 0.5 is −300 in bf16: it must reach the kernel as it is, also under autocast."""
    seen = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(q, k, v, mask=None, **rest):
        seen.append(mask)
        return kernel(q, k, v, mask, **rest)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    tokens, exact = ids(2, 40), model(name)
    plain = exact(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model(name, torch.float32)
        logits = cast(tokens)
    logits.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cast.parameters())
    assert relative_error(logits, plain) < 0.05
    with torch.no_grad():
        assert relative_error(model(name, torch.bfloat16)(tokens), plain) < 0.05
    assert all(mask is None or mask.dtype in {torch.bool, torch.float32, torch.float64} for mask in seen)


@pytest.mark.parametrize("padded", [False, True])
def test_a_bf16_table_gets_the_gradient_of_an_fp32_one(padded):
    """The gradient of T5's table adds up all pairs of tokens; in bf16 that sum was off by 71 %."""
    tokens = ids(2, 300)
    rest = {"lengths": [300, 150], "padding": "left"} if padded else {}
    gradients = []
    for dtype in (torch.float64, torch.bfloat16):
        decoder = model("t5", dtype)
        decoder(tokens, **rest).double().square().mean().backward()
        gradients.append(decoder.encodings[0].table.grad)
    assert relative_error(gradients[1], gradients[0]) < 0.1


def test_positions_far_apart_take_the_matrix_not_the_columns(monkeypatch):
    monkeypatch.setattr(attention, "COLUMNS_FROM", 0)
    tokens = ids(1, 30)
    positions = torch.cat([torch.arange(10) + start for start in (0, 50_000, 100_000)])[None]
    assert (
        relative_error(
            model("alibi", torch.float32)(tokens, positions_BT=positions),
            model("alibi")(tokens, positions_BT=positions),
        )
        < 1e-5
    )


def test_a_table_as_long_as_the_longest_row_serves_a_wider_batch():
    decoder, tokens = model("learned:limit=8"), ids(2, 12)
    wide = decoder(tokens, lengths=[8, 3])
    assert relative_error(wide[:1, :8], decoder(tokens[:1, :8])) <= 1e-9


def test_two_classes_of_one_name_are_not_confused():
    def make(slope):
        class Mine(Encoding):
            def by_distance(self, distances_N):
                return -slope * distances_N.abs().expand(self.geometry.heads, -1)

        return Mine

    with pytest.raises(SpecError, match="two classes are called"):
        Decoder(SMALL, [make(0.0), make(5.0)])


def test_hooks_keep_their_precision_under_autocast():
    class Linear(Encoding):
        def __init__(self, geometry):
            super().__init__(geometry)
            self.map = torch.nn.Linear(1, geometry.heads, bias=False)

        def initialize(self, stream):
            torch.nn.init.ones_(self.map.weight)

        def by_distance(self, distances_N):
            seen.append(self.map(distances_N[:, None]).T)
            return seen[-1]

    seen = []
    decoder = Decoder(SMALL, Linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decoder(ids(1, 300))
    assert seen[0].dtype == torch.float32
    assert seen[0][0].unique().numel() == seen[0].shape[1]


def test_dropout_acts_in_training_only_and_takes_the_dense_path():
    decoder = Decoder(preset("laptop", vocabulary=11, dropout=0.5, attention_dropout=0.5), "alibi")
    tokens = ids(2, 6) % 11
    torch.manual_seed(0)
    first = decoder.train()(tokens)
    assert not torch.equal(first, decoder(tokens))
    torch.manual_seed(0)
    assert torch.equal(first, decoder(tokens))
    assert torch.equal(decoder.eval()(tokens), decoder(tokens))


# --- errors, decoding ------------------------------------------------------------------------------------------------


def test_mistakes_are_errors_that_say_what_to_do():
    decoder, tokens = model("learned:limit=8"), ids(1, 9)
    for call, said in (
        (lambda: decoder(tokens), "position 8 is past the last one learned has, 7; use a limit of at least 9"),
        (lambda: model("xpos:base=0.1")(tokens), "one xpos has, 5; use a larger base, or shorter sequences"),
        (lambda: decoder(tokens[:, :4], lengths=[5]), "lengths must be 1 whole numbers from 0 to 4"),
        (lambda: decoder(tokens[:, :4], lengths=[2], padding="up"), "padding is 'right' or 'left'"),
        (lambda: decoder(tokens[:, :4], documents=[[3, 2]]), "documents must be 1 lists of lengths"),
        (lambda: decoder(tokens[:, :4], documents=[[3]], lengths=[3]), "packed documents go without lengths"),
        (lambda: decoder(tokens[:, :4], prefix=[2]), "prefix belongs to a prefix mask"),
        (lambda: decoder(tokens[:, :4], positions_BT=torch.zeros(1, 4)), "positions are whole numbers"),
        (lambda: decoder(tokens[:, :4], positions_BT=torch.tensor([[0, 1]])), "positions must be"),
        (lambda: decoder(tokens[:, :4], positions_BT=torch.tensor([[0, 1, -1, 2]])), "not negative"),
        (lambda: decoder(tokens[:, :4], cache=decoder.cache(4)), "wrap the call in torch.no_grad()"),
        (lambda: model("nope", mask="prefix")(tokens), "give prefix"),
        (lambda: decoder(tokens[:, :4], lengths=[2.5]), "lengths must be 1 whole numbers"),
        (lambda: decoder(tokens[:, :4], documents=[2, 2]), "one list of lengths per row"),
        (lambda: decoder([[1, 2]]), "ids must be a (batch, tokens) tensor"),
        (lambda: decoder(tokens[0]), "ids must be a (batch, tokens) tensor"),
        (lambda: decoder(tokens[:, :0]), "with at least one token"),
        (lambda: decoder(tokens[:, :4] + 17), "is not below the vocabulary's size, 17"),
        (lambda: decoder(tokens[:, :4], cache=True), "a cache is made by decoder.cache(budget)"),
        (lambda: decoder(tokens[:, :4], taps=["states"]), "taps are a mapping"),
        (lambda: decoder(tokens[:, :4], only_BT=torch.ones(1, 4)), "only_BT must be booleans"),
        (lambda: decoder(tokens[:, :4], budget=3), "a budget of [3] is less than the [4] tokens"),
        (lambda: decoder(tokens[:, :4], budget=4.5), "budget must be a whole number"),
        (lambda: model("rope")(tokens, positions_BT=torch.arange(2**24, 2**24 + 9)[None]).float(), None),
        (lambda: model("rope", torch.float32)(tokens, positions_BT=torch.arange(9)[None] + 2**24), "not exact in fp32"),
        (lambda: greedy(decoder, tokens[:, :4], 0), "at least one token"),
        (lambda: decoder.cache(0), "a budget of at least one token"),
        (lambda: decoder.cache("9"), "a budget of at least one token"),
        (lambda: Decoder("laptop", "rope"), "the first argument is a config"),
        (lambda: Decoder(SMALL, None), "give the encoding's name or its class"),
        (lambda: Decoder(SMALL, "rope,nope,rope"), "one entry per layer: 2 layers, but 3 entries"),
        (lambda: Decoder(SMALL, ""), "has no name"),
        (lambda: Decoder(SMALL, ["rope,nope", "nope"]), "Several go into a list, one per layer"),
        (lambda: preset("laptop"), "needs 'vocabulary'"),
        (lambda: preset("lapto", vocabulary=3), "Did you mean 'laptop'"),
        (lambda: preset("laptop:layer=3", vocabulary=3), "has no option 'layer'. Did you mean 'layers'"),
        (lambda: preset("laptop:layers=x", vocabulary=3), "option 'layers' of preset 'laptop' cannot be 'x'"),
    ):
        if said is None:
            call()  # the same in float64 is no mistake
            continue
        with pytest.raises(SpecError) as error:
            call()
        assert said in str(error.value)
    both_ways = model("nope", mask="bidirectional")
    with torch.no_grad(), pytest.raises(SpecError, match="bidirectional model has no cache"):
        both_ways(tokens, cache=both_ways.cache(9))
    for first, second in ((None, torch.tensor([[4]])), (torch.tensor([[0, 3, 4, 7]]), None)):
        cache = decoder.cache(9)
        with torch.no_grad():
            decoder(tokens[:, :4], positions_BT=first, cache=cache)
        with torch.no_grad(), pytest.raises(SpecError, match="positions of the tokens in the cache were"):
            decoder(tokens[:, :1], positions_BT=second, cache=cache)
    cache, other = decoder.cache(6), model("nope", layers=1).cache(9)
    with torch.no_grad():
        decoder(tokens[:, :4], cache=cache)
        for call, said in (
            (lambda: decoder(tokens[:, :3], cache=cache), "7 tokens do not fit the cache's budget of 6"),
            (lambda: decoder(ids(2, 1), cache=cache), "the cache holds 1 rows of 4 heads, these are 2 of 4"),
            (lambda: decoder(tokens[:, :4], cache=other), "made by another model"),
            (
                lambda: decoder(tokens[:, :4], documents=[[2, 2]], cache=decoder.cache(9)),
                "go without lengths, prefix and",
            ),
        ):
            with pytest.raises(SpecError) as error:
                call()
            assert said in str(error.value)
    with torch.no_grad(), pytest.raises(SpecError, match="the cache holds the budget"):
        decoder(tokens[:, :4], cache=decoder.cache(9), budget=9)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_greedy_decoding_takes_the_argmax_of_a_plain_pass_at_every_step(name):
    decoder, prompts = model(name), ids(3, 6)
    lengths = [6, 4, 1]
    rows = torch.stack(
        [torch.cat([torch.zeros(6 - k, dtype=torch.long), prompts[i, :k]]) for i, k in enumerate(lengths)]
    )
    got = greedy(decoder, rows, 10, lengths=lengths)
    for i, k in enumerate(lengths):
        whole = torch.cat([prompts[i, :k], got[i]])[None]
        assert torch.equal(decoder(whole)[0, k - 1 : -1].argmax(-1), got[i])
