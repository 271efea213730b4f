"""Count a run's tokens, matrix products and parameters. The counts do not depend on the seed and are cached."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Literal, cast

from lengthwise.spec import Spec
from lengthwise.task.sets import BLOCK

if TYPE_CHECKING:
    from lengthwise.model import DecoderConfig
    from lengthwise.task.text import Text
    from lengthwise.training.settings import Training

SAMPLE = 4096
"""Training examples drawn to estimate the number of tokens of a batch."""
PLACED = 64
"""Training examples used to time the computation of positions."""
TESTED = 4
"""Examples drawn of each tested length, to measure their tokens and the time to draw them."""
FAILED_AT = 0.5
"""All answers at unseen lengths are assumed to go wrong at this fraction, and are decoded from there to the limit."""
UNSEEN = ("test_unseen", "test_far")
TEXT_ROW = 1e-4
"""Seconds to read one row of a corpus from a local disk."""
HOOKED = 6
"""Floats held per attention score if an encoding hooks into scores; estimates .75 to .97 of measured memory peaks."""


@dataclass(frozen=True)
class Workload:
    """The tokens that go through a model, summed over forward calls."""

    calls: float
    tokens: float
    """Input tokens, including padding."""
    pairs: float
    """Pairs of a query and a key."""
    targets: float
    """Tokens for which the output head computes logits."""
    said: float = 0.0
    """Tokens that are decoded."""

    def __add__(self, other: Workload) -> Workload:
        return Workload(*(a + b for a, b in zip(self.sums(), other.sums(), strict=True)))

    def times(self, factor: float) -> Workload:
        """Return the workload with all its counts (calls, tokens, pairs, ...) multiplied by `factor`."""
        return Workload(*(factor * part for part in self.sums()))

    def sums(self) -> tuple[float, ...]:
        """Return the fields in order."""
        return self.calls, self.tokens, self.pairs, self.targets, self.said


@dataclass(frozen=True)
class DecoderCostModel:
    """What decides the cost of a decoder and its encodings."""

    config: DecoderConfig
    parameters: int
    path: str
    """How scores are computed: `plain`, `biased` (fixed bias), `dense` (learned) or `hooked` (encoding sees scores)."""

    @classmethod
    def of(cls, config: DecoderConfig, specs: tuple[Spec, ...]) -> DecoderCostModel:
        """Build from a config and one encoding for all layers, or one for each layer; no decoder is built."""
        return decoder_cost_model(config, specs)

    def flops(self, workload: Workload, training: bool) -> float:
        """Return the FLOPs of all matrix products; in training, the backward pass is twice the forward pass."""
        config, passes = self.config, 3 if training else 1
        inner, matrices = config.heads * config.head_width, 3 if config.feed_forward == "swiglu" else 2
        layer = 4 * config.width * inner + matrices * config.width * config.feed_forward_width
        per_layer = workload.tokens * layer + 2 * workload.pairs * inner
        return 2.0 * passes * (per_layer * config.layers + workload.targets * config.width * config.vocabulary)

    def activation_bytes(self, rows_tokens: float, pairs: float, targets: float) -> float:
        """Return the bytes of activations that a batch's forward pass keeps for its backward pass."""
        config, inner = self.config, self.config.heads * self.config.head_width
        wide = (4 if config.feed_forward == "swiglu" else 2) * config.feed_forward_width
        numbers = rows_tokens * (4 * config.width + 4 * inner + wide)
        if config.dropout:
            numbers += rows_tokens * (2 * config.width + 1.25 * config.feed_forward_width)
        if self.path in {"dense", "hooked"} or config.attention_dropout:
            numbers += pairs * config.heads * (HOOKED if self.path == "hooked" else 1)
            numbers += pairs * config.heads * 1.25 * bool(config.attention_dropout)
        return 4 * (numbers * config.layers + 3 * targets * config.vocabulary)


