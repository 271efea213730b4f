"""Measure and plot the document lengths of a corpus. Needs numpy only; polars and matplotlib are imported on demand.

It does for your own files what Figure A.1 of Kazemnejad et al. 2023 (arXiv:2305.19466) does for instruction data:
`measure_lengths(map(count_words, read_texts(Path("corpus.jsonl"))), training_lengths=[512])`.
"""

from __future__ import annotations

from lengthwise.corpora.drawing import histogram_bars, write_histogram_figure
from lengthwise.corpora.lengths import Histogram, LengthStatistics, count_words, measure_lengths
from lengthwise.corpora.reading import read_texts

__all__ = [
    "Histogram",
    "LengthStatistics",
    "count_words",
    "histogram_bars",
    "measure_lengths",
    "read_texts",
    "write_histogram_figure",
]
