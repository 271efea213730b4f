"""The parts of `lengthwise selftest` one by one: on a GPU with `pytest -m cuda`, and on the CPU in every CI."""

import math
import os
import subprocess
import sys

import pytest
import torch

from lengthwise.device import choose_device, device_count
from lengthwise.encoding import ENCODINGS
from lengthwise.interface.selftest import (
    FURTHER,
    LIMITS,
    SIZES,
    encoding_errors,
    resumes_bit_equal,
    steps_per_second,
    two_ranks_error,
)

GPU = pytest.param(
    "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
DEVICES = ["cpu", GPU]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("encoding", [*ENCODINGS, *FURTHER])
def test_errors_are_within_their_limits(encoding, device):
    errors = encoding_errors(encoding, choose_device(device).device)
    assert {kind: error for kind, error in errors.items() if error is not None and not error <= LIMITS[kind]} == {}
    assert set(errors) == {"logits", "gradients", "cached", "bf16"}


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_that_was_stopped_goes_on_bit_equal(device):
    assert resumes_bit_equal(choose_device(device).device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_train_as_one(device):
    if device != "cpu" and device_count(device) < 2:
        pytest.skip("there is only one GPU")
    assert two_ranks_error(device) < LIMITS["two ranks"]


@pytest.mark.slow
def test_an_abort_while_python_ends_loses_no_process(tmp_path, monkeypatch):
    """Gloo's threads abort a process now and then when Python destroys its objects; here it happens each time."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Abort:\n"
        "    def __del__(self, abort=os.abort):\n"
        "        abort()\n"
        "if 'RANK' in os.environ:\n"
        "    sys.abort_at_end = Abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert two_ranks_error("cpu") < LIMITS["two ranks"]
    command = [sys.executable, "-m", "lengthwise", "list", "encodings"]
    assert subprocess.run(command, env={**os.environ, "RANK": "0"}, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_two_processes_of_which_one_fails_are_not_equal():
    with pytest.warns(UserWarning, match="two processes failed"):
        assert two_ranks_error("nonsense") == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_steps_are_timed(device):
    assert steps_per_second(SIZES[0], choose_device(device).device, rounds=1) > 0
