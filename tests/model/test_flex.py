"""FlexAttention where it is asked for: on a CPU the forward pass, and a clear word about the rest."""

import pytest
import torch

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, flex, preset
from lengthwise.model.taps import Recorder
from lengthwise.run import Plan
from lengthwise.spec import SpecError
from tests.model.parity import CASES, IDS, forward_error, gradient_error, hooked, made

BIASED = [name for name in ("t5", "kerple", "fire") if name in ENCODINGS]
SLOWLY = ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in BIASED if name != "t5")]
POSSIBLE = [name for name in ENCODINGS if not hooked(name)]


@pytest.mark.parametrize("encoding", POSSIBLE)
def test_the_forward_pass_is_that_of_the_dense_path(encoding, figure):
    error = forward_error(encoding, "flex", "cpu", "plain")
    exact = forward_error(encoding, "flex", "cpu", "plain", dtype=torch.float64)
    figure(f"flex {encoding}: largest error {error:.1e} in fp32, {exact:.1e} in float64, of the largest logit")
    assert error < 1e-5
    assert exact < 1e-12


@pytest.mark.parametrize("case", [name for name in CASES if name != "plain"])
@pytest.mark.parametrize("encoding", SLOWLY)
def test_padding_documents_and_positions_are_those_of_the_dense_path(encoding, case):
    assert forward_error(encoding, "flex", "cpu", case, dtype=torch.float64) < 1e-12


