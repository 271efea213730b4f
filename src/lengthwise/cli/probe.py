"""`lengthwise probe`: is a token's position in its hidden state, in which layer, and how did it get there?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lengthwise.cli.runs import STORE, Store
from lengthwise.cli.study import opened
from lengthwise.cli.terminal import Json, app, console, escape, print_table
from lengthwise.folder import OUTPUT
from lengthwise.progress import progress
from lengthwise.spec import SpecError, did_you_mean

if TYPE_CHECKING:
    from lengthwise.analysis.documents import Batch, Document
    from lengthwise.analysis.states import Keep, Read
    from lengthwise.model.taps import Tap
    from lengthwise.reporting.drawing import Drawing
    from lengthwise.run import Run

Rows = list[dict[str, Any]]
SOURCES = ("task", "random", "random-no-start")
ROWS, SPREAD = "probe.parquet", "probe-spread.parquet"


@app.command()
def probe(
    runs: Annotated[list[str] | None, typer.Argument(help="runs: folders, ids, or the beginnings of ids")] = None,
    study: Annotated[str | None, typer.Option(help="all finished runs of this study that are in the store")] = None,
    encodings: Annotated[str | None, typer.Option(help="only runs with these, e.g. nope,t5")] = None,
    kind: Annotated[Literal["linear", "mlp", "both"], typer.Option(help="the probe")] = "both",
    lengths: Annotated[str | None, typer.Option(help="test at these, e.g. 8,16,32; seen and unseen ones")] = None,
    documents: Annotated[
        str, typer.Option(help="task (its examples), random (tokens), random-no-start (and no start token); commas")
    ] = "task",
    root_m: Annotated[
        bool, typer.Option("--scale-by-root-m", help="probe again with attention's output multiplied by √m")
    ] = False,
    one_size: Annotated[
        bool, typer.Option("--one-size", help="probe again with attention's output of one size at every token")
    ] = False,
    spread: Annotated[bool, typer.Option("--spread", help="variance of attention's output by position")] = False,
    checkpoint: Annotated[str, typer.Option(help="last, best, earliest_best, 25%, 50% or 75%")] = "last",
    store: Store = STORE,
    rows: Annotated[Path | None, typer.Option(help="show the rows of this folder again; no model is read")] = None,
    to: Annotated[Path, typer.Option(help="the folder of rows and figures")] = OUTPUT,
    as_json: Json = False,
) -> None:
    """Predict token positions from hidden states, layer by layer.

    Probes are trained on some documents and tested on others, at seen and at unseen lengths; beside each are the same
    model before training, places dealt out at random, and the embeddings (layer 0).
    """
    if rows is not None:
        if runs or study:
            raise SpecError("--rows shows rows that are there; leave out the runs, or leave out --rows")
        found, spreads = _read(rows / ROWS), _read(rows / SPREAD) if (rows / SPREAD).exists() else []
    else:
        names, sources = _names(runs or [], study, encodings, store), _sources(documents)
        wanted = Wanted(checkpoint, lengths, ("linear", "mlp") if kind == "both" else (kind,), root_m, spread, one_size)
        found, spreads = _all(names, store, sources, wanted, to)
    paths = [path for drawing in drawings(found, spreads) for path in drawing.write(to) if path.suffix == ".svg"]
    tables = {where: table(found, *where) for where in dict.fromkeys((row["task"], row["documents"]) for row in found)}
    if as_json:
        told = [{"task": task, "documents": source, "lines": lines} for (task, source), lines in tables.items()]
        print(json.dumps({"tables": told, "spread": exponents(spreads), "figures": [str(p) for p in paths]}, indent=2))
        return
    screen = console()
    for (task, source), lines in tables.items():
        screen.print(f"[bold]{escape(task)}[/], {source} documents: mean error of the position, in tokens, by layer")
        print_table(lines, False)
        screen.print(escape(without(found, task, source)), style="dim", highlight=False)
        screen.print()
    if spreads:
        screen.print(
            "How the variance of attention's output goes with position m: its exponent (−1: as 1/m; 0: not at all), "
            "at the start → trained",
            highlight=False,
        )
        print_table(_beside(exponents(spreads)), False)
    screen.print(f"figures: {', '.join(escape(str(path)) for path in paths)}", highlight=False)


def _sources(documents: str) -> list[str]:
    found = [one.strip() for one in documents.split(",")]
    if unknown := [one for one in found if one not in SOURCES]:
        raise SpecError(f"there are no documents {unknown[0]!r}.{did_you_mean(unknown[0], SOURCES)}")
    return list(dict.fromkeys(found))


def _names(runs: list[str], study: str | None, encodings: str | None, store: str) -> list[str]:
    from lengthwise.encoding.signature import canonical_encoding
    from lengthwise.spec import specs

    if not runs and study is None:
        raise SpecError("name runs, or a study: lengthwise probe copy-nope-s0, or --study attention")
    only = None if encodings is None else {str(canonical_encoding(spec)) for spec in specs(encodings)}
    names = list(runs)
    if study is not None:
        done = opened(study).status(store).done
        names += [item.key for item in done if item.kind == "run" and (only is None or item.point.encoding in only)]
    elif only is not None:
        raise SpecError("--encodings chooses among the runs of a study; give --study, or name the runs alone")
    if not names:
        raise SpecError(f"no run of {study} is finished in {store}")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Wanted:
    """What is asked of every run."""

    checkpoint: str
    lengths: str | None
    kinds: tuple[str, ...]
    root_m: bool
    spread: bool
    one_size: bool = False

    @property
    def settings(self) -> str:
        """All of it in a line: rows with the same line need not be made again."""
        from lengthwise.analysis.probe import VERSION

        listed = {key: value for key, value in vars(self).items() if value or key != "one_size"}
        told = [f"version={VERSION}", *(f"{key}={value}" for key, value in listed.items())]
        return " ".join(told)


def _all(names: list[str], store: str, sources: list[str], wanted: Wanted, to: Path) -> tuple[Rows, Rows]:
    """The rows of all runs, written after each, so that a command that was stopped goes on where it was."""
    from lengthwise.run import Run

    before = [_read(to / name) if (to / name).exists() else [] for name in (ROWS, SPREAD)]
    found, spreads = Rows(), Rows()
    with progress() as tell:
        for number, name in enumerate(names, 1):
            run = Run.open(name, store)
            for source in sources:
                mark = {"run": run.id, "documents": source, "settings": wanted.settings}
                there = [[row for row in rows if mark.items() <= row.items()] for rows in before]
                if not there[0]:

                    def say(words: str, number: int = number, name: str = name, source: str = source) -> None:
                        tell(f"{number} of {len(names)}: {name}, {source} documents: {words}")

                    there = [[mark | row for row in rows] for rows in _probed(run, source, wanted, say)]
                found += there[0]
                spreads += there[1]
            _write(found, to / ROWS)
            if spreads:
                _write(spreads, to / SPREAD)
    return found, spreads


def _probed(run: Run, source: str, wanted: Wanted, say: Callable[[str], None]) -> tuple[Rows, Rows]:
    from lengthwise.analysis.probe import probe_all
    from lengthwise.analysis.spread import spread
    from lengthwise.analysis.states import decoder_states, of_one_size, times_root_m

    models = {"trained": run.decoder(wanted.checkpoint), "untrained": run.plan.decoder()}
    trained, tested = _documents(run, source, wanted.lengths)
    taps: dict[tuple[str, str], Tap | None] = {(model, "none"): None for model in models}
    if wanted.root_m:
        taps |= {(model, "root_m"): times_root_m for model in models}
    if wanted.one_size:
        taps |= {(model, "one_size"): of_one_size(decoder, trained) for model, decoder in models.items()}
    reads: dict[tuple[str, str], Read] = {
        (model, change): decoder_states(models[model], heads=tap) for (model, change), tap in taps.items()
    }
    start = run.task.vocabulary.bos
    if run.task.starts and start is not None and source != "random-no-start":
        longest = max(len(one.ids) for one in trained)
        reads["constructed", "none"] = constructed(run.plan.model.vocabulary, start, longest)
    labels = {
        "task": str(run.plan.task_spec),
        "encoding": ",".join(map(str, run.plan.encoding_specs)),
        "positions": str(run.plan.positions_spec),
        "seed": run.plan.seed,
    }
    rows = probe_all(reads, trained, tested, kinds=wanted.kinds, key=run.plan.seed, progress=say)
    spreads = Rows()
    if wanted.spread:
        others = tested.get("unseen") or tested["seen"]
        for model, decoder in models.items():
            say(f"{model}, spread")
            spreads += [{**labels, "model": model, **row} for row in spread(decoder, others)]
    return [{**labels, **row} for row in rows], spreads


def _documents(run: Run, source: str, lengths: str | None) -> tuple[list[Document], dict[str, list[Document]]]:
    from lengthwise.analysis.documents import random_sets, task_documents
    from lengthwise.evaluation.decoding import limit_of
    from lengthwise.study.reading import lengths_of

    limit = limit_of(run.plan.decoder())
    if source == "task":
        wanted = None if lengths is None else lengths_of(lengths)
        return task_documents(run.task, wanted, positions=run.plan.positions, limit=limit)
    if lengths is not None:
        raise SpecError("--lengths are the task's; random documents have the tokens of the longest trained example")
    if str(run.plan.positions_spec) != "consecutive":
        raise SpecError(f"random documents are counted; {run.plan.positions_spec} needs --documents task")
    vocabulary = run.task.vocabulary
    symbols = [
        number for number in range(len(vocabulary)) if number not in {vocabulary.pad, vocabulary.bos, vocabulary.eos}
    ]
    first = vocabulary.bos if run.task.starts and source == "random" else None
    return random_sets(symbols, run.trained_tokens(), first=first, limit=limit)


def constructed(vocabulary: int, start: int, tokens: int) -> Read:
    """The state that Theorem 1 of Kazemnejad et al. 2023 constructs, in a decoder of width 4, for so many tokens.

    Uniform attention over tokens of which the first alone has a 1 gives u = 1/t; a feed-forward layer recovers
    t = 1 + Σ_k 2k·ReLU(1/k − u). Beyond T tokens it says 1 + 2T − T(T + 1)/t.
    """
    from dataclasses import replace

    import torch

    from lengthwise.analysis.states import decoder_states
    from lengthwise.theory.theorem1 import FIRST, construct

    read = decoder_states(construct(tokens, 4, heads=1, head_width=4, vocabulary=vocabulary).decoder)

    def renamed(batch: Batch, keep: Keep) -> None:
        # The proof's anchor has an id of its own; whichever token had that id takes the start token's.
        ids_BT = batch.ids_BT
        swapped_BT = torch.where(ids_BT == start, FIRST, torch.where(ids_BT == FIRST, start, ids_BT))
        read(replace(batch, ids_BT=swapped_BT), keep)

    return renamed


# --- what is shown ---------------------------------------------------------------------------------------------------


def table(rows: Rows, task: str, source: str) -> Rows:
    """A line for each encoding and probe: the error in each layer, and the controls at the layer it is smallest in."""
    own = [row for row in rows if row["task"] == task and row["documents"] == source and row["model"] != "constructed"]
    layers = sorted({row["layer"] for row in own})
    lines = Rows()
    for encoding in dict.fromkeys(row["encoding"] for row in own):
        for kind in dict.fromkeys(row["probe"] for row in own):

            def error(
                tested: str, layer: int, encoding: str = encoding, kind: str = kind, **which: str
            ) -> float | None:
                wanted = {"model": "trained", "change": "none", "control": "none", **which}
                wanted |= {"encoding": encoding, "probe": kind, "tested": tested}
                return _middle(row["mae"] for row in own if row["layer"] == layer and wanted.items() <= row.items())

            test = "seen" if any(row["tested"] == "seen" for row in own) else "unseen"
            by_layer = {layer: found for layer in layers if (found := error(test, layer)) is not None}
            if not by_layer:
                continue
            # Controls are told at the best layer after attention: nothing on the way to layer 0 can be changed.
            best = min((layer for layer in by_layer if layer), key=lambda layer: by_layer[layer], default=0)
            line: dict[str, Any] = {"encoding": encoding, "probe": kind}
            line |= {f"layer {layer}": round(value, 2) for layer, value in by_layer.items()}
            line |= {"best": f"layer {best}"}
            further = {
                "unseen lengths": error("unseen", best),
                "beyond": error("beyond", best),
                "untrained": error(test, best, model="untrained"),
                "shuffled": error(test, best, control="shuffled"),
                "with √m": error(test, best, change="root_m"),
                "one size": error(test, best, change="one_size"),
            }
            lines.append(line | {key: round(value, 2) for key, value in further.items() if value is not None})
    return lines


def without(rows: Rows, task: str, source: str) -> str:
    """What is told without a state, in a sentence for each set of documents."""
    told = []
    for tested, words in (("seen", "seen lengths"), ("unseen", "unseen lengths"), ("beyond", "beyond")):
        own = [r for r in rows if (r["task"], r["documents"], r["tested"]) == (task, source, tested)]
        if not own:
            continue
        one = own[0]
        told.append(
            f"{words}, without a state: random guess {one['random']:.2f} (L/3 is {one['third']:.2f}), best constant "
            f"{one['constant']:.2f} (L/4 is {one['quarter']:.2f}), the token alone {one['token']:.2f}"
        )
        made = [row["mae"] for row in own if (row["model"], row["layer"], row["probe"]) == ("constructed", 1, "linear")]
        if made:
            told[-1] += f"; Theorem 1's state, linear probe: {made[0]:.2g}"
    return "\n".join(told)


def exponents(spreads: Rows) -> Rows:
    """For each task, encoding, layer and quantity the exponent of m, at the start and trained: medians over seeds."""
    from lengthwise.analysis.spread import exponent

    groups: dict[tuple[Any, ...], Rows] = {}
    keys = ("task", "documents", "encoding", "layer", "quantity")
    for row in spreads:
        groups.setdefault(tuple(row[key] for key in (*keys, "model", "run")), []).append(row)
    slopes: dict[tuple[Any, ...], list[float]] = {}
    for where, own in groups.items():
        if (found := exponent(own)) is not None:
            slopes.setdefault(where[:-1], []).append(found)
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (*where, model), found in slopes.items():
        line = lines.setdefault(tuple(where), dict(zip(keys, where, strict=True)))
        line[{"untrained": "at the start"}.get(model, model)] = round(median(found), 2)
    return list(lines.values())


def _beside(lines: Rows) -> Rows:
    """The exponents of the output with the layers beside each other."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        if line["quantity"] == "output":
            where = {key: line[key] for key in ("task", "documents", "encoding")}
            one = found.setdefault(tuple(where.values()), where)
            one[f"layer {line['layer']}"] = f"{line['at the start']} → {line['trained']}"
    return list(found.values())


