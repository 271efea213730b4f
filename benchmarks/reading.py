"""Ways to read token rows for training: ours (memory-mapped arrays), grain and litdata, side by side on one corpus.

    python benchmarks/reading.py CORPUS

It prints tokens per second, whether a reader that is stopped goes on with the same rows, whether 1, 2 and 4 ranks
together read the same rows in the same order, and the lines that each way takes here; then what ours and grain's order
ask of an object store (moto on this machine). grain and litdata are no dependencies of ours; install them, with
moto[server] and s3fs, where this is run.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.corpora.order import Mixture, Rows, cut_row
from lengthwise.corpora.shards import Corpus

CONTEXT, BATCH, STEPS, STOP, ON_S3 = 128, 32, 400, 150, 60
Batches = Iterator[np.ndarray]


def ours(corpus: Corpus, rank: int, ranks: int, step: int = 0) -> Batches:
    rows = Mixture([Rows(corpus, "train", CONTEXT, 0)], [1.0])
    for number in range(step, STEPS):
        indices = range(number * BATCH + rank, (number + 1) * BATCH, ranks)
        yield np.stack([cut_row(*rows.place(index), CONTEXT)[0] for index in indices])


class _Source:
    """All rows of a corpus by number, for grain."""

    def __init__(self, corpus: Corpus) -> None:
        self.shards = corpus.shards("train")
        counts = [(shard.tokens - 1) // CONTEXT for shard in self.shards]
        self.ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> np.ndarray:
        number = int(np.searchsorted(self.ends, index, side="right"))
        first = int(self.ends[number - 1]) if number else 0
        start = (index - first) * CONTEXT
        return self.shards[number].read(start, start + CONTEXT + 1).astype(np.int64)


def grain_map(corpus: Corpus, rank: int, ranks: int, step: int = 0) -> Batches:
    import grain  # pyrefly: ignore[missing-import]

    rows = grain.MapDataset.source(_Source(corpus)).shuffle(seed=0)[rank::ranks].batch(BATCH // ranks)
    for number in range(step, STEPS):
        yield rows[number]


def grain_loader(corpus: Corpus, rank: int, ranks: int, step: int = 0) -> Batches:
    import grain.python as grain  # pyrefly: ignore[missing-import]

    source = _Source(corpus)
    options = grain.ShardOptions(shard_index=rank, shard_count=ranks, drop_remainder=True)
    sampler = grain.IndexSampler(len(source), shard_options=options, shuffle=True, seed=0, num_epochs=1)
    loader: Any = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(BATCH // ranks)])
    reading = iter(loader)
    if step:
        before = iter(loader)
        for _ in range(step):
            next(before)
        reading.set_state(before.get_state())
    for number, batch in enumerate(reading, step):
        if number == STEPS:
            return
        yield batch


def litdata(corpus: Corpus, rank: int, ranks: int, step: int = 0) -> Batches:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # pyrefly: ignore[missing-import]
    from litdata.utilities.env import _DistributedEnv  # pyrefly: ignore[missing-import]

    # It copies the tokens into chunks of its own first.
    rows: Any = StreamingDataset(_LIT[0], item_loader=TokensLoader(block_size=CONTEXT + 1), shuffle=True, seed=0)
    rows.distributed_env = _DistributedEnv(world_size=ranks, global_rank=rank, num_nodes=1)
    loader: Any = StreamingDataLoader(rows, batch_size=BATCH // ranks)
    if step:
        before = iter(loader)
        for _ in range(step):
            next(before)
        state = loader.state_dict()
        rows = StreamingDataset(_LIT[0], item_loader=TokensLoader(block_size=CONTEXT + 1), shuffle=True, seed=0)
        rows.distributed_env = _DistributedEnv(world_size=ranks, global_rank=rank, num_nodes=1)
        loader = StreamingDataLoader(rows, batch_size=BATCH // ranks)
        loader.load_state_dict(state)
    for number, batch in enumerate(loader, step):
        if number == STEPS:
            return
        yield np.asarray(batch)


_LIT: list[str] = []


def _documents(place: str) -> Iterator[Any]:
    import torch

    corpus = Corpus(place)
    for shard in corpus.shards("train"):
        yield torch.from_numpy(shard.read(0, shard.tokens).astype(np.int64))


def _prepare_litdata(place: str, folder: str) -> float:
    from litdata import TokensLoader, optimize  # pyrefly: ignore[missing-import]

    began = time.perf_counter()
    optimize(
        fn=_documents,
        inputs=[place],
        output_dir=folder,
        chunk_size=(CONTEXT + 1) * 4096,
        item_loader=TokensLoader(),
        num_workers=1,
    )
    _LIT.append(folder)
    return time.perf_counter() - began


def _same(a: Batches, b: list[np.ndarray]) -> bool:
    found = list(a)
    return len(found) == len(b) and all(np.array_equal(x, y) for x, y in zip(found, b, strict=True))


def _interleaved(reader: Callable[..., Batches], corpus: Corpus, ranks: int) -> list[np.ndarray]:
    """The batches of all ranks, row r of a batch from rank r mod ranks."""
    parts = [list(reader(corpus, rank, ranks)) for rank in range(ranks)]
    return [np.stack(batches, 1).reshape(BATCH, -1) for batches in zip(*parts, strict=True)]


def main(place: str) -> None:
    """Print a line for each way of reading."""
    corpus = Corpus(place)
    with tempfile.TemporaryDirectory() as folder:
        readers: dict[str, Callable[..., Batches]] = {"memory-mapped arrays (ours)": ours}
        for name, reader in (("grain, MapDataset", grain_map), ("grain, DataLoader", grain_loader)):
            try:
                next(iter(reader(corpus, 0, 1)))
                readers[name] = reader
            except ImportError as error:
                print(f"{name}: {error}")
        try:
            seconds = _prepare_litdata(place, str(Path(folder) / "lit"))
            print(f"litdata copies the corpus into chunks of its own in {seconds:.1f} s")
            readers["litdata"] = litdata
        except ImportError as error:
            print(f"litdata: {error}")
        times: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(3):
            for name, reader in readers.items():
                began = time.perf_counter()
                count = sum(1 for _ in reader(corpus, 0, 1))
                times[name].append(count * BATCH * CONTEXT / (time.perf_counter() - began))
        for name, reader in readers.items():
            alone = list(reader(corpus, 0, 1))
            resumed = _same(reader(corpus, 0, 1, STOP), alone[STOP:])
            ranks = [_same(iter(_interleaved(reader, corpus, many)), alone) for many in (2, 4)]
            lines = len(inspect.getsource(reader).splitlines())
            speed = sorted(times[name])[1]
            print(
                f"{name}: {speed / 1e6:.2f} M tokens/s; resumed exactly: {resumed}; "
                f"2 and 4 ranks read the same batches: {ranks}; {lines} lines of glue here"
            )


def on_s3(place: str) -> None:
    """Print how many requests of an object store the first rows take, in our order and in grain's."""
    import boto3
    from moto.server import ThreadedMotoServer

    from lengthwise.corpora.shards import Shard

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a"}
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    for path in Path(place).rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "bucket", f"corpus/{path.relative_to(place)}")
    logging.disable(logging.WARNING)
    asked: list[int] = []
    check = Shard._check
    Shard._check = lambda self, number, data: (asked.append(len(data)), check(self, number, data))[1]
    try:
        for name, reader in (("ours", ours), ("grain, MapDataset", grain_map)):
            asked.clear()
            began, rows = time.perf_counter(), reader(Corpus("s3://bucket/corpus"), 0, 1)
            for _ in range(ON_S3):
                next(rows)
            seconds, many = time.perf_counter() - began, ON_S3 * BATCH
            read, wanted = sum(asked) / 1e6, many * CONTEXT * 2 / 1e6
            print(f"S3, {name}: {len(asked)} requests, {read:.1f} MB for {wanted:.1f} MB of rows, {seconds:.1f} s")
    finally:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
    on_s3(sys.argv[1])
