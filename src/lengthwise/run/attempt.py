"""One run, end to end: train it, evaluate it, and write everything into a folder.

    STORE/runs/ID/1/            an attempt: only its owner writes here
      run.json                  all options, versions, machine; written when the attempt begins
      train.jsonl               loss, lr, norm, tokens, seconds; validations
      checkpoints/000000300/    weights and moments, and manifest.json, written last, with sizes and checksums
      weights/000000300.safetensors   at 25, 50, 75 %, best and earliest best
      model.safetensors         the last weights
      rows.parquet  predictions.parquet
      done                      labels, checks, validations; or error.txt, with the traceback

After an attempt was killed, the next one continues from the newest complete checkpoint of all earlier attempts.
`lease.py` decides who owns an attempt and whether a run is done.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from lengthwise.checksums import checksum, sealed
from lengthwise.device import DEFAULT, Compute
from lengthwise.evaluation.cases import trained_cases
from lengthwise.evaluation.result import EvaluationResult, evaluate_decoder
from lengthwise.evaluation.rows import frame_to_parquet
from lengthwise.folder import Folder
from lengthwise.model import Decoder
from lengthwise.run.acquire import time_and_last_validation
from lengthwise.run.identity import Plan
from lengthwise.run.lease import Lease
from lengthwise.run.pseudo_labels import PseudoLabels, pseudo_label
from lengthwise.run.resume import best_checkpoint_steps, is_usable, load_checkpoint
from lengthwise.run.run import Run, attempts_of, load_matching_weights
from lengthwise.run.stop import Stopped, call_when_asked_to_stop
from lengthwise.run.validation import validate_decoder
from lengthwise.spec import SpecError
from lengthwise.task.prefetch import Prefetcher
from lengthwise.task.text import Text
from lengthwise.training.batches import BlockSource, on_demand_blocks, windows
from lengthwise.training.checkpoint import newest_checkpoint, pack, save_checkpoint, unpack
from lengthwise.training.health import Diverged
from lengthwise.training.loggers import LogFile, Loggers, Progress
from lengthwise.training.loop import Loop, StepMetrics
from lengthwise.training.parallel import DistributedProcesses
from lengthwise.training.text import TextRows, examples_on_demand

STAGE_EXAMPLES = 32
"""Examples per length for the checkpoints at 25, 50 and 75 %; the others are evaluated on all examples."""
_LOG_EVERY = 10
PREFETCH_FROM = 16_384
"""With fewer training examples than this, the training process makes them itself, without a prefetch process."""


@dataclass
class Attempt:
    """One attempt at a run."""

    plan: Plan
    lease: Lease
    processes: DistributedProcesses
    every: int | None
    progress: Progress
    loggers: Loggers
    compute: Compute = DEFAULT
    validations: list[dict[str, Any]] = field(default_factory=list)
    """One entry per validation: step, correct, examples, loss, targets."""
    kept: dict[str, str] = field(default_factory=dict)
    """Step → path of its weights, relative to the run's folder."""
    files: dict[str, str] = field(default_factory=dict)
    """Path of a file, relative to the run's folder → its checksum."""
    before: tuple[int, float] = (0, 0.0)
    """Tokens and seconds of the earlier attempts that this one continues."""
    cpu_before: float = 0.0
    """CPU seconds of the earlier attempts that this one continues."""
    cpu_began: float = field(default_factory=time.process_time)
    began: float = field(default_factory=time.monotonic)
    pseudo_labels: PseudoLabels | None = None
    stop: bool = False
    stale: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    """Weight files that no label needs any more: to delete at the next checkpoint, and at the one after it.

    They are deleted only when the last two checkpoints no longer refer to them.
    """

    @property
    def home(self) -> Folder:
        """The run's folder."""
        return self.lease.home

    @property
    def folder(self) -> Folder:
        """The attempt's folder."""
        return self.lease.folder

    def release_lease(self) -> None:
        """Release the lease, so that no worker thinks this attempt is still running."""
        if self.processes.first:
            with suppress(SpecError):
                self.lease.release("stopped")

    def fail(self, error: BaseException) -> None:
        """Release the lease and record why the attempt failed."""
        if self.processes.first:
            why = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
            with suppress(SpecError):
                self.lease.fail(why, error.record() if isinstance(error, Diverged) else None)

    def run(self, start_run: Run | None, allowed_mismatches: Iterable[str]) -> None:
        """Train from the newest checkpoint, or from the start, then evaluate and write `done`."""
        plan, training = self.plan, self.plan.training
        decoder = self._decoder()
        if start_run is not None:
            load_matching_weights(
                decoder, start_run.weights(dict(plan.start)["checkpoint"]), allowed_mismatches, start_run.id
            )
            if training.pseudo_labels_up_to is not None:
                self.pseudo_labels = self._labelled(start_run)
        places = [attempt / "checkpoints" for attempt in attempts_of(self.home)]
        checkpoint, torn = newest_checkpoint(places, lambda one: is_usable(self.home, one, training.stages.values()))
        for name in torn if self.processes.first else ():
            warnings.warn(f"checkpoint {name} is not used: it or weights that it refers to are damaged", stacklevel=2)
        with self._supply(0 if checkpoint is None else checkpoint.step) as supply, call_when_asked_to_stop(self._asked):
            loop = Loop(
                decoder,
                supply,
                training,
                plan.positions,
                plan.seeds,
                self.processes,
                device_batch=self.compute.device_batch,
                compiled=self.compute.compile,
                recompute=self.compute.recompute,
                reads_at=self._reads_at,
            )
            if checkpoint is not None:
                load_checkpoint(loop, checkpoint)
                self.validations, self.kept = checkpoint.notes["validations"], dict(checkpoint.notes["kept"])
                recorded = checkpoint.notes.get("files")  # compared already; checkpoints of version 1 have none
                self.files = recorded or {path: checksum(self.home.read(path)) for path in self.kept.values()}
                self.before = (checkpoint.notes["tokens"], checkpoint.notes["seconds"])
                self.cpu_before = checkpoint.notes.get("cpu_seconds", 0.0)
            self._train(loop)
        with call_when_asked_to_stop(self._asked_late):
            self._finish(loop)

    def _labelled(self, start_run: Run) -> PseudoLabels:
        """Return the pseudo-labels of the first process; all processes must train on the same ones."""
        with call_when_asked_to_stop(self._asked_early):
            made = (
                pseudo_label(self.plan, start_run, self.processes.device, self.progress.say)
                if self.processes.first
                else None
            )
            return self.processes.broadcast_from_first(made)

    # --- training ----------------------------------------------------------------------------------------------------

    def _decoder(self) -> Decoder:
        """Return the decoder at initialisation, on the device of this process."""
        return self.plan.decoder().to(self.processes.device)

    def _reads_at(self, step: int) -> bool:
        """Return whether loss and norm of a step are needed: to log, to validate, to save, at the end."""
        training, every = self.plan.training, self.every or self.plan.training.saved_every
        wanted = {training.steps, *training.stages.values(), *training.validation_steps}
        return step % _LOG_EVERY == 0 or step % every == 0 or step in wanted

    def _train(self, loop: Loop) -> None:
        training = self.plan.training
        every = self.every or training.saved_every
        stages, validation_steps = set(training.stages.values()), set(training.validation_steps)
        began, first, tokens = time.monotonic() - self.before[1], loop.step, self.before[0]
        lines = LogFile(self.folder, self.processes.first)
        try:
            for told in loop:
                tokens += told.tokens
                seconds = time.monotonic() - began
                self._tell(told, tokens, seconds, first, lines)
                if told.step in validation_steps:
                    self._validate(loop, lines)
                if told.step in stages or told.step in self._chosen():
                    self._keep(loop)
                stopping = asked = self.stop or self.lease.lost
                if self.processes.size > 1:  # they stop together, at a step that all of them read
                    stopping = told.loss is not None and self.processes.any(asked)
                if told.step % every == 0 or told.step == training.steps or stopping:
                    lines.flush()
                    notes = {"validations": self.validations, "kept": self.kept, "tokens": tokens}
                    notes["files"] = {path: self.files[path] for path in self.kept.values()}
                    notes |= {"seconds": seconds, "cpu_seconds": self._cpu_seconds()}
                    save_checkpoint(self.folder / "checkpoints", told.step, loop.tensors(), notes, self.processes)
                    for file in self.stale[0]:
                        self.folder.remove(file)
                    self.stale = (self.stale[1], [])
                if stopping:
                    self.lease.raise_if_lost()
                    raise Stopped(told.step)
        except Diverged as error:
            lines.add({"step": error.step - 1, "loss": error.last_loss, "diverged": error.parameter})
            raise
        finally:
            lines.flush()

    def _tell(self, told: StepMetrics, tokens: int, seconds: float, first: int, lines: LogFile) -> None:
        if told.loss is None or told.norm is None:
            return  # not read from the device
        here = seconds - self.before[1]
        speed = (tokens - self.before[0]) / max(here, 1e-9)
        left = (self.plan.training.steps - told.step) * here / max(told.step - first, 1)
        self.progress.step(told.step, told.loss, speed, left)
        self.lease.set_progress(step=told.step, steps=self.plan.training.steps, loss=told.loss, left=left)
        if told.step % _LOG_EVERY == 0 or told.step == self.plan.training.steps:
            numbers = {"loss": told.loss, "lr": told.lr, "norm": told.norm}
            lines.add({"step": told.step, **numbers, "tokens": tokens, "seconds": round(seconds, 3)})
            self.loggers.log(told.step, {**numbers, "tokens_per_second": speed})

    def _validate(self, loop: Loop, lines: LogFile) -> None:
        """Validate at seen lengths, on the only split that is evaluated during training."""
        decoder = self._whole(loop)
        told = None if decoder is None else validate_decoder(self.plan, decoder, loop.step)
        numbers = self.processes.broadcast_from_first(told)
        self.validations.append(numbers)  # on all processes: they must agree on which weights to keep
        told = {
            "exact_match": numbers["correct"] / numbers["examples"],
            "validation_loss": None if numbers["loss"] is None else numbers["loss"] / numbers["targets"],
        }
        lines.add({"step": loop.step, **told})
        self.loggers.log(loop.step, {key: value for key, value in told.items() if value is not None})

    def _whole(self, loop: Loop) -> Decoder | None:
        """Return the decoder to evaluate on the first process, None on the others."""
        if not self.processes.shard:
            return loop.decoder if self.processes.first else None
        weights = self.processes.full_state_dict(loop.decoder)
        if not self.processes.first:
            return None
        decoder = self._decoder()
        decoder.load_state_dict(weights)
        return decoder

    def _chosen(self) -> set[int]:
        return set(best_checkpoint_steps(self.validations).values())

    def _keep(self, loop: Loop) -> None:
        """Save the weights of this step, and drop those of steps that are no longer the best."""
        weights = self.processes.full_state_dict(loop.decoder)
        if not self.processes.first:
            return
        name = f"weights/{loop.step:09d}.safetensors"
        self._write(name, pack(weights))
        self.kept[str(loop.step)] = f"{self.folder.leaf}/{name}"
        wanted = {*map(str, self.plan.training.stages.values()), *map(str, self._chosen())}
        for step in [step for step in self.kept if step not in wanted]:
            attempt, _, file = self.kept.pop(step).partition("/")
            if attempt == self.folder.leaf:
                self.stale[1].append(file)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, loop: Loop) -> None:
        import polars as pl

        decoder, training = self._whole(loop), self.plan.training
        if decoder is not None:
            self._write("model.safetensors", pack(decoder.state_dict()))
            labels = {"last": training.steps, **best_checkpoint_steps(self.validations), **training.stages}
            rows, predictions, checks = [], [], {}
            for label, found in self._examined(decoder, labels):
                mark = pl.lit(label).alias("checkpoint")
                rows.append(found.rows.with_columns(mark, pl.lit(self.plan.id).alias("run")))
                predictions.append(found.predictions.with_columns(mark))
                checks[label] = vars(found.checks)
            self._write("rows.parquet", frame_to_parquet(pl.concat(rows)))
            self._write("predictions.parquet", frame_to_parquet(pl.concat(predictions)))
            done: dict[str, Any] = {
                "checkpoints": labels,
                "kept": self.kept,
                "checks": checks,
                "validations": self.validations,
            }
            if self.pseudo_labels is not None:
                done["pseudo_labels"] = self.pseudo_labels.counts
            done["seconds"] = round(self.before[1] + time.monotonic() - self.began, 3)
            done["cpu_seconds"] = round(self._cpu_seconds(), 3)
            for name in ("run.json", "train.jsonl"):
                if self.folder.exists(name):
                    self.files[f"{self.folder.leaf}/{name}"] = checksum(self.folder.read(name))
            files = {
                path: self.files[path]
                for path in self.files
                if "/weights/" not in path or path in done["kept"].values()
            }
            self.lease.raise_if_lost()
            content = json.dumps(sealed({**done, "id": self.plan.id, "files": files}), indent=1)
            self.folder.create("done", content)
            files[f"{self.folder.leaf}/done"] = checksum(content.encode())
            self.lease.finish(time_and_last_validation(done), files)
            for file in (*self.stale[0], *self.stale[1]):
                self.folder.remove(file)
        self.processes.wait()

    def _write(self, name: str, data: bytes) -> None:
        """Write a file of this attempt, and remember its checksum."""
        self.folder.write(name, data)
        self.files[f"{self.folder.leaf}/{name}"] = checksum(data)

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the run so far, which depends less on the machine's load than wall-clock time."""
        return self.cpu_before + time.process_time() - self.cpu_began

    def _examined(self, last: Decoder, labels: Mapping[str, int]) -> Iterator[tuple[str, EvaluationResult]]:
        """Yield the evaluation of each labelled checkpoint; a step with several labels is evaluated once."""
        plan, known = self.plan, dict[tuple[int, int | None], EvaluationResult]()
        training = plan.training
        if isinstance(plan.task, Text):  # of its other weights only the validation is known
            yield "last", evaluate_decoder(last, plan.task, on_progress=self.progress.say)
            return
        replaced, seed = self.pseudo_labels, plan.seeds.data
        trained = trained_cases(
            plan.task,
            training.steps * training.batch_size,
            seed,
            lambda index: replaced is None or replaced.replaces(index, seed) is None,
        )
        for label, step in labels.items():
            examples = STAGE_EXAMPLES if label in plan.training.stages else None
            if (step, examples) not in known:
                self.progress.say(f"evaluating {label}")
                decoder = last
                if step != plan.training.steps:
                    decoder = self._decoder()
                    decoder.load_state_dict(unpack(self.home.read(self.kept[str(step)])))
                known[step, examples] = evaluate_decoder(
                    decoder,
                    plan.task,
                    examples=examples,
                    further_cases=trained if examples is None else (),
                    positions=plan.positions,
                    on_progress=self.progress.say,
                )
            yield label, known[step, examples]

    # --- around it ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _supply(self, step: int) -> Iterator[BlockSource | TextRows]:
        plan, training = self.plan, self.plan.training
        seed = plan.seeds.data
        blocks = [
            (begin * training.batch_size, (begin + steps) * training.batch_size)
            for begin, steps in windows(training, step)
        ]
        if self.pseudo_labels is not None:
            labelled = self.pseudo_labels
            yield on_demand_blocks(lambda start, stop: labelled.block(start, stop, seed))
            return
        if isinstance(plan.task, Text) or (training.steps - step) * training.batch_size < PREFETCH_FROM:
            yield examples_on_demand(plan.task, plan.seeds)
            return
        supplier = Prefetcher(str(plan.task_spec), plan.task, seed, blocks)
        try:
            yield supplier
        finally:
            supplier.close()

    def _asked(self) -> None:
        """Stop after the current step, with a checkpoint."""
        if self.stop:
            raise KeyboardInterrupt  # second request
        self.stop = True

    def _asked_early(self) -> None:
        """Stop at once: nothing has been trained yet."""
        raise Stopped(0)

    def _asked_late(self) -> None:
        """Stop at once: training is finished and saved, and the evaluation can be repeated."""
        raise Stopped(self.plan.training.steps)
