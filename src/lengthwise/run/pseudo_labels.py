"""Self-improvement: train on longer inputs, labelled by the run that training starts from (Lee et al., ICML 2025).

Three checkpoints of that run answer each input. An answer becomes a label if at least two of them give it, if it ends
with an end token, and if it is about as long as most answers to inputs of that length. No correct answer is used: the
share of right labels is recorded, but nothing depends on it. The inputs are in none of the test sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lengthwise.encoding.positions import Positions
from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.decoding import decoder_decode_function
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Task
from lengthwise.task.block import Block, training_block
from lengthwise.task.sets import longer_instance_factory, trained_lengths

if TYPE_CHECKING:
    from lengthwise.model import Decoder
    from lengthwise.run.identity import Plan
    from lengthwise.run.run import Run

VOTERS = ("50%", "75%", "last")
"""The checkpoints of the run that training starts from which answer each input."""
SLACK = 1
"""How many tokens longer or shorter than most answers a label may be."""
_MIXED = 0x5E1F
"""Separates the random numbers that mix pseudo-labelled with other examples from all others."""


@dataclass(frozen=True)
class PseudoLabels:
    """Pseudo-labelled examples, and how many inputs of each length were labelled."""

    examples: Mapping[int, Sequence[tuple[list[int], int]]]
    """Length → examples: the ids with the end token, and how many of them are the prompt's."""
    counts: Mapping[int, Mapping[str, int]]
    """Length → `drawn` inputs, `kept` labels, and `right` ones among them."""

    def block(self, task: Task, start: int, stop: int, seed: int) -> Block:
        """Return training examples start, ..., stop − 1: the task's own, some of them replaced by pseudo-labelled ones.

        A length has the task's weight, whether its labels are correct or pseudo-labels.
        """
        own = training_block(task, start, stop, seed)
        lengths = [length for length, there in self.examples.items() if there]
        weights = [task.weight(length) for length in lengths]
        share = sum(weights) / (sum(weights) + sum(task.weight(length) for length in trained_lengths(task)))
        if not lengths:
            return own
        bounds, ids, ends = np.cumsum(weights) / sum(weights), list[int](), [0]
        prompts, used = own.prompt_lengths_N.tolist(), own.lengths_N.tolist()
        for place, index in enumerate(range(start, stop)):
            random = np.random.Philox(key=digest(_MIXED, seed, index, bits=64))
            chosen, which, one = (random.random_raw(3) >> np.uint64(11)) * 2.0**-53
            if chosen < share:
                length = lengths[int(np.searchsorted(bounds, which, side="right"))]
                there = self.examples[length]
                sequence, prompts[place] = there[int(one * len(there))]
                used[place] = length
            else:
                sequence = own.ids[own.starts_N[place] : own.starts_N[place + 1]].tolist()
            ids += sequence
            ends.append(len(ids))
        return Block(
            np.array(ids, dtype=own.ids.dtype),
            np.array(ends, dtype=own.starts_N.dtype),
            np.array(prompts, dtype=own.prompt_lengths_N.dtype),
            np.array(used, dtype=own.lengths_N.dtype),
            own.indices_N,
        )


def check_pseudo_labels(plan: Plan) -> None:
    """Raise if a run that trains on pseudo-labels starts from no other run, or asks for no longer length."""
    longest = plan.training.pseudo_labels_up_to
    if longest is None:
        return
    if not plan.start:
        raise SpecError(
            "pseudo_labels_up_to needs a run to start from, whose answers are the labels: give one to start"
        )
    if longest <= plan.task.longest:
        raise SpecError(
            f"pseudo_labels_up_to is {longest}, but lengths up to {plan.task.longest} have correct labels; "
            f"write {plan.task.longest + 1} or more"
        )


def pseudo_label(
    plan: Plan,
    start_run: Run,
    device: torch.device | str = "cpu",
    on_progress: Callable[[str], None] = lambda words: None,
) -> PseudoLabels:
    """Return the pseudo-labelled examples of a run that starts from another."""
    check_pseudo_labels(plan)
    assert plan.training.pseudo_labels_up_to is not None
    lengths = range(plan.task.longest + 1, plan.training.pseudo_labels_up_to + 1)
    voters = [start_run.decoder(label).to(device).eval() for label in VOTERS]
    examples, counts = {}, {}
    for length in lengths:
        if length in plan.task.lengths:
            on_progress(f"labelling inputs of length {length}")
            many, seed = plan.training.pseudo_examples, plan.seeds.data
            examples[length], counts[length] = _labelled(voters, plan.task, plan.positions, length, many, seed)
    return PseudoLabels(examples, counts)


def _labelled(
    voters: Iterable[Decoder], task: Task, positions: Positions, length: int, many: int, seed: int
) -> tuple[list[tuple[list[int], int]], dict[str, int]]:
    """Return the labelled inputs of one length, and how many were drawn, kept and right."""
    make, vocabulary = longer_instance_factory(task, length, seed), task.vocabulary
    instances = [make(index) for index in range(many)]
    asked = []
    for index, instance in enumerate(instances):
        ids, prompt = vocabulary.sequence(task.to_example(instance).prompt, (), task.starts)
        key = digest("positions", "pseudo-labels", seed, length, index)
        asked.append(
            Case("train", length, index, instance, ids[:prompt], prompt, task.answer_limit(length), key)
        )  # without its answer
    answers = [
        decoder_decode_function(decoder, positions.at_test(), vocabulary.eos)(asked, [[]] * len(asked))
        for decoder in voters
    ]
    agreed = [_majority(given) for given in zip(*answers, strict=True)]
    ended = [answer for answer in agreed if answer is not None and answer[-1] == vocabulary.eos]
    counts = Counter(map(len, ended))
    usual = max(counts, key=lambda length: (counts[length], length), default=0)
    kept, right = list[tuple[list[int], int]](), 0
    for one, answer in zip(asked, agreed, strict=True):
        if answer is None or answer[-1] != vocabulary.eos or abs(len(answer) - usual) > SLACK:
            continue
        kept.append(([*one.ids, *answer], one.prompt))
        example = task.to_example(one.instance)
        right += answer == vocabulary.sequence(example.prompt, example.target, task.starts)[0][one.prompt :]
    return kept, {"drawn": many, "kept": len(kept), "right": right}


def _majority(answers: Sequence[list[int]]) -> list[int] | None:
    """Return the answer that more than half give, or None."""
    ((most, count),) = Counter(map(tuple, answers)).most_common(1)
    return list(most) if most and 2 * count > len(answers) else None
