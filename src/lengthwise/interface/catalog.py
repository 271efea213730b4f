"""Catalogues of tasks, encodings, positions, presets and studies, as tables for terminals and notebooks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Facts, Part, Table
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.encoding.recipes import RECIPES
from lengthwise.interface.study import Say, Study, StudyCost, StudyReport
from lengthwise.model.config import PRESETS, TEMPERATURES, preset
from lengthwise.normaliser import NORMALISERS
from lengthwise.spec import Spec, SpecError, format_value, options, parse_specs, resolve
from lengthwise.task import PUBLISHED, TASKS

if TYPE_CHECKING:
    from lengthwise.publication import Table as PublishedTable

_COMMON = ("protocol", "bos", "tokenizer")  # every task has these


class EncodingTable(Table):
    """The encodings; `markdown_page()` writes the catalogue of the docs."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table, with the claims that hold as a list."""
        yield Part([{**row, "claims": _claims(row, "{}")} for row in self])

    def markdown_page(self) -> str:
        """Return a page: the table of encodings, then the docstring and the options of each."""
        lines = [
            "# Catalogue of encodings",
            "",
            "Written by `lengthwise list encodings --markdown`; parameters at 12 heads of 64 and width 768, per "
            "instance.",
            "",
            "| encoding | acts on | claims | parameters | paper |",
            "|---|---|---|---|---|",
        ]
        for row in self:
            cells = (f"[`{row['name']}`](#{row['name']})", ", ".join(row["acts on"]), ", ".join(_claims(row, "`{}`")))
            lines.append(f"| {' | '.join(cells)} | {row['parameters']:,} | {row['paper']} |")
        for row in self:
            words = inspect.getdoc(resolve("encoding", ENCODINGS, str(row["name"]))) or ""
            lines += ["", f"## {row['name']}", "", words]
            given = [
                f"`{key}`" + ("" if value is None else f" = {format_value(value)}")
                for key, value in row["options"].items()
            ]
            if given:
                lines += ["", f"Options (and what they are unless given): {', '.join(given)}"]
        return "\n".join(lines)


def _claims(row: dict[str, Any], mark: str) -> list[str]:
    claims = row["claims"].items()
    return [f"limit {item:,}" if key == "limit" else mark.format(key) for key, item in claims if item]


def encodings() -> EncodingTable:
    """List the positional encodings: what each acts on, its options, parameters, claims and paper.

    >>> "rope" in encodings().names
    True
    """
    from lengthwise.encoding import build_encoding
    from lengthwise.encoding.base import CLAIMS

    geometry = preset("paper", vocabulary=1).geometry
    rows = EncodingTable()
    for name in ENCODINGS:
        encoding = build_encoding(name, geometry)
        rows.append(
            {
                "name": name,
                "acts on": encoding.acts() or ["nothing"],
                "options": _defaults(type(encoding)),
                # At the size of the published study: 12 heads of 64, width 768.
                "parameters": sum(parameter.numel() for parameter in encoding.parameters()),
                "claims": {key: getattr(encoding, key) for key in CLAIMS},
                "paper": encoding.paper,
            }
        )
    return rows


class TaskTable(Table):
    """The tasks."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """The table, and the options that every task has."""
        yield Part(self)
        every = "protocol=ours (or paper, where listed), tokenizer=FOLDER, bos=true or false"
        yield Part(f"\nevery task also takes: {every}; my_task.py:Mine is a task too")


def tasks() -> TaskTable:
    """List the tasks: what each is, an example, the unit of its length, its protocols and options.

    >>> "addition" in tasks().names
    True
    """
    published = {name.partition(":")[0] for name in PUBLISHED}
    rows = TaskTable()
    for name in TASKS:
        cls = resolve("task", TASKS, name)
        there = _defaults(cls)
        rows.append(
            {
                "name": name,
                "is": (sys.modules[cls.__module__].__doc__ or "").strip().splitlines()[0],
                "example": (cls.__doc__ or "").strip().splitlines()[0].replace("`", ""),
                "length": cls.unit,  # pyrefly: ignore[missing-attribute]
                "protocols": ["ours", "paper"] if name in published else ["ours"],
                "options": {key: value for key, value in there.items() if key not in _COMMON},
                "paper": cls.paper,  # pyrefly: ignore[missing-attribute]
            }
        )
    return rows


def positions() -> Table:
    """List the kinds of positions, e.g. `consecutive` and `randomized`.

    >>> positions().names[0]
    'consecutive'
    """
    rows = Table()
    for name in POSITIONS:
        cls = resolve("positions", POSITIONS, name)
        rows.append({"name": name, "is": _summary(cls), "options": _defaults(cls), "paper": getattr(cls, "paper", "")})
    return rows


def normalisers() -> Table:
    """List the normalisers, which turn scores into attention weights: what each does, its options, claims and paper.

    >>> normalisers().names[0]
    'softmax'
    """
    from lengthwise.normaliser import build_normaliser

    geometry = preset("paper", vocabulary=1).geometry
    rows = Table()
    for name in NORMALISERS:
        made = build_normaliser(name, geometry)
        claims = [claim for claim in ("complete", "shift_invariant", "ordered") if getattr(made, claim)]
        about = {"is": _summary(type(made)), "options": _defaults(type(made)), "claims": claims}
        rows.append({"name": name, **about, "paper": made.paper})
    return rows


def temperatures() -> Table:
    """List the attention temperatures: the factor of each on q · k, and its options.

    >>> "ssmax" in temperatures().names
    True
    """
    rows = Table()
    for name in TEMPERATURES:
        cls = resolve("temperature", TEMPERATURES, name)
        rows.append({"name": name, "is": _summary(cls), "options": _defaults(cls)})
    return rows


def recipes(layers: int | None = None, window: int = 8) -> Table:
    """List recipes: the encodings by layer of published models, as specs for one period or for `layers` layers.

    >>> recipes(layers=12)[1]["encoding"]
    '3*[3*rope:theta=2000000.0,nope]'
    """
    rows = Table()
    for name, one in RECIPES.items():
        about = {"encoding": one.encoding(layers, window), "model": one.model(layers, window)}
        source = f"transformers {one.source}" + (f", window {one.window:,}" if one.window else "")
        rows.append({"name": name, **about, "source": source, "not copied": one.differs})
    return rows


class ModelPresetRows(Table):
    """The presets of models."""

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each field: there are more fields than a screen is wide."""
        yield Part([{"field": key, **{row["name"]: row[key] for row in self}} for key in self[0] if key != "name"])


