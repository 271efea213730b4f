"""Every path of attention against the dense one in float64, on any device: for test_flex.py and test_cuda.py."""

from typing import Any

import torch
import torch.nn.functional as F

from lengthwise.encoding import ENCODINGS
from lengthwise.model import Decoder, preset
from lengthwise.spec import resolve

TOKENS = 33
IDS = torch.randint(32, (3, TOKENS), generator=torch.Generator().manual_seed(0))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "right": {"lengths": [33, 20, 1]},
    "left": {"lengths": [33, 20, 1], "padding": "left"},
    "packed": {"documents": [[20, 13], [33], [1, 2, 30]]},
    "placed": {"positions_BT": torch.arange(TOKENS)[None] * 3},
    "rows": {"positions_BT": torch.arange(TOKENS)[None] * torch.tensor([[1], [2], [3]])},
}


def hooked(encoding: str) -> list[str]:
    """The hooks of an encoding that see scores or weights, which FlexAttention has no place for."""
    cls = resolve("encoding", ENCODINGS, encoding)
    return [hook for hook in ("score", "weigh", "read") if cls.overrides(hook)]


def made(encoding: str, backend: str, device: str, dtype: torch.dtype, **changes: object) -> Decoder:
    """A model in which positions move logits: at the usual σ they hardly do."""
    config = preset("laptop", vocabulary=32, sigma=0.2, attention=backend, **changes)
    return Decoder(config, encoding, seed=1).to(device=device, dtype=dtype).eval()


def real(case: str) -> torch.Tensor:
    """Where there are tokens."""
    lengths, side = CASES[case].get("lengths", [TOKENS] * 3), CASES[case].get("padding", "right")
    kept = torch.stack([torch.arange(TOKENS) < length for length in lengths])
    return kept.flip(1) if side == "left" else kept


def arguments(case: str, device: str) -> dict[str, Any]:
    return {key: value.to(device) if torch.is_tensor(value) else value for key, value in CASES[case].items()}


def forward_error(
    encoding: str, backend: str, device: str, case: str, *, dtype: torch.dtype = torch.float32, **changes: object
) -> float:
    """The largest difference of logits from the dense float64 path's, relative to the largest logit."""
    with torch.no_grad():
        wanted = made(encoding, "dense", "cpu", torch.float64, **changes)(IDS, **CASES[case])[real(case)]
        model = made(encoding, backend, device, dtype, **changes)
        got = model(IDS.to(device), **arguments(case, device)).cpu()[real(case)]
    return float((got - wanted).abs().max() / wanted.abs().max())


def gradients(encoding: str, backend: str, device: str, dtype: torch.dtype, case: str) -> dict[str, torch.Tensor]:
    """Those of the loss of predicting each next token where there are tokens."""
    model = made(encoding, backend, device, dtype)
    logits = model(IDS.to(device), **arguments(case, device))
    kept = real(case).to(device)
    F.cross_entropy(logits[kept], IDS.to(device).roll(-1, 1)[kept]).backward()
    return {name: part.grad.cpu() for name, part in model.named_parameters() if part.grad is not None}


def gradient_error(encoding: str, backend: str, device: str, case: str, *, dtype: torch.dtype = torch.float32) -> float:
    """The largest difference of any parameter's gradient, relative to that gradient's norm."""
    wanted = gradients(encoding, "dense", "cpu", torch.float64, case)
    got = gradients(encoding, backend, device, dtype, case)
    assert set(got) == set(wanted)
    return max(float((got[name] - one).norm() / one.norm().clamp(min=1e-6)) for name, one in wanted.items())
