"""The model under evaluation: a run, our decoder or any callable, with functions for its logits and decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from lengthwise.encoding import build_positions
from lengthwise.encoding.positions import Consecutive, Positions
from lengthwise.evaluation.cases import Case
from lengthwise.evaluation.decoding import (
    Decode,
    Outside,
    call_external_model,
    decoder_decode_function,
    external_decode_function,
    position_limit,
)
from lengthwise.evaluation.onepass import Logits, decoder_logits_function
from lengthwise.model import Decoder
from lengthwise.spec import SpecError
from lengthwise.task.base import Task


@runtime_checkable
class HasTask(Protocol):
    """The part of a run that `evaluate` needs: what it was trained on."""

    @property
    def task(self) -> Task:
        """The task, with the lengths it was trained on."""
        ...

    @property
    def task_name(self) -> str:
        """The spec of the task as text."""
        ...


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation: its logits, its decoding, and whether one pass predicts decoding (`stable`)."""

    logits: Logits
    decode: Decode
    positions: Positions
    limit: int | None
    stable: bool

    @classmethod
    def of(
        cls, model: object, task: Task, positions: Positions | str | None, decoding_batch_rows: int
    ) -> EvaluatedModel:
        """Build the subject of a run, our decoder or any callable."""
        end = task.vocabulary.eos
        if hasattr(model, "evaluation_inputs"):
            decoder, trained, symbols = model.evaluation_inputs()  # a run: its decoder, positions and symbols
            if symbols != task.vocabulary.symbols:
                raise SpecError(f"the run was trained with other symbols than {task.name} has here; give its own task")
            model, positions = decoder, trained if positions is None else positions
        if isinstance(positions, str):
            positions = build_positions(positions)
        kind = (positions or Consecutive()).of(task).at_test()
        if isinstance(model, Decoder):
            if model.config.vocabulary < len(task.vocabulary):
                raise SpecError(
                    f"the model knows {model.config.vocabulary} tokens, {task.name} has {len(task.vocabulary)}: "
                    "it was made for another task"
                )
            model.eval()
            # Under a prefix mask the prompt does not see the answer, so later tokens change no earlier logits either.
            stable = model.config.mask != "bidirectional" and model.prefix_stable
            return cls(
                decoder_logits_function(model, kind),
                decoder_decode_function(model, kind, end, decoding_batch_rows),
                kind,
                position_limit(model),
                stable,
            )
        if not callable(model):
            raise SpecError(f"a model is a run, a decoder or a function of (ids, lengths), not {type(model).__name__}")
        if not isinstance(kind, Consecutive):
            raise SpecError("a function of (ids, lengths) counts positions itself; leave out positions")
        return cls(
            _outside_logits(model, task), external_decode_function(model, end, decoding_batch_rows), kind, None, True
        )


def _outside_logits(model: Outside, task: Task) -> Logits:
    def logits(chosen: list[Case], ids_BT: Tensor, tokens: list[int], wanted_BT: Tensor) -> Tensor:
        got_BTV = call_external_model(model, ids_BT, ids_BT.new_tensor(tokens))
        if not isinstance(got_BTV, Tensor) or got_BTV.ndim != 3 or got_BTV.shape[:2] != ids_BT.shape:
            shape = tuple(got_BTV.shape) if isinstance(got_BTV, Tensor) else type(got_BTV).__name__
            raise SpecError(f"the model must return logits ({ids_BT.shape[0]}, {ids_BT.shape[1]}, V), not {shape}")
        if got_BTV.shape[2] < len(task.vocabulary):
            raise SpecError(f"the model has {got_BTV.shape[2]} logits, {task.name} has {len(task.vocabulary)} tokens")
        return got_BTV[wanted_BT]

    return logits
