"""`prepare_corpus`: text files to token shards that language models are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.progress import Say, progress

if TYPE_CHECKING:
    from lengthwise.corpora.shards import Corpus


@dataclass(frozen=True, repr=False)
class PreparedCorpus(Display):
    """A corpus that is ready to be trained on: `lw.train(f"text:path={corpus.folder}", "rope")`."""

    corpus: Corpus
    new_shards: int
    """Shards that this call made; the others were there before."""
    tokens_per_second: float | None
    """None if no shard had to be made."""

    @property
    def folder(self) -> str:
        """Where it is."""
        return str(self.corpus.folder)

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each split, and how fast it was made."""
        counts = {split: self.corpus.record["splits"][split] for split in self.corpus.record["splits"]}
        yield Part(
            [
                {"split": split, "documents": self.corpus.count(split, "documents")}
                | {"tokens": self.corpus.count(split), "shards": len(shards)}
                for split, shards in counts.items()
            ]
        )
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:,.0f} tokens per second"
        shards = "1 new shard" if self.new_shards == 1 else f"{self.new_shards} new shards"
        vocabulary = self.corpus.record["vocabulary"]
        yield Part(f"{shards}{speed}; {vocabulary:,} tokens in the vocabulary; content {self.corpus.content}")
        yield Part(f"train on it: lengthwise train text:path={self.folder} --encoding rope --model nano", wrap=False)

    def plain(self) -> dict[str, Any]:
        """Counts, content hash and speed."""
        counted = {what: self._counts(what) for what in ("documents", "tokens")}
        told = {"folder": self.folder, "content": self.corpus.content, "new_shards": self.new_shards}
        return {**told, "tokens_per_second": self.tokens_per_second, **counted}

    def _counts(self, what: str) -> dict[str, int]:
        return {split: self.corpus.count(split, what) for split in self.corpus.record["splits"]}


def prepare_corpus(
    source: str,
    to: str,
    *,
    tokenizer: str | None = None,
    vocabulary: int = 4096,
    suffixes: Sequence[str] = (),
    fields: Sequence[str] | None = None,
    validation: float = 0.01,
    test: float = 0.05,
    split_by_folder: bool = False,
    shard_mb: int = 64,
    most_mb: int | None = None,
    workers: int | None = None,
    ray: bool | None = None,
    say: Say | None = None,
) -> PreparedCorpus:
    """Tokenize text into shards on a disk or an object store; called again, it makes only what is missing.

    `source` is a folder or glob of text or source files (JSON lines and parquet have a document per row), a Hugging
    Face dataset (`dataset:FOLDER` or `dataset:NAME:SPLIT`), the list of files of another corpus (`files.parquet`), or
    `python-code`: the Python files of this machine, up to `most_mb`. Without `tokenizer`, a byte-level BPE of
    `vocabulary` tokens is trained on training documents. `validation` and `test` are shares of the documents, or, with
    `split_by_folder`, of the first folders in their paths. It runs on Ray Data where that is installed, in processes
    otherwise; `ray=False` never uses Ray.

    >>> from pathlib import Path
    >>> Path("texts").mkdir()
    >>> for n in range(40):
    ...     _ = Path(f"texts/{n}.txt").write_text(f"document {n} says {n * n}. " * 50)
    >>> corpus = prepare_corpus("texts", "my-corpus", vocabulary=300, test=0.2, validation=0.2, ray=False)
    """
    from lengthwise.corpora.prepare import prepare

    with progress(say) as tell:
        made = prepare(
            source,
            to,
            tokenizer=tokenizer,
            vocabulary=vocabulary,
            suffixes=suffixes,
            fields=fields,
            validation=validation,
            test=test,
            split_by_folder=split_by_folder,
            shard_size=shard_mb * 1_000_000,
            most_bytes=None if most_mb is None else most_mb * 1_000_000,
            workers=workers,
            ray=ray,
            say=tell,
        )
    speed = made.tokens / made.seconds if made.new_shards else None
    return PreparedCorpus(made.corpus, made.new_shards, speed)
