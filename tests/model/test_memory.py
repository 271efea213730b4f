"""Long sequences: nothing of size T × T on the causal paths."""

import subprocess
import sys

import pytest

from lengthwise.encoding import ENCODINGS

SCRIPT = """
import sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from lengthwise.model import Decoder, preset

name, tokens, train = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "train"
largest = 0

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        global largest
        out = op(*args, **(kwargs or {}))
        for item in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(item, torch.Tensor) and item.numel():
                # What lies in memory, not what a broadcast view pretends.
                largest = max(largest, item.untyped_storage().nbytes() // item.element_size())
        return out

def status(field):
    # Not ru_maxrss: a child inherits its parent's, and a large parent would hide everything.
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024

torch.set_num_threads(1)
decoder = Decoder(preset("laptop", vocabulary=32), name).train(train)
ids = torch.randint(32, (1, tokens))
decoder(ids[:, :64]).sum().backward()  # libraries load, pools fill
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts again from here
before = status("VmRSS")
with Watch(), torch.set_grad_enabled(train):
    logits = decoder(ids)
    if train:
        logits.square().mean().backward()
peak = status("VmHWM") - before
print(largest, peak)
"""


def measure(name: str, tokens: int, mode: str) -> tuple[int, float]:
    """The largest tensor in numbers, and the peak memory above the model's in MiB, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(tokens), mode], capture_output=True, text=True, check=True
    )
    largest, peak = run.stdout.split()
    return int(largest), float(peak)


def _in_ci(names, first):
    """The first of each path of attention in CI's slow stage, the others by hand."""
    return [pytest.param(name, marks=pytest.mark.slow if name in first else pytest.mark.evidence) for name in names]


@pytest.mark.parametrize("mode", [pytest.param("infer", marks=pytest.mark.evidence), "train"])  # training holds more
@pytest.mark.parametrize(
    "name", _in_ci(["nope", "rope", "alibi", "sinusoidal", "learned:limit=8192"], {"rope", "alibi"})
)
def test_causal_paths_at_8192_tokens_hold_nothing_of_size_t_by_t(name, mode, figure):
    tokens = 8192
    largest, peak = measure(name, tokens, mode)
    square = tokens * tokens * 4 / 2**20
    figure(
        f"{name} {mode} T={tokens}: peak {peak:.0f} MiB, largest tensor {largest:,} "
        f"(one T × T in fp32: {square:.0f} MiB)",
    )
    assert largest < tokens * tokens / 16
    assert 0 < peak < square


@pytest.mark.slow
def test_the_measurement_sees_a_matrix_where_there_is_one():
    largest, peak = measure("t5", 2048, "infer")
    assert largest >= 2048 * 2048
    assert peak > 4 * 2048 * 2048 * 4 / 2**20  # four heads' scores and more


@pytest.mark.parametrize("name", _in_ci(ENCODINGS, {"rope", "fire"}))
def test_every_encoding_takes_4096_tokens_in_less_than_two_gigabytes(name, figure):
    spec = "learned:limit=4096" if name == "learned" else name
    _, peak = measure(spec, 4096, "infer")
    figure(f"{spec} forward T=4096 (laptop preset, 4 heads): peak {peak:.0f} MiB above the model's")
    assert peak < 2000