def presets() -> ModelPresetRows:
    """List the model presets with all their fields.

    >>> presets().names
    ['paper', 'modern', '125M', '350M', '760M', '1.3B', '1.3B-code', 'nano', 'laptop']
    """
    rows = ModelPresetRows()
    for name in PRESETS:
        config = preset(name, vocabulary=1)
        fields = {**config.model_dump(exclude={"vocabulary"}), "attention_scale": config.scale}
        if config.initial == "normal":
            fields["sigma"] = config.initial_sigma
        rows.append({"name": name, **fields})
    return rows


def checks() -> Table:
    """List the checks of `verify`.

    >>> checks().names[0]
    'C01'
    """
    from lengthwise.conformance import checks

    return Table({"id": id, "sentence": sentence} for id, sentence in sorted(checks().items()))


def describe(preset: str = "laptop", encoding: str = "nope", vocabulary: int | None = None) -> Facts:
    """Return what a model is made of: parameter counts, the scale of its initial weights and of positions.

    >>> describe("laptop", "rope", vocabulary=32)["layers"]
    2
    """
    from lengthwise.model import Decoder
    from lengthwise.model import preset as config_of

    spec = Spec.of(preset)
    said = dict(spec.options).get("vocabulary")
    if said is not None and vocabulary is not None:
        raise SpecError(f"the vocabulary is given twice: in {preset!r} and as --vocabulary {vocabulary}")
    config = config_of(spec, vocabulary=said or vocabulary or 32_100)
    named = parse_specs(encoding)
    return Facts(Decoder(config, named if len(named) > 1 else encoding).describe())


def studies() -> Table:
    """List the studies that ship with lengthwise: number of runs, whether results are committed, and the question.

    >>> "quickstart" in studies().names
    True
    """
    from lengthwise.study.add import committed_results_folder
    from lengthwise.study.reading import shipped_studies

    rows = Table()
    for name, path in shipped_studies().items():
        study = Study.read(path)
        counts = study.planned.item_counts()
        line = {"study": name, "runs": counts["runs"] + counts["tuning"]}
        rows.append({**line, "results": committed_results_folder(study.file) is not None, "asks": study.file.question})
    return rows


def published(topic: str) -> list[PublishedTable]:
    """Return the original paper's numbers on a topic, with their source and known defects.

    >>> published("mrr")[0].source != ""
    True
    """
    from lengthwise.publication import tables

    return tables(topic)


def cost(study: Study | str | Path, on: str = "here", workers: int | None = None, say: Say | None = None) -> StudyCost:
    """Estimate the cost of a study, in FLOPs, tokens, memory, disk and hours, on this machine or e.g. an `a100`.

    >>> cost(Study(task="sort", encoding="nope", training="laptop:steps=20"), on="a100").total.runs
    3
    """
    return (study if isinstance(study, Study) else Study.read(study)).cost(on, workers, say)


def report(study: Study | str | Path, to: str | Path | None = None, *, store: str | None = None) -> StudyReport:
    """Return the report of a study (verdict and tables), and write its page to a folder.

    >>> print(report("quickstart", "out").verdict)
    """
    return (study if isinstance(study, Study) else Study.read(study)).report(to, store=store)


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _defaults(cls: type) -> dict[str, object]:
    """Return the options of a class with their defaults; `...` marks required options."""
    return {name: "..." if item.default is item.empty else item.default for name, item in options(cls).items()}
