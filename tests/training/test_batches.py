"""What a model sees: a pure function of task, training, seeds and step."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from lengthwise.encoding import build_positions
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.task.prefetch import Prefetcher
from lengthwise.training.batches import on_demand_blocks, training_batches, windows
from lengthwise.training.settings import Seeds, training_preset

CONSECUTIVE = build_positions("consecutive")


def supply(task, seed=0):
    return on_demand_blocks(lambda start, stop: training_block(task, start, stop, seed))


def rows(feed):
    return [tuple(ids[:count].tolist()) for ids, count in zip(feed.ids_BT, feed.tokens_B, strict=True)]


def fed(task, training, seeds=None, positions=CONSECUTIVE, first=0, last=None):
    seeds = seeds or Seeds.of(0)
    return list(training_batches(supply(task, seeds.data), training, positions, seeds, first, last))


@pytest.mark.parametrize("name", ["addition", "scan", "copy:variant=same:longest=16"])
def test_every_window_holds_exactly_the_examples_of_mixed_batches(name, figure):
    task = build_task(name)
    sizes = {"steps": 70, "batch_size": 16, "window": 32}
    sorted_, mixed = (fed(task, training_preset("laptop", batching=kind, **sizes)) for kind in ("length", "mixed"))
    assert len(sorted_) == len(mixed) == 70
    for start in range(0, 70, 32):
        window = [Counter(row for feed in part[start : start + 32] for row in rows(feed)) for part in (sorted_, mixed)]
        assert window[0] == window[1]
        lengths = [
            np.sort(np.concatenate([feed.lengths_B for feed in part[start : start + 32]])) for part in (sorted_, mixed)
        ]
        assert (lengths[0] == lengths[1]).all()
    # Padding is what it is for: the share of positions that are padding.
    waste = [1 - sum(f.tokens_B.sum() for f in part) / sum(f.ids_BT.numel() for f in part) for part in (sorted_, mixed)]
    figure(f"padding, {name}: {waste[0]:.1%} in length-aware batches, {waste[1]:.1%} in mixed ones")
    assert waste[0] < waste[1] / 2


def test_batches_do_not_come_in_order_of_length():
    task = build_task("addition")
    means = [feed.tokens_B.mean() for feed in fed(task, training_preset("laptop", steps=32, batch_size=16))]
    assert means != sorted(means)


def test_a_window_is_no_larger_than_a_block():
    training = training_preset("laptop", steps=40, batch_size=4096)
    assert training.window_steps == 16 and list(windows(training, 20)) == [(16, 16), (32, 8)]


def test_a_batch_depends_on_its_step_alone():
    task, training = build_task("addition"), training_preset("laptop", steps=40, batch_size=8, window=16)
    whole = fed(task, training)
    for first in (0, 1, 15, 16, 17, 39):
        for one, other in zip(fed(task, training, first=first), whole[first:], strict=True):
            assert torch.equal(one.ids_BT, other.ids_BT)


def test_each_stream_changes_only_what_it_should():
    task, training = build_task("addition"), training_preset("laptop", steps=32, batch_size=8)
    base = fed(task, training)
    order = fed(task, training, Seeds.of(0, order=1))
    data = fed(task, training, Seeds.of(0, data=1))
    for other in (Seeds.of(0, init=1), Seeds.of(0, dropout=1)):
        assert all(torch.equal(a.ids_BT, b.ids_BT) for a, b in zip(base, fed(task, training, other), strict=True))
    assert [rows(feed) for feed in order] != [rows(feed) for feed in base]
    assert Counter(r for f in order for r in rows(f)) == Counter(r for f in base for r in rows(f))
    assert not {r for f in data for r in rows(f)} & {r for f in base for r in rows(f) if len(r) > 12}


def test_random_positions_are_keyed_by_the_example_not_by_its_batch():
    task = build_task("addition")
    positions = build_positions("randomized:limit=64")
    found = []
    for batching in ("length", "mixed"):
        training = training_preset("laptop", steps=8, batch_size=8, window=8, batching=batching)
        seen = {}
        for feed in fed(task, training, positions=positions):
            for row, places, count in zip(rows(feed), feed.positions_BT, feed.tokens_B, strict=True):
                seen[row] = tuple(places[:count].tolist())
        found.append(seen)
    assert found[0] == found[1]
    assert all(list(places) == sorted(set(places)) for places in found[0].values())


def test_another_process_supplies_the_same_blocks():
    task, training = build_task("addition"), training_preset("laptop", steps=40, batch_size=64, window=16)
    blocks = [(begin * 64, (begin + steps) * 64) for begin, steps in windows(training)]
    supplier = Prefetcher("addition", task, 3, blocks)
    try:
        for start, stop in blocks:
            here, there = training_block(task, start, stop, 3), supplier(start, stop)
            for name in ("ids", "starts_N", "prompt_lengths_N", "lengths_N", "indices_N"):
                assert (getattr(here, name) == getattr(there, name)).all()
    finally:
        supplier.close()


def test_a_supplier_that_dies_is_replaced_by_oneself():
    task, training = build_task("addition"), training_preset("laptop", steps=64, batch_size=64, window=16)
    blocks = [(begin * 64, (begin + steps) * 64) for begin, steps in windows(training)]
    supplier = Prefetcher("addition", task, 0, blocks)
    supplier(*blocks[0])
    supplier._process.kill()
    for start, stop in blocks[1:]:
        assert (supplier(start, stop).ids == training_block(task, start, stop, 0).ids).all()
    supplier.close()


def test_a_supplier_asked_out_of_order_still_gives_what_is_asked():
    task = build_task("parity")
    supplier = Prefetcher("parity", task, 0, [(0, 64), (64, 128), (128, 192)])
    try:
        for start, stop in [(64, 128), (0, 64), (128, 192), (64, 128)]:
            assert (supplier(start, stop).ids == training_block(task, start, stop, 0).ids).all()
    finally:
        supplier.close()


def test_no_loss_on_the_prompt_and_all_of_the_answer():
    task = build_task("addition")
    for feed in islice(fed(task, training_preset("laptop", steps=2, batch_size=8)), 2):
        for ids, mask, count in zip(feed.ids_BT, feed.loss_BT, feed.tokens_B, strict=True):
            said = task.vocabulary.read(ids[:count].tolist())
            begin = said.index("=") + 1
            assert not mask[:begin].any() and mask[begin:count].all() and not mask[count:].any()


@pytest.mark.slow
def test_a_prefetcher_that_is_stopped_and_continued_while_it_writes_loses_nothing():
    """With PYTHONUNBUFFERED a signal once cut a write short, and the training process waited for the rest forever."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "lengthwise.task.prefetch", "copy:longest=16", "0"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        process.stdin.write(b"0 20000\n")
        process.stdin.flush()
        header = json.loads(process.stdout.readline())  # from now on it writes, and soon waits for a reader
        for _ in range(3):
            time.sleep(0.3)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.1)
            process.send_signal(signal.SIGCONT)
            process.stdout.read(100_000)
        process.stdin.close()  # it ends when it has answered
        rest = process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    size = sum(np.dtype(kind).itemsize * count for kind, count in header.values())
    assert size > 1_000_000 and len(rest) == size - 300_000
