"""Full-size measurements: `pytest -m evidence`."""

import json
import subprocess
import sys
import time

import pytest

SCRIPT = """
import resource, sys, time
import torch
import torch.nn.functional as F
from lengthwise.model import Decoder, preset
from lengthwise.model.decode import greedy

torch.manual_seed(0)
decoder = Decoder(preset("paper", vocabulary=32_100), sys.argv[1]).train()
optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-5, weight_decay=0.05)
ids = torch.randint(32_100, (64, 48))

def step():
    start = time.perf_counter()
    logits = decoder(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    optimizer.step()
    return float(loss), time.perf_counter() - start

first, _ = step()
second, seconds = step()
decoder.eval()
start = time.perf_counter()
out = greedy(decoder, ids[:1, :16], 64)
decode = time.perf_counter() - start
assert out.shape == (1, 64)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{decoder.parameter_count()} {first:.3f} {second:.3f} {seconds:.2f} {decode:.2f} {peak:.2f}")
"""


@pytest.mark.evidence
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["nope", "t5", "alibi", "rope:fraction=0.25:interleaved=true", "sinusoidal"])
def test_the_110m_preset_trains_a_step_and_continues_64_tokens(name, figure):
    """Batch 64 of 48 tokens, as copy at its published length; then 16 tokens continued by 64."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=True)
    count, first, second, seconds, decode, peak = done.stdout.split()
    figure(
        f"{name}: {int(count):,} parameters, loss {first} → {second}, step {seconds} s, "
        f"64 tokens {decode} s, peak {peak} GiB",
    )
    assert float(second) < float(first)


@pytest.mark.evidence
@pytest.mark.timeout(600)
def test_the_first_picture_in_four_minutes(tmp_path, figure):
    """`lengthwise compare` from an empty directory, 16 → 32: learned where it was seen, and nope reaches further."""
    command = ["compare", "copy:variant=same", "--encodings", "nope,rope", "--seeds", "3"]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lengthwise", *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    told = json.loads((tmp_path / "compare-copy.json").read_text())
    seen = {
        name: [sum(a for n, a in seed.items() if int(n) <= 16) / sum(int(n) <= 16 for n in seed) for seed in seeds]
        for name, seeds in told["curves"].items()
    }
    for line in done.stdout.splitlines():
        figure(line)
    figure(f"{seconds:.0f} s; seen {seen}")
    reaches = {row["encoding"]: row["reach"].partition(" [")[0] for row in told["ranks"]}
    assert seconds < 240
    assert all(value >= 0.99 for values in seen.values() for value in values)
    assert float(reaches["NoPE"].removeprefix("≥ ")) > float(reaches["RoPE"].removeprefix("≥ "))


@pytest.mark.evidence
@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoding", ["nope", "rope"])
def test_sort_is_learned_in_three_minutes(tmp_path, encoding, figure):
    """8 → 16, items with replacement, as published."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lengthwise", "train", "sort", "--encoding", encoding, "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    told = json.loads(done.stdout)
    figure(f"sort, {encoding}: seen {told['seen']}, unseen {told['unseen']}, reach {told['reach']}, {seconds:.0f} s")
    assert seconds < 180 and float(told["seen"]) >= 0.98
