"""How long 100,000 training examples take: drawing, rejection by content, rendering, ids, progress bar. One core.

The goal is 5 s for every task, 20 s for pcfg. `--profile NAME` prints where the time of one task goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time

from machine import cpu
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lengthwise.task import PUBLISHED, build_task
from lengthwise.task.block import training_block
from lengthwise.task.sets import BLOCK

TASKS = [*PUBLISHED, "count", "multiplication", "dyck", "recall", "flipflop", "modular"]
FULL = [f"{name}:scratchpad=full" for name in ("addition", "polynomial", "sort", "summation", "parity", "lego")]


def goal(name: str) -> float | None:
    """Seconds for 100,000 examples; scratchpads have none."""
    return None if "scratchpad" in name else 20.0 if name.startswith("pcfg") else 5.0


def materialised(name: str, examples: int) -> tuple[float, int]:
    """Seconds and tokens of `examples` training examples, from a task that was never used before."""
    began = time.perf_counter()
    task, tokens = build_task(name), 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=examples)
        for start in range(0, examples, BLOCK):
            block = training_block(
                task, start, min(start + BLOCK, examples), on_progress=lambda done: progress.advance(bar, done)
            )
            tokens += len(block.ids)
    return time.perf_counter() - began, tokens


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--only", help="tasks, separated by commas")
    parser.add_argument("--profile", help="one task: print its profile instead")
    chosen = parser.parse_args()
    if chosen.profile:
        with cProfile.Profile() as profile:
            materialised(chosen.profile, chosen.examples)
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)
        return
    names = (
        chosen.only.split(",") if chosen.only else [*TASKS, *(f"{name}:protocol=paper" for name in PUBLISHED), *FULL]
    )
    table = Table("task", "seconds", "goal", "µs an example", "tokens an example", box=None)
    results = {}
    for name in names:
        seconds, tokens = materialised(name, chosen.examples)
        limit = goal(name)
        results[name] = {"seconds": round(seconds, 2), "tokens": tokens, "goal": limit}
        missed = limit is not None and seconds * 100_000 / chosen.examples > limit
        table.add_row(
            name,
            f"{seconds:.2f}" + (" MISSED" if missed else ""),
            "" if limit is None else f"{limit:.0f}",
            f"{seconds / chosen.examples * 1e6:.1f}",
            f"{tokens / chosen.examples:.1f}",
        )
    Console(width=110).print(table)
    print(json.dumps({"benchmark": "tasks", "cpu": cpu(), "examples": chosen.examples, "results": results}))


if __name__ == "__main__":
    main()
