"""Every encoding on an accelerator: the numbers of the CPU, no tensor left behind, no waiting inside a step."""

import copy

import pytest
import torch

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder
from lengthwise.model.config import preset
from tests.device.pretend import KIND, Accelerator

SPECS = [
    *ENCODINGS,
    "rope:fraction=0.5:interleaved=true",
    *(f"rope:scaling={kind}:factor=4.0" for kind in ("linear", "ntk")),
    *(f"rope:scaling={kind}:trained=8:factor=4.0" for kind in ("dynamic", "yarn", "llama3")),
    "rope:scaling=dynamic:trained=8:length=seen",
    "transformer_xl:clamp=5",
    "rope,nope",
]
ROWS, TOKENS, VOCABULARY = 4, 12, 32
LENGTHS = [12, 7, 8, 9]


def decoder(spec, **options) -> Decoder:
    return Decoder(preset("laptop", vocabulary=VOCABULARY, width=32, heads=2, **options), spec, seed=0)


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(1))


def step(made: Decoder, device: str, **arguments):
    """Logits, gradients and weights after one step of AdamW."""
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01, fused=True)
    logits = made(ids().to(device, non_blocking=True), **arguments)
    logits.float().square().mean().backward()
    optimizer.step()
    return logits.detach(), [p.grad for p in made.parameters()], [p.detach() for p in made.parameters()]


def compared(spec, arguments, **options) -> int:
    """Compare a step on the accelerator with one on the CPU; return how often the host waited for it."""
    made = decoder(spec, **options)
    expected = step(copy.deepcopy(made), "cpu", **arguments)
    with Accelerator() as device:
        moved = made.to(KIND)
        device.syncs = 0
        device.where.clear()
        found = step(moved, KIND, **arguments)
        waits = device.syncs
        near = [part.cpu() if isinstance(part, torch.Tensor) else [one.cpu() for one in part] for part in found]
    torch.testing.assert_close(near[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(near[1], expected[1], atol=1e-4, rtol=1e-3)
    # AdamW's first step divides by the gradient, so rounding decides where it is nearly 0.
    for one, other, gradient in zip(near[2], expected[2], expected[1], strict=True):
        large = gradient.abs() > 1e-5
        torch.testing.assert_close(one[large], other[large], atol=1e-4, rtol=1e-3)
    return waits


@pytest.mark.parametrize("spec", SPECS)
def test_a_step_is_that_of_the_cpu_and_nothing_waits(spec):
    arguments = {"lengths": LENGTHS, "budget": torch.tensor([20, 21, 13, 20])}
    assert compared(spec, arguments) == 0


POSITIONS = torch.arange(TOKENS)[None] * 3 + torch.arange(ROWS)[:, None]


@pytest.mark.parametrize("spec", ["nope", "t5", "rope", "alibi", "fire", "transformer_xl", "learned", "cope"])
@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {"positions_BT": POSITIONS}),
        ({}, {"lengths": LENGTHS, "padding": "left"}),
        ({}, {"documents": [[5, 7], [12], [3, 3, 6], [8]]}),
        ({"mask": "prefix"}, {"prefix": [3, 4, 2, 5], "lengths": LENGTHS}),
        ({"mask": "bidirectional"}, {"lengths": LENGTHS}),
        ({"temperature": "log-n:trained=4"}, {}),
        ({}, {"only_BT": torch.arange(TOKENS)[None].expand(ROWS, -1) > 4}),
    ],
    ids=["positions", "left padding", "packed", "prefix", "bidirectional", "log-n", "some logits"],
)
def test_masks_padding_positions_and_packing(spec, options, arguments):
    assert compared(spec, arguments, **options) == 0


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "length=seen" not in spec])
def test_cached_decoding_and_chunked_prefill(spec):
    made, given = decoder(spec), ids()
    with torch.no_grad():
        expected = made(given, budget=TOKENS)
        with Accelerator():
            moved, cache = made.to(KIND), made.cache(TOKENS)
            chunks = ((0, 5), (5, 9), (9, 10), (10, 11), (11, 12))
            parts = [moved(given[:, start:end].to(KIND), cache=cache) for start, end in chunks]
            found = torch.cat(parts, 1).cpu()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_no_float64_is_needed(spec):
    """MPS has none."""
    with Accelerator(float64=False):
        moved = decoder(spec).to(KIND)
        moved(ids().to(KIND), lengths=LENGTHS).sum().backward()


@pytest.mark.parametrize("spec", SPECS)
def test_on_meta_it_has_the_right_shapes(spec):
    made = decoder(spec).to("meta")
    logits = made(ids().to("meta"), lengths=LENGTHS)
    assert logits.shape == (ROWS, TOKENS, VOCABULARY)
    logits.sum().backward()
    assert all(p.grad is not None for p in made.parameters())


# --- what is caught --------------------------------------------------------------------------------------------------


class Constant(Encoding):
    """A constant that a hook makes on the CPU."""

    def by_distance(self, distances_N):
        return -torch.arange(1, self.geometry.heads + 1)[:, None] * distances_N.abs()


class Reading(Encoding):
    """A value that a hook reads."""

    def by_distance(self, distances_N):
        return -(distances_N / max(float(distances_N.max()), 1.0)).expand(self.geometry.heads, -1)


def planted(cls) -> Decoder:
    return Decoder(preset("laptop", vocabulary=VOCABULARY, width=32, heads=2), cls, seed=0)


def test_a_constant_on_the_cpu_is_caught():
    with Accelerator(), pytest.raises(RuntimeError, match="expected all tensors on pretend:0, but one is on cpu"):
        planted(Constant).to(KIND)(ids().to(KIND))


def test_a_value_that_is_read_is_counted():
    with Accelerator() as device:
        made = planted(Reading).to(KIND)
        device.syncs = 0
        made(ids().to(KIND, non_blocking=True))
        assert device.syncs > 0 and set(device.where) >= {"_local_scalar_dense"}


def test_a_batch_that_is_not_moved_is_caught():
    with Accelerator(), pytest.raises(RuntimeError, match="but one is on cpu"):
        decoder("rope").to(KIND)(ids())


def test_a_mask_on_the_cpu_is_caught(monkeypatch):
    from lengthwise.model.mask import AttentionMask

    mask = torch.ones(1, TOKENS, TOKENS, dtype=torch.bool).tril()
    monkeypatch.setattr(AttentionMask, "allowed_BQK", mask)
    with Accelerator(), pytest.raises(RuntimeError, match="but one is on cpu"):
        decoder("t5").to(KIND)(ids().to(KIND))


def test_float64_is_refused_where_there_is_none():
    with Accelerator(float64=False), pytest.raises(TypeError, match="has no float64"):
        ids().to(KIND).double()
