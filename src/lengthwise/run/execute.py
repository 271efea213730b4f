"""Train and evaluate a run, given by names and options or by a plan and a lease."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress

import torch

from lengthwise.device import DEFAULT, Compute, choose_device, say_once
from lengthwise.folder import Folder, Unavailable
from lengthwise.run.acquire import acquire_lease, load_start_run, take_lease_with_wait
from lengthwise.run.attempt import Attempt
from lengthwise.run.identity import Named, Plan
from lengthwise.run.lease import STORE, Lease, LeaseLost
from lengthwise.run.pseudo_labels import check_pseudo_labels
from lengthwise.run.run import Run, load_matching_weights
from lengthwise.run.stop import Stopped
from lengthwise.spec import Spec, SpecError, describe_error_with_line, suggests
from lengthwise.training.health import Diverged
from lengthwise.training.loggers import LINES, Loggers, Progress, check_loggers
from lengthwise.training.parallel import distributed_processes
from lengthwise.training.settings import Dtype, mixed_precision, parse_streams, with_options


@suggests
def train(
    task: Named,
    encoding: Named | Sequence[Named] = "nope",
    *,
    positions: Named = "consecutive",
    model: str | Mapping[str, object] | Spec = "laptop",
    training: str | Mapping[str, object] | Spec = "laptop",
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    streams: Mapping[str, int] | Sequence[str] | None = None,
    start: str | None = None,
    allow: Iterable[str] = (),
    store: str = STORE,
    threads: int | None = None,
    shard: bool = False,
    device: str = "auto",
    dtype: Dtype = "auto",
    compile: bool = False,
    device_batch: int | None = None,
    recompute: bool = False,
    checkpoint_every: int | None = None,
    loggers: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train and evaluate: `train("copy:variant=same", "rope", seed=1)`. A finished run is only opened.

    Task, encoding and positions are names or classes; `steps`, `batch_size` and `lr` override the training preset, and
    `streams` the seed of one random stream alone: `{"order": 7}` or `["order=7"]`.
    `start` is another run to take the initial weights from: its folder or id, optionally with `@best` or another
    checkpoint; `allow` lists name patterns of weights that may be missing or left over. Raises `Diverged` if the loss
    or a gradient is not finite.

    `device` is `auto` (cuda, mps or xpu if there is one, otherwise cpu) or the name of one. `dtype` is what the
    training preset says unless it is given; `bf16` is mixed precision, and makes another run. `device_batch` is the
    most rows that are computed at once, if memory is short; `recompute` keeps no activations for the backward pass.

    >>> run = train("sort:longest=4", "rope", steps=20)
    >>> run.rows()
    """
    check_loggers(loggers)
    labels_itself = "pseudo_labels_up_to" in dict(Spec.of(training).options)
    began, source = load_start_run(start, store, labels_itself) if start is not None else (None, {})
    plan = Plan.of(
        task,
        encoding,
        positions=positions,
        model=model,
        training=with_options(training, steps=steps, batch_size=batch_size, lr=lr, autocast=mixed_precision(dtype)),
        seed=seed,
        streams=streams if isinstance(streams, Mapping) else parse_streams(streams or ()),
        start=source,
    )
    check_pseudo_labels(plan)
    if plan.caution and not quiet and not os.environ.get(LINES):  # with several runs at once, it was shown before
        warnings.warn(plan.caution, stacklevel=3)
    if began is not None:  # raise for weights that do not fit before anything is written
        load_matching_weights(plan.decoder(), began.weights(source["checkpoint"]), allow, began.id)
    if threads is not None:
        if threads < 1:
            raise SpecError(f"a run has at least one thread, not {threads}")
        torch.set_num_threads(threads)
    where, compute = Folder(store), Compute(device, compile, device_batch, recompute)

    def take() -> Lease | None:
        # A user who starts a failed run again wants a retry.
        return take_lease_with_wait(
            where, plan.id, True, lambda words: None if quiet else warnings.warn(words, stacklevel=4)
        )

    return execute(
        plan,
        where,
        take,
        began,
        allow,
        shard=shard,
        compute=compute,
        checkpoint_every=checkpoint_every,
        loggers=loggers,
        quiet=quiet,
    )


def execute(
    plan: Plan,
    store: Folder,
    take_lease: Callable[[], Lease | None],
    start_run: Run | None = None,
    allowed_mismatches: Iterable[str] = (),
    *,
    shard: bool = False,
    compute: Compute = DEFAULT,
    checkpoint_every: int | None = None,
    loggers: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Execute a run under the lease that `take_lease` returns, as one process of a team."""
    chosen = choose_device(compute.device)
    with distributed_processes(shard, chosen.device) as processes:
        if processes.first and not quiet:
            say_once(str(chosen))
        lease, finished = acquire_lease(store, plan, processes, compute, checkpoint_every, take_lease)
        if lease is None:
            assert finished is not None
            return Run(finished, fresh=False, known_plan=plan)
        attempt = Attempt(
            plan,
            lease,
            processes,
            checkpoint_every,
            Progress(_title(plan), plan.training.steps, quiet or not processes.first),
            Loggers.of(loggers if processes.first else (), str(lease.folder), plan.id),
            compute,
        )
        with lease if processes.first else nullcontext():
            try:
                attempt.run(start_run, allowed_mismatches)
            except LeaseLost:
                raise
            except (Stopped, KeyboardInterrupt, Unavailable):
                attempt.release_lease()
                raise
            except Diverged as error:
                attempt.fail(error)
                raise Diverged.read(error.record(), plan.id) from None
            except BaseException as error:
                with suppress(SpecError):
                    attempt.folder.write("error.txt", traceback.format_exc())
                told = _explained(plan, error, attempt)
                attempt.fail(told)
                if told is not error:
                    raise told from error
                raise
            finally:
                attempt.progress.close()
                attempt.loggers.close()
        return Run(attempt.folder, known_plan=plan)


def _explained(plan: Plan, error: BaseException, attempt: Attempt) -> BaseException:
    """Turn an error that the user can mend into a `SpecError`: no memory left, or a mistake in their own code."""
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
        rows = attempt.compute.device_batch or plan.training.batch_size
        hint = f"--device-batch {rows // 2}" if rows > 1 else "--recompute, a smaller model, or --shard"
        return SpecError(f"{attempt.processes.device} has not enough memory for {rows} rows at once; use {hint}")
    folder = attempt.folder
    for cls, spec in plan.outside_classes():
        where = getattr(sys.modules.get(cls.__module__), "__file__", "")
        if any(frame.filename == where for frame in traceback.extract_tb(error.__traceback__)):
            return SpecError(
                f"'{spec}' failed, {describe_error_with_line(error, where)}; "
                f"the whole traceback is in {folder}/error.txt"
            )
    return error


def _title(plan: Plan) -> str:
    return f"{plan.task_spec} {','.join(map(str, plan.encoding_specs))} seed {plan.seed}"
