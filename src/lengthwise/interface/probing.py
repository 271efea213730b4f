"""`probe`: in which layer the position of a token can be read from its hidden state, and how it got there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from lengthwise.display import Display, Part
from lengthwise.evaluation.cases import parse_lengths
from lengthwise.progress import Say, progress
from lengthwise.run.lease import STORE
from lengthwise.spec import SpecError, did_you_mean, suggests
from lengthwise.training.settings import Dtype, mixed_precision

if TYPE_CHECKING:
    from lengthwise.analysis.documents import Batch, Document
    from lengthwise.analysis.states import Keep, Read
    from lengthwise.model.taps import Tap
    from lengthwise.reporting.drawing import Drawing
    from lengthwise.run import Run

Rows = list[dict[str, Any]]
SOURCES = ("task", "random", "random-no-start")
ROWS, SPREAD = "probe.parquet", "probe-spread.parquet"
LATER = {"one_size", "bf16"}
"""Settings that earlier rows do not name; they are named only if they are on."""


@dataclass(frozen=True, repr=False)
class ProbeResults(Display):
    """The errors of probes as rows; `tables` sums them up, `write` draws them."""

    rows: Rows
    """The error of each probe, by run, documents, layer, model, control and tested lengths."""
    spreads: Rows
    """The variance of attention's output by position, if it was asked for."""

    @classmethod
    def read(cls, folder: str | Path) -> ProbeResults:
        """Read the rows that `probe` left in a folder."""
        if not (rows := _read(Path(folder) / ROWS)):
            raise SpecError(f"there is no {Path(folder) / ROWS}; give the folder that lengthwise probe --to wrote")
        return cls(rows, _read(Path(folder) / SPREAD))

    @property
    def tables(self) -> dict[tuple[str, str], Rows]:
        """(task, documents) → a line for each encoding and probe."""
        places = dict.fromkeys((row["task"], row["documents"]) for row in self.rows)
        return {place: probe_table(self.rows, *place) for place in places}

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A table for each task and kind of documents, and the variance by position if it was asked for."""
        for (task, documents), lines in self.tables.items():
            yield Part(f"{task}, {documents} documents: mean error of the position, in tokens, by layer", "bold")
            yield Part(lines)
            yield Part(f"{self.baseline_sentences(task, documents)}\n", "dim")
        if self.spreads:
            yield Part(
                "How the variance of attention's output goes with position m: its exponent (−1: as 1/m; 0: not at "
                "all), at the start → trained"
            )
            yield Part(_beside(self.exponents))

    def plain(self) -> dict[str, Any]:
        """The tables and the exponents."""
        told = [{"task": task, "documents": source, "lines": lines} for (task, source), lines in self.tables.items()]
        return {"tables": told, "spread": self.exponents}

    @property
    def exponents(self) -> Rows:
        """The exponent with which the variance of attention's output falls with position."""
        return variance_exponents(self.spreads)

    def baseline_sentences(self, task: str, documents: str) -> str:
        """The errors that are reached without a hidden state, as sentences."""
        return baseline_sentences(self.rows, task, documents)

    def drawings(self) -> list[Drawing]:
        """The figures."""
        return probe_drawings(self.rows, self.spreads)

    def write(self, to: str | Path) -> list[Path]:
        """Write the figures into a folder; return the paths of the SVGs."""
        return [path for drawing in self.drawings() for path in drawing.write(to) if path.suffix == ".svg"]


