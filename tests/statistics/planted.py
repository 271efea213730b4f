"""Studies whose truth is known: rows and labels from accuracies that are written down."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from lengthwise.evaluation.rows import rows_to_frame

L = 4
"""The longest length that was trained on."""

Planted = Mapping[tuple[str, str, int], Sequence[float] | float | None]
"""(task, encoding, seed) → accuracy at the unseen lengths L+1 to 2L, or at all of them; None where it is not done."""


def named(planted: Planted) -> pl.DataFrame:
    lines = [{"run": run(*key), "task": key[0], "encoding": key[1], "seed": key[2]} for key in planted]
    return pl.DataFrame(lines, schema={"run": pl.String, "task": pl.String, "encoding": pl.String, "seed": pl.Int64})


def run(task: str, encoding: str, seed: int) -> str:
    return f"{task}-{encoding}-s{seed}"


def made(
    planted: Planted,
    examples: int = 200,
    chance: float | Mapping[str, float] = 0.0,
    seen: Mapping[tuple[str, str, int], float] | None = None,
    checkpoint: str = "last",
    content: float | None = None,
    seen_split: str = "test_seen",
) -> pl.DataFrame:
    """Rows; `content` is added to the accuracy where the model is told where to stop."""
    lines = []
    for key, values in planted.items():
        if values is None:
            continue
        unseen = [values] * L if isinstance(values, float | int) else list(values)
        places = [(seen_split, length, (seen or {}).get(key, 1.0)) for length in range(1, L + 1)]
        places += [("test_unseen", L + 1 + at, value) for at, value in enumerate(unseen)]
        for split, length, value in places:
            right = round(value * examples)
            told = None if content is None else min(examples, round((value + content) * examples))
            lines.append(
                {
                    "run": run(*key),
                    "evaluation": "as trained",
                    "checkpoint": checkpoint,
                    "split": split,
                    "seen": length <= L,
                    "length": length,
                    "examples": examples,
                    "correct": right,
                    "correct_content": told,
                    "wrong": examples - right,
                    "chance": chance if isinstance(chance, float) else chance[key[0]],
                }
            )
    return rows_to_frame(lines)


def predictions(right: Mapping[str, Mapping[int, np.ndarray]]) -> pl.DataFrame:
    """Predictions as a run stores them, from run → length → right or wrong: right ones as ranges."""
    lines: list[dict[str, object]] = []
    for name, own in right.items():
        for length, outcome in own.items():
            for index, good in enumerate(outcome):
                line = {"run": name, "evaluation": "as trained", "checkpoint": "last", "split": "test_unseen"}
                line |= {"length": length, "first": index, "last": index, "kind": "right" if good else "wrong"}
                before = lines[-1] if lines else {}
                if good and all(before.get(key) == line[key] for key in ("run", "length", "kind")):
                    before["last"] = index
                else:
                    lines.append(line)
    return pl.DataFrame(lines)
