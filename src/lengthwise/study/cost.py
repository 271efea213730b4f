"""Estimate the cost of a run before it is launched: parameters, tokens, FLOPs, memory, disk, seconds.

Matrix products are counted exactly; the number of tokens comes from a keyed sample of the task's examples, batched by
the training loop's own code. Seconds are FLOPs times a price: on this machine that of a few timed training steps.
Counts do not depend on the seed and are cached: 10,000 runs of 100 kinds take as long as 100 (docs/reference/cost.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from lengthwise.spec import Spec, SpecError
from lengthwise.study.counting import (
    HOOKED,
    UNSEEN,
    DecoderCostModel,
    EvaluationSetSize,
    TrainingStepSize,
    Workload,
    decoder_cost_model,
    decoding_workload,
    evaluation_set_sizes,
    one_pass_workload,
    position_seconds,
    training_step_size,
)
from lengthwise.study.machines import ACCELERATORS, Accelerator, ThisMachine, accelerator

if TYPE_CHECKING:
    from lengthwise.model import DecoderConfig
    from lengthwise.run import Plan
    from lengthwise.study.plan import Planned
    from lengthwise.training.settings import Training

__all__ = [
    "ACCELERATORS",
    "Accelerator",
    "Cost",
    "ThisMachine",
    "Total",
    "accelerator",
    "expected_seconds",
    "run_cost",
    "total_cost",
]

EXAMINED = 2
"""Full evaluations per run: of its last weights and of its best weights, which may be the same."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run, in bytes, seconds and counts."""

    parameters: int
    tokens: int
    """Input tokens of training, including padding."""
    counted_tokens: int
    """Input tokens of training without padding, as `train.jsonl` counts them."""
    flops: float
    """FLOPs of training, without validations."""
    evaluation_flops: float
    """FLOPs of validations and of the final evaluations."""
    memory: int
    """Peak memory of the training process."""
    disk: int
    """Size of the attempt's folder when the run has ended."""
    seconds: float
    """From the first step to the last: steps, validations, checkpoints, waiting for examples."""
    evaluation_seconds: float
    """Seconds of the final evaluations."""

    @property
    def hours(self) -> float:
        """Device hours."""
        return (self.seconds + self.evaluation_seconds) / 3600


@dataclass(frozen=True)
class Total:
    """The cost of several runs together."""

    runs: int
    tokens: int
    flops: float
    """Training and evaluation."""
    memory: int
    """The largest run's peak."""
    memory_together: int
    """The largest run's peak times the number of parallel runs."""
    disk: int
    hours: float
    """Device hours."""
    wall_hours: float
    """Wall-clock hours with the given number of parallel runs."""


def study_costs(
    planned: Planned, machine: Accelerator | ThisMachine, on_progress: Callable[[str], None]
) -> tuple[dict[tuple[str, str], list[Cost]], list[Cost]]:
    """The cost of each run by task and encoding, and of the tuning runs."""
    kinds: dict[tuple[str, str], list[Cost]] = {}
    tuning = [run_cost(item.plan, machine) for tried in planned.tuning.values() for item in tried]
    for point in planned.points:
        on_progress(f"counting {point.task} with {point.encoding}")
        name = point.encoding if point.start is None else f"{point.encoding} stage {point.stage}"
        kinds.setdefault((point.task, name), []).append(run_cost(planned.plan(point), machine))
    return kinds, tuning


def total_cost(costs: Iterable[Cost], parallel_runs: int = 1) -> Total:
    """Add up runs, `parallel_runs` of them in parallel; the wall time is at least that of the longest run."""
    listed = list(costs)
    if parallel_runs < 1:
        raise SpecError(f"at least one run at a time, not {parallel_runs}")
    hours, memory = sum(one.hours for one in listed), max((one.memory for one in listed), default=0)
    return Total(
        runs=len(listed),
        tokens=sum(one.tokens for one in listed),
        flops=sum(one.flops + one.evaluation_flops for one in listed),
        memory=memory,
        memory_together=memory * min(parallel_runs, len(listed)),
        disk=sum(one.disk for one in listed),
        hours=hours,
        wall_hours=max([hours / parallel_runs, *(one.hours for one in listed)]),
    )


def expected_seconds(plans: Iterable[Plan], threads: int = 1) -> dict[str, float]:
    """Run → its expected seconds on this machine: its FLOPs, at the price of the first run's."""
    listed = list(plans)
    if not listed:
        return {}
    counts = {plan.id: _counts(plan) for plan in listed}
    seconds_per_flop = ThisMachine(threads).seconds_per_flop(listed[0])
    return {key: seconds_per_flop * (one.flops + one.evaluation_flops) for key, one in counts.items()}


# --- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunWorkCounts:
    """What a run does, counted; it does not depend on the seed or the machine."""

    training: Workload
    validation: Workload
    """One validation."""
    validation_cases: float
    validations: int
    evaluation: Workload
    """All evaluations after training."""
    evaluation_cases: float
    flops: float
    """FLOPs of training, without validations."""
    validation_flops: float
    """FLOPs of one validation."""
    final_flops: float
    """FLOPs of all evaluations after training."""
    parameters: int
    counted_tokens: float
    disk: float
    memory: float
    """Peak bytes above those of an idle process."""
    example_seconds: float
    """Seconds to make one training example, on this machine."""
    drawing: tuple[float, float]
    """Seconds to draw the validation and the test examples once, on this machine."""

    @property
    def evaluation_flops(self) -> float:
        """FLOPs of validations and of the final evaluations."""
        return self.final_flops + self.validation_flops * self.validations


