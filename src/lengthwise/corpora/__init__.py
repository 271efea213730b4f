"""How long the documents of a corpus are: read, counted, drawn. numpy only; polars and matplotlib when they are needed.

As Figure A.1 of Kazemnejad et al. 2023 (arXiv:2305.19466) does for instruction data, for anybody's own files:
`measure(map(words, texts(Path("corpus.jsonl"))), trained=[512])`.
"""

from __future__ import annotations

from lengthwise.corpora.drawing import bars, figure
from lengthwise.corpora.lengths import Histogram, Lengths, measure, words
from lengthwise.corpora.reading import texts

__all__ = ["Histogram", "Lengths", "bars", "figure", "measure", "texts", "words"]
