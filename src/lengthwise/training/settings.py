"""How a model is trained: typed, frozen fields, and the presets that fill them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from lengthwise.spec import Spec, SpecError, did_you_mean, require_known_fields, validated
from lengthwise.task.sets import BLOCK


class Training(BaseModel):
    """Every option of a training; all encodings get the same steps on the same batches in the same order."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: ClassVar[int] = 1
    also_called: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("rate", "learning_rate", "max_lr", "peak_lr"), "lr"),
        **dict.fromkeys(("batch", "bs", "bsz", "per_device_train_batch_size", "train_batch_size"), "batch_size"),
        **dict.fromkeys(("max_steps", "num_steps", "iterations"), "steps"),
        **dict.fromkeys(("decay", "wd"), "weight_decay"),
        **dict.fromkeys(("clip", "max_grad_norm", "gradient_clip", "clip_grad_norm"), "grad_clip"),
        **dict.fromkeys(("warmup_steps", "num_warmup_steps"), "warmup"),
        **dict.fromkeys(("floor", "lr_min", "eta_min"), "min_lr"),
        **dict.fromkeys(("accumulate", "gradient_accumulation_steps", "grad_accum"), "accumulation"),
        **dict.fromkeys(("epsilon", "adam_epsilon"), "eps"),
        **{"adam_beta1": "beta1", "adam_beta2": "beta2", "bf16": "autocast", "amp": "autocast"},
        **{"lr_scheduler_type": "schedule", "scheduler": "schedule", "decay_all": "decay_norms"},
    }
    """Names that other trainers, and older versions, have for these options."""

    steps: int = Field(gt=0, le=1_000_000_000)
    batch_size: int = Field(gt=0, le=10_000_000)
    """Sequences of one optimizer step."""
    lr: float = Field(gt=0, allow_inf_nan=False)
    """The highest learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls from `lr` to `min_lr`, after a linear rise over `warmup` steps, at most a tenth of all."""
    warmup: int = Field(default=100, ge=0)
    min_lr: float = Field(default=0.0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.98, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, on matrices only."""
    decay_norms: bool = False
    """Weight decay on vectors too (norms), as the original does."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """The largest norm of the gradient."""
    batching: Literal["length", "mixed"] = "length"
    """`length` sorts the examples of a window of batches by their tokens, `mixed` takes them as they come."""
    window: int = Field(default=32, gt=0, le=512)
    """Batches per window; a window holds the same examples with either kind of batching."""
    accumulation: int = Field(default=1, gt=0)
    """The number of parts in which a batch is computed; the gradient is that of the whole batch."""
    autocast: bool = False
    """Matrix products in bf16."""
    pseudo_labels_up_to: int | None = Field(default=None, gt=0)
    """Train on longer inputs too, up to this length, labelled with answers of the run that this one starts from."""
    pseudo_examples: int = Field(default=1000, ge=1, le=1_000_000)
    """Inputs of each longer length that get a pseudo-label, before the labels are filtered."""
    validations: int = Field(default=10, ge=1)
    """The number of validations on seen lengths, at equal intervals; the `best` checkpoint is chosen among them."""
    validation_examples: int = Field(default=512, ge=1)
    """Examples of a validation, spread over the seen lengths."""

    def lr_at(self, step: int) -> float:
        """The learning rate of step 0, 1, ...: a rise over `warmup` steps, then the schedule."""
        warmup = min(self.warmup, self.steps // 10)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        if self.schedule == "constant":
            return self.lr
        done = (step - warmup) / max(self.steps - warmup, 1)
        share = (1 + cos(pi * done)) / 2 if self.schedule == "cosine" else 1 - done
        return self.min_lr + (self.lr - self.min_lr) * share

    @property
    def window_steps(self) -> int:
        """Batches per window, limited to as many examples as fit into a block."""
        return max(1, min(self.window, BLOCK // self.batch_size))

    @property
    def saved_every(self) -> int:
        """The default number of steps between checkpoints: a twentieth of all, at most a thousand."""
        return max(1, min(self.steps // 20, 1000))

    @property
    def stages(self) -> dict[str, int]:
        """The steps at a quarter, half and three quarters, by their labels."""
        return {f"{share}%": max(1, self.steps * share // 100) for share in (25, 50, 75)}

    @property
    def validation_steps(self) -> list[int]:
        """The steps after which there is a validation; the last one is among them."""
        return sorted({max(1, self.steps * count // self.validations) for count in range(1, self.validations + 1)})


@dataclass(frozen=True)
class Seeds:
    """One seed per random stream, so that one can be changed alone: `Seeds.of(3, order=7)`."""

    init: int
    data: int
    order: int
    dropout: int

    @classmethod
    def of(cls, seed: int, **changes: int) -> Seeds:
        """All streams from one seed, but for the changes."""
        streams = {"init": seed, "data": seed, "order": seed, "dropout": seed}
        for name, value in changes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SpecError(f"the seed of stream {name!r} is a whole number from 0, not {value!r}")
            if name not in streams:
                raise SpecError(f"there is no random stream {name!r}.{did_you_mean(name, streams)}")
        return cls(**{**streams, **changes})


def parse_streams(given: Sequence[str]) -> dict[str, int]:
    """Return the seeds of random streams that are written as `order=7`."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"[0-9]{1,18}", value):
            raise SpecError(f"a stream is written name=seed, e.g. order=7, not {one!r}")
        found[name] = int(value)
    return found


PRESETS: dict[str, dict[str, object]] = {
    # About a CPU minute; `laptop.py` has the settings per task.
    "laptop": {"steps": 2000, "batch_size": 64, "lr": 1e-3},
    # Language models: about ten minutes of one core at a context of 128.
    "nano": {
        "steps": 750,
        "batch_size": 32,
        "lr": 2e-3,
        "weight_decay": 0.1,
        "batching": "mixed",
        "validations": 5,
        "validation_examples": 128,
    },
    # Haviv et al. 2022: 10,000 steps of 256,000 tokens at a context of 1,024.
    "haviv": {
        "steps": 10_000,
        "batch_size": 250,
        "lr": 2e-3,
        "warmup": 500,
        "weight_decay": 0.01,
        "batching": "mixed",
        "autocast": True,
    },
    # Kazemnejad et al. 2023, appendix F: 30 billion tokens at a context of 1,024.
    "code": {
        "steps": 114_440,
        "batch_size": 256,
        "lr": 2e-4,
        "warmup": 2289,
        "beta2": 0.95,
        "weight_decay": 0.1,
        "batching": "mixed",
        "autocast": True,
    },
    # Kazemnejad et al. 2023: HF Trainer's AdamW, linear decay, 6 % warm-up, norms decayed too; half of validation.
    "paper": {
        "steps": 40_000,
        "batch_size": 64,
        "lr": 3e-5,
        "schedule": "linear",
        "warmup": 2400,
        "min_lr": 1e-7,
        "beta2": 0.999,
        "weight_decay": 0.05,
        "decay_norms": True,
        "batching": "mixed",
        "validations": 20,
        "validation_examples": 7498,
    },
}


Dtype = Literal["auto", "fp32", "bf16"]
"""`bf16` is mixed precision (`autocast`), `fp32` is not, and `auto` is what the training preset says."""


def mixed_precision(dtype: str) -> bool | None:
    """Return whether a dtype asks for mixed precision; None for `auto`."""
    if dtype not in {"auto", "fp32", "bf16"}:
        raise SpecError(f"dtype is auto, fp32 or bf16, not {dtype!r}")
    return None if dtype == "auto" else dtype == "bf16"


def with_options(training: str | Mapping[str, object] | Spec, **changes: float | None) -> Spec:
    """Return the name of a training with some options changed; None leaves an option as it is."""
    given = Spec.of(training)
    said = {key: value for key, value in changes.items() if value is not None}
    return Spec(given.name, tuple({**dict(given.options), **said}.items()))


def training_preset(
    spec: str | Mapping[str, object] | Spec, defaults: Mapping[str, object] | None = None, **changes: object
) -> Training:
    """The training of a preset with changes, e.g. `training_preset("laptop:steps=500")`; `defaults` are a task's."""
    spec = Spec.of(spec)
    if spec.name not in PRESETS:
        raise SpecError(f"unknown training {spec.name!r}.{did_you_mean(spec.name, PRESETS)}")
    fields = {**PRESETS[spec.name], **(defaults or {}), **dict(spec.options), **changes}
    require_known_fields("training", spec.name, Training, fields)
    if isinstance(fields["lr"], int) and not isinstance(fields["lr"], bool):
        fields["lr"] = float(fields["lr"])
    return validated("training", spec.name, Training, fields)
