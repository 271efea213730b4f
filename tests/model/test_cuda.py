"""Every encoding on every path of attention on a GPU, forward and gradient: `pytest -m cuda`.

The body is tests/model/parity.py, which runs on the CPU in test_flex.py. FlexAttention is compiled for each encoding
and shape, so that the suite takes minutes.
"""

import pytest
import torch

from lengthwise.encoding import ENCODINGS
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError
from tests.model.parity import CASES, forward_error, gradient_error, hooked

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: run `pytest -m cuda` where one is"),
    pytest.mark.timeout(1200),
]
BACKENDS = ("auto", "dense", "flex")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_logits_and_gradients_are_those_of_the_dense_path_in_float64(encoding, backend, figure):
    if backend == "flex" and hooked(encoding):
        with pytest.raises(SpecError, match="attention=flex cannot do"):
            Decoder(preset("laptop:attention=flex", vocabulary=32), encoding)
        return
    worst = {"logits": 0.0, "gradients": 0.0}
    for case in CASES:
        worst["logits"] = max(worst["logits"], forward_error(encoding, backend, "cuda", case))
        worst["gradients"] = max(worst["gradients"], gradient_error(encoding, backend, "cuda", case))
    figure(f"cuda {encoding} {backend}: logits {worst['logits']:.1e}, gradients {worst['gradients']:.1e}")
    assert worst["logits"] < 1e-4
    assert worst["gradients"] < 1e-3


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if not hooked(name)])
def test_bf16_is_near(encoding, backend, figure):
    error = forward_error(encoding, backend, "cuda", "plain", dtype=torch.bfloat16)
    figure(f"cuda {encoding} {backend} bf16: logits {error:.1e}")
    assert error < 0.1