def _beside(lines: Rows) -> Rows:
    """Put the exponents of the output side by side, a column for each layer."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        if line["quantity"] == "output":
            where = {key: line[key] for key in ("task", "documents", "encoding")}
            one = found.setdefault(tuple(where.values()), where)
            one[f"layer {line['layer']}"] = f"{line['at the start']} → {line['trained']}"
    return list(found.values())


@suggests
def probe(
    runs: Sequence[Run | str],
    *,
    kind: Literal["linear", "mlp", "both"] = "both",
    lengths: Sequence[int] | str | None = None,
    documents: Sequence[str] = ("task",),
    root_m: bool = False,
    equalise_output_norm: bool = False,
    spread: bool = False,
    checkpoint: str = "last",
    store: str = STORE,
    to: str | Path | None = None,
    device: str = "auto",
    dtype: Dtype = "auto",
    allow_code: bool = False,
    say: Say | None = None,
) -> ProbeResults:
    """Train probes that predict the position of a token from its hidden state, layer by layer, and test them.

    Probes are trained on some documents and tested on others, at seen and unseen lengths. Controls are the untrained
    model, shuffled positions and the embeddings (layer 0). With a folder `to`, rows are written after each run, and a
    call that was stopped goes on where it was.

    >>> found = probe(["copy-nope-s0"], kind="linear")
    >>> found.tables
    """
    from lengthwise.run import Run

    if unknown := [one for one in documents if one not in SOURCES]:
        raise SpecError(f"there are no documents {unknown[0]!r}.{did_you_mean(unknown[0], SOURCES)}")
    kinds = ("linear", "mlp") if kind == "both" else (kind,)
    lengths = parse_lengths(lengths) if isinstance(lengths, str) else lengths
    wanted = _Settings(
        checkpoint, lengths, kinds, root_m, spread, equalise_output_norm, bf16=bool(mixed_precision(dtype))
    )
    before = [[], []] if to is None else [_read(Path(to) / name) for name in (ROWS, SPREAD)]
    found, spreads = Rows(), Rows()
    with progress(say) as tell:
        for number, name in enumerate(runs, 1):
            run = Run.of(name, store, allow_code)
            for source in dict.fromkeys(documents):
                mark = {"run": run.id, "documents": source, "settings": wanted.settings}
                there = [[row for row in rows if mark.items() <= row.items()] for rows in before]
                if not there[0]:

                    def told(words: str, start: str = f"{number} of {len(runs)}: {run.id}, {source} documents") -> None:
                        tell(f"{start}: {words}")

                    there = [[mark | row for row in rows] for rows in _probed(run, source, wanted, device, told)]
                found += there[0]
                spreads += there[1]
            if to is not None:
                _write(found, Path(to) / ROWS)
                if spreads:
                    _write(spreads, Path(to) / SPREAD)
    return ProbeResults(found, spreads)


@dataclass(frozen=True)
class _Settings:
    """What is measured in every run."""

    checkpoint: str
    lengths: Sequence[int] | None
    kinds: tuple[str, ...]
    root_m: bool
    spread: bool
    one_size: bool = False
    bf16: bool = False

    @property
    def settings(self) -> str:
        """All of it in one line, which is stored with the rows: rows with the same line are not made again."""
        from lengthwise.analysis.probe import VERSION

        listed = {key: value for key, value in vars(self).items() if value or key not in LATER}
        told = [f"version={VERSION}", *(f"{key}={value}" for key, value in listed.items())]
        return " ".join(told)


def _probed(run: Run, source: str, wanted: _Settings, device: str, say: Callable[[str], None]) -> tuple[Rows, Rows]:
    from lengthwise.analysis.probe import probe_all
    from lengthwise.analysis.spread import spread
    from lengthwise.analysis.states import decoder_state_reader, equalise_output_norm, times_root_m
    from lengthwise.device import place

    found = {"trained": run.decoder(wanted.checkpoint), "untrained": run.plan.decoder()}
    models = {name: place(decoder, device, wanted.bf16) for name, decoder in found.items()}
    trained, tested = _documents(run, source, wanted.lengths)
    taps: dict[tuple[str, str], Tap | None] = {(model, "none"): None for model in models}
    if wanted.root_m:
        taps |= {(model, "root_m"): times_root_m for model in models}
    if wanted.one_size:
        taps |= {(model, "one_size"): equalise_output_norm(decoder, trained) for model, decoder in models.items()}
    reads: dict[tuple[str, str], Read] = {
        (model, change): decoder_state_reader(models[model], head_tap=tap) for (model, change), tap in taps.items()
    }
    start = run.task.vocabulary.bos
    if run.task.starts and start is not None and source != "random-no-start":
        longest = max(len(one.ids) for one in trained)
        reads["constructed", "none"] = theorem1_states(run.plan.model.vocabulary, start, longest)
    labels = {
        "task": str(run.plan.task_spec),
        "encoding": ",".join(map(str, run.plan.encoding_specs)),
        "positions": str(run.plan.positions_spec),
        "seed": run.plan.seed,
    }
    rows = probe_all(reads, trained, tested, probe_kinds=wanted.kinds, seed=run.plan.seed, on_progress=say)
    spreads = Rows()
    if wanted.spread:
        others = tested.get("unseen") or tested["seen"]
        for model, decoder in models.items():
            say(f"{model}, spread")
            spreads += [{**labels, "model": model, **row} for row in spread(decoder, others)]
    return [{**labels, **row} for row in rows], spreads


def _documents(
    run: Run, source: str, lengths: Sequence[int] | None
) -> tuple[list[Document], dict[str, list[Document]]]:
    from lengthwise.analysis.documents import random_document_sets, task_documents
    from lengthwise.evaluation.decoding import position_limit

    limit = position_limit(run.plan.decoder())
    if source == "task":
        return task_documents(
            run.task, None if lengths is None else list(lengths), positions=run.plan.positions, max_tokens=limit
        )
    if lengths is not None:
        raise SpecError("--lengths are the task's; random documents have the tokens of the longest trained example")
    if str(run.plan.positions_spec) != "consecutive":
        raise SpecError(f"random documents are counted; {run.plan.positions_spec} needs --documents task")
    vocabulary = run.task.vocabulary
    symbols = [
        number for number in range(len(vocabulary)) if number not in {vocabulary.pad, vocabulary.bos, vocabulary.eos}
    ]
    first = vocabulary.bos if run.task.starts and source == "random" else None
    return random_document_sets(symbols, run.max_training_sequence_length(), first_token=first, max_tokens=limit)


def theorem1_states(vocabulary: int, start: int, tokens: int) -> Read:
    """The state that Theorem 1 of Kazemnejad et al. 2023 constructs, in a decoder of width 4, for so many tokens.

    Uniform attention over tokens of which the first alone has a 1 gives u = 1/t; a feed-forward layer recovers
    t = 1 + Σ_k 2k·ReLU(1/k − u). Beyond T tokens it says 1 + 2T − T(T + 1)/t.
    """
    from dataclasses import replace

    import torch

    from lengthwise.analysis.states import decoder_state_reader
    from lengthwise.theory.theorem1 import FIRST, construct_theorem1_decoder

    read = decoder_state_reader(
        construct_theorem1_decoder(tokens, 4, heads=1, head_width=4, vocabulary=vocabulary).decoder
    )

    def renamed(batch: Batch, keep: Keep) -> None:
        # The proof's anchor has an id of its own; whichever token had that id takes the start token's.
        ids_BT = batch.ids_BT
        swapped_BT = torch.where(ids_BT == start, FIRST, torch.where(ids_BT == FIRST, start, ids_BT))
        read(replace(batch, ids_BT=swapped_BT), keep)

    return renamed


# --- tables and figures ----------------------------------------------------------------------------------------------


def probe_table(rows: Rows, task: str, source: str) -> Rows:
    """One row for each encoding and probe: the error at each layer, and controls at the best layer after layer 0."""
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


def baseline_sentences(rows: Rows, task: str, source: str) -> str:
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


def variance_exponents(spreads: Rows) -> Rows:
    """For each task, encoding, layer and quantity the exponent of m, at the start and trained: medians over seeds."""
    from lengthwise.analysis.spread import power_law_exponent

    groups: dict[tuple[Any, ...], Rows] = {}
    keys = ("task", "documents", "encoding", "layer", "quantity")
    for row in spreads:
        groups.setdefault(tuple(row[key] for key in (*keys, "model", "run")), []).append(row)
    slopes: dict[tuple[Any, ...], list[float]] = {}
    for where, own in groups.items():
        if (found := power_law_exponent(own)) is not None:
            slopes.setdefault(where[:-1], []).append(found)
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (*where, model), found in slopes.items():
        line = lines.setdefault(tuple(where), dict(zip(keys, where, strict=True)))
        line[{"untrained": "at the start"}.get(model, model)] = round(median(found), 2)
    return list(lines.values())


def probe_drawings(rows: Rows, spreads: Rows) -> list[Drawing]:
    """The figures of rows."""
    from lengthwise.reporting.probes import probe_change_drawing, probe_error_drawing
    from lengthwise.reporting.probes import variance_by_position_drawing as spread

    found = []
    for source in dict.fromkeys(row["documents"] for row in rows):
        own, end = [row for row in rows if row["documents"] == source], "" if source == "task" else f"-{source}"
        for kind in dict.fromkeys(row["probe"] for row in own):
            found.append(probe_error_drawing(own, kind, f"probe-{kind}{end}"))
            if any(row["change"] != "none" for row in own):
                found.append(probe_change_drawing(own, kind, file_name=f"probe-changed-{kind}{end}"))
    for source in dict.fromkeys(row["documents"] for row in spreads):
        found.append(spread(spreads, source, file_name=f"probe-spread-{source}"))
    return found


def _middle(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None


def _write(rows: Rows, path: Path) -> None:
    import polars as pl

    from lengthwise.evaluation.rows import frame_to_parquet
    from lengthwise.folder import Folder

    Folder(path.parent).write(path.name, frame_to_parquet(pl.DataFrame(rows, infer_schema_length=None)))


def _read(path: Path) -> Rows:
    from lengthwise.evaluation.rows import frame_from_parquet
    from lengthwise.folder import Folder

    if not path.exists():
        return []
    return frame_from_parquet(Folder(path.parent).read(path.name)).to_dicts()
