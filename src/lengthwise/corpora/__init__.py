"""Measure and plot the document lengths of a corpus. Needs numpy only; polars and matplotlib are imported on demand.

It does for your own files what Figure A.1 of Kazemnejad et al. 2023 (arXiv:2305.19466) does for instruction data:
`measure(map(count_words, texts(Path("corpus.jsonl"))), trained=[512])`.
"""

from __future__ import annotations

from lengthwise.corpora.drawing import bars, figure
from lengthwise.corpora.lengths import Histogram, LengthStatistics, count_words, measure
from lengthwise.corpora.reading import texts

__all__ = ["Histogram", "LengthStatistics", "bars", "count_words", "figure", "measure", "texts"]
