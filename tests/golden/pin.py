"""Pinned examples: `python -m tests.golden.pin` writes tests/golden/tasks.json.

A hash may change only together with its task's `version` (and a line in CHANGELOG.md): the numbers of a study are about
these examples. Evaluation sets alone may also change with `VERSION` of `sets.py`, which leaves training as it is.
What is new is added; what changed without a new version is refused.
"""

import hashlib
import json
import sys
from pathlib import Path

from lengthwise.task import FROM_DATA, PUBLISHED, TASKS, build_task
from lengthwise.task.block import training_block
from lengthwise.task.sets import (
    VERSION,
    evaluation_instances,
    instances,
    lengths_of,
    splits,
    training_lengths_and_indices,
)

FILE = Path(__file__).parent / "tasks.json"
NAMES = [
    *(f"{name}:protocol={protocol}" for name in PUBLISHED for protocol in ("ours", "paper")),
    *(name for name in TASKS if name not in FROM_DATA and name not in {one.partition(":")[0] for one in PUBLISHED}),
    *(f"{name}:scratchpad=full" for name in ("addition", "polynomial", "summation", "parity", "sort", "lego")),
    "addition:reversed=all:padded=true:hints=32:spaces=0.25",
]


def pinned(name: str) -> dict[str, object]:
    """Version, text of the first example, and hashes of the first 1,000 training examples and the evaluation sets."""
    task = build_task(name)
    lengths, indices = training_lengths_and_indices(task, 0, 1000)
    made = [task.to_example(one) for one in instances(task, "train", lengths.tolist(), indices.tolist())]
    train = [[length, *map(list, example)] for length, example in zip(lengths.tolist(), made, strict=True)]
    held_out = [
        [split, length, [list(task.to_example(one)) for one in evaluation_instances(task, split, length, 20)]]
        for split in splits(task)
        if split != "train"
        for length in lengths_of(task, split)
    ]
    return {
        "version": task.version,
        "sets": VERSION,
        "first": made[0].text,
        "train": _hash(train),
        "ids": _hash(training_block(task, 0, 1000).ids.tolist()),
        "evaluation": _hash(held_out),
    }


def _hash(value: object) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def changed_without_a_version(before: dict, after: dict) -> list[str]:
    """The names whose examples changed although their version did not."""
    return [
        name
        for name, now in after.items()
        if name in before and before[name]["version"] == now["version"] and _differ(before[name], now)
    ]


def _differ(before: dict, now: dict) -> bool:
    """Whether examples differ that the version of the sets does not excuse."""
    excused = {"sets", "evaluation"} if before.get("sets", 1) != now["sets"] else set()
    return any(before.get(part) != now[part] for part in now if part not in excused)


def main() -> None:
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    after = {name: pinned(name) for name in NAMES}
    refused = changed_without_a_version(before, after)
    if refused:
        sys.exit(f"these examples changed; raise the task's version first: {', '.join(refused)}")
    FILE.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
