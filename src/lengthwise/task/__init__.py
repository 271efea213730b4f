"""What is learned: tasks, one file each. numpy only.

To add a task, write its file and add a line to `TASKS`; every contract test then covers it. `my_lab.tasks:Mine` and
`my_task.py:Mine` are accepted wherever a task name is, so your own task needs no fork.

Legend of shape suffixes here: N examples of a block, T tokens of a batch, B rows of a batch.
"""

from __future__ import annotations

import typing
from pathlib import Path

from lengthwise.spec import Spec, SpecError, build, resolve

if typing.TYPE_CHECKING:
    from lengthwise.task.base import Task

TASKS = {
    "copy": "lengthwise.task.copy:Copy",
    "reverse": "lengthwise.task.reverse:Reverse",
    "addition": "lengthwise.task.addition:Addition",
    "polynomial": "lengthwise.task.polynomial:Polynomial",
    "sort": "lengthwise.task.sort:Sort",
    "summation": "lengthwise.task.summation:Summation",
    "parity": "lengthwise.task.parity:Parity",
    "lego": "lengthwise.task.lego:Lego",
    "scan": "lengthwise.task.scan:Scan",
    "pcfg": "lengthwise.task.pcfg:Pcfg",
    "count": "lengthwise.task.count:Count",
    "multiplication": "lengthwise.task.multiplication:Multiplication",
    "dyck": "lengthwise.task.dyck:Dyck",
    "recall": "lengthwise.task.recall:Recall",
    "flipflop": "lengthwise.task.flipflop:Flipflop",
    "modular": "lengthwise.task.modular:Modular",
    "group": "lengthwise.task.group:Group",
    "majority": "lengthwise.task.majority:Majority",
    "nback": "lengthwise.task.nback:Nback",
    "mqmtar": "lengthwise.task.mqmtar:Mqmtar",
    "file": "lengthwise.task.file:File",
    "text": "lengthwise.task.text:Text",
}
FROM_DATA = ("file", "text")
"""Tasks that need data of the user's, and so have no example of their own."""

PUBLISHED = (
    *(f"copy:variant={variant}" for variant in ("same", "same2", "replace", "random", "random2")),
    *(f"reverse:variant={variant}" for variant in ("once", "twice", "back")),
    *("addition", "polynomial", "sort:variant=single", "sort:variant=multi", "summation", "parity", "lego"),
    *("scan", "pcfg"),
)
"""The 17 variants of the published comparison."""


def build_task(spec: str | typing.Mapping[str, object] | Spec) -> Task:
    """Build the task that `spec` names, e.g. `build_task("copy:variant=random")`."""
    from lengthwise.task.base import Task

    spec = Spec.of(spec)
    if spec.name in TASKS:
        return typing.cast(Task, build("task", TASKS, Task, spec))
    return _from_outside(spec)


def _from_outside(spec: Spec) -> Task:
    """Build a task that is not in `TASKS`; errors in a user's own class are raised as `SpecError`s that name it."""
    from lengthwise.task.base import Task
    from lengthwise.task.outside import (
        is_outside_package,
        refuse_incomplete_task,
        refuse_undeclared_options,
        wrap_task_errors,
    )

    name = spec.name
    if ":" not in name and not name.endswith(".py") and Path(name).is_file():
        raise SpecError(f"{name!r} is a file; as a task it is file:path={name}:longest=N, trained up to length N")
    cls = resolve("task", TASKS, name)
    if issubclass(cls, Task):
        refuse_undeclared_options(cls, name)
    task = typing.cast(Task, build("task", TASKS, Task, spec))
    refuse_incomplete_task(task, name)
    return wrap_task_errors(task, name) if is_outside_package(cls) else task
