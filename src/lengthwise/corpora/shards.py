"""Token shards on any fsspec path, read by ranges, each part checked against its checksum.

    CORPUS/tokenizer.json
    CORPUS/shards/00012-train.tokens      the ids of the documents, end to end, little-endian
    CORPUS/shards/00012-train.documents   parquet: key and number of tokens of each document
    CORPUS/shards/00012.json              written last: what the shard was made of, sizes, checksums
    CORPUS/corpus.json                    written when all shards are there

Tokens have a checksum per 256 KiB, so that a reader that wants a few thousand tokens of a shard on object storage reads
and checks that much, not the whole shard.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from lengthwise.checksums import Damaged, checksum, read_sealed, sealed
from lengthwise.corpora.documents import SPLITS
from lengthwise.corpora.tokens import FILE, Tokenizer
from lengthwise.folder import Folder, Missing, readable_errors, shipped_file_path
from lengthwise.spec import SpecError, digest

CHUNK = 2**18
"""Bytes of a shard that are read and checked at once."""
_HELD = 64
"""Chunks of a remote shard that a reader keeps in memory."""
CORPUS, SHARDS = "corpus.json", "shards"

Documents = Sequence[tuple[str, np.ndarray]]
"""The key and the ids of each document."""


def write_shard(folder: Folder, number: int, job: str, documents: Mapping[str, Documents], characters: int) -> None:
    """Write the documents of each split; the record comes last, so that a shard is there as a whole or not at all."""
    import polars as pl

    shards, splits = folder / SHARDS, dict[str, Any]()
    for split, listed in documents.items():
        ids = np.concatenate([own for _, own in listed])
        tokens, table = ids.astype(ids.dtype.newbyteorder("<")).tobytes(), io.BytesIO()
        keys = pl.Series("key", [key for key, _ in listed], dtype=pl.String)
        counts = pl.Series("tokens", [len(own) for _, own in listed], dtype=pl.Int64)
        pl.DataFrame([keys, counts]).write_parquet(table)
        shards.write(f"{number:05d}-{split}.tokens", tokens)
        shards.write(f"{number:05d}-{split}.documents", table.getvalue())
        splits[split] = {
            "tokens": len(ids),
            "documents": len(listed),
            "dtype": str(ids.dtype),
            "chunks": [_hash(tokens[begin : begin + CHUNK]) for begin in range(0, len(tokens), CHUNK)],
            "documents_checksum": checksum(table.getvalue()),
        }
    record = {"job": job, "characters": characters, "splits": splits}
    shards.write(f"{number:05d}.json", json.dumps(sealed(record)))


def shard_record(folder: Folder, number: int, job: str | None = None) -> dict[str, Any] | None:
    """Return the record of a shard; None if it is missing, damaged or of another job, so that it is made again."""
    try:
        record = read_sealed(folder / SHARDS, f"{number:05d}.json")
    except (Missing, Damaged):
        return None
    return record if job is None or record["job"] == job else None


def write_corpus(folder: Folder, jobs: Sequence[str], about: Mapping[str, Any]) -> None:
    """Write `corpus.json` once every shard is there; it has a hash of the tokens and documents of each."""
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for number, job in enumerate(jobs):
        record = shard_record(folder, number, job)
        if record is None:
            raise SpecError(f"shard {number} of {folder} is missing; prepare it again, finished shards are kept")
        for split, told in record["splits"].items():
            kept = {key: told[key] for key in ("tokens", "documents", "dtype")}
            splits[split].append({"shard": number, **kept, "content": _content(told)})
    folder.write(CORPUS, json.dumps(sealed({**about, "splits": splits}), indent=1))


def _content(record: Mapping[str, Any]) -> str:
    """A hash of the tokens and documents of one split of a shard."""
    return f"{digest(record['chunks'], record['documents_checksum'], bits=64):016x}"


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Shard:
    """The documents of one split in one shard, read by ranges."""

    def __init__(self, folder: Folder, number: int, split: str, tokens: int, content: str) -> None:
        self.folder, self.number, self.split = folder / SHARDS, number, split
        self.tokens, self.content = tokens, content
        self._held = OrderedDict[int, bytes]()
        self._checked = set[int]()

    @property
    def name(self) -> str:
        """The name of its files, without the suffix."""
        return f"{self.number:05d}-{self.split}"

    @cached_property
    def record(self) -> dict[str, Any]:
        """Sizes and checksums."""
        try:
            found = read_sealed(self.folder, f"{self.number:05d}.json")["splits"].get(self.split)
        except Missing:
            corpus = self.folder.parent
            made = f"; make them: lengthwise corpus {corpus}/files.parquet --to {corpus.leaf}"
            again = f"{made} --tokenizer {corpus}/{FILE}" if corpus.exists("files.parquet") else ""
            raise SpecError(f"the shards of {corpus} are not here{again}") from None
        if found is None or _content(found) != self.content:  # prepared again with other documents, and not finished
            raise Damaged(f"{self.folder}/{self.number:05d}.json is not of this corpus; prepare the corpus again")
        return found

    @cached_property
    def documents(self) -> tuple[list[str], np.ndarray]:
        """The key of each document, and where each begins; one more entry than documents."""
        import polars as pl

        data = self.folder.read(f"{self.name}.documents")
        if checksum(data) != self.record["documents_checksum"]:
            raise self._damaged(f"{self.name}.documents")
        table = pl.read_parquet(io.BytesIO(data))
        return table["key"].to_list(), np.concatenate([[0], table["tokens"].to_numpy().cumsum()]).astype(np.int64)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens from `start` up to `stop`, checked."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"{self.name} has {self.tokens} tokens, not {start} to {stop}")
        size = self._dtype.itemsize
        chunks = range(start * size // CHUNK, -(-stop * size // CHUNK))
        if (mapped := self._mapped) is not None:
            for number in chunks:
                if number not in self._checked:
                    self._check(number, mapped[number * CHUNK : (number + 1) * CHUNK].tobytes())
                    self._checked.add(number)
            return mapped[start * size : stop * size].view(self._dtype)
        data = b"".join(self._fetched(number) for number in chunks)
        return np.frombuffer(data, self._dtype, stop - start, start * size - chunks.start * CHUNK)

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.record["dtype"]).newbyteorder("<")

    @cached_property
    def _mapped(self) -> np.ndarray | None:
        """The bytes of a shard on the local disk, mapped into memory."""
        if self.folder.local is None:
            return None
        file = self.folder.local / f"{self.name}.tokens"
        with readable_errors("read", str(file)):
            if file.stat().st_size != self.tokens * self._dtype.itemsize:
                raise self._damaged(file.name)
            return np.memmap(file, np.uint8, "r")

    def _fetched(self, number: int) -> bytes:
        if number not in self._held:
            name = f"{self.name}.tokens"
            end = min((number + 1) * CHUNK, self.tokens * self._dtype.itemsize)
            with readable_errors("read", f"{self.folder}/{name}"):
                data: bytes = self.folder.fs.cat_file(f"{self.folder.path}/{name}", start=number * CHUNK, end=end)
            self._check(number, data)
            self._held[number] = data
            if len(self._held) > _HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        return self._held[number]

    def _check(self, number: int, data: bytes) -> None:
        if _hash(data) != self.record["chunks"][number]:
            raise self._damaged(f"{self.name}.tokens at byte {number * CHUNK:,}")

    def _damaged(self, name: str) -> Damaged:
        record = f"{self.folder}/{self.number:05d}.json"
        return Damaged(
            f"{self.folder}/{name} is damaged: it is not what was written; delete {record} and prepare the corpus "
            "again, which makes this shard alone"
        )


class Corpus:
    """A prepared corpus: `Corpus("s3://bucket/code").count("train")`."""

    def __init__(self, place: str | Folder) -> None:
        self.folder = Folder(place)
        shipped = shipped_file_path(str(place))
        if not self.folder.exists(CORPUS) and "/" not in str(place) and (shipped / CORPUS).is_file():
            self.folder = Folder(shipped)  # without shards: enough to plan a study and to report it
        try:
            self.record = read_sealed(self.folder, CORPUS)
        except Missing:
            raise SpecError(
                f"there is no prepared corpus in {str(place)!r}; make one: lengthwise corpus SOURCE --to {place}"
            ) from None

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in the order of their documents."""
        listed = self.record["splits"][split]
        return [Shard(self.folder, one["shard"], split, one["tokens"], one["content"]) for one in listed]

    def count(self, split: str, what: str = "tokens") -> int:
        """Return how many tokens or documents a split has."""
        return sum(one[what] for one in self.record["splits"][split])

    @property
    def content(self) -> str:
        """A hash of all tokens and document boundaries, in their order, and of the tokenizer."""
        contents = {split: [one["content"] for one in listed] for split, listed in self.record["splits"].items()}
        return f"{digest(contents, self.record['tokenizer'], bits=64):016x}"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        found = Tokenizer(self.folder.read(FILE))
        if found.digest != self.record["tokenizer"]:
            raise Damaged(f"{self.folder}/{FILE} is not the tokenizer of this corpus")
        return found