@lru_cache(maxsize=4096)
def decoder_cost_model(config: DecoderConfig, specs: tuple[Spec, ...]) -> DecoderCostModel:
    from lengthwise.encoding import build_encoding
    from lengthwise.encoding.base import SEES_SCORES
    from lengthwise.model.temperature import build_temperature
    from lengthwise.normaliser import build_normaliser

    width, inner, bias = config.width, config.heads * config.head_width, int(config.biases)
    matrices = 3 if config.feed_forward == "swiglu" else 2
    norm = 0 if config.norm == "none" else width * (2 if config.norm == "layer" and config.biases else 1)
    attention = 4 * width * inner + bias * (3 * inner + width)
    feed_forward = matrices * width * config.feed_forward_width
    feed_forward += bias * ((matrices - 1) * config.feed_forward_width + width)
    head = 0 if config.tied else config.vocabulary * (width + bias)
    count = config.vocabulary * width + config.layers * (attention + feed_forward + 2 * norm) + norm + head
    listed = specs * config.layers if len(specs) == 1 else specs
    built = {spec: build_encoding(spec, config.geometry) for spec in dict.fromkeys(listed)}
    for spec, encoding in built.items():
        own = sum(part.numel() for part in encoding.parameters() if part.requires_grad)
        count += own * (1 if encoding.shared else listed.count(spec))
    normaliser, temperature = (
        build_normaliser(config.normaliser, config.geometry),
        build_temperature(config.temperature, config.geometry),
    )
    acting = sum(temperature.acts(built[spec]) for spec in listed)
    count += config.layers * sum(part.numel() for part in normaliser.parameters())
    count += acting * sum(part.numel() for part in temperature.parameters())
    parts = list(built.values())
    hooked = any(part.overrides(hook) for part in parts for hook in SEES_SCORES)
    biased = [part for part in parts if part.adds_bias()]
    learns = any(part.requires_grad for encoding in biased for part in encoding.parameters())
    dense = learns or normaliser.overrides("weigh") or (temperature.scales_bias and biased and acting)
    path = "hooked" if hooked else "dense" if dense else "biased" if biased else "plain"
    return DecoderCostModel(config, count, path)


@dataclass(frozen=True)
class TrainingStepSize:
    """The size of a training step: its mean, and the largest part of a batch."""

    step: Workload
    counted: float
    """Tokens without padding."""
    most: tuple[float, float, float]
    """Tokens, pairs and targets of the largest gradient-accumulation part of a batch."""
    example_seconds: float
    """Seconds to make one example on this machine."""


def training_step_size(task: Spec, training: Training) -> TrainingStepSize:
    """Return the mean and the largest size of a training step."""
    if task.name == "text":
        return _text_step_size(task, training)
    steps = min(training.steps, ceil(BLOCK / training.batch_size))
    return _estimate(task, steps, training.batch_size, training.batching, training.window, training.accumulation)


def _text_step_size(task: Spec, training: Training) -> TrainingStepSize:
    """The size of a step of a language model, whose rows all have the tokens of its context."""
    text = _text(task)
    rows, tokens = training.batch_size, float(text.longest)
    largest = ceil(rows / training.accumulation)
    step = Workload(training.accumulation, rows * tokens, rows * tokens**2, float(rows * text.targets))
    most = (largest * tokens, largest * tokens**2, float(largest * text.targets))
    return TrainingStepSize(step, rows * tokens, most, TEXT_ROW)


def _text(task: Spec) -> Text:
    from lengthwise.task import build_task

    return cast("Text", build_task(task))


def _text_sets(text: Text) -> tuple[EvaluationSetSize, ...]:
    """The contexts at which a language model is evaluated, and its validation; nothing is decoded."""
    from lengthwise.evaluation.text import DOCUMENTS, TARGETS

    validated = EvaluationSetSize("validated", BLOCK, text.longest, text.targets, 0, 0.0, TEXT_ROW)
    if text.objective == "masked":
        return EvaluationSetSize("test_seen", DOCUMENTS, text.longest, text.targets, 0, 0.0, TEXT_ROW), validated
    many = DOCUMENTS * TARGETS
    sets = [EvaluationSetSize("test_seen", many, one, 1, 0, 0.0, TEXT_ROW) for one in text.contexts]
    return *sets, validated


