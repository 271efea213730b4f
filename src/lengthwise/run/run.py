"""Read a run from its folder: options, rows, predictions, weights, log."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lengthwise.checksums import Damaged, check_seal, checksum, parsed, read_checked
from lengthwise.consent import refuse_code
from lengthwise.device import place
from lengthwise.display import Display, Part
from lengthwise.encoding.positions import Positions
from lengthwise.evaluation.cases import seen_cases
from lengthwise.evaluation.result import AS_TRAINED, EvaluationResult, evaluate_decoder
from lengthwise.evaluation.rows import frame_to_parquet, read_predictions, read_rows
from lengthwise.folder import Folder, without_paths
from lengthwise.loading import source_digest
from lengthwise.model import Decoder
from lengthwise.run.identity import Plan, encodings_of
from lengthwise.run.lease import STORE, done_record
from lengthwise.spec import Spec, SpecError, did_you_mean, parse_specs
from lengthwise.task.base import Task
from lengthwise.training.checkpoint import unpack
from lengthwise.training.settings import Dtype, mixed_precision

if TYPE_CHECKING:
    import polars as pl


def load_run(name_or_folder: str, store: str = STORE, *, allow_code: bool = False) -> Run:
    """Open a finished run by its folder, its id, or the beginning of its id in a store.

    A run whose task or encoding is code from outside the package needs `allow_code=True`, for the code would be run.

    >>> load_run("copy-rope-s0").rows()
    """
    return Run.open(name_or_folder, store, allow_code)


@dataclass(frozen=True, repr=False)
class Run(Display):
    """One attempt's folder, read: `Run.open("lengthwise-store/runs/copy-rope-s0-...")`."""

    folder: Folder
    fresh: bool = True
    """Whether it was trained just now; False if it was already done."""
    known_plan: Plan | None = None
    """The plan, where the caller has it; otherwise it is read from `run.json`."""
    allow_code: bool = False
    """Whether code from outside the package that `run.json` names may be run."""

    @classmethod
    def of(cls, run: Run | str, store: str = STORE, allow_code: bool = False) -> Run:
        """Return the run; a name is opened."""
        return cls.open(run, store, allow_code) if isinstance(run, str) else run

    @classmethod
    def open(
        cls, name_or_folder: str, store: str = STORE, allow_code: bool = False, known_plan: Plan | None = None
    ) -> Run:
        """Open a run by its folder, an attempt's folder, its id, or the beginning of its id in a store."""
        folder = Folder(name_or_folder)
        if not folder.exists():
            runs = Folder(store) / "runs"
            there = runs.names()
            named = [name for name in there if "~" not in name]  # evaluations of a run have a ~ in their name
            found = [name for name in named if name.startswith(name_or_folder)] if "/" not in name_or_folder else []
            if len(found) > 1:
                raise SpecError(
                    f"{name_or_folder!r} is the beginning of {len(found)} runs in {store}: {', '.join(found[:4])}"
                )
            if not found:
                hint = did_you_mean(name_or_folder, there) if there else f" There are no runs in {store}."
                raise SpecError(f"there is no run {name_or_folder!r}.{hint}")
            folder = runs / found[0]
        if not folder.exists("run.json"):
            attempts = attempts_of(folder)
            if not attempts:
                raise SpecError(f"{name_or_folder!r} is no run: it has no run.json, and no attempt 1/run.json")
            pointed = done_record(folder.parent.parent, folder.leaf)
            done = [one for one in attempts if one.exists("done")]
            folder = folder / str(pointed["attempt"]) if pointed is not None else (done or attempts)[-1]
        run = cls(folder, False, known_plan, allow_code)
        _ = run.plan  # raise now if run.json is damaged, or names code that was not allowed
        return run

    @cached_property
    def run_json(self) -> dict[str, Any]:
        """`run.json`."""
        record = parsed(self.read("run.json") if self.done else self.folder.read("run.json"), f"{self.folder}/run.json")
        if not isinstance(record.get("id"), str):
            raise Damaged(f"{self.folder}/run.json is damaged: it has no id")
        return record

    @cached_property
    def plan(self) -> Plan:
        """All options of the run."""
        if self.known_plan is not None:
            return self.known_plan
        try:
            refuse_code(self.run_json["options"], f"run {self.id}", self.allow_code)
            return Plan.read(self.run_json["options"])
        except SpecError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SpecError(
                f"{self.folder}/run.json is damaged ({type(error).__name__}: {str(error).splitlines()[0]}); "
                "train the run again into another store"
            ) from error

    @property
    def id(self) -> str:
        """The run's name."""
        return self.run_json["id"]

    def display_parts(self, width: int = 80) -> list[Part]:
        """What the run is, in a line."""
        state = f"{self.plan.training.steps} steps" if self.done else "not finished"
        names = ",".join(map(str, self.plan.encoding_specs))
        told = f"Run({self.id}: {names} on {self.plan.task_spec}, seed {self.plan.seed}, {state}, in {self.folder})"
        return [Part(told)]

    def plain(self) -> dict[str, Any]:
        """The run's options, identity and environment, as in `run.json`."""
        return self.run_json

    @cached_property
    def recorded(self) -> Mapping[str, str] | None:
        """The checksum of each file, by its path in the run's folder; None for a store of an earlier version."""
        home = self.folder.parent
        if home.parent.leaf != "runs":
            return None
        record = done_record(home.parent.parent, home.leaf)
        return None if record is None or record["attempt"] != int(self.folder.leaf) else record.get("files")

    def read(self, name: str) -> bytes:
        """Read a file of the attempt, and compare its checksum."""
        return self._read(f"{self.folder.leaf}/{name}")

    def _read(self, path: str) -> bytes:
        """Read a file of the run, whose path is relative to the run's folder, and compare its checksum."""
        home = self.folder.parent
        return read_checked(home, path, self.recorded, str(home.parent.parent))

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        there = self.folder.exists("done")
        if not there and f"{self.folder.leaf}/done" in (self.recorded or {}):
            raise Damaged(f"{self.folder}/done is missing, although the run was finished")
        return there

    @property
    def task(self) -> Task:
        """The task it was trained on."""
        self._check_code()
        return self.plan.task

    @property
    def task_name(self) -> str:
        """The task's spec as text, with all options that differ from their defaults."""
        return str(self.plan.task_spec)

    def rows(self) -> pl.DataFrame:
        """Return the evaluation rows, including those of later evaluations."""
        import polars as pl

        self._finished()
        more = [name for name in self.folder.names() if name.startswith("rows-")]
        tables = [read_rows(self.read("rows.parquet"), str(self.folder))]
        found = pl.concat([*tables, *(self._later_rows(name) for name in more)])
        # If the same evaluation was repeated, keep only the last.
        keys = ["evaluation", "checkpoint", "split", "length", "subgroup"]
        return found.unique(subset=keys, keep="last", maintain_order=True)

    def predictions(self) -> pl.DataFrame:
        """Return the model's answers: every wrong one in full, and the index ranges of the correct ones."""
        self._finished()
        return read_predictions(self.read("predictions.parquet"), f"{self.folder}/predictions.parquet")

    def log(self) -> list[dict[str, Any]]:
        """Return the training log of all attempts, in order of steps; a later attempt replaces an earlier one."""
        told: dict[tuple[int, bool], dict[str, Any]] = {}
        for attempt in attempts_of(self.folder.parent):
            if attempt.exists("train.jsonl"):
                lines = attempt.read("train.jsonl").decode(errors="replace").splitlines()
                for one in (parsed(line, f"{attempt}/train.jsonl") for line in lines):
                    if type(one.get("step")) is not int:
                        raise Damaged(f"{attempt}/train.jsonl is damaged: a line has no step")
                    told[one["step"], "exact_match" in one] = one
        return [told[key] for key in sorted(told)]

    def _finished(self) -> None:
        if not self.done:
            raise SpecError(f"run {self.id} is not finished; start it again, it goes on where it was stopped")

    # --- weights -----------------------------------------------------------------------------------------------------

    @cached_property
    def ends(self) -> dict[str, Any]:
        """What the attempt recorded at its end: labelled steps, kept weights, checks, validations."""
        self._finished()
        source = f"{self.folder}/done"
        return check_seal(parsed(self.read("done"), source), source)

    @cached_property
    def checkpoints(self) -> dict[str, int]:
        """The step of each labelled checkpoint."""
        return self.ends["checkpoints"]

    def weights(self, checkpoint: str = "last") -> dict[str, Tensor]:
        """The weights of a labelled checkpoint."""
        if checkpoint not in self.checkpoints:
            raise SpecError(
                f"run {self.id} has no checkpoint {checkpoint!r}.{did_you_mean(checkpoint, self.checkpoints)}"
            )
        if checkpoint == "last":
            return unpack(self.read("model.safetensors"))
        return unpack(self._read(self.ends["kept"][str(self.checkpoints[checkpoint])]))

    def decoder(
        self,
        checkpoint: str = "last",
        *,
        encoding: str | Sequence[str] | None = None,
        temperature: str | None = None,
        allow: Iterable[str] = (),
    ) -> Decoder:
        """Return the decoder with the run's weights, optionally with another encoding or attention temperature."""
        plan = self.plan
        self._unchanged()
        config = plan.model if temperature is None else plan.model.model_copy(update={"temperature": temperature})
        if encoding is None:
            listed = plan.encodings
        else:
            named = encodings_of(encoding, config.layers)
            listed = list(named) * config.layers if len(named) == 1 else list(named)
        decoder = Decoder(config, listed, seed=plan.seeds.init)
        load_matching_weights(decoder, self.weights(checkpoint), allow, self.id)
        decoder.effective()  # raise now for an option that has no effect
        return decoder

    def _check_code(self) -> None:
        """Refuse a file of code that is not the one of the run, before it is executed."""
        for name, recorded in self.run_json.get("code", {}).items() if self.known_plan is None else ():
            if recorded is not None and source_digest(name) != recorded:
                raise SpecError(
                    f"run {self.id} was made with other code than {name} is now; it is not run, and the run's weights "
                    "cannot be used with it"
                )

    def _unchanged(self) -> None:
        """Refuse if code or data from outside has changed since the run."""
        self._check_code()
        if self.plan.id == self.id:
            return
        before, now = self.run_json["identity"], json.loads(json.dumps(self.plan.identity()))
        parts = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        raise SpecError(
            f"run {self.id} was made with another {' and '.join(parts) or 'version'} than there is now (code or data "
            "from outside has changed); its rows can be read, its weights cannot be used with what is there"
        )

    def evaluation_inputs(self) -> tuple[Decoder, Positions, tuple[str, ...]]:
        """Return what `evaluate` needs: decoder, positions, and the symbols of its vocabulary."""
        return self.decoder(), self.plan.positions, self.task.vocabulary.symbols

    def max_training_sequence_length(self) -> int:
        """Return the input tokens of (about) the longest training sequence: all but the end token."""
        return max([len(self.plan.longest_training_ids()), *(len(case.ids) for case in seen_cases(self.task))]) - 1

    def evaluate(
        self,
        lengths: Sequence[int] | str | None = None,
        *,
        checkpoint: str = "last",
        encoding: str | None = None,
        temperature: str | None = None,
        allow: Iterable[str] = (),
        examples: int | None = None,
        decoding: str = "checked",
        stop_after_zeros: int | None = None,
        device: str = "auto",
        dtype: Dtype = "auto",
        say: Callable[[str], None] | None = None,
    ) -> EvaluationResult:
        """Evaluate the stored weights again, optionally with changes; the column `evaluation` records the changes.

        An evaluation is in fp32, however the run was trained, unless `dtype` is `bf16`. With `stop_after_zeros=2`,
        lengths after two in a row without a right answer are not evaluated but recorded as 0, with null in `tokens`.
        """
        if temperature is not None:
            temperature = temperature_with_trained_length(temperature, self.max_training_sequence_length)
        encoding = None if encoding is None else with_trained_length(encoding, self.plan.longest_budget)
        changed = {"encoding": without_paths(encoding), "temperature": temperature, "examples": examples}
        changed |= {"dtype": dtype} if mixed_precision(dtype) else {}
        changed |= {"stop_after_zeros": stop_after_zeros}  # some of its zeros are not measured
        name = " ".join(f"{key}={value}" for key, value in changed.items() if value is not None) or AS_TRAINED
        decoder = self.decoder(checkpoint, encoding=encoding, temperature=temperature, allow=allow)
        found = evaluate_decoder(
            place(decoder, device, bf16=bool(mixed_precision(dtype))),
            self.task,
            lengths,
            examples=examples,
            positions=self.plan.positions,
            labels={"run": self.id, "evaluation": name, "checkpoint": checkpoint},
            decoding=decoding,
            stop_after_zeros=stop_after_zeros,
            on_progress=say,
        )
        return replace(found, effective=decoder.effective())

    def store_evaluation(self, result: EvaluationResult) -> str:
        """Store the rows of a later evaluation in the run's folder; return the file's name."""
        data = frame_to_parquet(result.rows)
        name = f"rows-{checksum(data).partition(':')[2]}.parquet"
        self.folder.write(name, data)
        return name

    def _later_rows(self, name: str) -> pl.DataFrame:
        """Read the rows of a later evaluation; the name of the file has the checksum of its content."""
        data = self.folder.read(name)
        recorded = name.removeprefix("rows-").removesuffix(".parquet")
        if len(recorded) == 32 and recorded != checksum(data).partition(":")[2]:
            raise Damaged(f"{self.folder}/{name} is damaged: evaluate again with --save, or remove it")
        return read_rows(data, f"{self.folder}/{name}")


