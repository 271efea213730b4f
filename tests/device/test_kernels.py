"""Which kernel of a GPU computes attention for each encoding, and that none is given what it computes wrongly."""

from pathlib import Path

import pytest
import torch

from lengthwise.encoding import ENCODINGS
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError
from tests.device.pretend import KIND, Accelerator

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "devices.md"
BIASED = ["t5", "alibi", "kerple", "fire"]


def kernel(spec: str, dtype: torch.dtype, training: bool) -> str:
    """The fastest kernel of CUDA that can be used; `dense` is our own code, which no fused kernel replaces."""
    decoder = Decoder(preset("laptop", vocabulary=32), spec, seed=0).to(dtype)
    with Accelerator() as device, torch.set_grad_enabled(training):
        decoder.to(KIND)(torch.zeros(2, 24, dtype=torch.long).to(KIND))
        return device.kernels[0][0] if device.kernels else "dense"


def row(spec: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fp32 and bf16, each in training and without gradients; and whether FlexAttention can do it."""
    cells = []
    for dtype in (torch.float32, torch.bfloat16):
        for training in (True, False):
            short = kernel(spec, dtype, training)
            with monkeypatch.context() as patch:
                patch.setattr("lengthwise.model.attention.COLUMNS_FROM", 0)  # as for more than 512 tokens
                long = kernel(spec, dtype, training)
            cells.append(short if short == long else f"{short}; {long} above 512 tokens")
    try:
        Decoder(preset("laptop:attention=flex", vocabulary=32), spec)
        cells.append("yes")
    except SpecError:
        cells.append("no")
    return " | ".join(cells)


@pytest.mark.slow
def test_the_table_of_the_docs_is_what_the_code_does(monkeypatch):
    groups: dict[str, list[str]] = {}
    for spec in ENCODINGS:
        groups.setdefault(row(spec, monkeypatch), []).append(spec)
    expected = [f"| {', '.join(specs)} | {cells} |" for cells, specs in groups.items()]
    text = DOCS.read_text()
    assert [line for line in expected if line not in text] == []


@pytest.mark.parametrize("spec", BIASED)
def test_a_bias_in_fp32_is_not_given_to_a_kernel_in_bf16(spec):
    """CUDA's memory-efficient kernel refuses it, and cuDNN's reads it as bf16, so the answer would be wrong."""
    decoder = Decoder(preset("laptop", vocabulary=32), spec, seed=0).bfloat16()
    ids_BT = torch.arange(24)[None] % 32
    with torch.no_grad():
        expected = decoder(ids_BT)
        with Accelerator() as device:
            found = decoder.to(KIND)(ids_BT.to(KIND)).to("cpu")
            assert device.kernels
    assert torch.allclose(found.float(), expected.float(), atol=0.03)


def test_a_bias_of_another_dtype_is_caught():
    with Accelerator():
        q = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16).to(KIND)
        bias = torch.zeros(1, 2, 4, 4).to(KIND)
        with pytest.raises(RuntimeError, match="invalid dtype for bias"):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, bias)


def test_columns_keep_heads_as_wide_as_kernels_want(monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.COLUMNS_FROM", 0)
    assert kernel("alibi", torch.float32, training=True) == "memory-efficient"
    monkeypatch.setattr("lengthwise.model.fused.KERNEL_WIDTH", 1)
    assert kernel("alibi", torch.float32, training=True) == "math"