@lru_cache(maxsize=1024)
def _estimate(
    task: Spec, steps: int, batch: int, batching: Literal["length", "mixed"], window: int, accumulate: int
) -> TrainingStepSize:
    """Estimate step sizes from a sample of training windows; the arguments are the training fields that matter."""
    import numpy as np

    from lengthwise.task import build_task
    from lengthwise.task.block import training_block
    from lengthwise.task.sets import BLOCK
    from lengthwise.task.sets import training_lengths_and_indices as drawn
    from lengthwise.training.batches import batch_row_indices, windows
    from lengthwise.training.settings import Training

    # The sample has all batches of a window with fewer rows each or, where batches mix lengths, fewer batches.
    window_steps = Training(steps=steps, batch_size=batch, lr=1.0, window=window).window_steps
    rows_here = max(accumulate, min(batch, SAMPLE // window_steps if batching == "length" else SAMPLE))
    window_steps = window_steps if batching == "length" else max(1, min(window_steps, SAMPLE // rows_here))
    training = Training(
        steps=steps, batch_size=rows_here, lr=1.0, batching=batching, window=window_steps, accumulation=accumulate
    )
    larger = batch / rows_here
    built, shapes, most, seconds = build_task(task), [], (0.0, 0.0, 0.0), []
    counted, by_length = 0, dict[int, list[int]]()
    for begin, here in windows(training):
        start = time.perf_counter()
        block = training_block(built, begin * training.batch_size, (begin + here) * training.batch_size)
        seconds.append((time.perf_counter() - start) / len(block))
        for length in np.unique(block.lengths_N).tolist():
            by_length.setdefault(length, []).extend(block.token_counts_N[block.lengths_N == length].tolist())
        counted += int(block.token_counts_N.sum()) - len(block)
        for rows in batch_row_indices(block, training, 0):
            parts = [part for part in np.array_split(rows, training.accumulation) if len(part)]
            wide = [(len(part), int(block.token_counts_N[part].max()) - 1) for part in parts]
            targets = [int((block.token_counts_N - block.prompt_lengths_N)[part].sum()) for part in parts]
            sums = [(b * t, b * t * t, n) for (b, t), n in zip(wide, targets, strict=True)]
            most = max(most, *((float(t), float(p), float(n)) for t, p, n in sums))
            shapes.append(Workload(len(parts), *map(float, np.sum(sums, axis=0))))
        if (len(shapes) + training.window_steps) * training.batch_size > SAMPLE:
            break
    # Lengths are cheap to draw and examples are not: weighting the mean tokens per length by many drawn lengths gives
    # an estimate with less variance.
    many = drawn(built, 0, min(steps * batch, BLOCK))[0].tolist()
    means = {length: statistics.fmean(found) for length, found in by_length.items()}
    true = statistics.fmean(means[length] for length in many if length in means) - 1
    better = true * len(shapes) * training.batch_size / counted
    mean = sum(shapes[1:], shapes[0]).times(1 / len(shapes))
    step = Workload(mean.calls, *(better * larger * part for part in (mean.tokens, mean.pairs, mean.targets)))
    return TrainingStepSize(step, true * batch, (larger * most[0], larger * most[1], larger * most[2]), min(seconds))


@lru_cache(maxsize=1024)
def position_seconds(task: Spec, positions: Spec) -> float:
    """Return the seconds to compute the positions of one example on this machine; 0 for consecutive positions."""
    from lengthwise.encoding import build_positions
    from lengthwise.encoding.positions import Consecutive
    from lengthwise.task import build_task
    from lengthwise.task.block import training_block

    built = build_task(task)
    kind = build_positions(positions).of(built)
    if isinstance(kind, Consecutive):
        return 0.0
    block = training_block(built, 0, PLACED)
    ends, prompts = block.starts_N.tolist(), block.prompt_lengths_N.tolist()
    ids = [block.ids[start:stop].tolist() for start, stop in pairwise(ends)]
    start = time.perf_counter()
    for key, (one, prompt) in enumerate(zip(ids, prompts, strict=True)):
        kind.places(one[:prompt], one[prompt:], key, len(one))
    return (time.perf_counter() - start) / PLACED


@dataclass(frozen=True)
class EvaluationSetSize:
    """The examples of one tested length: their number, and the means of their sizes."""

    split: str
    cases: int
    tokens: float
    answer: float
    limit: int
    text: float
    """Compressed bytes of prompt and answer."""
    seconds: float
    """Seconds to draw one example on this machine: most drawn instances belong to another split and are rejected."""


@lru_cache(maxsize=1024)
def evaluation_set_sizes(task: Spec) -> tuple[EvaluationSetSize, ...]:
    from lengthwise.evaluation.cases import splits_and_lengths
    from lengthwise.task import build_task
    from lengthwise.task.sets import (
        EXAMPLES,
        evaluation_instances,
        lengths_of,
        paper_split_rows,
        split_instances,
        trained_lengths,
    )

    if task.name == "text":
        return _text_sets(_text(task))
    built, found = build_task(task), []
    seen = [("validated", n) for n in lengths_of(built, "validation") if n in trained_lengths(built)]
    for split, length in [*splits_and_lengths(built), *seen]:
        name = "validation" if split == "validated" else split
        small = None if built.protocol == "paper" else split_instances(built, name, length)
        start = time.perf_counter()
        made = [built.to_example(one) for one in evaluation_instances(built, name, length, TESTED)]
        seconds = time.perf_counter() - start
        if not made:
            continue
        if built.protocol == "paper":
            cases = int((paper_split_rows(built, name)[0] == length).sum())
        else:
            cases = EXAMPLES if small is None else min(EXAMPLES, len(small))
        ids = [built.vocabulary.sequence(one.prompt, one.target, built.starts) for one in made]
        text = "\n".join(built.vocabulary.say(sequence) for sequence, _ in ids).encode()
        found.append(
            EvaluationSetSize(
                split,
                cases,
                statistics.fmean(len(sequence) - 1 for sequence, _ in ids),
                statistics.fmean(len(sequence) - prompt for sequence, prompt in ids),
                built.answer_limit(length),
                len(zlib.compress(text, 6)) / len(made),
                seconds / len(made),
            )
        )
    return tuple(found)


def one_pass_workload(evaluation_sets: Iterable[EvaluationSetSize], max_examples: int) -> tuple[Workload, float]:
    """Return workload and example count of a pass over up to `max_examples` per length, in 16,384-token batches."""
    from lengthwise.evaluation.onepass import TOKENS

    listed = [(one, min(one.cases, max_examples)) for one in evaluation_sets]
    tokens = sum(one.tokens * cases for one, cases in listed)
    pairs = sum(one.tokens**2 * cases for one, cases in listed)
    answers = sum(one.answer * cases for one, cases in listed)
    return Workload(ceil(tokens / TOKENS), tokens, pairs, answers), sum(cases for _, cases in listed)


def decoding_workload(evaluation_sets: Iterable[EvaluationSetSize], max_examples: int) -> Workload:
    """Return the workload of decoding a sample from its prompts, and all failures from their first wrong token."""
    from lengthwise.evaluation.decoding import ROWS
    from lengthwise.evaluation.result import CHECKED

    listed, found = list(evaluation_sets), Workload(0, 0, 0, 0)
    wrong = [(one, min(one.cases, max_examples), FAILED_AT) for one in listed if one.split in UNSEEN]
    for group in ([(one, min(one.cases, CHECKED), 0.0) for one in listed], wrong):
        remaining: list[float] = []
        for one, cases, done in group:
            before, calls = one.tokens - one.answer + 1 + done * one.answer, one.limit - done * one.answer
            said = calls * cases
            found += Workload(0, cases * before + said, cases * before**2 + said * (before + calls / 2), said, said)
            remaining += [calls] * cases
        # Examples decoded in one batch have about as many tokens left; the longest one decides the number of calls.
        remaining.sort(reverse=True)
        found += Workload(sum(remaining[::ROWS]), 0, 0, 0)
    return found
