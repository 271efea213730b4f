"""Our tasks as files for EleutherAI's lm-evaluation-harness, with the prompts of `few_shot.py`.

The harness has no notion of a length, so each length is a task of its own, and a group has them all. Solved examples
are in the prompts, so the harness is told to add none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lengthwise.display import Display, Part
from lengthwise.evaluation.cases import splits_and_lengths
from lengthwise.foreign.prompts import LINE_END, questions
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.base import Task


@dataclass(frozen=True, repr=False)
class HarnessTask(Display):
    """What was written: the name to give to `lm_eval --tasks`, and the name of each length's task."""

    folder: Path
    group: str
    tasks: dict[int, str]

    @property
    def command(self) -> str:
        """The command that measures a model in the folder MODEL."""
        return (
            "HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 lm_eval --model hf --model_args pretrained=MODEL "
            f"--tasks {self.group} --include_path {self.folder}"
        )

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The names of the tasks, and the command."""
        yield Part([{"length": length, "task": name} for length, name in self.tasks.items()])
        yield Part("Measure a model with all of them:\n")
        yield Part(self.command, wrap=False)

    def plain(self) -> dict[str, object]:
        """The fields, and the command."""
        return {"folder": str(self.folder), "group": self.group, "tasks": self.tasks, "command": self.command}


def write_lm_eval_task(
    task: str | Task,
    lengths: Sequence[int] | str | None,
    folder: str | Path,
    shots: int = 4,
    examples: int | None = 32,
    joined: str = " ",
) -> HarnessTask:
    """Write YAML and JSON files with which `lm_eval --include_path FOLDER` asks the questions that `few_shot` asks.

    The files name each other by their full path, because the harness knows no other, so write them where they stay.
    Its `exact_match` is then our accuracy, but that the harness waits longer for the end of an answer, and that a
    task with its own check, such as one with a scratchpad, has more than one right answer here and one there.
    """
    task, to = build_task(task) if isinstance(task, str) else task, Path(folder).absolute()
    to.mkdir(parents=True, exist_ok=True)
    variant = getattr(task, "variant", None)
    group = "_".join(str(part) for part in ("lengthwise", task.name, variant, f"{shots}shot") if part is not None)
    names: dict[int, str] = {}
    for split, length in splits_and_lengths(task, lengths):
        asked = questions(task, split, length, shots, examples, joined)
        if not asked:
            raise SpecError(f"{task.name} has no test examples of length {length}: all are in other splits")
        name = names[length] = f"{group}_length{length}"
        lines = [{"index": one.index, "prompt": one.prompt, "answer": one.answer} for one in asked]
        (to / f"{name}.jsonl").write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        most = max(len(one.answer.encode()) for one in asked)
        settings: dict[str, object] = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(to / f"{name}.jsonl")}},
            "output_type": "generate_until",
            "test_split": "test",
            "num_fewshot": 0,
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "{{answer}}",
            "target_delimiter": " ",
            "generation_kwargs": {
                **{"until": [LINE_END], "do_sample": False, "temperature": 0.0},
                "max_gen_toks": 2 * most + 8,  # no tokenizer has more tokens than bytes
            },
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
                | {"regexes_to_ignore": [r"^\s+", r"\s+$"]}
            ],
            "metadata": {"version": task.version, "length": length, "split": split, "shots": shots},
        }
        _write(to / f"{name}.yaml", settings)
    _write(to / f"{group}.yaml", {"group": group, "task": list(names.values())})
    return HarnessTask(to, group, names)


def _write(file: Path, settings: dict[str, object]) -> None:
    """Write settings as JSON, which is YAML too."""
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