def with_trained_length(encoding: str, get_trained_length: Callable[[], int]) -> str:
    """Add the trained length to each rope whose scaling needs one and does not name it."""
    found, filled = parse_specs(encoding), False
    for number, spec in enumerate(found):
        given = dict(spec.options)
        by_length = given.get("scaling") in {"dynamic", "yarn", "llama3", "longrope"} or "factor" not in given
        if spec.name == "rope" and given.get("scaling") is not None and "trained" not in given and by_length:
            found[number] = Spec("rope", (*spec.options, ("trained", get_trained_length())))
            filled = True
    return ",".join(map(str, found)) if filled else encoding


def temperature_with_trained_length(temperature: str, get_trained_length: Callable[[], int]) -> str:
    """Add the trained length to the attention temperature `log-n` if it does not name one."""
    spec = Spec.of(temperature)
    missing = spec.name == "log-n" and "trained" not in dict(spec.options)
    return f"{temperature}:trained={get_trained_length()}" if missing else temperature


def load_matching_weights(
    decoder: Decoder, weights: Mapping[str, Tensor], allowed_mismatches: Iterable[str], source: str
) -> None:
    """Load weights; missing or surplus ones must match a pattern of `allowed_mismatches`, and shapes must agree."""
    own, patterns = decoder.state_dict(), list(allowed_mismatches)
    missing, surplus = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    refused = [name for name in (*missing, *surplus) if not any(fnmatch.fnmatch(name, one) for one in patterns)]
    if refused:
        parts = []
        for what, names in (("missing", missing), ("left over", surplus)):
            if listed := [name for name in names if name in refused]:
                parts.append(f"{what}: {', '.join(listed)}")
        raise SpecError(
            f"the weights of {source} do not fit this model; {'; '.join(parts)}. "
            f"If that is meant, allow it by name: --allow {refused[0].rpartition('.')[0]}.* (in a study, allow: [...])"
        )
    for name in set(own) & set(weights):
        if own[name].shape != weights[name].shape:
            raise SpecError(f"{name} is {tuple(weights[name].shape)} in {source}, and {tuple(own[name].shape)} here")
    decoder.load_state_dict({**own, **{name: weights[name] for name in set(own) & set(weights)}})


def attempts_of(run_folder: Folder) -> list[Folder]:
    """Return the folders of a run's attempts, oldest first."""
    return [run_folder / name for name in sorted((name for name in run_folder.names() if name.isdecimal()), key=int)]
