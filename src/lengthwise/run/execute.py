"""Train and evaluate: from a name, or from a plan and a lease, to a run that is done."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress

import torch

from lengthwise.folder import Folder
from lengthwise.run.acquire import acquire, patiently, start_of
from lengthwise.run.attempt import Attempt
from lengthwise.run.identity import Named, Plan
from lengthwise.run.lease import STORE, Lease, Lost
from lengthwise.run.run import Run, fill
from lengthwise.run.stop import Stopped
from lengthwise.spec import Spec, SpecError, blame, suggests
from lengthwise.training.health import Diverged
from lengthwise.training.loggers import LINES, Loggers, Progress, check_loggers
from lengthwise.training.parallel import team


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
    streams: Mapping[str, int] | None = None,
    start: str | None = None,
    allow: Iterable[str] = (),
    store: str = STORE,
    threads: int | None = None,
    shard: bool = False,
    checkpoint_every: int | None = None,
    loggers: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train and evaluate: `train("copy:variant=same", "rope", seed=1)`. A run that is done is only opened.

    Task, encoding and positions are names or classes; `steps`, `batch_size` and `lr` change the training. `start` is
    another run (its folder or id, `@best` and the like behind it) whose weights it begins with; what is missing or left
    over is allowed by name. Raises `Diverged` where the loss stops being a number.
    """
    check_loggers(loggers)
    began, source = start_of(start, store) if start is not None else (None, {})
    plan = Plan.of(
        task,
        encoding,
        positions=positions,
        model=model,
        training=_changed(training, steps=steps, batch_size=batch_size, lr=lr),
        seed=seed,
        streams=streams,
        start=source,
    )
    if plan.caution and not quiet and not os.environ.get(LINES):  # several runs at once: it was said before them
        warnings.warn(plan.caution, stacklevel=3)
    if began is not None:  # what does not fit is told before anything is written
        fill(plan.decoder(), began.weights(source["checkpoint"]), allow, began.id)
    if threads is not None:
        if threads < 1:
            raise SpecError(f"a run has at least one thread, not {threads}")
        torch.set_num_threads(threads)
    where = Folder(store)

    def take() -> Lease | None:
        # A person who starts a run again has seen why it failed.
        return patiently(where, plan.id, True, lambda words: None if quiet else warnings.warn(words, stacklevel=4))

    return execute(plan, where, take, began, allow, shard=shard, every=checkpoint_every, loggers=loggers, quiet=quiet)


def execute(
    plan: Plan,
    store: Folder,
    take: Callable[[], Lease | None],
    began: Run | None = None,
    allow: Iterable[str] = (),
    *,
    shard: bool = False,
    every: int | None = None,
    loggers: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Do a run under the lease that `take` gives, on this process's share of the processes."""
    with team(shard) as processes:
        lease, finished = acquire(store, plan, processes, every, take)
        if lease is None:
            assert finished is not None
            return Run(finished, fresh=False)
        attempt = Attempt(
            plan,
            lease,
            processes,
            every,
            Progress(_title(plan), plan.training.steps, quiet or not processes.first),
            Loggers.of(loggers if processes.first else (), str(lease.folder), plan.id),
        )
        with lease if processes.first else nullcontext():
            try:
                attempt.run(began, allow)
            except Lost:
                raise
            except (Stopped, KeyboardInterrupt):
                attempt.let_go()
                raise
            except Diverged as error:
                attempt.fail(error)
                raise Diverged.read(error.record(), plan.id) from None
            except BaseException as error:
                with suppress(SpecError):
                    attempt.folder.write("error.txt", traceback.format_exc())
                told = _blamed_outside(plan, error, attempt.folder)
                attempt.fail(told)
                if told is not error:
                    raise told from error
                raise
            finally:
                attempt.progress.close()
                attempt.loggers.close()
        return Run(attempt.folder)


def _changed(training: str | Mapping[str, object] | Spec, **changes: float | None) -> Spec:
    given = Spec.of(training)
    said = {key: value for key, value in changes.items() if value is not None}
    return Spec(given.name, tuple({**dict(given.options), **said}.items()))


def _blamed_outside(plan: Plan, error: BaseException, folder: Folder) -> BaseException:
    """A failure inside a stranger's encoding or task is told with the stranger's line."""
    for cls, spec in plan.outside():
        where = getattr(sys.modules.get(cls.__module__), "__file__", "")
        if any(frame.filename == where for frame in traceback.extract_tb(error.__traceback__)):
            return SpecError(f"'{spec}' failed, {blame(error, where)}; the whole traceback is in {folder}/error.txt")
    return error


def _title(plan: Plan) -> str:
    return f"{plan.task_spec} {','.join(map(str, plan.encoding_specs))} seed {plan.seed}"