def drawings(rows: Rows, spreads: Rows) -> list[Drawing]:
    """The figures of rows."""
    from lengthwise.reporting.probes import changes, errors
    from lengthwise.reporting.probes import spreads as spread

    found = []
    for source in dict.fromkeys(row["documents"] for row in rows):
        own, end = [row for row in rows if row["documents"] == source], "" if source == "task" else f"-{source}"
        for kind in dict.fromkeys(row["probe"] for row in own):
            found.append(errors(own, kind, f"probe-{kind}{end}"))
            if any(row["change"] != "none" for row in own):
                found.append(changes(own, kind, name=f"probe-changed-{kind}{end}"))
    for source in dict.fromkeys(row["documents"] for row in spreads):
        found.append(spread(spreads, source, name=f"probe-spread-{source}"))
    return found


def _middle(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None


def _write(rows: Rows, path: Path) -> None:
    import polars as pl

    from lengthwise.evaluation.rows import to_parquet
    from lengthwise.folder import Folder

    Folder(path.parent).write(path.name, to_parquet(pl.DataFrame(rows, infer_schema_length=None)))


def _read(path: Path) -> Rows:
    from lengthwise.evaluation.rows import from_parquet
    from lengthwise.folder import Folder

    return from_parquet(Folder(path.parent).read(path.name)).to_dicts()
