"""Findings of a study that was never run: rows that fall off somewhere, with the real plan behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from lengthwise.evaluation.cases import splits_and_lengths
from lengthwise.evaluation.rows import COLUMNS
from lengthwise.reporting.findings import Findings, run_label_table
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Item, Planned
from lengthwise.study.proof import check_only_encoding_differs

STRENGTH = {"nope": 1.5, "t5": 1.4, "alibi": 1.3, "rope": 1.2, "rope:fraction=0.25": 1.05, "sinusoidal": 1.02}
FIVE = ["nope", "t5", "alibi", "rope", "sinusoidal"]
TASKS = ["copy:longest=8:variant=same", "sort:longest=6", "parity:longest=8"]


def study(tasks: Sequence[str] = TASKS, encodings: Sequence[str] = FIVE, seeds: int = 3, **more: object) -> StudyFile:
    return StudyFile.of(
        {
            "name": "made",
            "question": "Which encoding reaches further, in numbers that were made up?",
            "vary": {"task": list(tasks), "encoding": list(encodings)},
            "seeds": seeds,
            **more,
        }
    )


def rows_of(
    items: Sequence[Item], seed: int = 0, labels: Sequence[str] = ("last", "best", "earliest_best")
) -> pl.DataFrame:
    """256 examples of each tested length; each run falls off around its encoding's strength times L."""
    dice, columns = np.random.default_rng(seed), {name: [] for name in COLUMNS}
    known: dict[str, list[tuple[str, int]]] = {}
    for item in items:
        task = item.plan.task
        tested = known.setdefault(item.point.task, splits_and_lengths(task))
        edge = task.longest * STRENGTH.get(item.point.encoding, 1.15) * dice.normal(1, 0.05)
        for split, length in tested:
            p = 0.999 / (1 + np.exp((length - edge) / (0.05 * task.longest + 0.1)))
            right = int(dice.binomial(256, p))
            early, late, wrong, cut = (int(n) for n in dice.multinomial(256 - right, [0.4, 0.2, 0.3, 0.1]))
            counts = {"examples": 256, "correct": right, "correct_content": right + late, "early": early, "late": late}
            for label in labels:
                line = {
                    "run": item.key,
                    "evaluation": "as trained",
                    "checkpoint": label,
                    "split": split,
                    "subgroup": None,
                }
                line |= {
                    "seen": length <= task.longest,
                    "length": length,
                    "tokens": 2 * length,
                    "wrong": wrong,
                    "cut": cut,
                }
                line |= {**counts, "chance": float(task.chance(length)), "loss": None, "targets": None}
                for name, value in line.items():
                    columns[name].append(value)
    return pl.DataFrame(columns, schema={name: getattr(pl, kind) for name, kind in COLUMNS.items()})


def findings(made: StudyFile | None = None, items: Sequence[Item] | None = None, **more: object) -> Findings:
    planned = Planned(made or study())
    items = list(items if items is not None else planned.items({})[0])
    return Findings(
        planned.study,
        items,
        len(items),
        rows_of(items).join(run_label_table(items), on="run"),
        proof=check_only_encoding_differs(items),
        sources={"nowhere": 1},
        **more,
    )


def evil(script: str) -> Findings:
    """Findings whose texts, wherever they come from, try to run code."""
    made = study(TASKS[:2], FIVE[:3], question=f"{script} which?", deviations=[f"{script}"])
    plain = "<script>window.planted=1</script>"  # an option has no colon
    items = [
        replace(item, point=replace(item.point, task=f"{item.point.task}:note={plain}", encoding=item.point.encoding))
        for item in Planned(made).items({})[0]
    ]
    wrong = pl.DataFrame(
        [
            {"run": item.key, "evaluation": "as trained", "checkpoint": "last", "split": "test_unseen", "length": 13}
            | {"first": 0, "last": 0, "kind": "wrong", "prompt": script, "answer": "b", "said": f"{script}</code>"}
            for item in items
        ]
    )
    return findings(made, items, wrong=wrong, guard=script, failed={"x": script})
