"""The numbers of the docs, made from committed rows: `python -m tests.numbers` writes them, a test holds them.

A table stands between `<!-- numbers: NAME -->` and `<!-- /numbers -->` and is `TABLES[NAME]()`; a sentence of the text
that leans on numbers is in `SENTENCES`, with the page it must be found on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import polars as pl

from lengthwise.conformance import CHECKS
from lengthwise.encoding import ENCODINGS, POSITIONS
from lengthwise.encoding.labels import label_of
from lengthwise.interface.interventions import Recovered
from lengthwise.reporting.divergences import (
    differences_from_reference,
    estimate_divergence,
    mean_over_lengths,
    published_divergence,
)
from lengthwise.reporting.findings import Findings, collect_findings, short_task_name
from lengthwise.reporting.page import Page
from lengthwise.statistics.aggregates import task_difference
from lengthwise.statistics.learned import scored_rows_filter
from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from lengthwise.task import TASKS
from tests.conformance.mutants import MUTANTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COPY, REVERSE = "copy:longest=16:variant=same", "reverse:longest=10"
SIX = ("nope", "t5", "alibi", "rope", "rope:fraction=0.25", "sinusoidal")


def short(value: float, digits: int = 2) -> str:
    """`.31`, `2.06`, `−.43`: the way numbers stand in the text."""
    text = f"{value:.{digits}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text).replace("-", "−")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (head, ["---"] * len(head), *lines))


# --- probes ----------------------------------------------------------------------------------------------------------


@cache
def probes() -> pl.DataFrame:
    return pl.read_parquet(RESULTS / "attention" / "probe.parquet")


def probed(
    task: str,
    encoding: str,
    layer: int,
    model: str = "trained",
    documents: str = "task",
    change: str = "none",
    column: str = "mae",
    probe: str = "mlp",
    tested: str = "seen",
) -> list[float]:
    """One number for each seed."""
    kept = (
        (pl.col("task") == task)
        & (pl.col("encoding") == encoding)
        & (pl.col("layer") == layer)
        & (pl.col("model") == model)
        & (pl.col("documents") == documents)
        & (pl.col("change") == change)
        & (pl.col("control") == "none")
        & (pl.col("probe") == probe)
        & (pl.col("tested") == tested)
    )
    found = probes().filter(kept).sort("seed")[column].to_list()
    assert len(found) == 5, (task, encoding, layer, model, documents, change, len(found))
    return found


def middle(values: Sequence[float], spread: bool = False) -> str:
    ordered = sorted(values)
    text = short(ordered[len(ordered) // 2])
    return f"{text} [{short(ordered[0])}–{short(ordered[-1])}]" if spread else text


def probe_layers() -> str:
    head = ["seen lengths", "copy: layer 0", "1", "2", "reverse: layer 0", "1", "2", "3"]
    places = [(COPY, 0), (COPY, 1), (COPY, 2), (REVERSE, 0), (REVERSE, 1), (REVERSE, 2), (REVERSE, 3)]
    lines = []
    for name in SIX:
        wide = name == "nope"
        lines.append([label_of(name), *(middle(probed(t, name, n), wide and n > 0) for t, n in places)])
    first = [middle(probed(t, "nope", n, "untrained"), t == COPY and n > 0) for t, n in places]
    constants = ["", "", "", ""]
    for at, task in ((0, COPY), (3, REVERSE)):
        best, token = (middle(probed(task, "nope", 0, column=one)) for one in ("constant", "token"))
        constants[at and 1] = f"{best} / {token}"
    lines.append(["NoPE, untrained", *first])
    lines.append(["best constant / token alone", constants[0], "", "", constants[1], "", "", ""])
    return table(head, lines)


def probe_changes() -> str:
    changes = {"none": "as it is", "root_m": "times √m", "one_size": "one size"}
    head = ["layer 1, then the last layer", *changes.values(), *changes.values()]
    lines = []
    for model, words in (("untrained", "untrained"), ("trained", "trained")):
        for task, name, last in ((COPY, "copy", 2), (REVERSE, "reverse", 3)):
            for documents, start in (("random-no-start", "no start token"), ("random", "start token")):
                title = f"{words}, {start} ({name}'s size)" if model == "untrained" else f"trained on {name}, {start}"
                cells = []
                for layer in (1, last):
                    wide = layer == 1 and (model == "trained" or documents == "random-no-start")
                    cells += [middle(probed(task, "nope", layer, model, documents, change), wide) for change in changes]
                lines.append([title, *cells])
    return table(head, lines)


# --- attention -------------------------------------------------------------------------------------------------------


@cache
def divergence(seen: bool = False) -> tuple[dict, ...]:
    rows = pl.read_parquet(RESULTS / "attention" / "divergence.parquet").to_dicts()
    return tuple(mean_over_lengths(rows, seen))


def half(task: str, pairing: str, encoding: str, measure: str) -> str:
    made = estimate_divergence(divergence(), task, pairing, encoding, measure)
    assert made.value is not None and made.half is not None
    return f"{short(made.value, 3)} ± {short(made.half, 3)}"


def attention_table(task: str) -> Callable[[], str]:
    def made() -> str:
        measures = {
            "its recipe here": ("published", "as_published as_published"),
            "true, closest heads": ("record", "true minimum"),
            "true, matched": ("record", "true matching"),
            "untrained, matched": ("floor", "true matching"),
        }
        lines = []
        for name in SIX:
            words = "NoPE, another seed" if name == "nope" else label_of(name)
            number = published_divergence(name)
            cells = [half(task, pairing, name, measure) for pairing, measure in measures.values()]
            lines.append([words, "" if number is None else short(number, 3), *cells])
        return table(["", "published", *measures], lines)

    return made


def gap(task: str, encoding: str, seen: bool = False) -> str:
    rows = differences_from_reference([row for row in divergence(seen) if row["task"] == task])
    (one,) = [row for row in rows if row["encoding"] == encoding and row["measure"] == "true matching"]
    signed = [
        f"{value:+.3f}".replace("+0.", "+.").replace("-0.", "−.")
        for value in (one["difference"], one["low"], one["high"])
    ]
    return f"{signed[0]} [{signed[1]}, {signed[2]}]"


# --- studies ---------------------------------------------------------------------------------------------------------


@cache
def page(name: str) -> Page:
    return Page(collect_findings(Planned(StudyFile.read(name)), None, Bundle(RESULTS / name)))


def glance_seen() -> str:
    found = page("glance").found.rows.filter(scored_rows_filter() & pl.col("seen"))
    by = found.group_by("run", "length").agg((pl.col("correct").sum() / pl.col("examples").sum()).alias("a"))
    means = by.group_by("run").agg(pl.col("a").mean())["a"]
    return f"All {len(means)} learn the seen lengths ({short(means.min(), 3)}–{short(means.max(), 3)})"


def seen_of(task: str, name: str) -> float:
    """The mean over seeds of the mean accuracy at seen lengths, in the attention study."""
    here = page("attention")
    return here.numbers.seen[task, name].mean.value


CORE = ("nope", "t5", "alibi", "rope", "sinusoidal", "learned")


def defaults() -> str:
    """Seen-length accuracy of each task at its laptop setting, tuning seed; `–` where a run is not there."""
    bundle = Bundle(RESULTS / "defaults")
    found = bundle.rows.filter(scored_rows_filter() & pl.col("seen"))
    by = found.group_by("run", "length").agg((pl.col("correct").sum() / pl.col("examples").sum()).alias("a"))
    means = dict(by.group_by("run").agg(pl.col("a").mean()).iter_rows())
    runs: dict[str, dict[str, tuple[float, float]]] = {}
    for key, record in bundle.records.items():
        options = record["run"]["options"]
        by_name = runs.setdefault(options["task"], {})
        by_name[",".join(options["encoding"])] = (means[key], record["done"]["cpu_seconds"])
    lines = []
    for point in Planned(StudyFile.read("defaults")).points:
        task = str(Planned(StudyFile.read("defaults")).plan(point).task_spec)
        if point.encoding == CORE[0]:
            there = runs.get(task, {})
            most = max((seconds for _, seconds in there.values()), default=0.0)
            values = [short(there[name][0], 3) if name in there else "–" for name in CORE]
            lines.append([f"`{point.task}`", f"`{task}`", *values, f"{most:.0f}" if most else "–"])
    return table(["task", "its setting", *map(label_of, CORE), "CPU-seconds, slowest"], lines)


QUICK = ("nope", "t5", "alibi", "rope", "sinusoidal")


def with_length(found: Findings, task: str) -> str:
    """`sort, L = 8`"""
    return f"{found.short(task)}, L = {found.trained[task][0]}"


def quick_table() -> str:
    numbers, found = page("laptop-quick").numbers, page("laptop-quick").found
    lines = []
    for task in found.tasks:
        cells = [numbers.cells[task, name].median for name in QUICK]
        at = f"{with_length(found, task)}{' (chance .5)' if task.startswith('parity') else ''}"
        lines.append([at, *(f"{short(c.value)} [{short(c.low)}, {short(c.high)}]" for c in cells)])
    head = "exact match, L+1 to 2L: median seed [smallest, largest]"
    return table([head, *(label_of(name) for name in QUICK)], lines)


def drope_table() -> str:
    """Seen and unseen exact match of NoPE, RoPE, and RoPE dropped after training with 300 and with 1,250 more steps."""
    arms = {
        "NoPE": ("drope", "nope"),
        "RoPE": ("drope", "rope"),
        "dropped, 300 steps": ("drope", "rope → nope stage 1"),
        "dropped, 1,250 steps": ("drope-longer", "rope → nope stage 1"),
    }
    lines, found = [], page("drope").found
    for task in found.tasks:
        for words, column in (("seen", "seen"), ("L+1 to 2L", "unseen")):
            cells = []
            for study, name in arms.values():
                kept = (pl.col("task") == task) & (pl.col("encoding") == name)
                cells.append(middle(page(study).numbers.scores.filter(kept)[column].to_list(), spread=True))
            lines.append([f"{with_length(found, task)}, {words}", *cells])
    return table(["exact match: median seed [smallest–largest]", *arms], lines)


def drope_verdicts() -> str:
    """D1 to D4 by the rule of the study files: for all three seeds, for none, or not settled."""

    def judged(study: str, task: str, measure: str) -> str:
        own = page(study).numbers.scores.filter(task=task)
        arms = ("nope", "rope", "rope → nope stage 1")
        values = [own.filter(encoding=name).sort("seed")[measure].to_list() for name in arms]
        if measure == "seen":
            right = [dropped >= rope - 0.02 for _, rope, dropped in zip(*values, strict=True)]
        else:
            right = [abs(dropped - nope) < abs(dropped - rope) for nope, rope, dropped in zip(*values, strict=True)]
        return "holds" if all(right) else f"not settled ({sum(right)} of {len(right)})" if any(right) else "fails"

    lines, found = [], page("drope").found
    for number, (study, steps) in enumerate((("drope", "300"), ("drope-longer", "1,250"))):
        back = f"after {steps} steps the seen-length accuracy is back, within .02 of RoPE's"
        near = f"after {steps} steps unseen lengths are nearer to NoPE than to RoPE"
        for place, (words, measure) in enumerate(((back, "seen"), (near, "unseen")), 2 * number + 1):
            lines.append([f"D{place}", words, *(judged(study, task, measure) for task in found.tasks)])
    return table(["", "prediction, committed before the runs", *map(found.short, found.tasks)], lines)


@cache
def causes() -> Recovered:
    return Recovered(pl.read_parquet(RESULTS / "causes" / "rows.parquet").to_dicts())


def causes_table() -> str:
    """What undoing each cause of failure recovers of the loss beyond the trained lengths; bold: accounts for it."""
    undone = {"stop": "stop given", "entropy": "attention sharpened", "squeeze": "positions squeezed"}
    head = ["task", "encoding", "L+1 to 2L", *undone.values(), "all three"]
    lines = []
    for line in sorted(causes().table, key=lambda line: line["task"]):
        cells = []
        for name in (*undone, " + ".join(undone)):
            cell = re.sub(r"-?\d\.\d\d", lambda found: short(float(found[0]) + 0.0), line[name])  # + 0.0: no −.00
            value, _, interval = cell.partition(" [")
            bold = f"**{value}** [{interval}" if name in line["accounts for the loss"].split(", ") else cell
            cells.append(bold)
        task = short_task_name(line["task"])
        lines.append(["copy random" if task == "copy" else task, line["encoding"], short(line["unseen"]), *cells])
    return table(head, lines)


def choose_table() -> str:
    """Per task the encodings whose difference from the best is not settled, with their reach, and those left behind."""
    numbers, found = page("laptop-quick").numbers, page("laptop-quick").found
    lines = []
    for task in found.tasks:
        order = sorted(QUICK, key=lambda name: -(numbers.value(task, name) or 0.0))
        behind = [one for one in order[1:] if task_difference(numbers.scores, task, order[0], one).settled]
        near = [f"{label_of(one)} ({numbers.reach[task, one].median})" for one in order if one not in behind]
        further = ", ".join(label_of(one) for one in behind) or "none"
        lines.append([with_length(found, task), ", ".join(near), further])
    return table(["task", "the best, then those not settled to be worse (length at .9)", "settled to be worse"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "causes": causes_table,
    "choose": choose_table,
    "drope": drope_table,
    "drope verdicts": drope_verdicts,
    "defaults": defaults,
    "probe layers": probe_layers,
    "probe changes": probe_changes,
    "attention copy": attention_table(COPY),
    "attention reverse": attention_table(REVERSE),
    "quick tasks": quick_table,
}


def probe_sentences() -> list[str]:
    def at(*key: object, **more: str) -> str:
        return middle(probed(*key, **more))

    trained, untrained = at(COPY, "nope", 2), at(COPY, "nope", 2, "untrained")
    layer0 = [(at(task, "nope", 0), at(task, "nope", 0, column="token")) for task in (REVERSE, COPY)]
    start = {task: at(task, "nope", 1, documents="random") for task in (COPY, REVERSE)}
    one = {task: at(task, "nope", 1, documents="random", change="one_size") for task in (COPY, REVERSE)}
    none = {task: at(task, "nope", 1, documents="random-no-start") for task in (COPY, REVERSE)}
    linear = at(COPY, "nope", 1, "untrained", documents="random-no-start", probe="linear")
    beyond = [at(REVERSE, name, 1, tested="beyond")[:3] for name in ("nope", "rope:fraction=0.25")]
    return [
        f"the trained model ({trained}) is no better than the untrained one ({untrained})",
        f"({layer0[0][0]} against {layer0[0][1]}; {layer0[1][0]} against {layer0[1][1]})",
        f"({start[REVERSE]} → {one[REVERSE]}; {start[COPY]} → {one[COPY]}",
        f"({start[REVERSE]} → {none[REVERSE]}, {start[COPY]} → {none[COPY]}",
        f"A linear probe knows nothing ({linear} of 8.5)",
        f"best in layer 1 ({beyond[0]} and {beyond[1]})",
    ]


def attention_sentences() -> list[str]:
    def value(task: str, pairing: str, name: str) -> str:
        return short(estimate_divergence(divergence(), task, pairing, name, "true matching").value or 0.0, 3)

    near = [value(COPY, "record", name) for name in ("t5", "nope", "rope")]
    alibi, t5, rope = (value(REVERSE, "record", name) for name in ("alibi", "t5", "rope"))
    return [
        f"D(NoPE, T5) − D(NoPE, NoPE′) is {gap(COPY, 't5')} on copy and {gap(REVERSE, 't5')} on reverse",
        f"({', '.join(near)})",
        f"on reverse ALiBi is nearest ({alibi}), T5 comes after it ({t5}), and RoPE is farther ({rope})",
        f"at seen lengths it is not ({gap(REVERSE, 'alibi', seen=True)})",
        f"ALiBi is at {value(COPY, 'floor', 'alibi')} before training and {value(COPY, 'record', 'alibi')} after",
        f"(reverse: NoPE from itself {value(REVERSE, 'record', 'nope')}, of a possible .693)",
        f"copy {short(seen_of(COPY, 't5'))} (T5) to {short(seen_of(COPY, 'nope'))} (NoPE)",
    ]


def quick_means() -> tuple[str, ...]:
    means = page("laptop-quick").numbers.means
    return tuple(short(means[name].seeds.value) for name in ("nope", "alibi", "t5", "sinusoidal", "rope"))


def quick_sentences() -> list[str]:
    nope, alibi, t5, sinusoidal, rope = quick_means()
    return [f"mean exact match is {nope}, that of ALiBi {alibi}, T5 {t5}, sinusoids {sinusoidal} and RoPE {rope}"]


def score_under(task: str, encoding: str, condition: str) -> str:
    """Mean exact match over unseen lengths and seeds under a condition of `recover`."""
    seeds = sorted({row["seed"] for row in causes().rows if (row["task"], row["encoding"]) == (task, encoding)})
    return short(sum(causes().score(task, encoding, seed, condition, False) for seed in seeds) / len(seeds))


def causes_sentences() -> list[str]:
    sort, same = "sort:longest=8", "copy:longest=16:variant=same"
    rows = pl.DataFrame(causes().rows).filter(pl.col("encoding") == "nope", ~pl.col("seen"))
    plain, squeezed = (rows.filter(condition=name).drop("condition") for name in ("", "squeeze"))
    pairs = plain.join(squeezed, on=["task", "seed", "length", "examples", "correct"])
    assert len(pairs) == len(plain) == len(squeezed)
    return [
        f"({score_under(sort, 'sinusoidal', '')} to {score_under(sort, 'sinusoidal', 'squeeze')} exact match)",
        f"({score_under(same, 't5', '')} to {score_under(same, 't5', 'squeeze')})",
        f"all {len(pairs)} pairs of counts are equal",
    ]


def choose_sentences() -> list[str]:
    nope, alibi, t5, sinusoidal, rope = quick_means()
    words, sort = "exact match from one to two training lengths", "sort:longest=8"
    scores = page("drope-longer").numbers.scores.filter(pl.col("task").str.starts_with("sort"))
    names = ("rope → nope stage 1", "rope", "nope")
    dropped, rotated, none = (middle(scores.filter(encoding=name)["unseen"].to_list()) for name in names)
    return [
        f"NoPE has {nope} {words}, ALiBi {alibi}, T5 {t5}, sinusoids {sinusoidal}, RoPE {rope}",
        *(
            f"with {label} {score_under(sort, name, '')} becomes {score_under(sort, name, 'squeeze')}"
            for name, label in (("sinusoidal", "sinusoids"), ("rope", "RoPE"))
        ),
        f"({dropped} exact match; RoPE {rotated}, NoPE {none})",
    ]


def readme_sentences() -> list[str]:
    nope, alibi, t5, sinusoidal, rope = quick_means()
    reach = page("quickstart").numbers.reach
    task = page("quickstart").found.tasks[0]
    found = page("quickstart").found
    checks = len(CHECKS)
    return [
        *(f"{found.label(name)} {reach[task, name].median}" for name in page("quickstart").encodings_best_first()[:3]),
        f"{len(TASKS)} tasks with splits",
        f"{len(ENCODINGS)} encodings, {len(POSITIONS)} kinds of positions",
        f"a conformance kit of {checks} checks",
        f"{checks} checks: padding on either side",
        f"plants {len(MUTANTS)} ",
        f"is {nope} for NoPE, {alibi} for ALiBi, {t5} for T5, {sinusoidal} for sinusoids and {rope} for RoPE",
    ]


SENTENCES: dict[str, Callable[[], list[str]]] = {
    "docs/understand/probes.md": probe_sentences,
    "docs/understand/attention.md": attention_sentences,
    "docs/reference/encodings.md": lambda: [glance_seen()],
    "docs/results/laptop-quick.md": quick_sentences,
    "docs/results/causes.md": causes_sentences,
    "docs/how-to/choose-an-encoding.md": choose_sentences,
    "README.md": readme_sentences,
}
PAGES = sorted({*SENTENCES, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))})
BLOCK = re.compile(r"<!-- numbers: ([^>]+) -->\n(.*?)<!-- /numbers -->", re.DOTALL)


def written(text: str) -> str:
    """A page with its tables made from rows."""
    return BLOCK.sub(lambda one: f"<!-- numbers: {one[1]} -->\n{TABLES[one[1]]()}\n<!-- /numbers -->", text)


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        before = path.read_text()
        if (after := written(before)) != before:
            path.write_text(after)
            print("written:", name)
        plain = " ".join(after.split())
        for sentence in SENTENCES.get(name, list)():
            if " ".join(sentence.split()) not in plain:
                print(f"{name} lacks: {sentence}")
