"""Self-improvement: train on longer inputs, labelled by the run that training starts from (Lee et al., ICML 2025).

Three checkpoints of that run answer each input. An answer becomes a label if at least two of them give it, if it ends
with an end token, and if it is about as long as most answers to inputs of that length. No correct answer is used: the
share of right labels is recorded, but nothing depends on it. The inputs are in none of the test sets.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from lengthwise.device import HOST
from lengthwise.encoding.positions import Positions
from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.decoding import decoder_decode_function
from lengthwise.spec import SpecError, digest
from lengthwise.task.base import Task
from lengthwise.task.block import Block, training_block
from lengthwise.task.sets import longer_instance_factory, trained_lengths
from lengthwise.training.settings import Training

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
    task: Task

    @cached_property
    def _mixture(self) -> tuple[list[int], np.ndarray, float]:
        """The lengths that have labels, the cumulative share of each among them, and the share of all of them."""
        lengths = [length for length, there in self.examples.items() if there]
        weights = np.array([self.task.weight(length) for length in lengths])
        own = sum(self.task.weight(length) for length in trained_lengths(self.task))
        return lengths, np.cumsum(weights) / max(weights.sum(), 1e-300), float(weights.sum() / (weights.sum() + own))

    def replaces(self, index: int, seed: int) -> tuple[int, float] | None:
        """Return, if training example `index` is pseudo-labelled, its length and which example it is, from 0 to 1."""
        lengths, bounds, share = self._mixture
        random = np.random.Philox(key=digest(_MIXED, seed, index, bits=64))
        chosen, which, one = ((random.random_raw(3) >> np.uint64(11)) * 2.0**-53).tolist()
        if chosen >= share:
            return None
        return lengths[int(np.searchsorted(bounds, which, side="right"))], one

    def block(self, start: int, stop: int, seed: int) -> Block:
        """Return training examples start, ..., stop − 1: the task's own, some of them replaced by pseudo-labelled ones.

        A length has the task's weight, whether its labels are correct or pseudo-labels.
        """
        own = training_block(self.task, start, stop, seed)
        ids, ends = list[int](), [0]
        prompts, used = own.prompt_lengths_N.tolist(), own.lengths_N.tolist()
        for place, index in enumerate(range(start, stop)):
            if (instead := self.replaces(index, seed)) is not None:
                used[place], one = instead
                there = self.examples[used[place]]
                sequence, prompts[place] = there[int(one * len(there))]
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
        if plan.training.pseudo_examples != Training.model_fields["pseudo_examples"].default:
            raise SpecError("pseudo_examples does nothing without pseudo_labels_up_to; leave it out, or give both")
        return
    if plan.task.protocol == "paper":
        raise SpecError("with protocol=paper any longer input may be a test input; use protocol=ours for pseudo-labels")
    if not plan.start:
        raise SpecError(
            "pseudo_labels_up_to needs a run to start from, whose answers are the labels: name it with --start, or put "
            "this training into a stage of `then`"
        )
    if longest <= plan.task.longest:
        raise SpecError(
            f"pseudo_labels_up_to is {longest}, but lengths up to {plan.task.longest} have correct labels; "
            f"write {plan.task.longest + 1} or more"
        )
    if not any(length in plan.task.lengths for length in range(plan.task.longest + 1, longest + 1)):
        raise SpecError(f"{plan.task.name} has no lengths from {plan.task.longest + 1} to {longest} to label")


def pseudo_label(
    plan: Plan,
    start_run: Run,
    device: torch.device = HOST,
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
            positions, many = start_run.plan.positions, plan.training.pseudo_examples
            # Each round has its own inputs.
            seed = digest("pseudo-labels", plan.seeds.data, start_run.id, bits=32)
            examples[length], counts[length] = _labelled(voters, plan.task, positions, length, many, seed)
    if not any(examples.values()):
        warnings.warn("no pseudo-label was kept: training is on the task's own examples alone", stacklevel=2)
    return PseudoLabels(examples, counts, plan.task)


def _labelled(
    voters: Iterable[Decoder], task: Task, positions: Positions, length: int, many: int, seed: int
) -> tuple[list[tuple[list[int], int]], dict[str, int]]:
    """Return the labelled inputs of one length, and how many were drawn, kept and right."""
    make, vocabulary = longer_instance_factory(task, length, seed), task.vocabulary
    try:
        instances = [make(index) for index in range(many)]
    except SpecError:  # all instances of this length are in test sets
        return [], {"drawn": 0, "kept": 0, "right": 0}
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
        exact = answer == vocabulary.sequence(example.prompt, example.target, task.starts)[0][one.prompt :]
        right += exact or (task.judged and task.check(one.instance, vocabulary.read(answer[:-1])))
    return kept, {"drawn": many, "kept": len(kept), "right": right}


def _majority(answers: Sequence[list[int]]) -> list[int] | None:
    """Return the answer that more than half give, or None."""
    ((most, count),) = Counter(map(tuple, answers)).most_common(1)
    return list(most) if most and 2 * count > len(answers) else None
