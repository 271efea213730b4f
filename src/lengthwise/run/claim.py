"""What is settled before an attempt begins: whose weights it starts with, and that it is nobody else's."""

from __future__ import annotations

import json
from typing import Any

from lengthwise.folder import Folder
from lengthwise.run.identity import Plan
from lengthwise.run.machine import alive, recorded
from lengthwise.run.record import Run, attempts_of
from lengthwise.spec import SpecError, digest
from lengthwise.training.parallel import Team


def start_of(start: str, store: str) -> tuple[Run, dict[str, str]]:
    """The run to begin from, and what of it belongs to the new run's identity."""
    where, _, checkpoint = start.partition("@")
    run = Run.open(where, store)
    label = checkpoint or "last"
    weights = run.weights(label)
    content = {
        name: digest(value.double().sum().item(), value.double().square().sum().item(), bits=64)
        for name, value in weights.items()
    }
    return run, {"run": run.id, "checkpoint": label, "weights": f"{digest(content, bits=64):016x}"}


def claim(home: Folder, plan: Plan, processes: Team, every: int | None) -> tuple[int, Folder | None]:
    """The number of this attempt, or the folder of one that is done; the first process decides for all."""
    found: list[Any] = [0, None, None]
    if processes.first:
        try:
            attempts = attempts_of(home)
            for attempt in attempts:
                if attempt.exists("done"):
                    found = [0, attempt.leaf, None]
                    break
            else:
                if attempts and (owner := alive(attempts[-1])) is not None:
                    raise SpecError(f"run {plan.id} is being run by {owner}; wait for it, or stop it")
                number = int(attempts[-1].leaf) + 1 if attempts else 1
                record = {"version": 1, "id": plan.id, "options": plan.options(), "identity": plan.identity()}
                record["recorded"] = recorded(processes.size, processes.shard, every)
                if not (home / str(number)).create("run.json", json.dumps(record, indent=1)):
                    raise SpecError(f"run {plan.id} has just been started by somebody else")
                found = [number, None, None]
        except SpecError as error:
            found = [0, None, str(error)]
    found = processes.agree(found)
    if found[2] is not None:
        raise SpecError(found[2])
    return found[0], None if found[1] is None else home / found[1]
