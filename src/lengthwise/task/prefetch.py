"""A process that makes training examples while another trains: `python -m lengthwise.task.prefetch TASK SEED`.

It reads `START STOP` lines and answers each with a header line of JSON and the block's arrays as raw bytes. It needs no
torch, and a block is the same in whichever process it is made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO

import numpy as np

from lengthwise.spec import SpecError
from lengthwise.task.base import Task
from lengthwise.task.block import Block, training_block

ARRAYS = ("ids", "starts_N", "prompt_lengths_N", "lengths_N", "indices_N")


class Prefetcher:
    """Blocks of training examples, the next one made by another process while this one is used.

    `blocks` of `Prefetcher("copy", task, seed, blocks)` lists the (start, stop) that will be requested, in order. If
    the other process fails, the same blocks are made in this process, only later.
    """

    def __init__(self, spec: str, task: Task, seed: int, blocks: list[tuple[int, int]]) -> None:
        self.task, self.seed = task, seed
        self._coming = blocks[1:]  # the first is made in this process, while the other one starts up
        self._asked: list[tuple[int, int]] = []
        self._held: dict[tuple[int, int], Block] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lengthwise.task.prefetch", spec, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C should reach only the training process
        )
        self._ask()

    def __call__(self, start: int, stop: int) -> Block:
        """Return training examples start, ..., stop − 1."""
        wanted = (start, stop)
        if wanted not in self._held:
            block = self._take() if self._asked[:1] == [wanted] else None
            self._held = {wanted: training_block(self.task, start, stop, self.seed) if block is None else block}
            self._ask()
        return self._held[wanted]

    def close(self) -> None:
        """End the other process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _ask(self) -> None:
        if not self._coming or self._asked:
            return
        start, stop = self._coming.pop(0)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{start} {stop}\n".encode())
            self._process.stdin.flush()
            self._asked.append((start, stop))
        except OSError:
            self._coming.clear()

    def _take(self) -> Block | None:
        self._asked.clear()
        assert self._process.stdout is not None
        try:
            header = json.loads(self._process.stdout.readline())
            return Block(**{name: _array(self._process.stdout, *header[name]) for name in ARRAYS})
        except (ValueError, OSError, TypeError, KeyError):
            self._coming.clear()
            return None


def _array(stream: IO[bytes], kind: str, count: int) -> np.ndarray:
    data = stream.read(np.dtype(kind).itemsize * count)
    return np.frombuffer(bytearray(data), dtype=kind, count=count)


def serve_blocks(task: Task, seed: int, requests: IO[bytes], responses: IO[bytes]) -> None:
    """Answer requests until the input ends."""
    for line in requests:
        start, stop = map(int, line.split())
        block = training_block(task, start, stop, seed)
        arrays = {name: getattr(block, name) for name in ARRAYS}
        header = {name: (array.dtype.str, len(array)) for name, array in arrays.items()}
        responses.write(json.dumps(header).encode() + b"\n")
        for array in arrays.values():
            responses.write(array.tobytes())
        responses.flush()


if __name__ == "__main__":
    from lengthwise.task import build_task

    os.nice(5)  # the training process has priority
    # Always buffered: with PYTHONUNBUFFERED, a write to sys.stdout.buffer that a signal interrupts loses its rest.
    answers, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr  # a user's task may print, which is no answer
    try:
        serve_blocks(build_task(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, answers)
    except (SpecError, OSError) as error:
        sys.exit(str(error))
