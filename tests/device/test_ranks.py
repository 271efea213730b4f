"""Several processes: DDP on the pretend accelerator, and sharding over ranks that do not exist."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lengthwise.model import Decoder, preset
from lengthwise.training.parallel import DistributedProcesses, local_shard, parameters_of_first_rank

ROOT = Path(__file__).parents[2]
BODY = """
import json, os, sys
import torch
from lengthwise.device import choose_device
from lengthwise.training.parallel import distributed_processes
from tests.device.pretend import KIND, Accelerator
from tests.device.test_train import loop

torch.set_num_threads(1)
with Accelerator(), distributed_processes(device=choose_device(KIND).device) as team:
    made = loop("rope", device=KIND, team=team, steps=6)
    told = [(one.loss, one.norm) for one in made]
    if team.first:
        print(json.dumps(told), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_two_ranks_on_the_accelerator_train_as_one_on_the_cpu(tmp_path):
    from tests.device.test_train import loop

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BODY],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told[0][1][-3000:] + told[1][1][-3000:]
    expected = [(one.loss, one.norm) for one in loop("rope", steps=6)]
    found = json.loads(told[0][0].splitlines()[-1])
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-4)
    assert [norm for _, norm in found] == pytest.approx([norm for _, norm in expected], rel=1e-3)


@pytest.fixture
def ranks(request):
    """A group of so many ranks, of which only the first exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [8, 64], indirect=True)
@pytest.mark.parametrize("encoding", ["rope", "t5", "fire", "learned"])
def test_a_sharded_model_holds_its_part_on_each_rank(ranks, encoding):
    """Sharded on meta; only the part of the first rank is made."""
    config = preset("laptop", vocabulary=33, width=48, heads=3, layers=3, feed_forward_width=100)
    whole = [tuple(p.shape) for p in Decoder(config, encoding).parameters()]
    with torch.device("meta"):
        made = Decoder(config, encoding)
    module = DistributedProcesses(0, ranks, shard=True).wrap(made)
    made.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in made.parameters():
            local_shard(parameter).fill_(0.01)
    held = sum(local_shard(p).numel() for p in made.parameters())
    assert held == parameters_of_first_rank(whole, ranks)
    assert sum(map(math.prod, whole)) / ranks <= held < sum(map(math.prod, whole))
    optimizer = torch.optim.AdamW(made.parameters())
    module(torch.zeros(2, 7, dtype=torch.long)).sum().backward()
    optimizer.step()
    moments = sum(local_shard(state["exp_avg"]).numel() for state in optimizer.state.values())
    assert moments == held


@pytest.mark.parametrize("name", ["laptop", "paper"])
@pytest.mark.parametrize("encoding", ["nope", "rope", "t5", "alibi"])
def test_presets_and_a_large_model_have_their_shapes_on_meta(name, encoding):
    large = {"layers": 24, "width": 2048, "heads": 16, "head_width": 128, "feed_forward_width": 8192}
    with torch.device("meta"):
        made = Decoder(preset(name, vocabulary=50_000, **(large if name == "paper" else {})), encoding)
    assert name == "laptop" or made.parameter_count() > 1.2e9
    logits = made(torch.zeros(2, 32, dtype=torch.long, device="meta"))
    logits.sum().backward()
    assert logits.shape == (2, 32, 50_000) and all(p.grad is not None for p in made.parameters())


def test_the_published_model_for_code_has_its_parameters_on_every_number_of_ranks(figure):
    """Kazemnejad et al. 2023, appendix F; the numbers of docs/reference/scale.md."""
    with torch.device("meta"):
        made = Decoder(preset("1.3B-code", vocabulary=49_152), "nope")
    shapes = [tuple(parameter.shape) for parameter in made.parameters()]
    assert sum(map(math.prod, shapes)) == made.parameter_count() == 1_308_673_024
    held = {ranks: parameters_of_first_rank(shapes, ranks) for ranks in (8, 16, 64)}
    page = (ROOT / "docs" / "reference" / "scale.md").read_text()
    for ranks, many in held.items():
        assert f"| {many:,} |" in page
        figure(f"1.3B-code on {ranks} ranks: {many:,} parameters each, {16 * many / 2**30:.1f} GiB")