@pytest.mark.parametrize("mask", ["bidirectional", "prefix"])
def test_every_mask_is_that_of_the_dense_path(mask):
    arguments = {"prefix": [3, 20, 33]} if mask == "prefix" else {}
    flexed, dense = (made("alibi", backend, "cpu", torch.float64, mask=mask) for backend in ("flex", "dense"))
    with torch.no_grad():
        assert torch.allclose(flexed(IDS, **arguments), dense(IDS, **arguments), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", SLOWLY)
def test_a_cache_gives_the_logits_of_one_pass(encoding):
    model = made(encoding, "flex", "cpu", torch.float64)
    with torch.no_grad():
        cache = model.cache(33)
        steps = [model(part, cache=cache) for part in IDS.split([20, 12, 1], 1)]
        assert torch.allclose(torch.cat(steps, 1), model(IDS, budget=33), rtol=0, atol=1e-12)


def test_a_bias_of_the_distance_makes_no_matrix(monkeypatch):
    def refuse(plan):
        raise AssertionError("a matrix of biases was made")

    monkeypatch.setattr(flex, "_by_matrix", refuse)
    forward_error("t5", "flex", "cpu", "plain")
    # Where positions lie so far apart that the vector would be the larger one, the matrix is taken.
    monkeypatch.setitem(CASES, "far", {"positions_BT": torch.arange(33)[None] * 1000})
    with pytest.raises(AssertionError, match="matrix"):
        forward_error("t5", "flex", "cpu", "far")


def test_positions_far_apart_take_the_matrix(monkeypatch):
    monkeypatch.setitem(CASES, "far", {"positions_BT": torch.arange(33)[None] * 1000})
    assert forward_error("t5", "flex", "cpu", "far", dtype=torch.float64) < 1e-12


class LikeFire(Encoding):
    """A small network of ψ(i − j) / ψ(max(L, i)), ψ(x) = log(x + 1): a bias of both positions."""

    relative = False

    def bias(self, query_positions_BQ, key_positions_BK):
        distance_BQK = (query_positions_BQ[:, :, None] - key_positions_BK[:, None, :]).clamp(min=0)
        share_BQK = distance_BQK.log1p() / query_positions_BQ.clamp(min=4).log1p()[:, :, None]
        first, second = torch.linspace(-2, 2, 8, dtype=share_BQK.dtype), torch.linspace(-3, 1, 32).to(share_BQK.dtype)
        hidden_BQKN = (share_BQK[..., None] * first + first.flip(0) / 2).relu()
        return (hidden_BQKN @ second.view(8, 4)).permute(0, 3, 1, 2)


def test_a_bias_that_is_none_of_the_distance_is_read_from_its_matrix():
    model = Decoder(preset("laptop:attention=flex:sigma=0.2", vocabulary=32), LikeFire).double().eval()
    for case in ("plain", "rows"):  # one matrix for all rows of the batch, one for each
        with torch.no_grad():
            model.backend = "flex"
            got = model(IDS, **CASES[case])
            model.backend = "dense"
            assert torch.allclose(got, model(IDS, **CASES[case]), rtol=0, atol=1e-12)


# --- what is refused -------------------------------------------------------------------------------------------------


class Scorer(Encoding):
    def score(self, scores_BHQK, pair):
        return scores_BHQK + pair.distance_BQK[:, None]


@pytest.mark.parametrize("encoding", [Scorer, *(name for name in ENCODINGS if hooked(name))])
def test_an_encoding_that_sees_scores_is_refused(encoding):
    with pytest.raises(SpecError, match=r"attention=flex cannot do \w+, which acts in .*; use attention=auto"):
        Decoder(preset("laptop:attention=flex", vocabulary=32), encoding)
    model = Decoder(preset("laptop", vocabulary=32), encoding)
    with pytest.raises(SpecError, match="attention=flex cannot do"):
        model.backend = "flex"
    assert model.backend == "auto"


def test_training_on_a_cpu_is_refused():
    model = Decoder(preset("laptop:attention=flex", vocabulary=32), "t5")
    with pytest.raises(SpecError, match=r"no backward pass on cpu: to train there use attention=auto .*torch.no_grad"):
        model(IDS)
    model.backend = "auto"
    model(IDS).sum().backward()
    frozen = Decoder(preset("laptop:attention=flex", vocabulary=32), "t5").requires_grad_(False)
    frozen(IDS)  # nothing to learn, nothing to refuse


def test_attention_dropout_is_refused():
    model = Decoder(preset("laptop:attention=flex:attention_dropout=0.1", vocabulary=32)).train()
    with torch.no_grad(), pytest.raises(SpecError, match="no attention dropout; train with attention_dropout=0"):
        model(IDS)
    with torch.no_grad():
        model.eval()(IDS)


def test_an_unknown_backend_is_refused():
    with pytest.raises(SpecError, match="'auto', 'dense' or 'flex', not 'flash'"):
        Decoder(preset("laptop", vocabulary=32)).backend = "flash"
    with pytest.raises(SpecError, match="flash"):
        preset("laptop:attention=flash", vocabulary=32)


def test_weights_are_shown_by_the_dense_path():
    model, seen = made("t5", "flex", "cpu", torch.float64), Recorder()
    with torch.no_grad():
        watched, plain = model(IDS, taps={"layers.*.weights": seen}), model(IDS)
    assert torch.allclose(seen["layers.0.weights"].sum(-1), torch.ones((), dtype=torch.float64))
    assert torch.allclose(watched, plain, rtol=0, atol=1e-12)


# --- what it does not change -----------------------------------------------------------------------------------------


def test_it_is_never_chosen_by_itself(monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.flex", None)
    for encoding in ENCODINGS:
        model = Decoder(preset("laptop", vocabulary=32), encoding)
        model(IDS).sum().backward()
        with torch.no_grad():
            model(IDS)


def test_a_backend_is_no_part_of_a_run_s_identity():
    plain, flexed = (Plan.of("sort", "t5", model=f"laptop{more}") for more in ("", ":attention=flex"))
    assert plain.id == flexed.id
    assert "attention" not in plain.identity()["model"]
    assert Plan.read(flexed.options()).model.attention == "flex"
    assert Plan.of("sort", "t5", model="laptop:tied=true").id != plain.id


@pytest.mark.parametrize("encoding", ["rope", "t5"])
def test_the_body_of_the_cuda_suite_runs(encoding):
    for backend in ("auto", "dense"):
        for case in CASES:
            assert forward_error(encoding, backend, "cpu", case) < 1e-5
            assert gradient_error(encoding, backend, "cpu", case) < 1e-4


COMPILED = [
    pytest.param(name, marks=pytest.mark.evidence if name in ("nope", "t5") else pytest.mark.slow)
    for name in ("nope", *BIASED)
]


@pytest.mark.parametrize("encoding", COMPILED)
def test_the_compiled_kernel_is_that_of_the_dense_path(encoding, monkeypatch, figure):
    """What CUDA would run, through the compiler's CPU code: forward only."""
    monkeypatch.setattr(flex, "FLEX_COMPILES", {"cpu"})
    torch._dynamo.reset()
    error = forward_error(encoding, "flex", "cpu", "plain")
    figure(f"flex {encoding}, compiled: largest error {error:.1e} in fp32, of the largest logit")
    assert error < 1e-5