def run_cost(plan: Plan, machine: ThisMachine | Accelerator) -> Cost:
    """Return the cost of a run on this machine."""
    from lengthwise.run.attempt import PREFETCH_FROM

    found, training = _counts(plan), plan.training
    placed = position_seconds(plan.task_spec, plan.positions_spec)
    examples = training.steps * training.batch_size
    seconds = machine.training_seconds(plan, found.training, found.flops) + examples * placed
    # Examples are made in parallel with training, one window ahead; only the first window, or all examples of a short
    # run, are made before it.
    making, short = examples * found.example_seconds, examples < PREFETCH_FROM
    seconds = seconds + making if short else max(seconds, making) + making * training.window_steps / training.steps

    def forward(work: Workload, flops: float, cases: float) -> float:
        passed = machine.forward_seconds(plan, work, flops, cases)
        return passed + (cases + work.said) * placed

    one_validation = forward(found.validation, found.validation_flops, found.validation_cases)
    final = forward(found.evaluation, found.final_flops, found.evaluation_cases)
    return Cost(
        parameters=found.parameters,
        tokens=round(found.training.tokens),
        counted_tokens=round(found.counted_tokens),
        flops=found.flops,
        evaluation_flops=found.evaluation_flops,
        memory=round(machine.base + found.memory),
        disk=round(found.disk),
        seconds=seconds + one_validation * (found.validations - 1) + found.drawing[0],
        evaluation_seconds=final + one_validation + found.drawing[1],
    )


def gpu_memory_of_run(plan: Plan) -> float:
    """Return the bytes that a run needs on a GPU."""
    return Accelerator.base + _counts(plan).memory


def _counts(plan: Plan) -> RunWorkCounts:
    return _counted(plan.task_spec, plan.encoding_specs, plan.model, plan.training)


@lru_cache(maxsize=65_536)
def _counted(task: Spec, specs: tuple[Spec, ...], config: DecoderConfig, training: Training) -> RunWorkCounts:
    from lengthwise.run.attempt import STAGE_EXAMPLES

    model = decoder_cost_model(config, specs)
    size = training_step_size(task, training)
    tests = [one for one in evaluation_set_sizes(task) if one.split != "validated"]
    seen = [one for one in evaluation_set_sizes(task) if one.split == "validated"]
    trained = size.step.times(training.steps)
    validation, validated = one_pass_workload(seen, ceil(training.validation_examples / max(len(seen), 1)))
    final, cases, wrong = Workload(0, 0, 0, 0), 0.0, 0.0
    everything, stages = max((one.cases for one in tests), default=0), len(set(training.stages.values()))
    # Of a language model only the last weights are evaluated.
    evaluated = ((everything, 1),) if task.name == "text" else ((everything, EXAMINED), (STAGE_EXAMPLES, stages))
    for most, times in evaluated:
        work, many = one_pass_workload(tests, most)
        final += (work + decoding_workload(tests, most)).times(times)
        cases += times * many
        wrong += 3 * sum(min(one.cases, most) * one.text for one in tests if one.split in UNSEEN)
    weights = 4 * model.parameters
    # Two checkpoints with Adam's two moments; the weights of three stages, best, earliest best and last; predictions;
    # rows; the log and small files.
    disk = 2 * 3 * weights + (5 + 1) * weights + 1.5 * wrong + 120 * len(tests) + 17 * training.steps + 10_000
    return RunWorkCounts(
        training=trained,
        validation=validation,
        validation_cases=validated,
        validations=len(training.validation_steps),
        evaluation=final,
        evaluation_cases=cases,
        flops=model.flops(trained, training=True),
        validation_flops=model.flops(validation, training=False),
        final_flops=model.flops(final, training=False),
        parameters=model.parameters,
        counted_tokens=size.counted * training.steps,
        disk=disk,
        memory=_peak(model, size, tests),
        example_seconds=size.example_seconds,
        drawing=(_drawing(seen), _drawing(tests)),
    )


def _drawing(tests: list[EvaluationSetSize]) -> float:
    """Return the seconds needed to draw the test examples once."""
    return sum(one.cases * one.seconds for one in tests)


def _peak(body: DecoderCostModel, fed: TrainingStepSize, tests: list[EvaluationSetSize]) -> float:
    """Return the peak bytes above those of an idle process: in a training step, or in a later save or evaluation.

    glibc keeps about three quarters of the memory that a step has freed, so later phases come on top of that.
    """
    from lengthwise.evaluation.decoding import ROWS, bytes_per_token
    from lengthwise.evaluation.onepass import TOKENS
    from lengthwise.model.attention import AT_ONCE

    weights, config, held = 4.0 * body.parameters, body.config, body.activation_bytes(*fed.most)
    saved = 6 * weights  # a copy of weights and two moments, as tensors and as bytes
    at_once = 4 * 1.15 * (2 * config.width + 3 * config.feed_forward_width)
    looked = min(TOKENS, sum(one.tokens * one.cases for one in tests))
    share = sum(one.answer for one in tests) / max(sum(one.tokens for one in tests), 1)
    passed = looked * (at_once + 4 * 3 * share * config.vocabulary)
    longest = max((one.tokens for one in tests), default=0)
    if body.path == "hooked":
        passed += 4 * HOOKED * min(AT_ONCE, looked * longest * config.heads)
    wrong = sum(one.cases for one in tests if one.split in UNSEEN)
    together = min(ROWS, wrong) * longest
    decoding = together * bytes_per_token(config)
    cases = 5000 * sum(one.cases for one in tests)  # Python objects of each example
    return cases + 4 * weights + max(1.1 * held, 0.75 * held + max(saved, passed, decoding))
