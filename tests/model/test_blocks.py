"""The dense path a block of queries at a time equals the dense path at once, forward and gradient."""

import pytest
import torch

from lengthwise.model import Decoder, attention, preset
from lengthwise.model.taps import QueryBlockTap, Recorder
from lengthwise.spec import SpecError

NAMES = ["nope", "t5", "alibi"]


def decoder(name: str, **changes: object) -> Decoder:
    config = preset("laptop", vocabulary=17, sigma=0.3, **changes)
    return Decoder(config, name).double().eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", ["causal", "bidirectional", "prefix"])
def test_blocks_equal_the_whole(name, mask, monkeypatch):
    model = decoder(name, mask=mask)
    ids = torch.randint(17, (2, 50), generator=torch.Generator().manual_seed(0))
    prefix = {"prefix": [20, 7]} if mask == "prefix" else {}
    whole, parts = Recorder(), {}

    def collect(name, weights_BHRK, start):
        parts.setdefault(name, []).append((start, weights_BHRK))

    with torch.no_grad():
        truth = model(ids, taps={"layers.*.weights": whole}, **prefix)
        got = model(ids, taps={"layers.*.weights": QueryBlockTap(collect, 16)}, **prefix)
    assert torch.allclose(got, truth, atol=1e-12)
    for key, blocks in parts.items():
        assert [start for start, _ in blocks] == [0, 16, 32, 48]
        for start, weights in blocks:
            keys = weights.shape[-1]
            assert keys == (min(start + 16, 50) if mask == "causal" else 50)
            assert torch.allclose(weights, whole[key][:, :, start : start + 16, :keys], atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [50, 31]])
def test_blocks_are_taken_by_themselves_where_there_is_much(lengths, monkeypatch):
    model = decoder("t5")
    ids = torch.randint(17, (2, 50), generator=torch.Generator().manual_seed(0))
    seen = []
    monkeypatch.setattr(attention, "_dense", lambda *a, _of=attention._dense, **k: seen.append(1) or _of(*a, **k))

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(ids, lengths=lengths, padding="left").square().mean().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    truth, calls = gradients(), len(seen)
    monkeypatch.setattr(attention, "AT_ONCE", 2 * 4 * 50 * 20)
    got = gradients()
    assert len(seen) - calls > 4 * calls
    for name, gradient in truth.items():
        assert torch.allclose(got[name], gradient, atol=1e-11), name


def test_blocks_listen_to_weights_alone():
    with pytest.raises(SpecError, match="QueryBlockTap listens to weights"):
        decoder("nope")(torch.zeros(1, 3, dtype=torch.long), taps={"states": QueryBlockTap(print)})
    with pytest.raises(SpecError, match="at least one row"):
        QueryBlockTap(print, 0)
